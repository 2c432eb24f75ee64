"""A real Apache Kafka for tests and benchmarks: one KRaft node, started from jars that Maven fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

from streaming_pca.child import Child
from streaming_pca.embedded import cluster_id, free_port

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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data

auto.create.topics.enable=false
message.max.bytes=33554432

offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4

group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

# Retention and compaction are seen within seconds, not minutes.
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=5000
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=1000

# One small node.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
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


class KafkaServer:
    """One Apache Kafka node on free loopback ports, its data in a temporary directory.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars.
    """

    def __init__(self, java: str, jars: Path) -> None:
        self.java = java
        self.jars = jars
        self.bootstrap = ""
        self._child: Child | None = None
        self._directory = Path()

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="streaming-pca-kafka-"))
        try:
            for _ in range(2):  # a port may be lost between finding it free and listening
                if self._launch():
                    return self
            tail = self._child.log_tail(30) if self._child else ""
            raise KafkaUnavailable(f"Kafka {KAFKA} did not start", tail)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        if self._child is not None:
            self._child.kill()  # its data is thrown away, so nothing is gained by a clean stop
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def _launch(self) -> bool:
        if self._child is not None:
            self._child.kill()
        shutil.rmtree(self._directory / "data", ignore_errors=True)
        port, controller_port = free_port(), free_port()
        settings = self._directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller_port=controller_port, directory=self._directory)
        )
        (self._directory / "log4j2.properties").write_text(_LOG4J)
        # Kafka reads its ids as unpadded base64 and refuses a leading dash on the command line.
        cluster = "k" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        formatted = subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings), heap=128),
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
        self._child = Child(
            self._command("kafka.Kafka", str(settings), heap=512),
            log=self._directory / "server.log",
            cwd=self._directory,
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._child.returncode is None:
            if cluster_id(f"127.0.0.1:{port}") == cluster:
                self.bootstrap = f"127.0.0.1:{port}"
                return True
            time.sleep(0.1)
        return False

    def _command(self, main: str, *arguments: str, heap: int) -> list[str]:
        return [
            self.java,
            f"-Xmx{heap}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile=file:{self._directory}/log4j2.properties",
            "-cp",
            f"{self.jars}/*",
            main,
            *arguments,
        ]
