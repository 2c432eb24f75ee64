"""Faults of the chaos loop, on a schedule drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from streaming_pca.config.settings import Settings
from streaming_pca.dev.processes import Child as Process
from tests.kafka.child import Strike
from tests.kafka.faults import chaos_worker
from tests.kafka.faults.chaos_producer import REFUSED, Load
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import Child

ROOT = Path(__file__).parents[3]

GOOD_ENDS = {0, 4}
"""Exit statuses that faults excuse: stopped, and broker lost."""


class Worker(Child):
    """Worker process of the chaos loop."""

    def __init__(self, settings: Sequence[Settings], directory: Path, strike: Strike | None = None) -> None:
        super().__init__(settings, directory, chaos_worker.main, strike=strike)

    @property
    def stacks(self) -> str:
        """Return the stacks that the worker writes on SIGUSR1."""
        return (self.directory / chaos_worker.STACKS).read_text()

    def tree(self) -> list[int]:
        """Return its process id and those of its helpers."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children(recursive=True)
            return [self.pid, *(each.pid for each in children)]
        return []

    def signal_all(self, number: signal.Signals, pids: Sequence[int]) -> None:
        """Send a signal to each process that still exists."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass
class Done:
    """Events so far, recorded by several threads."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Events that no fault excuses."""
    story: list[str] = field(default_factory=list)
    """Faults, with times."""
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, detail: str = "") -> None:
        """Count an event."""
        with self._lock:
            self.counts[what] += 1
            self.story.append(f"{time.monotonic() - self.started:7.2f} {what} {detail}".rstrip())

    def problem(self, what: str) -> None:
        """Record an event that must not happen."""
        with self._lock:
            self.problems.append(what)


class Slot:
    """Place for one worker at a time, which is struck and replaced.

    The dice draw the same numbers in the same order, regardless of the worker. ``settings`` returns settings
    of the next worker, for one of the election groups.
    """

    def __init__(
        self,
        name: str,
        dice: random.Random,
        settings: Callable[[str], Sequence[Settings]],
        groups: Sequence[str],
        directory: Path,
        done: Done,
    ) -> None:
        self.workers: list[Worker] = []
        self._name, self._dice, self._settings, self._groups = name, dice, settings, groups
        self._directory, self._done = directory, done
        self._group = groups[0]

    @property
    def worker(self) -> Worker:
        return self.workers[-1]

    def start(self, group: str) -> Worker:
        """Start a worker of an election group."""
        directory = self._directory / f"{self._name}-{len(self.workers)}"
        self.workers.append(Worker(self._settings(group), directory))
        self._group = group
        self._done.count(f"start in {group[-1]}", self._name)
        return self.worker

    def torment(self, over: threading.Event) -> None:
        """Strike and replace workers until the end; leave a running worker."""
        dice = self._dice
        while True:
            pause, kind = dice.uniform(3.0, 12.0), dice.choices(("kill", "stop", "term"), (5, 6, 3))[0]
            length = dice.choice((dice.uniform(0.2, 2.0), dice.uniform(2.0, 12.0)))
            whole, down, group = dice.random() < 0.5, dice.uniform(0.0, 2.0), dice.choice(self._groups)
            if self._watch(pause, over):
                return
            if kind == "stop":
                self._stop(length, whole, over)
                continue
            if kind == "kill":
                self._done.count("kill -9", self._name)
                self.worker.signal_all(signal.SIGKILL, [self.worker.pid])
                self.worker.ends()
            else:
                self.end()
            time.sleep(down)
            self.start(group)

    def _watch(self, seconds: float, over: threading.Event) -> bool:
        """Wait, replacing a worker that ends, as a supervisor does; return whether the run is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if over.wait(0.2):
                return True
            self.revive()
        return False

    def revive(self) -> None:
        """Replace a worker that has ended, for example at a start without a broker."""
        if self.worker.status() is not None:
            self._ended()
            time.sleep(1)
            self.start(self._group)

    def _stop(self, seconds: float, whole: bool, over: threading.Event) -> None:
        """Suspend a worker, alone or with its helpers."""
        self._done.count("SIGSTOP", f"{self._name} for {seconds:.1f} s{' with helpers' if whole else ''}")
        worker = self.worker
        pids = worker.tree() if whole else [worker.pid]
        worker.signal_all(signal.SIGSTOP, pids)
        over.wait(seconds)
        worker.signal_all(signal.SIGCONT, pids)

    def end(self) -> None:
        """Stop the worker, and wait for its end."""
        self._done.count("SIGTERM", self._name)
        self.worker.signal_all(signal.SIGTERM, [self.worker.pid])
        try:
            self.worker.ends()
        except AssertionError as error:
            self._done.problem(f"{self._name}: {error}")
            self.worker.destroy()
        self._ended()

    def _ended(self) -> None:
        """Check the end of a worker that was not killed."""
        worker, status = self.worker, self.worker.status()
        self._done.count(f"exit {status}", self._name)
        # A worker stopped before it handles signals has done nothing and logged nothing.
        unheard = status == -signal.SIGTERM and not worker.log
        if not (status in GOOD_ENDS or unheard) or "Traceback" in worker.log:
            self._done.problem(f"{worker.directory.name} ended with {status}:\n{worker.log[-6000:]}")


def strike_brokers(cluster: FaultyCluster, dice: random.Random, over: threading.Event, done: Done) -> None:
    """Kill or stop one broker after another, each once every replica is in sync again."""
    while True:
        pause, node = dice.uniform(3.0, 8.0), dice.choice([*cluster.nodes])
        kind = dice.choice(("kill", "stop"))
        length = dice.choice((dice.uniform(0.2, 2.5), dice.uniform(2.5, 12.0)))
        if over.wait(pause):
            return
        if kind == "kill":
            done.count("broker kill -9", f"{node}, down for {length:.1f} s")
            cluster.kill(node)
            over.wait(length)
            cluster.start(node)
        else:
            done.count("broker SIGSTOP", f"{node} for {length:.1f} s")
            cluster.stop(node)
            over.wait(length)
            cluster.go_on(node)
        cluster.wait_until_whole()
        done.count("broker back", str(node))


def produce(load: Load, dice: random.Random, over: threading.Event, directory: Path, done: Done) -> None:
    """Keep a producer running; a successor finishes a dead one's transaction, or leaves it to time out."""
    number = 0
    while not over.is_set():
        identity = load.transactional_id
        if identity is not None and dice.random() < 0.5:
            identity = f"{identity}-{number}"
        seed = dice.randrange(2**32)
        how = replace(load, name=f"{load.name}.{number}", seed=seed, transactional_id=identity)
        log = directory / f"{how.name}.log"
        command = [sys.executable, "-m", "tests.kafka.faults.chaos_producer", json.dumps(asdict(how))]
        process = Process(command, log=log, cwd=ROOT)
        while process.returncode is None and not over.wait(0.05):
            pass
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + 45
            while process.returncode is None and time.monotonic() < deadline:
                time.sleep(0.05)
        status = process.returncode
        process.kill()
        number += 1
        if status == -signal.SIGKILL:
            done.count("producer killed in a transaction", how.name)
        elif status and not (over.is_set() and status == -signal.SIGTERM):
            done.count("producer failed", f"{how.name}: {process.log_tail(1)}")
            if status != REFUSED:
                done.problem(f"producer {how.name} ended with {status}:\n{process.log_tail()}")
