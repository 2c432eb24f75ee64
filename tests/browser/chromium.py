"""Debian's Chromium, driven by playwright: how it is found and started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import NoBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

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
