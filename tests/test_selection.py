"""Every test belongs to one scope and one part; files without a test of the run stay unread."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import selection
from tests.selection import KEPT, LONG, MIXED, REST, ROOT, WAITING, is_unread, kind_of, select
from tests.waiting import LIMIT

EXTRAS = ("dashboard", "demo", "deployment", "projection", "Spark", "traces")


def item(nodeid: str, *marks: str, fixtures: tuple[str, ...] = (), obj: object = None) -> Any:
    made = MagicMock(nodeid=nodeid, fixturenames=fixtures, _fixtureinfo=None, obj=obj)
    made.get_closest_marker = lambda name: name if name in marks else None
    return made


def kept(
    items: list[Any], scope: str = "all", part: str = "both", markers: str = "", fast: bool = False
) -> list[Any]:
    left = list(items)
    option = SimpleNamespace(scope=scope, part=part, markexpr=markers, fast=fast)
    select(MagicMock(option=option), left)
    return left


def config(scope: str, part: str) -> Any:
    return SimpleNamespace(option=SimpleNamespace(scope=scope, part=part))


@given(st.integers())
def examples(number: int) -> None:
    pass


ITEMS = [
    item("tests/linalg/test_a.py::test"),
    item("tests/linalg/test_a.py::test[1]", "rest"),
    item("tests/kafka/test_a.py::test", fixtures=("kafka_bootstrap",)),
    item("tests/cli/test_app.py::test"),
    item("tests/cli/test_app.py::test_b", fixtures=("kafka_bootstrap",)),
    item("tests/spark/test_a.py::test", fixtures=("spark",)),
    *(item(name) for name in KEPT),
    *(item(f"{name}[1]") for name in KEPT),
]


def test_scopes_and_parts_together_are_all_tests_and_none_twice() -> None:
    for markers in ("", "soak or not soak"):
        items = [*ITEMS, item("tests/linalg/test_a.py::test[2]", "soak")]
        parts = [
            kept(items, scope, part, markers) for scope in ("test", "rest") for part in ("pure", "waiting")
        ]
        together = [each for part in parts for each in part]
        assert len(together) == len(set(together))
        assert set(together) == set(kept(items, markers=markers))
        assert len(together) == len(ITEMS) + bool(markers)


def test_a_hypothesis_test_takes_further_examples_in_the_rest() -> None:
    free, own = (item("tests/linalg/test_a.py::test", obj=obj) for obj in (examples, lambda: None))
    assert kept([free, own], "test") == [free, own]
    assert kept([free, own], "rest") == [free]


def test_a_waiting_test_in_a_folder_of_pure_ones_is_an_error() -> None:
    stray = item("tests/linalg/test_a.py::test", fixtures=("kafka_bootstrap",))
    with pytest.raises(pytest.UsageError, match="add its file to MIXED"):
        kept([stray], part="pure")


@pytest.mark.parametrize("scope", ["test", "rest", "all"])
@pytest.mark.parametrize("part", ["pure", "waiting", "both"])
def test_no_file_with_a_chosen_test_is_left_unread(scope: str, part: str) -> None:
    for each in ITEMS:
        path = ROOT / each.nodeid.partition("::")[0]
        if kept([each], scope, part):
            assert not is_unread(path, config(scope, part)), each.nodeid


def test_files_without_a_chosen_test_are_left_unread() -> None:
    assert is_unread(ROOT / "tests/spark/test_tasks.py", config("test", "both"))
    assert is_unread(ROOT / "tests/kafka/test_clock.py", config("all", "pure"))
    assert is_unread(ROOT / "tests/linalg/test_packed.py", config("all", "waiting"))
    assert is_unread(ROOT / "tests/linalg", config("all", "waiting"))
    assert is_unread(ROOT / "tests/upgrade", config("test", "both"))
    for name in ("tests", "tests/cli", "tests/service/kafka", "tests/kafka/units"):
        assert not is_unread(ROOT / name, config("all", "waiting")), name
    assert not is_unread(ROOT / "tests/demo", config("test", "waiting"))


def test_longest_groups_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/{folder}/test_a.py::test" for folder in ("a", "b", "c")]
    monkeypatch.setattr(selection, "read_recorded", lambda: {names[1]: 3.0, names[2]: 9.0})
    assert [each.nodeid for each in kept([item(name) for name in names])] == [names[2], names[1], names[0]]


def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """Incompatible versions of pytest and pytest-xdist would silently ignore groups."""
    (tmp_path / "test_groups.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.xdist_group('one')\n"
        "@pytest.mark.parametrize('i', range(8))\n"
        "def test_it(i): open(os.environ['PYTEST_XDIST_WORKER'], 'w').close()\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "test_groups.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "8 passed" in ran.stdout, ran.stdout + ran.stderr
    assert len(list(tmp_path.glob("gw*"))) == 1


def test_long_tests_are_left_to_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short, waiting, longer = (
        item(f"tests/{name}/test_a.py::test") for name in ("a", "b", "kafka", "kafka/units")
    )
    named = item(f"{next(iter(KEPT))}[1]")
    seconds = {
        long.nodeid: LONG["pure"],
        short.nodeid: LONG["pure"] - 0.1,
        waiting.nodeid: LONG["waiting"] - 1,
        longer.nodeid: LONG["waiting"],
        named.nodeid: 99,
    }
    monkeypatch.setattr(selection, "read_recorded", lambda: seconds)
    every = [long, short, waiting, longer, named]
    assert set(kept(every, "test")) == {short, waiting, named}
    assert set(kept(every, "rest")) == {long, longer}
    assert kept([*every, item("tests/a/test_a.py::test_new")], fast=True)[0].nodeid.endswith("test_new")


def test_each_extra_has_a_kept_test_and_all_kept_ones_exist() -> None:
    assert set(EXTRAS) <= set(KEPT.values())
    for name in KEPT:
        path, _, function = name.partition("::")
        assert name.startswith(REST) or KEPT[name] not in EXTRAS, name
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_every_name_of_the_tables_exists() -> None:
    for name in (*REST, *WAITING, *MIXED):
        assert (ROOT / name).exists(), name


def test_kinds_follow_fixtures_and_folders() -> None:
    kinds = {kind_of(item("tests/x/test_a.py::test", fixtures=(name,))) for name in ("browser", "image", "y")}
    assert kinds == {"browser", "image", "pure"}
    assert kind_of(item("tests/docs/test_a.py::test")) == "docs"


def test_recorded_tests_are_of_files_that_exist() -> None:
    recorded = selection.read_recorded()
    assert len(recorded) > 100
    gone = {name for name in recorded if not (ROOT / re.split("::", name)[0]).exists()}
    assert not gone, f"run `make test-all` and `python -m tests.durations`: {sorted(gone)}"
    assert isinstance(selection.RECORDED, Path)
