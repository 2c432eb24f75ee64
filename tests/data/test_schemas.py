"""JSON Schemas of messages accept the same as readers, and their files are current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

import streaming_pca
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import JSON
from streaming_pca.data.records import RecordKind
from streaming_pca.data.release import Release
from streaming_pca.data.schemas import payload_schema
from streaming_pca.privacy.ledger.entries import (
    LedgerEntry,
    MalformedEntry,
    Reserved,
    decode_entry,
    encode_entry,
)
from tests.data.test_codec import Message
from tests.data.test_release import accurate, of_a_tensor, plain
from tests.privacy.ledger.test_entries import RESERVED, entries
from tests.service.contract import MESSAGE_SCHEMAS, validator

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(streaming_pca.__file__).parent / "schemas"


def sub_schemas(node: Any) -> Any:
    """Yield a schema and all schemas nested in it."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from sub_schemas(value)
    elif isinstance(node, list):
        for item in node:
            yield from sub_schemas(item)


@pytest.mark.parametrize("name", MESSAGE_SCHEMAS)
def test_a_schema_says_what_it_is_and_what_each_field_means(name: str) -> None:
    schema = MESSAGE_SCHEMAS[name]()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:streaming-pca:schema:{name}"
    assert schema["title"]
    for model in (schema, *schema["$defs"].values()):
        assert model["description"].endswith("."), model.get("title")
        assert not set("`\n") & set(model["description"])
        for field, about in model.get("properties", {}).items():
            assert about.get("description", "").endswith("."), (model["title"], field)


@pytest.mark.parametrize("name", MESSAGE_SCHEMAS)
def test_the_files_in_the_package_and_in_the_docs_are_what_the_models_give(name: str) -> None:
    made = MESSAGE_SCHEMAS[name]()
    for folder in (HERE, ROOT / "docs" / "reference" / "schemas"):
        printed = f"streaming-pca config schema {name} > streaming_pca/schemas/{name}.json"
        assert json.loads((folder / f"{name}.json").read_text()) == made, f"write it anew: {printed}"


DIGEST = {"digest": "sha256:" + "0" * 64, "size": 2}
RELEASES: tuple[dict[str, Any], ...] = (
    plain(),
    plain(centering=[1.0, 2.0], scale=2.0, bounds=[-1.0, [1.0, 2.0]], feature_names=["a", "b"]),
    plain(centering=DIGEST, scale=DIGEST, bounds=[DIGEST, 1.0], doubts=["not-resolved"]),
    plain(version=7, colour="red"),
    plain(private=False, epsilon=None, delta=None, outcome="learnt", adjacency="none"),
    plain(kind="tensor", weights=[0.5]),
    plain(local=True, support=[0], privacy_unit="user", contributions_per_user=3),
    *(accurate(version=version) for version in (2, 3, 4, 5)),
    of_a_tensor(),
    accurate(version=5, doubts=["not-resolved"], outcome="learnt"),
    {key: value for key, value in plain(version=1).items() if key not in ("centering", "scale", "bounds")},
)


def is_release(value: dict[str, Any]) -> bool:
    try:
        Release.from_bytes(json.dumps(value).encode())
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("good", RELEASES, ids=lambda each: f"version {each['version']}")
def test_a_release_is_taken_by_its_schema_as_by_its_reader(good: dict[str, Any]) -> None:
    judge = validator("release")
    assert is_release(good)
    assert [error.message for error in judge.iter_errors(good)] == []
    refused = 0
    # A schema cannot express that sizes must agree.
    for name in sorted({*good, *RELEASES[1]} - {"dim", "rank"}):
        others = {"version": range(1, 8), "kind": ("tensor", "subspace")}
        for wrong in (None, "Not a word", -1, [[]], {}, *others.get(name, ())):
            value = good | {name: wrong}
            assert judge.is_valid(value) == is_release(value), (name, wrong)
            refused += not judge.is_valid(value)
        less = {key: item for key, item in good.items() if key != name}
        assert judge.is_valid(less) == is_release(less), name
    assert refused > 60


@settings(deadline=None, max_examples=60)
@given(entries)
def test_every_entry_is_taken_by_the_schema(entry: LedgerEntry) -> None:
    assert [error.message for error in validator("ledger").iter_errors(json.loads(encode_entry(entry)))] == []


def is_entry(value: dict[str, Any]) -> bool:
    try:
        decode_entry(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
    except MalformedEntry:
        return False
    return True


def test_a_ledger_entry_that_readers_do_not_know_is_refused_by_the_schema_too() -> None:
    judge = validator("ledger")
    of_users = {"promise": {"privacy_unit": "user"}, "version": 2}
    user = Reserved.model_validate(RESERVED.model_dump() | of_users)
    refused = 0
    for entry in (RESERVED, user):
        good = json.loads(encode_entry(entry))
        for name in (*good, "colour"):
            for wrong in (None, "word", -1, 1, 2, 3, 2**63, "1/3", [], {}, True):
                value = good | {name: wrong}
                if name in ("promise", "parameters") and isinstance(wrong, dict):
                    continue
                assert judge.is_valid(value) == is_entry(value), (name, wrong)
                refused += not judge.is_valid(value)
            less = {key: item for key, item in good.items() if key != name}
            assert judge.is_valid(less) == is_entry(less), name
    assert refused > 100


PAYLOADS = (
    *('{"x": [1, 2.5, -3e10]}', '{"rows": [[1, 2, 3]]}', '{"rows": [[1, 2, 3], [4, 5, 6]]}'),
    *('{"rows": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}', '{"x": [1, 2]}', '{"x": [1, 2, 3, 4]}'),
    *('{"x": [1, 2, null]}', '{"x": [1, 2, "3"]}', '{"x": [1, 2, true]}', '{"x": [1, 2, 1e400]}'),
    *('{"x": [1, 2, [3]]}', '{"x": [[1, 2, 3]]}', '{"x": []}', '{"rows": []}'),
    *('{"rows": [[1, 2, 3], []]}', '{"rows": [1, 2, 3]}', '{"rows": [[1, 2, 3], null]}'),
    *('{"rows": {"a": [1, 2, 3]}}', '{"x": [1, 2, 3], "more": 1}', '{"y": [1, 2, 3]}', "{}"),
    *("[1, 2, 3]", "1", "null"),
)


@pytest.mark.parametrize("text", PAYLOADS)
def test_a_payload_is_taken_by_its_schema_unless_it_is_null(text: str) -> None:
    message = Message(text.encode(), [("content-type", JSON.encode())])
    judge = Draft202012Validator(payload_schema(3, 2))
    assert judge.is_valid(json.loads(text)) == (PayloadCodec(3, max_rows=2).decode(message) is not None)
    # Without a stream, every size is valid.
    anything = PayloadCodec(3, max_rows=9).decode(message) is not None
    assert validator("payload").is_valid(json.loads(text)) >= anything


def test_a_matrix_has_as_many_rows_as_features() -> None:
    text = '{"rows": [[1, 2], [2, 1]]}'
    message = Message(text.encode(), [("content-type", JSON.encode())])
    assert PayloadCodec(2, RecordKind.MATRIX, max_rows=1).decode(message) is not None
    assert Draft202012Validator(payload_schema(2, 2)).is_valid(json.loads(text))
