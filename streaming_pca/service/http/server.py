"""HTTP server of a process: metrics, health, and the routes of a site."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from streaming_pca.config.http import HttpSettings, check_files, is_loopback
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.http.access import AUTHORIZED, Access, make_tokens
from streaming_pca.service.http.index import index_page
from streaming_pca.service.http.limits import MAX_HEADERS, EventStreams, LimitedProtocol, RateLimit, SizeLimit

log = logging.getLogger(__name__)

_LEAVING_SECONDS = 1.0  # time for responses in progress to end; event streams are ended earlier
_STOPPING_SECONDS = 1.8  # time for everything to end; a site that still waits for a broker is abandoned


@dataclass(frozen=True)
class Site:
    """Additional routes, and their data source, which is started and stopped in a thread.

    Data routes begin with ``/v1`` and need the token.
    """

    routes: Sequence[BaseRoute]
    start: Callable[[], None]
    stop: Callable[[], None]


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process has its own handlers; a worker's handlers first finish a reserved batch.
        yield


class HttpServer:
    """HTTP server in a process's event loop.

    ``metrics`` returns their exposition; without it ``/metrics`` does not exist. ``roles`` returns the
    process's role in each stream ("starting", "leading", "standby", "paused", "ended"), ``refusals`` the
    streams that it may not run as configured, with reasons. ``port_option`` has set the port, for messages.

    Raises ConfigurationError if other machines would have access without a token, or a token or certificate
    is unusable. Raises StreamRefused if the server cannot listen on the port.
    """

    def __init__(
        self,
        settings: HttpSettings,
        metrics: Callable[[], bytes] | None = None,
        roles: Callable[[], dict[str, str]] = dict,
        refusals: Callable[[], dict[str, str]] = dict,
        site: Site | None = None,
        port_option: str | None = None,
    ) -> None:
        check_files(settings)
        self._settings, self._site = settings, site
        self._metrics, self._roles, self._refusals = metrics, roles, refusals
        self._tokens = make_tokens(settings)
        self._stopping = asyncio.Event()
        config = uvicorn.Config(
            self.application(),
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            # Anyone can send X-Forwarded-For; the rate limit needs real addresses.
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_graceful_shutdown=None,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.private_key,
            ssl_ca_certs=None if settings.client_authority is None else str(settings.client_authority),
            ssl_cert_reqs=ssl.CERT_NONE if settings.client_authority is None else ssl.CERT_REQUIRED,
        )
        config.load()
        self._socket = listen(settings, port_option)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Host and port of the listening socket."""
        self.url = f"{'http' if settings.certificate is None else 'https'}://{self.address}"
        """URL of the server, with scheme, host and port."""
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    def application(self) -> Starlette:
        routes: list[BaseRoute] = [Route("/healthz", self._health), Route("/readyz", self._ready)]
        if self._metrics is not None:
            routes.append(Route("/metrics", self._show_metrics))
        if self._site is None:
            routes.append(Route("/", self._index))
        else:
            routes += self._site.routes
        token, metrics_token = self._tokens
        middleware = [
            Middleware(SizeLimit),
            Middleware(RateLimit, per_second=self._settings.requests_per_second),
            Middleware(Access, settings=self._settings, token=token, metrics_token=metrics_token),
            Middleware(EventStreams, most=self._settings.event_streams, stopping=self._stopping),
        ]
        if self._settings.origins:
            # Outside Access, because a browser's preflight request has no token.
            cors = Middleware(
                CORSMiddleware,
                allow_origins=self._settings.origins,
                allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["Authorization", "Content-Type", "If-None-Match"],
                expose_headers=["ETag", "Retry-After"],
            )
            middleware.insert(2, cors)
        return Starlette(routes=routes, middleware=middleware)

    async def _index(self, request: Request) -> Response:
        roles = self._roles() if request.scope[AUTHORIZED] else None
        return index_page(metrics=self._metrics is not None, token=self._tokens[1] is not None, roles=roles)

    async def _show_metrics(self, request: Request) -> Response:
        assert self._metrics is not None
        return Response(self._metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _health(self, request: Request) -> Response:
        """Report that the process is alive; a process with a hanging exchange ends itself."""
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Report whether this process leads or can take over every stream that has not ended."""
        roles, refusals = self._roles(), self._refusals()
        has_ended = bool(roles) and all(role == "ended" for role in roles.values())
        ready = "starting" not in roles.values() and not has_ended and not refusals
        body: dict[str, object] = {"ready": ready}
        if request.scope[AUTHORIZED]:
            body["streams"] = roles
            if refusals:
                body["refused"] = refusals
        return JSONResponse(body, status_code=200 if ready else 503)

    def start(self) -> None:
        """Start serving; call it in the event loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        if self._site is not None:
            self._starting = asyncio.create_task(self._start_site(self._site))

    async def _start_site(self, site: Site) -> None:
        try:
            await asyncio.to_thread(site.start)
        except Exception:
            # Metrics, health and above all the streams continue.
            log.exception("the dashboard cannot start")

    async def stop(self) -> None:
        """End within two seconds, even if clients stay connected."""
        self._stopping.set()
        self._server.should_exit = True
        waiting = [asyncio.create_task(self._stop_serving())]
        if self._starting is not None and self._site is not None:
            waiting.append(asyncio.create_task(self._stop_site(self._site, self._starting)))
        await asyncio.wait(waiting, timeout=_STOPPING_SECONDS)

    async def _stop_serving(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LEAVING_SECONDS)
            for connection in list(self._server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.wait([self._task])
        self._socket.close()

    async def _stop_site(self, site: Site, starting: asyncio.Task[None]) -> None:
        await asyncio.wait([starting])
        await asyncio.to_thread(site.stop)


def listen(settings: HttpSettings, port_option: str | None = None) -> socket.socket:
    """Return a listening socket; raise StreamRefused, which names the setting or the option, without one."""
    try:
        # uvicorn would end the process if the port is taken.
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        made = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise StreamRefused(_cannot_listen(settings, error, port_option)) from None
    bound = made.getsockname()[0]
    if is_loopback(settings.host) and not is_loopback(bound):
        made.close()
        raise ConfigurationError(f"http.host = {settings.host!r} is {bound} here, which is not loopback")
    return made


def _cannot_listen(settings: HttpSettings, error: OSError, port_option: str | None) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address, reason = f"{host}:{settings.port}", error.strerror or str(error)
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        setting = "--host" if port_option == "--port" else "http.host"
        return f"{setting}: cannot listen on {address} ({reason}): name an address of this machine"
    if error.errno == errno.EADDRINUSE:
        reason = "another process uses this port"
    if port_option is not None:
        return (
            f"{port_option}: cannot listen on {address} ({reason}): name another port with {port_option}, "
            "or 0 for a free one"
        )
    return (
        f"http.port: cannot listen on {address} ({reason}): set another port for this process, or 0 for a "
        "free one, with http.port or STREAMING_PCA_HTTP__PORT (http.enabled = false needs none)"
    )
