"""The token is requested, kept for the tab, sent always, and never in an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.scenes import Scenes
from tests.browser.serving import Dashboard, dashboard
from tests.browser.visits import Visit, accessibility_problems, visiting
from tests.dashboard.streams import MadeStream, make_stream
from tests.security.needles import secret
from tests.service.http.running import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.kafka]

TOKEN = secret("token")


@pytest.fixture(scope="module")
def stream(browser: Browser, kafka_bootstrap: str, unique_name: Callable[[str], str]) -> MadeStream:
    return make_stream(kafka_bootstrap, unique_name("guarded"), releases=2)


@pytest.fixture(scope="module")
def guarded(stream: MadeStream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    secret = folder / "token"
    secret.write_text(TOKEN)
    with dashboard(folder, [stream.settings], token_file=str(secret)) as site:
        site.wait_until_loaded(TOKEN)
        yield site


def give(visit: Visit, token: str) -> None:
    form = visit.page.locator('form[data-form="token"]')
    form.wait_for()
    box = form.locator("input[name=token]")
    assert box.get_attribute("type") == "password"
    box.fill(token)
    box.press("Enter")


def test_a_page_asks_for_the_token_and_keeps_it_for_the_tab(
    browser: Browser, guarded: Dashboard, stream: MadeStream, tmp_path: Path
) -> None:
    records = f'[data-stream="{stream.name}"] [data-field="records"]'
    with visiting(browser, guarded.home) as visit:
        visit.go(f"/streams/{stream.name}")
        visit.wait('form[data-form="token"]')
        assert accessibility_problems(visit.page) == []
        # The name comes from the address: nothing else is known yet.
        assert not visit.page.locator(records).is_visible()
        give(visit, "wrong-horse-battery-staple")
        assert "\n" not in visit.text('form[data-form="token"] [role=alert]')
        give(visit, TOKEN)
        visit.shows(records, 200)
        visit.expect("status of 401")
        visit.wait_attached('html[data-live="events"]')
        stream.publish(1)
        visit.shows(records, 300)
        # A download sends it too.
        button = visit.page.locator('[data-part="use"] [data-batch="3"] [data-download="json"]')
        with visit.page.expect_download() as pending:
            button.click()
        pending.value.save_as(tmp_path / "release.json")
        assert (tmp_path / "release.json").read_bytes() == stream.values[-1]
        visit.page.reload()
        visit.shows(records, 300)
        assert not visit.page.locator('form[data-form="token"]').is_visible()
        assert not [url for url in visit.asked if TOKEN in url]
        kept = visit.page.evaluate("JSON.stringify([{...localStorage}, document.cookie])")
        assert TOKEN not in kept
        # Another tab of the same browser asks again.
        other = Visit(visit.page.context.new_page(), guarded.home).go("/")
        other.wait('form[data-form="token"]')
        other.expect("status of 401")
        other.check()


def test_a_page_waits_for_a_server_that_has_too_many_requests(browser: Browser) -> None:
    records = '[data-stream="half"] [data-field="records"]'
    with (
        serving(site=Scenes(), requests_per_second=4) as running,
        visiting(browser, running.server.url) as visit,
    ):
        visit.unheeded = "status of 429"
        # A slow machine requests a page's parts slowly, so one visit may stay below the limit.
        while sum(status == 429 for _, _, status in visit.answers) < 3:
            visit.go("/streams/half")
            visit.shows(records, 300)
