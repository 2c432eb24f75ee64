"""Coordinators are killed in the middle of a commit, and retention deletes unread records."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from streaming_pca.privacy.ledger.entries import Abandoned, Reserved
from streaming_pca.service.commit.verification import verify_ledger
from tests.kafka.child import Strike
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import check_books
from tests.kafka.three_brokers import PARTITIONS, Trial, coordinator, hold
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

TRANSACTIONS, GROUPS = "__transaction_state", "__consumer_offsets"


@pytest.mark.parametrize(
    "steps",
    [
        ("commit",),
        pytest.param(("offsets",), marks=pytest.mark.soak),
        pytest.param(("reserve", "lead"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
def test_a_coordinator_that_is_killed_during_a_commit_loses_nothing(
    fork_server: None, three_brokers: FaultyCluster, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    """Coordinators of transaction, offsets and election die, each at a step that needs it.

    Records come from a plain producer: if a coordinator dies, a transaction of librdkafka can end
    differently from its reported result, and the contents of the input would be in doubt.
    """
    with Trial(three_brokers, tmp_path, f"coordinator-{'-'.join(steps)}") as trial:
        group, own = trial.stream.settings.worker.group, trial.transactional_id
        cases: dict[str, tuple[str, str, str, Any]] = {
            "reserve": (TRANSACTIONS, own, "reserve.4 commit", "before"),
            "offsets": (GROUPS, trial.name, "commit.4 offsets", "before"),
            "commit": (TRANSACTIONS, own, "commit.5 commit", "before"),
            "lead": (GROUPS, group, "publish.4 commit", "after"),
        }
        trial.produce(transactions=False)
        for case in steps:
            topic, identity, step, when = cases[case]
            leader = trial.start(strike=Strike(step, when, 2, "wait"))
            leader.strikes(240)
            node = coordinator(three_brokers, topic, identity)
            three_brokers.kill(node)
            leader.let_go()
            trial.goes_on()
            three_brokers.start(node)
            three_brokers.wait_until_whole()
            trial.goes_on(1)
            if case != steps[-1]:
                leader.signal(signal.SIGKILL)
                leader.ends()
        trial.end()


def first_offsets(trial: Trial) -> dict[int, int]:
    """Return the first remaining offsets of the input."""
    partitions = [TopicPartition(trial.input, p) for p in range(PARTITIONS)]
    with KafkaConsumer(bootstrap_servers=trial.cluster.bootstrap) as consumer:
        return {tp.partition: offset for tp, offset in consumer.beginning_offsets(partitions).items()}


@pytest.mark.soak
def test_retention_that_deletes_unread_records_abandons_a_batch_and_the_stream_goes_on(
    fork_server: None, three_brokers: FaultyCluster, tmp_path: Path
) -> None:
    with Trial(three_brokers, tmp_path, "retention", lost_records="skip") as trial:
        trial.produce()
        leader = trial.start(strike=Strike("reserve.5 read back", "after", 2, "wait"))
        leader.strikes(240)
        leader.signal(signal.SIGKILL)
        assert leader.ends() == -signal.SIGKILL
        reserved = trial.stream.own(Reserved)[-1]
        trial.stream.set_configs(trial.input, retention_ms=1000, segment_ms=500)

        def is_deleted() -> bool:
            first = first_offsets(trial)
            return all(first[r.partition] >= r.end for r in reserved.ranges)

        wait_for("retention to delete the batch's records", is_deleted)
        worker = trial.start()
        worker.logs("batch 2 abandoned: records are gone; its charge stays")
        trial.goes_on()
        # Longer than records are kept: the worker's next records are deleted too, while it is stopped.
        worker.signal_all(signal.SIGSTOP, worker.tree())
        before = first_offsets(trial)
        deleted = "retention to delete unread records"
        wait_for(deleted, lambda: all(at > before[p] for p, at in first_offsets(trial).items()))
        hold(1)
        worker.signal_all(signal.SIGCONT, worker.tree())
        trial.goes_on()
        trial.stream.set_configs(trial.input, retention_ms=-1)
        trial.drain()
        check_books(trial.stream)
        assert [entry.batch for entry in trial.stream.own(Abandoned)][:1] == [reserved.batch]
        spent = trial.stream.replay()
        assert all(spent.spent(r.partition, r.start) == reserved.charge for r in reserved.ranges)
        assert not verify_ledger(trial.stream.settings.kafka, trial.input).problems
