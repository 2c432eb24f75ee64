"""A client's sizes, rates, event streams and slowness are limited."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from pydantic import SecretStr
from uvicorn.protocols.http.h11_impl import H11Protocol

from streaming_pca.service.http import limits, server
from streaming_pca.service.http.limits import MAX_BODY, MAX_HEADERS, RateLimit
from tests.service.http.running import TOKEN, Running, serving
from tests.waiting import LIMIT, wait_for


@contextmanager
def raw(running: Running, text: bytes = b"") -> Iterator[socket.socket]:
    """Open a connection over which any bytes can be sent."""
    with closing(socket.create_connection(running.place, timeout=LIMIT)) as made:
        made.sendall(text)
        yield made


def is_closed(connection: socket.socket, seconds: float = LIMIT) -> bool:
    """Return whether the server closes the connection within ``seconds``."""
    connection.settimeout(seconds)
    try:
        with suppress(ConnectionError):
            while connection.recv(2**16):
                pass
    except TimeoutError:
        return False
    return True


# -- sizes -----------------------------------------------------------------


def test_a_large_body_is_refused_and_a_small_one_is_not() -> None:
    with serving() as running:
        assert running.ask("/v1/echo", "POST", body=bytes(MAX_BODY)).json == {"bytes": MAX_BODY}
        refused = running.ask("/v1/echo", "POST", body=bytes(MAX_BODY + 1))
        assert refused.status == 413
        assert refused.headers["content-type"] == "application/problem+json"
        assert running.site.bodies == [MAX_BODY]


def test_a_large_body_without_a_length_is_refused() -> None:
    with serving() as running:
        parts = [bytes(1024)] * 17
        assert running.ask("/v1/echo", "POST", body=iter(parts)).status == 413
        assert running.ask("/v1/echo", "POST", body=iter(parts[1:])).json == {"bytes": MAX_BODY}


def test_a_flood_of_small_chunks_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def count(self: H11Protocol, data: bytes) -> None:
        parsed.append(len(data))
        parse(self, data)

    parse = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", count)
    head = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for start, answers in ((b"GET /healthz", b"HTTP/1.1 200"), (b"POST /v1/echo", b"HTTP/1.1 413")):
        with serving() as running, raw(running, start + b" HTTP/1.1\r\n" + head) as client:
            parsed.clear()
            with suppress(ConnectionError):
                client.sendall(b"1\r\na\r\n" * 100_000)
            with suppress(ConnectionError):
                assert client.recv(2**16).startswith(answers)
            assert is_closed(client)
            assert running.ask("/healthz").status == 200
            assert sum(parsed) < 2 * (MAX_HEADERS + 8 * MAX_BODY)


def test_a_connection_takes_more_bytes_than_one_request_may_have() -> None:
    body = bytes(MAX_BODY)
    request = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with serving() as running, raw(running) as client:
        for _ in range(30):
            client.sendall(request)
            answer = b""
            while b"}" not in answer:
                more = client.recv(2**16)
                assert more
                answer += more
            assert answer.startswith(b"HTTP/1.1 200")


def test_a_body_of_two_lengths_is_refused() -> None:
    text = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n"
    text += b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving() as running, raw(running, text + b"0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        assert client.recv(2**16).startswith(b"HTTP/1.1 400")
        assert is_closed(client)
        assert running.site.bodies == []


def test_large_headers_are_refused() -> None:
    with serving() as running:
        assert running.status("/v1/streams", X_Large="x" * 20_000) in (400, 431)
        assert running.status("/v1/streams?" + "x" * 20_000) in (400, 431)
        with raw(running, b"GET / HTTP/1.1\r\nHost: localhost\r\n") as endless:
            more = (b"x-more: " + b"x" * 1000 + b"\r\n") * 5000
            with pytest.raises(ConnectionError):
                endless.sendall(more)
        assert running.status("/healthz") == 200


# -- rates -----------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the rate limit a clock that the test moves."""
    seconds = [0.0]
    monkeypatch.setattr(RateLimit.__init__, "__defaults__", (lambda: seconds[0],))
    return seconds


def test_an_address_that_asks_too_often_waits_and_probes_do_not(now: list[float]) -> None:
    with serving(requests_per_second=5.0) as running:
        found = [running.ask("/v1/streams") for _ in range(20)]
        assert [answer.status for answer in found] == [200] * 10 + [429] * 10
        refused = found[10:]
        assert refused[0].headers["retry-after"] == "1"
        assert "http.requests_per_second" in refused[0].json["detail"]
        assert {running.status(path) for path in ("/healthz", "/readyz") for _ in range(20)} == {200}
        # A page has more files than that.
        assert 429 not in {running.status("/static/x.js") for _ in range(20)}
        now[0] = 1.0
        assert [running.status("/v1/streams") for _ in range(6)] == [200] * 5 + [429]


def test_wrong_tokens_are_counted_too(now: list[float]) -> None:
    """A proxy's header makes no other address."""
    with serving(requests_per_second=5.0, token=SecretStr(TOKEN)) as running:
        forwarded = ({"X_Forwarded_For": f"192.0.2.{n}"} for n in range(20))
        found = [running.status("/v1/streams", token="x" * 16, **each) for each in forwarded]
        assert (found[0], found[-1]) == (401, 429)


def test_requests_come_back_with_time() -> None:
    now = [0.0]

    async def app(*_: object) -> None:
        raise AssertionError

    limit = RateLimit(app, 2.0, lambda: now[0])
    assert [limit._take("a") for _ in range(4)] == [0.0] * 4
    assert limit._take("a") == 0.5
    assert limit._take("b") == 0.0
    now[0] = 0.5
    assert (limit._take("a"), limit._take("a")) == (0.0, 0.5)
    now[0] = 1000.0
    assert [limit._take("a") for _ in range(5)] == [0.0] * 4 + [0.5]
    for number in range(10_000):
        limit._take(str(number))
    assert len(limit._left) == 4096


def test_a_network_of_ipv6_is_one_client() -> None:
    hosts = ("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1", "::1")
    one, other, first, same, second, own = (limits._client({"client": (host, 1)}) for host in hosts)
    assert first == same
    assert len({one, other, first, second, own}) == 5


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n",
        b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
        b"\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_header_line_ends_with_both_characters(head: bytes) -> None:
    """This holds for any pieces and after another request; a body may contain anything."""
    with serving() as running:
        for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            for size in (1, 7, 1000):
                statuses = statuses_of(running, before + head, size)
                assert statuses[-1:] == [b"400"]
                assert statuses[:-1] in ([], [b"200"] * bool(before))
        assert running.ask("/v1/echo", "POST", body=b"a\nb\n\n").json == {"bytes": 5}


def statuses_of(running: Running, text: bytes, size: int) -> list[bytes]:
    """Send a text in pieces of a size; return the statuses of all answers."""
    answered = b""
    with raw(running) as client:
        for at in range(0, len(text), size):
            with suppress(ConnectionError):
                client.sendall(text[at : at + size])
        with suppress(ConnectionError):
            while more := client.recv(2**16):
                answered += more
    return re.findall(rb"HTTP/1.1 (\d+)", answered)


# -- streams of events -----------------------------------------------------


def test_streams_of_events_are_counted_and_a_place_becomes_free() -> None:
    with serving(event_streams=2) as running, ExitStack() as stack:
        one, _ = running.listen()
        stack.callback(running.listen()[0].close)
        refused = running.ask("/v1/events")
        assert refused.status == 503
        assert refused.headers["retry-after"] == "5"
        assert "http.event_streams" in refused.json["detail"]
        assert running.status("/v1/streams") == 200
        assert running.status("/v1/events", "HEAD") == 200
        one.close()
        wait_for("a place", lambda: place_is_free(running))


def test_one_address_may_have_all_streams_and_keeps_no_other_out() -> None:
    with serving(event_streams=4) as running, ExitStack() as stack:

        def listen(source: str) -> Any:
            connection, answer = running.listen(source=source)
            stack.callback(connection.close)
            return answer

        greedy = [listen("127.0.0.2") for _ in range(4)]
        assert [answer.status for answer in greedy] == [200] * 4
        assert listen("127.0.0.2").status == 503
        # Others take its oldest streams, unless that would leave it with fewer streams than the newcomer.
        for source, oldest in (("127.0.0.3", greedy[0]), ("127.0.0.4", greedy[1])):
            assert listen(source).status == 200
            assert oldest.read().strip() == b"data: {}"
        for source in ("127.0.0.2", "127.0.0.3"):
            assert listen(source).status == 503
        assert listen("127.0.0.5").status == 200
        assert listen("127.0.0.6").status == 503


def place_is_free(running: Running) -> bool:
    connection, answer = running.listen()
    connection.close()
    return bool(answer.status == 200)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/events?deaf"])
def test_it_stops_whoever_listens(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        with serving() as running:
            answers = []
            for _ in range(5):
                connection, answer = running.listen(path)
                stack.callback(connection.close)
                answers.append(answer)
            # Clients that read nothing, send nothing, or are in the middle of a request.
            stack.enter_context(raw(running, b"GET /v1/large HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            stack.enter_context(raw(running))
            stack.enter_context(raw(running, b"GET / HT"))
            time.sleep(0.3)
        # Two seconds on an idle machine; a server that waited for these clients would not end.
        assert 0 <= running.stopped_in < LIMIT
        assert running.site.reported == ["start", "stop"]
        # Ended, not cut: a client of chunked responses would raise for a cut stream.
        for answer in answers:
            answer.read()
    assert not caplog.records, [record.message for record in caplog.records]


def test_it_stops_at_once_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LEAVING_SECONDS", 2 * LIMIT)
    monkeypatch.setattr(server, "_STOPPING_SECONDS", 2 * LIMIT)
    with serving() as running:
        assert running.status("/healthz") == 200
    assert running.stopped_in < LIMIT


# -- slow clients ----------------------------------------------------------


def test_clients_that_send_nothing_keep_no_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 10 * LIMIT)
    with serving() as running, ExitStack() as stack:
        opened = [stack.enter_context(raw(running, b"GET / HTTP/1.1\r\nX-")) for _ in range(200)]
        for path in ("/healthz", "/v1/streams"):
            assert running.status(path) == 200
        assert is_closed(opened[0])
        assert not is_closed(opened[-1], 0.2)


def test_a_request_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 0.5)
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    with serving() as running, ExitStack() as stack:
        slow = [stack.enter_context(raw(running, b)) for b in (b"", b"G", head, head + b"\r\nbody")]
        for each in slow:
            stopping = threading.Event()
            stack.callback(stopping.set)
            threading.Thread(target=drip, args=(each, stopping), daemon=True).start()
        assert [is_closed(each) for each in slow] == [True] * 4
        # The same after a request that was answered.
        again = stack.enter_context(raw(running, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        time.sleep(0.2)
        again.sendall(b"GET / H")
        assert is_closed(again)


def drip(slow: socket.socket, stopping: threading.Event) -> None:
    """Send a byte now and then, as slow clients do."""
    with suppress(OSError):
        while not stopping.wait(0.1):
            slow.sendall(b"x")


def test_a_stream_of_events_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(limits, "_WRITE_SECONDS", 0.3)
    with serving() as running:
        connection, _ = running.listen()
        assert connection.sock is not None
        assert not is_closed(connection.sock, 1.0)
        connection.close()


def test_an_answer_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_WRITE_SECONDS", 0.5)
    stuck = []

    def pause_writing(self: limits.LimitedProtocol) -> None:
        stuck.append(self)
        pause(self)

    pause = limits.LimitedProtocol.pause_writing
    monkeypatch.setattr(limits.LimitedProtocol, "pause_writing", pause_writing)
    with serving() as running, raw(running, b"GET /v1/large HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        wait_for("a client that is stuck", lambda: stuck)
        wait_for("its end", lambda: not connections(running))
        assert running.status("/healthz") == 200


def connections(running: Running) -> list[object]:
    return list(running.server._server.server_state.connections)


def test_what_is_no_http_is_refused_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as running:
        wrong_length = b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"
        for text in (b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", wrong_length):
            with raw(running, text) as connection:
                assert is_closed(connection), text
        assert running.status("/healthz") == 200
        assert running.status("/", Connection="Upgrade", Upgrade="websocket") == 200
    assert not caplog.records
