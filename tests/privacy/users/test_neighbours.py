"""A user enters one record in each of at most ``limit`` batches, regardless of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.privacy.users import UserTable, hash_users

SECRET = bytes(range(32))
Messages = list[list[bytes | None]]
message_keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d"]))
streams = st.lists(st.lists(message_keys, max_size=10), max_size=8)


def positions(table: UserTable, stream: Messages) -> list[set[int]]:
    """Return the positions that count, batch by batch."""
    counted = []
    for batch in stream:
        users = hash_users(SECRET, batch)
        admitted = table.admit(users)
        table.add(users[admitted])
        counted.append(set(np.flatnonzero(admitted).tolist()))
    return counted


def broken_promises(make: Callable[[], UserTable], stream: Messages, user: bytes, limit: int) -> list[str]:
    """Return the violations between this stream and neighbours with ``user`` replaced or removed."""
    own = [{i for i, key in enumerate(batch) if key == user} for batch in stream]
    counted = positions(make(), stream)
    broken = []
    for other in (None, b"", b"a key that nobody uses"):
        neighbour = [[other if key == user else key for key in batch] for batch in stream]
        also = positions(make(), neighbour)
        if any(a - mine != b - mine for a, b, mine in zip(counted, also, own, strict=True)):
            broken.append("another user's records changed")
        for each in (counted, also):
            entered = [here & mine for here, mine in zip(each, own, strict=True)]
            if any(len(records) > 1 for records in entered):
                broken.append("two records in one batch")
            if sum(map(bool, entered)) > limit:
                broken.append("too many batches")
        moved = [bool(b & mine) for b, mine in zip(also, own, strict=True)]
        if any(moved) if not other else counted != also:
            broken.append("the user's own positions moved")
    return broken


@settings(deadline=None)
@given(streams, st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 3))
def test_neighbours_differ_in_one_record_of_limit_batches(stream: Messages, user: bytes, limit: int) -> None:
    assert broken_promises(lambda: UserTable(limit), stream, user, limit) == []


class TwoRecordsABatch(UserTable):
    """Broken: counts records, not batches, so a user's second record counts too."""

    def admit(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        first = super().admit(users)
        rest = users.copy()
        rest[first] = 0
        return first | super().admit(rest)

    def add(self, users: NDArray[np.uint64]) -> None:
        for user in users:
            super().add(user[None])


class FewUsersABatch(UserTable):
    """Broken: only the first two users of a batch count, so one displaces another."""

    def admit(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        counted = super().admit(users)
        counted[np.flatnonzero(counted)[2:]] = False
        return counted


class ForgetsItsUsers(UserTable):
    """Broken: the limit is never reached."""

    def add(self, users: NDArray[np.uint64]) -> None:
        pass


@pytest.mark.parametrize(
    ("table", "limit", "expected"),
    [
        (TwoRecordsABatch, 4, "two records in one batch"),
        (FewUsersABatch, 2, "another user's records changed"),
        (ForgetsItsUsers, 2, "too many batches"),
    ],
)
def test_the_check_of_neighbours_catches_a_broken_table(table: Any, limit: int, expected: str) -> None:
    stream: Messages = [[b"a", b"a", b"b", b"c"]] * 3
    assert expected in broken_promises(lambda: table(limit), stream, b"a", limit=2)
    assert broken_promises(lambda: UserTable(2), stream, b"a", limit=2) == []


def test_a_message_that_changes_hands_can_move_three_records_of_a_limit_of_one() -> None:
    """The promise for one user does not cover this, as the page on limits explains."""
    counted = []
    for first in (b"u", b"v"):
        table = UserTable(1)
        counted.append([])
        for key in (first, b"u", b"v"):
            users = hash_users(bytes(32), [key])
            admitted = table.admit(users)
            table.add(users[admitted])
            counted[-1].append(bool(admitted[0]))
    # The first record is another user's, the second counts now, the third no longer does.
    assert counted == [[True, False, True], [True, True, False]]
