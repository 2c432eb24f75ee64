"""Pages name every state of a stream in words, with its remedy, and fold the details."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.recorded import RecordedSite
from tests.browser.scenes import DOUBTS, PER_SECOND, PLANNED, WAITING, Scenes
from tests.browser.visits import Visit, numbers, problems_in_both_themes, visiting
from tests.dashboard.offline import Offline, made_offline
from tests.service.http.running import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

LEVELS = {
    "filling": "Healthy",
    "half": "Healthy",
    "users": "Healthy",
    "first": "Healthy",
    "single": "Healthy",
    "over": "Retired",
    "doubtful": "Attention",
    "late": "Attention",
    "paused": "Attention",
    "refused": "Problem",
}


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with serving(site=Scenes(), requests_per_second=1000) as running:
        yield running.server.url


@pytest.fixture(scope="module")
def kept(browser: Browser, home: str) -> Iterator[Visit]:
    with visiting(browser, home) as made:
        yield made


def field(stream: str, name: str) -> str:
    return f'[data-stream="{stream}"] [data-field="{name}"]'


def test_each_state_has_a_name_and_a_remedy(visit: Visit) -> None:
    visit.go("/")
    shown = {name: visit.text(field(name, "health.level")) for name in LEVELS}
    assert shown == LEVELS
    assert "3 need attention" in visit.text("[data-totals]")
    assert "Watch" not in visit.text("main")
    over = visit.text('[data-stream="over"]')
    assert "Not needed" in over
    assert "No process" not in over
    assert "unknown" in (visit.page.locator(field("over", "health.level")).get_attribute("class") or "")
    remedies = {"paused": "stream resume", "late": "worker's log", "refused": "does not allow its next batch"}
    for name, words in remedies.items():
        assert words in visit.text(field(name, "health.reasons"))
    visit.page.locator("#find").fill("attention")
    visit.until(lambda: visit.page.locator("[data-stream]").count() == 3, "three streams")


def test_doubts_and_what_helps_are_complete_once_they_are_opened(visit: Visit) -> None:
    visit.go("/streams/doubtful")
    place = field("doubtful", "health.reasons")
    visit.wait(place)
    served = visit.page.evaluate("fetch('/v1/streams/doubtful').then((answer) => answer.json())")
    reasons, remedies = served["health"]["reasons"], served["advice"]["remedies"]
    assert len(reasons) == len(DOUBTS)
    assert len(remedies) > len(DOUBTS)
    for name, lines, seen in (("health.reasons", reasons, 3), ("advice.remedies", remedies, 2)):
        items = visit.page.locator(f"{field('doubtful', name)} li")
        assert [items.nth(i).is_visible() for i in range(seen + 1)] == [True] * seen + [False]
        visit.page.locator(f'[data-fold="{name}"] > summary').click()
        items.last.wait_for()
        assert items.all_inner_texts() == lines


@pytest.mark.parametrize("stream", ["first", "single", "over", "half"])
def test_a_young_stream_has_all_its_figures(visit: Visit, stream: str) -> None:
    """It has no release, one, two or three: two of them have one angle, a line of one point."""
    visit.go(f"/streams/{stream}")
    visit.wait_attached('main[aria-busy="false"]')
    figures = visit.page.locator("figure[data-plot]:visible")
    assert figures.count()
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        visit.wait_attached(f"figure[data-plot][data-state]:visible >> nth={i}")
    assert visit.page.locator("[data-state=failed]").count() == 0


def test_a_batch_that_fills_shows_its_records_and_when_it_may_be_full(visit: Visit) -> None:
    minutes = round((PLANNED - WAITING) / PER_SECOND / 60)
    for path in ("/", "/streams/first"):
        visit.go(path)
        filled = visit.page.locator(field("first", "next_batch.waiting"))
        assert filled.inner_text() == f"{WAITING:,} of {PLANNED:,}"
        around = filled.locator("xpath=..").inner_text()
        assert f"may be full in {minutes} minutes" in around
    visit.go("/streams/late")
    assert numbers(visit.text(field("late", "next_batch.waiting"))) == [PLANNED, PLANNED]
    assert numbers(visit.text(field("late", "lag.total"))) == [3 * PLANNED]


def test_a_budget_that_is_spent_as_planned_is_not_an_alarm(visit: Visit) -> None:
    visit.go("/")
    words = {
        "filling": "Spent as planned: records that arrive have their own budget",
        "users": "Nothing is charged yet",
        "half": "Records that arrive have their own budget",
        "refused": "The cap does not allow the next batch",
    }
    for name, text in words.items():
        assert visit.text(field(name, "budget.allows_next")) == text
    assert "may be full in" not in visit.text('[data-stream="refused"]')
    bars = visit.page.locator("[data-stream]:has(.bar .refused)")
    assert [bars.nth(i).get_attribute("data-stream") for i in range(bars.count())] == ["refused"]
    assert numbers(visit.text(field("half", "budget.left.epsilon"))) == [1]
    visit.go("/streams/filling")
    assert visit.text(field("filling", "budget.allows_next")) == f"{words['filling']}."
    charges = visit.page.locator(field("filling", "budget.left.epsilon")).locator("xpath=ancestor::dl/..")
    assert re.search(r"Of the most charged record, with \d+% of the cap spent:", charges.inner_text())


def test_the_guarantee_is_three_sentences_until_the_rest_is_opened(visit: Visit) -> None:
    visit.go("/streams/filling")
    visit.wait(field("filling", "guarantee"))
    place = visit.page.locator(field("filling", "guarantee"))
    items = place.locator("li")
    seen = [i for i in range(items.count()) if items.nth(i).is_visible()]
    assert seen == [0, 1, 2]
    assert items.count() > 5
    place.locator("summary").focus()
    visit.page.keyboard.press("Enter")
    items.last.wait_for()
    assert "Not covered" in place.inner_text()


def test_the_entries_of_a_batch_are_one_row_that_opens(visit: Visit) -> None:
    visit.go("/ledger/visits")
    visit.wait("[data-entry]")
    # OPENED, and 13 batches; the last is only reserved.
    rows = visit.page.locator("main .entries tbody tr")
    assert rows.count() == 14
    batch = visit.page.locator('tr[data-batch="12"]')
    assert re.search(r"34–36\s+Released", batch.inner_text())
    assert numbers(visit.text('tr[data-batch="12"] [data-field="records"]')) == [100]
    button = batch.locator("button")
    assert button.get_attribute("aria-expanded") == "false"
    button.focus()
    visit.page.keyboard.press("Enter")
    assert rows.count() == 17
    assert button.get_attribute("aria-expanded") == "true"
    kinds = [visit.text(f'[data-entry="{offset}"] [data-field="kind"]') for offset in (36, 35, 34)]
    assert kinds == ["Released", "Committed", "Reserved"]
    visit.page.keyboard.press("Enter")
    assert rows.count() == 14


@pytest.mark.parametrize("stream", ["filling", "doubtful"])
def test_the_page_of_a_stream_fits_two_screens(visit: Visit, stream: str) -> None:
    width, height = 1440, 900
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.go(f"/streams/{stream}").draw()
    assert visit.page.evaluate("document.documentElement.scrollHeight") <= 2 * height


@pytest.mark.parametrize("stream", ["filling", "late", "paused"])
@pytest.mark.parametrize("width", [1240, 1440, 1600])
def test_no_fact_is_alone_in_its_row(visit: Visit, stream: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.go(f"/streams/{stream}")
    visit.wait(".facts.now")
    tops = visit.page.locator(".facts.now > div").evaluate_all("all => all.map(div => div.offsetTop)")
    assert len(tops) >= 9
    assert tops.count(max(tops)) > 1
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_long_message_leaves_the_other_columns_their_width(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.go("/ledger")
    words = "topic 'in-late' is missing: create it by `streaming-pca topics create`, or correct the setting. "
    visit.page.route("**/v1/ledger", lambda route: _with_problem(route, 3 * words))
    visit.go("/ledger")
    visit.wait(".ledgers .trouble")
    heights = visit.page.locator(".ledgers tbody tr:not(:has(.trouble))").evaluate_all(
        "rows => rows.map(row => row.clientHeight)"
    )
    assert max(heights) < 45
    visit.page.unroute("**/v1/ledger")


def _with_problem(route: Route, problem: str) -> None:
    # A page that asks a second time would get a 304 without a body.
    asked = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
    answer = route.fetch(headers=asked)
    found = answer.json()
    found["items"][0] |= {"problem": problem, "cap": None, "filter": None}
    route.fulfill(response=answer, json=found)


def test_the_header_of_a_phone_has_two_rows_whatever_the_feed_shows(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.go("/")
    visit.wait_attached('main[aria-busy="false"]')
    for text in ("Live", "Not updated", "Not connected"):
        visit.page.locator("[data-feed-text]").evaluate("(span, text) => (span.textContent = text)", text)
        brand, button = (
            visit.page.locator(each).bounding_box() for each in (".brand", "[data-action=theme]")
        )
        assert brand is not None
        assert button is not None
        assert button["y"] < brand["y"] + brand["height"], text


def test_words_fit_a_stream_of_one_component_with_one_release(visit: Visit) -> None:
    visit.go("/streams/single")
    assert "1 component of 8 features" in visit.text("main .lead")
    assert "First release" in visit.text("main .facts")
    visit.draw()
    assert visit.page.locator('[data-plot="variances"] .errorbar').count() == 1


def test_the_plan_is_headed_by_an_angle_as_the_command_is(visit: Visit) -> None:
    visit.go("/plan?gap=0.1")
    (angle,) = numbers(visit.text('.big [data-field="angle"]'))
    served = float(visit.value('.big [data-field="angle"]'))
    assert angle == pytest.approx(math.degrees(served), rel=0.05)
    visit.go("/plan?records=1000&gap=0.0001")
    visit.page.locator(".big", has_text="is expected to be lost in noise").wait_for()


STATEMENTS = ("None yet", "first batch", "first release", "No release", "No ledger", "not open", "Not open")
"""Words that are right only if the topics were read."""


@pytest.fixture
def odd(browser: Browser) -> Iterator[tuple[Visit, Offline]]:
    """Open a page of streams that are not as they usually are.

    ``none`` has neither a release nor an open ledger; ``resumed`` has only a release of batch 500; ``delta``
    has charged most of its cap's delta, and ``spent`` all of it; ``rows`` has 200 messages of several rows.
    """
    made = [
        *(made_offline(name, dim=2, rank=1) for name in ("none", "resumed")),
        made_offline("delta", ("10", "1.25e-6")),
        made_offline("spent", ("10", "1e-6")),
        made_offline("rows", privacy_unit="row", record_kind="factor", max_rows=4),
    ]
    offline = Offline(*made)
    offline.observer._watched.views["in-none"].restart()
    made[1]._batch = 499
    offline.publish("resumed", entries=False)
    for name in ("delta", "spent"):
        offline.publish(name)
    offline.publish("rows", 2)
    with (
        serving(site=RecordedSite(offline), requests_per_second=1000) as running,
        visiting(browser, running.server.url) as visit,
    ):
        yield visit, offline


def statements(visit: Visit, path: str, place: str) -> str:
    """Open a page, and return the text of its stream or ledger without a release; nothing is folded."""
    visit.go(path)
    visit.wait_attached(f"{place} :text('Not known: the topics cannot be read')")
    visit.wait_attached('main[aria-busy="false"]')
    return visit.page.locator(place).first.text_content() or ""


def test_what_is_not_known_is_not_called_none(odd: tuple[Visit, Offline]) -> None:
    visit, offline = odd
    watched, visit.unheeded = offline.observer._watched, "status of 503"
    for path in ("/", "/ledger", "/streams/none"):
        visit.go(path)
        visit.wait("main :text-matches('none yet|not open|no ledger', 'i')")
    watched.is_loaded = False
    watched.refresh()
    pages = {"/": '[data-stream="none"]', "/streams/none": "main", "/ledger": '[data-ledger="in-none"]'}
    for path, place in pages.items():
        text = statements(visit, path, place)
        assert "cannot be read yet" in text
        assert not [words for words in STATEMENTS if words in text], path
    visit.go("/ledger/in-none")
    assert "the topics are still being read" in visit.text("[data-failed]")
    for topic in ("none.releases", "in-none.ledger"):
        watched.topics[topic].problem = f"topic {topic!r} may not be read by this user"
    watched.load()
    del pages["/ledger"]  # it has the problem there
    for path, place in pages.items():
        text = statements(visit, path, place)
        assert "cannot be read yet" not in text
        assert not [words for words in STATEMENTS if words in text], path


def test_a_release_without_an_angle_is_the_first_only_if_its_batch_is(odd: tuple[Visit, Offline]) -> None:
    visit, _ = odd
    visit.go("/")
    visit.wait(field("resumed", "last_release.batch"))
    for name, words in (("resumed", "No earlier release"), ("delta", "First release")):
        assert words in visit.text(f'[data-stream="{name}"]')
    visit.go("/streams/resumed")
    assert "No earlier release" in visit.text("main .facts")


def test_the_rest_of_a_cap_is_that_of_its_fullest_part(odd: tuple[Visit, Offline]) -> None:
    visit, _ = odd
    visit.go("/")
    assert visit.value(field("delta", "budget.spent_share")) == "0.8"
    assert visit.value(field("delta", "budget.left.delta")) == "2.5e-07"
    visit.go("/ledger/in-spent?partition=0&offset=5")
    words = visit.text("[data-result=record] .facts")
    assert "the whole δ of the cap: this record cannot be charged any δ again" in words


def test_records_of_rows_are_called_messages(odd: tuple[Visit, Offline]) -> None:
    visit, _ = odd
    visit.go("/")
    assert "200 records, 200 messages" in visit.text("[data-totals]")
    cell = "xpath=.."
    assert "200messages" in visit.page.locator(field("rows", "records")).locator(cell).inner_text().replace(
        "\n", ""
    )
    visit.go("/ledger/in-rows")
    for place in (
        '[data-job="rows"] [data-field="records_committed"]',
        '[data-batch="2"] [data-field="records"]',
    ):
        visit.wait(place)
        assert "messages" in visit.page.locator(place).locator(cell).inner_text()


def test_a_page_whose_program_is_gone_is_to_be_loaded_again(visit: Visit) -> None:
    visit.go("/")
    visit.wait(field("filling", "records"))
    visit.page.route("**/js/plan.js", lambda route: route.fulfill(status=404))
    visit.page.locator('[data-page="plan"]').click()
    visit.page.locator("main [role=alert]", has_text="could not be loaded").wait_for()
    visit.wait_attached('main[aria-busy="false"]')
    visit.expect("404")
    visit.page.unroute("**/js/plan.js")
    visit.page.locator("main [role=alert] a").click()
    visit.wait(".big")


def test_axe_finds_nothing_on_open_folds(visit: Visit) -> None:
    found = []
    for path in ("/", "/streams/filling", "/streams/refused", "/streams/doubtful", "/ledger/visits"):
        visit.go(path)
        visit.wait_attached('main[aria-busy="false"]')
        visit.page.wait_for_timeout(100)
        folds = "[aria-expanded=false], details:not([open]) > summary"
        visit.page.evaluate("folds => document.querySelectorAll(folds).forEach(e => e.click())", folds)
        found += [f"{path}: {problem}" for problem in problems_in_both_themes(visit)]
    assert found == [], "\n".join(found)
