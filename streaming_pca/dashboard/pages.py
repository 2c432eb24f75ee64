"""Routes of the dashboard's pages: one shell, its static files and plotly's browser bundle.

The files contain no data and are served without a token. Their URLs contain a digest of all files, so
that browsers can cache them permanently and never mix two versions.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from streaming_pca.dashboard.api.conditional import names_tag

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
"""Policy of all pages: same origin only, nothing inline, no ``eval``."""

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every response."""

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
"""Media types of static files by extension; files with other extensions are not served."""
_PLOTLY = "plotly.min.js"
_LEAST_GZIP = 1024  # size in bytes below which compression saves no packet
_PIECE = 64 * 1024  # largest piece of a body, in bytes
_DEEPEST = 8  # most folders of a mistyped address that is answered with a page
_FOR_GOOD = "public, max-age=31536000, immutable"
_ROOT, _STATIC = "{root}", "{static}"
"""Placeholders in the shell for the relative paths to the root and to the static files."""


@dataclass(frozen=True)
class _File:
    """Static file with its compressed form."""

    body: bytes
    compressed: bytes | None
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, media_type: str) -> _File:
        # mtime=0: the same file has the same bytes in all processes.
        small = gzip.compress(body, 6, mtime=0) if len(body) >= _LEAST_GZIP else None
        return cls(body, small, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(self, request: Request, caching: str) -> Response:
        """Answer with the file, compressed if the client accepts gzip, or with 304."""
        headers = {**SECURITY_HEADERS, "Cache-Control": caching, "ETag": self.etag, "Vary": "Accept-Encoding"}
        if names_tag(request, self.etag):
            return Response(status_code=304, headers=headers)
        body = self.body
        if self.compressed is not None and _takes_gzip(request.headers.get("accept-encoding", "")):
            body = self.compressed
            headers["Content-Encoding"] = "gzip"
        if len(body) <= _PIECE:
            return Response(body, headers=headers, media_type=self.media_type)
        # In pieces, each sent when the client is ready: whole bodies for many slow clients would fill memory.
        headers["Content-Length"] = str(len(body))
        return StreamingResponse(_pieces(body), headers=headers, media_type=self.media_type)


class _Pages:
    """Files in memory; plotly's bundle is read at its first request."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.suffix in _TYPES
        }
        self._shell = (folder / "index.html").read_text(encoding="utf-8")
        # Plotly is identified by its version: hashing its 5 MB would delay each start.
        digest = hashlib.sha256(metadata.version("plotly").encode())
        for name, body in sorted(self._files.items()):
            digest.update(f"{name} {len(body)}\n".encode() + body)
        self.digest = digest.hexdigest()[:16]
        self._shells: dict[int, _File] = {}
        self._ready: dict[str, _File] = {}
        self._lock = threading.Lock()

    def shell(self, depth: int) -> _File:
        """Return the page for a path with ``depth`` folders."""
        # Without the lock: it is held while the bundle is compressed, and this runs in the event loop.
        if depth not in self._shells:
            root = "../" * depth or "./"
            text = self._shell.replace(_STATIC, f"{root}static/{self.digest}/").replace(_ROOT, root)
            self._shells[depth] = _File.of(text.encode(), "text/html; charset=utf-8")
        return self._shells[depth]

    def file(self, name: str) -> _File | None:
        body = self._files.get(name)
        if body is None and name != _PLOTLY:
            return None
        with self._lock:
            if name not in self._ready:
                body = plotly_bundle() if body is None else body
                self._ready[name] = _File.of(body, _TYPES[Path(name).suffix])
            return self._ready[name]


def page_routes() -> list[BaseRoute]:
    """Return the routes of pages and static files; pages request their data from the API."""
    pages = _Pages(Path(__file__).with_name("assets"))

    async def static(request: Request) -> Response:
        digest, name = request.path_params["digest"], request.path_params["name"]
        # In a thread: compressing the bundle takes a moment and must not block the event loop.
        found = await asyncio.to_thread(pages.file, name) if digest == pages.digest else None
        if found is None:
            return PlainTextResponse("not found\n", 404, headers=dict(SECURITY_HEADERS))
        return found.answer(request, _FOR_GOOD)

    async def shell(request: Request) -> Response:
        return pages.shell(len(request.path_params)).answer(request, "no-cache")

    async def mistyped(request: Request) -> Response:
        response = pages.shell(_depth(request.scope)).answer(request, "no-cache")
        response.status_code = 404 if response.status_code == 200 else 304
        return response

    paths = ("/", "/plan", "/ledger", "/streams/{name}", "/ledger/{input}")
    found = [*(Route(path, shell) for path in paths), Route("/static/{digest}/{name:path}", static)]
    return [*found, _BrowserRoute("/{path:path}", mistyped)]


class _BrowserRoute(Route):
    """Route of a browser's mistyped addresses; programs, and all paths of the API, get a problem as JSON."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_page = "text/html" in Headers(scope=scope).get("accept", "")
        # Pages are kept in memory: anyone could ask for one of each depth.
        if not is_page or scope["path"].startswith("/v1") or _depth(scope) > _DEEPEST:
            return Match.NONE, {}
        return super().matches(scope)


def _depth(scope: Scope) -> int:
    """Return the number of a path's folders; browsers do not decode %2F."""
    return int(scope["raw_path"].count(b"/")) - 1


def plotly_bundle() -> bytes:
    return (resources.files("plotly") / "package_data" / _PLOTLY).read_bytes()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _takes_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    for part in header.split(","):
        coding, _, weight = part.strip().partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
