"""Debian's Chromium, driven by playwright, and its pages with everything that goes wrong on them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import psutil
import pytest

from tests.conftest import NoBroker
from tests.waiting import LIMIT, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Page,
        Playwright,
        Request,
        Response,
        Route,
    )

T = TypeVar("T")
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
LIMIT_MS = 1000 * LIMIT
COLOUR_RULES = ("color-contrast", "link-in-text-block")
"""Rules of axe-core whose findings depend on a page's colours."""

_VIOLATIONS = """
addEventListener("securitypolicyviolation", event => console.error(
    `policy: ${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""

VARIABLE = "CHROMIUM"
"""Variable that names the program if PATH has none of these names."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """Return the browser's program; skip loudly, or fail if REQUIRE_BROWSER is set."""
    named = os.environ.get(VARIABLE)
    for name in (named,) if named else _NAMES:
        if found := shutil.which(name):
            return found
    raise _missing("no chromium found", f"Install Debian's chromium, or name the program by {VARIABLE}.")


def _missing(reason: str, detail: str) -> BaseException:
    if os.environ.get("REQUIRE_BROWSER", "") not in ("", "0"):
        return pytest.fail.Exception(f"REQUIRE_BROWSER is set, but {reason}. {detail}", pytrace=False)
    return NoBroker("browser", reason, detail)


@contextmanager
def playing() -> Iterator[Playwright]:
    """Start playwright's driver, which has no bundled browser.

    During its life, asyncio takes this thread's event loop for a running one: end it with the file.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise _missing("no playwright found", f"{error}: pip install '.[test]'.") from None
    with sync_playwright() as playwright:
        yield playwright


@contextmanager
def chromium(playwright: Playwright, program: str) -> Iterator[Browser]:
    """Start the browser, which cannot resolve any name that a page requests."""
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
    if os.geteuid() == 0:
        # Its sandbox refuses to run as root.
        arguments.append("--no-sandbox")
    browser = playwright.chromium.launch(executable_path=program, headless=True, args=arguments)
    try:
        yield browser
    finally:
        browser.close()


def memory_of_pages(browser: Browser) -> int:
    """Return the private memory of the browser's page processes, in bytes.

    A page has one process; the sum includes Chromium's empty spare one.
    """
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(
        psutil.Process(each["id"]).memory_full_info().uss for each in found if each["type"] == "renderer"
    )


@dataclass
class Visit:
    """Page of a browser at the origin ``home``, with its requests and its problems."""

    page: Page
    home: str
    asked: list[str] = field(default_factory=list)
    """All requested addresses."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, errors of the page, requests to another host."""
    answers: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, address and status of each answer."""
    unheeded: str = "(?!)"
    """Pattern of console messages that are not complaints, in any number and at any time."""

    def __post_init__(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error of the page: {error}"))
        self.page.on("request", self._see)
        self.page.on("response", self._note)

    def go(self, path: str) -> Visit:
        """Open a path of the dashboard."""
        self.page.goto(self.home + path)
        return self

    def expect(self, pattern: str) -> None:
        """Forget complaints that a test has caused; one must arrive, perhaps late."""

        def brought() -> list[str]:
            return [each for each in self.complaints if re.search(pattern, each)]

        self.until(brought, f"a complaint like {pattern!r}")
        for each in brought():
            self.complaints.remove(each)

    def check(self) -> None:
        """Fail if anything went wrong."""
        assert not self.complaints, "\n".join([f"{self.page.url}:", *self.complaints])

    @contextmanager
    def another(self) -> Iterator[Visit]:
        """Open another page of the same browser; check at the end that nothing went wrong on it."""
        visit = Visit(self.page.context.new_page(), self.home)
        try:
            yield visit
            visit.check()
        finally:
            visit.page.close()

    def forget(self) -> None:
        """Leave the page, and delete what it has stored and what was noted about it."""
        # An empty page of another site would have another process.
        self.go("/healthz")
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
        for noted in (self.asked, self.complaints, self.answers):
            noted.clear()

    def text(self, selector: str) -> str:
        """Return the text of one element, once it has one: a page makes some elements before their text."""
        filled = self.page.locator(selector).first.filter(has_text=re.compile(r"\S"))
        return filled.inner_text(timeout=LIMIT_MS).strip()

    def value(self, selector: str) -> str:
        """Return the value of an element in the API's form."""
        return self.page.locator(selector).first.get_attribute("data-value", timeout=LIMIT_MS) or ""

    def wait(self, selector: str) -> None:
        """Wait until an element is visible."""
        self.page.locator(selector).first.wait_for(timeout=LIMIT_MS)

    def wait_attached(self, selector: str) -> None:
        """Wait until an element exists, visible or not."""
        self.page.locator(selector).first.wait_for(state="attached", timeout=LIMIT_MS)

    def draw(self) -> list[str]:
        """Bring each figure of the open page into view until it is drawn; return their ids."""
        self.wait_attached('main[aria-busy="false"]')
        self.wait_attached("figure[data-plot]")
        figures = self.page.locator("figure[data-plot]")
        for i in range(figures.count()):
            figures.nth(i).scroll_into_view_if_needed()
            figures.nth(i).and_(self.page.locator("[data-state]")).wait_for(timeout=LIMIT_MS)
        return [figures.nth(i).get_attribute("data-plot") or "" for i in range(figures.count())]

    def shows(self, selector: str, number: int) -> None:
        """Wait until an element's digits equal a number's."""
        read = "selector => document.querySelector(selector)?.textContent.replace(/[^0-9]/g, '')"
        self.until(lambda: self.page.evaluate(read, selector) == str(number), f"{number} in {selector}")

    def until(self, probe: Callable[[], T | None], what: str) -> T:
        """Wait until ``probe`` is true, and return it; the page stays active.

        Playwright's own ``wait_for_function`` compiles text in the page, which the pages' policy forbids.
        """

        def probe_or_go_on() -> T | None:
            if not (found := probe()):
                self.page.wait_for_timeout(50)
            return found

        return wait_for(what, probe_or_go_on, seen=lambda: self.page.url, pause=0)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not re.search(self.unheeded, message.text):
            self.complaints.append(f"console: {message.text} ({message.location.get('url')})")

    def _see(self, request: Request) -> None:
        self.asked.append(request.url)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.home:
            self.complaints.append(f"request to another host: {request.method} {request.url}")

    def _note(self, response: Response) -> None:
        self.answers.append((response.request.method, response.url, response.status))


@contextmanager
def visiting(browser: Browser, home: str, theme: Theme = "light", **how: Any) -> Iterator[Visit]:
    """Open a page in a separate context; check at the end that nothing went wrong.

    ``how`` is passed to the context: viewport, extra_http_headers and so on.
    """
    how = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | how
    context = browser.new_context(color_scheme=theme, **how)
    context.set_default_timeout(LIMIT_MS)
    context.add_init_script(_VIOLATIONS)
    keep_at_home(context, home)
    try:
        visit = Visit(context.new_page(), home)
        yield visit
        visit.check()
    finally:
        context.close()


@contextmanager
def revisiting(visit: Visit) -> Iterator[Visit]:
    """Lend a page to one test; check at the end that nothing went wrong, and leave it empty.

    A page that several tests use keeps the compiled programs of its site: opening it again takes a third of
    the processor time of a new context.
    """
    size = visit.page.viewport_size
    try:
        yield visit
        visit.check()
    finally:
        visit.forget()
        if size is not None:
            visit.page.set_viewport_size(size)


def keep_at_home(context: BrowserContext, home: str) -> None:
    """Stop every request to another host."""

    def elsewhere(url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https", "ws", "wss") and f"{parts.scheme}://{parts.netloc}" != home

    def stop(route: Route) -> None:
        route.abort("blockedbyclient")

    context.route(elsewhere, stop)


def accessibility_problems(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """Return axe-core's findings on the current page, a line each; by default of all its usual rules."""
    from axe_playwright_python.sync_playwright import Axe

    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {' '.join(node['target'])}: {node['failureSummary']!r}"
        for rule in found
        for node in rule["nodes"]
    ]


def problems_in_both_themes(visit: Visit) -> list[str]:
    """Return axe-core's findings on the current page in the light theme, and on its colours in the dark one.

    Themes differ in colours alone.
    """
    found = [f"light: {each}" for each in accessibility_problems(visit.page)]
    visit.page.emulate_media(color_scheme="dark")
    visit.wait_attached('html[data-theme="dark"]')
    visit.page.wait_for_timeout(100)
    found += [f"dark: {each}" for each in accessibility_problems(visit.page, COLOUR_RULES)]
    visit.page.emulate_media(color_scheme="light")
    return found


def numbers(text: str) -> list[float]:
    """Return the numbers of a text, for any thousands separator."""
    plain = re.sub(r"(?<=\d)[,\u2009\u202f\u00a0 ](?=\d{3}(?!\d))", "", text.replace("\u2212", "-"))
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", plain)]
