"""Every promise of the threat model names existing tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "explanation" / "threat-model.md").read_text()


def rows() -> list[list[str]]:
    """The rows of the table of attacks, without those that are headings."""
    table = PAGE.partition("| attack | promise | test |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [row for row in cells if not row[0].startswith("**")]


NAMES = [name for row in rows() for name in re.findall(r"`([^`]+)`", row[2])]


def test_every_attack_has_a_promise_and_a_test() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
        # Nothing but names of tests, with commas between.
        assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", row[2]), row


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_named_test_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    if path.endswith("/*"):
        assert list((TESTS / path[:-2]).glob("test_*.py")), name
        return
    tree = ast.parse((TESTS / path).read_text())
    found = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert found if function == "*" else function in found, f"{name}: there are {sorted(found)}"
