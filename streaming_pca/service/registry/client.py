"""Bounded requests to a schema registry.

Confluent's library bounds neither the size nor the duration of a response, inflates it, and sends passwords
through proxies from the environment.
"""

from __future__ import annotations

import base64
import http.client
import io
import os
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from streaming_pca.config.kafka import ClearText, ConfigurationError
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.service.errors import SessionLost, StreamRefused

_MOST_BYTES = 2**25
"""Most bytes of a response: the largest accepted schema, in base64, with a margin."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_PASSING = (408, 425, 429)
"""Statuses below 500 that allow a retry of the same request."""
_UNKNOWN = (40401, 40402, 40403)

T = TypeVar("T")


class _Error(msgspec.Struct):
    error_code: int = 0


class RegistryAway(SessionLost):
    """Temporary failure of the registry; the message is one line."""


class RegistryRefused(StreamRefused):
    """Failure of the registry that needs a changed setting; one line that names it."""


class NotThere(Exception):
    """Subject, version or id that is missing from the registry.

    Attributes
    ----------
    code : int
        Confluent's error code: 40401 subject, 40402 version, 40403 id.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class RegistryClient:
    """Client of one registry; each request uses a new connection."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._parts = urllib.parse.urlsplit(settings.url)
        self._context: ssl.SSLContext | None = None
        self._context_of: tuple[int, ...] | None = None
        self._headers: dict[str, str] = {}

    def renew(self) -> None:
        """Reread the files of secrets and certificate authorities.

        Raises
        ------
        RegistryRefused
            If a file cannot be read.
        """
        settings = self._settings
        headers = {"Accept": _ACCEPT, "Connection": "close"}
        try:
            token, password = settings.token, settings.clear_password
        except ConfigurationError as error:
            raise RegistryRefused(str(error)) from None
        if token is not None:
            if not (token.isascii() and token.isprintable() and " " not in token):
                raise RegistryRefused("registry.token_file: holds no token: write it in one line of ASCII")
            headers["Authorization"] = ClearText(f"Bearer {token}")
        elif password is not None:
            pair = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
            headers["Authorization"] = ClearText(f"Basic {pair}")
        self._headers = headers
        if self._parts.scheme == "https":
            self._renew_context()

    def _renew_context(self) -> None:
        cafile = self._settings.ssl_cafile
        try:
            facts = None if cafile is None else os.stat(cafile)
            now = (0,) if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if self._context is None or now != self._context_of:
                self._context, self._context_of = ssl.create_default_context(cafile=cafile), now
        except OSError as error:
            reason = "not the expected PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise RegistryRefused(f"registry.ssl_cafile = {str(cafile)!r}: {reason}") from None

    def get(self, kind: type[T], *path: str | int, query: Mapping[str, str], most: int = _MOST_BYTES) -> T:
        """Return a response, decoded into the fields of ``kind``.

        Parameters
        ----------
        kind : type
            Type of the JSON, for msgspec.
        *path : str or int
            Parts of the path below the registry's address.
        query : mapping of str to str
        most : int
            Most bytes of the response.

        Raises
        ------
        NotThere
        RegistryAway
        RegistryRefused
        """
        target = "/".join([self._parts.path, *(urllib.parse.quote(str(part), safe="") for part in path)])
        target += f"?{urllib.parse.urlencode(query)}"
        try:
            status, body = self._exchange(target, most)
        except ssl.SSLCertVerificationError as error:
            raise RegistryRefused(
                f"the certificate of {self._shown} is not trusted ({error.verify_message}): "
                "set registry.ssl_cafile to its authority's PEM file"
            ) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise RegistryAway(f"{self._shown} does not answer (connection closed)") from None
        except ssl.SSLError as error:
            raise RegistryRefused(
                f"{self._shown} fails to negotiate TLS with this client ({error.reason or 'TLS failed'})"
            ) from None
        except (http.client.HTTPException, ValueError) as error:
            # Their messages quote the response.
            raise RegistryRefused(f"{self._shown} does not answer in HTTP ({type(error).__name__})") from None
        except OSError as error:
            words = error.strerror or str(error) or type(error).__name__
            raise RegistryAway(f"{self._shown} does not answer ({words})") from None
        return self._read(status, body, kind)

    @property
    def _shown(self) -> str:
        return f"registry.url = {self._settings.url!r}"

    def _exchange(self, target: str, most: int) -> tuple[int, bytes]:
        """Send a request within the time limit; return the response's status and body."""
        ends = time.monotonic() + self._settings.timeout_seconds
        parts, secure = self._parts, self._parts.scheme == "https"
        host, port = str(parts.hostname), parts.port or (443 if secure else 80)
        connection = http.client.HTTPConnection(host, port)
        connection.default_port = 443 if secure else 80
        raw = socket.create_connection((host, port), timeout=_left(ends))
        try:
            raw.settimeout(_left(ends))
            if self._context is not None:
                raw = self._context.wrap_socket(raw, server_hostname=host)
            connection.sock = _Timed(raw, ends)
            connection.request("GET", target, headers=self._headers)
            with connection.getresponse() as answer:
                body = answer.read(most + 1)
                if len(body) > most:
                    raise RegistryRefused(f"{self._shown} answers with more than {most} octets")
                if answer.length:
                    raise ConnectionError("connection closed")
                return answer.status, body
        except http.client.RemoteDisconnected:
            raise ConnectionError("connection closed") from None
        except http.client.IncompleteRead:
            raise ConnectionError("connection closed") from None
        finally:
            raw.close()
            connection.close()

    def _read(self, status: int, body: bytes, kind: type[T]) -> T:
        settings = self._settings
        if status == 200:
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise self.no_registry() from None
        if status in (401, 403):
            if settings.token_file is not None:
                change = f"renew the token in registry.token_file = {str(settings.token_file)!r}"
            elif settings.username is not None:
                change = f"correct registry.username = {settings.username!r}, or its password"
            else:
                change = "set registry.username with a password, or registry.token_file"
            raise RegistryRefused(f"{self._shown} refuses this client (HTTP {status}): {change}")
        if status >= 500 or status in _PASSING:
            raise RegistryAway(f"{self._shown} does not answer (HTTP {status})")
        if 300 <= status < 400:
            # Following it could send the secret to another host.
            raise RegistryRefused(
                f"{self._shown} redirects (HTTP {status}): set the address that it leads to"
            )
        if status == 404 and (code := _error_code(body)) in _UNKNOWN:
            raise NotThere(code)
        raise RegistryRefused(f"{self.no_registry()} (HTTP {status})")

    def no_registry(self) -> RegistryRefused:
        """Return the error for a response that is not a registry's."""
        return RegistryRefused(
            f"{self._shown} does not answer as a schema registry: set the address of its "
            "Confluent-compatible API, with its path"
        )


class _Timed:
    """Socket for `http.client` whose operations share one deadline."""

    def __init__(self, inner: socket.socket, ends: float) -> None:
        self._inner, self._ends = inner, ends

    def sendall(self, data: bytes) -> None:
        self._inner.settimeout(_left(self._ends))
        self._inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._inner, self._ends))

    def close(self) -> None:
        """Do nothing: `http.client` closes the socket before reading the body."""


class _Reader(io.RawIOBase):
    def __init__(self, inner: socket.socket, ends: float) -> None:
        super().__init__()
        self._inner, self._ends = inner, ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._inner.settimeout(_left(self._ends))
        return self._inner.recv_into(buffer)


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _error_code(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Error).error_code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
