"""Fifty streams and a thousand releases: time to the first numbers, and memory in the browser.

Other tests use the processors too: a page is opened until one load keeps the limit, and fails unless one
is within twice of it. The measurements are in the file that the last lines of the run name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.serving import Dashboard, dashboard
from tests.browser.visits import Visit, memory_of_pages, numbers, visiting
from tests.dashboard.streams import MadeStream, make_streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.kafka]

STREAMS, RELEASES = 50, 1000
LIMIT_MS = 200
"""Longest time from the start of the navigation until the first numbers are painted."""
LIMIT_BYTES = 300_000_000
"""Maximum memory of the browser's page processes."""
SLACK = 2
"""Other tests may slow down the fastest load by this factor."""
LOADS = 5
MOST_LOADS = 20


@pytest.fixture(scope="module")
def streams(browser: Browser, kafka_bootstrap: str, unique_name: Callable[[str], str]) -> list[MadeStream]:
    """Make fifty streams on five inputs; the first has a thousand releases."""
    stem = unique_name("many")
    made = make_streams(
        kafka_bootstrap,
        [f"{stem}-{i:02}" for i in range(STREAMS)],
        releases=10,
        ledger_batches=2,
        dim=20,
        rank=4,
        feature_names=[f"feature {j}" for j in range(20)],
    )
    made[0].publish(RELEASES - 10, entries=False)
    return made


@pytest.fixture(scope="module")
def full(streams: list[MadeStream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("full")
    # No person opens a page twenty times in a few seconds.
    with dashboard(folder, [made.settings for made in streams], requests_per_second=1000) as site:
        site.wait_until_loaded()
        yield site


def first_paint(visit: Visit) -> float:
    """Return the milliseconds from the start of the navigation until numbers were painted."""
    mark = "performance.getEntriesByName('data-painted')[0]?.startTime"
    return round(float(visit.until(lambda: visit.page.evaluate(mark), "the first paint")), 1)


@pytest.mark.soak
def test_fifty_streams_and_a_thousand_releases_stay_within_their_limits(
    browser: Browser,
    full: Dashboard,
    streams: list[MadeStream],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    big = streams[0].name
    pages = {
        "streams": ("/", f'[data-stream="{streams[-1].name}"] [data-field="last_release.batch"]', 10),
        "stream": (f"/streams/{big}", f'[data-stream="{big}"] [data-field="last_release.batch"]', RELEASES),
    }
    found: dict[str, Any] = {}
    for name, (path, selector, batch) in pages.items():
        with visiting(browser, full.home) as visit:
            times: list[float] = []
            while len(times) < LOADS or (min(times) >= LIMIT_MS and len(times) < MOST_LOADS):
                visit.go(path)
                times.append(first_paint(visit))
            assert numbers(visit.text(selector)) == [batch]
            visit.page.wait_for_timeout(1000)
            found[name] = {"first_paint_ms": times, "memory_bytes": memory_of_pages(browser)}
    report = tmp_path / "size.json"
    report.write_text(json.dumps(found, indent=1))
    record_property("to look at", str(report))
    for name, measured in found.items():
        times = measured["first_paint_ms"]
        assert min(times) < SLACK * LIMIT_MS, (name, times)
        assert measured["memory_bytes"] < LIMIT_BYTES, (name, measured)
