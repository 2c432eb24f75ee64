"""What goes wrong before a TLS connection stands is a lost connection, and leaves no socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaSSLTransport

from streaming_pca.service.kafka import tls

tls.install()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_files_that_cannot_be_used_are_a_lost_connection(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    ours, theirs = socket.socketpair()
    with theirs:
        with pytest.raises(KafkaConnectionError, match=r"kafka\.ssl_"):
            KafkaSSLTransport(None, ours, host="localhost", ssl_cafile=str(file))
        assert ours.fileno() == -1


def test_a_failed_handshake_closes_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport = KafkaSSLTransport(None, ours, host="localhost")
        theirs.sendall(b"no TLS here\r\n")
        wrapped = transport._sock
        with pytest.raises(ssl.SSLError):
            asyncio.run(transport.handshake())
        assert wrapped.fileno() == -1
