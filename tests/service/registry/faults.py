"""Server that answers as no registry does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class FaultyServer:
    """Server that gives each request the next answer, and repeats the last one; a context manager.

    Attributes
    ----------
    requests : list of (str, str or None)
        Paths, and values of the header Authorization.
    """

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.over = threading.Event()
        outer, waiting = self, list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Authorization")))
                self.close_connection = True
                # The client may have disconnected.
                with suppress(OSError):
                    (waiting.pop(0) if len(waiting) > 1 else waiting[0])(self)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def answer(body: bytes | Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Answer with octets, or with JSON."""
    octets = body if isinstance(body, bytes) else json.dumps(body).encode()

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(octets)))
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(octets)

    return write


def raw(*parts: bytes) -> Answer:
    """Answer with octets that are not HTTP, or are incomplete HTTP."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        for part in parts:
            handler.wfile.write(part)

    return write


def endless(server: list[FaultyServer], head: bytes, part: bytes, pause: float) -> Answer:
    """Answer with the same octets repeatedly, until the test is over."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(head)
        while not server[0].over.wait(pause):
            handler.wfile.write(part)

    return write
