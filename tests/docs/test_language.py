"""Docstrings are understandable at first reading: CONTRIBUTING.md's rules, as far as counts show."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

PACKAGES = ("streaming_pca", "experiments", "benchmarks")
MOST_WORDS = 15
HEADLESS = re.compile(
    r"(After|As|Because|Before|By|Everything|For|From|How|If|Nothing|Of|So|That|Those|To|What|Whatever|When|Where|"
    r"Whether|Which|Whichever|Who|Whoever|Whose|Why|With)(?=\s|$)"
)
"""First words of a docstring that begin a clause without its main part."""
BANNED = re.compile(
    r"\b(whoever|whatever|whichever|nobody|somebody|anybody|so many|so much|in the meantime|the same in the|"
    r"one that|ones that|those that|that of|that which|all that|what it|it came to|comes? to)\b",
    re.IGNORECASE,
)
PAPER = re.compile(r"(?<![\w.,-])00[0-4](?![\w.])")
PAPER_LINES = re.compile(r"\blines? \d")

DIALECT = re.compile(
    r"\b(tell|tells|told|telling)\b(?! (apart|from noise))|\b(says|said)\b|\b(is|are|was|were) (no|none)\b|"
    r"\bbehind\b|\bbeside\b|\b(go|goes|went) on\b|\banew\b|\bat once\b|"
    r"\b(of|by|in|with|from|to|at|on|for) (which|whose|whom)\b|\bno more\b|\bbe had\b|\bmeanwhile\b|"
    r"\bstands? for\b"
)
"""Idiom of another language, where each of these stands in the place of a plain English word."""
MOST_DIALECT = {
    "pages": (0, 0),
    "docs": (27, 0),
    "streaming_pca": (2, 0),
    "tests": (1, 67),
    "benchmarks": (0, 0),
    "experiments": (1, 5),
}
"""Marks in prose (docstrings, comments, pages) and in code (names, messages); these may only fall."""

_SENTENCE_END = re.compile(r"(?<=[.:;!?])\s|\n\n")
_UNAVOIDABLE: frozenset[str] = frozenset()
"""Lines of source, without indent, that hold a banned word and are right English."""


class Docstring(NamedTuple):
    where: str
    first_sentence: str
    of_attribute: bool


@cache
def sources() -> tuple[tuple[Path, str], ...]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple((path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths)


@cache
def docstrings() -> tuple[Docstring, ...]:
    return tuple(found for path, text in sources() for found in _docstrings(path, text))


def _docstrings(path: Path, text: str) -> Iterator[Docstring]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            written = ast.get_docstring(node)
            if written:
                yield _docstring(path, getattr(node, "lineno", 1), written, of_attribute=False)
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, after in pairwise(body):
            match before, after:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(written))):
                    yield _docstring(path, after.lineno, written, of_attribute=True)


def _docstring(path: Path, line: int, written: str, *, of_attribute: bool) -> Docstring:
    return Docstring(f"{path}:{line}", _SENTENCE_END.split(written.strip(), maxsplit=1)[0], of_attribute)


def headless() -> list[str]:
    return [
        f"{found.where}: {found.first_sentence[:90]!r}"
        for found in docstrings()
        if HEADLESS.match(found.first_sentence.lstrip("`*("))
    ]


def long_sentences() -> list[str]:
    return [
        f"{found.where}: {len(found.first_sentence.split())} words: {found.first_sentence[:90]!r}"
        for found in docstrings()
        if not found.of_attribute and len(found.first_sentence.split()) > MOST_WORDS
    ]


def banned_words() -> list[str]:
    return [
        f"{where}: {found[0]!r}: {line.strip()[:100]}"
        for where, line in _lines()
        if (found := BANNED.search(line)) and line.strip() not in _UNAVOIDABLE
    ]


def papers_by_number() -> list[str]:
    return [
        f"{where}: {line.strip()[:100]}"
        for where, line in _lines()
        if PAPER.search(line)
        or (PAPER_LINES.search(line) and any(mark in line for mark in ('"""', "#", "lines")))
    ]


def _lines() -> Iterator[tuple[str, str]]:
    for path, text in sources():
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{path}:{number}", line


@pytest.mark.parametrize("offences", [headless, long_sentences, banned_words, papers_by_number])
def test_the_language_has_no(offences: object) -> None:
    assert callable(offences)
    found = offences()
    assert not found, f"{len(found)} of {len(docstrings())} docstrings or lines:\n" + "\n".join(found)


def test_the_counts_find_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '"""Whether it is good."""\n'
        "def f():\n"
        f'    """Return {"a word " * 8}at last."""\n'
        "    # Nobody knows, says 003, lines 2-4.\n"
        "x = 1\n"
        '"""What stands here."""\n'
    )
    monkeypatch.setitem(globals(), "sources", lambda: ((Path("bad.py"), text),))
    docstrings.cache_clear()
    try:
        assert len(docstrings()) == 3
        assert len(headless()) == 2
        assert len(long_sentences()) == len(banned_words()) == len(papers_by_number()) == 1
    finally:
        docstrings.cache_clear()


@cache
def dialect() -> dict[str, tuple[int, int]]:
    """Count the marks in prose and in code of each folder."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    counts = {"pages": (sum(map(_marks, pages)), 0)}
    for folder in ("docs", "streaming_pca", "tests", "benchmarks", "experiments"):
        prose = code = 0
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".md":
                prose += _marks(path)
            elif path.suffix == ".py" and path != Path(__file__):
                written, rest = _prose_and_code(path.read_text(encoding="utf-8"))
                prose += len(DIALECT.findall(written))
                code += len(DIALECT.findall(rest))
        counts[folder] = (prose, code)
    return counts


def _marks(path: Path) -> int:
    return len(DIALECT.findall(path.read_text(encoding="utf-8")))


def _prose_and_code(text: str) -> tuple[str, str]:
    """Split a module into its docstrings and comments, and all other tokens."""
    prose, code = [], []
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and before in (
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
        )
        (prose if is_docstring or token.type == tokenize.COMMENT else code).append(token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return "\n".join(prose), "\n".join(code)


@pytest.mark.parametrize("folder", MOST_DIALECT)
def test_marks_of_the_dialect_only_fall(folder: str) -> None:
    found, most = dialect()[folder], MOST_DIALECT[folder]
    assert found[0] <= most[0], f"{folder}: {found[0]} marks in prose, at most {most[0]}"
    assert found[1] <= most[1], f"{folder}: {found[1]} marks in code, at most {most[1]}"
    assert found == most, f"{folder}: fewer marks: write {found} in MOST_DIALECT"


def test_marks_are_told_apart_by_their_place() -> None:
    text = '"""It goes on."""\n\n\ndef f() -> str:\n    # As said.\n    said = "behind"\n    return said\n'
    prose, code = _prose_and_code(text)
    assert (len(DIALECT.findall(prose)), len(DIALECT.findall(code))) == (2, 3)
