"""HTTPS and mutual TLS work with certificates that the tests make."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import SecretStr

from streaming_pca.config.kafka import ConfigurationError
from tests.config.refusals import refusal
from tests.service.http.running import TOKEN, Running, serving


class Certificates:
    """Authority, and a server and a client with its certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority = trustme.CA()
        self.client = self.authority.issue_cert("client.example.org")
        server = self.authority.issue_cert("localhost", "127.0.0.1")
        self.authority_file = folder / "authority.pem"
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.authority.cert_pem.write_to_path(self.authority_file)
        server.private_key_pem.write_to_path(self.key)
        for part in server.cert_chain_pems:
            part.write_to_path(self.certificate, append=True)

    @property
    def pair(self) -> dict[str, Any]:
        return {"certificate": self.certificate, "private_key": self.key}

    def context(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """Return a client's context: trust in this authority, and optionally a certificate."""
        made = ssl.create_default_context()
        self.authority.configure_trust(made)
        if client is not None:
            client.configure_cert(made)
        return made


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "one")


def refused(running: Running) -> bool:
    """Return whether the server ends a connection because of the client's certificate."""
    try:
        running.status("/healthz")
    except (ssl.SSLError, ConnectionError):
        return True
    return False


def test_https_is_served_to_those_who_trust_it(made: Certificates) -> None:
    with serving(context=made.context(), **made.pair, token=SecretStr(TOKEN)) as running:
        assert running.server.url == f"https://{running.server.address}"
        assert running.status("/v1/streams") == 401
        assert running.status("/v1/streams", token=TOKEN) == 200
        connection = running.connect()
        connection.connect()
        assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
        connection.close()
        running.context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            running.status("/healthz")


def test_old_versions_of_tls_are_refused(made: Certificates) -> None:
    old = made.context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with serving(context=old, **made.pair) as running:
        assert refused(running)


def test_with_mutual_tls_a_certificate_is_enough_and_needed(made: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path / "other").client
    settings = {**made.pair, "client_authority": made.authority_file}
    with serving(context=made.context(made.client), host="0.0.0.0", **settings) as running:
        assert running.status("/v1/streams") == 200
        assert running.status("/metrics") == 200
        for context in (made.context(), made.context(stranger)):
            running.context = context
            assert refused(running)
        running.context = made.context(made.client)
        assert running.status("/healthz") == 200


def test_with_both_both_are_needed(made: Certificates) -> None:
    settings = {**made.pair, "client_authority": made.authority_file, "token": SecretStr(TOKEN)}
    with serving(context=made.context(made.client), **settings) as running:
        assert running.status("/v1/streams") == 401
        assert running.status("/v1/streams", token=TOKEN) == 200
        running.context = made.context()
        assert refused(running)


@pytest.mark.parametrize("name", ["certificate", "private_key", "client_authority"])
@pytest.mark.parametrize("text", [None, "", "no certificate"])
def test_files_that_cannot_be_used_are_named(made: Certificates, name: str, text: str | None) -> None:
    settings: dict[str, Any] = {**made.pair, "client_authority": made.authority_file}
    path = settings[name] = made.key.parent / "wrong.pem"
    if text is not None:
        path.write_text(text)
    message = refusal(ConfigurationError, serving(**settings).__enter__)
    assert "http." in message
    assert name in message


def test_a_key_of_another_certificate_is_refused(made: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    settings: dict[str, Any] = {"certificate": made.certificate, "private_key": other.key}
    with pytest.raises(ConfigurationError, match=r"http\.certificate"), serving(**settings):
        pass
