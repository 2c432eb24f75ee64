"""Observed streams on Kafka, with a running server in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.routing import Mount

from streaming_pca.dashboard.api.application import make_api
from streaming_pca.dashboard.observing.observer import Observer
from tests.dashboard.streams import MadeStream, make_stream
from tests.service.http.running import Answer, Running, serving
from tests.waiting import wait_for

FEATURES = ["air time", "delay", "distance", "größe", "month"]


class ApiSite:
    """Site with the API alone, over any observer, which it starts and stops if ``runs``."""

    def __init__(self, observer: Any, runs: bool = True, **how: Any) -> None:
        self.routes = [Mount("", app=make_api(observer, **how))]
        self.start = observer.start if runs else lambda: None
        self.stop = observer.stop if runs else lambda: None


@dataclass
class World:
    """Streams with 30 releases, with three, without a release and without topics, as they are served."""

    flights: MadeStream
    few: MadeStream
    unborn: MadeStream
    missing: MadeStream
    observer: Observer
    server: Running

    @property
    def names(self) -> list[str]:
        return sorted(s.name for s in (self.flights, self.few, self.unborn, self.missing))

    def get(self, path: str, **headers: str) -> Answer:
        return self.server.ask(f"/v1/{path}", **headers)

    def json(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return answer.json


@pytest.fixture(scope="module")
def world(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> Iterator[World]:
    """Make streams, and serve them."""

    def make(stem: str, **how: Any) -> MadeStream:
        return make_stream(kafka_bootstrap, unique_name(stem), **how)

    flights = make("flights", releases=30, feature_names=FEATURES)
    few, unborn = make("few", releases=3), make("unborn")
    missing = make("missing", topics=False)
    observer = Observer([one.settings for one in (flights, few, unborn, missing)])
    with serving(site=ApiSite(observer), requests_per_second=10_000, event_streams=3) as server:
        wait_for("all topics", lambda: observer.overview().connection.loaded)
        yield World(flights, few, unborn, missing, observer, server)
