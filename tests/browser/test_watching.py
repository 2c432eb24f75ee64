"""The checks of these tests work: each page below does one thing that the dashboard must not do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.browser.visits import COLOUR_RULES, accessibility_problems, memory_of_pages, numbers, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = {
    "/good": "<p>well</p>",
    "/console": "<p>x</p><script src='/says.js'></script>",
    "/says.js": "console.error('the program says so')",
    "/raises": "<p>x</p><script src='/raises.js'></script>",
    "/raises.js": "setTimeout(() => { throw new Error('not caught') })",
    "/elsewhere": "<img alt='' src='http://example.org/x.png'>",
    "/policy": "<p style='color: red'>x</p>",
    "/incomplete": "<p>x</p><script src='/absent.js'></script>",
    "/axe": "<p style='color: #ccc'>pale</p><img src='data:,'>",
}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = PAGES.get(self.path)
        script = self.path.endswith(".js")
        body = (found or "").encode()
        if found is not None and not script:
            head = "<!doctype html><html lang=en><title>x</title><link rel=icon href='data:,'>"
            body = f"{head}<main><h1>A page</h1>{found}</main></html>".encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        self.send_header("Content-Length", str(len(body)))
        if self.path == "/policy":
            self.send_header("Content-Security-Policy", "default-src 'none'; img-src data:")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_good_page_has_no_complaint(browser: Browser, home: str) -> None:
    with visiting(browser, home) as visit:
        visit.go("/good")
        assert accessibility_problems(visit.page) == []
        assert visit.answers == [("GET", f"{home}/good", 200)]
        assert 2**20 < memory_of_pages(browser) < 2**30


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/console", "the program says so"),
        ("/raises", "not caught"),
        ("/elsewhere", "request to another host: GET http://example.org/x.png"),
        ("/policy", "policy: style-src-attr"),
        ("/incomplete", "404"),
    ],
)
def test_a_bad_page_has_its_complaint(browser: Browser, home: str, path: str, complaint: str) -> None:
    def look() -> None:
        with visiting(browser, home) as visit:
            visit.go(path)
            visit.until(lambda: re.search(complaint, "\n".join(visit.complaints)), "it")

    with pytest.raises(AssertionError, match=complaint):
        look()


def test_axe_sees_what_cannot_be_read(browser: Browser, home: str) -> None:
    with visiting(browser, home) as visit:
        visit.go("/axe")
        found = {line.partition(" ")[0] for line in accessibility_problems(visit.page)}
        assert found == {"color-contrast", "image-alt"}
        of_colours = accessibility_problems(visit.page, COLOUR_RULES)
        assert {line.partition(" ")[0] for line in of_colours} == {"color-contrast"}


def test_numbers_are_read_as_people_write_them() -> None:
    assert numbers("12,900 records, 1\u202f000.5 or \u22122e-3; 5") == [12900, 1000.5, -0.002, 5]
