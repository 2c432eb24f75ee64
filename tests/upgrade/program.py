"""A version of the program in a separate checkout, run as its users ran it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaProducer

from streaming_pca.config.kafka import KafkaSettings
from tests.kafka.stream import OCTETS, read_all
from tests.upgrade.streams import BATCH, DIM
from tests.waiting import LIMIT, wait_for

STRIKE = """
import os, signal, sys
from contextlib import contextmanager
try:
    from streaming_pca.service.commit.checkpoint import CheckpointWriter
except ImportError:
    from streaming_pca.service.checkpoint import CheckpointWriter
from streaming_pca.cli import main
wanted, nth = sys.argv.pop(1), int(sys.argv.pop(1))
original, reached = CheckpointWriter._step, 0

@contextmanager
def step(self, name):
    global reached
    with original(self, name):
        yield
        reached += name == wanted
        if name == wanted and reached == nth:
            os.kill(os.getpid(), signal.SIGKILL)

CheckpointWriter._step = step
main()
"""
"""Program that kills itself after a step of a commit."""


class Program:
    """Commands of one version.

    Parameters
    ----------
    checkout : Path
        Root of its sources.
    """

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, "PYTHONPATH": str(checkout), "OPENBLAS_NUM_THREADS": "1"}

    def run(self, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "streaming_pca", *map(str, words)],
            env=self._environment,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: object) -> Any:
        """Run a command with `--json`, and return the parsed output."""
        return json.loads(self.run(*words, "--json").stdout.splitlines()[-1])

    def python(self, code: str, *words: object) -> str:
        """Run a program with this version's Python."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *map(str, words)],
            env=self._environment,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_worker(
        self, configs: Iterable[Path], log: Path, strike: tuple[str, int] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker, which may kill itself after a step."""
        options = [word for config in configs for word in ("--config", str(config))]
        program: Sequence[str] = ("-m", "streaming_pca")
        if strike is not None:
            program = ("-c", STRIKE, strike[0], str(strike[1]))
        with log.open("ab") as out:
            worker = subprocess.Popen(
                [sys.executable, "-P", *program, "worker", *options],
                env=self._environment,
                cwd=self.checkout,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """Kill the workers that have not ended."""
        for worker in self._started:
            worker.kill()
            worker.wait()


def end(worker: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> int | None:
    """Send a signal to a worker and return its exit status."""
    worker.send_signal(number)
    return status_of(worker)


def status_of(worker: subprocess.Popen[bytes], seconds: float = LIMIT) -> int | None:
    """Return a worker's exit status; None if it does not end in time."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(seconds)
    return worker.returncode


def until(what: str, holds: Callable[[], bool], worker: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a condition holds while a worker runs."""

    def seen() -> str:
        return log.read_text()[-3000:]

    def probe() -> bool:
        found = holds()
        assert found or worker.poll() is None, f"the worker ended before {what}\n{seen()}"
        return found

    wait_for(what, probe, 2 * LIMIT, seen, pause=0.5)


def messages_of(bootstrap: str, topic: str) -> list[Any]:
    """Return the committed messages of a topic's one partition."""
    return read_all(KafkaSettings(bootstrap_servers=bootstrap), topic)


def produce(bootstrap: str, topic: str, count: int, seed: int, keyed: bool = False) -> None:
    """Send records with a few strong directions to two partitions in turn."""
    rows = np.random.default_rng(seed).standard_normal((count, DIM)) * np.geomspace(4, 0.5, DIM)
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for i, row in enumerate(rows.astype("<f4")):
            key = f"{seed}-{i}".encode() if keyed else None
            producer.send(topic, row.tobytes(), key=key, partition=i % 2, headers=OCTETS)
        producer.flush(60)


BATCHES_BEFORE = 2
RECORDS_BEFORE = BATCHES_BEFORE * BATCH
