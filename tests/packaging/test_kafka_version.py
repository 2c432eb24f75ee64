"""An unsupported version of kafka-python is refused with one line that names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.test_imports import PACKAGE, ROOT, the_tree


def run(folder: Path, version: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with an apparent version of kafka-python, whose metadata is found first."""
    metadata = folder / f"kafka_python-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kafka-python\nVersion: {version}\n")
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("version", ["3.0.11", "3.1.0", "2.3.2", "4.0"])
def test_a_command_ends_with_one_line(tmp_path: Path, version: str) -> None:
    ended = run(tmp_path, version, "-m", "streaming_pca", "config", "schema", "release")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"streaming-pca: kafka-python {version} is not supported: "
        "pip install 'kafka-python[crc32c]>=3.0.12,<3.1'\n"
    )


@pytest.mark.parametrize("version", ["3.0.12", "3.0.13", "3.0.12.post1"])
def test_supported_versions_are_accepted(tmp_path: Path, version: str) -> None:
    ended = run(tmp_path, version, "-m", "streaming_pca", "config", "schema", "release")
    assert ended.returncode == 0, ended.stderr


def test_the_version_is_checked_before_any_module_imports_the_client(tmp_path: Path) -> None:
    modules = [
        module
        for module, imports in the_tree().imports.items()
        if any(name.partition(".")[0] == "kafka" for name in imports)
    ]
    assert len(modules) > 20
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        assert 'kafka-python 3.1.0 is not supported' in str(error), (name, error)\n"
        "    else:\n"
        "        raise SystemExit(f'{name} was imported')\n"
        "    assert 'kafka' not in sys.modules, name\n"
    )
    ended = run(tmp_path, "3.1.0", "-c", program, *modules)
    assert ended.returncode == 0, ended.stderr + ended.stdout


def test_the_declared_range_is_the_one_that_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = next(each for each in project["dependencies"] if each.startswith("kafka-python"))
    checked = (ROOT / PACKAGE / "service" / "kafka" / "__init__.py").read_text(encoding="utf-8")
    first, end = re.findall(r"\((\d[\d, ]+)\)", re.search(r"_FIRST, _END = (.*)", checked)[1])
    dotted = [each.replace(", ", ".") for each in (first, end)]
    assert declared == f"kafka-python[crc32c]>={dotted[0]},<{dotted[1]}"
