"""Observers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.observing.observer import Observer
from tests.dashboard.streams import MadeStream, make_stream
from tests.waiting import wait_for

Observe = Callable[..., Observer]
Make = Callable[..., MadeStream]


@pytest.fixture
def observe() -> Iterator[Observe]:
    """Start an observer of made streams or settings, and wait until all topics are read."""
    started: list[Observer] = []

    def start(*streams: MadeStream | Settings, loaded: bool = True, **how: Any) -> Observer:
        observer = Observer([s.settings if isinstance(s, MadeStream) else s for s in streams], **how)
        started.append(observer)
        observer.start()
        if loaded:
            wait_for("all topics", lambda: observer.overview().connection.loaded)
        return observer

    yield start
    for observer in started:
        observer.stop()


@pytest.fixture
def make(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> Make:
    """Make a stream with a new name."""

    def made(stem: str = "seen", **how: Any) -> MadeStream:
        return make_stream(kafka_bootstrap, unique_name(stem), **how)

    return made
