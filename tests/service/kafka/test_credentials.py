"""Answers of an identity provider are handled without a broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka import credentials
from tests.config.refusals import refusal

HEAD, CHUNKS = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
LIFE = b'{"access_token": "a", "expires_in": 1'
LEAK = b"answer-that-is-not-repeated"


def answer(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def provider(raw: bytes, secret: Path) -> Iterator[KafkaSettings]:
    """Yield settings of a loopback provider that answers each request with the same bytes."""
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(raw)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield KafkaSettings(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_url=f"http://127.0.0.1:{server.getsockname()[1]}/token",
                sasl_oauth_client_id="pca",
                sasl_oauth_client_secret_file=secret,
            )
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


@pytest.mark.parametrize("port", ["hunter2", "99999", "0"])
def test_a_token_url_without_a_port_s_number_is_refused_in_words_that_do_not_repeat_it(port: str) -> None:
    with pytest.raises(ValidationError, match="must be https://HOST") as refused:
        KafkaSettings(sasl_oauth_token_url=f"https://login:{port}/token")
    assert port == "0" or port not in str(refused.value)
