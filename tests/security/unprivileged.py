"""Programs that run as a user without rights, as a service does; root could do anything."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.waiting import LIMIT

_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
# Another Python of the same version has its own standard library.
_OTHERS = (path for path in sys.path if path and path not in _STANDARD)
_STREAMS = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
_SITE = [path for path in _OTHERS if not path.endswith((".zip", "lib-dynload"))]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of such a program: this one's packages, and a read-only home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMING_PCA_")}
    return kept | {"PYTHONPATH": os.pathsep.join(_SITE), "HOME": "/nonexistent"} | more


def _user() -> dict[str, Any]:
    """Return the arguments of a process without rights; none if tests lack rights themselves."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@cache
def python() -> str:
    """Return a Python that the user can run: not one in the home of root."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        try:
            if _run([program, "-c", "import numpy, pydantic"]).returncode == 0:
                return program
        except OSError:
            continue
    pytest.skip(f"no Python {version} that the user nobody can run: the interpreter is in the home of root")


def user_id() -> int:
    """Return the number of that user; 0 if tests lack rights themselves."""
    return int(_user().get("user", 0))


def paths(first: Path) -> str:
    """Return a value of PYTHONPATH: a folder, and this process's own."""
    return os.pathsep.join([str(first), *_SITE])


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder that the user can write; pytest closes its own folders to others."""
    with TemporaryDirectory(prefix="streaming-pca-unprivileged-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


@contextmanager
def running(*words: object, cwd: Path, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """Run Python as the user without rights, and end it."""
    variables: Mapping[str, str] = how.pop("variables", {})
    with subprocess.Popen(
        [python(), "-P", *map(str, words)],
        cwd=cwd,
        env=environment(**variables),
        text=True,
        **_STREAMS | how | _user(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_dumpable(pid: int) -> bool:
    """Return whether its user may have core files and debuggers; otherwise root owns its /proc."""
    assert os.stat(f"/proc/{pid}").st_uid != 0 or os.geteuid() != 0, "a process of root"
    return os.stat(f"/proc/{pid}/environ").st_uid != 0


def run(*words: object, cwd: Path, seconds: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as the user without rights."""
    return _run([*map(str, words)], cwd=cwd, timeout=seconds)


def _run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    usual: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 2 * LIMIT}
    usual |= {"env": environment(), "stdin": subprocess.DEVNULL}
    return subprocess.run(command, **(usual | _user() | how))
