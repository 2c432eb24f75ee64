"""Nanoseconds per value of each mechanism, and of Gaussian noise compared with OpenDP."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np

from benchmarks.timing.conditions import machine
from benchmarks.timing.timing import measured, medians
from streaming_pca.privacy import mechanisms

__all__ = ["MECHANISMS", "beside_opendp", "main", "measure"]

SIZES = (1_600, 16_000, 130_000)
"""Values d*k of an update: d = 100, 1,000 and 8,125 at k = 16."""

SIGMA = 2.0**40

COMPARED = 131_072
"""Number of Gaussian values per call in the comparison with OpenDP."""


def _vector(n: int) -> Callable[[], object]:
    total = np.arange(n, dtype=np.int64)
    return lambda: mechanisms.gaussian_on_vector(total, SIGMA)


def _symmetric_space(n: int) -> Callable[[], object]:
    k = 16 if n % 16 == 0 and n >= 256 else 1
    total = np.arange(n, dtype=np.int64).reshape(n // k, k)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((n // k, k)))[0]
    return lambda: mechanisms.gaussian_on_symmetric_space(total, basis, SIGMA)


def _symmetric(n: int) -> Callable[[], object]:
    d = _side(n)
    total = np.zeros((d, d), dtype=np.int64)
    return lambda: mechanisms.gaussian_on_symmetric(total, SIGMA)


def _side(n: int) -> int:
    """Return the side of the largest symmetric matrix with at most n free values."""
    return int((np.sqrt(8 * n + 1) - 1) / 2)


def _laplace(n: int) -> Callable[[], object]:
    total = np.arange(n, dtype=np.int64)
    return lambda: mechanisms.laplace_on_vector(total, 100.0)


def _stability(n: int) -> Callable[[], object]:
    keys = list(range(n))
    return lambda: mechanisms.stability_histogram(keys, 1.0, 1e-6)


def _threshold(n: int) -> Callable[[], object]:
    def ask() -> None:
        # The threshold is so high that no query exceeds it.
        alarm = mechanisms.AboveThreshold(10**9, 1.0)
        for _ in range(n):
            alarm.ask(0)

    return ask


MECHANISMS: dict[str, tuple[str, Callable[[int], Callable[[], object]]]] = {
    "gaussian_on_vector": ("integers", _vector),
    "gaussian_on_symmetric_space": ("integers", _symmetric_space),
    "gaussian_on_symmetric": ("integers of the triangle", _symmetric),
    "laplace_on_vector": ("integers", _laplace),
    "stability_histogram": ("keys, one record each", _stability),
    "AboveThreshold": ("queries", _threshold),
}
"""Description of a value, and factory of a call with n values."""


def measure(name: str, n: int, repeats: int) -> float:
    """Return the median nanoseconds per value of a warm call with n values."""
    call = MECHANISMS[name][1](n)
    values = _side(n) * (_side(n) + 1) // 2 if name == "gaussian_on_symmetric" else n
    # Warm up with a small call: the first one builds OpenDP's measurement.
    MECHANISMS[name][1](min(n, 16))()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / values * 1e9


@cache
def _opendp() -> Any:
    """Return OpenDP's discrete Gaussian of the same scale: equally exact, one value at a time."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=SIGMA)


def beside_opendp(n: int, repeats: int) -> dict[str, Any]:
    """Time ``gaussian_on_vector`` and OpenDP in turns, in one thread; nanoseconds per value."""
    opendp, zeros = _opendp(), [0] * n
    times = medians(measured({"ours": _vector(n), "opendp": lambda: opendp(zeros)}, repeats))
    return {
        "values": n,
        "nanoseconds_per_value": round(times["ours"] / n * 1e9, 1),
        "opendp_nanoseconds_per_value": round(times["opendp"] / n * 1e9, 1),
        "times_as_fast": round(times["opendp"] / times["ours"], 1),
    }


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(f"{self.prog}: {message}")


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all mechanisms and print a table, or JSON."""
    parser = _Parser(
        prog="python -m benchmarks.noise",
        description="Nanoseconds per value of each mechanism (median of several warm calls), and of Gaussian "
        f"noise compared with OpenDP's sampler, {COMPARED:,} values at a time.",
        epilog="example: python -m benchmarks.noise --json --sizes 1600 --repeats 3 > noise.json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--sizes", type=_positive, nargs="+", default=list(SIZES), metavar="N", help="values drawn by a call"
    )
    parser.add_argument(
        "--repeats", type=_positive, default=5, metavar="R", help="number of calls; their median is printed"
    )
    options = parser.parse_args(arguments)

    found: dict[str, dict[int, float]] = {}
    for name in MECHANISMS:
        for n in options.sizes:
            print(f"{name}, {n:,} values", file=sys.stderr, flush=True)
            found.setdefault(name, {})[n] = round(measure(name, n, options.repeats), 1)
    print(f"OpenDP's, {COMPARED:,} values", file=sys.stderr, flush=True)
    compared = beside_opendp(COMPARED, options.repeats)
    if options.json:
        rows = [
            {"mechanism": name, "values": n, "of": MECHANISMS[name][0], "nanoseconds_per_value": ns}
            for name, by_size in found.items()
            for n, ns in by_size.items()
        ]
        document = {
            "repeats": options.repeats,
            "results": rows,
            "beside_opendp": compared,
            "machine": machine(),
        }
        print(json.dumps(document, indent=2))
        return
    print(f"{'nanoseconds per value':<30}" + "".join(f"{n:>12,}" for n in options.sizes))
    for name, by_size in found.items():
        print(
            f"{name:<30}" + "".join(f"{ns:>12,.0f}" for ns in by_size.values()) + f"  {MECHANISMS[name][0]}"
        )
    print(
        f"A Gaussian value, {COMPARED:,} at a time: {compared['nanoseconds_per_value']:.0f} ns, OpenDP's "
        f"{compared['opendp_nanoseconds_per_value']:,.0f} ns: {compared['times_as_fast']:.0f} times as fast"
    )


if __name__ == "__main__":
    main()
