"""The programs of the page on other languages, run against Apache Kafka as printed.

The worker's own reader and decoder read their messages; their input was written in transactions,
as a worker writes it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.release import Release
from streaming_pca.dev.jars import fetch_jars
from streaming_pca.service.kafka.clients import reading_consumer
from tests.cli.test_watch import release
from tests.conftest import NoBroker, kafka_is_required
from tests.docs.pages import DOCS, blocks
from tests.waiting import LIMIT, run_to_success, wait_for

pytestmark = [pytest.mark.kafka]

RECIPES = [block for block in blocks(DOCS / "how-to" / "produce.md") if block.marker == "recipe"]
KAFKAJS = "kafkajs@2.2.4"
X = np.array([0.5, -1.25, 2.0, 0.125])
SENT = {(tuple(X),): 2, (tuple(X), (1.0, 0.0, 0.0, 1.0)): 1}
"""Rows of each record, and the number of its messages."""


def need(name: str) -> str:
    """Return the path of a program."""
    found = shutil.which(name)
    if found is None:
        raise missing(f"no {name} found", "As root, .ci/run installs it.")
    return found


def missing(reason: str, detail: str) -> BaseException:
    """Return the exception for a missing client: a failure if all are required, else a loud skip."""
    if kafka_is_required():
        return pytest.fail.Exception(f"REQUIRE_KAFKA is set, but {reason}. {detail}", pytrace=False)
    return NoBroker("recipe", reason, detail)


def python(folder: Path) -> tuple[list[str], list[str]]:
    del folder
    return [sys.executable, "produce.py"], [sys.executable, "consume.py"]


def node(folder: Path) -> tuple[list[str], list[str]]:
    program = need("node")
    (folder / "node_modules").symlink_to(kafkajs())
    return [program, "produce.mjs"], [program, "consume.mjs"]


def kafkajs() -> Path:
    """Return the folder of kafkajs, installed once per machine."""
    folder = Path.home() / ".cache" / "streaming-pca" / KAFKAJS.replace("@", "-")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            how = ["--prefix", made, "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(
                [need("npm"), "install", *how, KAFKAJS],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            if done.returncode:
                raise missing("no kafkajs", f"npm install {KAFKAJS}: {done.stderr[-300:]}")
            try:
                (Path(made) / "node_modules").rename(folder)
            except OSError:
                assert folder.exists()  # another process was faster
    return folder


def shell(folder: Path) -> tuple[list[str], list[str]]:
    del folder
    need("kcat"), need("perl")
    return ["bash", "produce.sh"], ["bash", "consume.sh"]


def java(folder: Path) -> tuple[list[str], list[str]]:
    classes = f"{fetch_jars()}/*{os.pathsep}{folder}"
    run_to_success([need("javac"), "-cp", classes, "Produce.java", "Consume.java"], folder)
    return ["java", "-cp", classes, "Produce"], ["java", "-cp", classes, "Consume"]


@dataclass(frozen=True)
class Topics:
    """Topics of the page's stream, with an aborted release before a committed one."""

    kafka: KafkaSettings
    inputs: dict[str, str]
    releases: str
    release: Release


@pytest.fixture(scope="module")
def topics(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> Iterator[Topics]:
    inputs = {client.__name__: unique_name(client.__name__) for client in CLIENTS}
    releases = f"{unique_name('recipes')}.s.releases"
    published = release(7, dim=4, components=[[0.5, 0.5, 0.5, 0.5]], created="2026-01-01T00:00:00+00:00")
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        one = {"num_partitions": 1, "replication_factor": 1}
        admin.create_topics({name: one for name in [*inputs.values(), releases]}, wait_for_metadata=True)
        with KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=releases) as producer:
            producer.init_transactions()
            for value, end in (
                (release(6, dim=4, components=[[0.28, 0.96, 0.0, 0.0]]), producer.abort_transaction),
                (published, producer.commit_transaction),
            ):
                producer.begin_transaction()
                producer.send(releases, value.to_bytes()).get(LIMIT)
                end()
        yield Topics(KafkaSettings(bootstrap_servers=kafka_bootstrap), inputs, releases, published)
        admin.delete_topics([*inputs.values(), releases])


CLIENTS = [python, node, shell, java]


def test_every_recipe_is_run() -> None:
    assert {block.title for block in RECIPES} == {
        *("produce.py", "consume.py", "produce.mjs", "consume.mjs"),
        *("produce.sh", "consume.sh", "Produce.java", "Consume.java"),
    }


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_recipe_sends_records_and_reads_the_release(
    client: Callable[[Path], tuple[list[str], list[str]]], topics: Topics, tmp_path: Path
) -> None:
    topic = topics.inputs[client.__name__]
    for block in RECIPES:
        assert block.title is not None
        code = block.code.replace("localhost:9092", topics.kafka.bootstrap_servers)
        code = code.replace("visits-pca.releases", topics.releases)
        for quoted in ('"visits"', "-t visits "):
            code = code.replace(quoted, quoted.replace("visits", topic))
        # A separate group, not shared with another client.
        (tmp_path / block.title).write_text(code.replace('"dashboard', f'"{topic}'))
    produce, consume = client(tmp_path)
    with ExitStack() as stack:
        consumer = stack.enter_context(running(consume, tmp_path))
        done = subprocess.run(
            produce, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert_taken(topics.kafka, topic)
        printed = first_line(consumer, tmp_path / "out")
    assert "0.5" in printed
    assert str(topics.release.batch) in printed
    assert "0.96" not in printed, "what was aborted was never released"


def assert_taken(kafka: KafkaSettings, topic: str) -> None:
    """Check that the worker's reader and decoder accept all messages, from an idempotent producer."""
    tp = TopicPartition(topic, 0)
    messages: list[Any] = []
    with closing(reading_consumer(kafka, io="records")) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)

        def are_read() -> bool:
            messages.extend(consumer.poll(timeout_ms=200).get(tp, []))
            return len(messages) >= 3

        wait_for("three messages", are_read, seen=lambda: str(messages))
        assert int(consumer.end_offsets([tp])[tp]) == 3
    rows, lengths = PayloadCodec(dim=4).decode_all(messages)[:2]
    found: dict[tuple[tuple[float, ...], ...], int] = {}
    for own in np.split(rows, np.cumsum(lengths)[:-1]):
        record = tuple(tuple(row.tolist()) for row in own)
        found[record] = found.get(record, 0) + 1
    assert found == SENT
    assert {dict(m.headers)["content-type"] for m in messages} == {
        b"application/octet-stream",
        b"application/json",
    }
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        assert admin.describe_producers([tp])[tp].active_producers, "an idempotent producer has an id"


class running:
    """A consumer that reads until it is ended; its output is in the file "out"."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder

    def __enter__(self) -> subprocess.Popen[bytes]:
        with (self._folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def first_line(process: subprocess.Popen[bytes], out: Path) -> str:
    """Return a consumer's whole output, once it contains the release."""

    def printed() -> str | None:
        ended = process.poll() is not None
        text = out.read_text()
        if "0.5" in text and text.endswith("\n"):
            return text
        assert not ended, f"status {process.returncode}\n{text}"
        return None

    return wait_for("a release", printed, seen=out.read_text)
