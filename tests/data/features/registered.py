"""Schemas and payloads as registered in a schema registry."""

from __future__ import annotations

import json
from typing import Any

from streaming_pca.data.features.records import PublicSchema


def schema_of(avro: Any) -> PublicSchema:
    return PublicSchema("avro", json.dumps(avro).encode())


def framed(number: int, payload: bytes) -> bytes:
    """Return a payload in Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + payload
