"""One browser, one running stream and one dashboard for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.serving import Dashboard, RunningStream, dashboard
from tests.browser.visits import chromium, find_chromium, playing

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium without a screen."""
    program = find_chromium()
    with playing() as playwright, chromium(playwright, program) as started:
        yield started


@pytest.fixture(scope="module")
def running(
    browser: Browser,  # before the worker: without a browser a stream would waste time
    fork_server: None,
    kafka_bootstrap: str,
    session_ms: int,
    unique_name: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningStream]:
    """Start a stream with a worker that has published its first releases."""
    folder = tmp_path_factory.mktemp("running")
    stream = RunningStream.start(kafka_bootstrap, unique_name("visits"), folder, session_ms)
    try:
        stream.learn(batches=3)
        yield stream
    finally:
        stream.stop()


@pytest.fixture(scope="module")
def site(running: RunningStream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Serve the dashboard of the running stream."""
    folder: Path = tmp_path_factory.mktemp("dashboard")
    with dashboard(folder, [running.settings, *running.others]) as served:
        served.wait_until_loaded()
        yield served
