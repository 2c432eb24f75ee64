"""The application of the HTTP API."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI, Request, Response

from streaming_pca.dashboard.api.conditional import HeadAnswers, answer_bytes
from streaming_pca.dashboard.api.document import make_document
from streaming_pca.dashboard.api.errors import StrictRoute, add_problems
from streaming_pca.dashboard.api.events import add_events
from streaming_pca.dashboard.api.limiter import Limiter
from streaming_pca.dashboard.api.planning import add_planning
from streaming_pca.dashboard.api.routes import Context, add_ledgers, add_releases, add_streams

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer


def make_api(observer: Observer, *, broker_seconds: float = 15.0) -> FastAPI:
    """Make the application of the API, with a time limit for answers of the broker.

    The server (:mod:`streaming_pca.service.http`) checks access, and limits requests and event streams.
    """
    context = Context(
        observer,
        memory=Limiter(16, 10.0, "the dashboard"),
        broker=Limiter(8, broker_seconds, "the broker"),
        plans=Limiter(2, 10.0, "the forecast"),
    )
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.router.route_class = StrictRoute
    add_problems(app)
    for add in (add_streams, add_releases, add_ledgers, add_planning, add_events):
        add(app, context)

    @app.get("/v1/openapi.json", tags=["document"], operation_id="getDocument", response_model=dict[str, Any])
    async def get_document(request: Request) -> Response:
        """Get this document."""
        body = json.dumps(app.openapi(), separators=(",", ":"), ensure_ascii=False).encode()
        return answer_bytes(request, body, f'W/"{hashlib.sha256(body).hexdigest()[:32]}"', "application/json")

    def document() -> dict[str, Any]:
        app.openapi_schema = app.openapi_schema or make_document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    app.add_middleware(HeadAnswers)
    return app


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document, without contacting a broker."""
    # Routes do not use the observer before the first request.
    return make_api(cast("Observer", None)).openapi()
