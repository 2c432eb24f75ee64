"""A failure before a connection is established is a lost connection, and leaves no socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from streaming_pca.service.kafka import patches

patches.install()


class Waiting(NetworkSelector):  # type: ignore[misc]
    """Selector that signals when one of its tasks waits for a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def _wait_io(self, *args: object) -> None:
        super()._wait_io(*args)
        self.waits.set()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_files_that_cannot_be_used_are_a_lost_connection(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket], content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(KafkaConnectionError, match=r"kafka\.ssl_"):
        KafkaSSLTransport(None, pair[0], host="localhost", ssl_cafile=str(file))
    assert pair[0].fileno() == -1


def test_a_failed_handshake_closes_its_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    transport = KafkaSSLTransport(None, pair[0], host="localhost")
    pair[1].sendall(b"no TLS here\r\n")
    wrapped = transport._sock
    with pytest.raises(ssl.SSLError):
        asyncio.run(transport.handshake())
    assert wrapped.fileno() == -1


def test_a_handshake_under_way_leaves_no_socket_when_its_client_is_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    net = Waiting()
    pair[0].setblocking(False)
    transport = KafkaSSLTransport(net, pair[0], host="localhost")
    wrapped = transport._sock
    net.start()
    net.call_soon_threadsafe(transport.handshake)
    assert net.waits.wait(60)
    net.close()
    assert wrapped.fileno() == -1


def test_a_connect_under_way_leaves_no_socket_when_its_client_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first:
        address = server.getsockname()
        first.connect(address)
        made: list[socket.socket] = []

        class Full(KafkaNetSocket):  # type: ignore[misc]
            SCHEMES: tuple[str, ...] = ()

            def socket(self, *args: int) -> socket.socket:
                made.append(super().socket(*args))
                return made[0]

        net = Waiting()
        net.start()
        place = (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
        net.call_soon_threadsafe(lambda: Full().connect(net, place, (), time.monotonic() + 60))
        assert net.waits.wait(60)
        net.close()
        assert made[0].fileno() == -1
