"""Spark's own standalone cluster on this machine: master and workers, whose executors a test may strike.

It runs from PySpark's own jars, listens on the loopback only, and ends with the process that started it,
however that process ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pyspark

from streaming_pca.dev.jars import find_java
from streaming_pca.dev.processes import Child
from tests.spark.java import IN_CLUSTER
from tests.waiting import LIMIT, wait_for

T = TypeVar("T")

_ROOT = Path(__file__).resolve().parents[2]
_SPARK = Path(pyspark.__path__[0])
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Kept small, and without interfaces that tests do not use.
_DAEMON = f"{IN_CLUSTER} -Dspark.master.rest.enabled=false"


class Process(psutil.Process):
    """Process of this machine; psutil compares start times, so another process is never taken for it."""

    @property
    def is_alive(self) -> bool:
        """Return whether it still runs, and is not a zombie."""
        try:
            return self.is_running() and self.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def command(self) -> str:
        """Return its command line, empty if it has ended."""
        try:
            return " ".join(self.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return ""

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal, unless it has ended; return whether it was sent."""
        with suppress(psutil.NoSuchProcess):
            if self.is_alive:
                self.send_signal(number)
                return True
        return False


def descendants(pid: int) -> list[Process]:
    """Return all descendants of a process, parents before their children."""
    found: list[Process] = []
    with suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found.append(Process(each.pid))
    return found


def python_workers(pid: int) -> list[Process]:
    """Return the Python processes that run tasks of an executor or a local JVM.

    The daemon that forks them is not included: if it is killed, the JVM starts another.
    """
    below = [each for each in descendants(pid) if "pyspark.daemon" in each.command]
    daemons = {each.pid for each in below}
    return [each for each in below if each.ppid() in daemons]


class SparkCluster:
    """Standalone master with workers, used as a context manager.

    Its ``url`` is for ``--master``; its ``directory``, removed at the end, has logs and scratch space.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.url = ""
        self.directory = Path()
        self._count, self._cores, self._memory = workers, cores, memory
        self._ui = ""
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        java = Path(find_java())
        self.directory = Path(tempfile.mkdtemp(prefix="streaming-pca-spark-"))
        try:
            self._start(self._environment(java))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- start and end -----------------------------------------------------

    def _environment(self, java: Path) -> dict[str, str]:
        passed = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return passed | {
            "JAVA_HOME": str(java.resolve().parents[1]),
            "SPARK_HOME": str(_SPARK),
            "SPARK_CONF_DIR": str(self.directory / "none"),  # ignores this machine's configuration
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON,
            "SPARK_NO_DAEMONIZE": "1",
            # Executors' Python has the same packages as this process.
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(_ROOT),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _start(self, environment: Mapping[str, str]) -> None:
        (self.directory / "scratch").mkdir()
        ports = ("--port", "0", "--webui-port", "0")
        master = self._run("master", environment, "deploy.master.Master", "--host", "127.0.0.1", *ports)
        self.url = self._from_log(master, r"Starting Spark master at (spark://\S+)")
        self._ui = self._from_log(master, r"MasterWebUI.* started at (http://\S+)")
        for i in range(self._count):
            how = ("--host", "127.0.0.1", *ports, "--cores", str(self._cores), "--memory", self._memory)
            work = ("--work-dir", str(self.directory / f"worker-{i}"))
            self._run(f"worker-{i}", environment, "deploy.worker.Worker", self.url, *how, *work)
        self._wait("all workers to be alive", lambda: len(self.alive_workers()) == self._count)

    def _run(self, name: str, environment: Mapping[str, str], main: str, *arguments: str) -> Child:
        command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.{main}", *arguments]
        log = self.directory / f"{name}.log"
        child = Child(command, log=log, cwd=self.directory, env=environment)
        self._children.append(child)
        return child

    def _from_log(self, child: Child, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, child.log.read_text(errors="replace")) if child.log.exists() else None

        return self._wait(f"{pattern!r} in the log", found)[1]

    def _wait(self, what: str, probe: Callable[[], T | None]) -> T:
        def found() -> T | None:
            for child in self._children:
                if child.returncode is not None:
                    raise RuntimeError(f"Spark's cluster ended before {what}\n{child.log_tail(40)}")
            return probe()

        log = self._children[0].log_tail
        return wait_for(f"{what} of Spark's cluster", found, 3 * LIMIT, seen=lambda: log(40))

    def stop(self) -> None:
        """Kill all processes started here, including executors and their Python, and remove all files."""
        # Workers go first, by a signal that they cannot miss; their children are listed before, because
        # they have no parent afterwards.
        below = [each for child in self._children for each in descendants(child.pid)]
        for child in self._children:
            child.kill()
        for each in below:
            each.signal(signal.SIGKILL)
        wait_for("the end of Spark's processes", lambda: not any(each.is_alive for each in below))
        self._children.clear()
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- running processes -------------------------------------------------

    def alive_workers(self) -> list[dict[str, Any]]:
        """Return the workers that the master considers alive."""
        try:
            with urllib.request.urlopen(f"{self._ui}/json/", timeout=LIMIT) as answer:
                return [each for each in json.load(answer)["workers"] if each["state"] == "ALIVE"]
        except OSError:
            return []

    def executors(self) -> list[Process]:
        """Return the JVMs of the executors of all applications, the oldest first."""
        below = [each for child in self._children for each in descendants(child.pid)]
        found = [each for each in below if _EXECUTOR in each.command]
        return sorted(found, key=lambda each: (each.create_time(), each.pid))

    def python_workers(self) -> list[Process]:
        """Return the Python processes that run tasks now, or wait for the next task."""
        return [each for jvm in self.executors() for each in python_workers(jvm.pid)]

    def wait_for_executors(self, count: int | None = None) -> list[Process]:
        """Wait for executors, by default one for each worker, and return them."""
        wanted = self._count if count is None else count
        self._wait(f"{wanted} executors", lambda: len(self.executors()) >= wanted)
        return self.executors()

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield names and logs of the cluster and its executors, for failing tests."""
        for path in sorted([*self.directory.glob("*.log"), *self.directory.glob("worker-*/*/*/std*")]):
            yield str(path.relative_to(self.directory)), path.read_text(errors="replace")
