"""Parts of a batch in the memory of one process, in the batch's order.

Algorithms that read records sequentially need this: on an executor for a part of a batch, on the driver
for a whole batch.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import Block
from streaming_pca.spark.cache import Shelf
from streaming_pca.spark.operations import Share
from streaming_pca.spark.reading import Feed, Part, Reading, changed, chosen, numbered
from streaming_pca.spark.segments import Range, Segment
from streaming_pca.spark.tasks import answer_rows, guarded


@dataclass(frozen=True)
class Fetch:
    """Source of the records of a share.

    Attributes
    ----------
    shelf : Shelf
        Location where the whole segment may be cached.
    messages : Range
        Range of the messages with these records.
    before : int
        Number of the segment's records before these messages.
    count, epoch : int
        Number of the messages, and leader epoch of the last message.
    """

    share: Share
    shelf: Shelf
    messages: Range
    before: int
    count: int
    epoch: int

    @classmethod
    def of(cls, share: Share, segment: Segment, name: str, host: str, path: str) -> Fetch:
        """Locate the messages of a share's records."""
        first, last = segment.message_of(share.first), segment.message_of(share.last - 1)
        wanted = segment.range
        messages = Range(wanted.id, wanted.partition, segment.offset(first), segment.offset(last) + 1)
        before, count = segment.records_before(first), last + 1 - first
        return cls(share, Shelf(name, host, path), messages, before, count, segment.epoch(last))

    def parts(self, reading: Reading) -> Iterator[Part]:
        """Iterate over the records, cached on this machine or read from Kafka."""
        with contextlib.suppress(LookupError):
            rows = reading.cache.open(self.shelf)
            yield from chosen(numbered((p, None) for p in rows.parts), self.share.first, self.share.last)
            return
        yield from chosen(numbered(self._read_again(reading), self.before), self.share.first, self.share.last)

    def _read_again(self, reading: Reading) -> Iterator[tuple[ArrayBatch, None]]:
        count, epoch = 0, -1
        for piece in reading.pieces(self.messages):
            count, epoch = count + len(piece.offsets), int(piece.epochs[-1])
            yield piece.batch, None
        # Epochs increase: if any of the records was replaced, so was the last one.
        if (count, epoch) != (self.count, self.epoch):
            raise changed(reading.feed, self.messages)


def gathered(reading: Reading, fetches: Sequence[Fetch]) -> ArrayBatch:
    """Return the records of several shares in the order of their places."""
    batches, places = [], []
    for fetch in fetches:
        for first, part, _ in fetch.parts(reading):
            batches.append(fetch.share.of(part, first).copy())
            found = fetch.share.places(first, first + len(part))
            assert found is not None
            places.append(found)
    if not batches:
        codec = reading.codec
        return ArrayBatch.of_records([], codec.dim, codec.kind)
    batch, at = ArrayBatch.joined(batches), np.concatenate(places)
    order = np.argsort(at)
    lengths = np.diff(batch.starts)[order]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ArrayBatch(batch.rows, starts, batch.kind, batch.starts[:-1][order])


def on_parts(
    feed: Feed, parts: Sequence[Sequence[Fetch]], kernel: Callable[[Block], Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a job that applies a kernel to parts of a batch."""

    def result(index: int) -> tuple[int, dict[int, bytes]]:
        batch = gathered(Reading.of(feed), parts[index])
        return len(batch), {index: pickle.dumps(kernel(batch.packed()))}

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                found = guarded(partial(result, index))
                if isinstance(found, str):
                    yield answer_rows({}, found)
                else:
                    yield answer_rows(found[1], records=found[0])

    return run
