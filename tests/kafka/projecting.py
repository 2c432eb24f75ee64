"""Projected streams for the tests: hand-made releases, workers and their output."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Subspace
from streaming_pca.service.commit.batch_result import make_release
from streaming_pca.service.projection import projector
from streaming_pca.service.projection.projector import Projector
from streaming_pca.service.projection.worker import ProjectionOptions, run_projection
from tests.kafka.child import Strike, install
from tests.kafka.stream import Child, Stream, Vectors
from tests.waiting import wait_for

__all__ = ["Projecting", "Projection", "publish", "run", "written"]


class Projecting(Child):
    """Projecting worker in its own process."""

    def __init__(
        self,
        settings: Settings,
        options: ProjectionOptions,
        directory: Path,
        strike: Strike | None = None,
        **how: Any,
    ) -> None:
        super().__init__([settings], directory, target=main, options=options, strike=strike, **how)


def main(
    settings: list[dict[str, Any]],
    directory: str,
    options: ProjectionOptions,
    strike: Strike | None,
    silence_seconds: float | None = None,
) -> None:
    """Run a worker that may strike itself at a named step; log to a file.

    After ``silence_seconds`` without messages, by default the usual ones, it asks the broker.
    """
    log = os.open(Path(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if strike is not None:
        install(strike, Path(directory), Projector, "_named")
    if silence_seconds is not None:
        projector._SILENCE_SECONDS = silence_seconds
    sys.exit(run_projection(Settings(**settings[0]), options))


def publish(stream: Stream, batch: int, seed: int | None = None, **changes: Any) -> Release:
    """Publish a release with random components."""
    settings = stream.settings.stream
    rng = np.random.default_rng(batch if seed is None else seed)
    components = np.linalg.qr(rng.standard_normal((settings.dim, settings.rank)))[0].T
    subspace = Subspace(components, np.ones(settings.rank), rng.standard_normal(settings.dim))
    value = make_release(settings, subspace, batch, 100 * batch)
    if changes:
        value = Release.from_bytes(value).model_copy(update=changes).to_bytes()
    stream.write(settings.releases_topic, value)
    return Release.from_bytes(value)


def run(settings: Settings, output: str, **options: Any) -> int:
    """Project to the end of the input in this process."""
    return run_projection(settings, ProjectionOptions(output, **({"until_end": True} | options)))


class Projection:
    """Output message, as another client reads it."""

    def __init__(self, message: Message) -> None:
        headers = cast("list[tuple[str, bytes]]", message.headers())
        self.headers = {name: value.decode() for name, value in headers}
        self.source = (int(self.headers["input-partition"]), int(self.headers["input-offset"]))
        self.batch = int(self.headers["release-batch"])
        self.partition, self.offset = message.partition(), message.offset()
        self.key, self.value = message.key(), cast(bytes, message.value())

    def rows(self, rank: int, dtype: str = "<f4") -> Vectors:
        return np.frombuffer(self.value, dtype).reshape(-1, rank)


def written(stream: Stream, output: str, partitions: int) -> list[Projection]:
    """Read all committed messages of the output through another client."""
    how = {"bootstrap.servers": stream.settings.kafka.bootstrap_servers, "group.id": f"reader-{output}"}
    how |= {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer(how | {"enable.auto.commit": False, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(output, p, 0) for p in range(partitions)])
        found: list[Projection] = []
        ended: set[int | None] = set()

        def is_read() -> bool:
            message = consumer.poll(1.0)
            if message is None:
                return False
            error = message.error()
            if error is None:
                found.append(Projection(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
            return len(ended) == partitions

        wait_for(f"the end of {output}", is_read, pause=0)
        return found
    finally:
        consumer.close()
