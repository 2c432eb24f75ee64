"""The AsyncAPI document is complete, matches the created topics, and accepts producers' messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from jsonschema import Draft7Validator, Draft202012Validator

import streaming_pca
from streaming_pca.client.encoding import ContentType, payload_encoder, payload_headers
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.schemas import payload_schema
from streaming_pca.data.validation import explain_payload
from streaming_pca.local import LocalGaussian, report_headers
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.topics.asyncapi import asyncapi_document, stream_payload_schema
from streaming_pca.service.topics.find import input_topic, written_topics
from tests.data.test_codec import Message
from tests.data.test_schemas import sub_schemas
from tests.service.contract import Contract

GOOD: dict[str, Any] = {"name": "s", "input": "in", "dim": 3, "rank": 1, "epsilon": 1.0, "delta": 1e-6}
STREAM = StreamSettings(**GOOD)
LOCAL = StreamSettings(**GOOD, record_kind="local", estimator="local-gaussian", centering="none")
KAFKA = KafkaSettings(bootstrap_servers="one:9092, two:9093")

# Fields of AsyncAPI 3.0 objects in the document; all but the document's own are optional there.
PARTS = {"servers", "channels", "operations", "components"}
FIELDS = {
    "document": PARTS | {"asyncapi", "id", "info", "defaultContentType"},
    "server": {"host", "protocol"},
    "channel": {"address", "description", "messages", "parameters", "bindings"},
    "operation": {"action", "channel", "summary"},
    "message": {"name", "title", "contentType", "headers", "payload", "bindings"},
}


def pointed(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        document = document[part]
    return document


NAMED = StreamSettings(
    **{**GOOD, "features": [{"name": "a.b", "size": 3}], "privacy_unit": "user", "user_field": "a.id"}
)


@pytest.mark.parametrize(
    "stream", [None, STREAM, LOCAL, NAMED], ids=["any stream", "vectors", "reports", "objects"]
)
def test_the_document_is_whole(stream: StreamSettings | None) -> None:
    document = asyncapi_document(stream, None if stream is None else KAFKA)
    assert document["asyncapi"] == "3.0.0"
    assert set(document) <= FIELDS["document"]
    of = document | document["components"]
    for kind in ("server", "channel", "operation", "message"):
        assert all(set(each) <= FIELDS[kind] for each in of.get(f"{kind}s", {}).values()), kind
    used = {node["$ref"] for node in sub_schemas(document) if isinstance(node.get("$ref"), str)}
    for reference in used:
        assert pointed(document, reference), reference
    # Every component is referred to.
    for part in ("messages", "schemas"):
        assert {f"#/components/{part}/{name}" for name in document["components"][part]} <= used
    for schema in document["components"]["schemas"].values():
        Draft7Validator.check_schema(schema)
        newer = {"prefixItems", "$defs", "discriminator"}
        assert not [node for node in sub_schemas(schema) if newer & set(node)]
    for channel in document["channels"].values():
        names = set(channel.get("parameters", {}))
        assert channel["address"].count("{") == len(names)
        assert names == ({"output"} if stream is not None and names else names)


def test_the_addresses_and_settings_are_those_of_the_topics() -> None:
    document = asyncapi_document(STREAM, KAFKA)
    assert {server["host"] for server in document["servers"].values()} == {"one:9092", "two:9093"}
    topics = [input_topic(STREAM, 3, 1), *written_topics(STREAM, 1)]
    made = dict(zip(("input", "ledger", "state", "releases"), topics, strict=True))
    # The topic of projections is an option of a command.
    assert list(document["channels"]) == [*made, "projections"]
    for role, topic in made.items():
        channel = document["channels"][role]
        assert channel["address"] == topic.name
        binding = channel["bindings"]["kafka"]
        assert binding.get("partitions", 3) == topic.num_partitions
        assert binding["topicConfiguration"]
        for key, value in binding["topicConfiguration"].items():
            assert topic.topic_configs[key] == (value[0] if isinstance(value, list) else str(value))
    generic = asyncapi_document()
    for role, topic in made.items():
        address = generic["channels"][role]["address"]
        assert address.format(input=STREAM.input, stream=STREAM.name) == topic.name


def test_a_secured_broker_is_named_as_such() -> None:
    kafka = KafkaSettings(security_protocol="SSL")
    assert asyncapi_document(STREAM, kafka)["servers"]["broker1"]["protocol"] == "kafka-secure"
    assert asyncapi_document(STREAM, KAFKA)["servers"]["broker1"]["protocol"] == "kafka"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("content_type", get_args(ContentType))
def test_what_producers_send_is_a_message_of_the_input(content_type: Any, dtype: str) -> None:
    contract = Contract(STREAM)
    for rows in (np.ones((1, 3)), np.ones((2, 3))):
        payload = payload_encoder(content_type, dtype)(rows)
        for described in ((), (dtype, "factor")):
            message = Message(payload, payload_headers(content_type, *described))  # type: ignore[arg-type]
            assert contract.problems("input", message) == []
        assert PayloadCodec(3, dtype=dtype).decode(message) is not None  # type: ignore[arg-type]


def test_a_report_is_a_message_of_its_stream_and_of_no_other() -> None:
    privatizer = LocalGaussian(1.0, 1e-6)
    report = Message(privatizer.privatize([0.1, 0.2, 0.3]).tobytes(), report_headers(1.0, 1e-6))
    assert Contract(LOCAL).problems("input", report) == []
    assert Contract().problems("input", report) == []
    assert Contract(STREAM).problems("input", report)
    vector = Message(np.ones(3, "<f4").tobytes(), [])
    assert Contract(STREAM).problems("input", vector) == []
    assert Contract(LOCAL).problems("input", vector)


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b'{"x": [1, 2]}', [("content-type", b"application/json")]),
        (b'{"x": [1, 2, 3]}', [("content-type", b"text/plain")]),
        (b"", [("record-kind", b"matrix")]),
        (b"", [("dtype", b"int8")]),
    ],
)
def test_what_would_be_null_is_no_message(value: bytes, headers: list[tuple[str, bytes]]) -> None:
    message = Message(value, headers)
    assert Contract(STREAM).problems("input", message)
    assert PayloadCodec(3).decode(message) is None


INPUT = [("input-partition", b"0"), ("input-offset", b"41")]
PROJECTED = [("release-batch", b"3"), ("privacy", b"as-input"), *INPUT]


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (b'{"x": [1.5]}', True),
        (b'{"x": null}', True),
        (b'{"rows": [[1.5], null]}', True),
        (b'{"rows": []}', True),
        (b'{"x": [1.5, 2.5]}', False),
        (b'{"x": [1.5], "rows": []}', False),
        (b"{}", False),
    ],
)
def test_a_projection_has_k_coordinates_a_row(value: bytes, good: bool) -> None:
    contract = Contract(STREAM)
    message = Message(value, [("content-type", b"application/json"), *PROJECTED])
    assert (contract.problems("projections", message) == []) == good
    octets = [("content-type", b"application/octet-stream"), ("dtype", b"float32"), *PROJECTED]
    assert contract.problems("projections", Message(b"", octets)) == []
    assert contract.problems("projections", Message(b"", octets[:-1]))
    assert "projections" not in Contract(LOCAL).document["channels"]


def test_a_stream_fixes_the_sizes_of_its_payloads() -> None:
    assert stream_payload_schema(STREAM) == payload_schema(3, 64)
    matrices = StreamSettings(**GOOD, record_kind="matrix", centering="none", estimator="block")
    assert stream_payload_schema(matrices) == payload_schema(3, 3)
    with pytest.raises(ConfigurationError, match="takes reports in octets, no JSON"):
        stream_payload_schema(LOCAL)


def test_the_file_in_the_package_is_what_the_models_give() -> None:
    file = Path(streaming_pca.__file__).parent / "schemas" / "asyncapi.json"
    linked = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas" / "asyncapi.json"
    text = "write it anew: streaming-pca config schema asyncapi > streaming_pca/schemas/asyncapi.json"
    assert json.loads(file.read_text()) == json.loads(linked.read_text()) == asyncapi_document(), text


def test_the_default_format_of_a_stream_needs_no_header() -> None:
    def needing(document: dict[str, Any]) -> set[str]:
        headers = {n: document["components"]["messages"][n]["headers"] for n in ("octets", "npy", "json")}
        return {n for n, described in headers.items() if "content-type" in described.get("required", ())}

    assert needing(asyncapi_document()) == {"npy", "json"}
    in_json = StreamSettings(**GOOD, format="json")
    assert needing(asyncapi_document(in_json, KAFKA)) == {"octets", "npy"}


FEATURES: list[dict[str, Any]] = [
    {"name": "user.age", "bounds": [0, 120], "missing": 40},
    {"name": "user.plan", "categories": ["free", "paid"]},
    {"name": "place", "size": 2},
    {"name": "items.0.price", "missing": 0},
    {"name": "seen", "parts": ["hour"]},
]
RECORD = {"user": {"age": 3, "plan": "free", "id": "u"}, "place": [1, 2], "seen": "2026-01-01", "more": 1}
NO_RECORDS = [
    {**RECORD, "place": [1]},
    {**RECORD, "seen": None},
    {**RECORD, "user": {"age": "x", "plan": "free", "id": "u"}},
    {**RECORD, "user": {"plan": "free"}},
    {key: value for key, value in RECORD.items() if key != "user"},
    [],
    5,
]


def test_objects_are_described_by_the_features() -> None:
    how = {name: value for name, value in GOOD.items() if name not in ("dim", "feature_names")}
    users = {"privacy_unit": "user", "user_field": "user.id"}
    stream = StreamSettings(**how | users, features=FEATURES)
    document = asyncapi_document(stream)
    Contract(stream)
    codec = build_codec(stream, bytes(32))
    validator = Draft202012Validator(stream_payload_schema(stream))
    for good in (RECORD, [RECORD, RECORD], {**RECORD, "items": [{"price": 1}]}):
        assert validator.is_valid(good)
        assert explain_payload(codec, Message(json.dumps(good).encode())).is_record
    for wrong in NO_RECORDS:
        assert not validator.is_valid(wrong), wrong
        assert not explain_payload(codec, Message(json.dumps(wrong).encode())).is_record, wrong
    key = document["components"]["messages"]["json"]["bindings"]["kafka"]["key"]
    assert "the field user.id names the user" in key["description"]
    assert "avro" not in document["components"]["messages"]
