"""Process of `streaming-pca dashboard`: one HTTP server with only the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import uvloop

from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.site import make_site
from streaming_pca.service.http.server import HttpServer
from streaming_pca.service.signals import stop_on_signals


def run_dashboard(
    settings: Sequence[Settings], host: str, port: int, on_listening: Callable[[str], None]
) -> None:
    """Serve the dashboard until SIGTERM or SIGINT.

    Parameters
    ----------
    settings : sequence of Settings
        One for each stream.
    host, port : str, int
        Address to listen on, which overrides the settings.
    on_listening : callable
        Called with the server's address, such as ``http://127.0.0.1:9470``, once it listens.

    Raises
    ------
    ConfigurationError
        If the extra is missing, or other hosts could connect without a token.
    StreamRefused
        If the server cannot listen on the port.
    """
    http = settings[0].http.model_copy(update={"host": host, "port": port})
    site = make_site(settings)

    async def serve() -> None:
        stopping = asyncio.Event()
        with stop_on_signals(stopping.set):
            server = HttpServer(http, site=site)
            server.start()
            try:
                await asyncio.to_thread(on_listening, server.url)
                await stopping.wait()
            finally:
                await server.stop()

    uvloop.run(serve())
