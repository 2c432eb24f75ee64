"""Speed of exact clipped sums, compared with float32 products and scikit-learn's IncrementalPCA."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import covariance_update, mean_kernels
from benchmarks.timing.command import Parser, keeping_message, whole
from benchmarks.timing.conditions import in_blas_threads, machine, with_threads
from benchmarks.timing.instruction_sets import INSTRUCTION_SETS, NATIVE, Lacking, environment
from benchmarks.timing.timing import QUICK, THOROUGH, Effort, measured, medians
from benchmarks.timing.workload import DTYPES, Shape, Workload, update

__all__ = ["SHAPES", "BitsDiffer", "main", "measure"]

SHAPES = (Shape(4096, 256, 8), Shape(8192, 1024, 16), Shape(2048, 4096, 32))

MOST_FLOORS = 4.0
"""Target of ``--check`` for both sums, in units of the floor: 0.8 and 1 when this was set."""
LEAST_SPEEDUP = 40.0
"""Target of ``--check`` for the speedup over IncrementalPCA: above 200 when this was set."""

_GROUPS = ("block", "covariance", "mean")

_COLUMNS = (
    ("sum", "ratio_to_floor"),
    ("centred", "centred_ratio_to_floor"),
    ("update", "update_ratio_to_floor"),
    ("default", "default_update_ratio_to_floor"),
    ("orth.", "orthonormalise_ratio_to_floor"),
)

_NOTES = """\
Times the floor: Y = X Q and Y'X by BLAS in float32 with as many threads. sum, centred: the exact clipped
sum without a centre, and about one. update, default: a whole update of private-oja and of the default's
block route, noise included. orth.: the orthonormalisation in it. x IPCA: sum and orthonormalisation
against a step of IncrementalPCA."""


class BitsDiffer(Exception):
    """A sum depends on the number of threads."""


def measure(
    shape: Shape, dtype: str, threads: Sequence[int], repeats: int | None, effort: Effort
) -> list[dict[str, Any]]:
    """Measure and return a row for each number of threads.

    Raises
    ------
    BitsDiffer
        Unless every sum is the same to the last bit as with one thread.
    """
    work = Workload(shape, dtype)
    with with_threads(1):
        expected = _totals(work)
    rows = []
    for count in threads:
        with with_threads(count):
            _compare(expected, _totals(work), f"{shape}, {dtype}, {count} threads")
            floor = in_blas_threads(work.floor(), count)
            contenders = {
                "floor": floor,
                **work.sums,
                "orthonormalise": work.orthonormalisation(),
                "step": work.step(),
                "incremental_pca": in_blas_threads(work.incremental_pca(), count),
                "oja_update": update(work.oja(), work.batch),
                "default_update": update(work.default(), work.batch),
            }
            times = measured(contenders, repeats, effort)
        rows.append(_row(shape, dtype, count, times))
    return rows


def _totals(work: Workload) -> dict[str, NDArray[np.int64]]:
    return {name: call().total for name, call in work.sums.items()}


def _compare(expected: dict[str, NDArray[np.int64]], found: dict[str, NDArray[np.int64]], where: str) -> None:
    for name, total in found.items():
        if not np.array_equal(total, expected[name]):
            raise BitsDiffer(f"{where}: the {name} differs from the sum of one thread")


def _row(shape: Shape, dtype: str, threads: int, times: dict[str, list[float]]) -> dict[str, Any]:
    found = medians(times)
    floor = found["floor"]
    return {
        **shape._asdict(),
        "dtype": dtype,
        "threads": threads,
        "ratio_to_floor": found["sum"] / floor,
        "speedup_vs_incremental_pca": found["incremental_pca"] / found["step"],
        "centred_ratio_to_floor": found["centred"] / floor,
        "update_of": "private-oja",
        "update_ratio_to_floor": found["oja_update"] / floor,
        "default_update_ratio_to_floor": found["default_update"] / floor,
        "orthonormalise_ratio_to_floor": found["orthonormalise"] / floor,
        "rows_per_second": shape.m / found["sum"],
        "update_rows_per_second": shape.m / found["oja_update"],
        "default_update_rows_per_second": shape.m / found["default_update"],
        "incremental_pca_rows_per_second": shape.m / found["incremental_pca"],
        "bits_of_one_thread": True,
        "seconds": found,
        # On a shared machine, the fastest of a few turns is more reliable than their median.
        "fastest_seconds": {name: min(seconds) for name, seconds in times.items()},
        "turns": {name: len(seconds) for name, seconds in times.items()},
    }


def missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each target that a row misses."""
    lines = []
    for row in rows:
        where = f"{Shape(row['m'], row['d'], row['k'])}, {row['dtype']}, {row['threads']} threads"
        for name, key in (("sum", "ratio_to_floor"), ("centred sum", "centred_ratio_to_floor")):
            if row[key] > MOST_FLOORS:
                lines.append(f"{where}: the {name} takes {row[key]:.2f} floors, at most {MOST_FLOORS:g}")
        if (speedup := row["speedup_vs_incremental_pca"]) < LEAST_SPEEDUP:
            lines.append(
                f"{where}: a step is {speedup:.1f} times as fast as IncrementalPCA's, "
                f"at least {LEAST_SPEEDUP:g}"
            )
    return lines


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    heads = [*(head for head, _ in _COLUMNS), "x IPCA", "rows/s"]
    print(f"{'m x d x k':<15}{'dtype':<9}{'threads':<7}" + "".join(f"{head:>9}" for head in heads))
    for row in rows:
        shape = Shape(row["m"], row["d"], row["k"])
        cells = [f"{row[key]:.3g}" for _, key in _COLUMNS]
        cells += [f"{row['speedup_vs_incremental_pca']:.3g}", f"{row['rows_per_second']:,.0f}"]
        print(f"{shape!s:<15}{row['dtype']:<9}{row['threads']:<7}" + "".join(f"{cell:>9}" for cell in cells))
    print(_NOTES)


def _print_covariances(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        shape = Shape(row["m"], row["d"], row["k"])
        print(
            f"update of adaptive by its covariance, {shape}, {row['threads']} threads: "
            f"{row['update_ratio_to_two_products']:.2f} times X V and V'X'X in float32, V a square matrix; "
            f"{row['update_ratio_to_gram']:.2f} times X'X in float64; {row['rows_per_second']:,.0f} rows/s"
        )


def _print_means(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    print(f"{'ns an element':<16}{'ratio':>10}{'compiled':>10}{'numpy':>10}")
    for row in rows:
        print(f"{row['kernel']:<16}{row['ratio']:>10.1f}{row['compiled_ns']:>10.2f}{row['numpy_ns']:>10.2f}")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.kernels",
        description=f"{__doc__} Medians of calls that take turns in one process; some minutes for all.",
        epilog="examples: python -m benchmarks.kernels --json > kernels.json; "
        "python -m benchmarks.kernels --quick --shapes 8192x1024x16 --threads 1; "
        "python -m benchmarks.kernels --group mean; "
        "python -m benchmarks.kernels --cpu avx2 --group block --dtypes float32 --json",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")
    parser.add_argument(
        "--group", choices=_GROUPS, nargs="+", default=list(_GROUPS),
        help="the sums of A Q; a whole update of the default on its covariance route; kernels of "
        "private means compared with numpy; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", type=keeping_message(Shape.parse), nargs="+", default=list(SHAPES), metavar="MxDxK",
        help=f"records, features and rank; default: {' '.join(map(str, SHAPES))}",
    )  # fmt: skip
    parser.add_argument(
        "--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="types of the records"
    )
    parser.add_argument(
        "--threads", type=whole(1), nargs="+", default=[1, 2], metavar="N", help="default: 1 2"
    )
    parser.add_argument(
        "--repeats", type=whole(1), metavar="R",
        help="repetitions of each contender; default: for half a second, at least 7, or 3 if slow",
    )  # fmt: skip
    parser.add_argument(
        "--cpu", choices=(*INSTRUCTION_SETS, NATIVE), default=NATIVE,
        help="instructions for the kernels and for BLAS alike, to measure what another processor would "
        "do; default: native, what each chooses on this one",
    )  # fmt: skip
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"end with status 1 if a sum takes more than {MOST_FLOORS:g} floors, or a step is less than "
        f"{LEAST_SPEEDUP:g} times as fast as IncrementalPCA's; for shapes of some thousand records",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: less reliable")
    parser.add_argument(
        "--records",
        type=whole(1),
        default=20_000,
        metavar="N",
        help="records of --group mean; default: 20000",
    )
    parser.add_argument(
        "--coordinates", type=whole(1), default=1000, metavar="N", help="d k, for --group mean; default: 1000"
    )
    return parser


def _hold_to(cpu: str, arguments: Sequence[str]) -> None:
    """Restart with the environment for ``cpu`` if needed: numba and BLAS have already read theirs."""
    expected = environment(cpu)
    if any(os.environ.get(name) != value for name, value in expected.items()):
        command = [sys.executable, "-m", "benchmarks.kernels", *arguments]
        os.execve(sys.executable, command, {**os.environ, **expected})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print tables or JSON."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        _hold_to(given.cpu, sys.argv[1:] if arguments is None else arguments)
    except Lacking as error:
        parser.error(f"--cpu {given.cpu}: {error}")
    effort = QUICK if given.quick else THOROUGH
    rows: list[dict[str, Any]] = []
    covariances: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    if "block" in given.group:
        for shape in given.shapes:
            for dtype in given.dtypes:
                print(f"{shape}, {dtype}", file=sys.stderr, flush=True)
                try:
                    rows += measure(shape, dtype, given.threads, given.repeats, effort)
                except BitsDiffer as difference:
                    parser.error(str(difference))
    if "covariance" in given.group:
        print(f"covariance, {covariance_update.SHAPE}", file=sys.stderr, flush=True)
        covariances = [
            covariance_update.measure(covariance_update.SHAPE, count, given.repeats, effort)
            for count in given.threads
        ]
    if "mean" in given.group:
        print(f"mean, {given.records}x{given.coordinates}", file=sys.stderr, flush=True)
        with with_threads(1):
            means = mean_kernels.measure(given.records, given.coordinates, given.repeats, effort)
    if given.json:
        found = {"rows": rows, "covariance": covariances, "mean": means}
        print(json.dumps({**found, "machine": {"cpu": given.cpu, **machine()}}, allow_nan=False))
    else:
        _print_rows(rows)
        _print_covariances(covariances)
        _print_means(means)
    if given.check and (lines := missed(rows)):
        print("\n".join(lines), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
