from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Cap,
    Charged,
    Committed,
    LedgerEntry,
    MalformedEntry,
    OffsetPosition,
    OffsetRange,
    OffsetSpan,
    Opened,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
    Started,
    decode_entry,
    encode_entry,
    entry_hash,
)
from streaming_pca.privacy.parameters import Charge
from tests.data.refusals import refuses

texts = st.text(st.characters(codec="utf-8"), max_size=8)
rationals = st.one_of(st.fractions(min_value=0, max_value=100), st.just("inf"), st.just("1e-6"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
free_form = st.dictionaries(texts, values, max_size=3)
units = st.sampled_from([{}, {"privacy_unit": "message"}, {"privacy_unit": "user"}])
of_job: dict[str, Any] = {"topic_id": texts, "job": texts, "previous": texts}
common = of_job | {"batch": st.integers(1, 10**12)}
charges = st.builds(Charge, epsilon=rationals, delta=rationals, rho=st.none() | rationals)
offsets = st.integers(0, 2**63 - 1)
partitions = st.integers(0, 2**31 - 1)
entries = st.one_of(
    st.builds(
        Opened,
        topic_id=texts,
        topic=texts,
        cap=st.builds(Cap, epsilon=rationals, delta=rationals),
        filter=st.sampled_from(["basic", "zcdp"]),
    ),
    st.builds(
        Reserved,
        **common,
        ranges=st.lists(
            st.builds(OffsetRange, partition=partitions, start=offsets, end=offsets, count=offsets),
            max_size=3,
        ),
        promise=st.builds(lambda *parts: parts[0] | parts[1], free_form, units),
        parameters=free_form,
        charge=charges,
    ),
    st.builds(Committed, **common, state_digest=texts),
    st.builds(Abandoned, **common, reason=texts),
    st.builds(Released, **common, release_digest=texts),
    *(st.builds(kind, **of_job, reason=texts) for kind in (Paused, Resumed, Retired)),
    st.builds(
        Started,
        **of_job,
        positions=st.lists(st.builds(OffsetPosition, partition=partitions, offset=offsets), max_size=3),
    ),
    st.builds(
        Charged,
        **of_job,
        ranges=st.lists(st.builds(OffsetSpan, partition=partitions, start=offsets, end=offsets), max_size=3),
        charge=charges,
        reason=texts,
    ),
)

RESERVED = Reserved(
    topic_id="T",
    job="a",
    batch=1,
    previous="",
    ranges=(OffsetRange(partition=0, start=3, end=8, count=4),),
    promise={"epsilon": 1.0},
    parameters={"rank": 2, "clip": 0.1},
    charge=Charge(epsilon="0.1", delta="1e-6"),
)


def edited(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode_entry(RESERVED)) | changes).encode()


@settings(deadline=None)
@given(entries)
def test_an_entry_comes_back_as_it_was_written(entry: LedgerEntry) -> None:
    back = decode_entry(encode_entry(entry))
    assert back == entry
    assert type(back) is type(entry)
    assert encode_entry(back) == encode_entry(entry)
    assert entry_hash(back) == entry_hash(entry)


@settings(deadline=None)
@given(entries)
def test_the_bytes_are_sorted_and_without_spaces(entry: LedgerEntry) -> None:
    data = encode_entry(entry)
    plain = json.loads(data)
    assert data == json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


@settings(deadline=None)
@given(entries, entries)
def test_entries_have_equal_hashes_only_if_they_are_equal(one: LedgerEntry, other: LedgerEntry) -> None:
    assert (entry_hash(one) == entry_hash(other)) == (encode_entry(one) == encode_entry(other))


def test_the_bytes_of_version_1_never_change() -> None:
    expected = (
        b'{"batch":1,"charge":{"delta":"1/1000000","epsilon":"1/10","rho":null},"job":"a","kind":"RESERVED",'
        b'"parameters":{"clip":0.1,"rank":2},"previous":"","promise":{"epsilon":1.0},'
        b'"ranges":[{"count":4,"end":8,"partition":0,"start":3}],"topic_id":"T","version":1}'
    )
    assert encode_entry(RESERVED) == expected
    assert entry_hash(RESERVED) == hashlib.sha256(expected).hexdigest()


CHARGED = Charged(
    topic_id="T",
    job="a",
    previous="",
    ranges=(OffsetSpan(partition=0, start=3, end=8),),
    charge=Charge(epsilon="0.1", delta="1e-6"),
    reason="a histogram",
)


COMMON: dict[str, Any] = {"topic_id": "T", "job": "a", "previous": ""}
BYTES: dict[str, tuple[LedgerEntry, bytes]] = {
    kind.__name__.upper(): (
        kind(**COMMON, reason="why"),
        b'{"job":"a","kind":"%s","previous":"","reason":"why","topic_id":"T","version":1}' % name,
    )
    for kind, name in ((Paused, b"PAUSED"), (Resumed, b"RESUMED"), (Retired, b"RETIRED"))
}
BYTES["CHARGED"] = (
    CHARGED,
    b'{"charge":{"delta":"1/1000000","epsilon":"1/10","rho":null},"job":"a","kind":"CHARGED",'
    b'"previous":"","ranges":[{"end":8,"partition":0,"start":3}],"reason":"a histogram",'
    b'"topic_id":"T","version":1}',
)
BYTES["STARTED"] = (
    Started(**COMMON, positions=(OffsetPosition(partition=0, offset=7),)),
    b'{"job":"a","kind":"STARTED","positions":[{"offset":7,"partition":0}],"previous":"",'
    b'"topic_id":"T","version":1}',
)


@pytest.mark.parametrize(("entry", "expected"), BYTES.values(), ids=BYTES)
def test_the_bytes_of_the_entries_without_a_batch_never_change(entry: LedgerEntry, expected: bytes) -> None:
    assert encode_entry(entry) == expected
    assert decode_entry(expected) == entry


SPAN = {"partition": 0, "start": 3, "end": 8, "count": 5}


@pytest.mark.parametrize("change", [{"batch": 1}, {"ranges": [SPAN]}, {"kind": "PAUSED"}, {"promise": {}}])
def test_a_charge_has_neither_batch_nor_count(change: dict[str, Any]) -> None:
    plain = json.loads(encode_entry(CHARGED)) | change
    with pytest.raises(MalformedEntry, match="Extra inputs"):
        decode_entry(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def test_a_reservation_of_users_is_version_2_so_that_an_older_program_refuses_it() -> None:
    fields = {name: getattr(RESERVED, name) for name in Reserved.model_fields if name != "version"}
    written = Reserved(**fields | {"promise": {"privacy_unit": "user"}})
    assert written.version == 2
    assert encode_entry(written) == encode_entry(RESERVED).replace(
        b'"promise":{"epsilon":1.0}', b'"promise":{"privacy_unit":"user"}'
    ).replace(b'"version":1', b'"version":2')
    assert decode_entry(encode_entry(written)) == written


def test_the_order_of_settings_does_not_change_the_hash() -> None:
    turned = RESERVED.model_copy(update={"parameters": {"clip": 0.1, "rank": 2}})
    assert encode_entry(turned) == encode_entry(RESERVED)


COUNTED = {"partition": 0, "start": 0, "end": 2, "count": 1}
OUT_OF_RANGE = (("end", 2**63), ("partition", 2**31), ("start", -1))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"[]", b"not json", b"\xff\xfe", b"{}", b"[" * 10_000),
        edited(kind="CHARGED"),
        *(edited(version=version) for version in (2, 3)),
        *(edited(version=1 + i, promise={"privacy_unit": unit}) for i, unit in enumerate(("user", "row"))),
        *(edited(batch=batch) for batch in (0, 2**63)),
        *(edited(ranges=[COUNTED | {key: n}]) for key, n in OUT_OF_RANGE),
        edited(surprise=1),
        *(edited(charge={"epsilon": epsilon, "delta": "0"}) for epsilon in ("-1", "1/0", "nan")),
        edited(charge={"epsilon": "1", "delta": "0", "note": "free"}),
        edited(charge={"epsilon": "1"}),
        edited(state_digest="of another kind"),
        encode_entry(RESERVED).replace(b'"previous":"",', b""),
        encode_entry(RESERVED)[:-1],
    ],
)
def test_what_no_version_has_written_is_refused(data: bytes) -> None:
    refuses("not a ledger entry", decode_entry, data, error=MalformedEntry)


def test_an_entry_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RESERVED.batch = 2  # type: ignore[misc]


def test_an_infinite_charge_is_written_as_inf() -> None:
    data = encode_entry(RESERVED.model_copy(update={"charge": Charge.unbounded()}))
    assert b'"charge":{"delta":"inf","epsilon":"inf","rho":"inf"}' in data
    assert decode_entry(data).charge == Charge.unbounded()  # type: ignore[union-attr]


def test_a_batch_counts_records_not_offsets() -> None:
    assert RESERVED.count == 4
