"""Site of the dashboard, with pages and API over one observer, and its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution

import uvloop
from starlette.routing import Mount

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import Settings
from streaming_pca.service.http.server import HttpServer, Site
from streaming_pca.service.process import stop_on_signals
from streaming_pca.text import install_command

_NEEDED = ("fastapi", "sse-starlette", "plotly")


def check_extra() -> None:
    """Raise ConfigurationError, with the remedy, if a package of the extra is missing."""
    missing = []
    for name in _NEEDED:
        try:
            distribution(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ConfigurationError(f"the dashboard needs {', '.join(missing)}: {install_command('dashboard')}")


def make_site(settings: Sequence[Settings]) -> Site:
    """Return the dashboard of these streams, not yet started; ConfigurationError without the extra."""
    check_extra()
    from streaming_pca.dashboard.api.application import make_api
    from streaming_pca.dashboard.observing.observer import Observer
    from streaming_pca.dashboard.pages import page_routes

    observer = Observer(settings)
    # The API comes last: it answers all other paths and programs with an RFC 9457 problem.
    return Site([*page_routes(), Mount("", app=make_api(observer))], observer.start, observer.stop)


def run_dashboard(
    settings: Sequence[Settings], host: str, port: int, on_listening: Callable[[str], None]
) -> None:
    """Serve the dashboard until SIGTERM or SIGINT, on an address that overrides the settings.

    Calls ``on_listening`` with the server's address, such as ``http://127.0.0.1:9470``. Raises
    ConfigurationError if the extra is missing, or other hosts could connect without a token; StreamRefused
    if the server cannot listen on the port.
    """
    http = settings[0].http.model_copy(update={"host": host, "port": port})
    site = make_site(settings)

    async def serve() -> None:
        stopping = asyncio.Event()
        with stop_on_signals(stopping.set):
            server = HttpServer(http, site=site, port_option="--port")
            server.start()
            try:
                await asyncio.to_thread(on_listening, server.url)
                await stopping.wait()
            finally:
                await server.stop()

    uvloop.run(serve())
