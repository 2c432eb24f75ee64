"""Pictures of every page, in both themes and at four widths.

    python -m tests.browser.pictures [FOLDER]

starts Apache Kafka, a worker and the dashboard, and writes the pictures of the documentation, by default to
docs/images/.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from streaming_pca.dev.cluster import KafkaServer
from streaming_pca.dev.jars import fetch_jars, find_java
from tests.browser.serving import ROOT, RunningStream, dashboard
from tests.browser.visits import THEMES, Theme, Visit, chromium, find_chromium, playing, visiting
from tests.kafka.stream import session_timeout_ms, start_fork_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS = {"phone": (390, 844), "tablet": (1024, 768), "desk": (1440, 900), "wall": (1920, 1080)}
SHOWN: tuple[tuple[Theme, str], ...] = tuple(product(THEMES, WIDTHS))
"""Themes and widths of the pictures that a test writes."""
_OF_DOCS: dict[str, Theme] = {"streams": "dark", "stream": "light", "ledger": "light", "plan": "dark"}
"""Pages shown in the documentation, in one theme each."""
_QUALITY = 60


def paths(running: RunningStream) -> dict[str, str]:
    """Return the path of each page."""
    return {
        "streams": "/",
        "stream": f"/streams/{running.name}",
        "ledger": f"/ledger/{running.input}",
        "plan": "/plan",
    }


def take_all(browser: Browser, home: str, running: RunningStream, folder: Path) -> list[Path]:
    """Write NAME-THEME-WIDTH.webp of every page."""
    written = []
    for theme, width in SHOWN:
        x, y = WIDTHS[width]
        with visiting(browser, home, theme, viewport={"width": x, "height": y}) as visit:
            for name, path in paths(running).items():
                written.append(take(visit, path, folder / f"{name}-{theme}-{width}.webp"))
    return written


def take(visit: Visit, path: str, to: Path) -> Path:
    """Open a page and write all of it, once its numbers and plots are complete."""
    visit.go(path)
    visit.wait_attached('main[aria-busy="false"]')
    figures = visit.page.locator("figure[data-plot]:visible")
    for i in range(figures.count()):
        # Figures are drawn when they scroll into view.
        figures.nth(i).scroll_into_view_if_needed()
        visit.wait_attached(f"figure[data-plot][data-state]:visible >> nth={i}")
    visit.page.evaluate("scrollTo(0, 0)")
    visit.page.wait_for_timeout(300)
    session = visit.page.context.new_cdp_session(visit.page)
    size = session.send("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    shot = session.send(
        "Page.captureScreenshot",
        {"format": "webp", "quality": _QUALITY, "clip": clip, "captureBeyondViewport": True},
    )
    session.detach()
    to.write_bytes(base64.b64decode(shot["data"]))
    return to


def main(folder: Path) -> None:
    """Write the pictures of the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    start_fork_server()
    with KafkaServer(find_java(), fetch_jars()) as kafka, tempfile.TemporaryDirectory() as scratch:
        running = RunningStream.start(
            kafka.bootstrap, "visits", Path(scratch), session_timeout_ms(kafka.bootstrap)
        )
        try:
            for _ in range(8):
                running.learn()
            with (
                dashboard(Path(scratch), [running.settings, *running.others]) as site,
                playing() as playwright,
                chromium(playwright, find_chromium()) as browser,
            ):
                site.wait_until_loaded()
                for name, theme in _OF_DOCS.items():
                    with visiting(
                        browser, site.home, theme, viewport={"width": 1200, "height": 800}
                    ) as visit:
                        path = take(visit, paths(running)[name], folder / f"dashboard-{name}.webp")
                        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        finally:
            running.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
