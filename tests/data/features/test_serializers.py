"""Records in Confluent's wire format, as its serializers write them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import AVRO_SCHEMA, GOOD, ROW, Message, Visit, as_protobuf, codec_of

CONTEXT = SerializationContext("visits", MessageField.VALUE)


@pytest.fixture
def registry() -> Any:
    return SchemaRegistryClient.new_client({"url": "mock://registry"})


def test_avro(registry: Any) -> None:
    serialize = AvroSerializer(registry, json.dumps(AVRO_SCHEMA))
    check("avro", serialize(GOOD | {"before": {}, "behind": None}, CONTEXT))


def test_json_schema(registry: Any) -> None:
    schema = {"title": "Visit", "type": "object", "properties": {"spent": {"type": "number"}}}
    check("json", JSONSerializer(json.dumps(schema), registry)(GOOD, CONTEXT))


def test_protobuf(registry: Any) -> None:
    serialize = ProtobufSerializer(Visit, registry, {"use.deprecated.format": False})
    check("protobuf", serialize(Visit.FromString(as_protobuf(GOOD)), CONTEXT))


def check(format_: Any, value: bytes) -> None:
    assert value[:1] == b"\0"
    reader = codec_of(format_)
    np.testing.assert_allclose(reader.decode(Message(value)), [ROW], atol=1e-12)  # type: ignore[arg-type]
    assert explain_payload(reader, Message(value)).is_record
