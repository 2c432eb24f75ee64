"""A process confined as by a container or a systemd unit, on a machine without either.

The kernel does the same as for an engine: a mount namespace of its own with the root read-only, another
user, no capabilities and no way to gain any. Only the network and the process numbers are this machine's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.deploy.tools import missing, tool
from tests.waiting import LIMIT

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
    """Surroundings of a process.

    Attributes
    ----------
    scratch : Path
        Directory for each process's root mount, in its own namespace.
    mounts : sequence of Mount
    user, group : int
        By number, as files of images name them.
    groups : sequence of int
        Additional groups.
    hosts : mapping of str to str
        Addresses by name.
    tmpfs : mapping of str to str
        Options of the empty file systems in memory, by path.
    read_only : bool
        True if only writable mounts and file systems in memory can be written.
    """

    scratch: Path
    mounts: Sequence[Mount] = ()
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    tmpfs: Mapping[str, str] = field(default_factory=lambda: {"/tmp": "mode=1777"})
    read_only: bool = True
    cwd: str = "/"

    def command(self, *arguments: str) -> list[str]:
        """Return a command that execs another one, confined, with the same process number."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        confined = [tool("setpriv"), *self._rights(), "env", f"--chdir={self.cwd}", *arguments]
        return [*_APART, "/bin/sh", "-euc", self._script(), "sandbox", *confined]

    def _rights(self) -> list[str]:
        groups = ",".join(map(str, self.groups))
        return [
            f"--reuid={self.user}",
            f"--regid={self.group}",
            f"--groups={groups}" if groups else "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--pdeathsig=KILL",
        ]

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
        chroot = tool("chroot")
        return "\n".join([*lines, f'exec {chroot} {root} "$@"'])

    def run(
        self, *arguments: str, env: Mapping[str, str], timeout: float = LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )


def _is_closed(directory: Path) -> bool:
    return directory.is_dir() and not directory.stat().st_mode & 0o001


@cache
def require() -> None:
    """Fail, or skip loudly, if a run may not mount: this needs root and a permissive kernel."""
    tool("setpriv")
    tried = subprocess.run(
        [tool("unshare"), *_APART[1:], "true"], capture_output=True, text=True, check=False
    )
    if os.geteuid() != 0 or tried.returncode != 0:
        raise missing("no mount namespaces, which root may make", tried.stderr.strip())
