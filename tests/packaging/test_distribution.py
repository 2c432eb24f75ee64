"""The wheel and the sdist contain the right files, install, and run."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import streaming_pca
from tests.packaging.distributions import AT_TOP, ROOT, build, copy_source, install, run

DATA_SUFFIXES = {".css", ".html", ".js", ".json", ".md", ".png", ".svg", ".typed"}
VERSION = streaming_pca.__version__

CLIENT = """
import numpy as np

from streaming_pca import PrivatePCA

pca = PrivatePCA(n_components=2, epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0))
pca.fit(np.zeros((5000, 3)))
reveal_type(pca)
"""


@dataclass(frozen=True)
class Distributions:
    source: Path
    sdist: Path
    wheel: Path
    wheel_from_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    tmp = tmp_path_factory.mktemp("distributions")
    source = copy_source(tmp / "source")
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
    own = install(built.wheel, environment)
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
        "gallery",
        "lint",
        "otel",
        "plots",
        "protobuf",
        "spark",
        "test",
    }


def test_the_metadata_is_complete(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        raw = archive.read(f"streaming_pca-{VERSION}.dist-info/METADATA")
    metadata = Metadata.from_email(raw, validate=True)
    assert metadata.summary
    assert metadata.keywords
    assert metadata.author
    assert metadata.description is not None
    assert metadata.description.startswith("# streaming_pca")
    classifiers = metadata.classifiers or []
    for topic in ("Development Status", "Framework", "Operating System", "Topic", "Typing"):
        assert any(line.startswith(f"{topic} :: ") for line in classifiers), topic
    listed = [tuple(map(int, m[1].split("."))) for c in classifiers if (m := re.search(r"(3\.\d+)$", c))]
    # The service reads files in /proc, and its units and images are for Linux.
    assert "Operating System :: POSIX :: Linux" in classifiers
    assert str(metadata.requires_python) == f">={min(listed)[0]}.{min(listed)[1]}"
    if os.environ.get("CI"):
        assert sys.version_info[:2] in listed, "CI tests another Python: list it"


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
