"""Streams for the tests of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.stream import Stream

Make = Callable[..., Stream]
Name = Callable[[str], str]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def make_stream(
    fork_server: None, kafka_bootstrap: str, unique_name: Name, tmp_path: Path, session_ms: int
) -> Iterator[Make]:
    """Make streams, and end their children after the test."""
    made: list[Stream] = []

    def make(stem: str = "s", **how: Any) -> Stream:
        how = {"session_ms": session_ms} | how
        stream = Stream.make(kafka_bootstrap, unique_name(stem), tmp_path, **how)
        made.append(stream)
        return stream

    yield make
    for stream in made:
        stream.destroy()
