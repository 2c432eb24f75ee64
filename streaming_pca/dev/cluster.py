"""Clusters of Apache Kafka nodes on this machine: settings, data directories, processes."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, ClassVar, Self

from streaming_pca.dev.jars import KAFKA, KafkaUnavailable
from streaming_pca.dev.processes import Child, cluster_id, free_port

_MARKER = "cluster.json"
_LOCK = "lock"
_STOP_SECONDS = 20
_START_SECONDS = 90
UNMAPPED_COUNTERS = "-XX:+PerfDisableSharedMem"
"""Option without which Java stands still while the disk stalls: it maps its counters from a file in /tmp."""

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

# With the default of 50, connections are dropped while the processor is busy, and tried again much later.
socket.listen.backlog.size=1024

# Small nodes.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""

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

    Entry raises KafkaUnavailable if the nodes do not start or the directory cannot be used.

    ``nodes``: their number; each is broker and controller, with ids 1 to `nodes`. ``replication``,
    ``in_sync``: default number of replicas of a topic, and of replicas that `acks=all` waits for; also for
    internal topics. ``heap``: heap of each node in MiB. ``more``: further lines of settings, a template like
    the settings of one node. ``ports``: port of each node; by default free ports. ``directory``: persistent
    directory for the data, which a later cluster with as many nodes continues to use; by default a temporary
    one, deleted at the end. ``options``: further options of Java.
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
        self._java, self._jars = java, jars
        self.bootstrap = ""  # addresses of all nodes
        self.nodes: dict[int, Node] = {}  # nodes by their ids
        self._numbers = range(1, nodes + 1)
        self._replication, self._in_sync, self._heap, self._more = replication, in_sync, heap, more
        self._ports, self._options = ports, options
        self._storage = Storage(directory)

    def __enter__(self) -> Self:
        try:
            self._storage.open(len(self._numbers))
            for _ in range(1 if self._ports else 2):  # a free port may be taken before the node listens
                if self._launch():
                    return self
            tails = [node.log_tail for node in self.nodes.values()]
            raise KafkaUnavailable(f"Kafka {KAFKA} did not start", "\n".join(tails))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        nodes = list(self.nodes.values())
        if self._storage.kept and nodes:
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(lambda node: node.stop(_STOP_SECONDS), nodes))
        for node in nodes:
            node.kill()  # temporary data is deleted, so a clean stop is useless
        self._storage.close()

    def _launch(self) -> bool:
        for node in self.nodes.values():
            node.kill()
        ports: Sequence[int | None] = self._ports or [None] * len(self._numbers)
        make = partial(Node, self._java, self._jars, heap=self._heap, options=self._options)
        self.nodes = {
            number: make(self._storage.path / str(number), number=number, port=port)
            for number, port in zip(self._numbers, ports, strict=True)
        }
        nodes, voters = self.nodes.values(), [node.voter for node in self.nodes.values()]
        with ThreadPoolExecutor(len(nodes)) as pool:
            how = (self._storage.cluster, voters, self._replication, self._in_sync, self._more)
            list(pool.map(lambda node: node.prepare(*how), nodes))
        for node in nodes:
            node.start()
        self.bootstrap = ",".join(node.address for node in nodes)
        deadline = time.monotonic() + _START_SECONDS
        return all(node.answers(self._storage.cluster, deadline) for node in nodes)

    @property
    def directory(self) -> Path:
        """Directory of the data and logs: a folder for each node."""
        return self._storage.path


class KafkaServer(KafkaCluster):
    """Single Apache Kafka node on a free loopback port, with data in a temporary directory."""

    def __init__(self, java: str, jars: Path, options: Sequence[str] = ()) -> None:
        super().__init__(java, jars, nodes=1, replication=1, in_sync=1, heap=512, more="", options=options)


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
        how = ("format", "-t", cluster, "-c", str(self._settings))
        formatted = subprocess.run(  # nosec B603  # Kafka
            self._command("kafka.tools.StorageTool", *how, heap=128),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
        if formatted.returncode:
            raise KafkaUnavailable(
                f"Kafka {KAFKA} could not format its storage", formatted.stdout + formatted.stderr
            )

    def start(self) -> None:
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
            UNMAPPED_COUNTERS,
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
                f"port {port} is taken",
                "stop the program that listens there, or choose another by --port (0 takes a free one)",
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


class Storage:
    """Directory of a cluster, for one process at a time: ``kept``, or temporary.

    :meth:`open` sets ``path`` and ``cluster``, the id of the cluster that owns the data.
    """

    parent: ClassVar[str | None] = None  # folder of temporary directories; None for the system's

    def __init__(self, kept: Path | None = None) -> None:
        self.kept = kept is not None
        self.path = Path() if kept is None else kept.absolute()
        self.cluster = ""
        self._lock: IO[str] | None = None

    def open(self, nodes: int) -> None:
        """Create the directory, or take over the data of an earlier cluster.

        Raises KafkaUnavailable if it is not writable, is in use, or has other files or numbers of nodes.
        """
        if not self.kept:
            self.path = Path(tempfile.mkdtemp(prefix="streaming-pca-kafka-", dir=self.parent))
            self.cluster = _new_identity()
            return
        try:
            self._take_over(nodes)
        except OSError as error:
            self.close()
            raise KafkaUnavailable(f"cannot keep data in {self.path}", error.strerror or str(error)) from None
        except KafkaUnavailable:
            self.close()
            raise

    def close(self) -> None:
        """Release the directory, and delete it if temporary."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if not self.kept and self.cluster:
            shutil.rmtree(self.path, ignore_errors=True)

    def _take_over(self, nodes: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / _MARKER
        if not marker.exists() and {each.name for each in self.path.iterdir()} - {_LOCK}:
            raise KafkaUnavailable(
                f"{self.path} contains other files", "name an empty or absent directory for Kafka's data"
            )
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KafkaUnavailable(
                f"{self.path} is in use",
                "another Kafka keeps its data there: stop it, or name another directory",
            ) from None
        if not marker.exists():
            marker.write_text(json.dumps({"kafka": KAFKA, "cluster": _new_identity(), "nodes": nodes}))
        self._read(marker, nodes)

    def _read(self, marker: Path, nodes: int) -> None:
        try:
            facts = json.loads(marker.read_text())
            found, self.cluster = int(facts["nodes"]), str(facts["cluster"])
        except (ValueError, KeyError, TypeError):
            why = "name another directory for Kafka's data"
            raise KafkaUnavailable(f"{marker} is damaged", why) from None
        if found != nodes:
            raise KafkaUnavailable(
                f"{self.path} holds a cluster of {found} {'node' if found == 1 else 'nodes'}, not of {nodes}",
                "start as many, or name another directory",
            )


def _new_identity() -> str:
    # Kafka reads its ids as unpadded base64 and refuses a leading dash on the command line.
    return "k" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
