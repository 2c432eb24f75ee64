"""One command for Apache Kafka: it serves, keeps its data, and leaves no process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from streaming_pca.dev.jars import find_java
from tests.cli.command import call
from tests.conftest import SHORT_LIVED
from tests.java_archive import archive_options
from tests.ports import steady_port
from tests.waiting import LIMIT, wait_for, without_progress

COMMAND = (sys.executable, "-m", "streaming_pca", "dev", "kafka")
Found = tuple[str, Path]


class Running:
    """The command in a separate process, whose Java starts with less work.

    Attributes
    ----------
    facts : dict
        Parsed output of `--json`.
    """

    def __init__(self, errors: Path, installation: Found, *options: object) -> None:
        self._errors = errors
        java = " ".join(archive_options(*installation, SHORT_LIVED))
        with errors.open("w") as err:
            self.process = subprocess.Popen(
                [*COMMAND, "--json", *map(str, options)],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=os.environ | {"JAVA_TOOL_OPTIONS": java},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.message()
        self.facts: dict[str, Any] = json.loads(line)

    def message(self) -> str:
        return "".join(f"{line}\n" for line in without_progress(self._errors.read_text()))

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)

    def nodes_are_gone(self) -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in self.facts["pids"])


@contextmanager
def running(tmp_path: Path, installation: Found, *options: object) -> Iterator[Running]:
    kafka = Running(tmp_path / "errors", installation, *options)
    try:
        yield kafka
    finally:
        kafka.process.kill()
        kafka.process.wait()
        assert kafka.process.stdout is not None
        kafka.process.stdout.close()


def read(bootstrap: str, topic: str) -> list[bytes]:
    with KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=int(1000 * LIMIT)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return [next(consumer).value]


def test_data_are_kept_and_no_process_stays(kafka_installation: Found, tmp_path: Path) -> None:
    data, port = tmp_path / "a folder, kept", steady_port()
    with running(tmp_path, kafka_installation, "--port", port, "--data", data) as kafka:
        address = f"127.0.0.1:{port}"
        assert kafka.facts["bootstrap"] == address
        assert kafka.facts["kept"]
        assert kafka.facts["data"] == str(data)
        with KafkaAdminClient(bootstrap_servers=address) as admin:
            admin.create_topics({"kept": {"num_partitions": 1, "replication_factor": 1}})
        with KafkaProducer(bootstrap_servers=address) as producer:
            producer.send("kept", b"data").get(LIMIT)

        other = subprocess.run(
            [*COMMAND, "--port", "0", "--data", data], capture_output=True, text=True, timeout=120
        )
        assert other.returncode == 2
        assert without_progress(other.stderr) == [
            f"error: {data} is in use: another Kafka keeps its data there: stop it, or name another directory"
        ]
        assert kafka.end(signal.SIGINT) == 0
        assert kafka.nodes_are_gone()
        assert kafka.message() == "stopped\n"

    with running(tmp_path, kafka_installation, "--port", 0, "--data", data) as kafka:
        assert read(kafka.facts["bootstrap"], "kept") == [b"data"]
        kafka.end(signal.SIGKILL)
        wait_for("the end of Java", kafka.nodes_are_gone)


def test_three_nodes_lose_one_and_serve_on(kafka_installation: Found, tmp_path: Path) -> None:
    with running(tmp_path, kafka_installation, "--nodes", 3, "--port", 0) as kafka:
        addresses = kafka.facts["bootstrap"].split(",")
        assert len(addresses) == len(set(kafka.facts["pids"])) == 3
        folder = Path(kafka.facts["data"])
        assert not kafka.facts["kept"]
        # A mapped file on a disk that stalls would stop all threads of Java, for a minute and more.
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in kafka.facts["pids"]]
        assert not any("hsperfdata" in text for text in maps)
        with KafkaAdminClient(bootstrap_servers=addresses) as admin:
            admin.create_topics({"whole": {"num_partitions": 1, "replication_factor": 3}})
        os.kill(kafka.facts["pids"][2], signal.SIGKILL)
        wait_for("a line about node 3", lambda: "node 3 has ended" in kafka.message(), seen=kafka.message)
        with KafkaProducer(bootstrap_servers=addresses[:2], acks="all") as producer:
            producer.send("whole", b"data").get(LIMIT)
        assert kafka.end(signal.SIGTERM) == 0
        assert kafka.nodes_are_gone()
        assert not folder.exists()


@pytest.fixture
def refusal(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command in this process, and return its final line."""

    def run(*options: object) -> str:
        ended = call(capfd, "dev", "kafka", *options)
        assert ended.returncode == 2, ended.stderr
        (line,) = without_progress(ended.stderr)
        return line

    return run


def test_a_missing_java_is_one_line(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert refusal() == "error: no Java 17 found: install openjdk-17-jre-headless, or set JAVA_HOME"


def test_a_wrong_number_of_nodes_is_one_line(refusal: Callable[..., str]) -> None:
    assert "'2' is not one of '1', '3'" in refusal("--nodes", 2)


def test_missing_jars_are_one_line(
    kafka_installation: Found, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jars = tmp_path / "jars"
    monkeypatch.setenv("JAVA_HOME", str(Path(kafka_installation[0]).resolve().parents[1]))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("STREAMING_PCA_KAFKA_JARS", str(jars))
    assert refusal() == "error: no Maven found: install maven, which fetches Kafka's jars once"
    jars.mkdir()
    (jars / "other.jar").touch()
    assert refusal().startswith("error: STREAMING_PCA_KAFKA_JARS does not contain Kafka 4.1.1: ")


def test_a_taken_port_is_one_line(
    kafka_installation: Found, refusal: Callable[..., str], embedded_bootstrap: str
) -> None:
    port = embedded_bootstrap.rpartition(":")[2]
    assert refusal("--port", port) == (
        f"error: port {port} is taken: stop the program that listens there, or choose another by --port "
        "(0 takes a free one)"
    )


@pytest.mark.soak
def test_maven_fetches_the_jars_and_progress_is_told(kafka_installation: Found, tmp_path: Path) -> None:
    from streaming_pca.dev import jars

    reported: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAVEN_OPTS", f"-Dmaven.repo.local={tmp_path / 'repository'}")
        patch.setenv("STREAMING_PCA_KAFKA_JARS", str(tmp_path / "jars"))
        found = jars.fetch_jars(reported.append)
        assert (found / "complete.json").exists()
        assert jars.fetch_jars(reported.append) == found
    assert reported[-1].endswith(" MB")
    files = [int(line.split()[0]) for line in reported]
    assert files == sorted(files)
    assert files[-1] > 40
    assert shutil.which("mvn")
    assert find_java()
