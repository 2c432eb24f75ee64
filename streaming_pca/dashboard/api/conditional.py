"""Responses with an ETag, and HEAD requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD = "streaming_pca.head"  # key in a request's scope that marks a HEAD request


def answer(request: Request, model: BaseModel, next: tuple[str, str | int | None] | None = None) -> Response:
    """Return a model as JSON with a weak ETag, or 304 if unchanged.

    ``next`` has the name of the paging parameter and its value for the next page.
    """
    body = model.model_dump_json().encode()
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {}
    if next is not None and next[1] is not None:
        # Relative to this page.
        headers["link"] = f'<?{request.url.include_query_params(**{next[0]: next[1]}).query}>; rel="next"'
    return answer_bytes(request, body, tag, "application/json", headers)


def answer_bytes(
    request: Request, body: bytes, tag: str, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return bytes with their ETag, or 304; by default caches revalidate each time."""
    named = {"cache-control": "no-cache", **(headers or {}), "etag": tag, "vary": "Authorization"}
    if names_tag(request, tag):
        kept = {name: value for name, value in named.items() if name in ("cache-control", "etag", "vary")}
        return Response(status_code=304, headers=kept)
    named["x-content-type-options"] = "nosniff"
    return Response(body, media_type=media_type, headers=named)


def names_tag(request: Request, tag: str) -> bool:
    """Return whether an If-None-Match header contains the tag, by weak comparison."""
    fields = request.headers.getlist("if-none-match")
    tags = {each.strip().removeprefix("W/") for field in fields for each in field.split(",")}
    return "*" in tags or tag.removeprefix("W/") in tags


class HeadAnswers:
    """Middleware that answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET", HEAD: True}, receive, without_body)
