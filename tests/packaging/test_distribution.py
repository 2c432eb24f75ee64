"""The wheel and the sdist contain the right files, install, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

import streaming_pca

ROOT = Path(__file__).resolve().parents[2]
AT_TOP = ["CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"]
DATA_SUFFIXES = {".css", ".html", ".js", ".json", ".md", ".png", ".svg", ".typed"}
VERSION = streaming_pca.__version__

CLIENT = """
import numpy as np

from streaming_pca import PrivatePCA

pca = PrivatePCA(n_components=2, epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0))
pca.fit(np.zeros((5000, 3)))
reveal_type(pca)
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, and return its standard output."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def build(source: Path, out: Path, kind: str) -> Path:
    """Build one distribution; its setuptools is this environment's, so nothing is fetched."""
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source, cwd=out.parent)
    (made,) = out.iterdir()
    return made


@dataclass(frozen=True)
class Distributions:
    source: Path
    sdist: Path
    wheel: Path
    wheel_from_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build from a copy: files left by setuptools would be in the next wheel."""
    tmp = tmp_path_factory.mktemp("distributions")
    source = tmp / "source"
    for name in ("streaming_pca", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in AT_TOP:
        shutil.copy(ROOT / name, source)
    sdist = build(source, tmp / "sdist", "sdist")
    wheel = build(source, tmp / "wheel", "wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp / "unpacked", filter="data")
    (unpacked,) = (tmp / "unpacked").iterdir()
    return Distributions(source, sdist, wheel, build(unpacked, tmp / "again", "wheel"))


@pytest.fixture(scope="module")
def installed(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel and access to this environment's other packages."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
    run(*pip, built.wheel, cwd=environment)
    own = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment).strip()
    )
    # Only paths are allowed: this ignores a site directory's .pth files, including the editable
    # installation's.
    (own / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def files_of_package(source: Path) -> set[str]:
    found = {
        str(path.relative_to(source)) for path in (source / "streaming_pca").rglob("*") if path.is_file()
    }
    assert {Path(name).suffix for name in found} <= {".py", *DATA_SUFFIXES}, "say what is to be in the wheel"
    return found


def test_the_wheel_is_the_package_and_nothing_else(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        info = f"streaming_pca-{VERSION}.dist-info"
        assert f"{info}/licenses/LICENSE" in names
        assert {n for n in names if not n.startswith(info)} == files_of_package(built.source)
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert "streaming_pca/py.typed" in names
    schemas = {f"streaming_pca/schemas/{name}.json" for name in ("release", "ledger", "payload", "asyncapi")}
    assert schemas <= names
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {
        "arrow",
        "avro",
        "benchmarks",
        "browser-test",
        "dashboard",
        "demo",
        "deploy-test",
        "docs",
        "experiments",
        "fuzz",
        "lint",
        "otel",
        "protobuf",
        "spark",
        "test",
    }


def test_the_sdist_has_the_sources_without_the_tests(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files_of_package(built.source) | set(AT_TOP) <= names
    assert not [name for name in names if name.startswith("tests")]


def test_the_sdist_makes_the_same_wheel(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as one, zipfile.ZipFile(built.wheel_from_sdist) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {i.filename: i.CRC for i in other.infolist()}


def test_the_installed_command_runs(installed: Path) -> None:
    command = installed / "bin" / "streaming-pca"
    assert run(command, "--version", cwd=installed).strip() == f"streaming-pca {VERSION}"
    infos = json.loads(run(command, "estimators", "--json", cwd=installed))
    assert "adaptive" in {info["id"] for info in infos}


def test_what_is_imported_is_what_was_installed(installed: Path) -> None:
    program = (
        "import streaming_pca as s; from streaming_pca import PrivatePCA; print(s.__file__); PrivatePCA()"
    )
    where = run(installed / "bin" / "python", "-c", program, cwd=installed)
    assert where.startswith(str(installed))


def test_a_client_program_sees_types(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "bin" / "python")
    message = run(*mypy, "--cache-dir", tmp_path / "cache", "client.py", cwd=tmp_path)
    assert re.search(r'Revealed type is "streaming_pca\.[\w.]+\.PrivatePCA"', message), message
    (tmp_path / "client.py").write_text(CLIENT.replace("n_components=2", 'n_components="two"'))
    with pytest.raises(AssertionError, match="n_components"):
        run(*mypy, "--cache-dir", tmp_path / "cache", "client.py", cwd=tmp_path)


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## \[?([0-9.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION
