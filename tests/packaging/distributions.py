"""Wheels of a copy of this checkout, and environments that hold them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
AT_TOP = ["CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"]


def run(*command: object, cwd: Path, seconds: float = 240, **environment: str) -> str:
    """Run a command that must succeed, and return its standard output."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def copy_source(folder: Path) -> Path:
    """Copy what is built: files left by setuptools would be in the next wheel."""
    for name in ("streaming_pca", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in AT_TOP:
        shutil.copy(ROOT / name, folder)
    return folder


def build(source: Path, out: Path, kind: str) -> Path:
    """Build one distribution; its setuptools is this environment's, so nothing is fetched."""
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source, cwd=out.parent)
    (made,) = out.iterdir()
    return made


def install(wheel: Path, environment: Path) -> Path:
    """Create an environment with a wheel and nothing else; return its folder of packages."""
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
    run(*pip, wheel, cwd=environment)
    return Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment).strip()
    )


def needed(wheel: Distribution, extra: str) -> set[str]:
    """Return the distributions that an installed wheel needs with an extra, and their own needs."""
    own = canonicalize_name(wheel.name)
    found: dict[str, set[str]] = {}
    waiting = [Requirement(f"{own}[{extra}]")]
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        new = {"", *need.extras} - found.get(name, set())
        if new:
            found.setdefault(name, set()).update(new)
            # An extra may name others of the wheel's; the one that is installed here is the checkout.
            present = wheel if name == own else distribution(name)
            waiting.extend(_applicable(present.requires or (), new))
    return set(found) - {own}


def _applicable(requirements: Iterable[str], extras: set[str]) -> Iterator[Requirement]:
    for need in map(Requirement, requirements):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            yield need


def link(names: Iterable[str], site: Path) -> None:
    """Link the files of this environment's distributions into another folder of packages."""
    for name in names:
        files = distribution(name).files
        assert files, f"{name} does not list its files"
        for file in files:
            source, target = Path(str(file.locate())), site / file
            # Scripts are elsewhere. If bytecode is absent, Python compiles the module.
            if ".." in file.parts or (file.suffix == ".pyc" and not source.exists()):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
