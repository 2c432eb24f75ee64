"""Records that name their schema are read with it; nothing is guessed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from streaming_pca.data.codec import FORMATS, PayloadCodec
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import PublicSchema
from streaming_pca.data.features.schemas import named_in_ledger
from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import (
    AVRO_SCHEMA,
    FEATURES,
    GOOD,
    ROW,
    SCHEMAS,
    Message,
    as_protobuf,
    avro_record,
    in_avro,
)
from tests.data.features.registered import framed, schema_of
from tests.data.refusals import refuses

OLD = avro_record({"a": "double", "b": "double"})
SWAPPED = avro_record({"b": "double", "a": "double"})
RECURSIVE = {"type": "array", "items": "null"}
SHORT = avro_record({"b": "double"})


def reader(schemas: dict[int, PublicSchema], missing: float | None = None) -> PayloadCodec:
    features = [Feature(name="a", missing=missing), Feature(name="b")]
    fields = FieldReader(features, None, None, schemas)
    return PayloadCodec(2, content_type=FORMATS["avro"], fields=fields)


def row(codec: PayloadCodec, value: bytes) -> list[float] | None:
    found = codec.decode(Message(value))
    return None if found is None else found[0].tolist()


def test_each_record_is_read_by_the_schema_with_which_it_was_written() -> None:
    codec = reader({7: schema_of(OLD), 900_000: schema_of(SWAPPED)})
    old, new = in_avro(OLD, {"a": 1.0, "b": 2.0}), in_avro(SWAPPED, {"a": 1.0, "b": 2.0})
    assert row(codec, framed(7, old)) == row(codec, framed(900_000, new)) == [1, 2]
    # The two numbers in the other order have the same length: only the id distinguishes them.
    assert row(codec, framed(7, new)) == [2, 1]
    sent = [framed(7, old), framed(900_000, new), framed(8, old)]
    rows, lengths = codec.decode_all([Message(value) for value in sent])[:2]
    assert rows.tolist() == [[1, 2], [1, 2]]
    assert lengths.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (in_avro(OLD, {"a": 1.1, "b": 2.0}), "it does not name a schema"),
        (b"", "it does not name a schema"),
        (b"\0\0\0\0", "it does not name a schema"),
        (framed(8, in_avro(OLD, {"a": 1.0, "b": 2.0})), "has the id 8: it is not among the versions"),
        (framed(7, b"x"), "it ends within the record"),
    ],
    ids=["bare", "empty", "short", "unknown", "cut"],
)
def test_what_names_no_known_schema_is_null_and_the_reason_is_told(value: bytes, fault: str) -> None:
    codec = reader({7: schema_of(OLD)})
    assert row(codec, value) is None
    report = explain_payload(codec, Message(value))
    assert not report.is_record
    assert fault in str(report)


def test_a_version_that_cannot_be_read_makes_its_own_records_null_and_no_others() -> None:
    codec = reader({7: schema_of(OLD), 8: schema_of(RECURSIVE), 9: PublicSchema("avro", b"{")})
    good = in_avro(OLD, {"a": 1.0, "b": 2.0})
    assert row(codec, framed(7, good)) == [1, 2]
    assert row(codec, framed(8, good)) is row(codec, framed(9, good)) is None
    assert codec.fields is not None
    lines = codec.fields.faults_of_schemas
    assert [line.split(" cannot be read")[0] for line in lines] == ["schema 8", "schema 9"]
    refuses("no version of the schema can be read: schema 8: ", reader, {8: schema_of(RECURSIVE)})


def test_a_version_without_a_field_needs_a_stand_in() -> None:
    schemas = {7: schema_of(OLD), 8: schema_of(SHORT)}
    short = framed(8, in_avro(SHORT, {"b": 2.0}))
    codec = reader(schemas, missing=5)
    assert row(codec, short) == [5, 2]
    assert codec.fields is not None
    assert codec.fields.faults_of_schemas == []
    codec = reader(schemas)
    assert row(codec, short) is None
    assert codec.fields is not None
    assert codec.fields.faults_of_schemas == ["schema 8 has no value at 'a', so its records are null"]
    refuses("no value at 'a'", reader, {8: schema_of(SHORT)})


def test_protobuf_messages_behind_their_indexes() -> None:
    fields = FieldReader(FEATURES, None, None, {3: SCHEMAS["protobuf"]})
    codec = PayloadCodec(9, content_type=FORMATS["protobuf"], fields=fields)
    # One index selects the fourth message of the file; both numbers are in zigzag form.
    payload, indexes = as_protobuf(GOOD), b"\x02\x06"
    found = row(codec, framed(3, indexes + payload))
    np.testing.assert_allclose(found, ROW, atol=1e-12)  # type: ignore[arg-type]
    for value in (payload, framed(4, indexes + payload), framed(3, b"\0" + payload), framed(3, payload)):
        assert row(codec, value) is None


def test_a_copy_reads_the_same() -> None:
    fields = FieldReader(FEATURES, None, None, {3: schema_of(AVRO_SCHEMA)})
    copy = pickle.loads(pickle.dumps(fields))
    assert copy.schemas == fields.schemas
    value = framed(3, in_avro(AVRO_SCHEMA, GOOD | {"before": {}, "behind": None}))
    for each in (fields, copy):
        codec = PayloadCodec(9, content_type=FORMATS["avro"], fields=each)
        np.testing.assert_allclose(row(codec, value), ROW, atol=1e-12)  # type: ignore[arg-type]


def test_the_ledgers_name_of_schemas_is_theirs_alone() -> None:
    one, other = schema_of(OLD), schema_of(SWAPPED)
    names = [named_in_ledger(each) for each in ({1: one}, {2: one}, {1: other}, {1: one, 2: other}, {})]
    assert len({str(each) for each in names}) == 5
    assert named_in_ledger({2: other, 1: one}) == names[3]
    assert names[3]["ids"] == [1, 2]
