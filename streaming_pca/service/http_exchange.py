"""HTTP requests with secrets: one time limit, and no proxy in clear text.

The standard library bounds each socket operation instead, follows redirects, and sends http:// to a proxy.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit


def exchange(
    parts: SplitResult,
    target: str,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None,
    seconds: float,
    most: int,
    *,
    posted: bytes | None = None,
    tunnels: bool = False,
) -> tuple[int, bytes]:
    """Return a response's status and up to ``most + 1`` bytes of its body.

    ``context`` is None without TLS; with ``tunnels``, TLS may pass through a proxy of the environment.
    """
    ends, default = time.monotonic() + seconds, 80 if context is None else 443
    host, port = str(parts.hostname), parts.port or default
    connection = http.client.HTTPConnection(host, port)
    connection.default_port = default
    proxy = _proxy(parts.netloc) if tunnels and context is not None else None
    address = (host, port) if proxy is None else (str(proxy.hostname), proxy.port or default)
    raw = _connected(address, ends)
    try:
        if proxy is not None:
            connection.sock = _Timed(raw, ends)
            server = parts.netloc + f":{port}" * (parts.port is None)
            connection.request("CONNECT", server, headers=_login(proxy))
            with connection.getresponse() as answer:
                if answer.status != 200:
                    raise ConnectionError(f"the proxy of https_proxy refuses: HTTP {answer.status}")
        raw.settimeout(_left(ends))
        if context is not None:
            raw = context.wrap_socket(raw, server_hostname=host)
        connection.sock = _Timed(raw, ends)
        method = "GET" if posted is None else "POST"
        connection.request(method, target, posted, {"Connection": "close", **headers})
        with connection.getresponse() as answer:
            data = answer.read(most + 1)
            if answer.length and len(data) <= most:
                raise ConnectionError("connection closed")
            return answer.status, data
    except (http.client.RemoteDisconnected, http.client.IncompleteRead):
        raise ConnectionError("connection closed") from None
    finally:
        raw.close()
        connection.close()


def _connected(address: tuple[str, int], ends: float) -> socket.socket:
    """Connect to the first address of a host that answers; each has an equal part of the time left."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    places = [(str(place[0]), int(place[1])) for *_, place in found]
    for i, place in enumerate(places[:-1]):
        with suppress(OSError):
            return socket.create_connection(place, timeout=_left(ends) / (len(places) - i))
    return socket.create_connection(places[-1], timeout=_left(ends))


def failure_text(error: Exception, asked: str, cafile: str) -> str:
    """Describe why :func:`exchange` failed, without quoting the response; ``cafile`` is a setting."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = f"is not trusted ({error.verify_message}): set {cafile} to its authority's PEM file"
        return f"the certificate of {asked} {trust}"
    if isinstance(error, OSError):
        return f"{asked} does not answer ({error.strerror or str(error) or type(error).__name__})"
    return f"{asked} does not answer in HTTP ({type(error).__name__})"


def _proxy(netloc: str) -> SplitResult | None:
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"//{proxy}")


def _login(proxy: SplitResult) -> dict[str, str]:
    pair = unquote(f"{proxy.username}:{proxy.password}").encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"} if proxy.password else {}


class _Timed(io.RawIOBase):
    """Socket for `http.client` whose operations share one deadline."""

    def __init__(self, inner: socket.socket, ends: float) -> None:
        super().__init__()
        self._inner, self._ends = inner, ends

    def _ready(self) -> socket.socket:
        self._inner.settimeout(_left(self._ends))
        return self._inner

    def sendall(self, data: bytes) -> None:
        self._ready().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._ready().recv_into(buffer)

    def close(self) -> None:
        """Do nothing: `http.client` closes the socket before reading the body."""


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
