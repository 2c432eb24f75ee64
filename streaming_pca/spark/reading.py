"""Reading of records in a Python worker of Spark, from Kafka or its cache.

Reader, codec and arrays are those of the service.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pyspark import TaskContext

from streaming_pca import __version__
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.features.records import Schemas
from streaming_pca.kernels.threads import use_threads
from streaming_pca.service.errors import RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import build_codec
from streaming_pca.spark.cache import RowCache, Shelf, ValueCache, folder_of
from streaming_pca.spark.segments import Range, packed_structure
from streaming_pca.text import offsets_text

Hashes = NDArray[np.uint64]
Part = tuple[int, ArrayBatch, "Hashes | None"]
"""Consecutive records of a segment: index of the first, records, and their users."""

_PIECE_BYTES = 2**25  # bytes of rows to decode before they are written or summed
_STALL_SECONDS = 60.0  # time limit for the arrival of records that existed when the range was cut


@dataclass(frozen=True)
class Wanted:
    """Segments whose rows are still needed; those after the ``newest`` known one may be, too."""

    numbers: frozenset[int]
    newest: int

    def has(self, name: str) -> bool:
        """Return whether the segment of a name may still be needed."""
        number = int(name.rpartition("/")[2])
        return number in self.numbers or number > self.newest


@dataclass(frozen=True)
class Feed:
    """Settings for a task to read the stream's input."""

    kafka: KafkaSettings  # including the password
    stream: StreamSettings
    user_key: bytes | None
    session: str  # name of the driver's session as leader
    cache_bytes: int  # bytes of decoded rows that a process may cache
    threads: int
    schemas: Schemas | None = None  # schemas of a registry that records refer to
    version: str = __version__
    numpy: str = np.__version__  # version of numpy; tasks and their sums are its arrays
    wanted: Wanted | None = None  # segments needed at the time when the driver created the job

    def name_of(self, segment: int) -> str:
        return f"{self.session}/{segment}"


@dataclass(frozen=True)
class Piece:
    """Consecutive messages of a range, decoded; ``rows`` has the number of rows of each message."""

    batch: ArrayBatch
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]
    users: Hashes | None


class Reading:
    """Reader and cache of one Python worker, shared by its tasks."""

    _open: ClassVar[dict[str, Reading]] = {}

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.cache = RowCache(os.path.dirname(folder_of(feed.session)), feed.cache_bytes)
        self.values = ValueCache(feed.session, feed.cache_bytes)
        self.codec = build_codec(feed.stream, feed.user_key, feed.schemas)
        self._reader: PartitionReader | None = None

    @classmethod
    def of(cls, feed: Feed) -> Reading:
        """Return the instance of this process for a session of the driver."""
        for name, own, drivers in (
            ("streaming-pca", __version__, feed.version),
            ("numpy", np.__version__, feed.numpy),
        ):
            if own != drivers:
                raise StreamRefused(
                    f"an executor has {name} {own}, the driver {drivers}: install the driver's version for "
                    "PYSPARK_PYTHON on every machine"
                )
        # Not in the driver, which itself reads for sequential algorithms.
        if TaskContext.get() is not None:
            use_threads(feed.threads)
            # As in a worker: a warning about a number, and the client's log, may quote records.
            warnings.simplefilter("ignore")
            logging.getLogger("kafka").setLevel(logging.CRITICAL)
            _spare_the_collector()
        if feed.session not in cls._open:
            cls._open[feed.session] = cls(feed)
        reading = cls._open[feed.session]
        if feed.wanted is not None:
            reading.keep(feed.wanted)
        return reading

    def keep(self, wanted: Wanted) -> None:
        """Free segments of earlier batches, which the drop job may have missed in this process."""
        self.cache.drop({name for name in self.cache.names if not wanted.has(name)})
        self.values.drop({name for name in self.values.segments if not wanted.has(name)})

    @classmethod
    def forget(cls, session: str) -> None:
        """Close the instance of this process for a session, if any."""
        if session in cls._open:
            cls._open[session].close()

    def close(self) -> None:
        self._open.pop(self.feed.session, None)
        self.cache.drop(self.cache.names)
        self.values.close()
        self._forget_reader()

    def _forget_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def pieces(self, wanted: Range) -> Iterator[Piece]:
        """Read a range from Kafka in pieces; all but the last have an even number of messages."""
        try:
            if self._reader is None:
                # No check: the driver watches the time and cancels a job whose records do not arrive.
                how = (self.feed.kafka, self.feed.stream, self.codec, 1, False, lambda: None)
                self._reader = PartitionReader(*how)
            yield from read(self._reader, wanted)
        except Exception:
            self._forget_reader()
            raise


_tasks = itertools.count(1)


def _spare_the_collector() -> None:
    """Exclude the libraries' objects from garbage collection in a process that runs tasks.

    PySpark collects after each task, which would take a tenth of a second with these objects. Each task
    creates fewer new ones, so this function freezes them at tasks 1, 2, 4, and so on.
    """
    count = next(_tasks)
    if count & (count - 1) == 0:
        gc.collect()
        gc.freeze()


def read(reader: PartitionReader, wanted: Range) -> Iterator[Piece]:
    """Read a range with a reader that has no partitions before and after the call."""
    p = wanted.partition
    reader.add({p: wanted.start}, {p: wanted.epoch})
    try:
        position, moved = -1, time.monotonic()
        while True:
            reached, count = reader.position(p), reader.buffers[p].count_before(wanted.end)
            complete = reached >= wanted.end
            if complete or reader.bytes >= _PIECE_BYTES:
                # Leave an incomplete pair for the next piece.
                if count := count if complete else count // 2 * 2:
                    yield _take(reader, p, count)
                    reader.release_memory()
                if complete:
                    return
            if reached > position:
                position, moved = reached, time.monotonic()
            elif time.monotonic() - moved > _STALL_SECONDS:
                raise SessionLost(f"partition {p} cannot be read to {wanted.end}: it stops at {position}")
            reader.fetch({p: count + wanted.end - reached}, {p: wanted.end})
    finally:
        reader.remove(p)


def _take(reader: PartitionReader, partition: int, count: int) -> Piece:
    reader.prepare({partition: count})
    parts, left = [], count
    for chunk in reader.buffers[partition].chunks:
        some = min(left, len(chunk.offsets))
        of_chunk = np.full(some, chunk.epoch, dtype=np.int64)
        parts.append((chunk.offsets[:some], chunk.lengths[:some], of_chunk))
        left -= some
        if not left:
            break
    batch, users = reader.take([count], 1)
    assert isinstance(batch, ArrayBatch)
    offsets, lengths, epochs = map(np.concatenate, zip(*parts, strict=True))
    return Piece(batch, offsets, lengths, epochs, users)


class Structure:
    """Structure of a segment, collected from its pieces."""

    def __init__(self, by_row: bool) -> None:
        self.by_row = by_row
        self.nulls = self.longer = 0
        self._columns = [(np.zeros(0, dtype=np.int64),) * 3]

    def add(self, piece: Piece) -> None:
        nulls = piece.batch.null_count()
        self.nulls += nulls
        self.longer += piece.batch.single_rows().null_count() - nulls
        self._columns.append((piece.offsets, piece.epochs, piece.rows if self.by_row else piece.rows[:0]))

    def packed(self) -> bytes:
        return packed_structure(*map(np.concatenate, zip(*self._columns, strict=True)))


def chosen(parts: Iterator[Part], low: int, high: int) -> Iterator[Part]:
    """Iterate over the records ``low`` to ``high`` of a segment."""
    for first, part, users in parts:
        a, b = max(low, first) - first, min(high, first + len(part)) - first
        if a < b:
            some = part.split([a, b - a, len(part) - b])[1]
            yield first + a, some, None if users is None else users[a:b]


def whole_pairs(parts: Iterator[Part]) -> Iterator[Part]:
    """Regroup parts so that none ends within a pair; the first must start with a pair."""
    left: Part | None = None
    for first, part, users in parts:
        if left is not None:
            head, rest = part.split([1, len(part) - 1])
            ends = None if users is None or left[2] is None else np.concatenate([left[2], users[:1]])
            yield left[0], ArrayBatch.joined([left[1], head]), ends
            first, part, users = first + 1, rest, None if users is None else users[1:]
            left = None
        whole = len(part) // 2 * 2
        if whole < len(part):
            # Copy, because the reader reuses its memory for the next records.
            last = part.split([whole, len(part) - whole])[1].copy()
            left = (first + whole, last, None if users is None else users[whole:])
        if whole:
            yield first, part.split([whole, len(part) - whole])[0], None if users is None else users[:whole]
    if left is not None:
        yield left


def parts_of(reading: Reading, handle: Mapping[str, Any], of_users: bool) -> Iterator[Part]:
    """Iterate over a segment's records, cached here or read again from Kafka."""
    if not of_users:
        with contextlib.suppress(LookupError):
            shelf = Shelf(reading.feed.name_of(handle["id"]), handle["host"], handle["path"])
            yield from numbered((part, None) for part in reading.cache.open(shelf).parts)
            return
    wanted = range_of(handle)
    structure = Structure(reading.codec.unit == "row")

    def read_again() -> Iterator[tuple[ArrayBatch, Hashes | None]]:
        for piece in reading.pieces(wanted):
            structure.add(piece)
            yield piece.batch, piece.users
        # If a record was replaced, its leader epoch differs.
        if structure.packed() != handle["structure"]:
            raise changed(reading.feed, wanted)

    yield from numbered(read_again())


def numbered(parts: Iterable[tuple[ArrayBatch, Hashes | None]], first: int = 0) -> Iterator[Part]:
    """Add to each part the index of its first record, starting from ``first``."""
    for part, users in parts:
        yield first, part, users
        first += len(part)


def range_of(handle: Mapping[str, Any]) -> Range:
    return Range(handle["id"], handle["partition"], handle["begin"], handle["end"], handle["epoch"])


def changed(feed: Feed, records: Range) -> RecordsLost:
    """Return the error for records that have changed since they were counted."""
    return RecordsLost(
        f"topic {feed.stream.input!r}, partition {records.partition}: the records at "
        f"{offsets_text(records.start, records.end)} have changed since they were counted"
    )
