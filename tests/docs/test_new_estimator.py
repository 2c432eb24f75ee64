"""The estimator that CONTRIBUTING adds by a diff passes the tests of all estimators."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compiled import wait_until_compiled
from tests.docs.pages import ROOT
from tests.waiting import LIMIT, run_to_success

NAME = "gaussian-covariance"
FILES = {
    "docs/how-to/choose-an-estimator.md",
    "streaming_pca/estimators/covariance/gaussian_covariance.py",
    "streaming_pca/estimators/registry.py",
}
SUITES = [
    *("tests/api/test_contract.py", "tests/audit/test_cases.py", "tests/config/test_loading.py"),
    *("tests/docs/test_docs.py", "tests/packaging/test_imports.py", "tests/service/test_topics.py"),
    *("tests/privacy/ledger/test_mutants.py", "tests/privacy/test_randomness.py"),
    *(f"tests/estimators/test_{name}.py" for name in ("conformance", "charges_are_lawful", "diagnostics")),
    *(f"tests/estimators/test_{name}.py" for name in ("split_batch", "usefulness")),
]
OTHERS = (
    *("generated_text", "has_a_row", "imports_point_down", "modules_import_each_other", "module_is_imported"),
    *("only_mechanisms_go", "too_many_files"),
)
"""Tests of pages and of imports, by parts of their names."""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """Copy the files that git knows or would add, and remove them later: they hold the tests' secrets."""
    folder = tmp_path / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/upgrade/fixtures/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            # With its time of change, which compiled files name.
            shutil.copy2(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder)


def copy_compiled(tree: Path) -> None:
    """Copy this checkout's bytecode and kernels, after the last change of the tree's sources."""
    wait_until_compiled()
    for file in (ROOT / "streaming_pca").rglob("__pycache__/*.*"):
        copied = tree / file.relative_to(ROOT)
        if not copied.parent.parent.is_dir():
            # Left by a module of another time.
            continue
        copied.parent.mkdir(exist_ok=True)
        # Another process may replace the file: then the tree's tests compile that module or kernel.
        with suppress(FileNotFoundError):
            shutil.copyfile(file, copied)


def test_the_diff_of_an_estimator_touches_three_files_and_passes_all_tests(
    tree: Path, tmp_path: Path
) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)) == FILES
    (tmp_path / "new.diff").write_text(diff, encoding="utf-8")
    run_to_success(["git", "apply", tmp_path / "new.diff"], tree)
    code = tree / "streaming_pca"
    run_to_success([sys.executable, "-m", "ruff", "check", code], tree)
    run_to_success([sys.executable, "-m", "ruff", "format", "--check", code], tree)
    copy_compiled(tree)
    run_to_success([sys.executable, "docs/hooks.py"], tree)
    chosen = " or ".join((NAME, *OTHERS))
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Some 240 tests, in half a minute on an idle machine.
    run_to_success([*program, "-k", chosen, *SUITES], tree, limit=4 * LIMIT)
