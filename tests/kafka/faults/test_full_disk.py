"""Disks fill up: of brokers, in the middle of a write to their logs, and of a worker's machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import psutil
import pytest

from streaming_pca.dev.jars import find_java
from tests.kafka.faults.chaos import ROOT
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import check_books, have_released
from tests.kafka.three_brokers import MakeCluster, Trial
from tests.waiting import wait_for, without_progress

pytestmark = pytest.mark.timeout(900)

SMALL_MIB, LARGE_MIB = 96, 512
LEFT_KIB = 64
"""Free space on a nearly full disk: a second's records."""


class Disk:
    """File system of some MiB, until :meth:`grow`, in a mount namespace that only chosen processes see."""

    def __init__(self, folder: Path, mib: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        # In a user namespace, another user is root as well.
        self._kinds = ["-m"] if os.geteuid() == 0 else ["-U", "-m"]
        own = self._kinds if os.geteuid() == 0 else [*self._kinds, "-r"]
        mount = f'mount -t tmpfs -o size={mib}m full "$0" && echo mounted && exec sleep infinity'
        command = ["unshare", *own, "sh", "-c", mount, str(folder)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline()
        assert answer == "mounted\n", "there is no mount namespace: run as root, or allow them to users"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    @property
    def enter(self) -> list[str]:
        """Return the start of a command that sees the disk."""
        keep = [] if os.geteuid() == 0 else ["--preserve-credentials"]
        return ["nsenter", "-t", str(self._holder.pid), *self._kinds, *keep, "--"]

    def run(self, *command: str) -> str:
        """Run a command that sees the disk."""
        return subprocess.run([*self.enter, *command], check=True, capture_output=True, text=True).stdout

    @property
    def free_kib(self) -> int:
        return int(self.run("df", "--output=avail", str(self.folder)).split()[-1])

    def fill(self) -> None:
        """Leave little free space; try again if a broker takes some of it first."""
        while (size := self.free_kib - LEFT_KIB) > 0:
            with suppress(subprocess.CalledProcessError):
                self.run("fallocate", "-l", f"{size}KiB", str(self.folder / "other.bin"))
                return

    def grow(self) -> None:
        """Enlarge and clear the disk, as an operator would."""
        self.run("mount", "-o", f"remount,size={LARGE_MIB}m", str(self.folder))
        self.run("rm", "-f", str(self.folder / "other.bin"))


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[int, Disk]]:
    """Yield disks of the second and the third node."""
    folder = tmp_path_factory.mktemp("disks")
    with Disk(folder / "2", SMALL_MIB) as second, Disk(folder / "3", SMALL_MIB) as third:
        yield {2: second, 3: third}


@pytest.fixture(scope="module")
def cluster(
    make_cluster: MakeCluster, disks: Mapping[int, Disk], tmp_path_factory: pytest.TempPathFactory
) -> FaultyCluster:
    """Make three brokers; two have their own disks for their logs."""
    program = tmp_path_factory.mktemp("java") / "java"
    lines = ["#!/bin/sh", f'run="{shutil.which(find_java())}"', 'case "${PWD##*/}" in']
    for node, disk in disks.items():
        enter = " ".join(disk.enter)
        lines.append(f'{node}) ln -sfn "{disk.folder}" data; run="{enter} env -C $PWD $run" ;;')
    program.write_text("\n".join([*lines, "esac", 'exec $run "$@"', ""]))
    program.chmod(0o755)
    return make_cluster(java=str(program))


def has_ended(cluster: FaultyCluster, node: int) -> bool:
    """Return whether a node's process has ended by itself."""
    pid = cluster.nodes[node].pid
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def fill_until_it_ends(cluster: FaultyCluster, disks: Mapping[int, Disk], *nodes: int) -> None:
    for node in nodes:
        disks[node].fill()
    for node in nodes:
        wait_for(f"broker {node} to end", partial(has_ended, cluster, node))
        assert "Shutdown broker because all log dirs" in cluster.nodes[node].log_tail


@pytest.mark.soak
def test_a_broker_whose_disk_is_full_ends_and_the_stream_goes_on(
    fork_server: None, cluster: FaultyCluster, disks: Mapping[int, Disk], tmp_path: Path
) -> None:
    with Trial(cluster, tmp_path, "disk") as trial:
        trial.lead_and_stand_by()
        fill_until_it_ends(cluster, disks, 3)
        trial.goes_on()
        disks[3].grow()
        cluster.start(3)
        cluster.wait_until_whole()
        trial.goes_on()
        trial.end()


@pytest.mark.soak
def test_a_stream_goes_on_once_two_of_three_brokers_are_back(
    fork_server: None, cluster: FaultyCluster, disks: Mapping[int, Disk], tmp_path: Path
) -> None:
    """No commit is possible with one disk full and one broker down, and workers wait."""
    with Trial(cluster, tmp_path, "disks") as trial:
        trial.lead_and_stand_by()
        fill_until_it_ends(cluster, disks, 2)
        cluster.kill(3)
        disks[2].grow()
        cluster.start(3, wait=False)
        cluster.start(2)
        cluster.wait_until_whole()
        trial.goes_on()
        trial.end()


# -- the worker's own machine ----------------------------------------------

KERNEL = """
import numpy as np
from streaming_pca.kernels.rounding import record_squared_norms
out = np.zeros(1)
record_squared_norms(np.ones((1, 3)), np.array([0, 1]), out)
print(out[0])
"""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Disk]:
    """Yield a disk without free space."""
    with Disk(tmp_path / "full", 1) as disk:
        disk.run("fallocate", "-l", f"{disk.free_kib}KiB", str(disk.folder / "other.bin"))
        assert disk.free_kib == 0
        yield disk


def test_a_kernel_that_cannot_be_kept_is_used(full: Disk) -> None:
    """Otherwise the first batch of a worker would fail, and stay charged."""
    command = ["env", f"NUMBA_CACHE_DIR={full.folder}", sys.executable, "-P", "-c", KERNEL]
    assert full.run(*command) == "3.0\n"


@pytest.mark.parametrize("kept", ["log", pytest.param("kernels", marks=pytest.mark.soak)])
def test_a_worker_whose_own_disk_is_full_works_on(
    fork_server: None, three_brokers: FaultyCluster, full: Disk, tmp_path: Path, kept: str
) -> None:
    with Trial(three_brokers, tmp_path, f"own-{kept}") as trial:
        worker = {"group": trial.stream.settings.worker.group}
        config = trial.stream.write_config(worker=worker, http={"enabled": False})
        trial.produce()
        kernels = [f"NUMBA_CACHE_DIR={full.folder}"] if kept == "kernels" else []
        log = full.folder / "log" if kept == "log" else tmp_path / "log"
        inside = [*full.enter, "env", f"PYTHONPATH={ROOT}", *kernels]
        inside += ["sh", "-c", f'exec "$@" >{log} 2>&1', "sh"]
        program = [sys.executable, "-P", "-m", "streaming_pca", "worker", "--config", str(config)]
        running = subprocess.Popen([*inside, *program])
        log_text = partial(full.run, "cat", str(log))
        try:
            wait_for("three releases", lambda: have_released([trial.stream], 3), 240, log_text)
            trial.stop_producing()
            running.send_signal(signal.SIGTERM)
            assert running.wait(240) == 0, log_text()
        finally:
            running.kill()
            running.wait()
        check_books(trial.stream)
        backup = [*program[:-3], "export", str(full.folder / "backup.zip"), *program[-2:]]
        refused = subprocess.run([*full.enter, *backup], capture_output=True, text=True, cwd=ROOT)
        assert refused.returncode == 2
        assert refused.stderr.endswith("backup.zip: cannot be written: No space left on device\n")
        assert len(without_progress(refused.stderr)) == 1
        if kept == "kernels":
            assert "the compiled kernels could not be saved" in log.read_text()
            assert "Traceback" not in log.read_text()
