"""Routes of streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from streaming_pca.dashboard.api.conditional import answer
from streaming_pca.dashboard.api.context import Context
from streaming_pca.dashboard.api.parameters import Before, Limit, Name
from streaming_pca.dashboard.api.problems import NotReady
from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.models import Budget, History, ReleasePage, StreamDetail, StreamPage
from streaming_pca.dashboard.observing.errors import UnknownLedger

After = Annotated[
    str | None,
    Query(description="Only names after this one: `next` of the previous page.", max_length=200),
]


def add_streams(app: FastAPI, context: Context) -> None:
    """Add the routes of streams."""
    observer = context.observer

    @app.get("/v1/streams", response_model=StreamPage, tags=["streams"], operation_id="listStreams")
    async def list_streams(request: Request, limit: Limit = 50, after: After = None) -> Response:
        """List streams, ordered by name."""
        found = await context.memory.call(observer.overview)
        streams = sorted(found.streams, key=lambda stream: stream.name)
        later = [stream for stream in streams if after is None or stream.name > after]
        items = later[:limit]
        next = items[-1].name if len(later) > limit else None
        page = StreamPage(items=items, next=next, connection=found.connection)
        return answer(request, page, ("after", next))

    @app.get("/v1/streams/{name}", response_model=StreamDetail, tags=["streams"], operation_id="getStream")
    async def get_stream(request: Request, name: Name) -> Response:
        """Get a stream with its guarantee in words."""
        found = await context.memory.call(lambda: observer.stream(name))
        return answer(request, found.model_copy(update={"guarantee": guarantee_in_words(found)}))

    @app.get(
        "/v1/streams/{name}/history", response_model=History, tags=["streams"], operation_id="getHistory"
    )
    async def get_history(request: Request, name: Name) -> Response:
        """Get the last releases as columns, oldest first."""
        return answer(request, await context.memory.call(lambda: observer.history(name)))

    @app.get("/v1/streams/{name}/budget", response_model=Budget, tags=["streams"], operation_id="getBudget")
    async def get_budget(request: Request, name: Name) -> Response:
        """Get the charged and remaining budget of a stream's records."""
        found = await context.memory.call(lambda: observer.stream(name))
        if found.budget is not None:
            return answer(request, found.budget)
        connection = (await context.memory.call(observer.overview)).connection
        if not connection.loaded:
            raise NotReady(connection.problem or "the topics are still being read: try again later")
        reason = found.problem or "it is not open"
        raise UnknownLedger(f"the ledger of topic {found.input!r} has no budget: {reason}")

    @app.get(
        "/v1/streams/{name}/releases",
        response_model=ReleasePage,
        tags=["releases"],
        operation_id="listReleases",
    )
    async def list_releases(
        request: Request, name: Name, limit: Limit = 50, before: Before = None
    ) -> Response:
        """List the releases in memory, newest first."""
        page = await context.memory.call(lambda: observer.releases(name, limit, before))
        return answer(request, page, ("before", page.next))
