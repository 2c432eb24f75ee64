"""One browser for the tests of a file; one running stream and its dashboard for all files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.serving import Dashboard, RunningStream, dashboard
from tests.browser.visits import Visit, chromium, find_chromium, playing, revisiting, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RUNNING = "tests/browser/running"
"""Group of the tests that share the running stream."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium without a screen."""
    program = find_chromium()
    with playing() as playwright, chromium(playwright, program) as started:
        yield started


@pytest.fixture(scope="package")
def running(
    fork_server: None,
    kafka_bootstrap: str,
    session_ms: int,
    unique_name: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningStream]:
    """Start a stream with a worker that has published its first releases."""
    # Without a browser a stream would waste time.
    find_chromium()
    folder = tmp_path_factory.mktemp("running")
    stream = RunningStream.start(kafka_bootstrap, unique_name("visits"), folder, session_ms)
    try:
        stream.learn(batches=3)
        yield stream
    finally:
        stream.stop()


@pytest.fixture(scope="package")
def site(running: RunningStream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Serve the dashboard of the running stream."""
    folder: Path = tmp_path_factory.mktemp("dashboard")
    with dashboard(folder, [running.settings, *running.others]) as served:
        served.wait_until_loaded()
        yield served


@pytest.fixture(scope="module")
def kept(browser: Browser, site: Dashboard) -> Iterator[Visit]:
    """Keep one page for a file's tests; a file may open another one."""
    with visiting(browser, site.home) as made:
        yield made


@pytest.fixture
def visit(kept: Visit) -> Iterator[Visit]:
    """Lend a test the kept page."""
    with revisiting(kept) as lent:
        yield lent
