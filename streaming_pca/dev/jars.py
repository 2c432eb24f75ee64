"""Apache Kafka from Maven Central, and Java to run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from streaming_pca.errors import UserError

KAFKA = "4.1.1"
LOG4J = "2.24.3"
JAVA = 17

CACHE_VARIABLE = "STREAMING_PCA_KAFKA_JARS"
_MARKER = "complete.json"
_SERVER_JAR = f"kafka_2.13-{KAFKA}.jar"
_ATTEMPTS = 4
_ATTEMPT_SECONDS = 300
_BACKOFF_SECONDS = 5
_DOWNLOADED = re.compile(r"Downloaded from \S+ \S+ \(([\d.]+) ([kM]?B) at")
_UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6}

# Kafka's own pom lacks a log4j2 implementation, so it would log nothing.
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>streaming-pca</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>{LOG4J}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{LOG4J}</version></dependency>
</dependencies></project>
"""


class KafkaUnavailable(UserError):
    """Apache Kafka is unavailable; ``reason`` is short, ``detail`` has evidence, such as a log."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}\n{self.detail}" if self.detail else self.reason

    @property
    def lines(self) -> list[str]:
        """Message as lines: a single line, or the end of a log followed by the reason."""
        if "\n" in self.detail:
            return [*self.detail.splitlines(), self.reason]
        return [f"{self.reason}: {self.detail}" if self.detail else self.reason]


def find_java() -> str:
    """Return a `java` of version 17 or later, from JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    seen = []
    for java in filter(None, (home and str(Path(home, "bin", "java")), shutil.which("java"))):
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # nosec B603  # named by $JAVA_HOME
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
        if found and int(found[1]) >= JAVA:
            return java
        seen.append(f"{java} is Java {found[1]}" if found else f"{java} has an unknown version")
    detail = "; ".join([*seen, "install openjdk-17-jre-headless, or set JAVA_HOME"])
    raise KafkaUnavailable(f"no Java {JAVA} found", detail)


def fetch_jars(report: Callable[[str], None] = lambda progress: None) -> Path:
    """Return the directory of Kafka's jars; fetch them by Maven if missing.

    While Maven downloads, ``report`` is called with texts such as "12 files, 31 MB".
    """
    named = os.environ.get(CACHE_VARIABLE)
    cache = Path(named) if named else Path.home() / ".cache" / "streaming-pca" / f"kafka-{KAFKA}"
    if _is_complete(cache):
        return cache
    if named and (cache / _SERVER_JAR).exists():
        return cache  # the user filled it manually: use it unchanged
    if cache.exists() and any(cache.iterdir()):
        if named:
            raise KafkaUnavailable(
                f"{CACHE_VARIABLE} does not contain Kafka {KAFKA}",
                f"{cache} has files but not {_SERVER_JAR}: name an empty or absent directory",
            )
        shutil.rmtree(cache)  # damaged, and it is our own cache

    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no Maven found", "install maven, which fetches Kafka's jars once")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        detail = f"{error.strerror or error}: set {CACHE_VARIABLE} to a folder that can be written"
        raise KafkaUnavailable(f"Kafka's jars cannot be kept in {cache}", detail) from None
    # A sibling directory makes the final rename atomic; concurrent runs each fill their own.
    with tempfile.TemporaryDirectory(prefix=f".{cache.name}-", dir=cache.parent) as scratch:
        jars = Path(scratch, "jars")
        _run_maven(maven, Path(scratch), jars, report)
        (jars / _MARKER).write_text(json.dumps(_sizes(jars)))
        try:
            jars.rename(cache)
        except OSError:
            if not _is_complete(cache):  # otherwise another run was first
                raise
    return cache


def _run_maven(maven: str, scratch: Path, jars: Path, report: Callable[[str], None]) -> None:
    (scratch / "pom.xml").write_text(_POM)
    command = [maven, "-B", "-C", "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    errors: list[str] = []
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_BACKOFF_SECONDS * 3 ** (attempt - 1))
        log = Path(scratch, f"maven-{attempt}.log")
        status = _follow(command, scratch, log, report)
        if status == 0 and (jars / _SERVER_JAR).exists():
            return
        errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line][:15]
        if status is None:
            errors.append(f"not finished within {_ATTEMPT_SECONDS} s")
    raise KafkaUnavailable(
        f"Maven could not fetch Kafka {KAFKA}",
        "\n".join([f"{_ATTEMPTS} attempts failed; errors of the last:", *errors]),
    )


def _follow(command: list[str], folder: Path, log: Path, report: Callable[[str], None]) -> int | None:
    """Run Maven and report its downloads; return its status, None after a timeout."""
    deadline = time.monotonic() + _ATTEMPT_SECONDS
    with log.open("w") as out:
        process = subprocess.Popen(  # nosec B603  # Maven
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        while (status := process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
            if files := _DOWNLOADED.findall(log.read_text(errors="replace")):
                size = sum(float(number) * _UNITS[unit] for number, unit in files)
                report(f"{len(files)} files, {size / 1e6:.0f} MB")
    finally:
        process.kill()
        process.wait()
    return status


def _sizes(jars: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in sorted(jars.glob("*.jar"))}


def _is_complete(cache: Path) -> bool:
    try:
        expected = json.loads((cache / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(expected) and _sizes(cache) == expected
