"""Answers of an identity provider are handled without a broker."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka import credentials
from tests.config.refusals import refusal
from tests.waiting import LIMIT

HEAD, CHUNKS = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
FORM = b"grant_type=client_credentials"
LIFE = b'{"access_token": "a", "expires_in": 1'
LEAK = b"answer-that-is-not-repeated"


PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def answer(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_until(end: bytes, client: socket.socket) -> bytes:
    """Return what a client sends up to these bytes: unread ones would reset its connection."""
    data = b""
    while not data.endswith(end) and (more := client.recv(65536)):
        data += more
    return data


def login(url: str, secret: Path, authority: Path | None = None) -> KafkaSettings:
    secret.write_text("secret")
    return KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_url=url,
        sasl_oauth_client_id="pca",
        sasl_oauth_client_secret_file=secret,
        sasl_oauth_cafile=authority,
    )


@contextmanager
def provider(raw: bytes, secret: Path, pause: float = 0.0) -> Iterator[KafkaSettings]:
    """Yield settings of a loopback provider that answers each request with the same bytes.

    With a pause, it sends one byte at a time.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, suppress(ConnectionError):
                    read_until(FORM, client)
                    size = 1 if pause else len(raw)
                    for start in range(0, len(raw), size):
                        client.sendall(raw[start : start + size])
                        time.sleep(pause)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield login(f"http://127.0.0.1:{server.getsockname()[1]}/token", secret)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# An error of another class would end the thread that renews tokens.
@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(LEAK + b"\r\n\r\n", id="no status line"),
        pytest.param(HEAD + CHUNKS + LEAK, id="broken chunks"),
        pytest.param(HEAD + b"a: b\r\n" * 200 + b"\r\n", id="200 headers"),
        pytest.param(HEAD + b"a: " + b"x" * 70_000 + b"\r\n\r\n", id="a header of 70 kB"),
        pytest.param(b"HTTP/1.1 401 No\r\n" + CHUNKS + LEAK, id="refused in broken chunks"),
        pytest.param(answer(LIFE + b"0" * 400 + b"}"), id="life of 10^400"),
        pytest.param(answer(b"[" * 100_000), id="nested"),
    ],
)
def test_an_answer_that_is_none_is_one_line_that_does_not_repeat_it(raw: bytes, tmp_path: Path) -> None:
    with provider(raw, tmp_path / "secret") as settings:
        line = refusal(credentials.TokenRefused, credentials._ask, settings)
    assert "kafka.sasl_oauth_token_url" in line
    assert LEAK.decode() not in line


def test_a_token_of_a_long_life_is_renewed_all_the_same(tmp_path: Path) -> None:
    with provider(answer(LIFE + b"e300}"), tmp_path / "secret") as settings:
        grant = credentials._shared_grant(settings)
    time.sleep(0.2)
    assert grant._renewer is not None
    assert grant._renewer.is_alive()


def test_a_provider_that_answers_byte_by_byte_has_one_time_limit(tmp_path: Path) -> None:
    with provider(answer(LIFE + b"}"), tmp_path / "secret", pause=0.05) as settings:
        settings = settings.model_copy(update={"request_timeout_ms": 500})
        line = refusal(credentials.TokenRefused, credentials._ask, settings)
    assert line.endswith("does not answer (timed out)")


def test_a_silent_address_of_a_provider_leaves_time_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = socket.getaddrinfo
    with ExitStack() as sockets, provider(answer(LIFE + b"0}"), tmp_path / "secret") as settings:
        silent = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # Its queue is full: Linux drops the next connections' packets.
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())

        def both(host: str, port: int, *rest: Any, **named: Any) -> list[Any]:
            if host != "idp.test":
                return find(host, port, *rest, **named)
            places = (silent.getsockname(), ("127.0.0.1", port))
            return [found for place in places for found in find(*place, *rest, **named)]

        monkeypatch.setattr(socket, "getaddrinfo", both)
        url = str(settings.sasl_oauth_token_url).replace("127.0.0.1", "idp.test")
        named = settings.model_copy(update={"sasl_oauth_token_url": url})
        assert credentials._ask(named)[0] == "a"


@contextmanager
def proxy(monkeypatch: pytest.MonkeyPatch, userinfo: str = "") -> Iterator[socket.socket]:
    """Listen on the port that the environment names as its proxy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name in PROXIES:
            url = "" if name == "no_proxy" else f"http://{userinfo}127.0.0.1:{server.getsockname()[1]}"
            monkeypatch.setenv(name, url)
            monkeypatch.setenv(name.upper(), url)
        yield server


def test_no_secret_is_sent_to_a_proxy_in_clear_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(monkeypatch) as server, provider(answer(LIFE + b"}"), tmp_path / "secret") as settings:
        assert credentials._ask(settings) == ("a", 1.0)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("opens", [True, False])
def test_with_tls_a_proxy_gets_a_tunnel_s_address_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("login.test").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    settings = login("https://login.test/token", tmp_path / "secret", tmp_path / "authority.pem")
    asked: list[bytes] = []

    def serve() -> None:
        server.settimeout(LIMIT)
        client, _ = server.accept()
        with client:
            asked.append(read_until(b"\r\n\r\n", client))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n" if opens else b"HTTP/1.1 407 No\r\n\r\n")
            if opens:
                with context.wrap_socket(client, server_side=True) as inner:
                    asked.append(read_until(FORM, inner))
                    inner.sendall(answer(LIFE + b"}"))

    with proxy(monkeypatch, "me:p%40ss@") as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            if opens:
                assert credentials._ask(settings) == ("a", 1.0)
            else:
                line = refusal(credentials.TokenRefused, credentials._ask, settings)
                assert line.endswith("does not answer (the proxy of https_proxy refuses: HTTP 407)")
        finally:
            thread.join()
    assert asked[0].startswith(b"CONNECT login.test:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in asked[0]
    assert len(asked) == 1 + opens
    assert all(each.startswith(b"POST /token HTTP/1.1\r\nHost: login.test\r\n") for each in asked[1:])


@pytest.mark.parametrize("port", ["hunter2", "99999", "0"])
def test_a_token_url_without_a_port_s_number_is_refused_in_words_that_do_not_repeat_it(port: str) -> None:
    with pytest.raises(ValidationError, match="must be https://HOST") as refused:
        KafkaSettings(sasl_oauth_token_url=f"https://login:{port}/token")
    assert port == "0" or port not in str(refused.value)
