"""One node of Apache Kafka: its settings, storage and process."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from streaming_pca.dev.jars import KAFKA, KafkaUnavailable
from streaming_pca.dev.processes import Child, cluster_id, free_port

START_SECONDS = 90

# Standard output is redirected to the log file, see Child.
LOG4J_PROPERTIES = """
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = OUT
"""

_SETTINGS = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=data

auto.create.topics.enable=false
message.max.bytes=33554432

offsets.topic.replication.factor={replication}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4

group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

# Retention and compaction are seen within seconds, not minutes.
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=5000
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=1000

# Small nodes.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""


class Node:
    """Process of Apache Kafka, both broker and controller, with a separate data directory."""

    def __init__(
        self,
        java: str,
        jars: Path,
        directory: Path,
        *,
        number: int,
        heap: int,
        port: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.number = number
        if port is not None:
            _check_free(port)
        self.port, self.controller_port = port or _steady_port(), _steady_port()
        self._java, self._jars, self._heap, self._options = java, jars, heap, options
        self._directory = directory
        self._settings = directory / "server.properties"
        self._child: Child | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.properties").write_text(LOG4J_PROPERTIES)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def voter(self) -> str:
        return f"{self.number}@127.0.0.1:{self.controller_port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def data(self) -> Path:
        return self._directory / "data"

    @property
    def log_tail(self) -> str:
        return self._child.log_tail(30) if self._child else ""

    def prepare(self, cluster: str, voters: Sequence[str], replication: int, in_sync: int, more: str) -> None:
        """Write the settings, and format the storage unless it exists."""
        settings = (_SETTINGS + more).format(
            node=self.number,
            voters=",".join(voters),
            port=self.port,
            controller_port=self.controller_port,
            replication=replication,
            in_sync=in_sync,
        )
        self._settings.write_text(settings)
        if (self.data / "meta.properties").exists():
            return
        formatted = subprocess.run(  # nosec B603  # Kafka
            self._command(
                "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings), heap=128
            ),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if formatted.returncode:
            raise KafkaUnavailable(
                f"Kafka {KAFKA} could not format its storage", formatted.stdout + formatted.stderr
            )

    def start(self) -> None:
        """Start the process with the existing storage."""
        self._child = Child(
            self._command("kafka.Kafka", str(self._settings), heap=self._heap),
            log=self._directory / "server.log",
            cwd=self._directory,
        )

    def answers(self, cluster: str, deadline: float) -> bool:
        """Wait until the broker serves clients; return False if it exits or times out."""
        while time.monotonic() < deadline and self._child is not None and self._child.returncode is None:
            if cluster_id(self.address) == cluster:
                return True
            time.sleep(0.1)
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None, "start first"
        os.kill(self._child.pid, number)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def stop(self, seconds: float) -> None:
        """End the process by SIGTERM, or kill it after `seconds`."""
        if self._child is not None:
            self._child.stop(seconds)

    @property
    def runs(self) -> bool:
        return self._child is not None and self._child.returncode is None

    def _command(self, main: str, *arguments: str, heap: int) -> list[str]:
        return [
            self._java,
            f"-Xmx{heap}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            *self._options,
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={(self._directory / 'log4j2.properties').as_uri()}",
            "-cp",
            f"{self._jars}/*",
            main,
            *arguments,
        ]


def _check_free(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            raise KafkaUnavailable(
                f"port {port} is taken", "stop the program that listens there, or name another"
            ) from None


def _steady_port() -> int:
    """Return a free loopback port outside the range of outgoing connections.

    Otherwise a node that is down could lose its port to one of the clients that try to connect to it.
    """
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 0
    if first < 12_000:
        return free_port()
    dice = random.SystemRandom()
    for _ in range(100):
        port = dice.randrange(10_000, first)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return free_port()
