"""Limits of the HTTP server: size and rate of requests, streams of events, and slow clients."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from http import HTTPStatus

import h11
from h11._receivebuffer import ReceiveBuffer
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from streaming_pca.service.executors import first_of
from streaming_pca.service.http.access import problem

EVENTS = "/v1/events"
MAX_BODY = 16 * 1024  # most bytes of a request's body
MAX_HEADERS = 16 * 1024  # most bytes of a request's line and headers
_MAX_BYTES = MAX_HEADERS + 8 * MAX_BODY
"""Most bytes of a request on the wire: a one-byte chunk takes six bytes and as much time as a large chunk."""
_MAX_CONNECTIONS = 128
_REQUEST_SECONDS = 10.0
"""Longest time for a request to arrive, counted from the connection or the end of the previous response."""
_WRITE_SECONDS = 30.0  # longest time that a client may leave a response unread
_MAX_ADDRESSES = 4096  # number of client addresses with stored rates
_BURST_SECONDS = 2.0  # allowed burst, in seconds of requests at the permitted rate
_COUNTED = ("/v1", "/metrics")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_LEAVING_SECONDS = 0.3  # time for an event stream to end without cancellation


class _WholeLines(ReceiveBuffer):
    """Buffer of a connection whose header lines end with CR LF.

    A proxy that does not treat LF as a line end would see other headers than this server.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head; raise RemoteProtocolError for a bare LF."""
        before = bytes(self)
        lines = super().maybe_extract_lines()
        if _BARE_LF.search(before, 0, len(before) - len(self)):
            raise h11.RemoteProtocolError("a header line ends without CR")
        return lines


class LimitedProtocol(H11Protocol):
    """HTTP connection that slow clients cannot occupy for long.

    Above the limit, the connection that has been idle longest is closed: silent clients do not block others.
    """

    _slow: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _since = 0.0
    _bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # h11 has no other hook for the bytes of a head.
        self.conn._receive_buffer = _WholeLines()
        self._since = self.loop.time()
        self._watch()
        if len(self.connections) > _MAX_CONNECTIONS:
            idle = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.is_waiting]
            # This connection is among them, and is closed only if all others are in use.
            min(idle, key=lambda connection: connection._since).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """True while the client has not sent a complete request."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        left = _MAX_BYTES - self._bytes
        self._bytes += len(data)
        if left > 0:
            super().data_received(data[:left])
            self._watch()
        elif self.cycle is None or self.cycle.response_complete:
            # The response did not need the body.
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request; hang up during the response to an earlier one."""
        if self.cycle is None or self.cycle.response_complete:
            super().send_400_response(msg)
            return
        # Two simultaneous responses would both fail and log a traceback for each such client.
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self.transport.close()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        if self._bytes > _MAX_BYTES:
            self.transport.close()
        elif self.conn.their_state is not h11.SEND_BODY:
            self._bytes = 0
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._slow, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(_WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _watch(self) -> None:
        if not self.is_waiting:
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None
        elif self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)


class SizeLimit:
    """Middleware that refuses large headers and bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _wrong_size(scope) if scope["type"] == "http" else None
        if scope["type"] != "http" or refused is not None:
            await (refused or self._app)(scope, receive, send)
            return
        received, started = 0, False

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise _TooLarge
            return message

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, counting, noting)
        except _TooLarge:
            if not started:
                await _refused(scope, *_LARGE_BODY)(scope, receive, send)


class _TooLarge(Exception):
    """Body above the size limit."""


_LARGE_BODY = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY} bytes")


def _wrong_size(scope: Scope) -> JSONResponse | None:
    """Return the response to large headers, or to a large or unclear body."""
    size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size + len(scope["raw_path"]) + len(scope["query_string"]) > MAX_HEADERS:
        detail = f"the headers have more than {MAX_HEADERS} bytes"
        return _refused(scope, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and "content-length" in headers:
        # A proxy may rely on the other of the two, and see another request in the body.
        detail = "a body has a Content-Length or a Transfer-Encoding, not both"
        return _refused(scope, HTTPStatus.BAD_REQUEST, detail)
    # The protocol has already refused non-numeric lengths.
    return _refused(scope, *_LARGE_BODY) if int(headers.get("content-length", "0")) > MAX_BODY else None


def _refused(scope: Scope, status: HTTPStatus, detail: str) -> JSONResponse:
    return problem(scope, status, detail, connection="close")


class RateLimit:
    """Middleware that limits the request rate of each client address.

    Probes are not counted, so that a busy client does not make a process look dead; nor are pages, because
    each needs dozens of files. ``clock`` returns monotonic seconds.
    """

    def __init__(self, app: ASGIApp, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._rate, self._clock = app, per_second, clock
        self._burst = max(1.0, per_second * _BURST_SECONDS)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Remaining requests of each address, and the time of that count; least recently used first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, is_counted = self._app, scope["type"] == "http" and scope["path"].startswith(_COUNTED)
        if is_counted and (wait := self._take(_client(scope))):
            detail = f"more than {self._rate:g} requests a second: wait (http.requests_per_second)"
            app = problem(scope, HTTPStatus.TOO_MANY_REQUESTS, detail, retry_after=str(math.ceil(wait)))
        await app(scope, receive, send)

    def _take(self, address: str) -> float:
        """Count one request of an address; return the seconds to wait if it is above the rate."""
        now = self._clock()
        left, then = self._left.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        allowed = left >= 1
        self._left[address] = (left - 1 if allowed else left, now)
        if len(self._left) > _MAX_ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate


def _client(scope: Scope) -> str:
    """Return a client's IPv4 address or IPv6 network.

    One client can have all addresses of an IPv6 network.
    """
    host = str(scope["client"][0]) if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


class EventStreams:
    """Middleware that limits event streams, and ends them when the server stops.

    If the pool of ``most`` is full, the address with the most streams loses its oldest one to an address with
    fewer: one client may use all free streams without blocking other clients.
    """

    def __init__(self, app: ASGIApp, most: int, stopping: asyncio.Event) -> None:
        self._app, self._most, self._stopping = app, most, stopping
        self._open: dict[asyncio.Event, str] = {}
        """Address of each open stream by the event that ends it; the oldest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != EVENTS or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        address = _client(scope)
        if self._stopping.is_set() or not self._has_room(address):
            detail = f"{len(self._open)} streams of events are open: wait, or raise http.event_streams"
            refused = problem(scope, HTTPStatus.SERVICE_UNAVAILABLE, detail, retry_after="5")
            await refused(scope, receive, send)
            return
        ended = asyncio.Event()
        self._open[ended] = address
        try:
            await self._follow(scope, receive, send, ended)
        finally:
            self._open.pop(ended, None)

    def _has_room(self, address: str) -> bool:
        """Return whether an address may open another stream; this may end another address's stream."""
        if len(self._open) < self._most:
            return True
        held = Counter(self._open.values())
        greediest, number = held.most_common(1)[0]
        if held[address] + 1 >= number:
            return False
        oldest = next(ended for ended, owner in self._open.items() if owner == greediest)
        oldest.set()
        del self._open[oldest]
        return True

    async def _follow(self, scope: Scope, receive: Receive, send: Send, ended: asyncio.Event) -> None:
        """Run the application; report a disconnect to it when the server or the stream ends."""
        state = "waiting"

        async def noting(message: Message) -> None:
            nonlocal state
            if message["type"] == "http.response.start":
                state = "started"
            elif not message.get("more_body", False):
                state = "complete"
            await send(message)

        async def receiving() -> Message:
            incoming = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({incoming, over}, return_when=asyncio.FIRST_COMPLETED)
                return incoming.result() if incoming.done() else {"type": "http.disconnect"}
            finally:
                incoming.cancel()

        over = asyncio.create_task(first_of(self._stopping, ended))
        running = asyncio.ensure_future(self._app(scope, receiving, noting))
        try:
            await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await asyncio.wait({running}, timeout=_LEAVING_SECONDS)
            if running.done():
                running.result()
        finally:
            running.cancel()
            over.cancel()
        if (self._stopping.is_set() or ended.is_set()) and state == "started":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
