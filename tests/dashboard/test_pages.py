"""Pages: their headers, their files, and forbidden contents."""

from __future__ import annotations

import gzip
import re
import threading
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest

from streaming_pca.dashboard import pages
from streaming_pca.dashboard.pages import SECURITY_HEADERS, page_routes
from tests.service.http.running import Answer, Running, serving
from tests.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[2]
ASSETS = Path(pages.__file__).with_name("assets")
FILES = sorted(path for path in ASSETS.rglob("*") if path.is_file())
PAGES = ("/", "/plan", "/ledger", "/ledger/flights", "/streams/flights", "/streams/a%3Cb%3E")
MAX_LINES = 600


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the text within scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style"):
            self.inline += data.strip()


class PageSite:
    """Site with the pages alone."""

    routes = page_routes()

    def start(self) -> None:
        """Start no observer."""

    stop = start


@pytest.fixture(scope="module")
def client() -> Iterator[Running]:
    with serving(site=PageSite()) as running:
        yield running


def content_of(answer: Answer) -> bytes:
    return gzip.decompress(answer.body) if answer.headers.get("content-encoding") == "gzip" else answer.body


def addresses(text: str) -> list[str]:
    found = (attrs.get(name) for _, attrs in Elements(text).found for name in ("src", "href"))
    return [value for value in found if value]


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_the_shell_under_a_strict_policy(client: Running, path: str) -> None:
    answer = client.ask(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name.lower()] == value


def test_policy_has_no_concession() -> None:
    policy = dict(part.split(" ", 1) for part in pages.CONTENT_SECURITY_POLICY.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["base-uri"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert "unsafe" not in pages.CONTENT_SECURITY_POLICY
    assert "http" not in pages.CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("path", PAGES)
def test_all_addresses_of_a_page_are_relative_and_are_served(client: Running, path: str) -> None:
    found = addresses(client.ask(path).body.decode())
    assert len(found) > 10
    for address in found:
        assert not re.match(r"[a-z]+:|/", address), address
        if not address.startswith("#"):
            assert client.ask(urljoin(path, address)).status == 200, address


def test_nothing_is_inline(client: Running) -> None:
    page = Elements(client.ask("/").body.decode())
    assert page.inline == ""
    for tag, attrs in page.found:
        assert tag != "style"
        assert not any(name == "style" or name.startswith("on") for name in attrs), (tag, attrs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ASSETS).as_posix())
def test_files_name_no_other_host_and_put_no_markup_in(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    # Namespaces of XML are names, not addresses.
    bare = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|[\"'(]//[a-z]|@import", bare)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc", bare
    )
    assert not re.search(r"setAttribute\(\s*[\"'](style|on)", bare)


def test_imports_of_modules_are_relative_files() -> None:
    for path in ASSETS.rglob("*.js"):
        imported = r"(?m)(?:^import .* from|^} from|import\()\s*[\"']([^\"']+)[\"']"
        for name in re.findall(imported, path.read_text(encoding="utf-8")):
            assert re.match(r"\./|\.\./(js|figures)/", name), (path.name, name)
            assert (path.parent / name).is_file(), (path.name, name)


def test_static_files_are_kept_for_good_and_compressed(client: Running) -> None:
    for address in addresses(client.ask("/").body.decode()):
        if not address.startswith("./static/"):
            continue
        answer = client.ask(address.removeprefix("."), accept_encoding="gzip")
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"
        plain = client.ask(address.removeprefix("."), accept_encoding="identity")
        assert "content-encoding" not in plain.headers
        assert plain.body == content_of(answer) == (ASSETS / address.split("/", 3)[3]).read_bytes()
        if len(plain.body) >= 1024:
            assert answer.headers["content-encoding"] == "gzip"
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name.lower()] == value


def test_an_etag_answers_304_without_a_body(client: Running) -> None:
    etag = client.ask("/").headers["etag"]
    for header in (etag, f'"other", W/{etag}', "*"):
        again = client.ask("/", if_none_match=header)
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == etag
    assert client.ask("/", if_none_match='"other"').status == 200
    # The shell's addresses depend on its folder.
    assert client.ask("/streams/x").headers["etag"] != etag


def test_a_mistyped_page_is_the_shell_in_a_browser_alone(client: Running) -> None:
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    for path in ("/stream", "/streams/", "/ledger/a/b", "/plan/x/y/z"):
        answer = client.ask(path, accept=browser)
        assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "content-security-policy" in answer.headers
        for address in addresses(answer.body.decode()):
            if not address.startswith("#"):
                assert client.ask(urljoin(path, address)).status == 200, address
        assert "text/html" not in client.ask(path, accept="*/*").headers["content-type"]
        assert client.ask(path, accept=browser, if_none_match="*").body == b""
    # The number of pages in memory is limited.
    assert "text/html" not in client.ask("/" * 10, accept=browser).headers["content-type"]
    assert addresses(client.ask("/a%2Fb", accept=browser).body.decode())[0].startswith("./")
    assert "text/html" not in client.ask("/v1/stream", accept=browser).headers["content-type"]


def test_head_tells_the_size_alone(client: Running) -> None:
    answer = client.ask("/", method="HEAD")
    assert answer.body == b""
    assert int(answer.headers["content-length"]) > 1000


def test_plotly_is_the_bundle_of_the_installed_wheel(client: Running) -> None:
    first = next(a for a in addresses(client.ask("/").body.decode()) if a.endswith("main.js"))
    path = first.removeprefix(".").replace("js/main.js", "plotly.min.js")
    answer = client.ask(path, accept_encoding="gzip")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    bundle = pages.plotly_bundle()
    assert gzip.decompress(answer.body) == bundle
    assert int(answer.headers["content-length"]) < len(bundle) / 2


@pytest.mark.parametrize("accepted", ["gzip;q=0", "br", "", "gzip; q=0.0"])
def test_gzip_is_sent_to_those_who_take_it_alone(client: Running, accepted: str) -> None:
    assert "content-encoding" not in client.ask("/", accept_encoding=accepted).headers


@pytest.mark.parametrize(
    "name",
    [
        *("../pages.py", "..%2Fpages.py", "%2e%2e/pages.py", "index.html", "js", "js/", "", "js/none.js"),
        "plotly.css",
    ],
)
def test_other_names_are_not_found(client: Running, name: str) -> None:
    first = next(a for a in addresses(client.ask("/").body.decode()) if a.endswith("main.js"))
    base = first.removeprefix(".").removesuffix("js/main.js")
    answer = client.ask(base + name)
    assert answer.status == 404
    assert "Traceback" not in answer.body.decode()
    assert client.ask("/static/0000000000000000/js/main.js").status == 404


def test_files_of_the_demonstrated_endings_alone_are_there() -> None:
    assert {path.suffix for path in FILES} == {".html", ".css", ".js", ".svg"}


def test_compressed_bytes_are_the_same_in_all_processes(client: Running) -> None:
    page = client.ask("/", accept_encoding="identity").body
    assert client.ask("/", accept_encoding="gzip").body == gzip.compress(page, 6, mtime=0)


def test_package_data_names_all_files() -> None:
    """tests/packaging/test_distribution.py builds a wheel, which shows that it contains them."""
    package = ROOT / "streaming_pca"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["streaming_pca"]
    assert set(FILES) <= {path for pattern in patterns for path in package.glob(pattern)}


def test_a_page_does_not_wait_for_the_compression_of_the_bundle() -> None:
    made = pages._Pages(ASSETS)
    with made._lock:
        asking = threading.Thread(target=made.shell, args=(0,), daemon=True)
        asking.start()
        asking.join(LIMIT)
        assert not asking.is_alive()
