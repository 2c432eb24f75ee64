"""Explained variances beside the truth, in standard errors, on sets that set no constant.

The truth is the variance of the same records along the released components, and their total. A fit counts
as covered where it lies within two of its errors.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.command import Parser, whole
from streaming_pca import PrivatePCA

__all__ = ["SETS", "Cell", "cover", "main"]

Matrix = NDArray[np.float64]
Make = Callable[[np.random.Generator], Matrix]

_ROUTES: dict[str, dict[str, Any]] = {"chosen": {}, "block": {"route": "block"}}
_EPSILONS = (0.3, 1.0, 4.0, 10_000.0)
_WORST = 10
_ERRORS = 2.0


def _turned(x: Matrix, rng: np.random.Generator) -> Matrix:
    return np.asarray(x @ np.linalg.qr(rng.normal(size=(x.shape[1], x.shape[1])))[0])


def _spiked(rng: np.random.Generator) -> Matrix:
    basis = np.linalg.qr(rng.normal(size=(50, 3)))[0]
    return np.asarray(rng.normal(size=(100_000, 50)) + rng.normal(size=(100_000, 3)) * [4, 3, 2] @ basis.T)


def _activity(rng: np.random.Generator) -> Matrix:
    users = rng.pareto(3.5, (50_000, 1)) + 0.2
    habits = rng.dirichlet(np.full(20, 0.2), 5)[rng.integers(0, 5, 50_000)]
    return np.asarray(rng.poisson(8 * users * habits), dtype=np.float64)


def _mixed_units(rng: np.random.Generator) -> Matrix:
    columns = (
        np.exp(rng.normal(1.2, 0.4, 20_000)),
        rng.uniform(1, 52, 20_000),
        np.exp(rng.normal(7, 0.7, 20_000)),
        rng.normal(-119, 2, 20_000),
        rng.poisson(3, 20_000).astype(np.float64),
    )
    return np.column_stack(columns)


SETS: dict[str, Make] = {
    "normal-500": lambda rng: rng.normal(size=(500, 6)) * [3, 2, 1, 1, 0.5, 0.5],
    "normal-8000": lambda rng: rng.normal(size=(8000, 8)) * [5, 3, 2, 1, 1, 1, 1, 1],
    "laplace-15000": lambda rng: _turned(rng.laplace(size=(15_000, 12)) * 0.75 ** np.arange(12), rng),
    "student-40000": lambda rng: _turned(rng.standard_t(5, (40_000, 16)) * np.geomspace(6, 0.5, 16), rng),
    "gamma-40000": lambda rng: rng.gamma(0.7, 1.0, (40_000, 15)) * np.geomspace(5, 0.5, 15),
    "beta-100000": lambda rng: rng.beta(0.5, 0.5, (100_000, 30)) * np.geomspace(3, 0.3, 30),
    "power-50000": lambda rng: _turned(rng.normal(size=(50_000, 40)) / np.arange(1, 41) ** 0.7, rng) + 3,
    "clusters-30000": lambda rng: (
        rng.normal(size=(6, 20))[rng.integers(0, 6, 30_000)] * 2 + 0.5 * rng.normal(size=(30_000, 20))
    ),
    "bernoulli-20000": lambda rng: (rng.random((20_000, 40)) < 0.8 * rng.random(40)).astype(np.float64),
    "spiked-100000": _spiked,
    "activity-50000": _activity,
    "mixed-units-20000": _mixed_units,
}
"""Sets by name, each with its number of records."""


@dataclass(frozen=True)
class Cell:
    """All fits of a set with one epsilon and route.

    Attributes
    ----------
    covered : float
        Share of variances and totals within two of their errors.
    relative, stated : float
        Median error, and median stated error, over the truth.
    doubts : list of str
        Of any fit.
    """

    set: str
    route: str
    epsilon: float
    covered: float
    relative: float
    stated: float
    doubts: list[str]


def cover(name: str, route: str, epsilon: float, fits: int, k: int = 2) -> Cell:
    """Fit a set several times, each with new records and noise."""
    apart, relative, stated = [], [], []
    doubts: set[str] = set()
    for seed in range(fits):
        x = SETS[name](np.random.default_rng([seed, 11]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca = PrivatePCA(k, epsilon=epsilon, options=_ROUTES[route]).fit(x)
        covariance = np.cov(x.T, bias=True)
        along = np.einsum("id,de,ie->i", pca.components_, covariance, pca.components_)
        truth = np.append(along, np.trace(covariance))
        found = np.append(pca.explained_variance_, pca.total_variance_)
        errors = np.append(pca.explained_variance_error_, pca.total_variance_error_)
        apart.append(np.abs(found - truth) / errors)
        relative.append(np.abs(found - truth) / truth)
        stated.append(errors / truth)
        doubts |= {str(doubt) for doubt in pca.doubts_}
    share = float(np.mean(np.array(apart) <= _ERRORS))
    return Cell(
        name, route, epsilon, share, float(np.median(relative)), float(np.median(stated)), sorted(doubts)
    )


def _line(cell: Cell) -> str:
    doubts = ", ".join(cell.doubts) or "no doubt"
    return (
        f"{cell.set:20s} {cell.route:7s} epsilon {cell.epsilon:<7g} within two errors {cell.covered:4.0%}, "
        f"off by {cell.relative:.2%}, stated {cell.stated:.2%} ({doubts})"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(
        prog="python -m benchmarks.variances",
        description=__doc__,
        epilog="example: python -m benchmarks.variances --set 'normal-8000' --fits 10",
    )
    parser.add_argument("--set", action="append", metavar="NAME", help="this one only; may be repeated")
    parser.add_argument("--fits", type=whole(1), default=3, metavar="N", help="of each cell; default 3")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a cell, and a summary")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.set or ()) - set(SETS)
    if unknown:
        parser.error(f"no set {sorted(unknown)[0]!r}: there are {', '.join(SETS)}")
    cells = []
    for name in parsed.set or SETS:
        for route in _ROUTES:
            for epsilon in _EPSILONS:
                began = time.perf_counter()
                cells.append(cover(name, route, epsilon, parsed.fits))
                print(json.dumps(asdict(cells[-1])) if parsed.json else _line(cells[-1]), flush=True)
                print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr)
    share = float(np.mean([cell.covered for cell in cells]))
    off = float(np.median([cell.relative for cell in cells]))
    worst = sorted(cells, key=lambda cell: cell.covered)[:_WORST]
    if parsed.json:
        print(json.dumps({"covered": share, "relative": off, "cells": len(cells)}))
    else:
        print(f"\nall {len(cells)} cells: within two errors {share:.0%}, median error {off:.2%}\nworst:")
        print("\n".join(_line(cell) for cell in worst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
