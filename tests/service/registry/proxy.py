"""Proxy in front of a registry, with TLS and changeable basic or bearer credentials."""

from __future__ import annotations

import base64
import http.client
import http.server
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme

from tests.service.registry.apicurio import API, Apicurio
from tests.waiting import LIMIT


class Proxy:
    """Server that forwards requests with one of the accepted credentials; a context manager.

    Attributes
    ----------
    accepted : set of str
        Values of the header Authorization.
    refused : int
        Number of requests without accepted credentials.
    """

    def __init__(self, apicurio: Apicurio, folder: Path) -> None:
        self.accepted: set[str] = set()
        self.refused = 0
        authority = trustme.CA()
        self.cafile = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.cafile))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        outer, target = self, urlsplit(apicurio.url)

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                if self.headers.get("Authorization") not in outer.accepted:
                    outer.refused += 1
                    self.send_error(401)
                    return
                onward = http.client.HTTPConnection(str(target.hostname), target.port, timeout=LIMIT)
                try:
                    onward.request("GET", self.path)
                    answer = onward.getresponse()
                    body = answer.read()
                finally:
                    onward.close()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Ignore clients that end a handshake."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Return the address of the API through this proxy."""
        return f"https://localhost:{self._server.server_port}{API}"

    def accept_basic(self, username: str, password: str) -> None:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        self.accepted = {f"Basic {pair}"}

    def accept_bearer(self, token: str) -> None:
        self.accepted = {f"Bearer {token}"}

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close its port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
