"""Cost of batches on Apache Spark compared with one worker, and a validated model.

Starts Apache Kafka and, for each number of cores, two processes that take turns on the same messages of 256
float32 rows: parts of a worker (reader, decoder, kernels; `service`), and a driver with the executors of a
local Spark (`spark`). Neither commits. The cost of a row is the slope between a small and a large batch; the
rest is the constant cost of a batch. Further results are the driver's share (a worker on tiny batches), a
model fitted to some of the turns and checked on others, its predictions for a billion rows, and a batch of a
billion rows with simulated offsets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kafka.running_worker import apache_kafka
from benchmarks.spark.commits import seconds_of_a_batch
from benchmarks.spark.contenders import Contender
from benchmarks.spark.offsets import LARGE, SMALL, simulated
from benchmarks.spark.overhead import constant_rows, jobs_of, overhead_rows, take_turns, traffic_rows
from benchmarks.spark.prediction import model_rows
from benchmarks.spark.streams import Case, fill
from benchmarks.spark.tables import print_tables
from benchmarks.timing.command import Parser, whole
from benchmarks.timing.conditions import machine
from streaming_pca.config.kafka import KafkaSettings

__all__ = ["main"]

SHAPES = ((256, 8), (1024, 16), (2048, 8))


@dataclass(frozen=True)
class Effort:
    """Sizes of a run.

    Attributes
    ----------
    sizes : sequence of float
        MiB of records: the model is fitted to the first and the last, and checked on those between.
    repeats, warm_up : int
        Turns of each contender, case and size, and uncounted turns of the first case.
    batches : int
        Number of batches of a worker that commits.
    simulated : sequence of int
        Numbers of messages of the two simulated batches.
    """

    sizes: Sequence[float]
    repeats: int
    warm_up: int
    batches: int
    simulated: Sequence[int]


FULL = Effort((64, 224, 512), 4, 2, 8, (SMALL, LARGE))
QUICK = Effort((32, 96, 256), 2, 1, 4, (SMALL, 100 * SMALL))


def say(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def measure(shapes: Sequence[tuple[int, int]], cores: Sequence[int], effort: Effort) -> dict[str, Any]:
    """Measure everything except the simulated batches."""
    cases = [Case(dim, rank) for dim, rank in shapes]
    # The default estimator makes several passes over its records; measure it only at the middle shape.
    cases.append(Case(*shapes[len(shapes) // 2], estimator="adaptive"))
    with tempfile.TemporaryDirectory(prefix="streaming-pca-spark-") as name, apache_kafka() as bootstrap:
        folder = Path(name)
        for case in cases[:-1]:
            say(f"writing {case.messages(max(effort.sizes)):,} messages of {case.message_bytes:,} bytes")
            fill(KafkaSettings(bootstrap_servers=bootstrap), case, case.messages(max(effort.sizes)))
        with ExitStack() as stack:
            contenders = [
                stack.enter_context(Contender(kind, count, bootstrap, folder))
                for count in cores
                for kind in ("service", "spark")
            ]
            measured = take_turns(contenders, cases, effort.sizes, effort.repeats, effort.warm_up, say)
            probes = {each.cores: each.probe() for each in contenders if each.kind == "spark"}
        jobs = jobs_of({each.cores: each.events for each in contenders if each.kind == "spark"})
        say("a worker that commits tiny batches")
        commits = {case: seconds_of_a_batch(bootstrap, folder, case, effort.batches) for case in cases[:-1]}
    return {
        "overhead": overhead_rows(measured),
        "constant": constant_rows(measured, jobs),
        "traffic": traffic_rows(measured, jobs),
        "commits": [
            {"dim": case.dim, "rank": case.rank, "seconds": seconds} for case, seconds in commits.items()
        ],
        "probes": [{"cores": count, **found} for count, found in probes.items()],
        "model": model_rows(measured, jobs, probes, commits),
    }


def _shape(text: str) -> tuple[int, int]:
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be DxK, as in 1024x16, not {text}")
    dim, rank = map(int, parts)
    if not 1 <= rank <= dim:
        raise argparse.ArgumentTypeError(f"{text}: K must lie between 1 and D")
    return dim, rank


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        epilog="examples: python -m benchmarks.spark --json > spark.json; "
        "python -m benchmarks.spark --quick --shapes 1024x16",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=list(SHAPES), metavar="DxK",
        help="default: " + " ".join(f"{dim}x{rank}" for dim, rank in SHAPES),
    )  # fmt: skip
    parser.add_argument("--cores", type=whole(1), nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument(
        "--sizes", type=whole(1), nargs=3, metavar="MIB",
        help="batch sizes, increasing: the model is fitted to the first and the last; "
        f"default: {' '.join(map(str, FULL.sizes))}",
    )  # fmt: skip
    parser.add_argument("--repeats", type=whole(1), metavar="R", help=f"default: {FULL.repeats}")
    parser.add_argument(
        "--simulated", type=whole(64), nargs=2, metavar="M",
        help=f"messages of the two simulated batches; default: {SMALL} {LARGE}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="smaller and fewer repetitions: less reliable")
    return parser


def _effort(given: argparse.Namespace) -> Effort:
    base = QUICK if given.quick else FULL
    return Effort(
        tuple(given.sizes or base.sizes),
        given.repeats or base.repeats,
        base.warm_up,
        base.batches,
        tuple(given.simulated or base.simulated),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print tables or JSON."""
    parser = _parser()
    given = parser.parse_args(arguments)
    effort = _effort(given)
    if sorted(set(effort.sizes)) != list(effort.sizes):
        parser.error("argument --sizes: must increase")
    if max(effort.simulated) > 2**22:
        parser.error("argument --simulated: a batch may hold 4194304 records at most")
    start = time.monotonic()
    found = measure(given.shapes, given.cores, effort)
    say("simulated offsets")
    found["simulated"] = [simulated(messages, max(given.cores)) for messages in effort.simulated]
    found |= {"machine": machine(), "seconds": time.monotonic() - start}
    if given.json:
        print(json.dumps(found, allow_nan=False))
        return
    print_tables(found)


if __name__ == "__main__":
    main()
