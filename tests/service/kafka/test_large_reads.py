"""Reading kafka-python's sockets in large pieces returns all sent bytes, and detects the end.

With fewer copies and shorter requests, the results stay the same.
"""

from __future__ import annotations

import select
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka import clients, patches
from streaming_pca.service.kafka.patches import KeySelector

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def read(sock: socket.socket) -> tuple[bytes, Exception | None]:
    return patches._read_piece(SimpleNamespace(_sock=sock, _protocol=None))


def test_the_client_is_taught_where_there_is_no_tls() -> None:
    assert KafkaTCPTransport._sock_recv is patches._read_piece
    # Bytes that TLS has decrypted do not show at the socket, so its own reading continues to the end.
    assert KafkaSSLTransport._sock_recv is not patches._read_piece


def test_what_was_sent_comes_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PIECE_BYTES", 10)
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


@pytest.mark.parametrize("size", [1, 10**5, patches._LEAST_SHARED_BYTES + 1, 3 * 10**6])
def test_answers_come_out_whole_and_in_order(pair: Pair, size: int) -> None:
    ours, theirs = pair
    answers = [bytes([i]) * (size + i) for i in range(4)]
    found: list[bytes] = []

    class Parser(KafkaProtocol):  # type: ignore[misc]
        def _process_response(self, read_buffer: KafkaBytes) -> None:
            found.append(bytes(read_buffer))

    parser = Parser(client_id="c")
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    sender = threading.Thread(
        target=lambda: [theirs.sendall(struct.pack(">i", len(each)) + each) for each in answers]
    )
    sender.start()
    in_place = 0
    while len(found) < len(answers):
        select.select([ours], [], [])
        before = 0 if parser._rbuffer is None else parser._rbuffer.tell()
        data, error = patches._read_piece(transport)
        assert error is None
        in_place += not data and parser._rbuffer.tell() > before
        parser.receive_bytes(data)
    sender.join()
    assert found == answers
    # At most a piece may have arrived before its answer's place was known.
    assert in_place > 0 or size <= patches.PIECE_BYTES


def test_an_end_within_an_answer_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    parser = KafkaProtocol(client_id="c")
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    parser.receive_bytes(struct.pack(">i", 10**6))
    assert patches._read_piece(transport) == (b"", None)
    theirs.close()
    assert isinstance(patches._read_piece(transport)[1], KafkaConnectionError)


@pytest.mark.parametrize("size", [0, 100, patches._LEAST_SHARED_BYTES + 4, 10**6])
def test_the_rest_of_an_answer_is_what_it_was(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answer = KafkaBytes(size)
    answer.write(data)
    answer.seek(0)
    header = answer.read(4)
    assert isinstance(header, bytes)
    assert header == data[:4]
    rest = answer.read()
    assert rest == data[4:]
    large = size - 4 >= patches._LEAST_SHARED_BYTES
    # No copy if that matters; otherwise bytes, which other code may expect.
    assert isinstance(rest, memoryview if large else bytes)
    assert answer.tell() == size
    assert answer.read() == b""


def test_every_client_has_the_selector() -> None:
    io = patches.shared_selector("logs")
    assert isinstance(io._selector, KeySelector)
    assert clients._common_options(KafkaSettings())["selector"] is KeySelector
    # The client's own selector writes a message with the socket's addresses, twice.
    assert NetworkSelector.DEFAULT_CONFIG["selector"] is selectors.DefaultSelector


def test_a_selector_knows_its_files(pair: Pair) -> None:
    ours, theirs = pair
    with KeySelector() as selector:
        key = selector.register(ours, selectors.EVENT_READ, "a")
        assert selector.get_key(ours) == key
        with pytest.raises(KeyError):
            selector.get_key(theirs)
        key = selector.modify(ours, selectors.EVENT_READ | selectors.EVENT_WRITE, "b")
        assert selector.get_key(ours) == key
        theirs.sendall(b"x")
        assert selector.select(0) == [(key, selectors.EVENT_READ | selectors.EVENT_WRITE)]
        # As the client does: modified for only one kind of event, then released.
        selector.modify(ours, selectors.EVENT_WRITE, "c")
        assert [events for _, events in selector.select(0)] == [selectors.EVENT_WRITE]
        assert selector.unregister(ours).data == "c"
        with pytest.raises(KeyError):
            selector.get_key(ours)
        with pytest.raises(KeyError):
            selector.unregister(ours)
        assert selector.register(ours, selectors.EVENT_READ).fileobj is ours
        with pytest.raises(KeyError):
            selector.register(ours, selectors.EVENT_READ)
        assert selector.get_key(ours).events == selectors.EVENT_READ


def test_a_file_that_was_closed_can_be_let_go() -> None:
    with KeySelector() as selector:
        ours, theirs = socket.socketpair()
        with theirs:
            key = selector.register(ours, selectors.EVENT_READ)
            ours.close()
            assert selector.get_key(ours) == key
            assert selector.unregister(ours) == key
