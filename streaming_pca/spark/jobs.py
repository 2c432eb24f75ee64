"""Driver's view of the executors: jobs, cached segments, and failures.

A job is one ``mapInArrow`` over a few rows. Spark persists the rows of a load job. Therefore it sends later
jobs to the executors that have read the segments, and reads a segment again if its executor is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession

from streaming_pca import __version__
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.features.records import Schemas
from streaming_pca.data.records import Block
from streaming_pca.service.errors import RecordsLost, SessionLost, StreamRefused
from streaming_pca.spark import tasks
from streaming_pca.spark.cache import Shelf, folder_of
from streaming_pca.spark.reading import Feed, Reading, Wanted, range_of
from streaming_pca.spark.segments import Range, Segment, segment_of
from streaming_pca.spark.tasks import ANSWER, HANDLE, Fetch, Operation, Share, TaskFailed, Work

T = TypeVar("T")

_TASKS = 3  # tasks of a job per task slot
_LARGE = 2**20  # integers of a sum above which a job has one task per slot, since each task has its own copy
_DIRECT_BYTES = 2**26
"""Bytes of partial sums that the driver adds itself; above this, executors add them first."""
_DROP_SECONDS = 10.0
"""Time limit of the job that frees rows, which would otherwise wait for missing executors."""
_OTHER_PYTHON = re.compile(r"No module named '?([\w.]+)|PYTHON_VERSION_MISMATCH")
"""PySpark's error texts if the executors' Python cannot run tasks."""
_REASON = re.compile(r"TaskFailed: ([^\n]*)")  # text of a task's failure within Spark's error message


@dataclass(frozen=True)
class Loaded:
    """Segment that an executor has read, and has cached if there was room."""

    segment: Segment
    digest: str
    nulls: int
    longer: int  # numbers of its null records, and of its records of several rows: as secret as a record
    shelf: Shelf


@dataclass
class _Frame:
    """Rows of a load job, with the numbers of the segments still needed."""

    rows: DataFrame
    wanted: set[int]


class Cluster:
    """Executors of a Spark application, for one session of a stream."""

    direct_bytes = _DIRECT_BYTES
    _numbers = itertools.count()
    _sessions = itertools.count()

    def __init__(
        self,
        spark: SparkSession,
        settings: SparkSettings,
        kafka: KafkaSettings,
        stream: StreamSettings,
        user_key: bytes | None,
        schemas: Schemas | None = None,
    ) -> None:
        self._spark, self.settings = spark, settings
        with _answering():
            context = spark.sparkContext
            threads = int(context.getConf().get("spark.task.cpus", "1"))
            session = f"{context.applicationId}.{next(self._sessions)}"
        # An executor may be on another machine, without the password file.
        if kafka.sasl_password_file is not None:
            password = SecretStr(kafka.password or "")
            given = {"sasl_password": password, "sasl_password_file": None}  # nosec B105  # no file
            kafka = kafka.model_copy(update=given)
        self.feed = Feed(kafka, stream, user_key, session, settings.cache_bytes, threads, schemas)
        self.granularity = 2 if stream.centering == "pairs" else 1
        self._frames: list[_Frame] = []
        self._loaded: dict[int, Loaded] = {}
        self._newest = -1
        self.received = self.sent = 0
        """Bytes that tasks returned to the driver, and bytes of partial sums that they sent to each other."""

    @property
    def slots(self) -> int:
        """Number of tasks that the current executors can run concurrently."""
        with _answering():
            return max(self._spark.sparkContext.defaultParallelism // self.feed.threads, 1)

    def _wanting(self, more: Iterable[int] = ()) -> Feed:
        """Return the feed of a job, which lists the segments still needed."""
        numbers = frozenset().union(*(frame.wanted for frame in self._frames), more)
        return replace(self.feed, wanted=Wanted(numbers, self._newest))

    def range(self, partition: int, start: int, end: int, epoch: int = -1) -> Range:
        """Return a range with a unique number."""
        self._newest = next(self._numbers)
        return Range(self._newest, partition, start, end, epoch)

    def new_name(self) -> str:
        """Return a unique name for values of records."""
        return f"v{next(self._numbers)}"

    def load(self, ranges: Sequence[Range], group: str) -> list[Loaded]:
        """Read each range in a task; executors cache them until :meth:`release`."""
        count = len(ranges)
        with self._planning():
            job = tasks.load(self._wanting(each.id for each in ranges), ranges)
            rows = self._spark.range(0, count, 1, count).mapInArrow(job, HANDLE).persist()
        self._frames.append(_Frame(rows, {each.id for each in ranges}))
        found: dict[int, Loaded] = {}
        for row in self._run(rows, group):
            if row["failure"] is not None:
                _raise(row["failure"])
            structure = row["structure"]
            wanted = range_of(row)
            segment = segment_of(wanted, structure, self.feed.stream.privacy_unit == "row")
            shelf = Shelf(self.feed.name_of(wanted.id), row["host"], row["path"])
            counts = {name: row[name] for name in ("nulls", "longer")}
            found[wanted.id] = Loaded(segment, tasks.digest(structure), **counts, shelf=shelf)
        self._loaded |= found
        return [found[each.id] for each in ranges]

    def release(self, segments: Iterable[int]) -> None:
        """Free the rows of segments; free a load job with its last segment."""
        gone = set(segments)
        for number in gone:
            self._loaded.pop(number, None)
        for frame in self._frames:
            frame.wanted -= gone
        done = [frame for frame in self._frames if not frame.wanted]
        self._frames = [frame for frame in self._frames if frame.wanted]
        self._drop(done, gone, closing=False)

    def close(self, but: Collection[int] = ()) -> None:
        """Free everything that executors cache for the session, except some segments."""
        if but:
            self.release(set(self._loaded) - set(but))
            return
        frames, self._frames, self._loaded = self._frames, [], {}
        self._drop(frames, (), closing=True)
        Reading.forget(self.feed.session)
        # Remaining links are dead: they belong to processes that have ended.
        shutil.rmtree(folder_of(self.feed.session), ignore_errors=True)

    def _drop(self, frames: Sequence[_Frame], gone: Iterable[int], closing: bool) -> None:
        if not frames:
            return
        names = [self.feed.name_of(number) for number in gone]
        # If Spark fails, its processes end and their files disappear.
        with contextlib.suppress(SessionLost, StreamRefused):
            with self._planning():
                rows = _united(frames).mapInArrow(tasks.drop(self._wanting(), names, closing), ANSWER)
            # Remaining files are freed by the next tasks of their processes, or with the processes.
            limit = threading.Timer(_DROP_SECONDS, self.cancel, [f"dropping {self.feed.session}"])
            limit.start()
            try:
                self._run(rows, f"dropping {self.feed.session}")
            finally:
                limit.cancel()
            with self._planning():
                for frame in frames:
                    frame.rows.unpersist()

    def sum(
        self, operation: Operation, shares: Mapping[int, Sequence[Share]], size: int
    ) -> NDArray[np.int64] | None:
        """Add the integers of all tasks, ``size`` (approximately) in the sum; return None without records."""
        if not shares:
            return None
        count, slots = self._tasks(shares, size), self.slots
        in_tree = count > 2 and count * size * 8 > self.direct_bytes
        with self._planning():
            rows = self._computed(operation, shares, count, -(-size // slots) if in_tree else 0)
            if in_tree:
                # Each executor adds some chunks over all partial sums.
                self.sent += count * size * 8
                rows = rows.repartition(slots, "chunk").mapInArrow(tasks.add, ANSWER)
        totals: dict[int, NDArray[np.int64]] = {}
        for chunk, data in self._answers(rows, _records_of(shares)):
            tasks.add_chunk(totals, chunk, data)
        return np.concatenate([totals[i] for i in sorted(totals)]) if totals else None

    def known_nulls(self, shares: Mapping[int, Sequence[Share]]) -> tuple[int, dict[int, Sequence[Share]]]:
        """Count the null records of whole segments; return it with the remaining shares."""
        count, others = 0, dict(shares)
        for number, some in shares.items():
            segment = self._loaded[number].segment
            if [(share.first, share.last) for share in some] == [(0, segment.records_before(segment.count))]:
                loaded = self._loaded[number]
                count += loaded.nulls + (loaded.longer if some[0].single_rows else 0)
                del others[number]
        return count, others

    def answers(self, operation: Operation, shares: Mapping[int, Sequence[Share]]) -> list[Any]:
        """Apply an operation to parts of segments; return the results of all parts, in any order."""
        if not shares:
            return []
        with self._planning():
            rows = self._computed(operation, shares, self._tasks(shares, 1), 0)
        answers = self._answers(rows, _records_of(shares))
        return [each for _, data in answers for each in tasks.unpacked(data)]

    def on_parts(self, parts: Sequence[Sequence[Fetch]], kernel: Callable[[Block], T]) -> list[T]:
        """Return a kernel's result for each part of a batch, each on one executor."""
        count = len(parts)
        with self._planning():
            rows = self._spark.range(0, count, 1, max(min(count, _TASKS * self.slots), 1))
            rows = rows.mapInArrow(tasks.on_parts(self.feed, parts, kernel), ANSWER)
        records = sum(each.share.last - each.share.first for some in parts for each in some)
        found = {chunk: tasks.unpacked(data) for chunk, data in self._answers(rows, records)}
        return [found[i] for i in range(count)]

    def gathered(self, fetches: Sequence[Fetch]) -> ArrayBatch:
        """Read records into the driver's memory, in the order of their places."""
        # The driver does not cache segments: it reads each record once.
        feed = replace(self.feed, cache_bytes=0)
        try:
            found = tasks.guarded(lambda: tasks.gathered(Reading.of(feed), fetches))
        except TaskFailed as error:
            raise SessionLost(str(error)) from None
        if isinstance(found, str):
            _raise_while_learning(found)
        if len(found) != sum(each.share.last - each.share.first for each in fetches):
            raise SessionLost("some records could not be read again")
        return found

    def fetch(self, share: Share, segment: int) -> Fetch:
        return Fetch.of(share, self._loaded[segment].segment, self._loaded[segment].shelf)

    def _tasks(self, shares: Mapping[int, Sequence[Share]], size: int) -> int:
        return max(min(self.slots * (1 if size >= _LARGE else _TASKS), len(shares)), 1)

    def _computed(
        self, operation: Operation, shares: Mapping[int, Sequence[Share]], count: int, width: int
    ) -> DataFrame:
        feed = self._wanting()
        work = {number: Work(self._loaded[number].digest, some) for number, some in shares.items()}
        frames = [frame for frame in self._frames if not frame.wanted.isdisjoint(shares)]
        return _united(frames).coalesce(count).mapInArrow(tasks.compute(feed, operation, work, width), ANSWER)

    def _answers(self, rows: DataFrame, records: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over the chunks of a job; raise if it read another number of records."""
        found = 0
        try:
            answered = self._run(rows, "learning")
        except StreamRefused as error:
            raise SessionLost(str(error)) from None
        for row in answered:
            if row["failure"] is not None:
                _raise_while_learning(row["failure"])
            found += row["records"]
            yield row["chunk"], row["data"]
        if found != records:
            raise SessionLost(f"a job has read {found} of {records} records")

    def cancel(self, group: str) -> None:
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelJobGroup(group)

    @contextlib.contextmanager
    def _planning(self) -> Iterator[None]:
        """Raise SessionLost for any error if Java is gone: the error is not the batch's fault."""
        try:
            yield
        except Exception:
            _ = self.slots
            raise

    def _run(self, rows: DataFrame, group: str) -> list[dict[str, Any]]:
        try:
            self._spark.sparkContext.setJobGroup(group, f"streaming-pca {self.feed.stream.name}: {group}")
            table = rows.toArrow()
        except Exception as error:
            # Do not use Spark's full text: it repeats the output of tasks.
            if (other := _OTHER_PYTHON.search(str(error))) is not None:
                lacks = f"has no {other[1]}" if other[1] else "is not of the driver's version"
                raise StreamRefused(
                    f"the executors' Python {lacks}: set PYSPARK_PYTHON to a Python with streaming-pca "
                    f"{__version__}, at the same path on every machine"
                ) from None
            found = _REASON.search(str(error))
            reason = found[1] if found else type(error).__name__
            raise SessionLost(f"a job of Spark failed ({group}): {reason}") from None
        self.received += table.nbytes
        rows_found: list[dict[str, Any]] = table.to_pylist()
        return rows_found


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raise SessionLost if the Java process of Spark is gone."""
    try:
        yield
    except Exception as error:
        raise SessionLost(f"Spark does not answer: {type(error).__name__}") from None


def _records_of(shares: Mapping[int, Sequence[Share]]) -> int:
    return sum(share.last - share.first for some in shares.values() for share in some)


def _united(frames: Sequence[_Frame]) -> DataFrame:
    return reduce(DataFrame.unionAll, [frame.rows for frame in frames])


def _raise_while_learning(failure: str) -> NoReturn:
    """Raise a failure that a task returned, while learning a reserved batch."""
    try:
        _raise(failure)
    except (RecordsLost, StreamRefused) as error:
        # The next session meets the original error before it computes anything.
        raise SessionLost(str(error)) from None


def _raise(failure: str) -> NoReturn:
    kind, _, text = failure.partition(": ")
    if kind == "lost":
        raise RecordsLost(text)
    if kind == "refused":
        raise StreamRefused(text)
    raise RuntimeError("the estimator failed on an executor")
