"""Metrics and health over HTTP: /metrics, /healthz, /readyz."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streaming_pca.config.settings import HttpSettings
from streaming_pca.service.errors import StreamRefused

__all__ = ["HttpServer"]

_MOST_CONNECTIONS = 64


class Exposition(Protocol):
    """Metrics of a process."""

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        ...


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The worker has handlers of its own, which finish a reserved batch first.
        yield


class HttpServer:
    """HTTP server in the worker's event loop.

    Parameters
    ----------
    settings : HttpSettings
    metrics : Exposition
    roles : callable
        Returns this process's role in each stream, by name: "starting", "leading",
        "standby", "paused", "ended".
    refusals : callable
        Returns the streams that this process may not run as configured, with the reasons.
    """

    def __init__(
        self,
        settings: HttpSettings,
        metrics: Exposition,
        roles: Callable[[], dict[str, str]],
        refusals: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._metrics, self._roles, self._refusals = metrics, roles, refusals
        try:
            # uvicorn would end the process where the port is taken.
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            self._socket = socket.create_server((settings.host, settings.port), family=family)
        except OSError as error:
            raise StreamRefused(
                f"http.port: {settings.host}:{settings.port} cannot be listened on "
                f"({error.strerror or error}): set another, 0 for any free one, or http.enabled = false"
            ) from None
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Host and port on which it listens."""
        config = uvicorn.Config(
            self.application(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def application(self) -> Starlette:
        """Return the application, for a server or a test."""
        return Starlette(
            routes=[
                Route("/metrics", self._show_metrics),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
            ]
        )

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _health(self, request: Request) -> Response:
        """Report that the process serves; a process with a hanging exchange ends itself."""
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Report whether this process leads or can take over every stream that has not ended."""
        roles, refusals = self._roles(), self._refusals()
        ready = "starting" not in roles.values() and not all(role == "ended" for role in roles.values())
        body: dict[str, object] = {"ready": ready and not refusals, "streams": roles}
        if refusals:
            body["refused"] = refusals
        return JSONResponse(body, status_code=200 if body["ready"] else 503)

    def start(self) -> None:
        """Begin to serve; call it in the event loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """End within a second or two."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=3)
        self._socket.close()
