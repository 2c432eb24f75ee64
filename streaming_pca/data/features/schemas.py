"""Reader of records that name their schema: each is read by the version that wrote it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from streaming_pca.data.features.avro.records import AvroRecords
from streaming_pca.data.features.protobuf_records import ProtobufRecords
from streaming_pca.data.features.records import REGISTERED_BYTES, Path, PublicSchema, Schemas, path_tree
from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.text import first_line

_SHOWN = 3  # schemas whose faults a message names


def named_in_ledger(schemas: Schemas) -> dict[str, Any]:
    """Return how a reservation names schemas: their ids, and a digest of all of them.

    Both are public. A batch that is finished later is decoded by exactly these.
    """
    ids = sorted(schemas)
    digests = "".join(f"{number}:{schemas[number].digest}\n" for number in ids)
    return {"ids": ids, "sha256": hashlib.sha256(digests.encode()).hexdigest()}


SchemaRecords = AvroRecords | ProtobufRecords
"""Reader of payloads by one schema: ``decode`` returns a record, or raises an error of any kind; ``getters``
are functions of it to the value at each place, None where absent or null, which raise nothing."""


def schema_reader(schema: PublicSchema, places: Sequence[Path]) -> SchemaRecords:
    """Return the reader of a schema's records; ValueError in one line, or LibraryMissing."""
    if schema.format == "avro":
        return AvroRecords(schema.data, places)
    return ProtobufRecords(schema.data, schema.message, places)


class RegisteredRecords:
    """Decoder of records in Confluent's wire format, by all versions of a schema.

    An id is looked up among the given ones only: a request because of a record would reveal it. Payloads
    without an id, or with another one, are null records. Nothing about a record is guessed.

    ``absent`` has the places without a value in any version, ``lacking`` those in a version that lacks some,
    by id; ``unreadable`` why the records of a version are null, by id.

    Raises ValueError with one line if no version can be read, and LibraryMissing.
    """

    def __init__(self, schemas: Schemas, places: Sequence[Path]) -> None:
        self._decoders: dict[bytes, Callable[[bytes], list[Any]]] = {}
        self.unreadable: dict[int, str] = {}
        self.lacking: dict[int, tuple[Path, ...]] = {}
        absent = set(places)
        for number, schema in sorted(schemas.items()):
            try:
                records = schema_reader(schema, places)
            except ValueError as error:
                self.unreadable[number] = first_line(error)
                continue
            self._decoders[number.to_bytes(REGISTERED_BYTES, "big")] = records.decode_registered
            if records.absent:
                self.lacking[number] = records.absent
            absent &= set(records.absent)
        if not self._decoders:
            faults = [f"schema {number}: {fault}" for number, fault in self.unreadable.items()]
            if len(faults) > _SHOWN:
                faults[_SHOWN:] = [f"and {len(faults) - _SHOWN} more"]
            raise ValueError(
                f"no version of the schema can be read: {'; '.join(faults) or 'it has no versions'}"
            )
        self.absent = tuple(place for place in places if place in absent)
        # All readers have the same slots, since these follow from the places alone.
        _, slots = path_tree(places)
        self.getters: list[Callable[[Any], Any]] = [itemgetter(slot) for slot in slots]

    def decode(self, value: bytes) -> list[Any]:
        # A zero and the id are the id in five bytes.
        decode = self._decoders.get(value[:REGISTERED_BYTES])
        if decode is None:
            raise MalformedPayload(self._fault(value))
        return decode(value)

    def _fault(self, value: bytes) -> str:
        if value[:1] != b"\0" or len(value) < REGISTERED_BYTES:
            return "it does not name a schema: it is not in the wire format of a registry"
        number = int.from_bytes(value[:REGISTERED_BYTES], "big")
        fault = self.unreadable.get(number, "it is not among the versions that the registry listed")
        return f"its schema has the id {number}: {fault}"
