"""A broker that demands credentials, and Kafka's own command-line tools, for the tests that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from streaming_pca.dev.jars import KAFKA, KafkaUnavailable, fetch_jars
from tests.conftest import _no_kafka, start_cluster
from tests.kafka.security.secured import PROTOCOLS, Secured, start_secured

_ATTEMPTS = 3


@pytest.fixture(scope="session")
def secured(
    request: pytest.FixtureRequest,
    kafka_installation: tuple[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:
    """Yield a broker with a listener for each kind of credentials, shared by all tests of a run."""
    with ExitStack() as stack:
        begin = partial(start_cluster, stack, request.config)
        yield start_secured(begin, tmp_path_factory.mktemp("secured"), tuple(PROTOCOLS))


@pytest.fixture(scope="session")
def kafka_tools() -> str:
    """Return the class path of Kafka's tools, which are not among the broker's jars."""
    try:
        jars = fetch_jars()
        return f"{jars}/*:{_fetch_tools(jars.parent)}"
    except KafkaUnavailable as unavailable:
        raise _no_kafka(unavailable) from None


def _fetch_tools(cache: Path) -> Path:
    jar = cache / f"kafka-tools-{KAFKA}.jar"
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no Maven found", "install maven")
    message = ""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact=org.apache.kafka:kafka-tools:{KAFKA}"]
        for _ in range(_ATTEMPTS):
            there = [*command, f"-DoutputDirectory={scratch}"]
            run = subprocess.run(there, cwd=scratch, capture_output=True, text=True, timeout=200)
            if (fetched := Path(scratch, jar.name)).exists():
                os.replace(fetched, jar)
                return jar
            message = run.stdout + run.stderr
    raise KafkaUnavailable(f"Maven could not fetch Kafka's tools {KAFKA}", message)
