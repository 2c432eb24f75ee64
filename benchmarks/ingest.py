"""Throughput of the whole worker, compared with consumers that discard their input.

Starts Apache Kafka on this machine and fills one single-partition topic for each message size: 1 KiB, one
row of 256 float32, where each message is a record (``privacy_unit = "message"``); and 256 KiB, 256 such
rows, where each row is a record (``privacy_unit = "row"``); with ``--fields N`` also JSON objects of N
numbers. Then separate processes read it in turns:

- kafka-python's consumer, which discards its input (`benchmarks.kafka.bare_consumer`);
- librdkafka's consumer, if `confluent-kafka` is installed (`pip install '.[benchmarks]'`);
- `streaming-pca worker`, with real transactions and ledger; its releases are read back, read_committed;
- with ``--quixstreams PYTHON``, the Python of an environment with quixstreams and scikit-learn (which need
  other versions of our dependencies): a quixstreams program with `IncrementalPCA`, the same batch size,
  exactly-once, not private (`benchmarks.kafka.quixstreams_pca`), for messages of one row.

The worker's stream has rank 8, batches of 131,072 records (the largest that the default estimator plans by
itself) and otherwise default settings. The estimators are `block`, then `adaptive`, the default, here on its
covariance route: once while it looks at all radii, as in each of its first sixteen batches, and once after
them. The time runs between the arrivals at a consumer of the release before the measured batches and of the
last release, and the topic contains two more batches. This excludes start, compilation and the first two
batches, and at both ends the worker has read ahead. It is the time to fetch, decode, reserve, learn, commit
and publish these batches. The bare consumers' time runs from the end of their first poll.

CPU time is the time of the worker and its clock process, over the same batches. Peak memory is VmHWM of the
worker, and separately of its clock process. `anon.` is the maximum at releases without file pages, such as
libraries.

A worker cannot be faster than its estimator: `learning alone` is the estimator's speed, after the same number
of batches, on one batch in memory, in an otherwise idle process. Ratios hold only for the named processor,
because the broker shares its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.kafka.bare_consumer import librdkafka_is_there
from benchmarks.kafka.running_worker import (
    ONE_BLAS_THREAD,
    RunningWorker,
    apache_kafka,
    draw_records,
    make_stream,
    send,
)
from benchmarks.timing.conditions import machine
from streaming_pca.config.loading import load_settings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch

__all__ = ["DIM", "RANK", "learn", "learning_alone", "main", "measure"]

DIM, RANK = 256, 8
ROW_BYTES = DIM * 4
WARM_UP = 2
"""Number of batches before the measured ones."""
AFTER_LOOKS = 18
"""Number of batches until the default estimator no longer looks at the radii in every batch."""
AHEAD = 2
"""Number of batches after the measured ones, so that the worker keeps reading until their end."""
_DISTINCT = 4096


@dataclass(frozen=True)
class Plan:
    """Sizes of one measurement."""

    batch: int
    batches: int
    repeats: int
    estimator: str
    options: dict[str, Any]
    quixstreams: str | None = None
    fields: int = 0
    """Count of numbers in a JSON record; 0 for rows of float32."""

    @property
    def dim(self) -> int:
        return self.fields or DIM

    @property
    def begins(self) -> list[int]:
        """Numbers of batches before the measured ones."""
        return [WARM_UP, AFTER_LOOKS] if self.estimator == "adaptive" else [WARM_UP]

    def stream(self, name: str, topic: str, rows_per_message: int) -> dict[str, Any]:
        """Return the stream's table of settings."""
        what: dict[str, Any] = {"dim": DIM}
        if self.fields:
            what = {"features": [{"name": name, "bounds": [-20, 20]} for name in _names(self.fields)]}
        size = {"first_batch": self.batch // rows_per_message, "max_batch": self.batch // rows_per_message}
        return {
            "name": name,
            "input": topic,
            **what,
            "rank": RANK,
            "epsilon": 1.0,
            "delta": 1e-6,
            "estimator": self.estimator,
            "privacy_unit": "message" if rows_per_message == 1 else "row",
            "max_rows": rows_per_message,
            "options": {"growth": 1.0} | size | self.options,
        }


@dataclass
class Speed:
    """Repeated measurements of one reader: rows per second, and CPU seconds per million rows."""

    rows_per_second: list[float] = field(default_factory=list)
    cpu_per_million: list[float] = field(default_factory=list)

    def add(self, rows: int, seconds: float, cpu_seconds: float) -> None:
        self.rows_per_second.append(rows / seconds)
        self.cpu_per_million.append(cpu_seconds / rows * 1e6)

    @property
    def median(self) -> float:
        return statistics.median(self.rows_per_second)


def measure(bootstrap: str, folder: Path, plan: Plan, rows_per_message: int) -> list[dict[str, Any]]:
    """Measure all readers of one message size in turns; return a row per entry of ``begins``."""
    topic = f"{plan.estimator}-{plan.fields or rows_per_message}{'-fields' if plan.fields else ''}"
    config = make_stream(bootstrap, folder, plan.stream(f"{topic}-fill", topic, rows_per_message))
    messages = plan.batch * (plan.begins[-1] + plan.batches + AHEAD) // rows_per_message
    values = _payloads(plan, rows_per_message)
    size = round(statistics.mean(map(len, values)))
    say(f"{plan.estimator}, {size:,}-byte messages: writing {messages:,}")
    send(load_settings(config), values, messages)

    clients = ["kafka-python"] + (["librdkafka"] if librdkafka_is_there() else [])
    if plan.quixstreams and rows_per_message == 1:
        clients.append("quixstreams")
    few = plan.batch * (WARM_UP + plan.batches + AHEAD) // rows_per_message
    others = {name: Speed() for name in clients}
    workers = [Speed() for _ in plan.begins]
    peaks: list[tuple[int, int, int]] = []
    for repeat in range(plan.repeats):
        for client in clients:
            found = _other(client, bootstrap, topic, few, plan)
            others[client].add(found["messages"] * rows_per_message, found["seconds"], found["cpu_seconds"])
            say(f"  {client}: {others[client].rows_per_second[-1]:,.0f} rows/s")
        name = f"{topic}-{repeat}"
        config = make_stream(bootstrap, folder, plan.stream(name, topic, rows_per_message))
        peaks.append(_worker(config, plan, workers))
        for begin, worker in zip(plan.begins, workers, strict=True):
            say(f"  worker, from batch {begin + 1} on: {worker.rows_per_second[-1]:,.0f} rows/s")
    rows = []
    for begin, worker in zip(plan.begins, workers, strict=True):
        alone = learning_alone(config, plan.batch, begin)
        say(f"  learning alone: {alone:,.0f} rows/s")
        speeds = others | {"worker": worker}
        row = _row(plan, rows_per_message, speeds, alone, peaks)
        rows.append({"batches_before": begin, "message_bytes": size} | row)
    return rows


def _names(fields: int) -> list[str]:
    return [f"field_{i}" for i in range(fields)]


def _payloads(plan: Plan, rows_per_message: int) -> list[bytes]:
    """Return distinct message payloads."""
    records = draw_records(max(_DISTINCT, 4 * rows_per_message), plan.dim, RANK)
    if not plan.fields:
        return [rows.tobytes() for rows in records.reshape(-1, rows_per_message, DIM)]
    # Like real services: a few texts and a nested object next to the numbers.
    more = {"id": "8d8ac610-566d-4ef0-9c22-186b2a5ed793", "kind": "visit", "at": {"zone": "Europe/Berlin"}}
    names = _names(plan.fields)
    numbers = records.astype(np.float64).round(3).tolist()
    return [json.dumps(more | dict(zip(names, row, strict=True))).encode() for row in numbers]


def _row(
    plan: Plan,
    rows_per_message: int,
    speeds: dict[str, Speed],
    alone: float,
    peaks: list[tuple[int, int, int]],
) -> dict[str, Any]:
    """Return one result row; ratios are medians over repeats, whose readers ran consecutively."""

    def ratio(to: list[float]) -> float:
        mine = speeds["worker"].rows_per_second
        return round(statistics.median(a / b for a, b in zip(mine, to, strict=True)), 4)

    with_librdkafka = "librdkafka" in speeds
    # JSON numbers are float64 in memory.
    batch_bytes = plan.batch * plan.dim * (8 if plan.fields else 4)
    peak, clock, anonymous = (max(each) for each in zip(*peaks, strict=True))
    return {
        "fields": plan.fields,
        "rows_per_message": rows_per_message,
        "worker_to_bare_consumer": ratio(speeds["kafka-python"].rows_per_second),
        "worker_to_librdkafka": ratio(speeds["librdkafka"].rows_per_second) if with_librdkafka else None,
        "worker_to_learning_alone": round(speeds["worker"].median / alone, 4),
        "rows_per_second": {name: round(s.median) for name, s in speeds.items()}
        | {"learning alone": round(alone)},
        "cpu_seconds_per_million_rows": {
            name: round(statistics.median(s.cpu_per_million), 3) for name, s in speeds.items()
        },
        "peak_bytes": peak,
        "clock_peak_bytes": clock,
        "batch_bytes": batch_bytes,
        "peak_over_two_batches_bytes": peak - 2 * batch_bytes,
        "anonymous_over_two_batches_bytes": anonymous - 2 * batch_bytes,
        "batch": plan.batch,
        "batches": plan.batches,
        "repeats": plan.repeats,
        "estimator": plan.estimator,
        "options": plan.options,
    }


def _other(client: str, bootstrap: str, topic: str, messages: int, plan: Plan) -> dict[str, Any]:
    """Run another reader of the topic."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.kafka.bare_consumer",
        client,
        bootstrap,
        topic,
        str(messages),
    ]
    if client == "quixstreams":
        script = Path(__file__).parent / "kafka" / "quixstreams_pca.py"
        sizes = (DIM, RANK, plan.batch, plan.batches)
        command = [str(plan.quixstreams), str(script), bootstrap, topic, *map(str, sizes)]
    environment = os.environ | ONE_BLAS_THREAD
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{client} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _worker(config: Path, plan: Plan, speeds: Sequence[Speed]) -> tuple[int, int, int]:
    """Run one worker and record its speeds; return its, its clock's and anonymous peak memory."""
    with RunningWorker(config) as worker:
        arrivals = {a.release.batch: a for a in _up_to(worker, plan.begins[-1] + plan.batches)}
    for begin, speed in zip(plan.begins, speeds, strict=True):
        # A late consumer receives two together; the arrival of the last of a group dates them all.
        first, last = arrivals[begin], arrivals[begin + plan.batches]
        spent = (last.usage.cpu_seconds + last.usage.children_cpu_seconds) - (
            first.usage.cpu_seconds + first.usage.children_cpu_seconds
        )
        speed.add(plan.batch * plan.batches, last.at - first.at, spent)
    anonymous = max(a.usage.anonymous_bytes for a in arrivals.values())
    return last.usage.peak_bytes, last.usage.children_peak_bytes, anonymous


def _up_to(worker: RunningWorker, batch: int) -> list[Any]:
    found = []
    for arrival in worker.arrivals():
        found.append(arrival)
        if arrival.release.batch >= batch:
            break
    return found


_ALONE = """
import sys
from pathlib import Path
from benchmarks.ingest import learn
from streaming_pca.config.loading import load_settings
print(learn(load_settings(Path(sys.argv[1])).stream, int(sys.argv[2]), int(sys.argv[3])))
"""


def learning_alone(config: Path, rows: int, before: int = WARM_UP) -> float:
    """Return rows per second learnt by an otherwise idle process, after some batches."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, str(config), str(rows), str(before)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | ONE_BLAS_THREAD,
    )
    return float(done.stdout)


def learn(stream: StreamSettings, rows: int, before: int = WARM_UP, times: int = 3) -> float:
    """Return rows per second that the warm estimator learns from a batch in memory."""
    estimator = stream.build_estimator()
    state = estimator.init(np.random.default_rng(0))
    batch = ArrayBatch.of_vectors(draw_records(rows, stream.dim, stream.rank))
    for _ in range(before):
        state = estimator.update(state, batch)
    started = time.perf_counter()
    for _ in range(times):
        state = estimator.update(state, batch)
    return rows * times / (time.perf_counter() - started)


def say(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


_MOMENTS = {WARM_UP: "", AFTER_LOOKS: ", after its looks"}


def _described(row: dict[str, Any]) -> str:
    if row["fields"]:
        return f"JSON of {row['fields']} numbers"
    return f"{row['message_bytes'] // 1024} KiB"


def _print_table(rows: Sequence[dict[str, Any]], where: str, console: Console) -> None:
    title = "rows a second of the whole worker, as a share of others' (medians), and its costs"
    table = Table(title=f"{title}, on {where}")
    for name in ("message", "of kafka-python", "of librdkafka", "of learning alone"):
        table.add_column(name, justify="right")
    for name in ("rows/s", "CPU s / 1M rows", "peak MiB", "- 2 batches", "anon.", "clock MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        speed, cpu = row["rows_per_second"], row["cpu_seconds_per_million_rows"]
        to_librdkafka = row["worker_to_librdkafka"]
        table.add_row(
            f"{row['estimator']}{_MOMENTS[row['batches_before']]}, {_described(row)}",
            f"{row['worker_to_bare_consumer']:.2f}",
            "-" if to_librdkafka is None else f"{to_librdkafka:.2f}",
            f"{row['worker_to_learning_alone']:.2f}",
            f"{speed['worker']:,}",
            f"{cpu['worker']:.1f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['peak_over_two_batches_bytes'] / 2**20:+.0f}",
            f"{row['anonymous_over_two_batches_bytes'] / 2**20:+.0f}",
            f"{row['clock_peak_bytes'] / 2**20:.0f}",
        )
        for name in speed:
            if name != "worker":
                used = f"{cpu[name]:.1f}" if name in cpu else ""
                last = name == "learning alone"
                table.add_row(name, "", "", "", f"{speed[name]:,}", used, style="dim", end_section=last)
    console.print(table)


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and with ``--json`` end standard output with one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON; the table goes to standard error")
    parser.add_argument("--rows-per-message", type=int, nargs="+", default=[256, 1], metavar="R")
    parser.add_argument(
        "--fields", type=int, default=0, metavar="N", help="also measure JSON objects of N numbers"
    )
    parser.add_argument("--batch", type=int, default=131_072, help="records of a batch")
    parser.add_argument("--batches", type=int, default=3, help="measured batches of each worker")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--estimator", nargs="+", default=["block", "adaptive"], metavar="NAME")
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the estimator",
    )
    parser.add_argument(
        "--quixstreams", metavar="PYTHON", help="Python of an environment with quixstreams; see above"
    )
    given = parser.parse_args(arguments)
    for rows in given.rows_per_message:
        if rows < 1 or given.batch < 2 * rows or given.batch % rows:
            parser.error(
                f"--batch {given.batch} must be a multiple, at least twofold, of {rows} rows a message"
            )
    if given.fields and given.fields < RANK:
        parser.error(f"--fields must be at least {RANK}, the rank of the stream")
    if given.batches < 1 or given.repeats < 1:
        parser.error("--batches and --repeats must be at least 1")
    if not librdkafka_is_there():
        say("no librdkafka to compare with: pip install '.[benchmarks]' in the checkout (confluent-kafka)")
    plans = [
        Plan(given.batch, given.batches, given.repeats, name, dict(given.option), given.quixstreams)
        for name in given.estimator
    ]
    with tempfile.TemporaryDirectory(prefix="streaming-pca-ingest-") as folder, apache_kafka() as bootstrap:
        pairs = [(p, r) for p in plans for r in given.rows_per_message]
        if given.fields:
            pairs += [(replace(p, fields=given.fields, quixstreams=None), 1) for p in plans]
        rows = [row for p, r in pairs for row in measure(bootstrap, Path(folder), p, r)]
    here = machine()
    where = f"{here['cores']} cores of {here['processor']} (numba {here['numba']})"
    _print_table(rows, where, Console(stderr=given.json, width=170))
    if given.json:
        print(json.dumps({"machine": here, "rows": rows}))


if __name__ == "__main__":
    main()
