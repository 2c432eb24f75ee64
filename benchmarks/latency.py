"""Latency of a release, from the moment when its batch is complete.

Starts Apache Kafka on this machine and a `streaming-pca worker` with the default estimator and default
settings (a clock that ticks every 0.2 s). A producer sends records of 256 float32, one per message, at an
even pace; a consumer reads the releases, read_committed. The latency of a batch runs from the broker's
acknowledgement of its last record to the arrival of its release at the consumer. It includes the wait for
the clock's next tick, the fetch of remaining records, three transactions, and the learning of the batch. The
learning time is measured separately, in an otherwise idle process, on a batch of the same size in memory;
`beyond` is the latency minus that median.

The first batches, which compile kernels, are sent immediately and excluded. The even pace starts with the
release of the last of them, so that no queue remains. If a worker needs more time for a batch than the
producer, a queue builds up; then the latency measures its length, and the benchmark
prints a warning.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ingest import DIM, RANK, learning_alone
from benchmarks.kafka.running_worker import RunningWorker, apache_kafka, draw_records, make_stream
from streaming_pca.config.loading import load_settings
from streaming_pca.config.settings import Settings
from streaming_pca.service.kafka.clients import plain_producer

__all__ = ["main", "measure"]

WARM_UP = 3
_PACE_SECONDS = 0.02
_PATIENCE_SECONDS = 120.0
_BUSY = 0.7
"""Largest share of the time for learning: the producer and the broker also need the cores."""


class PacedProducer:
    """Producer that sends the first batches immediately and the others at an even pace.

    It records the time of acknowledgement of each batch's last record.

    Parameters
    ----------
    settings : Settings
    batch, batches : int
        Records per batch, and number of batches.
    seconds : float
        Time for each batch.
    """

    def __init__(self, settings: Settings, batch: int, batches: int, seconds: float) -> None:
        self._settings, self._batch, self._batches, self._seconds = settings, batch, batches, seconds
        self.acknowledged: dict[int, float] = {}
        """Time of acknowledgement by batch number, from 1."""
        self.error: BaseException | None = None
        self._go = threading.Event()
        self._started = 0.0

    def begin(self) -> None:
        """Start to send the batches after the first ones, at an even pace."""
        self._started = time.monotonic()
        self._go.set()

    def run(self) -> None:
        """Send all batches; store an error in ``error``."""
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        values = [row.tobytes() for row in draw_records(4096, DIM, RANK)]
        producer = plain_producer(self._settings.kafka)
        sent, total = 0, self._batch * self._batches
        while sent < total:
            if sent < WARM_UP * self._batch:
                due = WARM_UP * self._batch
            else:
                self._go.wait()
                since = time.monotonic() - self._started
                due = int((WARM_UP + since / self._seconds) * self._batch)
            for i in range(sent, min(due, total)):
                future = producer.send(self._settings.stream.input, values[i % len(values)], partition=0)
                if (i + 1) % self._batch == 0:
                    future.add_callback(self._note, (i + 1) // self._batch)
                sent = i + 1
            time.sleep(_PACE_SECONDS)
        producer.close(_PATIENCE_SECONDS)

    def _note(self, batch: int, _metadata: object) -> None:
        self.acknowledged[batch] = time.monotonic()


def measure(
    bootstrap: str, folder: Path, batch: int, batches: int, seconds: float, estimator: str = "adaptive"
) -> dict[str, Any]:
    """Measure the latencies of ``batches`` releases, in milliseconds."""
    stream = {
        "name": "latency",
        "input": "latency-records",
        "dim": DIM,
        "rank": RANK,
        "epsilon": 1.0,
        "delta": 1e-6,
        "estimator": estimator,
        "options": {"growth": 1.0, "first_batch": batch, "max_batch": batch},
    }
    config = make_stream(bootstrap, folder, stream)
    settings = load_settings(config)
    producer = PacedProducer(settings, batch, WARM_UP + batches, seconds)
    arrived: dict[int, float] = {}
    with RunningWorker(config) as worker:
        threading.Thread(target=producer.run, name="producer", daemon=True).start()
        for arrival in worker.arrivals():
            arrived[arrival.release.batch] = arrival.at
            if producer.error is not None:
                raise SystemExit(f"the producer failed: {producer.error}")
            if arrival.release.batch == WARM_UP:
                producer.begin()
            if arrival.release.batch >= WARM_UP + batches:
                break
    measured = range(WARM_UP + 1, WARM_UP + batches + 1)
    total = np.array([arrived[b] - producer.acknowledged[b] for b in measured]) * 1000
    learning = batch / learning_alone(config, batch) * 1000
    if learning > _BUSY * seconds * 1000:
        print(
            f"learning takes {learning:.0f} ms of the {seconds * 1000:.0f} ms between batches: "
            "raise --seconds",
            file=sys.stderr,
        )
    return {
        "batch": batch,
        "batches": batches,
        "estimator": estimator,
        "seconds_a_batch": seconds,
        "tick_ms": settings.worker.tick_seconds * 1000,
        "latency_ms": _summary(total),
        "learning_ms": round(learning, 1),
        "beyond_learning_ms": _summary(total - learning),
    }


def _summary(values: Any) -> dict[str, float]:
    return {
        "median": round(float(np.median(values)), 1),
        "p99": round(float(np.quantile(values, 0.99)), 1),
        "least": round(float(values.min()), 1),
        "most": round(float(values.max()), 1),
    }


def _print_table(row: dict[str, Any], console: Console) -> None:
    table = Table(title="from a batch's last record to its release, ms")
    for name in ("", "median", "p99", "least", "most"):
        table.add_column(name, justify="right")
    for label, key in (("beyond learning", "beyond_learning_ms"), ("latency", "latency_ms")):
        table.add_row(label, *(f"{row[key][name]:.0f}" for name in ("median", "p99", "least", "most")))
    table.add_row("learning alone", f"{row['learning_ms']:.0f}", "", "", "")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and with ``--json`` end standard output with one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON; the table goes to standard error")
    parser.add_argument("--batch", type=int, default=8192, help="records of a batch")
    parser.add_argument("--batches", type=int, default=20, help="measured batches")
    parser.add_argument("--estimator", default="adaptive")
    # Not a multiple of the clock's tick, so that batches end at all phases between two ticks.
    parser.add_argument("--seconds", type=float, default=3.07, help="time to produce a batch")
    given = parser.parse_args(arguments)
    if given.batch < 2 or given.batches < 1 or not given.seconds > 0:
        parser.error("--batch must be at least 2, --batches 1, and --seconds above 0")
    print(f"{WARM_UP + given.batches} batches in {given.seconds:g} s each", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="streaming-pca-latency-") as folder, apache_kafka() as bootstrap:
        row = measure(bootstrap, Path(folder), given.batch, given.batches, given.seconds, given.estimator)
    _print_table(row, Console(stderr=given.json, width=100))
    if given.json:
        print(json.dumps({"rows": [row]}))


if __name__ == "__main__":
    main()
