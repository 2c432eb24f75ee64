"""Server on a real socket, in a thread with an event loop, and blocking client."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from streaming_pca.config.http import HttpSettings
from streaming_pca.service.http.server import HttpServer
from tests.security.needles import secret
from tests.waiting import LIMIT

TOKEN = secret("abcdefgh")
OTHER = secret("zyxwvuts")


class Metrics:
    """Metrics without a worker."""

    def text(self) -> bytes:
        return b"up 1\n"


class Site:
    """Site that streams events in an API's two ways, and records calls and bodies."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.bodies: list[int] = []

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/", self._page),
            Route("/v1/streams", self._streams),
            Route("/v1/echo", self._echo, methods=["POST"]),
            Route("/v1/large", self._large),
            Route("/v1/events", self._events),
        ]

    def start(self) -> None:
        self.reported.append("start")

    def stop(self) -> None:
        self.reported.append("stop")

    async def _page(self, request: Request) -> Response:
        return PlainTextResponse("page")

    async def _streams(self, request: Request) -> Response:
        return JSONResponse({"items": []})

    async def _echo(self, request: Request) -> Response:
        self.bodies.append(len(await request.body()))
        return JSONResponse({"bytes": self.bodies[-1]})

    async def _large(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield bytes(2**16)

        return StreamingResponse(parts())

    async def _events(self, request: Request) -> Response:
        async def news() -> AsyncIterator[dict[str, str]]:
            yield {"event": "release", "data": "{}"}
            await asyncio.sleep(3600)

        async def deaf() -> AsyncIterator[bytes]:
            yield b"event: release\ndata: {}\n\n"
            await asyncio.sleep(3600)

        if "deaf" in request.query_params:
            return StreamingResponse(deaf(), media_type="text/event-stream")
        return EventSourceResponse(news())


@dataclass
class Answer:
    """Response to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """Running server, and requests to it."""

    server: HttpServer
    site: Site
    context: ssl.SSLContext | None = None
    roles: dict[str, str] = field(default_factory=dict)
    stopped_in: float = -1.0

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.server.address.rpartition(":")
        return host.strip("[]"), int(port)

    def connect(self, source: str | None = None) -> http.client.HTTPConnection:
        host, port = self.place
        if source is not None:
            # All addresses of this network belong to this machine.
            assert source.startswith("127.")
            return http.client.HTTPConnection(host, port, timeout=LIMIT, source_address=(source, 0))
        if self.server.url.startswith("https"):
            return http.client.HTTPSConnection("localhost", port, timeout=LIMIT, context=self.context)
        return http.client.HTTPConnection(host, port, timeout=LIMIT)

    def ask(
        self, path: str, method: str = "GET", token: str | None = None, body: Any = None, **headers: str
    ) -> Answer:
        """Send one request; header names are written with ``_``."""
        connection = self.connect()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()

    def status(self, path: str, method: str = "GET", token: str | None = None, **headers: str) -> int:
        return self.ask(path, method, token, **headers).status

    def listen(
        self, path: str = "/v1/events", source: str | None = None
    ) -> tuple[http.client.HTTPConnection, Any]:
        """Open a stream of events, and read its first line."""
        connection = self.connect(source)
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status == 200:
            assert answer.readline().startswith(b"event: release")
        return connection, answer


@contextmanager
def serving(
    settings: HttpSettings | None = None,
    context: ssl.SSLContext | None = None,
    site: Any = None,
    has_site: bool = True,
    **more: Any,
) -> Iterator[Running]:
    """Run a server; stop it at the end, and record the duration of the stop."""
    settings = HttpSettings(port=0, **more) if settings is None else settings
    site, roles = (site or Site()) if has_site else None, {"s": "leading"}
    ready, stopping = threading.Event(), threading.Event()
    found: list[Running] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        server = HttpServer(settings, Metrics().text, lambda: roles, site=site)
        server.start()
        found.append(Running(server, site, context, roles))
        ready.set()
        await asyncio.to_thread(stopping.wait)
        began = time.monotonic()
        await server.stop()
        found[0].stopped_in = time.monotonic() - began

    def run() -> None:
        try:
            uvloop.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(LIMIT)
    if failures:
        raise failures[0]
    try:
        yield found[0]
    finally:
        stopping.set()
        thread.join(LIMIT)
        assert not thread.is_alive()
        assert not failures, failures
