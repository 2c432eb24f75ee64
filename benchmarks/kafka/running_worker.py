"""Worker process on a real broker, with its releases, CPU time and memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from kafka import TopicPartition
from numpy.typing import NDArray

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.loading import load_settings
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from streaming_pca.dev.cluster import KafkaServer
from streaming_pca.dev.jars import KafkaUnavailable, fetch_jars, find_java
from streaming_pca.dev.processes import Child
from streaming_pca.privacy.ledger.entries import Cap, Opened
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.kafka.clients import plain_producer, reading_consumer
from streaming_pca.service.topics.find import create_topics, find_topics

__all__ = [
    "Arrival",
    "RunningWorker",
    "Usage",
    "apache_kafka",
    "draw_records",
    "make_stream",
    "send",
    "usage",
]

ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of measured processes, because idle BLAS threads spin on cores that others need."""
_TICKS_A_SECOND = 100
"""USER_HZ, which Linux fixes for /proc."""
_PATIENCE_SECONDS = 120.0


@contextmanager
def apache_kafka() -> Iterator[str]:
    """Start Apache Kafka for the block and yield its address; exit with one line on failure."""
    try:
        with KafkaServer(find_java(), fetch_jars()) as server:
            yield server.bootstrap
    except KafkaUnavailable as unavailable:
        raise SystemExit(f"no Apache Kafka: {unavailable.reason}") from None


def make_stream(bootstrap: str, folder: Path, stream: Mapping[str, Any], tick: float | None = None) -> Path:
    """Create a stream's single-partition topics, open its ledger, and return its settings file.

    Parameters
    ----------
    stream : mapping
        Settings of the table ``[stream]``; ``options`` are the estimator's.
    tick : float, optional
        ``worker.tick_seconds``, if not the default.
    """
    table = {k: v for k, v in stream.items() if k not in ("options", "features")}
    worker = {"group": f"workers-{stream['name']}"} | ({} if tick is None else {"tick_seconds": tick})
    sections = {
        "kafka": {"bootstrap_servers": bootstrap},
        "stream": table,
        "stream.options": stream.get("options", {}),
        "worker": worker,
        "http": {"enabled": False},
    }
    path = folder / f"{stream['name']}.toml"
    parts = [_section(f"[{name}]", values) for name, values in sections.items()]
    parts += [_section("[[stream.features]]", feature) for feature in stream.get("features", ())]
    path.write_text("\n".join(parts))
    settings = load_settings(path)
    create_topics(settings.kafka, settings.stream, partitions=1, replication=1)
    # A large cap for all repeats: streams with the same input share its ledger.
    cap = Cap(epsilon="1000", delta="0.5")
    topic_id = find_topics(settings.kafka, settings.stream).topic_id
    entry = Opened(topic_id=topic_id, topic=settings.stream.input, cap=cap)
    open_ledger(settings.kafka, entry, settings.stream.ledger_topic)
    return path


def _section(name: str, values: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    return "\n".join([name, *(f"{key} = {text(value)}" for key, value in values.items()), ""])


def draw_records(count: int, dim: int, rank: int) -> NDArray[np.float32]:
    """Draw Gaussian records (count, dim), several times larger in ``rank`` directions."""
    x = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
    x[:, :rank] *= np.linspace(4, 2, rank, dtype=np.float32)
    return x


def send(settings: Settings, values: Sequence[bytes], messages: int) -> None:
    """Fill partition 0 of the input with messages: the values in turn, without headers."""
    producer = plain_producer(settings.kafka)
    try:
        sent = None
        for i in range(messages):
            sent = producer.send(settings.stream.input, values[i % len(values)], partition=0)
        if sent is not None:
            sent.get(_PATIENCE_SECONDS)
    finally:
        producer.close(_PATIENCE_SECONDS)


@dataclass(frozen=True)
class Usage:
    """CPU time and memory of a process so far, separate from its children's.

    Attributes
    ----------
    cpu_seconds, children_cpu_seconds : float
    peak_bytes, children_peak_bytes : int
        Largest resident sizes.
    anonymous_bytes : int
        Current memory, excluding pages of files such as library code, which the system shares and can
        reclaim.
    """

    cpu_seconds: float
    children_cpu_seconds: float
    peak_bytes: int
    children_peak_bytes: int
    anonymous_bytes: int


def usage(pid: int) -> Usage:
    """Read the usage of a process from /proc."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end between listing and reading.
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (task / "children").read_text().split())
    return Usage(
        _cpu_seconds(pid),
        sum(map(_cpu_seconds, children)),
        _status_bytes(pid, "VmHWM"),
        sum(_status_bytes(child, "VmHWM") for child in children),
        _status_bytes(pid, "RssAnon"),
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name} in /proc")


@dataclass(frozen=True)
class Arrival:
    """Release received by a consumer.

    Attributes
    ----------
    release : Release
    at : float
        Arrival time, in seconds of the monotonic clock.
    usage : Usage
        Usage of the worker at that time.
    """

    release: Release
    at: float
    usage: Usage


class RunningWorker:
    """`streaming-pca worker` in a separate process, and a consumer of its releases.

    Parameters
    ----------
    config : Path
    """

    def __init__(self, config: Path) -> None:
        self._settings = load_settings(config)
        self._child = Child(
            [sys.executable, "-m", "streaming_pca", "worker", "--config", str(config)],
            log=config.with_suffix(".log"),
            cwd=Path.cwd(),
            env=os.environ | ONE_BLAS_THREAD,
        )
        self._consumer = reading_consumer(self._settings.kafka)
        tp = TopicPartition(self._settings.stream.releases_topic, 0)
        self._consumer.assign([tp])
        self._consumer.seek(tp, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._child.kill()
        self._consumer.close(autocommit=False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def kafka(self) -> KafkaSettings:
        """Connection settings of the broker."""
        return self._settings.kafka

    def arrivals(self) -> Iterator[Arrival]:
        """Iterate over releases as they arrive."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            for messages in self._consumer.poll(timeout_ms=200).values():
                at, used = time.monotonic(), usage(self.pid)
                deadline = at + _PATIENCE_SECONDS
                for message in messages:
                    yield Arrival(Release.from_bytes(message.value), at, used)
            if self._child.returncode is not None:
                raise SystemExit(f"the worker ended: {self._child.log_tail(5)}")
            if time.monotonic() > deadline:
                raise SystemExit(f"no release for {_PATIENCE_SECONDS:g} s: {self._child.log_tail(5)}")
