"""Functions of tasks work in this process, without Spark, in small pieces and odd shares."""

from __future__ import annotations

import pickle
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from numpy.typing import NDArray

from streaming_pca import __version__
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.spark.reading import Feed, Reading, Wanted
from streaming_pca.spark.segments import Range
from streaming_pca.spark.tasks import (
    Mapped,
    RecordSum,
    Share,
    TaskFailed,
    ValueSum,
    Work,
    add,
    answer_rows,
    compute,
    digest,
    drop,
    guarded,
    load,
)
from tests.waiting import LIMIT

DIM, RECORDS = 3, 7000
Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class NumberedSum:
    """Sum of each record's first number times its place in a list of primes: no two records are alike."""

    limit = 1000
    whole = False
    shape: tuple[int, ...] = (2,)

    def __call__(self, block: ArrayBatch) -> NDArray[np.int64]:
        numbers = block.rows[block.starts[:-1], 0].astype(np.int64)
        # In pairs, so that a split pair changes the result.
        differences = numbers[::2] * 3 - numbers[1::2]
        return np.array([differences.sum(), (differences % 7919).sum()], dtype=np.int64)


def known_sum(first: int, last: int) -> list[int]:
    numbers = np.arange(first, last, dtype=np.float32)[:, None]
    records = ArrayBatch.of_vectors(np.hstack([numbers, np.ones((len(numbers), 2), np.float32)]))
    return [int(each) for each in records.sum(NumberedSum())]


class CountOf:
    """Number of values."""

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.array([len(values)], dtype=np.int64)


def first_numbers(block: ArrayBatch) -> NDArray[np.float64]:
    return block.rows[block.starts[:-1], 0].astype(np.float64)


@pytest.fixture
def feed(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> Iterator[Feed]:
    """Yield a topic of records, each with its number as the first value."""
    topic = unique_name("tasks")
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap)
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    with KafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, np.array([number, 1, 2], dtype=np.float32).tobytes(), partition=0)
    stream = StreamSettings(name=topic, input=topic, dim=DIM, rank=1, epsilon=1.0, delta=1e-6)
    made = Feed(kafka, stream, None, topic, 2**30, 1)
    yield made
    Reading.forget(made.session)


def handles(feed: Feed, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
    asked = pa.RecordBatch.from_pydict({"id": pa.array(range(len(ranges)), pa.int64())})
    return list(load(feed, ranges)(iter([asked])))


def answer(function: Function, rows: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    (found,) = function(iter(rows))
    (row,) = found.to_pylist()
    return dict(row)


def asked(rows: Sequence[pa.RecordBatch], first: int, last: int) -> dict[int, Work]:
    (row,) = rows[0].to_pylist()
    return {row["id"]: Work(digest(row["structure"]), [Share(first, last)])}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, RECORDS), (1, RECORDS - 1), (7, 5001)])
def test_pairs_hold_across_pieces(
    feed: Feed, cached: bool, first: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_pca.spark.reading._PIECE_BYTES", 500)
    rows = handles(feed, [Range(0, 0, 0, RECORDS)])
    if not cached:
        list(drop(feed, [feed.name_of(0)], False)(iter(rows)))
        assert Reading.of(feed).cache.used == 0
    found = answer(compute(feed, RecordSum(NumberedSum()), asked(rows, first, last), 0), rows)
    assert np.frombuffer(found["data"], dtype="<i8").tolist() == known_sum(first, last)
    assert found["records"] == last - first


def test_compressed_records_are_those_that_are_not(feed: Feed) -> None:
    (plain,) = handles(feed, [Range(0, 0, 0, RECORDS)])[0].to_pylist()
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd"), 1):
        topic = f"{feed.stream.input}-{codec}"
        with KafkaAdminClient(bootstrap_servers=feed.kafka.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        how = {"bootstrap.servers": feed.kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
        producer = Producer(how)
        for i in range(RECORDS):
            producer.produce(topic, np.array([i, 1, 2], dtype=np.float32).tobytes(), partition=0)
        assert producer.flush(LIMIT) == 0
        other = replace(feed, stream=feed.stream.model_copy(update={"input": topic}), session=topic)
        rows = handles(other, [Range(0, 0, 0, RECORDS)])
        (found,) = rows[0].to_pylist()
        assert found["structure"] == plain["structure"], number
        total = answer(compute(other, RecordSum(NumberedSum()), asked(rows, 0, RECORDS), 0), rows)
        assert np.frombuffer(total["data"], dtype="<i8").tolist() == known_sum(0, RECORDS)
        Reading.forget(other.session)


def test_a_segment_that_changed_is_not_summed(feed: Feed) -> None:
    rows = handles(feed, [Range(0, 0, 0, 100)])
    (row,) = rows[0].to_pylist()
    wrong = {0: Work(digest(row["structure"] + b"12345678"), [Share(0, 100)])}
    failure = answer(compute(feed, RecordSum(NumberedSum()), wrong, 0), rows)["failure"]
    assert failure.startswith("lost: topic")
    # Read again if not cached: the row contains the counted structure.
    list(drop(feed, [feed.name_of(0)], False)(iter(rows)))
    other = pa.RecordBatch.from_pylist([row | {"end": 102}], schema=rows[0].schema)
    failure = answer(compute(feed, RecordSum(NumberedSum()), asked(rows, 0, 100), 0), [other])["failure"]
    assert failure.endswith("have changed since they were counted")


def test_a_kernel_that_fails_tells_nothing(feed: Feed) -> None:
    class Fails(NumberedSum):
        def __call__(self, block: ArrayBatch) -> NDArray[np.int64]:
            raise ValueError(f"secret {block.rows[0]}")

    rows = handles(feed, [Range(0, 0, 0, 100)])
    row = answer(compute(feed, RecordSum(Fails()), asked(rows, 0, 100), 0), rows)
    assert row["failure"] == "failed"


def test_records_that_are_gone_are_told_of(feed: Feed) -> None:
    rows = handles(feed, [Range(0, 0, 0, 100)])
    (row,) = rows[0].to_pylist()
    gone = pa.RecordBatch.from_pylist([row | {"failure": "lost: deleted"}], schema=rows[0].schema)
    found = answer(compute(feed, RecordSum(NumberedSum()), asked(rows, 0, 100), 0), [gone])
    assert found["failure"] == "lost: deleted"


def test_a_process_frees_what_no_batch_wants(feed: Feed) -> None:
    """The segment may be dropped in another process, and no job drops its values."""
    rows = handles(feed, [Range(0, 0, 0, 100), Range(1, 0, 100, 200)])
    operation = ValueSum(CountOf(), [Mapped("v", first_numbers)])
    assert answer(compute(feed, operation, asked(rows, 0, 100), 0), rows)["failure"] is None
    reading = Reading.of(feed)
    assert (len(reading.cache.names), len(reading.values.segments)) == (2, 1)
    handles(replace(feed, wanted=Wanted(frozenset({1}), 1)), [Range(2, 0, 200, 300)])
    assert reading.cache.names == {feed.name_of(1), feed.name_of(2)}
    assert reading.values.segments == set()
    # A task of an earlier job does not know later segments.
    Reading.of(replace(feed, wanted=Wanted(frozenset(), 1)))
    assert reading.cache.names == {feed.name_of(2)}


@pytest.mark.parametrize(
    ("name", "own", "changed"),
    [("streaming-pca", __version__, {"version": "0.0.1"}), ("numpy", np.__version__, {"numpy": "0.0.1"})],
)
def test_an_executor_with_another_version_is_refused(name: str, own: str, changed: dict[str, Any]) -> None:
    stream = StreamSettings(name="s", input="in", dim=DIM, rank=1, epsilon=1.0, delta=1e-6)
    sent = pickle.loads(pickle.dumps(Feed(KafkaSettings(), stream, None, "other", 2**30, 1, **changed)))
    (row,) = handles(sent, [Range(0, 0, 0, 10)])[0].to_pylist()
    assert row["failure"].startswith(f"refused: an executor has {name} {own}, the driver 0.0.1: install")


def raising(error: Exception) -> Callable[[], str]:
    def work() -> str:
        raise error

    return work


def test_a_task_leaves_no_core_file_with_the_records_that_it_reads() -> None:
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    assert guarded(lambda: "done") == "done"
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, most)


def test_failures_keep_secrets_and_say_whether_to_try_again() -> None:
    assert guarded(raising(RecordsLost("deleted"))) == "lost: deleted"
    assert guarded(raising(ValueError("secret"))) == "failed"
    assert guarded(raising(MemoryError("secret"))) == "failed"
    for error in (SessionLost("gone"), ConnectionResetError("secret"), OSError("secret")):
        with pytest.raises(TaskFailed) as raised:
            guarded(raising(error))
        assert "secret" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_chunks_are_added_and_a_failure_wins() -> None:
    ones, twos = (np.full(3, n, dtype="<i8").tobytes() for n in (1, 2))
    rows = [answer_rows({0: ones, 1: twos}, records=5), answer_rows({1: ones}, records=2)]
    (found,) = add(iter(rows))
    assert sum(row["records"] for row in found.to_pylist()) == 7
    totals = {row["chunk"]: np.frombuffer(row["data"], dtype="<i8").tolist() for row in found.to_pylist()}
    assert totals == {0: [1, 1, 1], 1: [3, 3, 3]}
    (found,) = add(iter([*rows, answer_rows({}, "failed")]))
    assert [row["failure"] for row in found.to_pylist()] == ["failed"]
