"""Cluster whose nodes a test kills, suspends, restarts and inspects."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from streaming_pca.dev.cluster import _START_SECONDS, KafkaCluster
from streaming_pca.dev.jars import KafkaUnavailable


class FaultyCluster(KafkaCluster):
    """Cluster of Apache Kafka with faults, by the number of a node."""

    def log_directory(self, number: int, topic: str, partition: int) -> Path:
        """Return the directory of a partition on a node."""
        return self.nodes[number].data / f"{topic}-{partition}"

    def kill(self, number: int) -> None:
        """End a node by SIGKILL; its data stays."""
        self.nodes[number].kill()

    def start(self, number: int, *, wait: bool = True) -> None:
        """Restart a killed node with its data."""
        node = self.nodes[number]
        node.start()
        if wait and not node.answers(self._storage.cluster, time.monotonic() + _START_SECONDS):
            raise KafkaUnavailable(f"node {number} did not restart", node.log_tail)

    def stop(self, number: int) -> None:
        """Suspend a node by SIGSTOP: its sockets stay open, but it does not answer."""
        self._signal(number, signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Resume a suspended node by SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, sent: signal.Signals) -> None:
        pid = self.nodes[number].pid
        assert pid is not None, "the cluster is entered first"
        os.kill(pid, sent)

    def wait_until_whole(self, seconds: float = 120.0) -> None:
        """Wait until every replica of every partition is in sync."""
        deadline = time.monotonic() + seconds
        seen: object = None
        while time.monotonic() < deadline:
            try:
                seen = self._missing_replicas()
            except (KafkaError, OSError) as error:
                seen = error
            else:
                if not seen:
                    return
            time.sleep(0.25)
        raise KafkaUnavailable(f"some replicas were not in sync after {seconds:g} s", str(seen))

    def _missing_replicas(self) -> list[str]:
        """Return the partitions without a leader, or with replicas not in sync.

        This queries every node: a node that has just returned may still have outdated metadata.
        """
        missing: set[str] = set()
        for node in self.nodes.values():
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
