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
    assert re.fullmatch(r"installing streaming-pca\[demo\] into \.venv: .*\n\.*\n", done.stdout)
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
