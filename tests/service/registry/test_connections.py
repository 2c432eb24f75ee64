"""Connections to a registry use credentials and certificates, and notice an absent registry."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.schema_registry import SchemaRegistry
from tests.security.needles import secret
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer, record_type, settings_of
from tests.service.registry.proxy import Proxy
from tests.waiting import LIMIT

PASSWORD, NEXT, TOKEN = secret("hunter2-ü"), secret("hunter3"), secret("eyJhbGciOi.token")


@pytest.fixture
def subject(producer: Producer) -> str:
    """Return a subject with one schema."""
    producer.register(record_type("Visit", a="double"))
    return producer.subject


@pytest.fixture
def proxy(apicurio: Apicurio, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(apicurio, tmp_path) as made:
        yield made


def registry_of(proxy: Proxy, subject: str, **more: Any) -> SchemaRegistry:
    return SchemaRegistry(settings_of(proxy.url, **{"ssl_cafile": proxy.cafile} | more), subject, "avro")


def refusal_of(registry: SchemaRegistry) -> str:
    with pytest.raises(StreamRefused) as refused:
        registry.read({})
    text = str(refused.value)
    assert len(text.splitlines()) == 1
    assert not any(word in text for word in (PASSWORD, NEXT, TOKEN))
    assert refused.value.__cause__ is None
    return text


def test_a_password_is_read_from_its_file_at_each_read(proxy: Proxy, subject: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    proxy.accept_basic("me", PASSWORD)
    registry = registry_of(proxy, subject, username="me", password_file=file)
    known = registry.read({})
    assert len(known) == 1
    proxy.accept_basic("me", NEXT)
    assert "(HTTP 401): correct registry.username = 'me', or its password" in refusal_of(registry)
    file.write_text(NEXT)
    assert registry.read(known) == known


def test_a_token_is_read_from_its_file_at_each_read(proxy: Proxy, subject: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    proxy.accept_bearer(TOKEN)
    registry = registry_of(proxy, subject, token_file=file)
    known = registry.read({})
    proxy.accept_bearer(NEXT)
    assert f"renew the token in registry.token_file = {str(file)!r}" in refusal_of(registry)
    file.write_text(NEXT)
    assert registry.read(known) == known
    file.write_text("two\nlines")
    assert refusal_of(registry) == "registry.token_file: holds no token: write it in one line of ASCII"
    file.unlink()
    assert refusal_of(registry) == f"registry.token_file: {file}: No such file or directory"


def test_a_registry_that_asks_for_credentials_names_their_settings(proxy: Proxy, subject: str) -> None:
    text = refusal_of(registry_of(proxy, subject))
    assert text.endswith("(HTTP 401): set registry.username with a password, or registry.token_file")
    wrong = registry_of(proxy, subject, username="me", password=PASSWORD)
    assert "correct registry.username = 'me', or its password" in refusal_of(wrong)
    assert proxy.refused == 2


def test_a_certificate_that_is_not_trusted_names_the_setting(
    proxy: Proxy, subject: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    for cafile in (other, None):
        text = refusal_of(registry_of(proxy, subject, ssl_cafile=cafile))
        assert text.startswith(f"the certificate of registry.url = {proxy.url!r} is not trusted (")
        assert text.endswith("set registry.ssl_cafile to its authority's PEM file")
    assert proxy.refused == 0


def test_a_certificate_of_another_host_is_refused(proxy: Proxy, subject: str) -> None:
    settings = settings_of(proxy.url.replace("localhost", "127.0.0.1"), ssl_cafile=proxy.cafile)
    assert "is not trusted (IP address mismatch" in refusal_of(SchemaRegistry(settings, subject, "avro"))


def test_a_bad_file_of_authorities_is_named(proxy: Proxy, subject: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.pem"
    registry = registry_of(proxy, subject, ssl_cafile=file)
    assert refusal_of(registry) == f"registry.ssl_cafile: {file}: No such file or directory"
    file.write_text("not a certificate")
    assert refusal_of(registry) == f"registry.ssl_cafile: {file}: holds no certificate in PEM"
    file.write_bytes(proxy.cafile.read_bytes())
    proxy.accept_basic("me", PASSWORD)
    assert "(HTTP 401)" in refusal_of(registry)


def test_an_address_without_tls_is_named(apicurio: Apicurio, subject: str) -> None:
    settings = settings_of(apicurio.url.replace("http://", "https://"))
    assert "fails to negotiate TLS with this client" in refusal_of(SchemaRegistry(settings, subject, "avro"))


def test_a_stopped_registry_is_away_and_then_there_again(apicurio: Apicurio, subject: str) -> None:
    registry = SchemaRegistry(settings_of(apicurio.url, timeout_seconds=0.5), subject, "avro")
    apicurio.pause()
    began = time.monotonic()
    try:
        with pytest.raises(SessionLost, match=r"registry\.url = .* does not answer \(timed out\)"):
            registry.read({})
        assert time.monotonic() - began < LIMIT
    finally:
        apicurio.proceed()
    registry = SchemaRegistry(settings_of(apicurio.url), subject, "avro")
    assert len(registry.read({})) == 1


def test_a_closed_port_and_an_unknown_host_are_away(proxy: Proxy, subject: str) -> None:
    registry = registry_of(proxy, subject)
    proxy.stop()
    with pytest.raises(SessionLost, match=r"does not answer \(Connection refused\)"):
        registry.read({})
    nowhere = SchemaRegistry(settings_of("https://registry.invalid"), subject, "avro")
    with pytest.raises(SessionLost, match=r"registry\.url = 'https://registry\.invalid' does not answer"):
        nowhere.read({})


def test_a_handshake_that_never_ends_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}"
        registry = SchemaRegistry(settings_of(url, timeout_seconds=0.3), "s", "avro")
        with pytest.raises(SessionLost, match="timed out"):
            registry.read({})
