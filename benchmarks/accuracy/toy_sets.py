"""Fits of small data sets: how far noise turns the plane of two components.

The sets are scikit-learn's for classification, with a few hundred records each. Their own ranges take the
place of public bounds, which favours the private fit and would not be private.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from streaming_pca import DoubtfulResultWarning, PrivatePCA

__all__ = ["EPSILONS", "FITS", "LOST", "TOY_SETS", "Row", "measure", "rows", "table"]

Matrix = NDArray[np.float64]

EPSILONS = (1.0, 4.0, 16.0)
FITS = 200
"""Fits of each set at each epsilon."""
LOST = 30.0
"""Degrees from the exact plane beyond which a second component counts as lost."""


def _loader(name: str) -> Callable[[], Matrix]:
    def load() -> Matrix:
        datasets: Any = __import__("sklearn.datasets", fromlist=["datasets"])
        return np.asarray(getattr(datasets, f"load_{name}")().data, dtype=np.float64)

    return load


TOY_SETS: dict[str, Callable[[], Matrix]] = {
    name: _loader(name) for name in ("iris", "wine", "breast_cancer", "digits")
}


@dataclass(frozen=True)
class Row:
    """Angles of one set in one choice of units.

    Attributes
    ----------
    second : float
        Share of the total variance that the exact second component explains.
    angles : dict
        Degrees between the exact plane and each fit's, by epsilon.
    doubtful : dict
        Number of fits with a warning, by epsilon.
    """

    name: str
    units: str
    shape: tuple[int, int]
    second: float
    angles: dict[float, list[float]]
    doubtful: dict[float, int]


def measure(name: str, scaled: bool, epsilons: tuple[float, ...] = EPSILONS, fits: int = FITS) -> Row:
    """Fit a set at each epsilon, if ``scaled`` with each range mapped to [-1, 1]."""
    records = TOY_SETS[name]()
    lower, upper = records.min(axis=0), records.max(axis=0)
    # Some pixels of the digits are always 0.
    upper = np.where(upper > lower, upper, lower + 1)
    if scaled:
        records = (2 * records - lower - upper) / (upper - lower)
        lower, upper = -np.ones_like(lower), np.ones_like(upper)
    values, vectors = np.linalg.eigh(np.cov(records.T))
    exact = vectors[:, :-3:-1]
    angles: dict[float, list[float]] = {}
    doubtful: dict[float, int] = {}
    for epsilon in epsilons:
        angles[epsilon], doubtful[epsilon] = [], 0
        for _ in range(fits):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DoubtfulResultWarning)
                pca = PrivatePCA(n_components=2, epsilon=epsilon, bounds=(lower, upper)).fit(records)
            angle = subspace_angles(pca.components_.T, exact)[0]
            angles[epsilon].append(float(np.degrees(angle)))
            doubtful[epsilon] += bool(pca.doubts_)
    units = "scaled by bounds" if scaled else "own"
    return Row(name, units, records.shape, float(values[-2] / values.sum()), angles, doubtful)


def rows() -> Iterator[Row]:
    """Measure all sets in both units."""
    for name in TOY_SETS:
        for scaled in (True, False):
            yield measure(name, scaled)


def table(measured: list[Row]) -> str:
    """Write a table: median angle, fits that lost the second component, and warnings at the first epsilon."""
    epsilons = list(measured[0].angles)
    head = ["data set", "records x features", "units", "second component"]
    head += [*(f"epsilon {epsilon:g}" for epsilon in epsilons), "warned"]
    lines = [_line(head), _line(["---"] * 4 + ["--:"] * (len(epsilons) + 1))]
    for row in measured:
        cells = [row.name.replace("_", " "), f"{row.shape[0]:,} x {row.shape[1]}", row.units]
        cells.append(f"{100 * row.second:.2g}%")
        cells += [
            f"{np.median(angles):.0f}° ({sum(a > LOST for a in angles)} of {len(angles)})"
            for angles in row.angles.values()
        ]
        first = epsilons[0]
        cells.append(f"{row.doubtful[first]} of {len(row.angles[first])}")
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
