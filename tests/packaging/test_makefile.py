"""Installation by make prints one line and dots, and pip's whole output if it fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"

# `PYTHON -m venv FOLDER`, which creates a python whose `-m pip` prints, and then fails or not.
PYTHON = """#!/bin/sh
mkdir -p "$3/bin"
cat > "$3/bin/python" <<'END'
#!/bin/sh
echo "Collecting $5"
echo "WARNING: a warning of the build" >&2
exit $STATUS
END
chmod +x "$3/bin/python"
"""


def install(folder: Path, status: int) -> subprocess.CompletedProcess[str]:
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "pyproject.toml").touch()
    return subprocess.run(
        ["make", "--no-print-directory", "-f", MAKEFILE, f"PYTHON={python}", ".venv/demo.stamp"],
        cwd=folder,
        env=os.environ | {"STATUS": str(status)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_installation_is_a_line_and_dots_unless_it_fails(tmp_path: Path) -> None:
    failed = install(tmp_path, 3)
    assert failed.returncode != 0
    assert "WARNING: a warning of the build" in failed.stderr
    assert not (tmp_path / ".venv" / "demo.stamp").exists()
    done = install(tmp_path, 0)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.fullmatch(r"installing streaming-pca\[demo\] into \.venv: .*\n", done.stdout)
    assert (tmp_path / ".venv" / "demo.stamp").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_dashboard_is_one_command_with_both_extras(tmp_path: Path) -> None:
    message = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "-f", MAKEFILE, "dashboard", f"VENV={tmp_path}/venv"],
        cwd=MAKEFILE.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert "--editable '.[demo,dashboard]'" in message
    assert message.splitlines()[-1].endswith("/bin/streaming-pca demo --dashboard")


def pin(folder: Path, registry: str) -> subprocess.CompletedProcess[str]:
    """Run `make pin` in a folder with copies of the files, and a `docker` that prints as one does."""
    docker = folder / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    docker.write_text(f"#!/bin/sh\n{registry}\n")
    docker.chmod(0o755)
    return subprocess.run(
        ["make", "--no-print-directory", "-f", MAKEFILE, "pin"],
        cwd=folder,
        env=os.environ | {"PATH": f"{docker.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


REGISTRY = """
test "$1 $2 $3" = "buildx imagetools inspect" || exit 1
echo "Name:      docker.io/library/$4"
echo "MediaType: application/vnd.oci.image.index.v1+json"
echo "Digest:    sha256:$(echo "$4 $DAY" | sha256sum | cut -d ' ' -f 1)"
echo "Manifests:"
echo "  Digest:    sha256:of-one-platform"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_pinning_adds_the_digest_of_each_image_of_others_and_renews_it(tmp_path: Path) -> None:
    names = ("deploy/Dockerfile", "docker-compose.yml")
    (tmp_path / "deploy").mkdir()
    for name in names:
        shutil.copy(MAKEFILE.parent / name, tmp_path / name)

    def texts() -> list[str]:
        return [re.sub(r"@sha256:[0-9a-f]{64}", "", (tmp_path / name).read_text()) for name in names]

    before, seen = texts(), []
    for day in ("1", "2"):
        done = pin(tmp_path, f"DAY={day}{REGISTRY}")
        assert done.returncode == 0, done.stderr
        pinned = done.stdout.splitlines()
        assert {line.partition(":")[0] for line in pinned} == {
            *("apache/kafka", "grafana/grafana", "prom/prometheus", "python")
        }
        dockerfile, compose = ((tmp_path / name).read_text() for name in names)
        for line in pinned:
            assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", line)
            expected = 2 if line.startswith("python:") else 1
            assert (dockerfile + compose).count(line) == expected, line
        # Our own images have no digest before they are built.
        assert not re.search(r"streaming-pca\S*@", compose)
        assert texts() == before
        seen.append(pinned)
    assert set(seen[0]).isdisjoint(seen[1])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_without_a_registry_pinning_changes_nothing_and_names_the_image(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    for name in ("deploy/Dockerfile", "docker-compose.yml"):
        shutil.copy(MAKEFILE.parent / name, tmp_path / name)
    done = pin(tmp_path, "exit 1")
    assert done.returncode != 0
    assert "no digest for apache/kafka:" in done.stderr
    for name in ("deploy/Dockerfile", "docker-compose.yml"):
        assert (tmp_path / name).read_text() == (MAKEFILE.parent / name).read_text()
