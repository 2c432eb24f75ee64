"""A real registry's versions decode the records that Confluent's serializers write."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from streaming_pca.data.features.feature import Feature
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.schema_registry import SchemaRegistry
from tests.config.refusals import refusal
from tests.data.features.formats import in_avro, message_type
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.faults import FaultyServer, answer
from tests.service.registry.producers import Producer, id_of, record_type, row_of, settings_of

ONE = record_type("shop.Visit", a="double")
TWO = record_type("shop.Visit", a="double", b=["null", "double"])
TWO["fields"][1]["default"] = None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the requested paths."""
    asked: list[str] = []
    request = HTTPConnection.request

    def record(self: HTTPConnection, method: str, url: str, *arguments: Any, **more: Any) -> None:
        asked.append(url)
        request(self, method, url, *arguments, **more)

    monkeypatch.setattr(HTTPConnection, "request", record)
    return asked


def registry_of(producer: Producer, format_: Any = "avro", message: str | None = None) -> SchemaRegistry:
    return SchemaRegistry(settings_of(producer.url), producer.subject, format_, message)


def test_all_versions_of_avro_are_read_and_only_new_ones_in_full(
    producer: Producer, requests: list[str]
) -> None:
    first = producer.avro(ONE, {"a": 1.5})
    registry = registry_of(producer)
    requests.clear()
    known = registry.read({})
    assert list(known) == [id_of(first)]
    assert row_of(known[id_of(first)], first) == [1.5, 0]
    assert len(requests) == 2

    second = producer.avro(TWO, {"a": 2.5, "b": 3.5})
    requests.clear()
    both = registry.read(known)
    assert set(both) == {id_of(first), id_of(second)}
    assert both[id_of(first)] is known[id_of(first)]
    assert row_of(both[id_of(second)], second) == [2.5, 3.5]
    assert [path.partition("?")[0].rpartition("/")[2] for path in requests] == ["versions", "1", "2"]

    requests.clear()
    assert registry.read(both) == both
    assert len(requests) == 2


def test_softly_deleted_versions_are_read_too(producer: Producer) -> None:
    first, second = producer.avro(ONE, {"a": 1.0}), producer.avro(TWO, {"a": 2.0, "b": None})
    producer.client.delete_version(producer.subject, 1)
    found = registry_of(producer).read({})
    assert set(found) == {id_of(first), id_of(second)}
    assert row_of(found[id_of(first)], first) == [1, 0]


def test_a_version_that_comes_back_as_another_schema_is_read_again(producer: Producer) -> None:
    first, registry = producer.register(ONE), registry_of(producer)
    known = registry.read({})
    producer.client.delete_subject(producer.subject)
    assert registry.read(known) == known
    producer.client.delete_subject(producer.subject, permanent=True)
    with pytest.raises(StreamRefused, match="has no subject"):
        registry.read(known)
    other = producer.register(TWO)
    assert first != other
    # Earlier schemas stay known, because their records may still be on the topic.
    assert set(registry.read(known)) == {first, other}


@pytest.mark.parametrize("more", [False, True])
def test_a_number_that_is_given_again_between_two_reads_is_read_again(producer: Producer, more: bool) -> None:
    kept, registry = producer.register(ONE), registry_of(producer)
    gone = producer.register(TWO)
    known = registry.read({})
    assert set(known) == {kept, gone}
    producer.client.set_compatibility(producer.subject, "NONE")
    producer.client.delete_version(producer.subject, 2)
    producer.client.delete_version(producer.subject, 2, permanent=True)
    new = [producer.register(record_type("shop.Visit", a="double", c="string"))]
    # The deleted version's number, by the registry's own count.
    assert producer.client.get_latest_version(producer.subject).version in (2, 3)
    if more:
        new.append(producer.register(record_type("shop.Visit", a="double", d="string")))
    assert set(registry.read(known)) == {kept, gone, *new}


def test_numbers_that_are_given_again_are_asked_for_again() -> None:
    """All versions are requested, and known schemas stay known: their records may still be on the topic."""
    text = '"double"'
    given = {1: 11, 2: 12}

    def give(handler: Any) -> None:
        last = handler.path.partition("?")[0].rpartition("/")[2]
        answer(sorted(given) if last == "versions" else {"id": given[int(last)], "schema": text})(handler)

    with FaultyServer(give) as server:
        registry = SchemaRegistry(settings_of(server.url), "s", "avro")
        known = registry.read({})
        # First version 2 changes, and then both, with a third version after them.
        for changed, ids in (({1: 11, 2: 22}, {22}), ({1: 31, 2: 32, 3: 33}, {31, 32, 33})):
            given.clear()
            given.update(changed)
            known = registry.read(known)
            assert ids <= known.keys()
        assert set(known) == {11, 12, 22, 31, 32, 33}
        count = len(server.requests)
        assert registry.read(known) == known
        assert len(server.requests) == count + 2


def test_a_resumed_batch_reads_its_schemas_by_their_ids(producer: Producer, requests: list[str]) -> None:
    first, second = producer.register(ONE), producer.register(TWO)
    registry = registry_of(producer)
    found = registry.read_ids([second, first, first])
    assert found == registry_of(producer).read({})
    requests.clear()
    assert registry.read_ids([first]) == {first: found[first]}
    assert registry.read_ids([]) == {}
    assert not requests
    assert registry.read_ids([99999, second]) == {second: found[second]}
    # Known schemas are kept.
    known = registry_of(producer).read_ids([first])
    both = registry_of(producer).read(known)
    assert set(both) == {first, second}
    assert both[first] is known[first]


def test_a_subject_is_found_whatever_its_name(producer: Producer) -> None:
    subject = f"{producer.subject}/a b?%ü"
    id_ = producer.register(ONE, subject=subject)
    registry = SchemaRegistry(settings_of(producer.url + "/"), subject, "avro")
    assert list(registry.read({})) == [id_]


# -- refused schemas ----------------------------------------------------------------------------------


def test_an_unknown_subject_is_refused(apicurio: Apicurio) -> None:
    registry = SchemaRegistry(settings_of(apicurio.url), "nobody-value", "avro")
    remedy = "register a schema, or correct stream.subject"
    assert (
        refusal(StreamRefused, registry.read, {}) == f"the registry has no subject 'nobody-value': {remedy}"
    )


def test_another_type_of_schema_is_refused(producer: Producer) -> None:
    producer.register({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}, "JSON")
    is_json = f"version 1 of subject {producer.subject!r} is a schema of JSON Schema"
    line = refusal(StreamRefused, registry_of(producer).read, {})
    assert line == f'{is_json}, and stream.format is "avro": correct it, or stream.subject'


def test_an_address_without_the_api_is_refused(apicurio: Apicurio) -> None:
    for wrong in (apicurio.url.replace("ccompat", "other"), apicurio.url.partition("/apis")[0]):
        line = refusal(StreamRefused, SchemaRegistry(settings_of(wrong), "s", "avro").read, {})
        assert "does not answer as a schema registry: set the address" in line


# -- references ----------------------------------------------------------------------------------------


def test_avro_schemas_of_other_subjects_become_one(producer: Producer) -> None:
    """Names of other subjects, nested names and names without a namespace follow fastavro's reading."""
    place, unit = f"{producer.subject}-place", f"{producer.subject}-unit"
    producer.register({"type": "enum", "name": "Unit", "symbols": ["M", "KM"]}, subject=unit)
    inner = record_type("Point", x="double", y="double")
    seen = {"type": "array", "items": "Point"}
    address = record_type("geo.Place", at=inner, unit="Unit", other="Unit", seen=seen)
    producer.register(address, subject=place, references=[("Unit", unit)])
    root = record_type("shop.Visit", home="geo.Place", work="geo.Place", last="geo.Point", a="double")
    id_ = producer.register(root, references=[("geo.Place", place)])

    (schema,) = (found := registry_of(producer).read({})).values()
    assert list(found) == [id_]
    whole = json.loads(schema.data)
    assert [field["name"] for field in whole["fields"]] == ["home", "work", "last", "a"]
    assert whole["fields"][1]["type"] == "geo.Place"
    home = whole["fields"][0]["type"]
    assert [field["type"]["name"] for field in home["fields"][:2]] == ["geo.Point", "_.Unit"]
    point = {"x": 1.0, "y": 2.0}
    there = {"at": point, "unit": "KM", "other": "M", "seen": [point]}
    record = {"home": there, "work": there, "last": {"x": 7.0, "y": 8.0}, "a": 9.0}
    payload = b"\0" + id_.to_bytes(4, "big") + in_avro(whole, record)
    features = (
        Feature(name="y", path="home.at.y"),
        Feature(name="x", path="last.x"),
        Feature(name="unit", path="work.unit", categories=("KM",)),
    )
    assert row_of(schema, payload, features) == [2, 7, 1]


def a_file(name: str, package: str, *imports: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.extend(imports)
    return file


def test_protobuf_with_imports_is_read_as_its_serializer_registers_it(
    producer: Producer, unique_name: Callable[[str], str]
) -> None:
    stem = unique_name("f").replace("-", "")
    part = a_file(f"{stem}/part.proto", stem)
    message_type(part, "Part", [("b", 1)])
    whole = a_file(f"{stem}/whole.proto", stem, f"{stem}/part.proto", "google/protobuf/timestamp.proto")
    message_type(whole, "Visit", [("a", 1), ("part", f".{stem}.Part"), ("at", ".google.protobuf.Timestamp")])
    message_type(whole, "Other", [("a", 1)])
    pool = descriptor_pool.DescriptorPool()
    for file in (timestamp_pb2.DESCRIPTOR.serialized_pb, part.SerializeToString(), whole.SerializeToString()):
        pool.AddSerializedFile(file)
    types = (pool.FindMessageTypeByName(f"{stem}.{name}") for name in ("Visit", "Other"))
    visit, other = map(message_factory.GetMessageClass, types)
    message = visit(a=1.5)
    message.part.b = 2.5
    payload = producer.protobuf(message)
    another = producer.protobuf(other(a=4.5))
    features = Feature(name="a"), Feature(name="b", path="part.b")
    for named in (None, f"{stem}.Visit"):
        found = registry_of(producer, "protobuf", named).read({})
        schema = found[id_of(payload)]
        assert schema.message == named
        assert row_of(schema, payload, features) == [1.5, 2.5]
        assert row_of(schema, another, features) is None
    schema = registry_of(producer, "protobuf", f"{stem}.Other").read({})[id_of(another)]
    assert row_of(schema, another) == [4.5, 0]
    assert row_of(schema, payload) is None


def test_the_text_of_a_proto_file_is_refused_with_the_way_out(producer: Producer) -> None:
    producer.register('syntax = "proto3"; message Visit { double a = 1; }', "PROTOBUF")
    way_out = "set stream.schema_file to what `protoc --include_imports --descriptor_set_out` writes"
    assert refusal(StreamRefused, registry_of(producer, "protobuf").read, {}) == (
        f"version 1 of subject {producer.subject!r}: the registry has only the text of a .proto file, "
        f"which is not read here: {way_out}"
    )
