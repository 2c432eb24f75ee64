"""Speed of the compiled kernels of private means, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.timing import Call, Effort, measured, medians
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.centre import MeanNorms, clipped_mean_sum
from streaming_pca.kernels.coordinates import COORDINATE_RADIUS, bin_coordinates, count_bins, sum_clamped
from streaming_pca.kernels.record_means import MEAN_RADIUS
from streaming_pca.kernels.threads import use_threads

__all__ = ["KERNELS", "measure"]

_RADIUS, _WIDTH = 3.0, 0.5


def _clamp(values: NDArray[np.float64]) -> tuple[Call, Call]:
    centre, total = np.zeros(values.shape[1]), np.zeros(values.shape[1], dtype=np.int64)

    def by_numpy() -> object:
        units = np.clip(values / _RADIUS, -1, 1) * COORDINATE_RADIUS
        return np.rint(units).astype(np.int64).sum(axis=0)

    return lambda: sum_clamped(values, centre, _RADIUS, total), by_numpy


def _histogram(values: NDArray[np.float64]) -> tuple[Call, Call]:
    bins = np.empty(values.shape[::-1], dtype=np.int32)

    def compiled() -> object:
        bin_coordinates(values, _WIDTH, bins)
        return count_bins(bins)

    def by_numpy() -> object:
        places = np.floor(values / _WIDTH).astype(np.int64)
        places -= places.min()
        return [np.bincount(column) for column in places.T]

    return compiled, by_numpy


def _norms_of_records(values: NDArray[np.float64]) -> tuple[Call, Call]:
    batch, preprocessing = _records(values)

    def by_numpy() -> object:
        return np.sqrt(np.einsum("ij,ij->i", values, values))

    return lambda: batch.map(MeanNorms(preprocessing)), by_numpy


def _sum_of_records(values: NDArray[np.float64]) -> tuple[Call, Call]:
    batch, preprocessing = _records(values)

    def by_numpy() -> object:
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        units = values * (np.minimum(_RADIUS / norms, 1) * MEAN_RADIUS / _RADIUS)[:, None]
        return np.rint(units).astype(np.int64).sum(axis=0)

    return lambda: clipped_mean_sum(batch, preprocessing, _RADIUS), by_numpy


def _records(values: NDArray[np.float64]) -> tuple[ArrayBatch, Preprocessing]:
    dim = values.shape[1]
    return ArrayBatch.of_vectors(values), Preprocessing(dim=dim, centering=np.zeros(dim))


KERNELS: dict[str, Callable[[NDArray[np.float64]], tuple[Call, Call]]] = {
    "clamped sum": _clamp,
    "histogram": _histogram,
    "norms of records": _norms_of_records,
    "sum of records": _sum_of_records,
}
"""Factories of a kernel's call and of the same call in numpy, for values (m, n)."""


def measure(records: int, coordinates: int, repeats: int | None, effort: Effort) -> list[dict[str, Any]]:
    """Return each kernel's speed-up over numpy, and median nanoseconds per element of both."""
    values = np.random.default_rng(0).standard_normal((records, coordinates))
    # One thread, for a fair comparison: numpy's operations have one thread.
    use_threads(1)
    rows = []
    for name, kernel in KERNELS.items():
        pair = dict(zip(("compiled", "numpy"), kernel(values), strict=True))
        found = medians(measured(pair, repeats, effort))
        compiled, by_numpy = (seconds / values.size * 1e9 for seconds in found.values())
        rows.append(
            {"kernel": name, "ratio": by_numpy / compiled, "compiled_ns": compiled, "numpy_ns": by_numpy}
        )
    return rows
