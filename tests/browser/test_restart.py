"""Pages report a missing broker, keep their numbers, and catch up when it returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.serving import dashboard
from tests.browser.visits import numbers, visiting
from tests.dashboard.streams import make_stream
from tests.kafka.faulty_cluster import FaultyCluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.kafka]


@pytest.mark.soak
def test_pages_survive_a_restart_of_the_broker(
    browser: Browser, make_cluster: Callable[..., FaultyCluster], tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=1, replication=1, in_sync=1)
    stream = make_stream(cluster.bootstrap, "restarted", releases=3)
    records, banner = '[data-stream="restarted"] [data-field="records"]', '[data-banner="connection"]'
    with (
        dashboard(tmp_path, [stream.settings]) as site,
        visiting(browser, site.home) as streams,
        visiting(browser, site.home) as one,
    ):
        site.wait_until_loaded()
        streams.go("/")
        one.go("/streams/restarted")
        for visit in (streams, one):
            assert numbers(visit.text(records)) == [300]
            assert not visit.page.locator(banner).is_visible()
        cluster.kill(1)
        for visit in (streams, one):
            visit.wait(banner)
            assert "\n" not in visit.text(banner)
            # Known numbers stay.
            assert numbers(visit.text(records)) == [300]
        # This also holds for a page opened now.
        with visiting(browser, site.home) as late:
            late.go("/")
            assert numbers(late.text(records)) == [300]
            late.wait(banner)
        cluster.start(1)
        stream.publish(1)
        for visit in (streams, one):
            visit.page.locator(banner).wait_for(state="hidden")
            visit.shows(records, 400)
