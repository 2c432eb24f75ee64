"""Server-sent events, which announce what clients should fetch again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import FastAPI, Header, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from streaming_pca.dashboard.api.conditional import HEAD
from streaming_pca.dashboard.api.routes import Context
from streaming_pca.dashboard.models import Event

PING_SECONDS = 15
_RETRY_MS = 3000
_SEND_SECONDS = 30.0
_MOST_EVENTS = 256  # largest number of queued events of a client; on overflow a single one replaces them all

LastEventId = Annotated[
    str | None, Header(description="Id of the last event that the client has seen.", max_length=100)
]


class Mailbox:
    """Bounded queue of a client's events; on overflow, one "connection" event replaces all: fetch again."""

    def __init__(self, most: int = _MOST_EVENTS) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue(most)
        self._loop = asyncio.get_running_loop()

    def post(self, event: Event) -> None:
        """Add an event; can be called from any thread."""
        with suppress(RuntimeError):
            # Raised once the server has stopped and the client is disconnected.
            self._loop.call_soon_threadsafe(self._put, event)

    async def get(self) -> Event:
        return await self._queue.get()

    def _put(self, event: Event) -> None:
        if self._queue.full():
            while not self._queue.empty():
                self._queue.get_nowait()
            event = Event(kind="connection", revision=event.revision)
        self._queue.put_nowait(event)


def add_events(app: FastAPI, context: Context) -> None:
    observer = context.observer
    # Revisions restart with each process; the start time distinguishes processes that reuse a PID.
    process = f"{os.getpid():x}.{time.time_ns():x}"

    def encoded(event: Event) -> ServerSentEvent:
        id_ = f"{process}-{event.revision}"
        return ServerSentEvent(event.model_dump_json(), event=event.kind, id=id_, sep="\n")

    async def follow(last: str | None) -> AsyncIterator[ServerSentEvent]:
        mailbox = Mailbox()
        unlisten = observer.listen(mailbox.post)
        try:
            revision = (await context.memory.call(observer.overview)).revision
            yield ServerSentEvent(comment="events follow", retry=_RETRY_MS, sep="\n")
            if last is not None and last != f"{process}-{revision}":
                # Old events are not stored: a client that missed some fetches everything.
                yield encoded(Event(kind="connection", revision=revision))
            while True:
                yield encoded(await mailbox.get())
        finally:
            unlisten()

    @app.get(
        "/v1/events",
        response_class=EventSourceResponse,
        tags=["events"],
        operation_id="followEvents",
        responses={
            200: {
                "description": "Endless stream of events; the data of each is an Event as JSON.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
    )
    async def follow_events(request: Request, last_event_id: LastEventId = None) -> Response:
        """Follow events about releases, ledgers, statuses and the connection."""
        if request.scope.get(HEAD):
            return Response(media_type="text/event-stream", headers={"cache-control": "no-store"})
        return EventSourceResponse(
            follow(last_event_id), ping=PING_SECONDS, sep="\n", send_timeout=_SEND_SECONDS
        )
