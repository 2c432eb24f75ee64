"""AsyncAPI document of a stream's topics: addresses, keys, headers, payloads."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import NPY, OCTETS
from streaming_pca.data.features.records import ARROW, AVRO, JSON, PROTOBUF
from streaming_pca.data.records import RecordKind
from streaming_pca.data.schemas import ledger_schema, objects_schema, payload_schema, release_schema
from streaming_pca.local.headers import CONTRACT_HEADER, KIND_HEADER
from streaming_pca.service.topics.checks import required_configs

Schema = dict[str, Any]

_BINDING = "0.5.0"
_KAFKA_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""Topic settings that the binding includes."""

_PARAMETERS = {
    "input": {"description": "Input topic, stream.input of the settings."},
    "stream": {"description": "Name of the stream, stream.name of the settings."},
    "output": {"description": "Topic of projections, --output of streaming-pca project."},
}
_ROLES = {
    "input": ("{input}", "Records of producers, read by streams. Read committed. As secret as the records."),
    "ledger": (
        "{input}.ledger",
        "Privacy ledger, shared by all streams that read the input. Kept for ever, one partition.",
    ),
    "state": (
        "{stream}.state",
        "Internal: state of the stream, opaque, and as secret as the input. Only workers read it.",
    ),
    "releases": ("{stream}.releases", "Releases of the stream. Read committed. Kept for ever."),
    "projections": (
        "{output}",
        "Coordinates of each record, from streaming-pca project. As secret as the input.",
    ),
}
_RECORDS = ("octets", "npy", "json", "arrow")
_MESSAGES = {
    "input": (*_RECORDS, "report"),
    "ledger": ("entry",),
    "state": ("state",),
    "releases": ("release",),
    "projections": ("coordinates", "coordinates-json"),
}


def asyncapi_document(
    stream: StreamSettings | None = None, kafka: KafkaSettings | None = None
) -> dict[str, Any]:
    """Return a worker's AsyncAPI 3.0 document; addresses have parameters without a ``stream``."""
    kind = None if stream is None else stream.record_kind
    schemas = _components("release", release_schema()) | _components("entry", ledger_schema())
    names = dict(_MESSAGES)
    if kind is RecordKind.LOCAL:
        names["input"] = ("report",)
    else:
        schemas |= _components("json", stream_payload_schema(stream))
        names["input"] = _RECORDS if stream is not None else names["input"]
        if stream is not None and stream.format in ("avro", "protobuf"):
            names["input"] = (*_RECORDS, stream.format)
    if kind not in (None, RecordKind.FACTOR):
        # Only rows can be projected.
        del names["projections"]
    messages = _messages(stream)
    document: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "id": "urn:streaming-pca:asyncapi",
        "info": {
            "title": "streaming-pca" if stream is None else f"streaming-pca: {stream.name}",
            # Version of the newest format; it changes only with the formats.
            "version": "6",
            "description": "Topics of a stream, as its worker uses them. All transactional: read committed.",
        },
        "defaultContentType": JSON,
    }
    if kafka is not None:
        document["servers"] = _servers(kafka)
    return document | {
        "channels": {role: _channel(role, stream, messages) for role, messages in names.items()},
        "operations": _operations(names),
        "components": {
            "messages": {name: messages[name] for found in names.values() for name in found},
            "schemas": schemas,
        },
    }


def stream_payload_schema(stream: StreamSettings | None) -> Schema:
    """Return a JSON payload's schema, for any stream or one; raise ConfigurationError without JSON."""
    if stream is None:
        return payload_schema()
    if stream.record_kind is RecordKind.LOCAL:
        raise ConfigurationError(f'{stream.name}: record_kind = "local" takes reports in octets, no JSON')
    if stream.features is not None:
        return objects_schema(stream.features, stream.max_rows, stream.user_field)
    matrix = stream.record_kind is RecordKind.MATRIX
    return payload_schema(stream.dim, stream.dim if matrix else stream.max_rows)


def _servers(kafka: KafkaSettings) -> dict[str, Any]:
    secure = kafka.security_protocol != "PLAINTEXT"
    hosts = (host.strip() for host in kafka.bootstrap_servers.split(","))
    return {
        f"broker{number}": {"host": host, "protocol": "kafka-secure" if secure else "kafka"}
        for number, host in enumerate(hosts, 1)
    }


def _channel(role: str, stream: StreamSettings | None, messages: Iterable[str]) -> dict[str, Any]:
    address, description = _ROLES[role]
    binding: dict[str, Any] = {"bindingVersion": _BINDING}
    if role != "projections":
        kept = {key: value for key, value in required_configs(role).items() if key in _KAFKA_KEYS}
        binding["topicConfiguration"] = {
            key: [value] if key == "cleanup.policy" else int(value) for key, value in kept.items()
        }
    if role in ("ledger", "state", "releases"):
        binding["partitions"] = 1
    channel: dict[str, Any] = {
        "address": address,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"kafka": binding},
    }
    name = address[1:].partition("}")[0]
    if stream is None or name == "output":
        return channel | {"parameters": {name: _PARAMETERS[name]}}
    return channel | {"address": address.format(input=stream.input, stream=stream.name)}


def _operations(roles: Container[str]) -> dict[str, Any]:
    operations = {
        "readRecords": ("receive", "input", "Read records in batches."),
        "readLedger": ("receive", "ledger", "Replay the ledger before every reservation."),
        "writeLedger": ("send", "ledger", "Charge each batch before it is read, then commit and release it."),
        "readState": ("receive", "state", "Recover the state when a worker begins to lead."),
        "writeState": ("send", "state", "Commit the state, with the ledger's entry, in one transaction."),
        "publish": ("send", "releases", "Publish a release, with the ledger's entry, in one transaction."),
        "project": ("send", "projections", "Project each record exactly once, in a separate worker."),
    }
    return {
        name: {"action": action, "channel": {"$ref": f"#/channels/{role}"}, "summary": summary}
        for name, (action, role, summary) in operations.items()
        if role in roles
    }


def _messages(stream: StreamSettings | None) -> dict[str, Any]:
    user = _key("User, with privacy_unit = user; else without meaning.")
    if stream is not None and stream.user_field is not None:
        user = _key(f"Without meaning: the field {'.'.join(stream.user_field)} names the user.")
    elif stream is not None and stream.privacy_unit == "user":
        user = {"type": "string", "description": "User. A record without a key is null."}
    dtype = {"type": "string", "enum": ["float32", "float64"], "description": "Type of the numbers."}
    kind = {
        "type": "string",
        "enum": [each.value for each in RecordKind if each is not RecordKind.LOCAL]
        if stream is None
        else [stream.record_kind.value],
        "description": "Kind of the record; the record is null if the stream has another.",
    }
    report = {
        "content-type": _const(OCTETS),
        KIND_HEADER: _const(RecordKind.LOCAL.value),
        CONTRACT_HEADER: {
            "type": "string",
            "description": "EPSILON,DELTA of the report, as Python writes numbers: 1.0,1e-06.",
        },
    }
    chunk = {
        "batch": _digits("Number of the batch."),
        "chunks": _digits("Number of chunks of the state; not in parts of the table of users."),
        "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "Salted SHA-256."},
    }
    projected = {
        "release-batch": _digits("Batch of the release that projects."),
        "release-doubts": {"type": "string", "description": "Doubts about that release, comma-separated."},
        "privacy": _const("as-input") | {"description": "Only as private as the record."},
        "input-partition": _digits("Partition of the record."),
        "input-offset": _digits("Offset of the record."),
    }

    def record(name: str, title: str, content_type: str, payload: Schema, **more: Schema) -> dict[str, Any]:
        headers = {"content-type": _const(content_type), KIND_HEADER: kind, **more}
        default = OCTETS if stream is None else stream.content_type
        needed = [] if content_type == default else ["content-type"]
        return _message(name, title, content_type, payload, user, headers, needed)

    def coordinates(name: str, content_type: str, payload: Schema, **more: Schema) -> dict[str, Any]:
        headers = {"content-type": _const(content_type), **more, **projected}
        needed = [each for each in headers if each != "release-doubts"]
        key = _key("Key of the record; none where it is longer than 32 KiB.")
        return _message(name, "Projection of a record", content_type, payload, key, headers, needed)

    rows = _octets("d numbers, or r x d, little-endian.")
    tables = _octets("Uncompressed Arrow IPC stream of d numeric columns, or one of lists.")
    triangle = _octets("d(d + 1)/2 float32: the upper triangle, row by row.")
    projections = _octets("r x k numbers, little-endian; none for a null record.")
    chunk_key = _key("Number of the chunk, after NAME. for a part of the users' table.")
    stream_key, job_key = _key("Name of the stream."), _key("Job of the entry; none for OPENED.")
    json_header = {"content-type": _const(JSON)}
    messages = (
        record("octets", "Record as octets", OCTETS, rows, dtype=dtype),
        record("npy", "Record as npy", NPY, _octets("Array (d) or (r, d).")),
        record("json", "Record as JSON", JSON, _schema("json")),
        record("arrow", "Record as Arrow", ARROW, tables),
        record("avro", "Record in Avro", AVRO, _octets("One record of the schema.")),
        record("protobuf", "Record in Protobuf", PROTOBUF, _octets("One message of the schema.")),
        _message(
            "report", "Report of the local model", OCTETS, triangle, _key("Not used."), report, list(report)
        ),
        _message("entry", "Ledger entry", JSON, _schema("entry"), job_key),
        _message("state", "Chunk of the state", OCTETS, _octets(), chunk_key, chunk, ["batch"]),
        _message("release", "Release", JSON, _schema("release"), stream_key, json_header, list(json_header)),
        coordinates("coordinates", OCTETS, projections, dtype=dtype),
        coordinates("coordinates-json", JSON, _coordinates_schema(stream)),
    )
    return {message["name"]: message for message in messages}


def _octets(description: str | None = None) -> Schema:
    octets: Schema = {"type": "string", "format": "binary"}
    return octets if description is None else octets | {"description": description}


def _schema(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _coordinates_schema(stream: StreamSettings | None) -> Schema:
    row: Schema = {"type": ["array", "null"], "items": {"type": "number"}}
    if stream is not None:
        row |= {"minItems": stream.rank, "maxItems": stream.rank}
    rows = {"type": "array", "items": row, "description": "Of r rows; none for a null record."}
    return {
        "type": "object",
        "description": "k coordinates of one row, or of each of r rows; a null row is null.",
        "properties": {"x": row, "rows": rows},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }


def _message(
    name: str,
    title: str,
    content_type: str,
    payload: Schema,
    key: Schema,
    headers: Schema | None = None,
    needed: list[str] | None = None,
) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "title": title, "contentType": content_type, "payload": payload}
    if headers is not None:
        # Kafka's header values are octets; these contain ASCII text. Unknown headers are ignored.
        made["headers"] = {"type": "object", "properties": headers, "required": needed or []}
    return made | {"bindings": {"kafka": {"key": key, "bindingVersion": _BINDING}}}


def _key(description: str) -> Schema:
    return {"type": ["string", "null"], "description": description}


def _const(value: str) -> Schema:
    return {"type": "string", "const": value}


def _digits(description: str) -> Schema:
    return {"type": "string", "pattern": "^[0-9]+$", "description": description}


def _components(name: str, schema: Schema) -> Schema:
    """Return a schema and its definitions as AsyncAPI components, in JSON Schema draft 7."""
    parts = {f"{name}.{key}": value for key, value in schema.pop("$defs").items()}
    outer = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return {key: _as_draft_7(value, name) for key, value in {name: outer, **parts}.items()}


def _as_draft_7(node: Any, name: str) -> Any:
    if isinstance(node, list):
        return [_as_draft_7(item, name) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        # Draft 7 ignores all other keys next to a reference.
        return {"$ref": node["$ref"].replace("#/$defs/", f"#/components/schemas/{name}.")}
    words = {"prefixItems": "items"}
    return {
        words.get(key, key): _as_draft_7(value, name) for key, value in node.items() if key != "discriminator"
    }
