"""The wheel runs the demo with the packages of its extra alone, outside the checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.compiled import QUICK
from tests.packaging.distributions import build, copy_source, install, link, needed, run

_LIMIT = 900


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment like that of `pip install WHEEL[demo]`, from packages that are here."""
    tmp = tmp_path_factory.mktemp("wheel")
    source = copy_source(tmp / "source")
    site = install(build(source, tmp / "dist", "wheel"), tmp / "environment")
    # With the tests it holds what no file of a run may contain.
    shutil.rmtree(source)
    (wheel,) = distributions(name="streaming-pca", path=[str(site)])
    link(needed(wheel, "demo"), site)
    return tmp / "environment"


def test_the_environment_has_no_package_of_another_extra_or_of_the_tests(environment: Path) -> None:
    names = "matplotlib", "fastapi", "pytest"
    program = f"import importlib.util as u; print(*(n for n in {names} if u.find_spec(n)))"
    assert run(environment / "bin" / "python", "-c", program, cwd=environment).strip() == "matplotlib"


@pytest.mark.timeout(_LIMIT + 300)
def test_the_demo_runs_in_an_empty_environment(environment: Path, tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    cwd.mkdir()
    home.mkdir()
    command = environment / "bin" / "streaming-pca"
    out = run(command, "demo", "--plot", "demo.png", cwd=cwd, seconds=_LIMIT, HOME=str(home), **QUICK)
    facts = json.loads(out.splitlines()[-1])
    assert "next: streaming-pca demo --dashboard repeats this" in out
    assert "docs/" not in out
    assert "make " not in out
    assert facts["records"] == 336_776
    assert facts["error"] <= 0.05 * facts["random_error"]
    assert facts["ledger"] == "verified"
    assert [path.name for path in cwd.iterdir()] == ["demo.png"]


def test_a_command_of_another_extra_names_it(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "bin" / "streaming-pca"), "demo", "--dashboard"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    found = re.search(r"pip install '(.+)\[dashboard\]'$", line)
    assert found, line
    assert Path(found[1]).is_file()
