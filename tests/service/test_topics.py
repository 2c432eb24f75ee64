"""Message sizes of a stream are bounded and replicas are checked; no broker is needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.privacy.randomness import secret_salt
from streaming_pca.service.commit.batch_result import make_release
from streaming_pca.service.commit.state_topic import Checkpoint, encode_checkpoint
from streaming_pca.service.commit.user_log import UserLog
from streaming_pca.service.topics import sizes
from streaming_pca.service.topics.checks import replica_problems
from streaming_pca.service.topics.find import input_topic
from streaming_pca.service.topics.sizes import commit_bytes, release_bytes
from tests.estimators.suite import sized
from tests.kafka.disk_use import state_bound, table_bytes

MIB = 2**20
DIM = 60
KAFKA = KafkaSettings(bootstrap_servers="kafka-1:9092,kafka-2:9092")


def stream_of(estimator: str = "adaptive", **more: Any) -> StreamSettings:
    kind = ESTIMATORS[estimator]
    rank = kind.suite_options.rank or 7
    tree: dict[str, Any] = {
        "name": "s",
        "input": "in",
        "dim": DIM,
        "rank": rank,
        "epsilon": 1.0,
        "delta": 1e-6,
    }
    if not kind.info.private:
        tree |= {"private": False, "epsilon": math.inf, "delta": math.inf}
    if kind.info.local:
        tree |= {"record_kind": "local", "centering": "none"}
    if kind.info.releases == "tensor":
        tree |= {"centering": "none"}
    options = sized(estimator, 1000) | more.pop("options", {})
    return StreamSettings(**(tree | {"estimator": estimator, "options": options} | more))


CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (name, "none" if kind.info.local or kind.info.releases == "tensor" else "auto", {})
        for name, kind in ESTIMATORS.items()
    ),
    *((n, "none", {}) for n, kind in ESTIMATORS.items() if "auto" in kind.centerings),
    ("block", "auto", {"oversampling": 5}),
    ("tadadpo", "none", {"warm_records": 4000, "warm_estimator": "analyze-gauss", "warm_options": {}}),
]


@pytest.mark.parametrize(("estimator", "centering", "options"), CASES, ids=str)
def test_what_a_batch_commits_fits_the_size_that_topics_are_made_for(
    estimator: str, centering: str, options: dict[str, Any]
) -> None:
    names = tuple(f"feature {'x' * 40} {i}" for i in range(DIM))
    stream = stream_of(estimator, centering=centering, feature_names=names, options=options)
    made, rng = stream.build_estimator(), np.random.default_rng(0)
    state = made.init(np.random.default_rng(0))
    for batch in (1, 2):
        width = stream.record_kind.width(DIM)
        rows = rng.standard_normal((1000, width)).astype("<f4")
        state = made.update(state, ArrayBatch(rows, np.arange(1001), stream.record_kind))
        release = make_release(stream, made.release(state), batch, state.records)
        positions = dict.fromkeys(range(1000), 2**40)
        encoded = encode_state(state)
        checkpoint = Checkpoint("0" * 36, "s", batch, positions, secret_salt(), encoded, release)
        data, _ = encode_checkpoint(checkpoint)
        # Zeros, which fill a sparse release, are short.
        short = 4 if estimator == "local-sparse" else 2
        assert len(release) <= release_bytes(stream) <= short * len(release)
        assert len(data) <= commit_bytes(stream) <= len(data) + 3 * len(release) + 2**16


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ({}, None),
        ({"estimator": "local-gaussian", "dim": 700}, None),
        ({"estimator": "local-gaussian", "dim": 2000}, 8 * MIB),
        ({"estimator": "block", "record_kind": "matrix", "centering": "none", "dim": 500}, None),
        ({"estimator": "block", "record_kind": "matrix", "centering": "none", "dim": 1000}, 4 * MIB),
    ],
    ids=str,
)
def test_an_input_topic_takes_records_of_one_size(how: dict[str, Any], size: int | None) -> None:
    """Brokers accept messages of 1 MiB by default."""
    stream = stream_of(**how)
    configs = input_topic(stream, 3, 1).topic_configs
    assert configs.get("max.message.bytes") == (None if size is None else str(size))
    assert sizes.record_bytes(stream) <= (size or MIB) - sizes.MESSAGE_OVERHEAD


def test_no_release_is_longer_than_stated() -> None:
    stream = stream_of()
    double = np.finfo(np.float64)
    for number in (-double.max, -double.tiny, -1 / 3, 5e-324, -1.2345678901234567e-300):
        arrays = (np.full((7, DIM), number), np.full(7, number), np.full(DIM, number))
        errors = {"explained_variance_error": np.full(7, abs(number)), "total_variance_error": abs(number)}
        bound = min(abs(number), math.pi / 2)
        numbers = Subspace(*arrays, total_variance=number, angle_bound=bound, **errors)
        assert len(make_release(stream, numbers, 10**9, 10**15)) <= release_bytes(stream)


def test_segments_hold_a_commit_and_the_bound_is_four_commits() -> None:
    for commit in (2000, MIB, 16 * MIB + 1, 600 * MIB):
        config = sizes.state_topic_config(commit)
        segment = int(config["segment.bytes"])
        assert max(commit, MIB) <= segment < max(commit, MIB) + MIB
        assert segment <= 2**31 - 1
        assert 2 * (commit + segment) < state_bound(commit) < 1.01 * (2 * (commit + segment)) + MIB


def test_users_add_what_their_table_takes_and_nothing_where_they_are_not_the_unit() -> None:
    by_message, by_user = stream_of(), stream_of(privacy_unit="user")
    largest = by_user.build_estimator().largest_batch
    assert 0 < commit_bytes(by_user) - commit_bytes(by_message) - 16 * largest < 4096
    assert table_bytes(by_message, 10**7) == 0
    table = table_bytes(by_user, 10**7)
    log, users = UserLog(1), np.random.default_rng(0).integers(1, 2**63, (1000, 2), dtype=np.uint64)
    held = 0
    for _ in range(64):
        # The delta is as large as the largest batch.
        batch = np.zeros((largest, 2), np.uint64)
        batch[:1000] = users
        step = log.step(batch, log.table.admit(batch))
        log.follow(step)
        held += sum(map(len, step.parts.values()))
    assert 0 < table_bytes(by_user, 1000) - held < 2 * 64 * 1024
    assert table - table_bytes(by_user, 0) == 18 * 10**7
    commit = commit_bytes(by_user)
    assert 0 <= state_bound(commit, table=table) - state_bound(commit) - 2 * table < table // 100


KEY, NUMBER = "min.insync.replicas", "the number of replicas"


@pytest.mark.parametrize(
    ("replicas", "in_sync", "brokers", "expected"),
    [
        *(
            (n, in_sync, brokers, [])
            for n, in_sync, brokers in ((1, "1", 1), (2, "1", 2), (3, "2", 3), (5, "3", 7))
        ),
        (1, "2", 1, [(KEY, "2", "1", True)]),
        (3, "4", 3, [(KEY, "4", "2", True)]),
        (3, "1", 3, [(KEY, "1", "2", False)]),
        (3, "3", 3, [(KEY, "3", "2", False)]),
        (1, "1", 3, [(NUMBER, "1", "3", False)]),
        (2, "2", 3, [(KEY, "2", "1", False), (NUMBER, "2", "3", False)]),
    ],
)
def test_replicas_that_can_lose_a_commit_or_never_take_one_are_named(
    replicas: int, in_sync: str, brokers: int, expected: list[tuple[str, str, str, bool]]
) -> None:
    parts = [{"partition_index": 0, "replica_nodes": list(range(replicas))}]
    topic = {"name": "in.ledger", "partitions": parts}
    found = replica_problems(KAFKA, topic, {KEY: in_sync}, brokers)
    assert [(p.key, p.found, p.wanted.split(" ")[0].rstrip(","), p.fatal) for p in found] == expected


def test_a_problem_is_one_line_with_the_command_that_mends_it() -> None:
    topic = {"name": "in.ledger", "partitions": [{"partition_index": 0, "replica_nodes": [1, 2, 3]}]}
    (problem,) = replica_problems(KAFKA, topic, {"min.insync.replicas": "1"}, 3)
    assert problem.line == (
        "topic 'in.ledger': min.insync.replicas is 1, it should be 2 (one broker that is lost could take "
        "what was committed along): kafka-configs --bootstrap-server kafka-1:9092,kafka-2:9092 --alter "
        "--entity-type topics --entity-name in.ledger --add-config min.insync.replicas=2"
    )
