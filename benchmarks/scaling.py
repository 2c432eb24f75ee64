"""Growth of a sum's and an update's cost with records, features, rank and streams."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.timing.command import Parser, keeping_message, whole
from benchmarks.timing.conditions import machine, with_threads
from benchmarks.timing.timing import QUICK, THOROUGH, Call, Effort, measured, medians
from benchmarks.timing.workload import DTYPES, Shape, Workload, update

__all__ = ["fit", "main", "streams", "sweep"]

BASE = Shape(4096, 512, 8)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
STREAMS = (1, 2, 4, 8, 16)
_OF_STREAM = 4
"""Divisor of the base size for a stream's batch: each stream has its own records and state in memory."""


def fit(costs: Mapping[int, float]) -> tuple[float, float | None]:
    """Fit a in cost = c value^a by least squares of logarithms; also return R squared.

    Parameters
    ----------
    costs : mapping of int to float
        At least two values; all above 0.

    Returns
    -------
    exponent : float
    r_squared : float or None
        None if the costs do not vary. If the exponent is near 0, there is little variation to explain, and
        a low value is meaningless.
    """
    x, y = (np.log(np.array(list(v), dtype=np.float64)) for v in (costs.keys(), costs.values()))
    slope, constant = np.polyfit(x, y, 1)
    spread = float(np.square(y - y.mean()).sum())
    left = float(np.square(y - slope * x - constant).sum())
    return float(slope), 1 - left / spread if spread > 0 else None


def _row(variable: str, of: str, cost: str, points: Mapping[int, dict[str, float]]) -> dict[str, Any]:
    exponent, r_squared = fit({value: point[cost] for value, point in points.items()})
    return {
        "variable": variable,
        "exponent": exponent,
        "r_squared": r_squared,
        "of": of,
        "cost": cost,
        "points": [{"value": value, **point} for value, point in points.items()],
    }


def sweep(
    variable: str, base: Shape, factors: Sequence[float], dtype: str, repeats: int | None, effort: Effort
) -> list[dict[str, Any]]:
    """Measure the exponents of seconds against m, d or k, for two operations.

    The operations are the block sum and private Oja's update.
    """
    centre = getattr(base, variable)
    values = sorted({max(int(centre * factor), 1) for factor in factors})
    shapes = [base._replace(**{variable: value}) for value in values]
    work = [Workload(shape, dtype) for shape in shapes]
    calls: dict[str, list[Call]] = {
        "block_sum": [one.sums["sum"] for one in work],
        "update": [update(one.oja(), one.batch) for one in work],
    }
    found = medians(measured(_named(calls), repeats, effort))
    rows = []
    for of in calls:
        points = {}
        for i, (value, shape) in enumerate(zip(values, shapes, strict=True)):
            seconds = found[f"{of} {i}"]
            points[value] = {"seconds": seconds, "rows_per_second": shape.m / seconds}
        rows.append(_row(variable, of, "seconds", points))
    return rows


def _named(calls: Mapping[str, Sequence[Call]]) -> dict[str, Call]:
    return {f"{of} {i}": call for of, several in calls.items() for i, call in enumerate(several)}


class _Stream:
    """Stream served by the process: an estimator, its state and its next batch."""

    def __init__(self, work: Workload) -> None:
        self.estimator, self.batch = work.oja(), work.batch
        self.state = self.estimator.init(np.random.default_rng(0))

    def learn(self) -> None:
        self.state = self.estimator.update(self.state, self.batch)


def streams(
    counts: Sequence[int], base: Shape, dtype: str, repeats: int | None, effort: Effort
) -> dict[str, Any]:
    """Measure the exponent of seconds per record against the number of streams served in turn.

    An exponent of 0 means that many streams cost as much per record as one.
    """
    shape = base._replace(m=max(base.m // _OF_STREAM, base.k))
    served = [_Stream(Workload(shape, dtype)) for _ in range(max(counts))]

    def serve(count: int) -> Call:
        def call() -> None:
            for stream in served[:count]:
                stream.learn()

        return call

    found = medians(measured({str(count): serve(count) for count in counts}, repeats, effort))
    points = {}
    for count in counts:
        seconds = found[str(count)] / (count * shape.m)
        points[count] = {"seconds_a_row": seconds, "rows_per_second": 1 / seconds}
    return _row("streams", "update", "seconds_a_row", points)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'against':<9}{'exponent':>9}{'R²':>7}  {'cost':<26}at")
    for row in rows:
        r_squared = "-" if row["r_squared"] is None else f"{row['r_squared']:.3f}"
        cost = f"{row['cost'].replace('_', ' ')} of {row['of']}"
        scale, unit = (1e6, "µs") if row["cost"] == "seconds_a_row" else (1e3, "ms")
        points = ", ".join(f"{p['value']}: {p[row['cost']] * scale:.3g} {unit}" for p in row["points"])
        print(f"{row['variable']:<9}{row['exponent']:>9.3f}{r_squared:>7}  {cost:<26}{points}")


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return value


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.scaling",
        description="Exponents of the cost of the exact sum, and of a whole update of private-oja, against "
        "records m, features d, rank k and streams: log-log fits of medians of calls that take turns.",
        epilog="examples: python -m benchmarks.scaling --json > scaling.json; "
        "python -m benchmarks.scaling --quick --base 1024x256x8",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    parser.add_argument(
        "--base",
        type=keeping_message(Shape.parse),
        default=BASE,
        metavar="MxDxK",
        help=f"shape to vary; default: {BASE}",
    )
    parser.add_argument(
        "--factors", type=_factor, nargs="+", default=list(FACTORS), metavar="F",
        help="factors for M, D and K, one at a time; default: "
        + " ".join(f"{factor:g}" for factor in FACTORS),
    )  # fmt: skip
    parser.add_argument(
        "--streams", type=whole(1), nargs="+", default=list(STREAMS), metavar="N",
        help=f"numbers of streams to serve in turn; default: {' '.join(map(str, STREAMS))}",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="type of the records")
    parser.add_argument("--threads", type=whole(1), default=1, metavar="N", help="default: 1")
    parser.add_argument("--repeats", type=whole(1), metavar="R", help="repetitions of each point")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: less reliable")
    return parser


def _check(parser: Parser, given: argparse.Namespace) -> None:
    """Refuse arguments that cannot be measured or fitted, before any work."""
    for name in ("factors", "streams"):
        if len(set(getattr(given, name))) < 2:
            parser.error(f"argument --{name}: a fit needs two different values at least")
    for variable in Shape._fields:
        values = {max(int(getattr(given.base, variable) * factor), 1) for factor in given.factors}
        if len(values) < 2:
            parser.error(
                f"argument --factors: they leave one value of {variable.upper()}: raise it in --base"
            )
        for value in values:
            try:
                given.base._replace(**{variable: value}).check()
            except ValueError as error:
                parser.error(f"argument --factors: {error}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _check(parser, given)
    effort = QUICK if given.quick else THOROUGH
    rows: list[dict[str, Any]] = []
    with with_threads(given.threads):
        for variable in Shape._fields:
            print(f"against {variable}", file=sys.stderr, flush=True)
            rows += sweep(variable, given.base, given.factors, given.dtype, given.repeats, effort)
        print("against streams", file=sys.stderr, flush=True)
        rows.append(streams(sorted(set(given.streams)), given.base, given.dtype, given.repeats, effort))
    if given.json:
        base = {**given.base._asdict(), "dtype": given.dtype, "threads": given.threads}
        print(json.dumps({"rows": rows, "base": base, "machine": machine()}, allow_nan=False))
        return
    _print(rows)


if __name__ == "__main__":
    main()
