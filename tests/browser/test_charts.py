"""Figures of a stream, over recorded messages: nothing collides, is cut, or claims more than its errors."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest

from streaming_pca.data.release import Release
from tests.browser.recorded import INTERVAL, RATE, recorded_site, recorded_stream
from tests.browser.visits import LIMIT_MS, THEMES, Visit, numbers, revisiting, visiting
from tests.dashboard.streams import RECORDS, MadeStream

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS = (390, 1024, 1440, 1920)
RELEASES = (90, 3, 0)
"""Releases of each recorded stream."""
PAPER = 703
"""Width in pixels of the text on an A4 page."""
LAST = ("scree", "biplot", "loadings")
TIMED = ("variances", "angles", "flow", "lag", "shares")
MODULE = """async ([file, given]) => {
    const main = document.querySelector("script[type=module]").src;
    const module = await import(new URL(`../figures/${file}.js`, main).href);
    return RUN;
}"""


@pytest.fixture(scope="module")
def streams() -> list[MadeStream]:
    wide = recorded_stream("wide", dim=60, rank=12, feature_names=None)
    return [recorded_stream("flown"), wide, recorded_stream("unborn")]


@pytest.fixture(scope="module")
def home(streams: list[MadeStream]) -> Iterator[str]:
    with recorded_site(streams, RELEASES) as running:
        yield running.server.url


@pytest.fixture(scope="module")
def kept(browser: Browser, home: str) -> Iterator[Visit]:
    # The clock is put forward at 02:00 on 29 March 2026, and back at 03:00 on 25 October.
    with visiting(browser, home, timezone_id="Europe/Berlin") as made:
        yield made


@pytest.fixture(scope="module")
def kept_in_india(browser: Browser, home: str) -> Iterator[Visit]:
    # Its hours begin at half hours of other zones.
    with visiting(browser, home, timezone_id="Asia/Kolkata") as made:
        yield made


@pytest.fixture
def in_india(kept_in_india: Visit) -> Iterator[Visit]:
    with revisiting(kept_in_india) as lent:
        yield lent


@pytest.fixture(scope="module")
def loaded(browser: Browser, home: str) -> Iterator[Visit]:
    with visiting(browser, home, timezone_id="Europe/Berlin") as made:
        yield made.go("/")


@pytest.fixture
def modules(loaded: Visit) -> Iterator[Visit]:
    """Lend an open page, whose modules a test calls without changing the page."""
    yield loaded
    loaded.check()


def run(visit: Visit, file: str, expression: str, given: Any = None) -> Any:
    """Evaluate an expression of a module of the pages, as ``module``, and of ``given``."""
    return visit.page.evaluate(MODULE.replace("RUN", expression), [file, given])


def draw(visit: Visit, path: str) -> list[str]:
    """Open a page and draw all figures; return their ids."""
    return visit.go(path).draw()


def collisions(visit: Visit) -> list[str]:
    """Return the texts of drawn figures that touch each other or are cut by the figure."""
    found: list[str] = visit.page.evaluate(
        """() => [...document.querySelectorAll("figure[data-state=drawn]")].flatMap((figure) => {
            const plot = figure.querySelector(".plot").getBoundingClientRect();
            const boxes = [...figure.querySelectorAll(".plot text")]
                .map((t) => ({ text: t.textContent.trim(), box: t.getBoundingClientRect() }))
                .filter(({ text, box }) => text && box.width);
            const before = (a, b, from, to) => a[to] - 1 <= b[from];
            const apart = (a, b) => before(a, b, "left", "right") || before(b, a, "left", "right")
                || before(a, b, "top", "bottom") || before(b, a, "top", "bottom");
            const cut = ({ box }) => box.left < plot.left - 1 || box.right > plot.right + 1
                || box.top < plot.top - 1 || box.bottom > plot.bottom + 1;
            return [
                ...boxes.filter(cut).map(({ text }) => `${figure.dataset.plot}: "${text}" is cut`),
                ...boxes.flatMap((a, i) => boxes.slice(0, i).filter((b) => !apart(a.box, b.box))
                    .map((b) => `${figure.dataset.plot}: "${a.text}" touches "${b.text}"`)),
            ];
        })"""
    )
    return found


def rows(visit: Visit, plot: str) -> list[list[str]]:
    """Return the rows of a figure's numbers."""
    figure = visit.page.locator(f'figure[data-plot="{plot}"]')
    figure.locator("details:not([open]) summary").click()
    found = figure.locator("tbody tr")
    found.first.wait_for(timeout=LIMIT_MS)
    texts: list[list[str]] = found.evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    return texts


# -- on the page -------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["flown", "wide"])
def test_no_text_of_a_figure_touches_another_or_is_cut(in_india: Visit, name: str, width: int) -> None:
    visit = in_india
    visit.page.set_viewport_size({"width": width, "height": 1000})
    assert draw(visit, f"/streams/{name}") == [*LAST, *TIMED]
    assert collisions(visit) == []
    if name == "wide":
        # Figures are drawn in view alone.
        visit.page.locator('[data-plot="loadings"]').scroll_into_view_if_needed()
        visit.page.locator("#features").select_option("50")
        ticks = visit.page.locator("[data-plot=loadings] .ytick text")
        visit.until(lambda: ticks.count() == 50, "fifty features")
        assert collisions(visit) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_titles_of_a_biplot_keep_from_its_edge_and_its_numbers(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 1000})
    draw(visit, "/streams/flown")
    gaps = visit.page.locator('[data-plot="biplot"] .plot').evaluate(
        """(plot) => {
            const box = (each) => each.getBoundingClientRect();
            const [x, y] = [".xtitle", ".ytitle"].map((name) => box(plot.querySelector(name)));
            const all = box(plot);
            const left = Math.min(...[...plot.querySelectorAll(".ytick text")].map((text) => box(text).left));
            return [all.bottom - x.bottom, y.left - all.left, left - y.right];
        }"""
    )
    assert min(gaps) > 3


def test_a_collision_is_found(visit: Visit) -> None:
    draw(visit, "/streams/flown")
    visit.page.evaluate(
        "document.querySelectorAll('[data-plot=scree] .xtick text').forEach("
        "(text, i) => text.setAttribute('transform', `translate(${i ? -2000 : 40},0)`))"
    )
    assert {each.partition(":")[0] for each in collisions(visit)} == {"scree"}


def test_a_page_that_had_no_width_shows_its_figures_as_before(visit: Visit) -> None:
    wide = {"width": 1440, "height": 1000}
    visit.page.set_viewport_size(wide)
    draw(visit, "/streams/flown")
    biplot = visit.page.locator('[data-plot="biplot"]')
    before = biplot.locator(".plot text").all_text_contents()
    # Programs that take pictures of whole pages leave no width for a moment.
    for width in (1, 90):
        visit.page.set_viewport_size({"width": width, "height": 900})
        biplot.evaluate("figure => figure.scrollIntoView()")
        # As a release would, a change of the theme draws all figures in view.
        for theme in THEMES[::-1]:
            visit.page.emulate_media(color_scheme=theme)
            visit.wait_attached(f"html[data-theme={theme}]")
            visit.page.wait_for_timeout(100)
        visit.page.set_viewport_size(wide)
        assert visit.draw() == [*LAST, *TIMED]
        visit.until(lambda: collisions(visit) == [], "figures that fit")
        assert biplot.locator(".plot text").all_text_contents() == before
        tops = biplot.locator(".ytick text").evaluate_all(
            "ticks => ticks.map((tick) => [tick.textContent, tick.getBoundingClientRect().top])"
        )
        values = [numbers(text)[0] for text, _ in sorted(tops, key=itemgetter(1))]
        assert values == sorted(values, reverse=True)


def test_the_rest_has_a_bar_with_its_error(visit: Visit, streams: list[MadeStream]) -> None:
    draw(visit, "/streams/flown")
    release = Release.from_bytes(streams[0].values[-1])
    assert release.total_variance is not None
    assert release.total_variance_error is not None
    found = rows(visit, "scree")
    *components, rest = found
    for row, value, error in zip(
        components, release.explained_variance, release.explained_variance_error or (), strict=True
    ):
        assert numbers(row[1]) == [pytest.approx(value, abs=0.06 * error)]
        assert numbers(row[2]) == [pytest.approx(error, rel=0.06)]
    left = release.total_variance - sum(release.explained_variance)
    most = release.total_variance_error + sum(release.explained_variance_error or ())
    assert rest[0] == "Rest: 8 directions"
    assert numbers(rest[1]) == [pytest.approx(left, abs=0.06 * most)]
    assert rest[2].startswith("≤")
    assert numbers(rest[2]) == [pytest.approx(most, rel=0.06)]
    shares = [numbers(row[3])[0] for row in found]
    assert sum(shares) == pytest.approx(100, abs=3)
    assert visit.page.locator('[data-plot="scree"] .point path').count() == 5
    assert visit.page.locator('[data-plot="scree"] .errorbar').count() == 5


def test_without_a_total_above_its_noise_there_is_no_rest(modules: Visit) -> None:
    release = {"dim": 9, "rank": 2, "explained_variance": [1, 0.1], "explained_variance_error": [0.1, 0.1]}
    for total, error, bars in ((None, None, 2), (1.0, 0.6, 2), (2.0, 0.6, 3), (0.9, 0.1, 3)):
        given = release | {"total_variance": total, "total_variance_error": error}
        shown = "(({ traces: [{ y, marker }], note }) => ({ y, note, colours: marker.color }))"
        built = run(
            modules,
            "plots",
            f"{shown}(module.scree({{ release: given }}, {{ blue: 1, line: 2 }}, {{ width: 400, em: 12 }}))",
            given,
        )
        assert len(built["y"]) == bars
        assert ("no bar for the rest" in built["note"]) == (bars == 2)
        # The second variance is within two of its standard errors.
        assert built["colours"] == [1, 2, 2][:bars]
        if total is not None and bars == 3:
            assert built["y"][2] == pytest.approx(max(total - 1.1, 0))


@pytest.mark.parametrize("plot", ["biplot", "loadings"])
def test_components_above_the_noise_are_not_called_noise(modules: Visit, plot: str) -> None:
    release = {"dim": 3, "rank": 2, "components": [[1, 0, 0], [0, 1, 0]], "angle_bound": math.pi / 2}
    room = "{ width: 400, height: 300, em: 12, measure: (text) => 6 * text.length }"
    call = f"module.{plot}({{ release: given[0], most: 3, resolved: given[1] }}, {{}}, {room}).note"
    beginning = "Noise alone could have produced these components"
    for resolved, end in ((None, "."), (0, "."), (1, ", but not the first."), (2, ", but not the first 2.")):
        assert run(modules, "plots", call, [release, resolved]) == beginning + end


def test_the_rest_is_not_among_the_components_in_words(modules: Visit) -> None:
    release = {"dim": 9, "rank": 2, "explained_variance": [1.5, 1], "explained_variance_error": [0.1, 0.1]}
    given = release | {"total_variance": 5.0, "total_variance_error": 0.1}
    call = "module.scree({ release: given }, {}, { width: 400, em: 12 }).summary"
    summary = run(modules, "plots", call, given)
    assert summary == "2 components, by variance: 1.5 ± 0.1; 1 ± 0.1. The rest: 2.5 ± 0.3."


def test_a_range_of_time_is_chosen_kept_and_applied_to_all_figures(visit: Visit) -> None:
    draw(visit, "/streams/flown")
    for plot in TIMED:
        assert len(rows(visit, plot)) > 50, plot
    visit.page.get_by_text("Hour", exact=True).click()
    visit.page.wait_for_url("**/streams/flown?range=hour")
    # The next stream's page starts with it.
    visit.page.get_by_role("link", name="Streams", exact=True).click()
    visit.page.get_by_role("link", name="wide", exact=True).click()
    visit.page.wait_for_url("**/streams/wide?range=hour")
    assert visit.page.locator("[name=range][value=hour]").is_checked()
    visit.page.get_by_text("All", exact=True).click()
    visit.page.wait_for_url("**/streams/wide")
    draw(visit, "/streams/flown?range=hour")
    assert visit.page.locator("[name=range][value=hour]").is_checked()
    # The releases of an hour and the one before; fewer if the test began minutes after the recording.
    for plot in ("variances", "angles", "shares"):
        assert 4 <= len(rows(visit, plot)) <= 3600 // INTERVAL + 3, plot
    for plot in TIMED:
        ticks = visit.page.locator(f'[data-plot="{plot}"] .xtick text').all_text_contents()
        assert 2 <= len(ticks) <= 12, plot
        assert all(re.fullmatch(r"\d\d:[0-5][05]|\d+ \w+", tick) for tick in ticks), ticks
        title = visit.page.locator(f'[data-plot="{plot}"] .xtitle').text_content() or ""
        assert re.fullmatch(r"(Time|\d+ \w+ \d{4}), CES?T", title), title


def test_all_figures_over_time_show_the_same_span(visit: Visit) -> None:
    draw(visit, "/streams/flown")
    # The lag was measured for thirteen hours, and releases are older.
    shown = [
        visit.page.locator(f'[data-plot="{plot}"] .canvas').evaluate("canvas => canvas.layout.xaxis.range")
        for plot in TIMED
    ]
    assert shown == [shown[0]] * len(TIMED)


def test_a_range_ends_after_the_present_and_a_week_has_several_marks(modules: Visit) -> None:
    now = datetime(2026, 11, 29, 6, tzinfo=UTC).timestamp() * 1000
    for name, length in (("hour", 3600e3), ("day", 86400e3), ("week", 7 * 86400e3)):
        begin, end = run(modules, "timeline", "module.domain(...given)", [name, [now - 9], now])
        assert begin == now - length
        assert end == pytest.approx(now + 0.02 * length)
        for most in (2, 3, 4, 5):
            found = run(modules, "timeline", "module.marks(...given)", [[begin, end], most])
            assert 2 <= len(found) <= most + 1, (name, most, found)


def test_rates_are_the_records_and_the_offsets_of_the_time(visit: Visit) -> None:
    draw(visit, "/streams/flown?range=hour")
    found = rows(visit, "flow")
    processed = [numbers(rate)[0] for _, kind, rate in found if kind == "Processed"]
    arriving = [numbers(rate)[0] for _, kind, rate in found if kind == "Arriving"]
    assert processed == [pytest.approx(RATE, rel=0.01)] * len(processed)
    assert len(processed) > 3
    assert sum(arriving) / len(arriving) == pytest.approx(RATE, rel=0.15)
    lags = [numbers(row[2])[0] for row in rows(visit, "lag")]
    assert 0.9 * RECORDS < max(lags) <= RECORDS


def test_a_long_range_of_few_data_has_rates(browser: Browser) -> None:
    with (
        recorded_site([recorded_stream("flown")], [4]) as running,
        visiting(browser, running.server.url) as visit,
    ):
        draw(visit, "/streams/flown?range=week")
        processed = [numbers(rate)[0] for _, kind, rate in rows(visit, "flow") if kind == "Processed"]
    assert processed == [pytest.approx(RATE, rel=0.01)] * 3


def test_a_range_without_a_release_is_a_sentence(browser: Browser) -> None:
    old = datetime.now(UTC).timestamp() - 2 * 86_400
    with (
        recorded_site([recorded_stream("flown")], RELEASES[:1], old) as running,
        visiting(browser, running.server.url) as visit,
    ):
        draw(visit, "/streams/flown?range=day")
        sentences = {"variances": "release", "angles": "angle", "shares": "batch", "lag": "lag"}
        for plot, what in (sentences | {"flow": "record or release"}).items():
            text = visit.text(f'[data-plot="{plot}"] .plot')
            assert text.startswith(f"No {what} in the last day: the latest is of ")
            assert visit.page.locator(f'[data-plot="{plot}"]').get_attribute("data-state") == "empty"


def test_before_the_first_release_the_figures_have_sentences(visit: Visit) -> None:
    assert draw(visit, "/streams/unborn") == ["flow", "lag"]
    assert "No release yet." in visit.text(".figures [data-empty]")
    assert "No rate yet" in visit.text('[data-plot="flow"] .plot')
    assert "No lag yet" in visit.text('[data-plot="lag"] .plot')


def test_paper_is_light_complete_and_not_cut(browser: Browser, home: str) -> None:
    with visiting(browser, home, "dark", viewport={"width": 1920, "height": 1000}) as visit:
        draw(visit, "/streams/flown")
        before = visit.page.locator("html").get_attribute("data-theme")
        ink = "getComputedStyle(document.querySelector('[data-plot=scree] svg text')).fill"
        dark = visit.page.evaluate(ink)
        visit.page.set_viewport_size({"width": PAPER, "height": 1000})
        visit.page.emulate_media(media="print")
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert visit.page.evaluate(ink) != dark
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(16, 21, 28)"
        assert collisions(visit) == []
        wide = visit.page.evaluate(
            """(paper) => [...document.querySelectorAll("main *")]
                .filter((element) => element.getBoundingClientRect().right > paper)
                .map((element) => element.outerHTML.slice(0, 80))""",
            PAPER,
        )
        assert wide == []
        # The heading keeps its page with the first figure, whose height its box includes.
        ends = "(s) => document.querySelector(s).getBoundingClientRect().bottom"
        assert visit.page.evaluate(ends, ".ranges") >= visit.page.evaluate(ends, ".ranges + .figure .plot")
        # Short tables are open; long ones would take many pages.
        opened = visit.page.locator("figure:has(details[open])")
        assert {e.get_attribute("data-plot") for e in opened.all()} == set(LAST)
        assert visit.page.locator("button:visible, select:visible, figure summary:visible").count() == 0
        visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
        visit.page.emulate_media(media="screen")
        assert visit.page.locator("figure details[open]").count() == 0
        assert visit.page.locator("html").get_attribute("data-theme") == before
        visit.until(lambda: visit.page.evaluate(ink) == dark, "the dark ink")


def test_figures_that_were_never_in_view_are_printed(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 600})
    visit.go("/streams/flown")
    visit.wait_attached('figure[data-plot="scree"][data-state="drawn"]')
    shares = visit.page.locator('figure[data-plot="shares"]')
    assert shares.get_attribute("data-state") is None

    def drawn() -> bool:
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        return shares.get_attribute("data-state") == "drawn"

    # Its data arrives after those of the figures in view.
    visit.until(drawn, "the last figure")
    assert shares.locator("svg.main-svg").count() > 0
    assert len(visit.page.pdf(format="A4")) > 50_000


def test_a_printed_ledger_shows_the_entries_of_each_batch(visit: Visit) -> None:
    visit.go("/ledger/in-wide")
    visit.wait("[data-entry]")
    rows = visit.page.locator("main .entries tbody tr")
    # OPENED, and three batches of three entries.
    assert rows.count() == 4
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows.count() == 13
    visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows.count() == 4


# -- parts -------------------------------------------------------------------


@pytest.mark.parametrize("size", [(240, 260), (460, 280), (900, 300)])
def test_labels_keep_apart_for_any_points(modules: Visit, size: tuple[int, int]) -> None:
    rng, width, height = [1], *size

    def random() -> float:
        rng[0] = rng[0] * 16807 % 2147483647
        return rng[0] / 2147483647

    for spread in (0.9, 0.5, 0.05, 0.0):
        points = [
            {
                "x": width * (0.5 + spread * (random() - 0.5)),
                "y": height * (0.5 + spread * (random() - 0.5)),
                "w": 20 + 90 * random(),
                "h": 15,
            }
            for _ in range(15)
        ]
        given = [points, {"width": width, "height": height}]
        centre = f"{{ x: {width / 2}, y: {height / 2} }}"
        call = f"module.placeLabels(...given, given[0].map((p) => [{centre}, p]))"
        places = run(modules, "labels", call, given)
        assert places == run(modules, "labels", call, given)
        boxes = [
            (at["x"] - p["w"] / 2, at["y"] - p["h"] / 2, at["x"] + p["w"] / 2, at["y"] + p["h"] / 2)
            for at, p in zip(places, points, strict=True)
            if at
        ]
        assert len(boxes) >= 4
        for i, (left, top, right, bottom) in enumerate(boxes):
            assert left >= 0 <= top
            assert right <= width
            assert bottom <= height
            for other in boxes[:i]:
                assert left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]
            assert not any(left < p["x"] < right and top < p["y"] < bottom for p in points)
        lines = [(p, at) for at, p in zip(places, points, strict=True) if at and at["line"]]
        assert not any(meet(*a, *b) for a, b in itertools.combinations(lines, 2))


def meet(*ends: dict[str, float]) -> bool:
    """Return whether the lines between the first two and the last two ends cross."""
    a, b, c, d = (complex(end["x"], end["y"]) for end in ends)

    def side(p: complex, q: complex, r: complex) -> float:
        return ((q - p).conjugate() * (r - p)).imag

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def test_names_stay_distinct_when_they_are_shortened(modules: Visit) -> None:
    names = ["delay of the inbound flight", "delay of the outbound flight", "month", "größer als der Rest"]
    shown = run(modules, "labels", "module.shortenAll(given, [0, 1, 2, 3], 12)", names)
    assert shown == ["…inbou…light", "…outbo…light", "month", "größer… Rest"]
    same = run(modules, "labels", "module.shortenAll(given, [0, 17], 12)", ["a name twice there"] * 2)
    assert len(set(same)) == 2
    assert max(map(len, same)) <= 13


@pytest.mark.parametrize(
    ("begin", "end", "most", "marks"),
    [
        (
            "2026-03-28T22:30Z",
            "2026-03-29T04:30Z",
            6,
            ["29 Mar", "01:00", "03:00", "04:00", "05:00", "06:00"],
        ),
        ("2026-10-24T21:30Z", "2026-10-25T03:30Z", 6, ["25 Oct", "01:00", "02:00", "03:00", "04:00"]),
        ("2026-10-19T10:00Z", "2026-11-20T10:00Z", 5, ["26 Oct", "2 Nov", "9 Nov", "16 Nov"]),
        ("2026-01-20T10:00Z", "2026-10-20T10:00Z", 5, ["Apr 2026", "Jul 2026", "Oct 2026"]),
        ("2026-06-01T10:00:00Z", "2026-06-01T10:00:10Z", 3, ["12:00:00", "12:00:05", "12:00:10"]),
        ("2026-06-01T10:00Z", "2026-06-01T11:00Z", 5, ["12:00", "12:15", "12:30", "12:45", "13:00"]),
    ],
)
def test_marks_are_round_times_of_the_reader_s_zone(
    modules: Visit, begin: str, end: str, most: int, marks: list[str]
) -> None:
    found = run(modules, "timeline", "module.marks(given[0].map(Date.parse), given[1])", [[begin, end], most])
    assert [text for _, text in found] == marks
    times = [at for at, _ in found]
    assert times == sorted(set(times))


def test_rates_average_and_keep_gaps(modules: Visit) -> None:
    times, totals = [0, 1000, 2000, 3000, 60_000, 61_000, 63_000], [5, 5, 25, 35, None, 100, 140]
    found = run(modules, "timeline", "module.rates(...given)", [times, totals, 1500])
    assert found == {"x": [0, 2000, 3000, 60_000, 61_000, 63_000], "y": [10, 10, 10, None, 20, 20]}
    # What is left at the end counts: alone, or as part of the last step if it is far shorter.
    for end, steps in ((12_000, [[0, 10_000, 12_000], [1, 1, 45]]), (11_000, [[0, 11_000], [9.09, 9.09]])):
        found = run(modules, "timeline", "module.rates(...given)", [[0, 10_000, end], [0, 10, 100], 5000])
        assert (found["x"], found["y"]) == (steps[0], pytest.approx(steps[1], rel=1e-3))
    assert run(modules, "timeline", "module.rates(...given)", [[0, 1000], [9, 3], 1])["y"] == [None]


def test_rates_before_the_range_are_not_in_it(modules: Visit) -> None:
    now = datetime.now(UTC)
    at = [[(now - timedelta(seconds=s)).isoformat() for s in ages] for ages in ((9000, 8000), (60, 30))]
    history, traffic = ({"created": at[0], "records": [0, 10**6]}, {"at": at[1], "offsets": [0, 90]})
    shown = {"history": history, "traffic": traffic, "range": "hour", "now": now.timestamp() * 1000}
    found = run(modules, "series", "module.flow(...given)", [shown, {}, {"width": 600, "em": 16}])
    assert [trace["name"] for trace in found["traces"]] == ["Arriving"]
    assert found["summary"] == "Arriving: 3 a second at last."


def test_a_full_batch_is_learnt_only_if_the_cap_allows_it(modules: Visit) -> None:
    batch = {"waiting": 9, "planned": 5, "per_second": 1}
    allowed = "full: the worker can process it"
    forbidden = "full, but the cap does not allow it"
    for budget, leader, words in (
        (None, None, allowed),
        ({"allows_next": True}, {"present": True}, allowed),
        ({"allows_next": True}, {"present": False}, "full: it waits for a worker"),
        ({"allows_next": False}, {"present": False}, forbidden),
    ):
        found = run(modules, "../js/components", "module.fillWords(...given)", [batch, budget, leader])
        assert found == words


def test_a_value_has_the_digits_of_its_error(modules: Visit) -> None:
    given = [[12.3456, 0.52], [0.001, 0.5], [-3.2, 0.013], [5, 0], [7, None], [None, 1], [63, 2100]]
    call = "given.map(([value, error]) => module.measured(value, error))"
    shown = run(modules, "../js/format", call, given)
    assert shown == ["12.35 ± 0.52", "0 ± 0.5", "−3.2 ± 0.013", "5 ± 0", "7", "–", "100 ± 2,100"]


def test_the_api_answers_with_what_is_drawn(home: str, modules: Visit) -> None:
    text = modules.page.evaluate("fetch('v1/streams/flown/traffic').then((answer) => answer.text())")
    answer = json.loads(text)
    assert list(answer) == ["stream", "at", "offsets", "lag_low", "lag_high"]
    assert answer["offsets"].count(None) == 1
