"""Producers of a registry's schemas and records: Confluent's serializers, and plain requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import AVRO, PROTOBUF, PublicSchema
from tests.service.registry.apicurio import Apicurio

ANY = Feature(name="a", missing=0), Feature(name="b", missing=0)


def record_type(name: str, **fields: Any) -> dict[str, Any]:
    """Return an Avro record type of fields."""
    return {"type": "record", "name": name, "fields": [{"name": f, "type": t} for f, t in fields.items()]}


class Producer:
    """Client of the registry that registers and serializes, for one subject."""

    def __init__(self, apicurio: Apicurio, topic: str) -> None:
        self.url = apicurio.url
        self.client = SchemaRegistryClient({"url": self.url})
        self.subject = f"{topic}-value"
        self._context = SerializationContext(topic, MessageField.VALUE)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.__exit__(None, None, None)

    def avro(self, schema: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
        """Return a payload, and register its schema."""
        serialize = AvroSerializer(self.client, json.dumps(schema))
        return bytes(serialize(record, self._context))

    def protobuf(self, message: Any) -> bytes:
        """Return a payload, and register its file and imported files."""
        serialize = ProtobufSerializer(type(message), self.client, {"use.deprecated.format": False})
        return bytes(serialize(message, self._context))

    def register(
        self,
        text: str | Mapping[str, Any] | Any,
        type_: str = "AVRO",
        subject: str | None = None,
        references: Sequence[tuple[str, str]] = (),
    ) -> int:
        """Register a schema, or a Protobuf file's descriptor; return its id."""
        if isinstance(text, Mapping):
            text = json.dumps(text)
        elif isinstance(text, descriptor_pb2.FileDescriptorProto):
            text = base64.b64encode(text.SerializeToString()).decode()
        needs = [SchemaReference(name, of, 1) for name, of in references]
        return int(self.client.register_schema(subject or self.subject, Schema(text, type_, needs)))


def settings_of(url: str, **more: Any) -> RegistrySettings:
    return RegistrySettings(url=url, **{"timeout_seconds": 5} | more)


def id_of(payload: bytes) -> int:
    """Return the id in a payload of Confluent's format."""
    assert payload[0] == 0
    return int.from_bytes(payload[1:5], "big")


def row_of(schema: PublicSchema, payload: bytes, features: Sequence[Feature] = ANY) -> list[float] | None:
    """Return the row that a stream reads from a payload; None for a null record."""
    reader = FieldReader(features, None, schema)
    type_ = AVRO if schema.format == "avro" else PROTOBUF
    records = reader.records(type_, payload, 1)
    if records == [None]:
        return None
    return [float(number) for number in np.ravel(reader.rows(records, type_))]
