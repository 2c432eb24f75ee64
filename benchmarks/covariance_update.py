"""Update of the default estimator's covariance route, with noise, compared with bare products."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.timing.conditions import in_blas_threads, with_threads
from benchmarks.timing.timing import Effort, measured, medians
from benchmarks.timing.workload import Shape, Workload, update

__all__ = ["SHAPE", "measure"]

SHAPE = Shape(131_072, 256, 8)


def measure(shape: Shape, threads: int, repeats: int | None, effort: Effort) -> dict[str, Any]:
    """Time the update, and two floors with the same number of BLAS threads.

    The first is the floor of block sums for all d directions: Y = X V and Y'X in float32 with a (d, d)
    basis V. The second is X'X in float64, whose triangle the exact sums need.
    """
    work = Workload(shape, "float32")
    rows = work.rows
    basis = np.asfortranarray(np.linalg.qr(np.random.default_rng(1).standard_normal((shape.d, shape.d)))[0])
    narrow, wide = basis.astype(np.float32), rows.astype(np.float64)
    with with_threads(threads):
        contenders = {
            "update": update(work.default("covariance"), work.batch),
            "two_products": in_blas_threads(lambda: (rows @ narrow).T @ rows, threads),
            "gram": in_blas_threads(lambda: wide.T @ wide, threads),
        }
        found = medians(measured(contenders, repeats, effort))
    return {
        **shape._asdict(),
        "dtype": "float32",
        "threads": threads,
        "update_ratio_to_two_products": found["update"] / found["two_products"],
        "update_ratio_to_gram": found["update"] / found["gram"],
        "rows_per_second": shape.m / found["update"],
        "seconds": found,
    }
