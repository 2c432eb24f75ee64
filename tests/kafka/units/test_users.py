"""The right records of each user count, even if workers die and topics are restored."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from streaming_pca.privacy.ledger.entries import Committed, Reserved
from streaming_pca.privacy.users import hash_users
from streaming_pca.service.commit.state_topic import is_part, join_parts
from streaming_pca.service.commit.user_log import UserLog
from tests.kafka.admin.test_backup import export, restore, run_batches
from tests.kafka.child import Strike
from tests.kafka.conftest import Capture, Make
from tests.kafka.stream import Stream, all_at_once, check_books, read_all

BY_USER: dict[str, Any] = {
    "privacy_unit": "user",
    "centering": "none",
    "rank": 1,
    "options": {"n_records": 600, "n_batches": 3, "clip_radius": 1e6},
}
FLOODED, HONEST, KEYLESS = np.eye(5, dtype="<f4")[:3] * np.array([[10], [5], [20]], dtype="<f4")


def flood(everybody_for_himself: bool = False) -> list[tuple[bytes | None, bytes]]:
    """Return 600 messages: 90% of one user, some without a key, two each of 20 others."""
    messages: list[tuple[bytes | None, bytes]] = []
    for i in range(600):
        if i % 15 == 7:
            messages.append((b"" if i % 2 else None, KEYLESS.tobytes()))
        elif i % 15 == 3:
            messages.append((b"user %d" % (i // 30), HONEST.tobytes()))
        else:
            messages.append((b"flooder", FLOODED.tobytes()))
    if everybody_for_himself:
        return [(b"%d" % i, value) for i, (_, value) in enumerate(messages)]
    return messages


def facts_of(log: str) -> list[str]:
    """Return the lines of a log without times and names."""
    lines = [re.sub(r"^\S+ \S+ ", "", line) for line in log.splitlines()]
    return [re.sub(r"\b(in-)?(s|by)[-\w]*\d[-\w]*", "NAME", line) for line in lines]


def test_a_user_who_floods_the_topic_does_not_turn_the_subspace(make_stream: Make) -> None:
    """Without noise, 520 messages of one user compete with two each of 20 users."""
    by_user, by_message = make_stream(**BY_USER), make_stream(**BY_USER | {"privacy_unit": "message"})
    other = make_stream(**BY_USER)

    def run(stream: Stream, messages: list[tuple[bytes | None, bytes]]) -> None:
        stream.produce_keyed(messages)
        stream.run(noise=False)

    all_at_once(run, [(by_user, flood()), (by_message, flood()), (other, flood(everybody_for_himself=True))])
    directions = {
        name: [np.abs(r.components[0]).argmax() for r in stream.releases()]
        for name, stream in (("user", by_user), ("message", by_message), ("other", other))
    }
    assert directions == {"user": [1, 1, 1], "message": [0, 0, 0], "other": [0, 0, 0]}
    assert "contributions_per_user" not in by_message.release_values()[-1].decode()

    # Null or not, every message keeps its place, and nothing else reveals messages that do not count.
    for stream in (by_user, other):
        assert [r.records for r in stream.releases()] == [200, 400, 600]
        assert {(r.privacy_unit, r.contributions_per_user) for r in stream.releases()} == {("user", 1)}
    assert [e.ranges for e in by_user.own(Reserved)] == [e.ranges for e in by_message.own(Reserved)]
    logs = [facts_of(stream.children[0].log) for stream in (by_user, other)]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 5


# -- counting users from the topics alone ----------------------------------------------

OF_USERS: dict[str, Any] = {
    "privacy_unit": "user",
    "contributions_per_user": 2,
    "partitions": 1,
    "options": {"n_records": 480, "n_batches": 8, "clip_radius": 400.0},
}


def keyed(stream: Stream, count: int, seed: int = 0) -> list[tuple[bytes | None, bytes]]:
    """Return records of 40 users, some very frequent, and records without a user."""
    dice = np.random.default_rng(seed)
    ids = np.minimum(dice.geometric(0.06, count), 40)
    keys = [None if i % 9 == 4 else b"u%d" % user for i, user in enumerate(ids)]
    return list(zip(keys, (row.tobytes() for row in stream.vectors(count, seed)), strict=True))


def who_should_count(stream: Stream) -> list[list[bytes | None]]:
    """Return, by committed batch and position, the key of a message that counts, or None."""
    limit, times = stream.settings.stream.contributions_per_user, Counter[bytes]()
    keys = {m.offset: m.key for m in read_all(stream.settings.kafka, stream.settings.stream.input)}
    committed = {entry.batch for entry in stream.own(Committed)}
    batches = []
    for entry in stream.own(Reserved):
        if entry.batch not in committed:
            continue
        (span,) = entry.ranges
        counting: list[bytes | None] = []
        for offset in range(span.start, span.end):
            key = keys[offset]
            mine = key is not None and times[key] < limit and key not in counting
            counting.append(key if mine else None)
        times.update(key for key in counting if key is not None)
        batches.append(counting)
    return batches


def check_users(stream: Stream) -> UserLog:
    """Check that each commit's delta has the users who should count, and rebuild their table."""
    batches = who_should_count(stream)
    messages = [m for m in stream.messages(stream.settings.stream.state_topic) if is_part(m)]
    index = stream.checkpoints()[-1][0].users
    assert index is not None
    assert index.commits == len(batches)
    joined = join_parts(index, {message.key: message.value for message in messages})
    for n, counting in enumerate(batches, start=1):
        delta = np.frombuffer(joined[f"users.delta.{n}"], dtype="<u8").reshape(-1, 2)
        np.testing.assert_array_equal(delta, hash_users(index.key, counting))
    log = UserLog.rebuilt(stream.settings.stream.contributions_per_user, index, joined)
    counts = Counter(key for counting in batches for key in counting if key is not None)
    assert max(counts.values()) == stream.settings.stream.contributions_per_user
    assert len(log.table) == len(counts)
    spent = hash_users(index.key, [key for key, times in counts.items() if times == 2])
    assert not log.table.admit(spent).any()
    return log


def test_nobody_counts_too_often_whatever_happens_to_workers_and_topics(
    make_stream: Make, capfd: Capture
) -> None:
    stream = make_stream(**OF_USERS)
    records = keyed(stream, 480)
    stream.produce_keyed(records[:300])
    # Between two batches, within a commit's transaction, and after it, before the worker knew of it.
    for step, nth in (("publish.5 read back", 2), ("commit.4 offsets", 1), ("commit.6 read back", 1)):
        when = "before" if step.startswith("commit.6") else "after"
        stream.crash(Strike(step, when, nth))
    run_batches(stream, 3)  # the first of them was committed already
    check_users(stream)

    # Another limit changes the privacy contract.
    assert "contributions_per_user" in stream.start(stream.changed(contributions_per_user=3)).refusal()

    # A copy includes the table; a stream without the table is refused.
    path = export(capfd, stream)
    stream.delete("ledger", "state")
    assert restore(capfd, stream, path)["states_written"] == [stream.settings.stream.name]
    before = check_users(stream)
    stream.produce_keyed(records[300:])
    stream.run()
    after = check_users(stream)
    assert before.key == after.key
    assert len(stream.own(Committed)) == 8
    check_books(stream)
