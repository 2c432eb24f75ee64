"""Gallery: every script of docs/gallery becomes a page with its figures, and a notebook.

The scripts are in jupytext's percent format. mkdocs runs them when it builds the site; nothing generated is
stored in the repository. Pages link to ``gallery/NAME.py``, for readers of the repository, and the site
links to the page instead.
"""

from __future__ import annotations

import base64
import io
import logging
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

GALLERY = Path(__file__).parent / "gallery"
_DPI = 110
_log = logging.getLogger("mkdocs.hooks.gallery")
_ENTRY = re.compile(r"^- \[(?P<title>.+?)\]\((?P<name>\w+)\.py\): (?P<line>.+)$", re.MULTILINE)
"""Line of docs/gallery/index.md for a script."""
_LINK = re.compile(r"(\]\((?:\.\./)*gallery/\w+)\.py\)")
_NEIGHBOUR = re.compile(r"(\]\(\w+)\.py\)")
"""Link of a script to another one."""


def entries() -> list[dict[str, str]]:
    """Return name, title and line of each script in index.md, in its order."""
    text = (GALLERY / "index.md").read_text(encoding="utf-8")
    return [found.groupdict() for found in _ENTRY.finditer(text)]


def run(path: Path) -> Any:
    """Run a script cell by cell, and return its notebook with printed text and figures.

    Figures are those of ``plt.show()``. A UserWarning that the script does not expect is an error.
    """
    return _run(path, path.read_text(encoding="utf-8"))


@cache
def _run(path: Path, text: str) -> Any:
    # `mkdocs serve` builds the site at every change.
    import jupytext
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    namespace = {"__name__": "__main__", "__file__": str(path)}
    plt.switch_backend("Agg")
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        # White under the axes is readable on a dark page too.
        mpl.rcParams.update({"figure.dpi": _DPI, "savefig.facecolor": "white"})
        warnings.simplefilter("error", UserWarning)
        for number, cell in enumerate(notebook.cells, 1):
            if cell.cell_type == "code":
                try:
                    cell.outputs = _outputs(cell.source, f"{path.name}, cell {number}", namespace)
                except BaseException as error:
                    error.add_note(f"in {path}, cell {number} (of text and code)")
                    raise
                finally:
                    plt.close("all")
    return notebook


def _outputs(source: str, name: str, namespace: dict[str, Any]) -> list[Any]:
    """Execute a code cell; return its text and figures in their order."""
    from matplotlib import pyplot as plt
    from nbformat.v4 import new_output

    outputs: list[Any] = []
    printed = io.StringIO()

    def keep_text() -> None:
        if text := printed.getvalue():
            outputs.append(new_output("stream", name="stdout", text=text))
        printed.seek(0)
        printed.truncate()

    def show() -> None:
        keep_text()
        for number in plt.get_fignums():
            drawn = io.BytesIO()
            plt.figure(number).savefig(drawn, format="png")
            picture = base64.b64encode(drawn.getvalue()).decode()
            outputs.append(new_output("display_data", data={"image/png": picture}))
        plt.close("all")

    with patch.object(plt, "show", show), redirect_stdout(printed):
        exec(compile(source, name, "exec"), namespace)
    keep_text()
    return outputs


def figures(notebook: Any) -> list[bytes]:
    """Return the figures of a notebook as PNG files."""
    return [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "display_data"
    ]


def page(notebook: Any, name: str, title: str) -> str:
    """Return a notebook as a page that names its figures NAME-1.png, NAME-2.png and so on."""
    parts: list[str] = []
    n_figures = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(_NEIGHBOUR.sub(r"\1.md)", cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.output_type == "stream":
                parts.append(f'```text title="output"\n{output.text.rstrip()}\n```')
            else:
                n_figures += 1
                parts.append(f"![{title}, figure {n_figures}]({name}-{n_figures}.png)")
    parts.append(f"Download the [script]({name}.py) or the [notebook]({name}.ipynb).")
    return "\n\n".join(parts) + "\n"


def on_config(config: Any) -> Any:
    """Add the scripts' pages to the navigation."""
    (section,) = (item["Gallery"] for item in config.nav if "Gallery" in item)
    section += [{entry["title"]: f"gallery/{entry['name']}.md"} for entry in entries()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Run the scripts, and add their pages, figures and notebooks."""
    import jupytext
    from mkdocs.structure.files import File

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, f"gallery/{path}", content=content))

    for entry in entries():
        name = entry["name"]
        _log.info("Running gallery/%s.py", name)
        notebook = run(GALLERY / f"{name}.py")
        add(f"{name}.md", page(notebook, name, entry["title"]))
        add(f"{name}.ipynb", jupytext.writes(notebook, fmt="ipynb"))
        for number, figure in enumerate(figures(notebook), 1):
            add(f"{name}-{number}.png", figure)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show the index with thumbnails, and link to pages in the place of scripts."""
    if page.file.src_uri == "gallery/index.md":
        return _cards(markdown)
    return _LINK.sub(r"\1.md)", markdown)


def _cards(markdown: str) -> str:
    """Turn the list of scripts into a grid of cards."""
    card: Callable[[re.Match[str]], str] = (
        "-   [![]({0[name]}-1.png){{ loading=lazy }}]({0[name]}.md)\n\n"
        "    **[{0[title]}]({0[name]}.md)**\n\n    {0[line]}\n"
    ).format
    first, _, rest = markdown.partition("\n- ")
    return f'{first}\n<div class="grid cards" markdown>\n\n{_ENTRY.sub(card, f"- {rest}")}\n</div>\n'
