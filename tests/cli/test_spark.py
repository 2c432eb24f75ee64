"""`streaming-pca spark` ends with one line of advice and status 2 if Spark cannot start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.command import call
from tests.cli.test_app import one_line, write_config

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
EXTRA = "pip install '.[spark]' in the checkout"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, "127.0.0.1:1", "s")


@pytest.mark.parametrize("name", ["pandas", "pyarrow", "pyspark"])
def test_without_the_extra(name: str, config: Path, capfd: Capture, monkeypatch: Patch) -> None:
    # A module entry of None makes Python refuse the import.
    monkeypatch.setitem(sys.modules, name, None)
    one_line(call(capfd, "spark", "--config", config), 2, f"error: Spark needs {name}: {EXTRA}")


def test_without_java(config: Path, tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    for tool in ("bash", "dirname"):
        found = next(path for each in ("/usr/bin", "/bin") if (path := Path(each, tool)).exists())
        (tmp_path / tool).symlink_to(found)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call(capfd, "spark", "--config", config, "--master", "local[1]")
    one_line(done, 2, "error: Spark did not start: JAVA_HOME is not set", "openjdk-17-jre-headless")


def test_a_wrong_configuration(config: Path, capfd: Capture) -> None:
    one_line(call(capfd, "spark", "--config", config, "--master", "nonsense"), 2, "error: --master nonsense")
    config.write_text(config.read_text() + '\n[spark]\nmastre = "yarn"\n')
    wrong = "spark.mastre: no such setting; did you mean master?"
    one_line(call(capfd, "spark", "--config", config), 2, wrong)
