"""Functions that executors run: they read segments and sum over their records.

Spark calls them through ``mapInArrow``. The task that needs a record reads it from Kafka, and the record
goes nowhere else: a task returns only counts and offsets, exact integer sums, or hashes of users.

An unknown error may reveal records, and Spark prints the errors of tasks. Therefore a task fails with a
fixed text, or returns the reason as a row if a second attempt would not help.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from kafka.errors import KafkaError
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.kafka.clients import BrokerUnreachable
from streaming_pca.service.process_hardening import refuse_core_files
from streaming_pca.spark.cache import Shelf
from streaming_pca.spark.operations import Operation, Records, Share
from streaming_pca.spark.reading import (
    Feed,
    Reading,
    Refused,
    Structure,
    changed,
    chosen,
    parts_of,
    range_of,
    whole_pairs,
)
from streaming_pca.spark.segments import Range

T = TypeVar("T")

HANDLE = (
    "id long, partition int, begin long, end long, epoch int, size long, nulls long, structure binary, "
    "host string, path string, failure string"
)
"""Columns of the row for a segment that a task has read."""
ANSWER = "chunk int, data binary, records long, failure string"
"""Columns of a task's answer; the first row contains the number of records read."""


class TaskFailed(Exception):
    """Failure that another attempt, on another executor, may avoid."""


def guarded(work: Callable[[], T]) -> T | str:
    """Run a task's work; return the reason of a failure that would recur.

    Raises
    ------
    TaskFailed
        If another attempt may succeed.
    """
    # Executors stay dumpable, so that they can open one another's cached segments in /proc.
    refuse_core_files()
    try:
        return work()
    except TaskFailed:
        raise
    except RecordsLost as error:
        return f"lost: {error}"
    except Refused as error:
        return f"refused: {error}"
    except (SessionLost, BrokerUnreachable) as error:
        raise TaskFailed(str(error)) from None
    except (KafkaError, OSError) as error:
        raise TaskFailed(f"{type(error).__name__} while records were read") from None
    except Exception:
        return "failed"


def load(
    feed: Feed, ranges: Sequence[Range]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a job that reads ranges, given by index."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                wanted = ranges[index]
                row = guarded(partial(_load, feed, wanted))
                yield _handle_row(wanted, failure=row) if isinstance(row, str) else row

    return run


def _load(feed: Feed, wanted: Range) -> pa.RecordBatch:
    reading = Reading.of(feed)
    structure = Structure(reading.codec.unit == "row")

    def parts() -> Iterator[ArrayBatch]:
        for piece in reading.pieces(wanted):
            structure.add(piece)
            yield piece.batch

    width = reading.codec.kind.width(reading.codec.dim)
    name = feed.name_of(wanted.id)
    shelf = reading.cache.store(name, width, reading.codec.kind, parts())
    return _handle_row(wanted, structure.size, structure.nulls, structure.packed(), shelf)


def _handle_row(
    wanted: Range,
    size: int = 0,
    nulls: int = 0,
    structure: bytes = b"",
    shelf: Shelf | None = None,
    failure: str | None = None,
) -> pa.RecordBatch:
    host, path = ("", "") if shelf is None else (shelf.host, shelf.path)
    values = [
        wanted.id,
        wanted.partition,
        wanted.start,
        wanted.end,
        wanted.epoch,
        size,
        nulls,
        structure,
        host,
        path,
        failure,
    ]
    types = [pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.binary()]
    types += [pa.string()] * 3
    names = [field.split()[0] for field in HANDLE.split(", ")]
    return pa.RecordBatch.from_arrays(
        [pa.array([v], t) for v, t in zip(values, types, strict=True)], names=names
    )


def answer_rows(chunks: Mapping[int, bytes], failure: str | None = None, records: int = 0) -> pa.RecordBatch:
    """Return an answer's chunks, or its failure, as rows."""
    keys = list(chunks) if failure is None else [0]
    data = list(chunks.values()) if failure is None else [b""]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.int32()),
            pa.array(data, pa.binary()),
            pa.array([records, *[0] * len(keys)][: len(keys)], pa.int64()),
            pa.array([failure] * len(keys), pa.string()),
        ],
        names=["chunk", "data", "records", "failure"],
    )


@dataclass(frozen=True)
class Work:
    """Records that an operation reads from one segment.

    Attributes
    ----------
    structure : str
        Digest of the segment's structure at the time when the batch was cut.
    """

    structure: str
    shares: Sequence[Share]


def compute(
    feed: Feed, operation: Operation, work: Mapping[int, Work], width: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a job that applies an operation to parts of segments.

    Parameters
    ----------
    work : mapping of segment to Work
    width : int
        Number of integers per chunk of a sum; 0 for one chunk.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handles = [handle for batch in batches for handle in batch.to_pylist()]
        found = guarded(lambda: _compute(feed, operation, work, width, handles))
        if isinstance(found, str):
            yield answer_rows({}, found)
        else:
            records, chunks = found
            yield answer_rows(chunks, records=records)

    return run


def _compute(
    feed: Feed,
    operation: Operation,
    work: Mapping[int, Work],
    width: int,
    handles: Sequence[Mapping[str, Any]],
) -> tuple[int, Mapping[int, bytes]]:
    """Return the number of records read, and the answer."""
    reading, total, records = Reading.of(feed), operation.start(), 0
    for handle in handles:
        if handle["id"] not in work:
            continue
        if handle["failure"] is not None:
            raise _failed_before(handle["failure"])
        asked = work[handle["id"]]
        if digest(handle["structure"]) != asked.structure:
            raise changed(feed, range_of(handle))
        for share in asked.shares:
            parts = parts_of(reading, handle, operation.of_users)
            for first, part, users in whole_pairs(chosen(parts, share.first, share.last)):
                last = first + len(part)
                records += len(part)
                recall = partial(reading.values.recall, feed.name_of(handle["id"]), f"{first}-{last}")
                total.add(Records(share.of(part, first), share.places(first, last), users, recall))
    return records, total.chunks(width)


def _failed_before(failure: str) -> Exception:
    """Return the error for a segment that could not be read again."""
    kind, _, text = failure.partition(": ")
    return RecordsLost(text) if kind == "lost" else TaskFailed("a segment could not be read again")


def digest(structure: bytes) -> str:
    """Return the digest of a segment's structure."""
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
    """Add encoded integers to the total of their chunk."""
    part = np.frombuffer(data, dtype="<i8")
    if chunk in totals:
        totals[chunk] += part
    else:
        totals[chunk] = part.astype(np.int64)


def drop(
    feed: Feed, names: Sequence[str], closing: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a job that frees the rows of segments.

    ``closing`` frees everything that the workers cache for the session.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handles = [handle for batch in batches for handle in batch.to_pylist()]
        reading = Reading.of(feed)
        reading.cache.drop(names)
        reading.values.drop(names)
        shelves = [Shelf(feed.name_of(h["id"]), h["host"], h["path"]) for h in handles]
        reading.cache.drop_shelves(shelves)
        if closing:
            reading.close()
        yield answer_rows({})

    return run
