"""The image of all tests, built once: `python -m tests.deploy.image FOLDER`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from tests.compiled import wait_until_compiled
from tests.deploy.dockerfile import Image
from tests.deploy.tools import ROOT


def build_ahead(folder: Path) -> subprocess.Popen[bytes]:
    """Start building the image while tests that do not need it run; the process leads its own session."""
    silent = subprocess.DEVNULL
    command = [sys.executable, "-m", "tests.deploy.image", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=silent, stdout=silent, stderr=silent, start_new_session=True
    )


def build_once(folder: Path) -> Image:
    """Return the image; build it unless another process has, and wait while another process does."""
    made = Image(folder)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.with_suffix(".done").exists():
            made.built = made.files()
        else:
            # A process that failed has left its part; here a test shows the reason.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            made.build()
            folder.with_suffix(".done").touch()
    return made


if __name__ == "__main__":
    # All processes of the run wait for the checkout's kernels: these have the processor first.
    wait_until_compiled()
    build_once(Path(sys.argv[1]))
