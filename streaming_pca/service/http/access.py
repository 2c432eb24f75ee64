"""Access control of the HTTP server: bearer tokens, host names and routes without a token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import stat
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from streaming_pca.config.http import HttpSettings, is_loopback, read_token
from streaming_pca.config.kafka import ConfigurationError

log = logging.getLogger(__name__)

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}

AUTHORIZED = "streaming_pca.authorized"
"""Key of a request's scope: True if the request has the token, or does not need it."""


def problem(scope: Scope, status: HTTPStatus, detail: str, **headers: str) -> JSONResponse:
    """Return an error response in the format of RFC 9457; header names use ``_`` for ``-``."""
    body = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "instance": scope["path"],
    }
    named = {"cache-control": "no-store"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(body, status.value, named, "application/problem+json")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Token:
    """Token of requests; a changed file is read again, and only the token's digest is stored.

    Without ``file``, ``secret`` is the token; ``name`` is the setting's, for messages. Raises
    ConfigurationError if the file does not contain a token; if that happens later, all requests are refused.
    """

    def __init__(self, name: str, secret: SecretStr | None, file: Path | None) -> None:
        self._name, self._file = name, file
        self._digest = None if secret is None else _digest(secret.get_secret_value())
        self._seen: tuple[int, ...] | None = None
        if file is not None:
            self._seen = self._stamp(file)
            self._digest = self._read(file)

    def matches(self, given: str) -> bool:
        """Return whether this is the token, in constant time."""
        self._refresh()
        # Digests have equal lengths, and the duration of their comparison reveals nothing about the token.
        return self._digest is not None and hmac.compare_digest(_digest(given), self._digest)

    def _refresh(self) -> None:
        if self._file is None:
            return
        before, self._seen = self._seen, None
        try:
            self._seen = self._stamp(self._file)
            if self._seen != before:
                self._digest = self._read(self._file)
                log.info("http.%s: the file has changed, and was read again", self._name)
        except ConfigurationError as error:
            # A missing file is reported once.
            if self._seen is not None or self._digest is not None:
                log.error("%s: no token is accepted", error)
            self._digest = None

    def _stamp(self, file: Path) -> tuple[int, ...]:
        try:
            found = file.stat()
        except OSError as error:
            raise ConfigurationError(f"http.{self._name}: {file}: {error.strerror or error}") from None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self, file: Path) -> bytes:
        token = read_token(self._name, file)
        if file.stat().st_mode & stat.S_IROTH:
            log.warning("http.%s: %s: every user of this machine can read it: chmod o-r", self._name, file)
        return _digest(token)


def make_tokens(settings: HttpSettings) -> tuple[Token | None, Token | None]:
    """Return the tokens of API and metrics, None if unprotected; raise ConfigurationError for bad files."""

    def made(name: str, secret: SecretStr | None, file: Path | None) -> Token | None:
        if secret is None and file is None:
            return None
        return Token(name if file is None else f"{name}_file", secret, file)

    token = made("token", settings.token, settings.token_file)
    return token, made("metrics_token", settings.metrics_token, settings.metrics_token_file) or token


class Access:
    """Middleware that passes permitted requests on.

    ``/healthz``, ``/readyz`` without details, and the pages, which contain no data, do not need a token. The
    request's scope records for its endpoint whether the request had one.
    """

    def __init__(
        self, app: ASGIApp, settings: HttpSettings, token: Token | None, metrics_token: Token | None
    ) -> None:
        self._app, self._origins = app, frozenset(settings.origins)
        self._token, self._metrics_token = token, metrics_token
        self._is_known = _known_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] == "/healthz"
        refused = None if is_open else self._refusal(scope, Headers(scope=scope))
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        host, path = headers.get("host", ""), scope["path"]
        is_known = self._is_known(_without_port(host))
        if not is_known and path != "/readyz":
            # Another site's page whose host name resolves to this machine (DNS rebinding).
            detail = "the header Host names another server: use the printed address, or set http.hosts"
            return problem(scope, HTTPStatus.MISDIRECTED_REQUEST, detail)
        origin = headers.get("origin", "").lower()
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
        if scope["method"] not in _SAFE_METHODS and origin and origin not in own | self._origins:
            detail = "pages of other sites are not allowed to do this: add their origin to http.origins"
            return problem(scope, HTTPStatus.FORBIDDEN, detail)
        if not path.isprintable():
            # Route patterns end with "$", which also matches before a line feed, as in /metrics%0A.
            return problem(
                scope, HTTPStatus.NOT_FOUND, "a path must not have control characters or line separators"
            )
        if path == "/metrics":
            needed, setting = self._metrics_token, "http.metrics_token"
        else:
            needed, setting = self._token, "http.token"
        given = _bearer(headers)
        # Probes use their platform's name or address for this host, and receive only the status.
        scope[AUTHORIZED] = is_known and (needed is None or (given is not None and needed.matches(given)))
        if scope[AUTHORIZED] or not (path in ("/metrics", "/v1") or path.startswith("/v1/")):
            return None
        detail = f"the token is wrong ({setting})"
        if given is None:
            detail = f"a token is needed, in the header Authorization: Bearer TOKEN ({setting})"
        challenge = 'Bearer realm="streaming-pca"'
        return problem(scope, HTTPStatus.UNAUTHORIZED, detail, www_authenticate=challenge)


def _bearer(headers: Headers) -> str | None:
    given = headers.getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    # A fully qualified name may end with a dot.
    return host.partition(":")[0].lower().removesuffix(".")


def _known_hosts(settings: HttpSettings) -> Callable[[str], bool]:
    """Return the check of the Host header's name.

    Addresses are allowed because they cannot be rebound by DNS; requests without the header because
    browsers always send it. Proxies, probes and scrapers send both.
    """
    named = frozenset(settings.hosts)
    if not named and not is_loopback(settings.host):
        return lambda host: True
    return lambda host: not host or host in named or is_loopback(host.strip("[]")) or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
