"""The parts of the table of users on a compacted topic rebuild the same table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.privacy.users import SHARDS, UserIndex, UserTable
from streaming_pca.service.commit import state_topic
from streaming_pca.service.commit.state_topic import Checkpoint, decode_checkpoint, encode_checkpoint
from streaming_pca.service.commit.user_log import MalformedState, UserLog

Users = NDArray[np.uint64]
RNG_SEED = 7
FEW, MANY = 40, 5000
FIELDS: Any = ("id", "s", 1, {0: 1}, b"salt", b"state", b"{}")
"""Fields of a checkpoint before the users."""


class Topic:
    """Replacement of the producer, which stores every message in order."""

    def __init__(self) -> None:
        self.messages: list[SimpleNamespace] = []

    def send(self, topic: str, value: bytes, key: bytes, headers: object) -> None:
        assert topic == "s.state"
        self.messages.append(SimpleNamespace(key=key, value=value))

    def compacted(self) -> list[SimpleNamespace]:
        """Return the last message of each key, in order."""
        last = {m.key: i for i, m in enumerate(self.messages)}
        return [self.messages[i] for i in sorted(last.values())]


def index_after(log: UserLog) -> UserIndex:
    """Return the index of the last commit, as its encoded checkpoint carries it."""
    assert log.index is not None
    checkpoint = Checkpoint(*FIELDS, log.index)
    found = decode_checkpoint(encode_checkpoint(checkpoint)[0])[0]
    assert found == checkpoint
    assert found.users is not None
    return found.users


def commit(log: UserLog, users: Users, topic: Topic) -> NDArray[np.bool_]:
    """Admit a batch, write the messages of its commit, and follow it."""
    counted = log.table.admit(users)
    step = log.step(users, counted)
    state_topic.send_state(topic, "s.state", b"state", "digest", step.index.commits, step.parts)
    log.follow(step)
    return counted


def rebuilt(limit: int, index: UserIndex, messages: list[SimpleNamespace]) -> UserLog:
    chunks = {message.key: message.value for message in filter(state_topic.is_part, messages)}
    return UserLog.rebuilt(limit, index, state_topic.join_parts(index, chunks))


def batch_of(rng: np.random.Generator, count: int, of: int) -> Users:
    """Return users drawn from ``of``, with hashes spread over the shards; some records have no key."""
    ids = rng.integers(0, of, count).astype(np.uint64)
    hashes = np.stack([ids * np.uint64(0x9E3779B97F4A7C15), ids + np.uint64(1)], axis=1)
    hashes[rng.random(count) < 0.1] = 0
    return hashes


def shards_of(log: UserLog) -> list[bytes]:
    return [log.table.shard_bytes(i) for i in range(SHARDS)]


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("n_users", [FEW, MANY])
def test_the_table_that_is_rebuilt_from_a_compacted_topic_is_the_one_that_was(
    limit: int, n_users: int
) -> None:
    rng, log, topic = np.random.default_rng(RNG_SEED), UserLog(limit), Topic()
    for n in range(1, 201):
        commit(log, batch_of(rng, int(rng.integers(1, 120)), n_users), topic)
        if n in (1, 2, 63, 64, 65, 128, 129, 200):
            found = rebuilt(limit, index_after(log), topic.compacted())
            assert shards_of(found) == shards_of(log), n
            assert found.key == log.key
            # It also continues in the same way.
            again = batch_of(rng, 100, n_users)
            assert (found.table.admit(again) == log.table.admit(again)).all()
            next_of = [each.step(again, each.table.admit(again)) for each in (found, log)]
            assert next_of[0].parts == next_of[1].parts
            assert next_of[0].index == next_of[1].index


def test_two_hundred_commits_have_128_keys() -> None:
    rng, log, topic = np.random.default_rng(RNG_SEED), UserLog(1), Topic()
    for _ in range(200):
        commit(log, batch_of(rng, 50, MANY), topic)
    keys = {m.key for m in topic.compacted()} - {b"0"}
    assert len(keys) == 2 * SHARDS


def test_nobody_counts_more_often_than_the_limit_whatever_is_rebuilt() -> None:
    rng, log, topic, limit = np.random.default_rng(RNG_SEED), UserLog(2), Topic(), 2
    times: dict[bytes, int] = {}
    for n in range(100):
        users = batch_of(rng, 60, 300)
        for user in users[commit(log, users, topic)]:
            times[user.tobytes()] = times.get(user.tobytes(), 0) + 1
        if n % 7 == 0:
            log = rebuilt(limit, index_after(log), topic.compacted())
    assert max(times.values()) == limit
    assert np.zeros(2, np.uint64).tobytes() not in times


def test_a_delta_has_the_size_of_its_batch_whoever_counts() -> None:
    sizes = set()
    for users in (np.zeros((90, 2), np.uint64), batch_of(np.random.default_rng(1), 90, 3), distinct(90)):
        log = UserLog(1)
        step = log.step(users, log.table.admit(users))
        sizes.add(len(step.parts["users.delta.1"]))
    assert sizes == {90 * 16}


def distinct(count: int, first: int = 1) -> Users:
    ids = np.arange(first, first + count, dtype=np.uint64)
    return np.stack([ids * np.uint64(0x9E3779B97F4A7C15), ids], axis=1)


def test_nothing_changes_before_the_commit_has_succeeded() -> None:
    log = UserLog(1)
    users = distinct(50)
    first, second = (log.step(users, log.table.admit(users)) for _ in range(2))
    assert first.parts == second.parts
    assert log.index is None
    assert len(log.table) == 0
    log.follow(first)
    assert len(log.table) == 50
    assert not log.table.admit(users).any()


def large_log() -> tuple[UserLog, Topic]:
    """Return a log of 71 commits, the last with several chunks, and its topic."""
    log, topic = UserLog(1), Topic()
    for n in range(70):
        commit(log, distinct(10, 1 + 10 * n), topic)
    commit(log, distinct(70_000, 10_000), topic)
    return log, topic


def test_a_part_that_is_lost_changed_or_old_is_refused() -> None:
    log, topic = large_log()
    index, messages = index_after(log), topic.compacted()
    assert shards_of(rebuilt(1, index, messages)) == shards_of(log)
    delta = f"users.delta.{71 % SHARDS}."
    chunks = [m for m in messages if m.key.decode().startswith(delta)]
    assert len(chunks) == 3
    for chunk in (chunks[1], chunks[2], next(m for m in messages if m.key == b"users.shard.9.0")):
        others = [m for m in messages if m is not chunk]
        with pytest.raises(MalformedState, match="is missing"):
            rebuilt(1, index, others)
        changed = SimpleNamespace(key=chunk.key, value=chunk.value[:-1] + bytes([chunk.value[-1] ^ 1]))
        with pytest.raises(MalformedState, match="differs from the last commit"):
            rebuilt(1, index, [*others, changed])


def test_parts_of_two_commits_do_not_mix() -> None:
    log, topic = large_log()
    before, then = index_after(log), topic.compacted()
    commit(log, distinct(10, 500_000), topic)
    after, now = index_after(log), topic.compacted()
    # Compaction may leave older chunks next to newer chunks of the same part, but never instead of them.
    for index, messages in ((before, now), (after, then)):
        with pytest.raises(MalformedState, match="differs from the last commit"):
            rebuilt(1, index, messages)
    assert shards_of(rebuilt(1, after, then + now)) == shards_of(log)


def test_parts_whose_digests_fit_and_that_do_not_hold_together_are_refused() -> None:
    log, topic = UserLog(1), Topic()
    users = distinct(5)
    commit(log, users, topic)
    # Another writer might count them once more than allowed.
    step = log.step(users, np.ones(5, np.bool_))
    state_topic.send_state(topic, "s.state", b"state", "digest", 2, step.parts)
    with pytest.raises(MalformedState, match="cannot be rebuilt: users to add must be distinct"):
        rebuilt(1, step.index, topic.compacted())


def test_an_index_names_the_parts_of_its_commits_and_no_others() -> None:
    log, _ = large_log()
    index = index_after(log)
    lacking = {slot: part for slot, part in index.deltas.items() if slot != 5}
    for wrong in ({"commits": 3}, {"deltas": lacking}, {"key": b""}):
        with pytest.raises(ValueError, match="the parts of the table of users do not match"):
            replace(index, **wrong)
    data = encode_checkpoint(Checkpoint(*FIELDS, index))[0].replace(b'"commits": 71', b'"commits":  7')
    with pytest.raises(MalformedState, match="cannot be read"):
        decode_checkpoint(data)


def test_a_checkpoint_without_users_has_the_bytes_that_it_always_had() -> None:
    data, _ = encode_checkpoint(Checkpoint(*FIELDS))
    assert b"users" not in data
    assert decode_checkpoint(data)[0].users is None


def test_a_table_that_is_rebuilt_is_that_of_the_users_who_counted() -> None:
    log, topic = large_log()
    # No text of an index has the secret.
    assert log.key.hex() not in repr(index_after(log))
    assert repr(log.key) not in repr(index_after(log))
    table = UserTable(1)
    for n in range(70):
        table.add(distinct(10, 1 + 10 * n))
    table.add(distinct(70_000, 10_000))
    found = rebuilt(1, index_after(log), topic.compacted())
    assert shards_of(found) == [table.shard_bytes(i) for i in range(SHARDS)]
