"""Reader of partitions into this process's memory, with one Kafka consumer per partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import NoReturn

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input.buffer import PartitionBuffer, RecordBuffer
from streaming_pca.service.input.end_offsets import Offsets
from streaming_pca.service.input.reader import deleted, tail_lost
from streaming_pca.service.kafka.clients import TpOffsets, offsets_by, reading_consumer
from streaming_pca.service.kafka.inflating import most_record_bytes
from streaming_pca.service.kafka.patches import close_reader, seek
from streaming_pca.service.kafka.record_batches import UnreadableBatch
from streaming_pca.service.kafka.record_blocks import BlockReader

_FETCH_BYTES = 4 * 2**20
"""Bytes fetched ahead by all partitions together; at least 1 MiB each.

A client holds up to six copies of them during decoding; larger fetches are hardly faster.
"""
_POLL_MS = 20  # time limit of a poll, which keeps waiting if it finds only a transaction marker


class PartitionReader:
    """Reader of partitions from given offsets; only :meth:`stop` is thread-safe.

    Each partition has its own consumer, because kafka-python loses records of paused partitions
    (docs/explanation/kafka-client.md). The consumer of a removed partition is kept for the next one.
    Connections are made on demand. A poll returns at most one response of the broker.
    """

    ahead = True

    def __init__(
        self,
        kafka: KafkaSettings,
        stream: StreamSettings,
        codec: PayloadCodec,
        partitions: int,
        skip_lost: bool,
        check: Callable[[], None],
    ) -> None:
        self._kafka, self._topic = kafka, stream.input
        self._skip_lost, self._check = skip_lost, check
        fetch = max(_FETCH_BYTES // max(partitions, 1), 2**20)
        reader = partial(BlockReader, most_bytes=most_record_bytes(codec.most_bytes))
        self._make_consumer = partial(reading_consumer, kafka, fetch_bytes=fetch, io="records", reader=reader)
        self._stop = threading.Event()
        self._consumers: dict[int, KafkaConsumer] = {}
        self._free: list[KafkaConsumer] = []
        self._buffer = RecordBuffer(codec)
        self.buffers = self._buffer.buffers
        self.prepare, self.take = self._buffer.prepare, self._buffer.take
        self.release_memory = self._buffer.release_memory

    @property
    def bytes(self) -> int:
        return self._buffer.bytes

    def add(self, starts: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        for p, start in sorted(starts.items()):
            if p in self._consumers:
                raise ValueError(f"partition {p} is being read")
            epoch = epochs.get(p, -1)
            consumer = self._idle_consumer()
            consumer.assign([self._tp(p)])
            seek(consumer, self._tp(p), start, epoch)
            self._free.remove(consumer)
            self._consumers[p] = consumer
            self.buffers[p] = PartitionBuffer(start, epoch)

    def remove(self, partition: int) -> None:
        consumer = self._consumers.pop(partition)
        self._buffer.remove(partition)
        # This also drops records fetched ahead, because their partition is unassigned.
        consumer.unsubscribe()
        self._free.append(consumer)

    def restart(self, codec: PayloadCodec) -> None:
        starts = {p: buffer.position for p, buffer in self.buffers.items()}
        epochs = {} if self._skip_lost else {p: buffer.epoch for p, buffer in self.buffers.items()}
        for p in starts:
            self.remove(p)
        self._buffer.use(codec)
        self.add(starts, epochs)

    def _idle_consumer(self) -> KafkaConsumer:
        """Return a consumer without a partition, creating one if necessary."""
        if not self._free:
            self._free.append(self._make_consumer())
        return self._free[-1]

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def first_offsets(self, partitions: Sequence[int]) -> Offsets:
        consumer = next(iter(self._consumers.values()), None) or self._idle_consumer()
        return self._offsets(consumer.beginning_offsets, partitions, "starts")

    def last_offsets(self, partitions: Sequence[int]) -> Offsets:
        with closing(reading_consumer(self._kafka, committed=False, topics=[self._topic])) as consumer:
            return self._offsets(consumer.end_offsets, partitions, "ends")

    def _offsets(self, ask: Callable[..., TpOffsets], partitions: Sequence[int], what: str) -> Offsets:
        tps, timeout = [self._tp(p) for p in partitions], self._kafka.request_timeout_ms
        try:
            return {tp.partition: offset for tp, offset in offsets_by(ask, tps, timeout).items()}
        except KafkaError as error:
            raise SessionLost(f"reading partition {what} failed: {type(error).__name__}") from None

    def position(self, partition: int) -> int:
        try:
            position = self._consumers[partition].position(
                self._tp(partition), timeout_ms=self._kafka.request_timeout_ms
            )
        except LogTruncationError as error:
            self._raise_truncated(partition, error)
        except KafkaError as error:
            raise SessionLost(
                f"the position in {self._topic}-{partition} is not known: {type(error).__name__}"
            ) from None
        if position is None:
            raise SessionLost(f"partition {partition} of {self._topic} has no position")
        return int(position)

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        for p in wanted:
            if self._stop.is_set():
                return
            self._poll(p)

    def _poll(self, partition: int) -> None:
        # A poll returns {} on a dead broker too; the clock notices that.
        self._check()
        try:
            polled = self._consumers[partition].poll(timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError:
            position, first = self.position(partition), self.first_offsets([partition])[partition]
            if position < first and self._skip_lost:
                raise SessionLost(f"records of {self._topic}-{partition} were deleted: skipping") from None
            if position < first:
                raise deleted(self._topic, partition, position, first) from None
            raise SessionLost(f"position {position} of {self._topic}-{partition} is out of range") from None
        except LogTruncationError as error:
            self._raise_truncated(partition, error)
        except UnreadableBatch as error:
            raise RecordsLost(
                f"topic {self._topic!r}, partition {partition}: {error}: they are not read. "
                "Produce them again into a new topic, or delete "
                f"them (`kafka-delete-records` with partition {partition}, offset {error.end}) and set "
                'stream.lost_records = "skip"'
            ) from None
        except KafkaError as error:
            # The error's text may contain bytes of a record.
            raise SessionLost(
                f"reading {self._topic}-{partition} at offset {self.position(partition)} failed: "
                f"{type(error).__name__}"
            ) from None
        for messages in polled.values():
            self._buffer.append(partition, messages)

    def _raise_truncated(self, partition: int, error: LogTruncationError) -> NoReturn:
        """Stop if a new leader lacks records of its predecessor."""
        # The offset where the two logs diverge; None if the new leader does not know the old epoch.
        parted = error.divergent_offsets.get(self._tp(partition))
        end, position = (0 if parted is None else parted.offset), self.buffers[partition].position
        if end < position and not self._skip_lost:
            raise tail_lost(self._topic, partition, position, end) from None
        raise SessionLost(f"{self._topic}-{partition} has lost the records from offset {end} on") from None

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        # kafka-python's cycles include this reader: free its memory before the next session reads again.
        self._buffer.clear()
        for consumer in [*self._consumers.values(), *self._free]:
            close_reader(consumer)
