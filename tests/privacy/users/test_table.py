"""The table of users against a dict of counts; its bytes, its hashes and its refusals."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.privacy.users import SHARDS, UserShard, UserTable, _users_from_digests, hash_users
from tests.data.refusals import refuses

SECRET = bytes(range(32))
User = tuple[int, int]
NOBODY: User = (0, 0)
LAST = 2**64 - 1

# Real hashes are uniform; these are not: few shards, words that differ in one bit, and equal
# high words, so that a search must continue by the low ones.
HIGH = [0, 1, 5 << 58, (5 << 58) + 1, 63 << 58, LAST]
LOW = [0, 1, 2**32 - 1, 1 << 63, LAST - 1, LAST]
awkward_users = st.tuples(st.sampled_from(HIGH), st.sampled_from(LOW))
batches_of_users = st.lists(st.lists(awkward_users, max_size=20), max_size=8)
limits = st.sampled_from([1, 2, 3, 255, 256, 65_535])


def array(users: Iterable[User]) -> NDArray[np.uint64]:
    return np.array(list(users), np.uint64).reshape(-1, 2)


def nbytes(table: UserTable) -> int:
    return sum(getattr(shard, name).nbytes for shard in table._shards for name in UserShard.__slots__)


def tuples(users: NDArray[np.uint64]) -> list[User]:
    return [(int(high), int(low)) for high, low in users]


class Model:
    """The table's required behaviour, one record after the other, in a dict."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counts: dict[User, int] = {}

    def admit(self, users: Sequence[User]) -> list[bool]:
        return [
            user != NOBODY and user not in users[:i] and self.counts.get(user, 0) < self.limit
            for i, user in enumerate(users)
        ]

    def add(self, users: Iterable[User]) -> None:
        for user in users:
            self.counts[user] = self.counts.get(user, 0) + 1

    def shard_bytes(self, shard: int) -> bytes:
        mine = sorted((user, count) for user, count in self.counts.items() if user[0] >> 58 == shard)
        n = len(mine)
        return (
            struct.pack("<4sBBHQ", b"SPUT", 1, shard, 0, n)
            + struct.pack(f"<{n}Q", *(high for (high, _), _ in mine))
            + struct.pack(f"<{n}Q", *(low for (_, low), _ in mine))
            + struct.pack(f"<{n}H", *(count for _, count in mine))
        )


def all_bytes(table: UserTable | Model) -> list[bytes]:
    return [table.shard_bytes(shard) for shard in range(SHARDS)]


def loaded(table: UserTable | Model, limit: int) -> UserTable:
    copy = UserTable(limit)
    for shard, data in enumerate(all_bytes(table)):
        copy.load_shard(shard, data)
    return copy


def distinct_users(seed: int, n: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(1, 2**64, (n, 2), dtype=np.uint64)


@settings(deadline=None)
@given(limits, batches_of_users)
def test_the_table_does_what_a_dict_of_counts_says(limit: int, batches: list[list[User]]) -> None:
    table, model = UserTable(limit), Model(limit)
    for batch in batches:
        counted = table.admit(array(batch))
        assert counted.tolist() == model.admit(batch)
        users = array(batch)[counted]
        table.add(users)
        model.add(tuples(users))
        assert len(table) == len(model.counts)
        assert all_bytes(table) == all_bytes(model)


@pytest.mark.parametrize("limit", [3, 300])
def test_a_table_that_grows_forgets_nobody_and_stays_small(limit: int) -> None:
    table, model = UserTable(limit), Model(limit)
    empty = nbytes(table)
    users = distinct_users(1, 30_000)
    # All users are in one shard.
    users[:, 0] |= np.uint64(63 << 58)
    random = np.random.default_rng(2)
    for first in range(0, len(users), 1_500):
        # 500 known users, and new ones.
        known = random.choice(first, 500, replace=False) if first else np.empty(0, np.int64)
        batch = np.concatenate([users[known], users[first : first + 1_500]])
        counted = table.admit(batch)
        assert counted.tolist() == [model.counts.get(u, 0) < limit for u in tuples(batch)]
        table.add(batch[counted])
        model.add(tuples(batch[counted]))
        assert nbytes(table) == empty + (18 if limit > 255 else 17) * len(table)
    assert len(table) == len(users)
    assert all_bytes(table) == all_bytes(model)


@settings(deadline=None)
@given(batches_of_users, st.randoms(use_true_random=False))
def test_equal_tables_have_equal_bytes_whatever_their_history(batches: list[list[User]], random: Any) -> None:
    sets = [sorted(set(batch) - {NOBODY}) for batch in batches]
    first, second = UserTable(8), UserTable(300)
    for users in sets:
        first.add(array(users))
    random.shuffle(sets)
    for users in sets:
        random.shuffle(users)
        for user in users:
            second.add(array([user]))
    assert all_bytes(first) == all_bytes(second)


@settings(deadline=None)
@given(batches_of_users, limits, limits, st.lists(awkward_users, max_size=20))
def test_a_loaded_table_decides_as_the_one_that_was_stored(
    batches: list[list[User]], limit: int, other_limit: int, following: list[User]
) -> None:
    table, model = UserTable(limit), Model(limit)
    for batch in batches:
        users = array(batch)[table.admit(array(batch))]
        table.add(users)
        model.add(tuples(users))
    copy = loaded(table, other_limit)
    assert all_bytes(copy) == all_bytes(table)
    assert len(copy) == len(table)
    model.limit = other_limit
    assert copy.admit(array(following)).tolist() == model.admit(following)


def test_a_count_above_255_survives_a_limit_that_was_lowered_and_raised_again() -> None:
    """A count cut to one byte would let the user exceed a limit raised again."""
    user = array([(7, 7)])
    table = UserTable(400)
    for _ in range(300):
        table.add(user)
    lowered = loaded(table, 10)
    assert not lowered.admit(user).any()
    raised = loaded(lowered, 301)
    raised.add(user)
    assert not raised.admit(user).any()


@pytest.mark.parametrize("limit", [1, 255, 256, 65_535])
def test_a_user_counts_in_exactly_as_many_batches_as_the_limit(limit: int) -> None:
    user = array([(1, 2)])
    model = Model(limit)
    if limit > 1:
        model.counts[1, 2] = limit - 1
    table = loaded(model, limit)
    assert table.admit(user).all()
    table.add(user)
    assert not table.admit(user).any()
    refuses("must be distinct", table.add, user)


@settings(deadline=None)
@given(batches_of_users, st.lists(awkward_users, max_size=20))
def test_admitting_changes_nothing(batches: list[list[User]], batch: list[User]) -> None:
    table = UserTable(2)
    for users in batches:
        table.add(array(users)[table.admit(array(users))])
    before = all_bytes(table)
    given_users = array(batch)
    first = table.admit(given_users)
    second = table.admit(given_users)
    assert first.tolist() == second.tolist()
    assert all_bytes(table) == before
    assert tuples(given_users) == batch


def test_a_view_that_is_not_contiguous_is_read_as_it_looks() -> None:
    users = distinct_users(3, 100)
    strided = np.asfortranarray(users)[::-3]
    assert not strided.flags.c_contiguous
    table = UserTable(1)
    table.add(strided[table.admit(strided)])
    assert not table.admit(users)[::-3].any()
    assert len(table) == len(strided)


def test_users_differ_if_one_bit_of_128_does() -> None:
    user = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210], np.uint64)
    users = [user]
    for word in (0, 1):
        for bit in range(64):
            other = user.copy()
            other[word] ^= np.uint64(1 << bit)
            users.append(other)
    table = UserTable(1)
    assert table.admit(np.array(users)).all()
    table.add(user[None])
    assert table.admit(np.array(users)).tolist() == [False] + [True] * 128


def test_a_hash_is_the_keyed_blake2b_of_the_message_key() -> None:
    keys = [b"a", None, b"user-17", b"", b"\0", b"x" * 1000]
    expected = [
        struct.unpack(">2Q", hashlib.blake2b(key, digest_size=16, key=SECRET).digest()) if key else NOBODY
        for key in keys
    ]
    users = hash_users(SECRET, keys)
    assert users.dtype == np.uint64
    assert tuples(users) == expected
    assert NOBODY not in (expected[0], *expected[4:])


def test_another_secret_gives_other_pseudonyms() -> None:
    assert not np.any(hash_users(SECRET, [b"a", b"b"]) == hash_users(SECRET[::-1], [b"a", b"b"]))


def test_a_digest_of_zeros_is_a_user_all_the_same() -> None:
    digests = bytes(32) + b"\0" * 15 + b"\2"
    users = _users_from_digests(digests, np.array([True, False, True]))
    assert tuples(users) == [(0, 1), (0, 0), (0, 2)]


def test_a_batch_without_messages_has_no_users() -> None:
    users = hash_users(SECRET, [])
    assert users.shape == (0, 2)
    assert UserTable(1).admit(users).shape == (0,)


@pytest.mark.parametrize("secret", [b"", SECRET[:-1], SECRET + b"!"])
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    refuses("key must be 32 secret bytes", hash_users, secret, [b"a"])


@pytest.mark.parametrize(
    "users",
    [
        pytest.param([(9, 9), NOBODY], id="nobody"),
        pytest.param([(9, 9), (8, 8), (9, 9)], id="twice"),
        pytest.param([(9, 9), (1, 1)], id="at the limit"),
    ],
)
def test_users_that_may_not_count_are_refused_and_nothing_changes(users: list[User]) -> None:
    table = UserTable(1)
    table.add(array([(1, 1), (1 << 63, 1)]))
    before = all_bytes(table)
    refuses("users to add must be distinct", table.add, array(users))
    assert all_bytes(table) == before
    assert len(table) == 2


@pytest.mark.parametrize(
    "users",
    [np.zeros((3, 2), np.int64), np.zeros((3, 2)), np.zeros(4, np.uint64), np.zeros((2, 3), np.uint64)],
)
def test_an_array_that_holds_no_hashes_is_refused(users: NDArray[Any]) -> None:
    table = UserTable(1)
    for method in (table.admit, table.add):
        refuses(r"users must be an \(m, 2\) array of uint64", method, users)


@pytest.mark.parametrize("limit", [0, -1, 65_536, 2.5, True, "3"])
def test_a_limit_that_no_count_can_reach_is_refused(limit: Any) -> None:
    refuses(r"limit \(contributions_per_user\) must be an integer", UserTable, limit)


def stored(shard: int, rows: Sequence[tuple[int, int, int]]) -> bytes:
    model = Model(1)
    model.counts = {(high, low): count for high, low, count in rows}
    return model.shard_bytes(shard)


def columns(*rows: tuple[int, int, int]) -> bytes:
    """Return a shard 0 whose users stay in the given order."""
    high, low, count = zip(*rows, strict=True)
    n = len(rows)
    return struct.pack(f"<4sBBHQ{n}Q{n}Q{n}H", b"SPUT", 1, 0, 0, n, *high, *low, *count)


GOOD = stored(0, [(1, 2, 3), (4, 5, 6)])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        *((b"", "ends inside its header"), (GOOD[:15], "ends inside its header")),
        *((GOOD[:-1], "wrong length"), (GOOD + b"\0", "wrong length")),
        (struct.pack("<4sBBHQ", b"SPUT", 1, 0, 0, LAST), "wrong length"),
        *((b"X" + GOOD[1:], "not in format 1"), (GOOD[:4] + b"\2" + GOOD[5:], "not in format 1")),
        (GOOD[:6] + b"\1" + GOOD[7:], "not in format 1"),
        (GOOD[:5] + b"\1" + GOOD[6:], "holds the bytes of shard 1"),
        (columns((1, 2, 3), (1 << 58, 5, 6)), "a user of another shard"),
        *((columns((0, 0, 1), (1, 1, 1)), "null hash"), (columns((4, 5, 6), (1, 2, 3)), "not sorted")),
        (columns((1, 5, 6), (1, 2, 3)), "not sorted"),
        (columns((1, 2, 3), (1, 2, 4)), "holds a user twice"),
        (columns((1, 2, 0)), "never counted"),
    ],
)
def test_bytes_that_no_shard_writes_are_refused_and_the_shard_stays(data: bytes, why: str) -> None:
    table = UserTable(3)
    table.load_shard(0, GOOD)
    refuses(why, table.load_shard, 0, data)
    assert table.shard_bytes(0) == GOOD


@settings(deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, LAST)), st.integers(1, 65_535)),
    st.integers(0, 2**16),
    st.binary(min_size=1, max_size=8),
)
def test_changed_bytes_are_refused_or_mean_what_they_say(counts: Any, at: int, patch: bytes) -> None:
    data = bytearray(stored(0, [(high, low, count) for (high, low), count in counts.items()]))
    at %= len(data)
    data[at : at + len(patch)] = patch
    table = UserTable(3)
    try:
        table.load_shard(0, bytes(data))
    except ValueError:
        assert len(table) == 0
    else:
        assert table.shard_bytes(0) == data
