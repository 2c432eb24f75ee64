"""The site builds without a warning into a folder for any host, and loads nothing from another one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT

IN_THE_BUNDLE = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": "for elements of class mermaid",
    "https://unpkg.com/resize-observer-polyfill": "for browsers without ResizeObserver, before 2020",
    "https://api.github.com/users/": "for a repo_url",
    "https://api.github.com/repos/": "for a repo_url",
    "https://clipboardjs.com/": "in a comment",
}
"""Addresses in the theme's script, and when it loads them: never on this site."""


class Reference(NamedTuple):
    page: Path
    tag: str
    address: str


class _Page(HTMLParser):
    """Reader of a page's references, and of its elements' classes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.references: list[Reference] = []
        self.classes: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "class":
                self.classes |= set((value or "").split())
            elif name in ("src", "href", "data", "poster", "srcset", "action") and value:
                self.references.append(Reference(self.path, tag, value))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        reason = "mkdocs is not installed: pip install '.[docs]', or make docs"
        if os.environ.get("REQUIRE_DOCS", "") not in ("", "0"):
            pytest.fail(f"REQUIRE_DOCS is set, but {reason}")
        pytest.skip(f"THE SITE WAS NOT BUILT: {reason}")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> list[_Page]:
    return [_Page(path) for path in sorted(site.rglob("*.html"))]


def references(pages: list[_Page]) -> Iterator[Reference]:
    for page in pages:
        yield from page.references


def test_each_page_of_the_docs_is_a_page_of_the_site(site: Path) -> None:
    expected = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in ROOT.glob("docs/**/*.md")}
    assert len(expected) > 30
    assert expected <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_each_script_of_the_gallery_is_a_page_with_its_figures_and_a_notebook(site: Path) -> None:
    """The build has run each script, which asserts its own claims."""
    scripts = list(ROOT.glob("docs/gallery/*.py"))
    assert scripts
    for script in scripts:
        text, page, notebook = (
            (site / "gallery" / f"{script.stem}{end}").read_text(encoding="utf-8")
            for end in (".py", ".html", ".ipynb")
        )
        assert text == script.read_text(encoding="utf-8")
        figures = list((site / "gallery").glob(f"{script.stem}-*.png"))
        assert figures
        for figure in figures:
            assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            assert figure.stat().st_size > 5_000
            assert f'src="{figure.name}"' in page
        outputs = [each for cell in json.loads(notebook)["cells"] for each in cell.get("outputs", ())]
        assert sum("image/png" in each.get("data", ()) for each in outputs) == len(figures)
    assert not (site / "gallery_hook.py").exists()


def test_no_page_shows_a_role_of_a_docstring(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.search(r":\w+:<code>|:\w+:`", page.read_text(encoding="utf-8")) is None, page.name


def test_pages_load_nothing_from_another_host(pages: list[_Page]) -> None:
    loaded = [each for each in references(pages) if each.tag != "a"]
    assert len(loaded) > len(pages)
    assert [each for each in loaded if urlsplit(each.address).netloc] == []


def test_styles_load_nothing_from_another_host(site: Path) -> None:
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    for style in styles:
        assert re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", style) == []


def test_the_themes_script_has_no_reason_to_load_from_another_host(site: Path, pages: list[_Page]) -> None:
    (bundle,) = site.glob("assets/javascripts/bundle.*.min.js")
    found = set(re.findall(r"https?://[\w./@-]+", bundle.read_text(encoding="utf-8")))
    assert found <= set(IN_THE_BUNDLE), "find out when it loads this"
    assert [page.path for page in pages if "mermaid" in page.classes] == [], "draw it: docs/images/*.svg"
    assert "repo_url" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_links_are_relative_and_lead_to_a_file(site: Path, pages: list[_Page]) -> None:
    """A host may serve the folder below any path, and need not turn folders into pages."""
    checked = 0
    for page, _, address in references(pages):
        parts = urlsplit(address)
        # Hosts show the page for missing files below any path, so its links begin at the host.
        if parts.scheme or parts.netloc or not parts.path or page.name == "404.html":
            continue
        assert not parts.path.startswith("/"), f"{page.relative_to(site)}: {address}"
        target = (page.parent / unquote(parts.path)).resolve()
        assert target.is_file(), f"{page.relative_to(site)}: {address}"
        checked += 1
    assert checked > 1000
