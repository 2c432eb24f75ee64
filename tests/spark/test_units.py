"""Spark counts the same as the service, for any message contents and batch boundaries.

Each case has its own topic, which two streams read: a worker of the service runs one, Spark on a cluster of
two workers the other, in `make soak` also Spark in one process. A process runs its streams of all cases.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca.privacy.ledger.entries import OffsetRange
from tests.kafka.faults import chaos_payloads
from tests.kafka.stream import OCTETS, Stream, check_books, ranges_of
from tests.spark.cluster import SparkCluster
from tests.spark.streams import (
    LOCAL,
    Making,
    Runner,
    Runners,
    at_once,
    check_ledger,
    check_same,
    on_cluster,
    wait_for_batches,
)
from tests.waiting import LIMIT

pytestmark = pytest.mark.timeout(900)

BATCHES = 2
KINDS = ("service", "spark")
ADDED = "added"
"""Case whose streams read a partition that is added while they wait for records."""
LEARN: dict[str, Any] = {"estimator": "private-oja", "centering": "none"}


def oja(batch_size: int, **options: Any) -> dict[str, Any]:
    return LEARN | {"options": {"batch_size": batch_size, "clip_radius": 20.0, **options}}


def covariance(count: int, **options: Any) -> dict[str, Any]:
    """Return settings of the default estimator, with batches of equal size."""
    return {"options": {"n_records": count, "n_batches": BATCHES, "growth": 1.0, **options}}


@dataclass(frozen=True)
class Case:
    """Topic whose records ``fill`` writes before a stream begins, and the settings of its streams."""

    fill: Callable[[Stream], None]
    how: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 3


# -- contents of the messages -----------------------------------------------


def fill_mixed(stream: Stream) -> None:
    """Write good and bad payloads of all content types, of one row or two."""
    dice = random.Random(11)
    drawn = [chaos_payloads.draw(dice, stream.settings.stream.dim)[0] for _ in range(230)]
    # kafka-python cannot send a message without key and value, or a header without a value.
    payloads = [(value, [(name, item or b"") for name, item in headers]) for value, headers in drawn]
    stream.send((value or b"", headers) for value, headers in payloads)


def fill_factors(stream: Stream) -> None:
    """Write factors of one to eight rows; each ninth message has no rows, each seventh row a NaN."""
    sizes = [0 if i % 9 == 4 else 1 + i % 8 for i in range(230)]
    rows = stream.vectors(sum(sizes))
    rows[::7, 2] = np.nan
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    stream.produce(part.tobytes() for part in parts)


def fill_users(stream: Stream) -> None:
    """Write repeated records of some users, and records without a user."""
    dice = np.random.default_rng(2)
    users = np.minimum(dice.geometric(0.06, 230), 40)
    keys = [None if i % 9 == 4 else b"u%d" % user for i, user in enumerate(users)]
    stream.produce_keyed(zip(keys, (row.tobytes() for row in stream.vectors(230)), strict=True))


def fill_matrices(stream: Stream) -> None:
    """Write symmetric matrices, and some that are not symmetric."""
    d = stream.settings.stream.dim
    matrices = [np.outer(x, x).astype("<f4") for x in stream.vectors(230)]
    for matrix in matrices[::8]:
        matrix[0, d - 1] += 1
    stream.produce(matrix.tobytes() for matrix in matrices)


def fill_doubles(stream: Stream) -> None:
    stream.produce((row.astype("<f8").tobytes() for row in stream.vectors(230)), headers=[])


FIELDS: list[dict[str, Any]] = [
    {"name": "a", "bounds": (-20.0, 20.0), "missing": 0.0},
    {"name": "place", "size": 3, "bounds": (-20.0, 20.0)},
    {"name": "b", "path": "in.b", "bounds": (0.0, 20.0), "transform": "log1p"},
]


def fill_objects(stream: Stream) -> None:
    """Write objects of users, alone and in lists; some lack a field, and every eleventh is not JSON."""
    dice = np.random.default_rng(3)
    values = []
    for i, row in enumerate(stream.vectors(230).astype(float)):
        record = {"place": row[1:4].tolist(), "in": {"b": row[4]}, "user": f"u{dice.integers(0, 60)}"}
        record |= {} if i % 5 == 0 else {"a": row[0]}
        text = json.dumps([record] * 2 if i % 7 == 0 else record).encode()
        values.append(text[:-1] if i % 11 == 0 else text)
    stream.produce(values, headers=[])


def fill_vectors(stream: Stream) -> None:
    stream.produce_vectors(stream.vectors(230))


# -- places of the messages ---------------------------------------------------


def fill_transactions(stream: Stream) -> None:
    """Write records in committed and aborted transactions, so that offsets have gaps and markers."""
    x = stream.vectors(460)
    with closing(stream.transactional()) as producer:
        for i, rows in enumerate(np.split(x, 46)):
            producer.begin_transaction()
            for n, row in enumerate(rows):
                place = {"partition": (i + n) % 2, "headers": OCTETS}
                producer.send(stream.settings.stream.input, row.tobytes(), **place)
            if i % 2:
                producer.flush(LIMIT)
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            # Some records stand alone between two transactions.
            if i % 10 == 0:
                stream.produce_vectors(x[i : i + 1], to=lambda _: 0)


def fill_first(stream: Stream) -> None:
    """Write the records of the first of two batches; :func:`add_partition` writes the others."""
    stream.produce_vectors(stream.vectors(120)[:60])


def fill_skewed(stream: Stream) -> None:
    """Write 95% of the records to one of four partitions, and none to another."""
    stream.produce_vectors(stream.vectors(230), to=lambda i: 0 if i % 20 else 1 + i % 40 // 20)


CASES = {
    "mixed": Case(fill_mixed, covariance(200)),
    "factors": Case(fill_factors, oja(100, clip_radius=200.0) | {"max_rows": 8}),
    "rows": Case(
        fill_factors, covariance(200) | {"privacy_unit": "row", "max_rows": 8, "bounds": (-20.0, 20.0)}
    ),
    "users": Case(fill_users, oja(100) | {"privacy_unit": "user", "contributions_per_user": 2}, partitions=2),
    "objects": Case(
        fill_objects,
        covariance(200) | {"privacy_unit": "user", "user_field": "user", "features": FIELDS},
        partitions=2,
    ),
    "matrices": Case(
        fill_matrices, covariance(200, clip_radius=400.0) | {"record_kind": "matrix", "centering": "none"}
    ),
    "pairs": Case(fill_vectors, covariance(200) | {"centering": "pairs"}),
    "centred": Case(
        fill_doubles,
        covariance(200) | {"dtype": "float64", "centering": (1.0, 0.0, -1.0, 0.5, 0.0), "scale": 0.25},
    ),
    "transactions": Case(fill_transactions, oja(100), partitions=2),
    "skewed": Case(fill_skewed, covariance(200, clip_quantile=0.9), partitions=4),
    ADDED: Case(fill_first, oja(60), partitions=2),
}
"""At least 200 messages a topic, for two batches; the last topic gets a partition between its batches."""


@pytest.fixture
def streams(make_stream: Making) -> dict[str, dict[str, Stream]]:
    """Make two streams of a filled topic for each case, by their runner's name."""

    def make(name: str) -> dict[str, Stream]:
        case, made = CASES[name], dict[str, Stream]()
        for kind in KINDS:
            first = next(iter(made.values()), None)
            topic = {"input": first.settings.stream.input, "cap": None} if first else {"cap": ("2", "1e-5")}
            how = {"seed": 5, "partitions": case.partitions, **topic, **case.how}
            worker = {"stop_when_done": False, "partitions_seconds": 0.5}
            made[kind] = make_stream(f"{name}-{kind}", worker=worker, **how)
        case.fill(made["service"])
        return made

    return dict(zip(CASES, at_once(make, CASES), strict=True))


@pytest.mark.parametrize("where", ["cluster", pytest.param("local", marks=pytest.mark.soak)])
def test_whatever_a_message_holds_spark_learns_what_the_service_learns(
    streams: dict[str, dict[str, Stream]], spark_cluster: SparkCluster, tmp_path: Path, where: str
) -> None:
    """One driver runs all cases; while it waits, one topic gets a third partition with records."""
    filled = [mine for name, mine in streams.items() if name != ADDED]
    with Runners(tmp_path) as run:
        run.finish([mine["service"] for mine in filled], "service", BATCHES)
        spark = on_cluster(spark_cluster.url) if where == "cluster" else LOCAL
        # Batches have a hundred records: on the cluster, each task gets a part of a partition.
        how = {"spark": spark, "small": where == "cluster"}
        driver = run.start([mine["spark"] for mine in streams.values()], where, **how)
        wait_for_batches(driver, [mine["spark"] for mine in filled], BATCHES)
        add_partition(run, driver, streams[ADDED])
        driver.stop()
        for runner in run.all:
            assert "Traceback" not in runner.log, runner.log
            assert "nan" not in runner.log.lower()
    of = {kind: [mine[kind] for mine in streams.values()] for kind in KINDS}
    entries = at_once(Stream.entries, of["service"])
    at_once(check_same, of["service"], of["spark"], [BATCHES] * len(CASES), entries)
    at_once(check_ledger, of["service"])
    # Releases count rows if a row is a record, which `check_books` does not.
    at_once(check_books, [mine["spark"] for name, mine in streams.items() if name != "rows"])
    check_cases(streams)


def add_partition(run: Runners, driver: Runner, mine: Mapping[str, Stream]) -> None:
    """Add a partition with records while a driver and a worker of the service wait for records."""
    first, runners = mine["service"], {"spark": driver, "service": run.start([mine["service"]], ADDED)}
    for kind, runner in runners.items():
        wait_for_batches(runner, [mine[kind]], 1)
    with first.admin() as admin:
        admin.create_partitions({first.settings.stream.input: 3})
    for stream in mine.values():
        stream.partitions = 3
    first.produce_vectors(first.vectors(120)[60:])
    for kind, runner in runners.items():
        wait_for_batches(runner, [mine[kind]], BATCHES)
    runners["service"].stop()


def check_cases(streams: Mapping[str, Mapping[str, Stream]]) -> None:
    """Check that the cases have the properties that they are named after."""
    of_gaps = ranges_of(streams["transactions"]["spark"])
    gaps = [r.end - r.start - r.count for ranges in of_gaps for r in ranges]
    assert min(gaps) > 10, gaps
    counts = [count_of(ranges) for ranges in ranges_of(streams["skewed"]["spark"])]
    assert all(sum(count.values()) == 100 and 3 not in count for count in counts), counts
    assert counts[-1][0] > 90, counts
    # Null records are counted, so there must be more than a few.
    assert (streams["mixed"]["spark"].releases()[-1].null_records or 0) > 0
    assert streams["rows"]["spark"].releases()[-1].records > 3 * 200
    assert count_of(ranges_of(streams[ADDED]["spark"])[1]) == {0: 20, 1: 20, 2: 20}


def count_of(ranges: tuple[OffsetRange, ...]) -> dict[int, int]:
    return {r.partition: r.count for r in ranges}
