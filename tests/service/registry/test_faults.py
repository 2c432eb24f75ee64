"""Hostile answers end within bounds in one line, and secrets reach no other host."""

from __future__ import annotations

import gzip
import json
import resource
import time
from typing import Any

import pytest

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import PublicSchema
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.schema_registry import SchemaRegistry
from tests.config.refusals import refusal
from tests.security.needles import secret
from tests.service.registry.faults import Answer, FaultyServer, answer, endless, raw
from tests.service.registry.producers import record_type, settings_of
from tests.waiting import LIMIT

PASSWORD = secret("swordfish-7")
MIB = 2**20
HEAD = b"HTTP/1.1 200 OK\r\n"
SCHEMA = {"id": 7, "schema": '"double"'}


def failure_of(server: FaultyServer, kind: type[Exception], **more: Any) -> str:
    settings = settings_of(server.url, username="me", password=PASSWORD, **more)
    text = refusal(kind, SchemaRegistry(settings, "s", "avro").read, {})
    assert text.isprintable()
    assert PASSWORD not in text
    return text


NO_REGISTRY = "does not answer as a schema registry"
REFUSED: dict[str, tuple[Answer, str]] = {
    "not JSON": (answer(b"<html>login</html>"), NO_REGISTRY),
    "not UTF-8": (answer(b'["\xff"]'), NO_REGISTRY),
    "deep JSON": (answer(b"[" * (MIB - 1)), NO_REGISTRY),
    "not a list": (answer({"versions": [1]}), NO_REGISTRY),
    "no numbers": (answer([1, "two"]), NO_REGISTRY),
    "not positive": (answer([0]), NO_REGISTRY),
    "true": (answer([True]), NO_REGISTRY),
    "many lists": (answer(b"[" + b"[]," * (MIB // 4) + b"[]]"), NO_REGISTRY),
    "digits": (answer(b"[" + b"9" * 10_000 + b"]"), NO_REGISTRY),
    "empty": (answer(b""), NO_REGISTRY),
    "compressed": (
        answer(gzip.compress(b" " * 64 * MIB), headers=[("Content-Encoding", "gzip")]),
        NO_REGISTRY,
    ),
    "another 404": (answer(b"not found", 404), NO_REGISTRY),
    "teapot": (answer(b"", 418), "(HTTP 418)"),
    "not HTTP": (raw(b"SSH-2.0-x\r\n"), "does not answer in HTTP"),
    "long header": (raw(HEAD, b"x: " + b"y" * MIB), "does not answer in HTTP"),
    "many headers": (raw(HEAD, b"x: y\r\n" * 200, b"\r\n"), "does not answer in HTTP"),
    "many versions": (answer(list(range(1, 5000))), "has 4999 versions, of 1000 at most"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_no_registry_gives_is_refused(name: str) -> None:
    give, words = REFUSED[name]
    with FaultyServer(give) as server:
        assert words in failure_of(server, StreamRefused)


AWAY: dict[str, tuple[Answer, str]] = {
    **{f"{status}": (answer(b"secret page", status), f"(HTTP {status})") for status in (429, 500, 503)},
    "cut body": (raw(HEAD, b"Content-Length: 100\r\n\r\n[1"), "connection closed"),
    "cut chunk": (raw(HEAD, b"Transfer-Encoding: chunked\r\n\r\n100\r\n[1"), "connection closed"),
    "nothing": (raw(), "connection closed"),
}


@pytest.mark.parametrize("name", AWAY)
def test_an_answer_that_may_pass_is_away(name: str) -> None:
    give, words = AWAY[name]
    with FaultyServer(give) as server:
        assert words in failure_of(server, SessionLost)


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"Content-Length: 1000000000000\r\n\r\n",
        HEAD + b"Connection: close\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["announced", "not announced", "in chunks"],
)
def test_a_huge_answer_is_refused_before_it_is_held(head: bytes) -> None:
    self: list[FaultyServer] = []
    part = b" " * MIB if b"chunked" not in head else b"100000\r\n" + b" " * MIB + b"\r\n"
    for first, most in (((), 1), ((answer([1]),), 32)):
        with FaultyServer(*first, endless(self, head, part, 0)) as server:
            self[:] = [server]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert f"answers with more than {most * MIB} octets" in failure_of(server, StreamRefused)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            assert grown < 160


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
        (HEAD, b"x"),
        (b"", b"H"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["body", "header", "status", "continue", "chunks"],
)
def test_an_answer_that_never_ends_is_away_in_time(head: bytes, part: bytes) -> None:
    self: list[FaultyServer] = []
    with FaultyServer(endless(self, head, part, 0.05)) as server:
        self.append(server)
        began = time.monotonic()
        assert "timed out" in failure_of(server, SessionLost, timeout_seconds=0.5)
        assert 0.4 < time.monotonic() - began < LIMIT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with FaultyServer(answer([])) as other:
        to = [("Location", f"{other.url}/subjects")]
        with FaultyServer(answer(b"", status, to)) as server:
            text = failure_of(server, StreamRefused)
            assert f"redirects (HTTP {status}): set the address that it leads to" in text
            assert other.url not in text
        assert other.requests == []


def test_no_proxy_of_the_environment_receives_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(answer([])) as proxy, FaultyServer(answer([])) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        settings = settings_of(server.url, username="me", password=PASSWORD)
        assert SchemaRegistry(settings, "s", "avro").read({}) == {}
        assert proxy.requests == []
        assert [path for path, _ in server.requests] == ["/subjects/s/versions?deleted=true"]
        assert server.requests[0][1] is not None


# -- versions ----------------------------------------------------------------------------------------

DEEP = json.dumps(SCHEMA)[:-1].encode() + b', "x": ' + b"[" * 10 * MIB
CYCLE = SCHEMA | {"references": [{"name": "n", "subject": "s", "version": 1}]}
WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([], NO_REGISTRY),
    "no id": ({"schema": "x"}, NO_REGISTRY),
    "a text for an id": ({"id": "7", "schema": "x"}, NO_REGISTRY),
    "deep in what is not read": (DEEP, NO_REGISTRY),
    "no schema": ({"id": 7}, NO_REGISTRY),
    "references": (SCHEMA | {"references": {"a": 1}}, NO_REGISTRY),
    "a reference": (SCHEMA | {"references": [1]}, NO_REGISTRY),
    "another type": (SCHEMA | {"schemaType": "THRIFT\x1b[1m"}, "is a schema of another type"),
    "itself": (CYCLE, "refers to others in a cycle"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_version_is_refused(name: str) -> None:
    body, words = WRONG[name]
    with FaultyServer(answer([1]), answer(body)) as server:
        assert words in failure_of(server, StreamRefused)


def test_references_without_an_end_are_refused() -> None:
    def deeper(handler: Any) -> None:
        version = len(server.requests)
        answer(SCHEMA | {"references": [{"name": "n", "subject": "s", "version": version}]})(handler)

    with FaultyServer(answer([1]), deeper) as server:
        assert "refers to others more than 32 deep" in failure_of(server, StreamRefused)
        assert len(server.requests) < 50


def test_a_version_that_is_deleted_meanwhile_is_left_out_and_an_interrupted_read_goes_on() -> None:
    gone = answer({"error_code": 40402, "message": "gone"}, 404)
    two = answer(SCHEMA | {"id": 8})
    answers = (answer([1, 2, 3]), gone, two, answer(b"", 503), answer([2, 3]), two)
    with FaultyServer(*answers, answer(SCHEMA | {"id": 9})) as server:
        registry = SchemaRegistry(settings_of(server.url), "s", "avro")
        with pytest.raises(SessionLost):
            registry.read({})
        assert set(registry.read({})) == {8, 9}
        asked = [path.partition("?")[0].rpartition("/")[2] for path, _ in server.requests]
        assert asked == ["versions", "1", "2", "3", "versions", "2", "3"]


def test_schemas_that_are_too_large_together_are_refused() -> None:
    def large(handler: Any) -> None:
        answer({"id": len(server.requests), "schema": json.dumps(" " * 20 * MIB)})(handler)

    with FaultyServer(answer([1, 2, 3, 4, 5]), large) as server:
        assert "all schemas have over" in failure_of(server, StreamRefused)


def with_part(root: Any, part: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the registry's descriptions of a schema that refers to another, and of that one."""
    references = [{"name": "P", "subject": "part", "version": 1}]
    return {"id": 7, "schema": json.dumps(root), "references": references}, {
        "id": 8,
        "schema": json.dumps(part),
    }


@pytest.mark.parametrize("status", [401, 403, 302, 418])
def test_a_refused_request_for_a_reference_is_no_fault_of_the_schema(status: int) -> None:
    """Earlier, a token's expiry made a good schema's records null until a restart."""
    root, part = with_part(record_type("V", p="P"), record_type("P"))
    answers = (answer([1]), answer(root), answer(b"", status), answer([1]), answer(root), answer(part))
    with FaultyServer(*answers) as server:
        registry = SchemaRegistry(settings_of(server.url), "s", "avro")
        with pytest.raises(StreamRefused):
            registry.read({})
        (schema,) = registry.read({}).values()
    assert b'"name": "_.P"' in schema.data


def test_no_message_has_the_length_of_a_name() -> None:
    name = "n" * MIB
    root, part = with_part(record_type(name), record_type(name, a="int"))
    with FaultyServer(answer([1]), answer(root), answer(part)) as server:
        text = failure_of(server, StreamRefused)
    assert "two of the schemas define" in text
    assert len(text) < 500
    schemas = {number: PublicSchema("avro", b'"unknown"') for number in range(1, 1000)}
    with pytest.raises(ValueError, match="no version of the schema can be read") as failed:
        FieldReader([Feature(name="a")], None, None, schemas)
    assert str(failed.value).endswith("; and 996 more")
