"""Pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = (
    README,
    *(page for name in ("tutorial", "guide", "how-to") for page in sorted((DOCS / name).glob("*.md"))),
)
"""Every page with code blocks that run."""

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<marker>[a-z-]+) -->\n)?"
    r"(?P<indent> *)```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^(?P=indent)```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or the setup hidden in a comment.

    Attributes
    ----------
    line : int
        First line in the page.
    language, code : str
    title : str or None
        Name of the file that contains the block.
    marker : str or None
        Reason why it does not run.
    """

    line: int
    language: str
    code: str
    title: str | None = None
    marker: str | None = None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["setup"] is not None:
            yield Block(line, "bash", found["setup"])
            continue
        indent = found["indent"]
        code = "".join(part.removeprefix(indent) for part in found["code"].splitlines(keepends=True))
        yield Block(line, found["language"], code, found["title"], found["marker"])


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()
