"""Pages for everybody: themes, keyboard, screen readers, a phone and a wall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import pictures
from tests.browser.conftest import RUNNING
from tests.browser.pictures import WIDTHS
from tests.browser.serving import Dashboard, RunningStream
from tests.browser.visits import Visit, problems_in_both_themes, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group(RUNNING)]


SIZES = sorted([(360, 740), *WIDTHS.values()])
"""Widths and heights of screens, the narrowest first."""


def paths(running: RunningStream) -> dict[str, str]:
    """Return the path of each page, including pages of unhealthy streams."""
    return pictures.paths(running) | {
        "stream without a release": f"/streams/{running.name}-waiting",
        "stream without topics": f"/streams/{running.name}-absent",
        "no such stream": "/streams/nothing",
    }


def open_each(visit: Visit, running: RunningStream) -> Iterator[str]:
    """Open every page in turn, and yield its name."""
    for name, path in paths(running).items():
        visit.go(path)
        visit.wait_attached('main[aria-busy="false"]')
        yield name
    if any("404" in each for each in visit.complaints):
        visit.expect("status of 404")


def test_axe_finds_nothing_on_any_page(visit: Visit, running: RunningStream) -> None:
    found = []
    for name in open_each(visit, running):
        visit.page.wait_for_timeout(100)
        found += [f"{name}: {problem}" for problem in problems_in_both_themes(visit)]
    assert found == [], "\n".join(found)


def test_no_page_is_wider_than_its_screen(visit: Visit, running: RunningStream) -> None:
    def resize(x: int, y: int) -> int:
        visit.page.set_viewport_size({"width": x, "height": y})
        visit.until(lambda: visit.page.evaluate("innerWidth") == x, f"a width of {x} pixels")
        return int(visit.page.evaluate("document.documentElement.scrollWidth"))

    wide = []
    resize(*SIZES[0])
    for name in open_each(visit, running):
        # A figure keeps its width until it is drawn again, so the screen only grows.
        for size in SIZES:
            width = resize(*size)
            if width > size[0]:
                wide.append(f"{name}: {width} of {size[0]} pixels")
        resize(*SIZES[0])
    assert wide == []


def test_the_theme_follows_the_system_until_it_is_chosen_and_then_stays(
    browser: Browser, site: Dashboard
) -> None:
    with visiting(browser, site.home, "dark") as visit:
        visit.go("/")
        dark = background(visit)
        visit.page.emulate_media(color_scheme="light")
        light = visit.until(lambda: background(visit).replace(dark, ""), "the light theme")
        assert luminance(light) > 0.7 > 0.3 > luminance(dark)
        visit.page.locator('[data-action="theme"]').first.click()
        visit.until(lambda: background(visit) == dark, "the dark theme")
        visit.page.reload()
        assert background(visit) == dark
        visit.go("/plan")
        assert background(visit) == dark
        assert visit.page.locator("html").get_attribute("data-theme") == "dark"


def test_plots_change_with_the_theme(visit: Visit, running: RunningStream) -> None:
    visit.go(f"/streams/{running.name}")
    visit.page.locator('figure[data-plot="scree"]').scroll_into_view_if_needed()
    visit.wait('[data-plot="scree"] svg text')
    ink = "getComputedStyle(document.querySelector('[data-plot=scree] svg text')).fill"
    light = visit.page.evaluate(ink)
    visit.page.locator('[data-action="theme"]').first.click()
    visit.until(lambda: visit.page.evaluate(ink) != light, "other ink")


def test_everything_is_reached_by_the_keyboard(visit: Visit, running: RunningStream) -> None:
    visit.go("/")
    visit.wait(f'[data-stream="{running.name}"]')
    walked = walk(visit)
    assert "skip" in walked[0].lower() or "main" in walked[0].lower(), walked
    assert any(running.name in each for each in walked), walked
    missed = visit.page.evaluate(
        "() => [...document.querySelectorAll('a[href], button, input, select, summary')]"
        ".filter(e => e.checkVisibility() && !e.disabled && !walked.has(e)).map(e => e.outerHTML)"
    )
    assert missed == []
    # Enter opens the page of a stream, with the focus at its head.
    visit.page.get_by_role("link", name=running.name, exact=True).focus()
    visit.page.keyboard.press("Enter")
    visit.wait('[data-plot="scree"]')
    assert visit.page.evaluate("document.activeElement !== null")
    assert running.name in visit.page.title()
    walked = walk(visit)
    for wanted in ("json", "npz"):
        assert any(wanted in each.lower() for each in walked), walked


@pytest.mark.soak
def test_pictures_of_every_page_are_written(
    browser: Browser,
    site: Dashboard,
    running: RunningStream,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    written = pictures.take_all(browser, site.home, running, tmp_path)
    assert len(written) == len(pictures.SHOWN) * len(pictures.paths(running))
    # An empty page takes a few kilobytes.
    assert min(path.stat().st_size for path in written) > 5_000
    record_property("to look at", str(tmp_path))


def walk(visit: Visit) -> list[str]:
    """Press Tab until the focus leaves the page or returns; each stop must be visible."""
    visit.page.evaluate("() => { document.activeElement?.blur(); window.walked = new Set() }")
    stops: list[str] = []
    for _ in range(300):
        visit.page.keyboard.press("Tab")
        stop = visit.page.evaluate(
            """() => {
                const e = document.activeElement
                if (!e || e === document.body || walked.has(e)) return null
                walked.add(e)
                const style = getComputedStyle(e)
                const seen = style.outlineStyle !== "none" || style.boxShadow !== "none"
                const name = e.getAttribute("aria-label") || e.innerText || e.name || e.id
                return [seen, e.tagName + " " + name]
            }"""
        )
        if stop is None:
            return stops
        assert stop[0], f"the focus cannot be seen on {stop[1]}"
        stops.append(stop[1])
    raise AssertionError(f"no end after {len(stops)} stops: {stops}")


def background(visit: Visit) -> str:
    return str(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def luminance(colour: str) -> float:
    """Return the lightness of a colour, from 0 to 1."""
    parts = [float(each) for each in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]) / 255
