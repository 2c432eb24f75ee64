"""Clocks of workers, clock processes and brokers may jump by over an hour, both ways.

A preloaded library of three functions gives each process the wall clock of its own file. All other
clocks and all waits stay unchanged, as on a machine whose time is set; libfaketime 0.9.10 would
change them.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
import pytest

from streaming_pca.dev.cluster import _CLUSTER_SETTINGS
from streaming_pca.dev.jars import find_java
from tests.conftest import NoBroker, kafka_is_required
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import STEADY_MS
from tests.kafka.three_brokers import MakeCluster, Trial, coordinator, hold
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

AHEAD, BEHIND = 3700, -3700
"""Seconds: just over an hour, which is a common limit of brokers."""

OFFSETS = """
offsets.retention.minutes=30
offsets.retention.check.interval.ms=1000
"""

LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile const long long *seconds;

__attribute__((constructor)) static void open_clock(void)
{
    int file = open(getenv("WALL_CLOCK"), O_RDONLY);
    void *found = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || found == MAP_FAILED) abort();
    seconds = found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*original)(clockid_t, struct timespec *);
    if (!original) original = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = original(clock, now);
    if (!failed && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


class Clocks:
    """Wall clocks of processes, each in a file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory, self._library = directory, directory / "wall_clock.so"
        source = directory / "wall_clock.c"
        source.write_text(LIBRARY)
        compiler = shutil.which("cc")
        if compiler is None:
            reason = "no C compiler for the clocks: install gcc and libc6-dev"
            if kafka_is_required():
                pytest.fail(f"REQUIRE_KAFKA is set, but {reason}", pytrace=False)
            raise NoBroker("clock", reason, "")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)

    def env(self, name: str) -> Mapping[str, str]:
        """Return the environment of a process that uses a clock."""
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._directory / name)}

    def set(self, name: str, seconds: int) -> None:
        """Set a clock this many seconds ahead of the right time."""
        file = self._directory / name
        # In place, because processes have mapped it into memory.
        with file.open("r+b" if file.exists() else "wb") as clock:
            clock.write(struct.pack("=q", seconds))

    def java(self) -> str:
        """Write a program that runs Java with the clock of its working directory's node."""
        for number in (1, 2, 3):
            self.set(f"node-{number}", 0)
        exports = [f'export {key}="{value}"' for key, value in self.env("node-${PWD##*/}").items()]
        program = self._directory / "java"
        run = f'exec {shutil.which(find_java())} "$@"'
        program.write_text("\n".join(["#!/bin/sh", *exports, run, ""]))
        program.chmod(0o755)
        return str(program)


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks") / "files")


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster, clocks: Clocks) -> FaultyCluster:
    """Make three brokers, each with a clock."""
    return make_cluster(java=clocks.java(), more=_CLUSTER_SETTINGS + OFFSETS)


def seen_by(trial: Trial) -> list[float]:
    """Return the differences of the releases' times from the right time, in seconds."""
    now = datetime.now(UTC)
    return [(datetime.fromisoformat(r.created) - now).total_seconds() for r in trial.stream.releases()]


@pytest.mark.parametrize("cut", ["full", pytest.param("waited", marks=pytest.mark.soak)])
def test_workers_whose_clocks_jump_lead_on(
    fork_server: None, three_brokers: FaultyCluster, clocks: Clocks, tmp_path: Path, cut: str
) -> None:
    name, how = f"worker-{cut}", {"max_wait_seconds": 1.0} if cut == "waited" else {}
    # Far less than the jumps.
    kafka = {"session_timeout_ms": STEADY_MS}
    with Trial(three_brokers, tmp_path, name, kafka=kafka, **how) as trial:
        clocks.set(name, 0)
        leader, standby = trial.lead_and_stand_by(clocks.env(name))
        # It leads its own process group, because a terminal's Ctrl-C is for the worker.
        (ticking,) = [p for p in psutil.Process(leader.pid).children() if os.getpgid(p.pid) == p.pid]
        assert any("wall_clock" in each.path for each in ticking.memory_maps())
        for seconds in (AHEAD, BEHIND, 0):
            clocks.set(name, seconds)
            of_then = partial(lambda at: abs(seen_by(trial)[-1] - at) < 120, seconds)
            wait_for("a release of that time", of_then, seen=trial.logs)
            trial.goes_on()
        leader.has_led_on()
        assert "leading stream" not in standby.log
        trial.end()


@pytest.mark.soak
def test_brokers_whose_clocks_jump_take_on(
    fork_server: None, cluster: FaultyCluster, clocks: Clocks, tmp_path: Path
) -> None:
    """A broker whose clock went back is restarted: its own timers may stand still for that hour.

    Records come from a plain producer: a coordinator whose clock jumps times out open transactions, and
    once, every reader received a record of a transaction that librdkafka had then aborted.
    """
    with Trial(cluster, tmp_path, "broker") as trial:
        trial.lead_and_stand_by(transactions=False)
        ahead = coordinator(cluster, "__transaction_state", trial.transactional_id)
        behind = next(node for node in cluster.nodes if node != ahead)
        clocks.set(f"node-{ahead}", AHEAD)
        hold(3)
        trial.goes_on()
        clocks.set(f"node-{ahead}", 0)
        clocks.set(f"node-{behind}", BEHIND)
        for node in (ahead, behind):
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_until_whole()
        trial.goes_on()
        clocks.set(f"node-{behind}", 0)
        trial.goes_on()
        trial.end()


@pytest.mark.soak
def test_group_offsets_that_expire_change_nothing(
    fork_server: None, cluster: FaultyCluster, clocks: Clocks, tmp_path: Path
) -> None:
    """All brokers jump an hour ahead, and keep offsets for half of that: the last test of the file."""
    with Trial(cluster, tmp_path, "expiry") as trial:
        trial.produce()
        first = trial.start()
        first.logs("batch 2 released", 240)
        first.stop()
        assert trial.stream.group_offsets()
        for node in cluster.nodes:
            clocks.set(f"node-{node}", AHEAD)
        wait_for("the offsets to expire", lambda: not trial.stream.group_offsets())
        second = trial.start()
        second.logs(" released, ")
        trial.end()
        assert trial.stream.group_offsets()
