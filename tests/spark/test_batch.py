"""Batches on executors have the bits of the same batches in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import build_codec
from streaming_pca.spark.batch import SparkBatch
from streaming_pca.spark.driver import cluster_readers
from streaming_pca.spark.reader import ClusterReader
from streaming_pca.spark.reading import Reading
from tests.spark.streams import read_all

DIM = 5
USER_KEY = b"k" * 32


class CountedSum:
    """Sum of each record's rows in units of 2**-20, and of its number of rows."""

    limit = 64
    whole = False
    shape: tuple[int, ...] = (DIM + 1,)

    def __call__(self, block: ArrayBatch, *values: NDArray[np.float64]) -> NDArray[np.int64]:
        out = np.zeros(self.shape, dtype=np.int64)
        for i in range(len(block)):
            rows = block.rows[block.starts[i] : block.starts[i + 1]].astype(np.float64)
            weight = 1.0 if not values else values[0][i]
            out[:-1] += np.rint(rows * weight * 2.0**20).astype(np.int64).sum(axis=0)
            out[-1] += len(rows)
        return out


def lengths(block: ArrayBatch) -> NDArray[np.float64]:
    return np.diff(block.starts).astype(np.float64)


def norms(block: ArrayBatch) -> NDArray[np.float64]:
    at = [block.rows[a:b] for a, b in zip(block.starts[:-1], block.starts[1:], strict=True)]
    return np.array([float(np.abs(rows).sum()) for rows in at])


class Bins:
    limit = 100

    def __call__(self, block: ArrayBatch) -> NDArray[np.int32]:
        return np.stack([lengths(block), norms(block) // 2]).astype(np.int32)


def first_rows(part: ArrayBatch) -> list[float]:
    places = zip(part.starts[:-1], part.starts[1:], strict=True)
    return [float(part.rows[a, 0]) if b > a else 0.0 for a, b in places]


Produce = Callable[[KafkaProducer, str], None]


def plain(producer: KafkaProducer, topic: str) -> None:
    """Write factors of one to four rows, some with NaN, to three unequal partitions."""
    rng = np.random.default_rng(5)
    for i in range(1500):
        rows = rng.standard_normal((1 + i % 4, DIM)).astype(np.float32)
        if i % 11 == 0:
            rows[0, 1] = np.nan
        partition = 0 if i % 10 else 1 + i % 20 // 10
        producer.send(topic, rows.tobytes(), key=f"user {i % 97}".encode(), partition=partition)


def with_gaps(producer: KafkaProducer, topic: str) -> None:
    """Write small transactions, a third of them aborted, so that offsets have gaps."""
    rng = np.random.default_rng(6)
    for i in range(120):
        producer.begin_transaction()
        for j in range(1 + i % 7):
            rows = rng.standard_normal((1, DIM)).astype(np.float32)
            producer.send(topic, rows.tobytes(), partition=(i + j) % 2)
        if i % 3 == 1:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()


@pytest.fixture
def make_readers(
    spark: SparkSession, kafka_bootstrap: str, unique_name: Callable[[str], str]
) -> Iterator[Callable[..., tuple[PartitionReader, ClusterReader, dict[int, int]]]]:
    """Make a topic and two readers of it: in memory, and on executors."""
    open_readers: list[Any] = []

    def make(
        produce: Produce, how: dict[str, Any], spark_settings: SparkSettings | None = None, fewest: int = 16
    ) -> tuple[PartitionReader, ClusterReader, dict[int, int]]:
        topic = unique_name("spark")
        kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap)
        with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
            admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])
        id = unique_name("t") if produce is with_gaps else None
        producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=id)
        if id is not None:
            producer.init_transactions()
        produce(producer, topic)
        producer.close()
        base = {"name": topic, "input": topic, "dim": DIM, "rank": 2, "epsilon": 1.0, "delta": 1e-6}
        stream = StreamSettings(**base, max_rows=4, **how)
        codec = build_codec(stream, USER_KEY if how.get("privacy_unit") == "user" else None)
        given = (kafka, stream, codec, 3, False, lambda: None)
        here = PartitionReader(*given)
        there = cluster_readers(spark, spark_settings or SparkSettings())(*given)
        open_readers.extend([here, there])
        ends = here.last_offsets([0, 1, 2])
        for reader in (here, there):
            reader.add(dict.fromkeys(ends, 0), {})
            read_all(reader, ends)
        return here, there, ends

    yield make
    for reader in open_readers:
        reader.release_memory()
        reader.close()


def assert_same(batch: SparkBatch, known: ArrayBatch) -> None:
    """Compare everything that estimators use of a batch."""
    assert len(batch) == len(known)
    assert (batch.kind, batch.dim) == (known.kind, known.dim)
    assert batch.null_count() == known.null_count()
    assert batch.single_rows().null_count() == known.single_rows().null_count()
    assert batch.sum(CountedSum()).tolist() == known.sum(CountedSum()).tolist()
    there, here = batch.map(norms), known.map(norms)
    assert batch.sum(CountedSum(), there).tolist() == known.sum(CountedSum(), here).tolist()
    assert len(there) == len(here)
    edges = np.array([0.0, 1.0, 4.0, 8.0, np.inf])
    assert there.histogram(edges).tolist() == here.histogram(edges).tolist()
    above = [there.above([1.0, 3.0])(i) for i in range(2)]
    assert above == [here.above([1.0, 3.0])(i) for i in range(2)]
    assert batch.split([0, len(batch)])[0].sum(CountedSum()).tolist() == [0] * (DIM + 1)
    counts, expected = batch.tally(Bins(), 2), known.tally(Bins(), 2)
    for name in ("owners", "keys", "counts"):
        assert getattr(counts, name).tolist() == getattr(expected, name).tolist()
    third = len(batch) // 3
    parts = [third, 0, third, len(batch) - 2 * third]
    assert batch.map_parts(parts, first_rows) == known.map_parts(parts, first_rows)
    for ours, theirs in zip(batch.blocks(50), known.blocks(50), strict=True):
        np.testing.assert_array_equal(ours.rows, theirs.rows)
        np.testing.assert_array_equal(ours.starts, theirs.starts)


def batches(
    here: PartitionReader, there: ClusterReader, counts: Sequence[int], granularity: int
) -> tuple[SparkBatch, ArrayBatch]:
    known, users = here.take(counts, granularity)
    batch, more = there.take(counts, granularity)
    assert (users is None) == (more is None)
    if users is not None and more is not None:
        np.testing.assert_array_equal(users, more)
    for p in here.buffers:
        for name in ("position", "epoch", "count"):
            assert getattr(here.buffers[p], name) == getattr(there.buffers[p], name), (p, name)
    assert isinstance(known, ArrayBatch)
    return batch, known


@pytest.mark.parametrize(("unit", "cached"), [("message", True), ("row", True), ("user", False)])
def test_sums_values_parts_and_blocks(make_readers: Any, unit: str, cached: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("streaming_pca.spark.reader._FEWEST", 100)
    settings = SparkSettings().model_copy(update={} if cached else {"cache_bytes": 1})
    here, there, _ = make_readers(plain, {"privacy_unit": unit}, settings)
    # The first partition has most records; the second batch takes the rest of the first batch.
    for counts in ([401, 75, 33], [949, 0, 42]):
        batch, known = batches(here, there, counts, 1)
        if not counts[1]:
            assert_same(batch, known)
            continue
        rng = np.random.default_rng(7)
        counted = rng.random(len(known)) < 0.6
        halves = [len(known) // 2, len(known) - len(known) // 2]
        assert_same(batch.keeping(counted).split(halves)[1], known.keeping(counted).split(halves)[1])
        ours, theirs = batch.single_rows(), known.single_rows()
        assert ours.sum(CountedSum()).tolist() == theirs.sum(CountedSum()).tolist()
        assert ours.null_count() == theirs.null_count()
        there.release_memory()
        here.release_memory()


def test_pairs_across_gaps_of_offsets(make_readers: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("streaming_pca.spark.reader._FEWEST", 37)
    here, there, ends = make_readers(with_gaps, {"centering": "pairs"})
    total = here.buffers[0].count
    assert total != ends[0]
    for counts in ([60, 50, 0], [(total - 60) // 2 * 2, 20, 0]):
        batch, known = batches(here, there, counts, 2)
        assert batch.sum(CountedSum()).tolist() == known.sum(CountedSum()).tolist()
        for ours, theirs in zip(batch.blocks(10), known.blocks(10), strict=True):
            np.testing.assert_array_equal(ours.rows, theirs.rows)
        there.release_memory()
        here.release_memory()


@pytest.mark.parametrize("direct_bytes", [2**26, 0])
def test_bytes_that_move_are_those_of_sums(make_readers: Any, monkeypatch: Any, direct_bytes: int) -> None:
    """Without room for partial sums on the driver, executors add them in chunks."""
    monkeypatch.setattr("streaming_pca.spark.reader._FEWEST", 100)
    monkeypatch.setattr("streaming_pca.spark.jobs.Cluster.direct_bytes", direct_bytes)
    here, there, _ = make_readers(plain, {})
    batch, known = batches(here, there, [1350, 75, 75], 1)
    cluster, size = batch.cluster, 8 * (DIM + 1)
    before, tasks = cluster.received, 3 * cluster.slots
    assert batch.sum(CountedSum()).tolist() == known.sum(CountedSum()).tolist()
    # A few octets of each row hold its number and its failure.
    assert cluster.received - before <= tasks * (size + 40)
    assert (cluster.sent == 0) == (direct_bytes > 0)
    assert cluster.sent <= tasks * size


def test_a_batch_in_hand_keeps_its_rows_when_its_reader_closes(make_readers: Any) -> None:
    here, there, _ = make_readers(plain, {})
    # They include segments that a later batch would use further.
    batch, known = batches(here, there, [401, 7, 5], 1)
    there.close()
    assert batch.null_count() == known.null_count()
    assert batch.sum(CountedSum()).tolist() == known.sum(CountedSum()).tolist()


def test_records_that_changed_are_no_result_of_a_batch_in_memory(make_readers: Any) -> None:
    """The batch computed nothing, and the next session finds the reason."""
    here, there, _ = make_readers(plain, {})
    batch, _ = batches(here, there, [401, 7, 5], 1)
    fetches = [replace(each, shelf=replace(each.shelf, path=""), epoch=99) for each in batch.fetches()]
    with pytest.raises(SessionLost, match="have changed since they were counted"):
        batch.cluster.gathered(fetches)


def test_libraries_say_nothing_on_executors(make_readers: Any, spark: SparkSession) -> None:
    feed = replace(make_readers(plain, {})[1]._cluster.feed, session="quiet")

    def reported(parts: Iterator[Any]) -> Iterator[Any]:
        import logging
        import warnings

        import pyarrow

        for _ in parts:
            Reading.of(feed)
            with warnings.catch_warnings(record=True) as found:
                np.array([1e300]) * 1e300
            level = logging.getLogger("kafka").getEffectiveLevel()
            yield pyarrow.RecordBatch.from_pydict({"warnings": [len(found)], "level": [level]})

    (row,) = spark.range(1).repartition(1).mapInArrow(reported, "warnings long, level long").collect()
    assert (row.warnings, row.level) == (0, 50)
