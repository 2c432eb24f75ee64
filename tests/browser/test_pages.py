"""Every page shows the topic's numbers, and later ones as they arrive."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from streaming_pca.dashboard.models import Verification
from streaming_pca.data.release import Release
from tests.browser.conftest import RUNNING
from tests.browser.serving import FEATURES, RunningStream
from tests.browser.visits import Visit, numbers
from tests.cli.command import call

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group(RUNNING)]


@pytest.fixture
def shown(visit: Visit, running: RunningStream) -> Callable[[str], list[float]]:
    """Return a reader of numbers in the running stream's fields, on the open page."""
    return lambda name: numbers(visit.text(field(running.name, name)))


def field(stream: str, name: str) -> str:
    return f'[data-stream="{stream}"] [data-field="{name}"]'


def is_shown(value: float, text: list[float]) -> bool:
    """Return whether a text has a number, rounded to three digits or more."""
    return any(abs(each - value) <= 5e-3 * max(abs(value), 1e-9) for each in text)


# -- numbers ---------------------------------------------------------------


def test_the_streams_page_shows_each_stream_at_a_glance(
    visit: Visit, running: RunningStream, shown: Callable[[str], list[float]]
) -> None:
    release = running.latest()
    visit.go("/")
    assert shown("records") == [release.records]
    assert shown("last_release.batch") == [release.batch]
    # A release from few records may happen to be doubtful.
    level = "warning" if release.doubts else "ok"
    assert visit.value(field(running.name, "health.level")) == level
    assert visit.value(field(f"{running.name}-waiting", "health.level")) == "warning"
    assert visit.value(field(f"{running.name}-absent", "health.level")) == "problem"
    assert "127.0.0.1" in visit.text(field(running.name, "leader.present"))
    assert "127" not in visit.text(field(f"{running.name}-waiting", "leader.present"))
    spent = running.stream.replay().most_charged()
    left = 2 - float(spent.epsilon)
    assert is_shown(left, shown("budget.left.epsilon"))
    reason = visit.text(field(f"{running.name}-absent", "health.reasons"))
    assert f"topic 'in-{running.name}-absent' is missing" in reason
    assert "\n" not in reason


def test_features_of_one_field_stand_together_among_the_loadings(visit: Visit) -> None:
    visit.go("/")
    # Strongest first: feature 3, then 1, 0 and 2; of the fields the first has features 0 and 3.
    components = [[0.3, 0.5, 0.2, 0.8]]
    drawn = visit.page.evaluate(
        """async ([components, fields]) => {
            const main = document.querySelector("script[type=module]").src;
            const { loadings } = await import(new URL("../figures/plots.js", main).href);
            const release = { dim: 4, components, feature_names: ["a.0", "b=x", "b=y", "a.1"] };
            const room = { width: 400, em: 12, measure: () => 40 };
            const { layout, rows } = loadings({ release, most: 4, fields }, {}, room);
            return { rows: rows(), names: layout.yaxis.ticktext, lines: layout.shapes.map(({ y0 }) => y0) };
        }""",
        [components, [0, 1, 1, 0]],
    )
    assert drawn == {"rows": [0, 3, 1, 2], "names": ["a.0", "a.1", "b=x", "b=y"], "lines": [1.5]}


def test_a_stream_leads_to_its_page_and_back(visit: Visit, running: RunningStream) -> None:
    visit.go("/")
    visit.page.get_by_role("link", name=running.name, exact=True).click()
    visit.page.wait_for_url(f"**/streams/{running.name}")
    visit.wait(field(running.name, "records"))
    visit.page.go_back()
    visit.wait(f'[data-stream="{running.name}-waiting"]')


def test_a_mistyped_address_and_an_unknown_stream_name_the_pages(visit: Visit) -> None:
    with visit.another() as other:
        # The browser reports each answer of this status.
        other.unheeded = "404"
        for path, words in (
            ("/strems/flights", "Nothing is at /strems/flights."),
            ("/streams/flihgts", "'flihgts' is not in the settings: these have "),
            ("/ledger/flihgts", "flihgts"),
        ):
            other.go(path).wait('main a[href$="/plan"]')
            assert words in other.text("main")
            other.page.locator('main p a[href$="/ledger"]').first.click()
            other.wait("[data-ledger]")
            assert other.page.url == visit.home + "/ledger"


def test_the_page_of_a_stream_shows_the_release_of_the_topic(
    visit: Visit, running: RunningStream, shown: Callable[[str], list[float]]
) -> None:
    release = running.latest()
    visit.go(f"/streams/{running.name}")
    assert shown("records") == [release.records]
    assert shown("last_release.batch") == [release.batch]
    *scree, _ = table(visit, "scree")
    errors = release.explained_variance_error or ()
    for row, value, error in zip(scree, release.explained_variance, errors, strict=True):
        assert near(value, row[1], 0.06 * error), (row, value)
        assert near(error, row[2], 0.06 * error), (row, error)
    loadings = {row[0]: row[1:] for row in table(visit, "loadings")}
    assert set(loadings) == set(FEATURES)
    for name, *wanted in zip(FEATURES, *release.components, strict=True):
        for shown_as, value in zip(loadings[name], wanted, strict=True):
            assert near(value, shown_as, 6e-4 + 6e-3 * abs(value)), (name, loadings[name], wanted)
    before, after = running.stream.releases()[-2:]
    angles = np.degrees(subspace_angles(np.transpose(before.components), np.transpose(after.components)))
    last = {row[0]: row for row in table(visit, "angles")}[str(after.batch)]
    assert all(near(angle, last[2], 0.06) for angle in angles), (angles, last)
    assert before.angle_bound
    assert after.angle_bound
    # A bound is rounded up; 90 degrees bound every angle.
    assert near(min(np.degrees(before.angle_bound + after.angle_bound) + 0.05, 90.0), last[3], 0.0501)
    assert after.batch_records
    shares = {row[0]: row for row in table(visit, "shares")}[str(after.batch)]
    wholes = {"null": after.batch_records, "clipped": after.counts["clipped_of"]}
    for (kind, whole), shown_as in zip(wholes.items(), shares[2:], strict=True):
        # The counts are noisy: a share is shown between 0 and 1, with the digits of its error.
        share = 100 * min(max(after.counts[f"{kind}_records"] / whole, 0.0), 1.0)
        error = 100 * after.counts[f"{kind}_records_error"] / whole
        assert near(share, shown_as, 0.06 * error), (share, shown_as)
    for plot in ("scree", "loadings", "biplot", "variances", "angles", "flow", "lag", "shares"):
        visit.page.locator(f'figure[data-plot="{plot}"]').scroll_into_view_if_needed()
        visit.wait(f'figure[data-plot="{plot}"][data-state="drawn"] svg.main-svg')


def test_the_guarantee_is_said_with_the_numbers_of_the_stream(visit: Visit, running: RunningStream) -> None:
    visit.go(f"/streams/{running.name}")
    visit.wait(field(running.name, "records"))
    visit.page.locator('[data-fold="guarantee"] summary').click()
    visit.wait('[data-fold="guarantee"][open]')
    message = visit.text(field(running.name, "guarantee"))
    served = json.loads(served_text(visit, f"/v1/streams/{running.name}"))["guarantee"]
    assert served
    for sentence in served:
        assert squeezed(sentence) in squeezed(message)
    assert 1.0 in numbers(message)


def test_the_budget_is_the_ledger_s(visit: Visit, running: RunningStream) -> None:
    visit.go(f"/streams/{running.name}")
    name = running.name
    spent = running.stream.replay().job(name).most_charged()
    for kind, value in [
        ("by_stream.epsilon", float(spent.epsilon)),
        ("left.epsilon", 2 - float(spent.epsilon)),
        ("cap.epsilon", 2.0),
    ]:
        assert is_shown(value, numbers(visit.text(field(name, f"budget.{kind}")))), kind


def test_the_ledger_page_lists_every_entry(visit: Visit, running: RunningStream) -> None:
    visit.go(f"/ledger/{running.input}")
    visit.wait("[data-entry]")
    messages = running.stream.messages(running.settings.stream.ledger_topic)
    rows = visit.page.locator("[data-entry]")
    for button in visit.page.locator("tr[data-batch] button[aria-expanded=false]").element_handles():
        button.click()
    listed = [int(rows.nth(i).get_attribute("data-entry") or -1) for i in range(rows.count())]
    assert listed == [m.offset for m in reversed(messages)]
    first = visit.text(f'[data-entry="{messages[1].offset}"]').lower()
    assert "started" in first or "reserved" in first


def test_a_batch_at_the_edge_of_a_page_names_what_is_missing(visit: Visit, running: RunningStream) -> None:
    cuts: list[Route] = []
    visit.unheeded = "net::ERR_FAILED"  # of a request that is aborted below

    def cut(route: Route) -> None:
        if cuts:
            # Another page of one entry could leave out entries in between, which no older page has.
            route.abort()
            return
        cuts.append(route)
        answer = route.fetch()
        page = answer.json()
        page["items"] = page["items"][:1]
        page["next"] = page["items"][0]["offset"]
        route.fulfill(response=answer, json=page)

    visit.page.route("**/entries?limit=*", cut)
    visit.go(f"/ledger/{running.input}")
    visit.wait("[data-entry]")
    assert visit.page.get_by_text("Records and charge: among older entries").count() == 1
    visit.page.unroute("**/entries?limit=*")
    visit.page.locator('[data-action="older"]').click()
    visit.until(lambda: visit.page.get_by_text("among older entries").count() == 0, "the whole batch")


def test_the_ledger_is_verified_on_request(visit: Visit, running: RunningStream) -> None:
    visit.go(f"/ledger/{running.input}")
    visit.wait('[data-action="verify"]')
    visit.page.locator('[data-action="verify"]').click()
    state = visit.page.locator('[data-field="verification.state"]')
    state.filter(has_text=re.compile("verified", re.IGNORECASE)).wait_for()


def test_a_verification_without_states_shows_that_they_were_not_compared(
    visit: Visit, running: RunningStream
) -> None:
    found = Verification(state="verified", finished="2026-07-01T12:00:00Z", entries=3, states=False)
    answer = {"content_type": "application/json", "body": found.model_dump_json()}
    visit.page.route("**/verification", lambda route: route.fulfill(**answer))
    visit.go(f"/ledger/{running.input}")
    visit.wait('[data-field="verification.states"]')
    assert visit.page.get_by_text("Verified, without states: no problem found").count() == 1


def test_any_record_s_charge_is_looked_up_and_a_wrong_offset_is_one_line(
    visit: Visit, running: RunningStream
) -> None:
    visit.go(f"/ledger/{running.input}")
    visit.wait('form[data-form="record"]')

    def look_up(partition: object, offset: object) -> None:
        form = visit.page.locator('form[data-form="record"]')
        form.locator("[name=partition]").fill(str(partition))
        form.locator("[name=offset]").fill(str(offset))
        form.locator("[name=offset]").press("Enter")

    answer = '[data-result="record"]'
    charge = running.stream.replay().spent(1, 7)
    assert charge.epsilon > 0
    look_up(1, 7)
    assert is_shown(float(charge.epsilon), numbers(visit.text(f'{answer} [data-field="spent.epsilon"]')))
    assert is_shown(2 - float(charge.epsilon), numbers(visit.text(f'{answer} [data-field="left.epsilon"]')))
    assert running.name in visit.text(answer)
    for where, wrong in (((1, 10**6), "1000000"), ((99, 7), "99")):
        look_up(*where)
        visit.page.locator(f"{answer} [role=alert]").filter(has_text=wrong).wait_for()
        line = visit.text(f"{answer} [role=alert]")
        assert "\n" not in line
        assert len(line) < 300
        visit.expect("status of 4(04|22)")
    look_up(1, 7)
    assert is_shown(float(charge.epsilon), numbers(visit.text(f'{answer} [data-field="spent.epsilon"]')))


def test_the_plan_page_forecasts_what_the_command_does(
    visit: Visit, capfd: pytest.CaptureFixture[str]
) -> None:
    visit.go("/plan")
    visit.wait("input[type=range]")
    visit.wait("[data-field]")
    sliders = visit.page.locator("input[type=range]")
    names = [sliders.nth(i).get_attribute("name") for i in range(sliders.count())]
    assert {"epsilon", "records", "dim", "rank"} <= set(names)
    before = plan_of(visit)
    slider = visit.page.locator("input[type=range][name=epsilon]")
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    after = wait_for_plan(visit, lambda found: found["epsilon"] > before["epsilon"])
    query = {name: after[name] for name in ("dim", "rank", "records", "epsilon", "delta")}
    options: list[object] = ["--batches", "growing"]
    options += [part for name, value in query.items() for part in (f"--{name}", f"{value}")]
    options += [
        part for name in ("gap", "tail") if after.get(name) for part in (f"--{name}", str(after[name]))
    ]
    printed = call(capfd, "plan", *options, "--json")
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout) == after["answer"]


def test_a_link_puts_no_words_into_the_command(visit: Visit) -> None:
    visit.go("/plan?contributions=1;curl%20evil&batches=1e1")
    visit.wait("[data-field]")
    shown = visit.text('[data-snippet="shell"]')
    assert shown.endswith(" --batches 10")
    assert ";" not in shown


# -- live ------------------------------------------------------------------


def test_a_new_release_shows_on_every_open_page(visit: Visit, running: RunningStream) -> None:
    records = field(running.name, "records")
    with ExitStack() as stack:
        opened = {}
        for way, query in (("events", ""), ("polling", "?live=poll")):
            streams, one, ledger = (stack.enter_context(visit.another()) for _ in range(3))
            streams.go(f"/{query}")
            one.go(f"/streams/{running.name}{query}")
            ledger.go(f"/ledger/{running.input}{query}")
            for each in (streams, one):
                each.wait(records)
                each.wait_attached(f'html[data-live="{way}"]')
            ledger.wait("[data-entry]")
            opened[way] = streams, one, ledger
        running.learn()
        release = running.latest()
        last = running.stream.messages(running.settings.stream.ledger_topic)[-1]
        for way, (streams, one, ledger) in opened.items():
            for each in (streams, one):
                each.shows(records, release.records)
            ledger.wait(f'[data-entry="{last.offset}"]')
            asked = [url for url in one.asked if "/v1/events" in url]
            assert bool(asked) == (way == "events")


# -- downloads -------------------------------------------------------------


def test_downloads_are_the_bytes_of_the_topic_and_the_snippet_runs(
    visit: Visit, running: RunningStream, tmp_path: Path
) -> None:
    visit.go(f"/streams/{running.name}")
    visit.wait(field(running.name, "records"))
    value = running.latest_bytes()
    saved = {}
    for kind in ("json", "npz"):
        with visit.page.expect_download() as pending:
            visit.page.locator(f'[data-download="{kind}"]').first.click()
        assert pending.value.suggested_filename.endswith(f".{kind}")
        path = tmp_path / pending.value.suggested_filename
        pending.value.save_as(path)
        saved[kind] = path
    assert sha256(saved["json"].read_bytes()).digest() == sha256(value).digest()
    release = Release.from_bytes(value)
    arrays = np.load(io.BytesIO(saved["npz"].read_bytes()), allow_pickle=False)
    assert np.array_equal(arrays["components"], release.components)
    assert np.array_equal(arrays["explained_variance"], release.explained_variance)

    snippet = visit.page.locator('[data-snippet="python"]').first.text_content() or ""
    rows = np.ones((3, len(FEATURES)))
    (tmp_path / "snippet.py").write_text(snippet)
    np.save(tmp_path / "rows.npy", rows)
    ran = subprocess.run(
        [sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, f"{snippet}\n{ran.stderr}"


# -- helpers ---------------------------------------------------------------


def table(visit: Visit, plot: str) -> list[list[str]]:
    """Return the rows of the table below a figure, as texts."""
    figure = visit.page.locator(f'figure[data-plot="{plot}"]')
    figure.scroll_into_view_if_needed()
    visit.wait_attached(f'figure[data-plot="{plot}"][data-state="drawn"]')
    figure.locator("summary").click()
    rows = figure.locator("tbody tr")
    rows.first.wait_for()
    found: list[list[str]] = rows.evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    return found


def near(value: float, text: str, error: float) -> bool:
    """Return whether a text has a number within an error of another."""
    return any(abs(each - value) <= error for each in numbers(text))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def served_text(visit: Visit, path: str) -> str:
    text = visit.page.evaluate("path => fetch(path).then(answer => answer.text())", path)
    assert isinstance(text, str)
    return text


def plan_of(visit: Visit) -> dict[str, Any]:
    """Return the page's last request of a forecast as numbers, with its answer."""
    return wait_for_plan(visit, bool)


def wait_for_plan(visit: Visit, good: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until a good forecast is the last one; return its numbers, with its answer."""

    def last() -> dict[str, Any] | None:
        urls = [url for method, url, status in visit.answers if "/v1/plan?" in url and status == 200]
        if not urls:
            return None
        query = urls[-1].partition("?")[2]
        found: dict[str, Any] = {
            name: float(value) if "." in value or "e" in value else int(value)
            for name, _, value in (part.partition("=") for part in query.split("&"))
            if value
        }
        return found | {"answer": json.loads(served_text(visit, urls[-1]))} if good(found) else None

    return visit.until(last, "a forecast")
