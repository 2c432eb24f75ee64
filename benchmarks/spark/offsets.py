"""Batch of a billion rows with real offsets but without real messages.

Each of 64 partitions has as many offsets as the batch takes. Executors read from a substitute for Kafka that
returns one message of 256 rows repeatedly. Everything else is as in a real driver: tasks read ranges, and
the driver cuts the batch, writes RESERVED, lets the estimator learn, and encodes the checkpoint. A batch a
thousandth as large runs first, in a separate process. The exact sum must equal the sum of one message times
the number of messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kafka.running_worker import ONE_BLAS_THREAD, draw_records, usage
from benchmarks.spark.streams import ROWS, Case
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.estimators.common.clipped_sums import block_sum
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.privacy.ledger.entries import OffsetRange, Reserved, encode_entry
from streaming_pca.service.commit.batch_result import make_release, parameters_of
from streaming_pca.service.commit.state_topic import Checkpoint, encode_checkpoint
from streaming_pca.service.input.buffer import Chunk, PartitionBuffer
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import build_codec
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.reader import ClusterReader
from streaming_pca.spark.reading import Feed
from streaming_pca.spark.session import start_spark, stop_spark

__all__ = ["CASE", "LARGE", "SMALL", "simulated"]

CASE = Case(8, 2)
PARTITIONS = 64
LARGE = 3_906_250
"""Number of messages with a billion rows; a batch may contain at most 2^22 records."""
SMALL = 3_904
_AT_ONCE = 2048
"""Number of messages per poll."""
_HASH = "0" * 64
_TOPIC_ID = "A" * 22


def _one_message() -> NDArray[np.float32]:
    return draw_records(ROWS, CASE.dim, CASE.rank)


class _SimulatedReader(PartitionReader):
    """Reader of partitions where every message has the same rows."""

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, codec: PayloadCodec) -> None:
        super().__init__(kafka, stream, codec, 1, False, lambda: None)
        self._at: dict[int, int] = {}
        self._rows = np.tile(_one_message(), (2 * _AT_ONCE, 1))

    @property
    def bytes(self) -> int:
        return sum(each.rows for each in self.buffers.values()) * CASE.dim * 4

    def add(self, starts: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        for p, start in starts.items():
            self.buffers[p] = PartitionBuffer(start)
            self._at[p] = start

    def remove(self, partition: int) -> None:
        del self.buffers[partition]

    def position(self, partition: int) -> int:
        return self._at[partition]

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        for p in wanted:
            offsets = np.arange(self._at[p], min(self._at[p] + _AT_ONCE, ends[p]))
            lengths = np.full(len(offsets), ROWS, dtype=np.int64)
            self.buffers[p].append(Chunk(offsets, np.cumsum(lengths) - lengths, lengths, epoch=0))
            self._at[p] = int(offsets[-1]) + 1

    def take(self, counts: Any, granularity: int) -> tuple[ArrayBatch, None]:
        (buffer,) = self.buffers.values()
        (count,) = counts
        buffer.take(count)
        starts = np.arange(count + 1, dtype=np.int64) * ROWS
        rows = self._rows if len(self._rows) >= starts[-1] else np.tile(_one_message(), (count, 1))
        return ArrayBatch(rows[: starts[-1]], starts), None

    def release_memory(self) -> None:
        return


@dataclass(frozen=True)
class _SimulatedFeed(Feed):
    """Feed of records without a broker."""

    def reader(self, codec: PayloadCodec) -> PartitionReader:
        return _SimulatedReader(self.kafka, self.stream, codec)


def _learn(messages: int, cores: int) -> dict[str, Any]:
    """Reserve, learn and encode one batch in a new driver; return time and memory."""
    settings = SparkSettings(cache_bytes=2**20)
    stream = CASE.stream(largest=LARGE, input_topic="simulated")
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    spark = start_spark(settings, f"local[{cores}]")
    try:

        def make(kafka: KafkaSettings, stream: StreamSettings, user_key: bytes | None) -> Cluster:
            cluster = Cluster(spark, settings, kafka, stream, user_key)
            known = vars(cluster.feed)
            cluster.feed = _SimulatedFeed(**known)
            return cluster

        codec = build_codec(stream, None)
        reader = ClusterReader(make, kafka, stream, codec, PARTITIONS, False, lambda: None)
        return _through(reader, stream, messages)
    finally:
        stop_spark(spark)


def _through(reader: ClusterReader, stream: StreamSettings, messages: int) -> dict[str, Any]:
    started = time.perf_counter()
    counts = [len(part) for part in np.array_split(np.arange(messages), PARTITIONS)]
    ends = dict(enumerate(counts))
    reader.add(dict.fromkeys(ends, 0), {})
    while short := {p: end for p, end in ends.items() if reader.buffers[p].count_before(end) < end}:
        reader.fetch(short, ends)
    batch, _ = reader.take(counts, 1)
    estimator = stream.build_estimator()
    state = estimator.init(np.random.default_rng(0))
    plan = estimator.plan(state)
    entry = Reserved(
        topic_id=_TOPIC_ID,
        job=stream.name,
        batch=1,
        previous=_HASH,
        ranges=tuple(OffsetRange(partition=p, start=0, end=n, count=n) for p, n in ends.items()),
        promise=stream.privacy_contract,
        parameters=parameters_of(stream, plan),
        charge=plan.charge,
    )
    reserved = encode_entry(entry)
    new = estimator.update(state, batch)
    data = encode_state(new)
    release = make_release(stream, estimator.release(new), 1, new.records, {})
    positions = {p: buffer.position for p, buffer in reader.buffers.items()}
    checkpoint, _ = encode_checkpoint(
        Checkpoint(_TOPIC_ID, stream.name, 1, positions, b"\0" * 16, data, release)
    )
    seconds = time.perf_counter() - started
    # Repeat the single pass for its exact sum, outside the measured time.
    exact = block_sum(batch, estimator.preprocessing, state.basis, stream.options["clip_radius"])
    one = ArrayBatch.of_vectors(_one_message()[None])
    alone = block_sum(one, estimator.preprocessing, state.basis, stream.options["clip_radius"])
    received = batch.cluster.received
    reader.release_memory()
    reader.close()
    return {
        "messages": messages,
        "rows": messages * ROWS,
        "partitions": PARTITIONS,
        "seconds": seconds,
        "reserved_bytes": len(reserved),
        "state_bytes": len(data),
        "checkpoint_bytes": len(checkpoint),
        "received_bytes": received,
        "driver_peak_bytes": usage(os.getpid()).peak_bytes,
        "java_peak_bytes": usage(os.getpid()).children_peak_bytes,
        "sum_is_exact": bool((exact.total == messages * alone.total).all()),
    }


def simulated(messages: int, cores: int = 2) -> dict[str, Any]:
    """Run one batch in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark.offsets", str(messages), str(cores)],
        capture_output=True,
        text=True,
        env=os.environ | ONE_BLAS_THREAD,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the simulated batch failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(_learn(int(sys.argv[1]), int(sys.argv[2]))))
