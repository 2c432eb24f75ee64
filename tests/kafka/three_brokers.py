"""A stream under load on three brokers: workers, producers, and a check of their output."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from kafka import KafkaAdminClient

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.dev.processes import Child as Process
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.topics.find import create_topics
from tests.kafka.child import Strike
from tests.kafka.faults import chaos_check, chaos_worker
from tests.kafka.faults.chaos import ROOT, Done, Worker, produce
from tests.kafka.faults.chaos_check import check, read_facts
from tests.kafka.faults.chaos_producer import Load
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import Stream
from tests.waiting import LIMIT, wait_for

MakeCluster = Callable[..., FaultyCluster]

NEAR, FAR, BEHIND = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""Brokers' addresses: for most clients, for clients of a link (on their side), and for the link itself."""

PARTITIONS = 3
DIM = 4
BATCH = 60
_ENDLESS: dict[str, Any] = {
    **{"dim": DIM, "rank": 2, "epsilon": 1.0, "delta": 1e-6, "estimator": "private-oja", "centering": "none"},
    "options": {"clip_radius": 20.0, "batch_size": BATCH},
}


class Program(Worker):
    """Worker started as a program, with its own environment."""

    def __init__(self, settings: Settings, directory: Path, env: Mapping[str, str]) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        load = f"import json, sys; from {chaos_worker.__name__} import main"
        run = f"{load}; main(json.loads(sys.argv[1]), sys.argv[2])"
        arguments = [json.dumps([settings.model_dump(mode="json")]), str(directory)]
        self._program = Process(
            [sys.executable, "-c", run, *arguments],
            log=directory / "said",
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        )

    @property
    def pid(self) -> int:
        return self._program.pid

    def status(self) -> int | None:
        return self._program.returncode


class Trial:
    """Stream with producers that write continuously, and workers that a test strikes.

    ``bootstrap`` has the addresses of the brokers for the workers, if not the cluster's; ``worker``,
    ``kafka`` and the other arguments are settings.
    """

    def __init__(
        self,
        cluster: FaultyCluster,
        directory: Path,
        name: str,
        *,
        bootstrap: str | None = None,
        worker: Mapping[str, Any] | None = None,
        kafka: Mapping[str, Any] | None = None,
        **stream: Any,
    ) -> None:
        self.cluster, self.name, self.input = cluster, name, f"in-{name}"
        how = _ENDLESS | {"input": self.input} | stream
        revive(cluster)
        made = KafkaSettings(bootstrap_servers=cluster.bootstrap)
        create_topics(made, StreamSettings(name=name, **how), PARTITIONS, replication=3)
        # Otherwise a request for them may reach a broker that does not know them yet.
        cluster.wait_until_whole()
        self.stream = Stream.make(
            cluster.bootstrap,
            name,
            directory,
            partitions=PARTITIONS,
            # Exactly one charge: a record that is charged twice exceeds it.
            cap=("1", "1e-6"),
            session_ms=6000,
            worker={"stop_when_done": False, "tick_seconds": 0.2} | dict(worker or {}),
            **how,
        )
        if bootstrap is not None or kafka:
            self.stream.settings = self.stream.changed(
                "kafka", bootstrap_servers=bootstrap or cluster.bootstrap, **(kafka or {})
            )
        self.workers: list[Worker] = []
        self.done = Done()
        self._directory = directory / f"{name}-load"
        self._directory.mkdir(parents=True)
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self._loads: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop_producing()
        self._pool.shutdown()
        for worker in self.workers:
            worker.destroy()
        print("\n".join(self.done.story))

    # -- parts -------------------------------------------------------------

    def produce(self, rate: float = 80.0, *, transactions: bool = True) -> None:
        """Start producers, with and without transactions."""
        loads = [("plain", None), ("committed", f"{self.name}-t")]
        for name, identity in loads[: 1 + transactions]:
            load = Load(
                self.cluster.bootstrap, self.input, PARTITIONS, DIM, f"{name}-{self.name}", 0, identity, rate
            )
            dice = random.Random(name)
            self._loads.append(self._pool.submit(produce, load, dice, self._over, self._directory, self.done))

    def stop_producing(self) -> None:
        """End the producers, and raise their errors."""
        self._over.set()
        loads, self._loads = self._loads, []
        for load in loads:
            load.result()

    @property
    def transactional_id(self) -> str:
        """Return the transactional id of the leader."""
        return f"streaming-pca.{self.stream.topic_id}.{self.name}"

    def start(
        self,
        env: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        strike: Strike | None = None,
    ) -> Worker:
        """Start a worker, as a program if it needs an environment."""
        directory = self._directory / f"worker-{len(self.workers)}"
        settings = settings or self.stream.settings
        made = Worker([settings], directory, strike) if env is None else Program(settings, directory, env)
        self.workers.append(made)
        return made

    def lead_and_stand_by(
        self, env: Mapping[str, str] | None = None, *, transactions: bool = True
    ) -> tuple[Worker, Worker]:
        """Start producers, a leader that has released, and a standby."""
        self.produce(transactions=transactions)
        leader = self.start(env)
        leader.logs("batch 1 released", 240)
        standby = self.start(env)
        standby.logs("standing by")
        return leader, standby

    # -- checks ------------------------------------------------------------

    def released(self) -> int:
        """Return the number of releases that workers have announced."""
        return sum(worker.log.count(" released, ") for worker in self.workers)

    def goes_on(self, more: int = 2, seconds: float = LIMIT) -> None:
        """Wait for more releases."""
        before = self.released()
        wait_for(f"{more} releases", lambda: self.released() >= before + more, seconds, self.logs)

    def logs(self) -> str:
        """Return the ends of all workers' logs."""
        return "\n\n".join(worker.log[-3000:] for worker in self.workers)

    def end(self) -> None:
        """Drain the stream, end the workers, and check everything; no batch may be abandoned."""
        self.drain()
        jobs = {self.stream.settings.stream.rank: self.name}
        found = chaos_worker.observed((worker.directory for worker in self.workers), jobs)
        facts = read_facts(self.cluster.bootstrap, self.input, PARTITIONS, {self.name: 1}, found)
        counts = check(facts)
        report = verify_ledger(self.stream.settings.kafka, self.input)
        assert not report.problems, report.problems
        assert counts.released == counts.committed > 3
        assert counts.abandoned == 0

    def drain(self) -> None:
        """Let the workers learn from the remaining records, and end them."""
        self.stop_producing()

        def is_quiet() -> bool:
            each = chaos_check.progress(self.cluster.bootstrap, self.input, PARTITIONS, [self.name])
            found = each[self.name]
            return found.last in ("RELEASED", "ABANDONED") and found.left < BATCH

        wait_for("the stream to learn what there is", is_quiet, seen=self.logs)
        for worker in self.workers:
            if worker.status() is None:
                worker.signal(signal.SIGTERM)
        for worker in self.workers:
            status = worker.ends()
            assert status in (0, -signal.SIGKILL), worker.log
            assert "Traceback" not in worker.log, worker.log
        assert not self.done.problems, "\n\n".join(self.done.problems)


def revive(cluster: FaultyCluster) -> None:
    """Restart the nodes that an earlier test struck, and wait for in-sync replicas."""
    for number, node in cluster.nodes.items():
        if node.runs:
            cluster.go_on(number)
        else:
            cluster.start(number)
    cluster.wait_until_whole()


def coordinator(cluster: FaultyCluster, topic: str, identity: str) -> int:
    """Return the node that coordinates a group or a transactional id.

    It is the leader of its partition of ``topic``.
    """
    number = 0
    for letter in identity:
        number = (31 * number + ord(letter)) & 0xFFFFFFFF
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        (found,) = admin.describe_topics([topic])
    leaders = {p["partition_index"]: p["leader_id"] for p in found["partitions"]}
    # As Java does it: a hash of 31 bits.
    return int(leaders[(number & 0x7FFFFFFF) % len(leaders)])


def hold(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
