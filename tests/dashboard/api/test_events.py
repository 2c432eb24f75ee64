"""Events reach clients as they happen, in bounded memory, and end with the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from streaming_pca.dashboard.api.events import Mailbox
from streaming_pca.dashboard.models import Event
from streaming_pca.dashboard.observing.observer import Observer
from tests.dashboard.api.conftest import ApiSite
from tests.dashboard.streams import MadeStream, make_stream
from tests.service.http.running import Running, serving
from tests.waiting import LIMIT, wait_for


@pytest.fixture
def made(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> MadeStream:
    return make_stream(kafka_bootstrap, unique_name("followed"), releases=1)


@pytest.fixture
def observer(made: MadeStream) -> Observer:
    return Observer([made.settings])


@pytest.fixture
def server(observer: Observer) -> Iterator[Running]:
    with serving(site=ApiSite(observer), event_streams=2) as running:
        wait_for("all topics", lambda: observer.overview().connection.loaded)
        yield running


class Stream:
    """Stream of events, positioned after its first block."""

    def __init__(self, server: Running, **headers: str) -> None:
        self._connection = server.connect()
        self._connection.request("GET", "/v1/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        assert self._answer.headers["cache-control"] == "no-store"
        assert self.block()["retry"] == "3000"

    def block(self) -> dict[str, str]:
        """Read one block as its fields; it has none at the end."""
        found: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        return found

    def until(self, kind: str) -> dict[str, str]:
        while True:
            block = self.block()
            assert block, "the stream has ended"
            if block.get("event") == kind:
                return block

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_a_release_is_told_and_then_there(server: Running, made: MadeStream) -> None:
    answer = Stream(server)
    made.publish(1)
    block = answer.until("release")
    event = Event.model_validate_json(block["data"])
    assert (event.kind, event.stream, event.batch) == ("release", made.name, 2)
    assert block["id"].endswith(f"-{event.revision}")
    assert server.ask(f"/v1/streams/{made.name}/releases/latest").body == made.values[-1]
    assert json.loads(answer.until("ledger")["data"])["input"] == made.settings.stream.input
    answer.close()


def test_who_has_missed_events_is_told_to_fetch_everything(
    server: Running, observer: Observer, made: MadeStream
) -> None:
    answer = Stream(server)
    made.publish(1)
    seen = answer.until("standing")["id"]
    answer.close()
    made.publish(1)
    wait_for("the history", lambda: observer.history(made.name).batch[-1] == 3)
    back = Stream(server, **{"Last-Event-ID": seen})
    assert back.block()["event"] == "connection"
    back.close()
    stranger = Stream(server, **{"Last-Event-ID": "of another process"})
    assert stranger.block()["event"] == "connection"
    stranger.close()


def test_head_ends_at_once_and_too_many_streams_are_refused(server: Running) -> None:
    assert server.ask("/v1/events", "HEAD").status == 200
    streams = [Stream(server), Stream(server)]
    refused = server.ask("/v1/events")
    assert refused.status == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert "event_streams" in refused.json["detail"]
    for one in streams:
        one.close()
    wait_for("a place", lambda: server.ask("/v1/events", "HEAD").status == 200)


def test_streams_end_with_the_server_and_leave_no_listener(made: MadeStream) -> None:
    observer = Observer([made.settings])
    with serving(site=ApiSite(observer)) as running:
        wait_for("all topics", lambda: observer.overview().connection.loaded)
        gone = Stream(running)
        gone.close()
        answer = Stream(running)
        listeners = observer._watched.listeners
        ended = "the end of the other listener"
        wait_for(ended, lambda: made.publish(1) and len(listeners._listeners) == 1)
    # The stream's client stays: a server that waits for it would not end.
    assert running.stopped_in < LIMIT
    while answer.block():
        pass
    answer.close()
    assert not observer._watched.listeners._listeners


def test_a_slow_client_gets_one_event_in_place_of_too_many() -> None:
    async def run() -> list[Event]:
        mailbox = Mailbox(most=4)
        for revision in range(1, 8):
            mailbox.post(Event(kind="release", stream="s", batch=revision, revision=revision))
        await asyncio.sleep(0)
        return [await asyncio.wait_for(mailbox.get(), LIMIT) for _ in range(3)]

    kinds = [(event.kind, event.revision) for event in asyncio.run(run())]
    assert kinds == [("connection", 5), ("release", 6), ("release", 7)]


def test_events_behind_the_end_of_a_loop_are_dropped() -> None:
    async def run() -> Mailbox:
        return Mailbox()

    asyncio.run(run()).post(Event(kind="connection", revision=1))
