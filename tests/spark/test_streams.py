"""Streams learn the same on Spark as in the service, through take-overs between the two.

All streams of a process read one topic of vectors, or one of reports. Two sets of streams read the same
records: the service alone runs one set; the service, Spark in one process, Spark on a cluster and the
service again run the other, and each but the last is killed. test_estimators.py has the other estimators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streaming_pca.local import report_headers
from tests.kafka.stream import Stream
from tests.kafka.test_every_estimator import BATCH, DIM, RANK, TABLE
from tests.spark.cluster import SparkCluster
from tests.spark.driver import Hold
from tests.spark.streams import LOCAL, OF_REPORTS, PROMISE, Making, Runners, check_sets, on_cluster, reports

pytestmark = pytest.mark.timeout(900)

CHOSEN = ("adaptive", "block", "k-dp-ojas", "oja", "private-oja")
"""Some of each kind: with many jobs or one job a batch, and some that learn on the driver."""
BATCHES = 4
BETWEEN, CHARGED, COMPUTED = "publish.5 read back", "reserve.5 read back", "commit.1 begin"
# At these steps no transaction is open, because all streams of a topic share a ledger. Every third stream
# is killed at the same points: between two batches, charged but not computed, computed but not committed.
# Each form of Spark commits a batch of each stream.
HOLDS = {
    "service": [Hold(BETWEEN), Hold(CHARGED), Hold(COMPUTED, "before")],
    "local": [Hold(CHARGED, nth=2), Hold(BETWEEN), Hold(COMPUTED, "before", nth=2)],
    "cluster": [Hold(BETWEEN), Hold(COMPUTED, "before", nth=2), Hold(CHARGED, nth=2)],
}


def make_sets(make_stream: Making) -> list[list[Stream]]:
    """Make two sets of streams of the same two topics."""
    sets: list[list[Stream]] = [[], []]
    for table in ({name: TABLE[name] for name in CHOSEN}, OF_REPORTS):
        topic = None
        for made in sets:
            for name in table:
                how: dict[str, Any] = {"centering": "none", "dim": DIM, "rank": RANK, "estimator": name}
                how |= {"partitions": 3, "cap": None if topic else ("inf", "inf"), "input": topic, "seed": 5}
                how |= {"worker": {"stop_when_done": False, "step_deadline_seconds": 300}}
                stream = make_stream(name, **(how | table[name]))
                topic = stream.settings.stream.input
                made.append(stream)
    return sets


@pytest.mark.soak
def test_streams_learn_the_same_through_take_overs(
    make_stream: Making, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    alone, shared = make_sets(make_stream)
    alone[0].produce_vectors(alone[0].vectors(BATCHES * BATCH))
    of_reports = alone[len(CHOSEN)]
    of_reports.produce(reports(BATCHES * BATCH), headers=report_headers(**PROMISE))
    cluster = on_cluster(spark_cluster.url)
    with Runners(tmp_path) as run:
        run.finish(alone, "alone", BATCHES)
        run.hold_and_kill(shared, "service", HOLDS["service"])
        run.hold_and_kill(shared, "local", HOLDS["local"], spark=LOCAL)
        run.hold_and_kill(shared, "cluster", HOLDS["cluster"], spark=cluster, small=True)
        run.finish(shared, "again", BATCHES)
        for runner in run.all:
            assert "Traceback" not in runner.log, runner.log
    check_sets(alone, shared, BATCHES)
