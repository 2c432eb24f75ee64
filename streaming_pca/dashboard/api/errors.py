"""Problem responses (RFC 9457) of the API, one line each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from streaming_pca.dashboard.api.limiter import Overloaded
from streaming_pca.dashboard.observing.lookup import Unknown
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.service.errors import BrokerUnreachable, TopicError
from streaming_pca.service.http.access import problem

log = logging.getLogger(__name__)

_RETRY_SECONDS = "5"
_MOST_CHARACTERS = 500  # longest line: some lines quote the request
_STATUS: tuple[tuple[HTTPStatus, tuple[type[Exception], ...]], ...] = (
    (HTTPStatus.NOT_FOUND, (Unknown,)),
    (HTTPStatus.UNPROCESSABLE_ENTITY, (ParameterError,)),
    (HTTPStatus.SERVICE_UNAVAILABLE, (BrokerUnreachable, TopicError, Overloaded)),
)


class StrictRoute(APIRoute):
    """Route that rejects unknown parameters and answers every error with a problem."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = [field.alias for field in self.dependant.query_params]

        async def answer(request: Request) -> Response:
            if (refusal := _unknown_parameter(request, known)) is not None:
                return problem(request.scope, HTTPStatus.UNPROCESSABLE_ENTITY, refusal)
            try:
                return await handle(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:
                return _error_response(request, error)

        return answer


def _unknown_parameter(request: Request, known: list[str]) -> str | None:
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            others = f"use {', '.join(known)}" if known else "this path takes none"
            return _line(f"unknown parameter {name!r}: {others}")
        if given.count(name) > 1:
            return f"parameter {name!r} is given {given.count(name)} times: give it once"
    return None


def _error_response(request: Request, error: Exception) -> Response:
    for status, kinds in _STATUS:
        if isinstance(error, kinds):
            retry = {"retry_after": _RETRY_SECONDS} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
            return problem(request.scope, status, _line(str(error)), **retry)
    # An error's text can contain anything, so it is only logged.
    log.error("no answer to %s %r", request.method, request.scope["path"], exc_info=error)
    detail = "the server failed on this request: see its log"
    return problem(request.scope, HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def add_problems(app: FastAPI) -> None:
    """Install handlers that answer errors in paths, methods and parameters with problems."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(request.scope, HTTPStatus.UNPROCESSABLE_ENTITY, _first(error))

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, path = HTTPStatus(error.status_code), request.scope["path"]
        if status is HTTPStatus.NOT_FOUND:
            return problem(request.scope, status, _line(f"unknown path {path}: see /v1/openapi.json"))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = _methods(app.routes, request)
            return problem(request.scope, status, f"use {allowed}", allow=allowed)
        return problem(request.scope, status, _line(str(error.detail)))

    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(HTTPException, failed)


def _methods(routes: list[BaseRoute], request: Request) -> str:
    found: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


def _first(error: RequestValidationError) -> str:
    """Describe the missing parameters, or the first invalid one, in one line."""
    missing = [".".join(map(str, each["loc"][1:])) for each in error.errors() if each["type"] == "missing"]
    if missing:
        return f"missing: {', '.join(missing)}"
    first = error.errors()[0]
    place, *rest = (str(part) for part in first["loc"])
    name = ".".join(rest) or place
    text = first["msg"].removeprefix("Input ")
    return _line(f"{name} {text}" if first["msg"].startswith("Input ") else f"{name}: {text}")


def _line(text: str) -> str:
    """Return the first line of a text, truncated if it is too long."""
    lines = text.splitlines() or [""]
    return lines[0] if len(lines[0]) <= _MOST_CHARACTERS else lines[0][: _MOST_CHARACTERS - 1] + "…"
