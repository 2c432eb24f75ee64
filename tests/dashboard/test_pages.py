"""Pages: their headers, their files, and forbidden contents."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest
import uvicorn
from starlette.applications import Starlette

from streaming_pca.dashboard import pages
from streaming_pca.dashboard.pages import SECURITY_HEADERS, page_routes
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


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body

    @property
    def text(self) -> str:
        return self.content.decode()


class Client:
    """Client of a running server that sends paths unchanged."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    config = uvicorn.Config(Starlette(routes=page_routes()), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield Client(listener.getsockname()[1])
        server.should_exit = True
        thread.join(LIMIT)
    assert not thread.is_alive()


def addresses(text: str) -> list[str]:
    return [
        value for _, attrs in Elements(text).found for name in ("src", "href") if (value := attrs.get(name))
    ]


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_the_shell_under_a_strict_policy(client: Client, path: str) -> None:
    answer = client.get(path)
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
def test_all_addresses_of_a_page_are_relative_and_are_served(client: Client, path: str) -> None:
    found = addresses(client.get(path).text)
    assert len(found) > 10
    for address in found:
        assert not re.match(r"[a-z]+:|/", address), address
        if not address.startswith("#"):
            assert client.get(urljoin(path, address)).status == 200, address


def test_nothing_is_inline(client: Client) -> None:
    page = Elements(client.get("/").text)
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
    for path in ASSETS.glob("js/*.js"):
        for name in re.findall(
            r"(?m)(?:^import .* from|^} from|import\()\s*[\"']([^\"']+)[\"']",
            path.read_text(encoding="utf-8"),
        ):
            assert name.startswith("./"), (path.name, name)
            assert (path.parent / name).is_file(), (path.name, name)


def test_static_files_are_kept_for_good_and_compressed(client: Client) -> None:
    for address in addresses(client.get("/").text):
        if not address.startswith("./static/"):
            continue
        answer = client.get(address.removeprefix("."), headers={"Accept-Encoding": "gzip"})
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"
        plain = client.get(address.removeprefix("."), headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content == (ASSETS / address.split("/", 3)[3]).read_bytes()
        if len(plain.content) >= 1024:
            assert answer.headers["content-encoding"] == "gzip"
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name.lower()] == value


def test_an_etag_answers_304_without_a_body(client: Client) -> None:
    etag = client.get("/").headers["etag"]
    for header in (etag, f'"other", W/{etag}', "*"):
        again = client.get("/", headers={"If-None-Match": header})
        assert (again.status, again.content) == (304, b"")
        assert again.headers["etag"] == etag
    assert client.get("/", headers={"If-None-Match": '"other"'}).status == 200
    # The shell's addresses depend on its folder.
    assert client.get("/streams/x").headers["etag"] != etag


def test_head_tells_the_size_alone(client: Client) -> None:
    answer = client.get("/", method="HEAD")
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 1000


def test_plotly_is_the_bundle_of_the_installed_wheel(client: Client) -> None:
    first = next(a for a in addresses(client.get("/").text) if a.endswith("main.js"))
    path = first.removeprefix(".").replace("js/main.js", "plotly.min.js")
    answer = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.content == pages.plotly_bundle()
    assert int(answer.headers["content-length"]) < len(answer.content) / 2


@pytest.mark.parametrize("accepted", ["gzip;q=0", "br", "", "gzip; q=0.0"])
def test_gzip_is_sent_to_those_who_take_it_alone(client: Client, accepted: str) -> None:
    assert "content-encoding" not in client.get("/", headers={"Accept-Encoding": accepted}).headers


@pytest.mark.parametrize(
    "name",
    [
        "../pages.py",
        "..%2Fpages.py",
        "%2e%2e/pages.py",
        "index.html",
        "js",
        "js/",
        "",
        "js/none.js",
        "plotly.css",
    ],
)
def test_other_names_are_not_found(client: Client, name: str) -> None:
    first = next(a for a in addresses(client.get("/").text) if a.endswith("main.js"))
    base = first.removeprefix(".").removesuffix("js/main.js")
    answer = client.get(base + name)
    assert answer.status == 404
    assert "Traceback" not in answer.text
    assert client.get("/static/0000000000000000/js/main.js").status == 404


def test_files_of_the_demonstrated_endings_alone_are_there() -> None:
    assert {path.suffix for path in FILES} == {".html", ".css", ".js", ".svg"}


def test_compressed_bytes_are_the_same_in_all_processes(client: Client) -> None:
    page = client.get("/", headers={"Accept-Encoding": "identity"}).content
    assert client.get("/", headers={"Accept-Encoding": "gzip"}).body == gzip.compress(page, 6, mtime=0)


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
