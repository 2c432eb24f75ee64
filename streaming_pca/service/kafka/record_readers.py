"""Readers of fetched records that replace kafka-python's own.

Inflated bytes also bound the result of a poll: a fetch of 4 MiB can inflate to gigabytes. A poll ends after
the records of :data:`_POLL_BYTES`, and the next one continues there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError

from streaming_pca.service.kafka.inflating import MOST_RECORD_BYTES, inflate
from streaming_pca.service.kafka.record_batches import Record, parse_batch

_POLL_BYTES = 2**23


class UnreadableBatch(KafkaError):  # type: ignore[misc]
    """Batch in an unsupported message format.

    Attributes
    ----------
    what : str
        Fault of its records.
    first, end : int
        Its offsets [first, end); only the first one, because the others are unknown.
    """

    def __init__(self, what: str, first: int, end: int) -> None:
        super().__init__(f"records {first} to {end - 1} {what}")
        self.what, self.first, self.end = what, first, end


class RecordReader(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Reader of one partition's records in one response, replacing `Fetcher.PartitionRecords`.

    Parameters
    ----------
    *args, **kwargs
        Arguments of `Fetcher.PartitionRecords`.
    most_bytes : int
        Longest record that is kept from a compressed batch.
    """

    def __init__(self, *args: Any, most_bytes: int = MOST_RECORD_BYTES, **kwargs: Any) -> None:
        self._most_bytes = most_bytes
        self.inflated = 0
        """Bytes inflated for the last :meth:`take`."""
        super().__init__(*args, **kwargs)

    def take(self, n: int | None = None) -> list[Any]:
        """Return up to ``n`` records, or fewer if many bytes were inflated for them."""
        self._maybe_raise_next_inline_exception()
        self.inflated = 0
        records: list[Any] = []
        try:
            for record in self.record_iterator:
                if record is not None:
                    records.append(record)
                    if len(records) == n:
                        break
                elif self.inflated >= _POLL_BYTES:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error
        return records

    def _maybe_skip_record(self, record: Any) -> bool:
        """Leave skipping to `_unpack_records`, which can pause."""
        return False

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        """Yield the records of all batches that were not aborted.

        A None between records is a place where a poll may end. Keeps the contract of the overridden method:
        after each record, and at the end after the last batch, `next_fetch_offset` is the offset to
        continue from.
        """
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{tp}: the batch at offset {batch.base_offset} fails its checksum")
            if batch.magic != 2:
                what = f"are of message format {batch.magic}, of Kafka before 0.11"
                raise UnreadableBatch(what, batch.base_offset, batch.base_offset + 1)
            self.leader_epoch = batch.leader_epoch
            if not self._is_hidden(batch):
                for record in self._parse(batch):
                    if record is None:
                        yield None
                    elif record.offset >= self.fetch_offset:
                        self.records_read += 1
                        self.next_fetch_offset = record.offset + 1
                        yield record
            # A batch keeps its offset range even if its last records were compacted away.
            self.next_fetch_offset = max(batch.next_offset, self.fetch_offset)
        # A number above 0 makes the fetcher serve the partitions in turn.
        self.bytes_read = self.records_read
        self.drain()

    def _is_hidden(self, batch: Any) -> bool:
        """Return whether a batch is a marker or, under read_committed, aborted."""
        if self.isolation_level and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    def _parse(self, batch: Any) -> Iterator[Any]:
        """Yield a batch's records, and None after each piece of a compressed batch."""
        if not batch.compression_type:
            yield from self._records(batch)
            return
        for piece in inflate(batch, self._most_bytes):
            self.inflated += piece.inflated
            yield from self._records(piece)
            yield None

    def _records(self, batch: Any) -> Iterator[Any]:
        """Yield the records of an uncompressed batch or piece."""
        return parse_batch(batch)


class InflatingReader(RecordReader):
    """Reader of the service's own topics, where a broken batch is an error.

    A broker may compress these topics.
    """

    def _parse(self, batch: Any) -> Iterator[Record]:
        batch._maybe_uncompress()
        return parse_batch(batch)


def use_reader(fetcher: Fetcher, reader: type[RecordReader], most_bytes: int = MOST_RECORD_BYTES) -> None:
    """Make a consumer use a reader, and end polls that inflate bytes.

    The client would otherwise continue with a partition until the poll has its maximum number of records.
    """
    append = fetcher._append

    def append_and_end(drained: Any, part: Any, most: int, *how: Any) -> int:
        count: int = append(drained, part, most, *how)
        return max(count, most) if part.inflated else count

    fetcher.PartitionRecords = partial(reader, most_bytes=most_bytes)
    fetcher._append = append_and_end
