"""Scripts of the gallery hold their claims, and become pages and notebooks (figures: test_site.py)."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.modules import load_module

jupytext = pytest.importorskip("jupytext", reason="pip install '.[gallery]' in the checkout")
nbformat = pytest.importorskip("nbformat")

SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    return load_module(DOCS / "gallery_hook.py")


@pytest.mark.skipif(find_spec("mkdocs") is not None, reason="the build of the site runs them")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_holds_its_claims_and_shows_figures(gallery: ModuleType, script: Path) -> None:
    assert gallery.figures(gallery.run(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_in_the_percent_format_and_ends_with_its_claims(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "-all"}
    assert jupytext.writes(notebook, fmt="py:percent") == text
    first, *_, last = notebook.cells
    assert first.cell_type == "markdown"
    title, paragraph = first.source.split("\n\n")
    assert title.startswith("# ")
    assert paragraph
    assert any(isinstance(node, ast.Assert) for node in ast.parse(last.source).body)


def test_the_index_has_each_script_with_its_title(gallery: ModuleType) -> None:
    entries = gallery.entries()
    assert {entry["name"] for entry in entries} == {script.stem for script in SCRIPTS}
    assert len(entries) == len(SCRIPTS)
    for entry in entries:
        first = (DOCS / "gallery" / f"{entry['name']}.py").read_text(encoding="utf-8").splitlines()[:2]
        assert first == ["# %% [markdown]", f"# # {entry['title']}"]


def test_pages_link_to_pages_and_the_index_to_figures(gallery: ModuleType) -> None:
    other = SimpleNamespace(file=SimpleNamespace(src_uri="reference/python.md"))
    assert gallery.on_page_markdown("[x](../gallery/scree.py)", other) == "[x](../gallery/scree.md)"
    index = SimpleNamespace(file=SimpleNamespace(src_uri="gallery/index.md"))
    cards = gallery.on_page_markdown((DOCS / "gallery/index.md").read_text(encoding="utf-8"), index)
    for entry in gallery.entries():
        assert f"]({entry['name']}-1.png)" in cards
        assert f"**[{entry['title']}]({entry['name']}.md)**" in cards
        assert entry["line"] in cards
    assert ".py)" not in cards


def test_a_page_has_text_code_output_and_figures_in_their_order(gallery: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(
        "# %% [markdown]\n# # Small\n#\n# One paragraph. [Other](scree.py).\n\n"
        "# %%\nfrom matplotlib import pyplot as plt\n\n"
        'print("before")\nfor _ in range(2):\n    plt.subplots()\nplt.show()\nprint("after")\n'
    )
    notebook = gallery.run(script)
    first, second = gallery.figures(notebook)
    assert first.startswith(PNG)
    assert second.startswith(PNG)
    page = gallery.page(notebook, "small", "Small")
    places = [
        "# Small",
        "One paragraph. [Other](scree.md).",
        "```python",
        'title="output"\nbefore\n',
        "small-1.png",
        "small-2.png",
    ]
    places += ['title="output"\nafter\n', "[script](small.py)", "[notebook](small.ipynb)"]
    assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)
    downloaded = jupytext.reads(jupytext.writes(notebook, fmt="ipynb"), fmt="ipynb")
    nbformat.validate(downloaded)
    assert downloaded.cells == notebook.cells
    assert downloaded.metadata.kernelspec.name == "python3"


def test_a_script_that_fails_names_its_cell(gallery: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("# %% [markdown]\n# # Bad\n\n# %%\nassert False\n")
    with pytest.raises(AssertionError) as caught:
        gallery.run(script)
    assert caught.value.__notes__ == [f"in {script}, cell 2 (of text and code)"]


def test_a_warning_that_a_script_does_not_expect_fails_it(gallery: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "warns.py"
    script.write_text("# %%\nimport warnings\n\nwarnings.warn('x')\n")
    with pytest.raises(UserWarning, match="x"):
        gallery.run(script)


def test_pages_of_the_repository_link_to_scripts_that_are_there() -> None:
    names = {script.stem for script in SCRIPTS}
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        linked = re.findall(r"gallery/(\w+)\.py\)", page.read_text(encoding="utf-8"))
        assert set(linked) <= names, page
    for script in SCRIPTS:
        linked = re.findall(r"\]\((\w+)\.py\)", script.read_text(encoding="utf-8"))
        assert set(linked) <= names, script
