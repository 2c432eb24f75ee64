"""Clusters of Apache Kafka nodes on this machine, for fault injection in single nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from streaming_pca.dev.jars import KAFKA, KafkaUnavailable
from streaming_pca.dev.node import START_SECONDS, Node
from streaming_pca.dev.storage import Storage

_STOP_SECONDS = 20

# A stalled node is replaced within seconds, and rejoins within seconds.
_CLUSTER_SETTINGS = """
default.replication.factor={replication}
min.insync.replicas={in_sync}
unclean.leader.election.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
controller.quorum.election.backoff.max.ms=500
# A dead producer's transaction blocks readers until it times out; this interval is added to that time.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


class KafkaCluster:
    """Apache Kafka nodes on loopback ports.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars.
    nodes : int
        Number of nodes, each broker and controller, with ids 1 to `nodes`.
    replication, in_sync : int
        Default number of replicas of a topic, and of replicas that `acks=all` waits for; also for
        internal topics.
    heap : int
        Heap of each node in MiB.
    more : str
        Further lines of settings: a template like the settings of one node.
    ports : sequence of int, optional
        Port of each node; by default free ports.
    directory : Path, optional
        Persistent directory for the data, which a later cluster with as many nodes continues to use. By
        default a temporary one, deleted at the end.
    options : sequence of str, optional
        Further options of Java.

    Raises
    ------
    KafkaUnavailable
        On entry, if the nodes do not start or the directory cannot be used.
    """

    def __init__(
        self,
        java: str,
        jars: Path,
        nodes: int = 3,
        replication: int = 3,
        in_sync: int = 2,
        heap: int = 384,
        more: str = _CLUSTER_SETTINGS,
        ports: Sequence[int] = (),
        directory: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.java = java
        self.jars = jars
        self.bootstrap = ""
        """Addresses of all nodes."""
        self._numbers = range(1, nodes + 1)
        self._replication, self._in_sync, self._heap, self._more = replication, in_sync, heap, more
        self._ports, self._options = ports, options
        self._nodes: dict[int, Node] = {}
        self._storage = Storage(directory)

    def __enter__(self) -> Self:
        try:
            self._storage.open(len(self._numbers))
            for _ in range(1 if self._ports else 2):  # a free port may be taken before the node listens
                if self._launch():
                    return self
            tails = [node.log_tail for node in self._nodes.values()]
            raise KafkaUnavailable(f"Kafka {KAFKA} did not start", "\n".join(tails))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        nodes = list(self._nodes.values())
        if self._storage.kept and nodes:
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(lambda node: node.stop(_STOP_SECONDS), nodes))
        for node in nodes:
            node.kill()  # temporary data is deleted, so a clean stop is useless
        self._storage.close()

    def _launch(self) -> bool:
        for node in self._nodes.values():
            node.kill()
        ports: Sequence[int | None] = self._ports or [None] * len(self._numbers)
        self._nodes = {
            number: Node(
                self.java,
                self.jars,
                self._storage.path / str(number),
                number=number,
                heap=self._heap,
                port=port,
                options=self._options,
            )
            for number, port in zip(self._numbers, ports, strict=True)
        }
        nodes = self._nodes.values()
        voters = [node.voter for node in nodes]
        with ThreadPoolExecutor(len(nodes)) as pool:
            how = (self._storage.cluster, voters, self._replication, self._in_sync, self._more)
            list(pool.map(lambda node: node.prepare(*how), nodes))
        for node in nodes:
            node.start()
        self.bootstrap = ",".join(node.address for node in nodes)
        deadline = time.monotonic() + START_SECONDS
        return all(node.answers(self._storage.cluster, deadline) for node in nodes)

    @property
    def directory(self) -> Path:
        """Directory of the data and logs: a folder for each node."""
        return self._storage.path

    @property
    def nodes(self) -> tuple[int, ...]:
        """Ids of the nodes."""
        return tuple(self._numbers)

    def running(self) -> set[int]:
        """Return the ids of the nodes whose processes run."""
        return {number for number, node in self._nodes.items() if node.runs}

    def address(self, *numbers: int) -> str:
        """Return the addresses of some nodes."""
        return ",".join(self._nodes[number].address for number in numbers)

    def pid(self, number: int) -> int | None:
        """Return the process id of a node."""
        return self._nodes[number].pid

    def log_directory(self, number: int, topic: str, partition: int) -> Path:
        """Return the directory of a partition on a node."""
        return self._nodes[number].data / f"{topic}-{partition}"

    def kill(self, number: int) -> None:
        """End a node by SIGKILL; its data stays."""
        self._nodes[number].kill()

    def start(self, number: int, *, wait: bool = True) -> None:
        """Restart a killed node with its data."""
        node = self._nodes[number]
        node.start()
        if wait and not node.answers(self._storage.cluster, time.monotonic() + START_SECONDS):
            raise KafkaUnavailable(f"node {number} of Kafka {KAFKA} did not restart", node.log_tail)

    def stop(self, number: int) -> None:
        """Suspend a node by SIGSTOP: its sockets stay open, but it does not answer."""
        self._nodes[number].signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Resume a suspended node by SIGCONT."""
        self._nodes[number].signal(signal.SIGCONT)

    def log_tail(self, number: int) -> str:
        """Return the last lines of a node's log."""
        return self._nodes[number].log_tail

    def missing_replicas(self) -> list[str]:
        """Return the partitions without a leader, or with replicas not in sync.

        This queries every node: a node that has just returned may still have outdated metadata.
        """
        missing: set[str] = set()
        for node in self._nodes.values():
            with KafkaAdminClient(
                bootstrap_servers=node.address, bootstrap_timeout_ms=3000, request_timeout_ms=3000
            ) as admin:
                names = [topic["name"] for topic in admin.describe_topics()]
                for topic in admin.describe_topics(names):
                    for p in topic["partitions"]:
                        whole = sorted(p["isr_nodes"]) == sorted(p["replica_nodes"])
                        if topic["error_code"] or p["leader_id"] < 0 or not whole:
                            missing.add(f"{topic['name']}-{p['partition_index']}")
        return sorted(missing)

    def wait_until_whole(self, seconds: float = 120.0) -> None:
        """Wait until every replica of every partition is in sync."""
        deadline = time.monotonic() + seconds
        seen: object = None
        while time.monotonic() < deadline:
            try:
                seen = self.missing_replicas()
            except (KafkaError, OSError) as error:
                seen = error
            else:
                if not seen:
                    return
            time.sleep(0.25)
        raise KafkaUnavailable(f"some replicas were not in sync after {seconds:g} s", str(seen))


class KafkaServer(KafkaCluster):
    """Single Apache Kafka node on a free loopback port, with data in a temporary directory.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars.
    options : sequence of str, optional
        Further options of Java.
    """

    def __init__(self, java: str, jars: Path, options: Sequence[str] = ()) -> None:
        super().__init__(java, jars, nodes=1, replication=1, in_sync=1, heap=512, more="", options=options)
