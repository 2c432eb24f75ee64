"""Nanoseconds an element of the compiled kernels of the adaptive mean, beside numpy doing the same."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.images import COORDINATE_RADIUS, bin_coordinates, sum_clamped
from streaming_pca.privacy.mechanisms.modes import count_bins

__all__ = ["main", "measure"]

_RADIUS, _WIDTH = 3.0, 0.5


def _clamp(values: NDArray[np.float64]) -> tuple[Callable[[], object], Callable[[], object]]:
    centre, total = np.zeros(values.shape[1]), np.zeros(values.shape[1], dtype=np.int64)

    def by_numpy() -> object:
        units = np.clip(values / _RADIUS, -1, 1) * COORDINATE_RADIUS
        return np.rint(units).astype(np.int64).sum(axis=0)

    return lambda: sum_clamped(values, centre, _RADIUS, total), by_numpy


def _histogram(values: NDArray[np.float64]) -> tuple[Callable[[], object], Callable[[], object]]:
    bins = np.empty(values.shape[::-1], dtype=np.int32)

    def compiled() -> object:
        bin_coordinates(values, _WIDTH, bins)
        return count_bins(bins)

    def by_numpy() -> object:
        places = np.floor(values / _WIDTH).astype(np.int64)
        places -= places.min()
        return [np.bincount(column) for column in places.T]

    return compiled, by_numpy


KERNELS = {"clamped sum": _clamp, "histogram": _histogram}


def measure(records: int, coordinates: int, repeats: int) -> list[dict[str, Any]]:
    """Median nanoseconds an element of each kernel and of numpy, in turns, and their ratio."""
    values = np.random.default_rng(0).standard_normal((records, coordinates))
    rows = []
    for name, kernel in KERNELS.items():
        pair = kernel(values)
        times: list[list[float]] = [[], []]
        # The first time of each compiles, or fills caches.
        for _ in range(repeats + 1):
            for one, seconds in zip(pair, times, strict=True):
                start = time.perf_counter()
                one()
                seconds.append(time.perf_counter() - start)
        compiled, by_numpy = (statistics.median(s[1:]) / values.size * 1e9 for s in times)
        rows.append(
            {"kernel": name, "compiled_ns": compiled, "numpy_ns": by_numpy, "ratio": by_numpy / compiled}
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--coordinates", type=int, default=1000, help="d k")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args(arguments)
    for name in ("records", "coordinates", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1")
    rows = measure(given.records, given.coordinates, given.repeats)
    if given.json:
        print(json.dumps({"records": given.records, "coordinates": given.coordinates, "results": rows}))
        return
    print(f"{'ns an element':<16}{'compiled':>10}{'numpy':>10}{'ratio':>10}")
    for row in rows:
        print(f"{row['kernel']:<16}{row['compiled_ns']:>10.2f}{row['numpy_ns']:>10.2f}{row['ratio']:>10.1f}")


if __name__ == "__main__":
    main()
