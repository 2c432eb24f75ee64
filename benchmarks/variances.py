"""Stated errors, bounds and doubts, compared with the truth, on sets that set no constant.

The true variance is the variance of the same records along the released component, or their total variance;
it is covered if it lies within two errors. The true angle is the largest angle to the same records' leading
directions; if it exceeds its bound, the fit should have a doubt.
"""

from __future__ import annotations

import json
import math
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
from streaming_pca.linalg.subspace import principal_angles, subspace_error

__all__ = ["SETS", "Cell", "Stream", "cover", "follow", "main"]

Matrix = NDArray[np.float64]
Make = Callable[[np.random.Generator], Matrix]

_ROUTES: dict[str, dict[str, Any]] = {"chosen": {}, "block": {"route": "block"}}
_EPSILONS = (0.3, 1.0, 4.0, 10_000.0)
_NOISELESS = 1e8
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
"""Data sets by name, which includes the number of records."""


@dataclass(frozen=True)
class Cell:
    """All fits of a set with one epsilon and route.

    Attributes
    ----------
    covered : float
        Share of variances and totals within two of their errors.
    relative, stated : float
        Median error, and median stated error, divided by the truth.
    beyond, silent : int
        Number of fits whose angle exceeds its bound, and of such fits without a doubt.
    in_doubt : int
        Number of fits within a nontrivial bound that have a doubt.
    bounded : int
        Number of fits with a nontrivial bound, below pi/2.
    doubts : list of str
        Doubts of any fit.
    angle, without_noise : float
        Median angle to the records' leading directions, and its part without noise: the angle for the exact
        moment, clipped and centred as the fit chose, or for steps without noise on the block route.
    """

    set: str
    route: str
    epsilon: float
    covered: float
    relative: float
    stated: float
    beyond: int
    silent: int
    in_doubt: int
    bounded: int
    doubts: list[str]
    angle: float
    without_noise: float

    @property
    def cause(self) -> str:
        """Largest part of the angle, in words."""
        if self.without_noise < self.angle / 2:
            return "noise"
        return "clips and centre" if self.route == "chosen" else "steps and clips"


def _leading(covariance: Matrix, k: int) -> Matrix:
    return np.asarray(np.linalg.eigh(covariance)[1][:, ::-1][:, :k].T)


def _without_noise(pca: PrivatePCA, x: Matrix, k: int) -> Matrix:
    """Return the components that result from a fit's choices without noise."""
    estimate = pca._state.covariance
    if not estimate.used:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(PrivatePCA(k, epsilon=_NOISELESS, options=_ROUTES["block"]).fit(x).components_)
    away = x - estimate.centre
    seen = away if estimate.turn is None else away @ estimate.turn
    kept = np.minimum(1.0, estimate.radii[estimate.chosen] / np.maximum(np.sum(seen * seen, axis=1), 1e-300))
    offset = getattr(pca, "mean_", estimate.centre) - estimate.centre
    return _leading(away.T @ (away * kept[:, None]) / len(x) - np.outer(offset, offset), k)


def cover(name: str, route: str, epsilon: float, fits: int, k: int = 2) -> Cell:
    """Fit a set several times, each with new records and noise."""
    apart, relative, stated = [], [], []
    doubts: set[str] = set()
    beyond, silent, in_doubt, bounded = 0, 0, 0, 0
    angles, exact = [], []
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
        with np.errstate(divide="ignore", over="ignore"):
            # With 500 records at epsilon 0.3, one fit in forty finds only zeros, with errors of 0.
            apart.append(np.abs(found - truth) / errors)
        relative.append(np.abs(found - truth) / truth)
        stated.append(errors / truth)
        doubts |= {str(doubt) for doubt in pca.doubts_}
        leading = _leading(covariance, k)
        angles.append(principal_angles(pca.components_, leading)[0])
        exact.append(principal_angles(_without_noise(pca, x, k), leading)[0])
        if angles[-1] > getattr(pca, "angle_bound_", math.pi / 2):
            beyond, silent = beyond + 1, silent + (not pca.doubts_)
        elif getattr(pca, "angle_bound_", math.pi / 2) < math.pi / 2:
            in_doubt += bool(pca.doubts_)
        bounded += getattr(pca, "angle_bound_", math.pi / 2) < math.pi / 2
    share = float(np.mean(np.array(apart) <= _ERRORS))
    off, claimed = float(np.median(relative)), float(np.median(stated))
    counts = (beyond, silent, in_doubt, bounded)
    found_angles = (float(np.median(angles)), float(np.median(exact)))
    return Cell(name, route, epsilon, share, off, claimed, *counts, sorted(doubts), *found_angles)


@dataclass(frozen=True)
class Stream:
    """Errors |U U^T - V V^T|_F of a stream's releases, relative to its distribution.

    Attributes
    ----------
    worst : float
        Largest error after the first fifth of the batches.
    radii : int
        Number of different clip radii after the first fifth: 1 for a stationary stream.
    covered : float
        Share of variances, after the first fifth, within two errors of the variance of all records so far.
    """

    seed: int
    batches: int
    end: float
    worst: float
    radii: int
    covered: float


def follow(seed: int, batches: int, k: int = 2, dim: int = 60, size: int = 2000) -> Stream:
    """Learn a stream of normal records with a decreasing spectrum, epsilon 1."""
    rng = np.random.default_rng([seed, 12])
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    deviations = np.concatenate([[5.0, 4.0, 3.0], 0.9 ** np.arange(dim - 3)])
    pca, errors, radii = PrivatePCA(k, random_state=seed), [], []
    total, covered = np.zeros((dim, dim)), []
    for batch in range(1, batches + 1):
        x = rng.normal(size=(size, dim)) * deviations @ basis
        total += x.T @ x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca.partial_fit(x)
        errors.append(subspace_error(pca.components_, basis[:k]))
        radii.append(int(pca._state.covariance.chosen))
        along = np.einsum("id,de,ie->i", pca.components_, total / (size * batch), pca.components_)
        covered.append(np.abs(pca.explained_variance_ - along) <= _ERRORS * pca.explained_variance_error_)
    later = slice(batches // 5, None)
    share = float(np.mean(covered[later]))
    return Stream(seed, batches, errors[-1], max(errors[later]), len(set(radii[later])), share)


def _line(cell: Cell) -> str:
    doubts = ", ".join(cell.doubts) or "no doubt"
    silent = f", {cell.silent} of {cell.beyond} beyond their bound without a doubt" if cell.beyond else ""
    return (
        f"{cell.set:20s} {cell.route:7s} epsilon {cell.epsilon:<7g} within two errors {cell.covered:4.0%}, "
        f"off by {cell.relative:.2%}, stated {cell.stated:.2%}{silent} ({doubts})"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = Parser(
        prog="python -m benchmarks.variances",
        description=__doc__,
        epilog="example: python -m benchmarks.variances --set 'normal-8000' --fits 10",
    )
    parser.add_argument("--set", action="append", metavar="NAME", help="only this set; may be repeated")
    parser.add_argument("--fits", type=whole(1), default=3, metavar="N", help="fits of each cell; default 3")
    parser.add_argument(
        "--streams", type=whole(0), default=0, metavar="N", help="number of additional streams"
    )
    parser.add_argument(
        "--batches", type=whole(5), default=100, metavar="T", help="batches of a stream; default 100"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON per cell, and a summary")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.set or ()) - set(SETS)
    if unknown:
        parser.error(f"no set {sorted(unknown)[0]!r}: choose from {', '.join(SETS)}")
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
    worst = sorted(cells, key=lambda cell: (-cell.silent, cell.covered))[:_WORST]
    beyond, silent, in_doubt, bounded = (
        sum(getattr(cell, name) for cell in cells) for name in ("beyond", "silent", "in_doubt", "bounded")
    )
    if parsed.json:
        counts = {"beyond": beyond, "silent": silent, "in_doubt": in_doubt, "bounded": bounded}
        print(json.dumps({"covered": share, "relative": off, "cells": len(cells), **counts}))
    else:
        print(f"\nall {len(cells)} cells: within two errors {share:.0%}, median error {off:.2%}")
        print(f"of {bounded} angle bounds {beyond} fail, {silent} without a doubt; {in_doubt} hold in doubt")
        print("worst:")
        for cell in worst:
            print(
                f"{_line(cell)}: angle {cell.angle:.2g}, without noise {cell.without_noise:.2g}: {cell.cause}"
            )
    for seed in range(parsed.streams):
        stream = follow(seed, parsed.batches)
        print(json.dumps(asdict(stream)) if parsed.json else stream, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
