"""Functions that executors run: they read segments and sum over their records.

Spark calls them through ``mapInArrow``. The task that needs a record reads it from Kafka, and the record
goes nowhere else: a task returns only counts and offsets, exact integer sums, or hashes of users.

An unknown error may reveal records, and Spark prints the errors of tasks. Therefore a task fails with a
fixed text, or returns the reason as a row if a second attempt would not help.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from kafka.errors import KafkaError
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, ArrayValues
from streaming_pca.data.batch import BinKernel, MapKernel, SumKernel, ValueKernel
from streaming_pca.data.records import Block, row_starts
from streaming_pca.errors import UserError
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.service.errors import RecordsLost, StreamRefused
from streaming_pca.service.process_hardening import refuse_core_files
from streaming_pca.spark.cache import Shelf
from streaming_pca.spark.reading import (
    Feed,
    Part,
    Reading,
    Structure,
    changed,
    chosen,
    numbered,
    parts_of,
    range_of,
    whole_pairs,
)
from streaming_pca.spark.segments import Order, Range, Segment

T = TypeVar("T")
Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Values = NDArray[np.float64]
Job = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function of a job, as ``mapInArrow`` takes it."""

HANDLE = (
    "id long, partition int, begin long, end long, epoch int, nulls long, longer long, "
    "structure binary, host string, path string, failure string"
)
"""Columns of the row for a segment that a task has read."""
ANSWER = "chunk int, data binary, records long, failure string"
"""Columns of a task's answer; the first row contains the number of records read."""
_TYPES = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary(), "string": pa.string()}
"""Arrow's types by Spark's names."""


class TaskFailed(Exception):
    """Failure that another attempt, on another executor, may avoid."""


def guarded(work: Callable[[], T]) -> T | str:
    """Run a task's work; return a failure that would recur, raise TaskFailed for another."""
    # Executors stay dumpable, so that they can open one another's cached segments in /proc.
    refuse_core_files()
    try:
        return work()
    except TaskFailed:
        raise
    except RecordsLost as error:
        return f"lost: {error}"
    except StreamRefused as error:
        return f"refused: {error}"
    except UserError as error:
        raise TaskFailed(str(error)) from None
    except (KafkaError, OSError) as error:
        raise TaskFailed(f"{type(error).__name__} while records were read") from None
    except Exception:
        return "failed"


def _rows(columns: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows with the given columns; a missing value is null."""
    fields = [field.split() for field in columns.split(", ")]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(name, _TYPES[kind]) for name, kind in fields]))


def answer_rows(chunks: Mapping[int, bytes], failure: str | None = None, records: int = 0) -> pa.RecordBatch:
    """Return an answer's chunks, or its failure, as rows."""
    rows: list[dict[str, Any]] = [{"chunk": key, "data": data, "records": 0} for key, data in chunks.items()]
    if failure is not None:
        rows = [{"chunk": 0, "data": b"", "failure": failure}]
    if rows:
        rows[0]["records"] = records
    return _rows(ANSWER, rows)


def _answer(work: Callable[[], tuple[int, Mapping[int, bytes]]]) -> pa.RecordBatch:
    """Run a task's work, which returns a number of records and chunks; return its answer."""
    found = guarded(work)
    return answer_rows({}, found) if isinstance(found, str) else answer_rows(found[1], records=found[0])


def load(feed: Feed, ranges: Sequence[Range]) -> Job:
    """Return the function of a job that reads ranges, given by index."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                wanted = ranges[index]
                found = guarded(partial(_load, feed, wanted))
                row: dict[str, Any] = {"failure": found} if isinstance(found, str) else found
                place = {"id": wanted.id, "partition": wanted.partition, "epoch": wanted.epoch}
                yield _rows(HANDLE, [{**place, "begin": wanted.start, "end": wanted.end, **row}])

    return run


def _load(feed: Feed, wanted: Range) -> dict[str, Any]:
    reading = Reading.of(feed)
    structure = Structure(reading.codec.unit == "row")

    def parts() -> Iterator[ArrayBatch]:
        for piece in reading.pieces(wanted):
            structure.add(piece)
            yield piece.batch

    width = reading.codec.kind.width(reading.codec.dim)
    shelf = reading.cache.store(feed.name_of(wanted.id), width, reading.codec.kind, parts())
    counts = {"nulls": structure.nulls, "longer": structure.longer}
    return {**counts, "structure": structure.packed(), "host": shelf.host, "path": shelf.path}


def drop(feed: Feed, names: Sequence[str], closing: bool) -> Job:
    """Return the job that frees segments' rows; ``closing`` frees the whole session."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handles = [handle for batch in batches for handle in batch.to_pylist()]
        reading = Reading.of(feed)
        reading.cache.drop(names)
        reading.values.drop(names)
        reading.cache.drop_shelves([Shelf(feed.name_of(h["id"]), h["host"], h["path"]) for h in handles])
        if closing:
            reading.close()
        yield answer_rows({})

    return run


# Results of parts are joined in any order, and leave a task as chunks of bytes. Sums are exact integers, so
# their bits do not depend on tasks, executors or attempts.


@dataclass(frozen=True)
class Share:
    """Records ``first`` to ``last`` (excluded) of a segment, which an operation reads."""

    first: int
    last: int
    counted: bytes | None = None  # one bit per record, 0 for null records; None if all count
    single_rows: bool = False  # True if records with any other number of rows than one are null
    order: Order | Integers | None = None
    """Order of the batch, or the place of each of these records; None if places are not needed."""
    partition: int = 0
    base: int = 0  # index of the partition, and index of the record first in it, for order
    origin: int = 0  # place in the batch that counts as 0

    def of(self, batch: ArrayBatch, first: int) -> ArrayBatch:
        """Return records of the share from ``first``, with uncounted records replaced by null."""
        if self.single_rows:
            batch = batch.single_rows()
        if self.counted is None:
            return batch
        bits = np.unpackbits(np.frombuffer(self.counted, dtype=np.uint8), count=self.last - self.first)
        return batch.keeping(bits[first - self.first : first - self.first + len(batch)].astype(bool))

    def places(self, first: int, last: int) -> Integers | None:
        """Return the places of records ``first`` to ``last`` of the segment, if requested."""
        if self.order is None:
            return None
        low, high = first - self.first, last - self.first
        if isinstance(self.order, Order):
            return self.order.places(self.partition, self.base + low, self.base + high) - self.origin
        return self.order[low:high] - self.origin


@dataclass(frozen=True)
class Records:
    """Records of a share: the input of an operation, with places (m,) and users (m, 2) if requested.

    ``recall`` caches values of these records by name.
    """

    batch: ArrayBatch
    places: Integers | None
    users: Hashes | None
    recall: Callable[[str, Callable[[], Values]], Values]

    def map(self, mapped: Mapped) -> Values:
        return self.recall(mapped.name, lambda: self.batch.map(mapped.kernel).array)


@dataclass(frozen=True)
class Mapped:
    """Kernel of values, with a name that is unique in the session."""

    name: str
    kernel: MapKernel


class Operation(ABC):
    """Picklable operation on records, which tasks apply to parts of segments."""

    of_users: ClassVar[bool] = False  # True if it needs the users of messages, which executors do not cache

    @abstractmethod
    def result(self, part: Records) -> Any:
        """Return the result for some records: integers or a list, so that ``+`` joins results."""

    def chunks(self, total: Any, width: int) -> dict[int, bytes]:
        """Return the joined results as bytes; a sum in chunks of ``width`` integers, 0 for one chunk."""
        if isinstance(total, list):
            return {0: pickle.dumps(total)}
        numbers, width = total.reshape(-1), width or total.size
        parts = range(0, total.size, width) if total.size else range(0)
        return {i: numbers[at : at + width].astype("<i8").tobytes() for i, at in enumerate(parts)}


@dataclass(frozen=True)
class RecordSum(Operation):
    """Sum of a kernel over records; the kernel receives the values of ``maps`` as further arguments."""

    kernel: SumKernel
    maps: Sequence[Mapped] = ()

    def result(self, part: Records) -> Integers:
        return part.batch.sum(self.kernel, *(ArrayValues(part.map(mapped)) for mapped in self.maps))


@dataclass(frozen=True)
class ValueSum(Operation):
    """Sum of a kernel over values."""

    kernel: ValueKernel
    maps: Sequence[Mapped]

    def result(self, part: Records) -> Integers:
        return self.kernel(*(part.map(mapped) for mapped in self.maps))


@dataclass(frozen=True)
class BinTally(Operation):
    """Operation that counts the bins of histograms."""

    kernel: BinKernel
    histograms: int

    def result(self, part: Records) -> list[BinCounts]:
        return [part.batch.tally(self.kernel, self.histograms)]

    def chunks(self, total: list[BinCounts], width: int) -> dict[int, bytes]:
        return super().chunks([BinCounts.together(total, self.histograms)], width)


class UserHashes(Operation):
    """Operation that returns the user hash of each message with its place in the batch."""

    of_users = True

    def result(self, part: Records) -> list[tuple[Integers, Hashes]]:
        assert part.places is not None
        assert part.users is not None
        # Copied, because the reader reuses its memory.
        return [(part.places, part.users.copy())]


def unpacked(data: bytes) -> Any:
    """Return the results in a task's answer that is not a sum."""
    # Executors are as trusted as the driver: they read records and return the sums.
    return pickle.loads(data)  # nosec B301


@dataclass(frozen=True)
class Work:
    """Records that an operation reads from one segment."""

    structure: str  # digest of the segment's structure at the time when the batch was cut
    shares: Sequence[Share]


def compute(feed: Feed, operation: Operation, work: Mapping[int, Work], width: int) -> Job:
    """Return the job that applies an operation; sums have ``width`` integers per chunk, 0 for one chunk."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handles = [handle for batch in batches for handle in batch.to_pylist()]
        yield _answer(lambda: _compute(feed, operation, work, width, handles))

    return run


def _compute(
    feed: Feed,
    operation: Operation,
    work: Mapping[int, Work],
    width: int,
    handles: Sequence[Mapping[str, Any]],
) -> tuple[int, Mapping[int, bytes]]:
    reading, total, records = Reading.of(feed), None, 0
    for handle in handles:
        if handle["id"] not in work:
            continue
        if handle["failure"] is not None:
            kind, _, text = handle["failure"].partition(": ")
            raise RecordsLost(text) if kind == "lost" else TaskFailed("a segment could not be read again")
        asked = work[handle["id"]]
        if digest(handle["structure"]) != asked.structure:
            raise changed(feed, range_of(handle))
        for share in asked.shares:
            parts = parts_of(reading, handle, operation.of_users)
            for first, part, users in whole_pairs(chosen(parts, share.first, share.last)):
                last = first + len(part)
                records += len(part)
                recall = partial(reading.values.recall, feed.name_of(handle["id"]), f"{first}-{last}")
                places = share.places(first, last)
                more = operation.result(Records(share.of(part, first), places, users, recall))
                total = more if total is None else total + more
    return records, {} if total is None else operation.chunks(total, width)


def digest(structure: bytes) -> str:
    return hashlib.blake2b(structure, digest_size=16).hexdigest()


def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add chunks of the same number: a step of the tree of partial sums."""
    totals: dict[int, NDArray[np.int64]] = {}
    failure: str | None = None
    records = 0
    for batch in batches:
        for row in batch.to_pylist():
            records += row["records"]
            if row["failure"] is not None:
                failure = row["failure"]
            else:
                add_chunk(totals, row["chunk"], row["data"])
    if failure is not None:
        yield answer_rows({}, failure)
    elif totals:
        chunks = {key: total.astype("<i8").tobytes() for key, total in totals.items()}
        yield answer_rows(chunks, records=records)


def add_chunk(totals: dict[int, NDArray[np.int64]], chunk: int, data: bytes) -> None:
    part = np.frombuffer(data, dtype="<i8")
    if chunk in totals:
        totals[chunk] += part
    else:
        totals[chunk] = part.astype(np.int64)


@dataclass(frozen=True)
class Fetch:
    """Source of the records of a share: the shelf of the whole segment, or their messages."""

    share: Share
    shelf: Shelf
    messages: Range
    before: int  # number of the segment's records before these messages
    count: int
    epoch: int  # number of the messages, and leader epoch of the last message

    @classmethod
    def of(cls, share: Share, segment: Segment, shelf: Shelf) -> Fetch:
        first, last = segment.message_of(share.first), segment.message_of(share.last - 1)
        wanted = segment.range
        messages = Range(wanted.id, wanted.partition, segment.offset(first), segment.offset(last) + 1)
        before, count = segment.records_before(first), last + 1 - first
        return cls(share, shelf, messages, before, count, segment.epoch(last))

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
    """Return the records of several shares in the order of their places.

    Algorithms that read records sequentially need it: an executor for a part of a batch, the driver for all.
    """
    batches, places = [], []
    for fetch in fetches:
        for first, part, _ in fetch.parts(reading):
            batches.append(fetch.share.of(part, first).copy())
            found = fetch.share.places(first, first + len(part))
            assert found is not None
            places.append(found)
    if not batches:
        return ArrayBatch.of_records([], reading.codec.dim, reading.codec.kind)
    batch, at = ArrayBatch.joined(batches), np.concatenate(places)
    order = np.argsort(at)
    starts = row_starts(np.diff(batch.starts)[order])
    return ArrayBatch(batch.rows, starts, batch.kind, batch.starts[:-1][order])


def on_parts(feed: Feed, parts: Sequence[Sequence[Fetch]], kernel: Callable[[Block], Any]) -> Job:
    """Return the function of a job that applies a kernel to parts of a batch."""

    def result(index: int) -> tuple[int, dict[int, bytes]]:
        batch = gathered(Reading.of(feed), parts[index])
        return len(batch), {index: pickle.dumps(kernel(batch.packed()))}

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield _answer(partial(result, index))

    return run
