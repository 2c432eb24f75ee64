"""A process confined as by a container or a systemd unit, on a machine without either.

The kernel does the same as for an engine: a mount namespace of its own with the root read-only, another
user, no capabilities and no way to gain any. Only the network and the process numbers are this machine's.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from streaming_pca.dev.processes import Child
from tests.deploy.tools import captured, missing, tool
from tests.waiting import LIMIT, wait_for

_SHARED = ("/proc", "/sys", "/dev")
"""Paths of this machine that are also visible inside."""
_APART = ("unshare", "--mount", "--propagation", "private")


@dataclass(frozen=True)
class Mount:
    """Directory or file of this machine at another path inside."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Sandbox:
    """Surroundings of a process; users and groups are numbers, as files of images name them."""

    scratch: Path
    """Directory for each process's root mount, in its own namespace."""
    mounts: Sequence[Mount] = ()
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name."""
    tmpfs: Mapping[str, str] = field(default_factory=lambda: {"/tmp": "mode=1777"})
    """Options of the empty file systems in memory, by path."""
    read_only: bool = True
    """Whether only writable mounts and file systems in memory can be written."""
    cwd: str = "/"

    def command(self, *arguments: str) -> list[str]:
        """Return a command that execs another one, confined, with the same process number."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        confined = [tool("setpriv"), *self._rights(), "env", f"--chdir={self.cwd}", *arguments]
        return [*_APART, "/bin/sh", "-euc", self._script(), "sandbox", *confined]

    def _rights(self) -> list[str]:
        groups = ",".join(map(str, self.groups))
        given = [f"--reuid={self.user}", f"--regid={self.group}"]
        given += [f"--groups={groups}" if groups else "--clear-groups"]
        return [*given, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL"]

    def _script(self) -> str:
        root = f"{self.scratch}/root"
        lines = [
            f"mount -t tmpfs tmpfs {self.scratch}",
            f"cd {self.scratch}; mkdir upper work root",
            f"mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work {root}",
            *(f"mount --rbind {path} {root}{path}" for path in _SHARED),
        ]
        # The interpreter that the image's depends on, and Kafka's jars, may be in a home directory.
        used = {mount.target for mount in self.mounts if mount.target == str(mount.source)}
        used |= {sys.executable, os.path.realpath(sys.executable)}
        closed = {above for path in used for above in Path(path).parents if _is_closed(above)}
        lines += [f"chmod a+x {root}{above}" for above in sorted(closed)]
        lines += [f"echo '{address} {name}' >>{root}/etc/hosts" for name, address in self.hosts.items()]
        for path, options in self.tmpfs.items():
            lines += [f"mkdir -p {root}{path}", f"mount -t tmpfs -o {options} tmpfs {root}{path}"]
        # A mount may lie below another.
        for mount in sorted(self.mounts, key=lambda mount: mount.target):
            target = f"{root}{mount.target}"
            if mount.source.is_dir():
                lines.append(f"mkdir -p {target}")
            else:
                lines += [f"mkdir -p {Path(target).parent}", f"test -e {target} || : >{target}"]
            lines.append(f"mount --bind {shlex.quote(str(mount.source))} {target}")
            if not mount.writable:
                lines.append(f"mount -o remount,bind,ro {target}")
        if self.read_only:
            lines.append(f"mount -o remount,ro {root}")
        return "\n".join([*lines, f'exec {tool("chroot")} {root} "$@"'])

    def run(self, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return captured(self.command(*arguments), env=env)


class Confined:
    """What runs in a sandbox as one process."""

    process: Child | None = None

    @property
    def log(self) -> str:
        return "(never started)" if self.process is None else self.process.log_tail(60)

    @property
    def running(self) -> Child:
        assert self.process is not None
        return self.process

    def wait(self, what: str, probe: Callable[[], bool], seconds: float = LIMIT) -> None:
        """Wait for a condition while it runs."""

        def succeeds() -> bool:
            assert self.running.returncode is None, f"{what}: {self.log}"
            return probe()

        wait_for(what, succeeds, seconds, lambda: self.log, pause=0.3)

    def ends(self, seconds: float = 2 * LIMIT) -> int:
        """Return its exit status, once it has ended."""
        wait_for("its end", lambda: self.running.returncode is not None, seconds, lambda: self.log)
        assert self.running.returncode is not None
        return self.running.returncode

    def stop(self, seconds: float) -> int:
        """Stop it by SIGTERM, within the given time."""
        os.kill(self.running.pid, signal.SIGTERM)
        return self.ends(seconds)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


def _is_closed(directory: Path) -> bool:
    return directory.is_dir() and not directory.stat().st_mode & 0o001


@cache
def require() -> None:
    """Fail, or skip loudly, if a run may not mount: this needs root and a permissive kernel."""
    tool("setpriv")
    tried = captured([tool("unshare"), *_APART[1:], "true"])
    if os.geteuid() != 0 or tried.returncode != 0:
        raise missing("no mount namespaces, which root may make", tried.stderr.strip())
