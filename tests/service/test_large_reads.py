"""kafka-python's sockets are read a large piece at a time; what was sent comes out, and an end is seen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from streaming_pca.service import clients, large_reads

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def read(sock: socket.socket) -> tuple[bytes, Exception | None]:
    return large_reads._read_piece(SimpleNamespace(_sock=sock))


def test_the_client_is_taught_where_there_is_no_tls() -> None:
    assert clients.large_reads is large_reads
    assert KafkaTCPTransport._sock_recv is large_reads._read_piece
    # What TLS holds decrypted does not show at the socket: its own reads to the end.
    assert KafkaSSLTransport._sock_recv is not large_reads._read_piece


def test_what_was_sent_comes_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_reads, "PIECE_BYTES", 10)
    ours, theirs = pair
    theirs.sendall(b"0123456789abc")
    assert read(ours) == (b"0123456789", None)
    assert read(ours) == (b"abc", None)
    assert read(ours) == (b"", None)


def test_the_other_end_closing_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"last")
    theirs.close()
    assert read(ours) == (b"last", None)
    data, error = read(ours)
    assert data == b""
    assert isinstance(error, KafkaConnectionError)


def test_a_broken_socket_is_an_error(pair: Pair) -> None:
    ours, _ = pair
    ours.close()
    data, error = read(ours)
    assert data == b""
    assert isinstance(error, KafkaConnectionError)
