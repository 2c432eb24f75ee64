"""A real Apache Kafka for tests and benchmarks: KRaft nodes, started from jars that Maven fetched."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from streaming_pca.demo.broker import Child, cluster_id, free_port

KAFKA = "4.1.1"
LOG4J = "2.24.3"
JAVA = 17

CACHE_VARIABLE = "STREAMING_PCA_KAFKA_JARS"
_MARKER = "complete.json"
_SERVER_JAR = f"kafka_2.13-{KAFKA}.jar"
_ATTEMPTS = 4
_ATTEMPT_SECONDS = 300
_BACKOFF_SECONDS = 5
_START_SECONDS = 90

# Kafka's own pom has no log4j2 implementation, without which nothing is logged at all.
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>streaming-pca</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>{LOG4J}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{LOG4J}</version></dependency>
</dependencies></project>
"""

# Standard output is the log file, see Child.
_LOG4J = """
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
log.dirs={directory}/data

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

# A node that stands still is replaced within seconds, and comes back within seconds.
_CLUSTER_SETTINGS = """
default.replication.factor={replication}
min.insync.replicas={in_sync}
unclean.leader.election.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
controller.quorum.election.backoff.max.ms=500
# A transaction of a producer that died is in the way until its time is up, and this is added to it.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


class KafkaUnavailable(Exception):
    """No Apache Kafka can be had here; the message is a short reason, the detail what was seen."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}\n{self.detail}" if self.detail else self.reason


def find_java() -> str:
    """Return a `java` of version 17 or later, from JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    if (on_path := shutil.which("java")) is not None:
        candidates.append(on_path)
    seen = []
    for java in candidates:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
        if found and int(found[1]) >= JAVA:
            return java
        seen.append(f"{java} is {found[1] if found else 'of unknown version'}")
    detail = "; ".join([*seen, "install openjdk-17-jre-headless, or set JAVA_HOME or KAFKA_BOOTSTRAP"])
    raise KafkaUnavailable(f"no Java {JAVA} found", detail)


def fetch_jars() -> Path:
    """Return the directory of Kafka's jars, fetched by Maven when this machine has none yet."""
    named = os.environ.get(CACHE_VARIABLE)
    cache = Path(named) if named else Path.home() / ".cache" / "streaming-pca" / f"kafka-{KAFKA}"
    if _is_complete(cache):
        return cache
    if named and (cache / _SERVER_JAR).exists():
        return cache  # filled by hand: the user's own, taken as it is
    if cache.exists() and any(cache.iterdir()):
        if named:
            raise KafkaUnavailable(
                f"{CACHE_VARIABLE} holds no Kafka {KAFKA}",
                f"{cache} has files but not {_SERVER_JAR}: name an empty or absent directory",
            )
        shutil.rmtree(cache)  # damaged, and in our own cache

    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no Maven found", "install maven, or set KAFKA_BOOTSTRAP")
    cache.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename at the end is atomic; two runs at once each fill their own.
    with tempfile.TemporaryDirectory(prefix=f".{cache.name}-", dir=cache.parent) as scratch:
        jars = Path(scratch, "jars")
        _run_maven(maven, Path(scratch), jars)
        (jars / _MARKER).write_text(json.dumps(_sizes(jars)))
        try:
            jars.rename(cache)
        except OSError:
            if not _is_complete(cache):  # else another run was first
                raise
    return cache


def _run_maven(maven: str, scratch: Path, jars: Path) -> None:
    (scratch / "pom.xml").write_text(_POM)
    command = [maven, "-q", "-B", "-C", "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    said = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_BACKOFF_SECONDS * 3 ** (attempt - 1))
        try:
            run = subprocess.run(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ATTEMPT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            said = f"no end within {_ATTEMPT_SECONDS} s"
            continue
        if run.returncode == 0 and (jars / _SERVER_JAR).exists():
            return
        said = "\n".join((run.stdout + run.stderr).splitlines()[-15:])
    raise KafkaUnavailable(f"Maven could not fetch Kafka {KAFKA}", f"{_ATTEMPTS} attempts; the last:\n{said}")


def _sizes(jars: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in sorted(jars.glob("*.jar"))}


def _is_complete(cache: Path) -> bool:
    try:
        expected = json.loads((cache / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(expected) and _sizes(cache) == expected


class _Node:
    """Process of Apache Kafka, broker and controller, with its own data directory."""

    def __init__(self, java: str, jars: Path, directory: Path, *, number: int, heap: int) -> None:
        self.number = number
        self.port, self.controller_port = _steady_port(), _steady_port()
        self._java, self._jars, self._heap = java, jars, heap
        self._directory = directory
        self._settings = directory / "server.properties"
        self._child: Child | None = None
        directory.mkdir(parents=True)
        (directory / "log4j2.properties").write_text(_LOG4J)

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

    def format(self, cluster: str, voters: Sequence[str], replication: int, in_sync: int, more: str) -> None:
        """Write settings and empty storage."""
        settings = (_SETTINGS + more).format(
            node=self.number,
            voters=",".join(voters),
            port=self.port,
            controller_port=self.controller_port,
            directory=self._directory,
            replication=replication,
            in_sync=in_sync,
        )
        self._settings.write_text(settings)
        formatted = subprocess.run(
            self._command(
                "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings), heap=128
            ),
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
        """Start the process on the storage that is there."""
        self._child = Child(
            self._command("kafka.Kafka", str(self._settings), heap=self._heap),
            log=self._directory / "server.log",
            cwd=self._directory,
        )

    def answers(self, cluster: str, deadline: float) -> bool:
        """Wait until the broker serves clients; False if it ends before, or is too late."""
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

    def _command(self, main: str, *arguments: str, heap: int) -> list[str]:
        return [
            self._java,
            f"-Xmx{heap}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile=file:{self._directory}/log4j2.properties",
            "-cp",
            f"{self._jars}/*",
            main,
            *arguments,
        ]


def _steady_port() -> int:
    """Return a free loopback port that the system gives to no outgoing connection.

    A node that is down for a while would else lose its port to one of the clients that look for it.
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


class KafkaCluster:
    """Apache Kafka nodes on free loopback ports, their data in a temporary directory.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars.
    nodes : int
        Each is broker and controller; they have the numbers 1 to `nodes`.
    replication, in_sync : int
        Default replicas of a topic, and how many of them `acks=all` waits for; of internal topics too.
    heap : int
        MiB of memory of each node.
    more : str
        Further lines of settings, a template as those of one node are.
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
    ) -> None:
        self.java = java
        self.jars = jars
        self.bootstrap = ""
        """Addresses of all nodes."""
        self._numbers = range(1, nodes + 1)
        self._replication, self._in_sync, self._heap, self._more = replication, in_sync, heap, more
        self._cluster = ""
        self._nodes: dict[int, _Node] = {}
        self._directory = Path()

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="streaming-pca-kafka-"))
        try:
            for _ in range(2):  # a port may be lost between finding it free and listening
                if self._launch():
                    return self
            tails = [node.log_tail for node in self._nodes.values()]
            raise KafkaUnavailable(f"Kafka {KAFKA} did not start", "\n".join(tails))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        for node in self._nodes.values():
            node.kill()  # its data is thrown away, so nothing is gained by a clean stop
        shutil.rmtree(self._directory, ignore_errors=True)

    def _launch(self) -> bool:
        for node in self._nodes.values():
            node.kill()
        # Kafka reads its ids as unpadded base64 and refuses a leading dash on the command line.
        self._cluster = "k" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        scratch = self._directory / self._cluster
        self._nodes = {
            number: _Node(self.java, self.jars, scratch / str(number), number=number, heap=self._heap)
            for number in self._numbers
        }
        nodes = self._nodes.values()
        voters = [node.voter for node in nodes]
        with ThreadPoolExecutor(len(nodes)) as pool:
            how = (self._cluster, voters, self._replication, self._in_sync, self._more)
            list(pool.map(lambda node: node.format(*how), nodes))
        for node in nodes:
            node.start()
        self.bootstrap = ",".join(node.address for node in nodes)
        deadline = time.monotonic() + _START_SECONDS
        return all(node.answers(self._cluster, deadline) for node in nodes)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of the nodes."""
        return tuple(self._numbers)

    def address(self, *numbers: int) -> str:
        """Return the addresses of some nodes."""
        return ",".join(self._nodes[number].address for number in numbers)

    def pid(self, number: int) -> int | None:
        """Return the process id of a node."""
        return self._nodes[number].pid

    def log_directory(self, number: int, topic: str, partition: int) -> Path:
        """Return where a node keeps a partition."""
        return self._nodes[number].data / f"{topic}-{partition}"

    def kill(self, number: int) -> None:
        """End a node by SIGKILL; its data stays."""
        self._nodes[number].kill()

    def start(self, number: int, *, wait: bool = True) -> None:
        """Start a node that was killed, on the data that it had."""
        node = self._nodes[number]
        node.start()
        if wait and not node.answers(self._cluster, time.monotonic() + _START_SECONDS):
            raise KafkaUnavailable(f"node {number} of Kafka {KAFKA} did not come back", node.log_tail)

    def stop(self, number: int) -> None:
        """Let a node stand still by SIGSTOP: its sockets stay open and nothing answers."""
        self._nodes[number].signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Let a node that stands still go on, by SIGCONT."""
        self._nodes[number].signal(signal.SIGCONT)

    def log_tail(self, number: int) -> str:
        """Return the last lines of a node's log."""
        return self._nodes[number].log_tail

    def missing_replicas(self) -> list[str]:
        """Return the partitions of which a replica is not in sync, or has no leader; raises KafkaError.

        Every node is asked: a node that has just returned may not know yet that it was away.
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

    def wait_until_whole(self, seconds: float = 60.0) -> None:
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
        raise KafkaUnavailable(f"the cluster was not whole within {seconds:g} s", str(seen))


class KafkaServer(KafkaCluster):
    """One Apache Kafka node on a free loopback port, its data in a temporary directory.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars.
    """

    def __init__(self, java: str, jars: Path) -> None:
        super().__init__(java, jars, nodes=1, replication=1, in_sync=1, heap=512, more="")
