"""Settings of the utility benchmark: data, and targets of the default estimator.

A setting draws its records from a seed. It adds a constant to the seed of numpy's generator, because the
library draws its initial basis only from the seed, and this basis must not coincide with the truth.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.clipped_covariance import ClippedCovariance
from benchmarks.accuracy.real_data import REAL_DATA, RealData, centred, load
from benchmarks.accuracy.synthetic_families import FAMILIES, Family
from streaming_pca.demo import flights
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs

__all__ = [
    "EPSILONS",
    "TABLE",
    "Draw",
    "Setting",
    "Target",
    "centred_setting",
    "flights_setting",
    "gaussian",
    "select",
    "slow",
    "spiked",
    "student",
]

Matrix = NDArray[np.float64]
Records = NDArray[np.float32]

EPSILONS = (0.1, 0.5, 1.0, 4.0)
"""Values of epsilon for the real sets and the synthetic families."""

_DATA_STREAM = 1
_BLOCK = 2**14
_DEGREES_OF_FREEDOM = 3


@dataclass(frozen=True)
class Draw:
    """Records of one seed.

    Attributes
    ----------
    records : (n, d) vectors or (n, k + 1, d) factors, float32
    truth : (k, d)
        Orthonormal rows of the reference subspace for errors.
    floor : (k, d)
        Exact leading subspace of these records, without privacy.
    covariance : (d, d)
        Second moment of these records; covariance if the setting centres them.
    vectors : ClippedCovariance or None
        Centred records for other methods; None for factors.
    """

    records: Records
    truth: Matrix
    floor: Matrix
    covariance: Matrix
    vectors: ClippedCovariance | None = None


@dataclass(frozen=True)
class Target:
    """Bound on the mean error: ``factor`` times another error.

    ``of`` names that error: "floor"; "route", the better of the two single routes; "random", a random
    subspace; "hindsight", the best fixed clip quantile of the better route.
    """

    factor: float
    of: Literal["floor", "route", "random", "hindsight"]

    def __str__(self) -> str:
        return f"<= {self.factor:g} x {self.of}"


@dataclass(frozen=True)
class Setting:
    """Line of the table: data, privacy parameters, and targets.

    Attributes
    ----------
    dim, k, n : int
    judged_against : str
        "population", "records" or "clean records": the source of the reference subspace for errors.
    draw : callable
        Maps a seed to a :class:`Draw`.
    bounds : pair or None
        Public bounds, in the format of ``PrivatePCA``.
    in_order : bool
        If True, records stay in their original order, which drifts.
    batches : int or None
        Number of batches for records in their original order, for estimators that can plan batches; by
        default they take one batch, because the number of records is known.
    seeds : int
        Number of seeds that the target requires.
    source : str
        "real" or "synthetic" records.
    data : RealData or None
        Packaged data set of the records.
    beside_peers : bool
        If True, compare with published methods and the oracle.
    """

    name: str
    family: str
    n: int
    dim: int
    k: int
    delta: float
    draw: Callable[[int], Draw]
    targets: tuple[Target, ...] = ()
    epsilon: float = 1.0
    centering: str = "none"
    bounds: tuple[Any, Any] | None = None
    in_order: bool = False
    batches: int | None = None
    judged_against: str = "population"
    seeds: int = 5
    source: Literal["real", "synthetic"] = "synthetic"
    data: RealData | None = None
    beside_peers: bool = False


def spiked(
    n: int,
    dim: int,
    k: int,
    sigma: float,
    delta: float,
    targets: tuple[Target, ...] = (),
    family: str = "spiked",
) -> Setting:
    """Return factors of A_i = V L V^T + z_i z_i^T.

    z_i ~ N(0, sigma^2 I), and L runs from 10 to 5.
    """
    name = f"{family}-n{_short(n)}-k{k}-s{sigma:g}-d{_power(delta)}"
    draw = functools.partial(_draw_spiked, n, dim, k, sigma)
    return Setting(name, family, n, dim, k, delta, draw, targets)


def gaussian(
    n: int, dim: int, k: int, delta: float, targets: tuple[Target, ...] = (), family: str = "gaussian"
) -> Setting:
    """Return Gaussian vectors x_i ~ N(0, V L V^T + I).

    L runs from 10 to 5.
    """
    name = f"{family}-n{_short(n)}-k{k}-d{_power(delta)}"
    draw = functools.partial(_draw_vectors, n, dim, k, False)
    return Setting(name, family, n, dim, k, delta, draw, targets)


def student(n: int, dim: int, k: int, delta: float, targets: tuple[Target, ...] = ()) -> Setting:
    """Return multivariate t vectors, 3 degrees of freedom, scatter V L V^T + I.

    L runs from 10 to 5.
    """
    name = f"student-n{_short(n)}-k{k}-d{_power(delta)}"
    draw = functools.partial(_draw_vectors, n, dim, k, True)
    return Setting(name, "student", n, dim, k, delta, draw, targets, seeds=10)


def slow(
    kind: Literal["inverse", "gap"], n: int, dim: int, k: int, delta: float, targets: tuple[Target, ...] = ()
) -> Setting:
    """Return Gaussian vectors of a given spectrum in a random basis.

    The eigenvalues are 10/i ("inverse"), or 10, 1.5, 1, 1, ... ("gap").
    """
    name = f"slow-{kind}-n{_short(n)}-k{k}-d{_power(delta)}"
    draw = functools.partial(_draw_slow, n, _slow_spectrum(kind, dim), k)
    return Setting(name, "slow", n, dim, k, delta, draw, targets)


def flights_setting(
    kind: Literal["shuffled", "ordered", "unbounded"],
    k: int,
    targets: tuple[Target, ...] = (),
    batches: int | None = None,
) -> Setting:
    """Return the flights: shuffled by the seed, in file order, or shuffled without bounds."""
    bounded = kind != "unbounded"
    return Setting(
        f"flights-{kind}-k{k}" if batches is None else f"flights-{kind}-{batches}-batches-k{k}",
        "flights",
        flights.N_RECORDS,
        flights.N_FEATURES,
        k,
        1e-6,
        functools.partial(_draw_flights, kind != "ordered", bounded, k),
        targets,
        centering="auto",
        bounds=(-flights.BOUND, flights.BOUND) if bounded else None,
        in_order=kind == "ordered",
        batches=batches,
        judged_against="records",
        source="real",
    )


def centred_setting(data: RealData | Family, k: int, epsilon: float) -> Setting:
    """Return a setting of centred records, judged against their own leading subspace.

    If a family contaminates records, the reference is the subspace of the clean records.
    """
    real = isinstance(data, RealData)
    contaminated = isinstance(data, Family) and math.isfinite(data.outlier_norm)
    return Setting(
        f"{data.name}-k{k}-e{epsilon:g}",
        data.name,
        data.n,
        data.dim,
        k,
        1e-6,
        functools.partial(_draw_centred, data, k),
        epsilon=epsilon,
        judged_against="clean records" if contaminated else "records",
        source="real" if real else "synthetic",
        data=data if isinstance(data, RealData) else None,
        beside_peers=True,
    )


def select(patterns: Sequence[str]) -> list[Setting]:
    """Return the settings that match shell-style patterns, in the table's order.

    Raises
    ------
    ValueError
        If a pattern matches no setting.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in TABLE):
            raise ValueError(f"no setting {pattern!r}: --list shows all")
    return [s for name, s in TABLE.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _table() -> Iterator[Setting]:
    """Return the targets of estimators.md, a small setting for libraries, and settings with peers."""
    for n, delta, factor in ((100_000, 1e-2, 1.4), (400_000, 1e-2, 1.15), (400_000, 1e-6, 1.5)):
        for k in (2, 5):
            for sigma in (0.025, 0.5):
                yield spiked(n, 200, k, sigma, delta, (Target(factor, "floor"),))
    near_route = (Target(1.1, "route"),)
    for n in (100_000, 400_000):
        for delta in (1e-2, 1e-6):
            for k in (2, 5):
                yield gaussian(n, 200, k, delta, near_route)
    for k in (2, 5):
        yield slow("inverse", 100_000, 200, k, 1e-2, (Target(1.25, "route"),))
    for k in (1, 2):
        yield slow("gap", 100_000, 200, k, 1e-2, (Target(1.25, "route"),))
    for sigma in (0.025, 0.5):
        yield spiked(100_000, 1000, 2, sigma, 1e-2, near_route, "wide-spiked")
    yield gaussian(100_000, 1000, 2, 1e-2, near_route, "wide-gaussian")
    for k in (3, 5):
        yield flights_setting("shuffled", k, (Target(0.012, "random"),))
    for k in (3, 5):
        yield flights_setting("ordered", k, (Target(0.03, "random"),))
    for k in (3, 5):
        yield flights_setting("ordered", k, batches=9)
    for k in (3, 5):
        yield flights_setting("unbounded", k, (Target(0.06, "random"), Target(1.15, "hindsight")))
    for delta in (1e-2, 1e-6):
        for k in (2, 5):
            yield student(100_000, 200, k, delta, (Target(1.15, "hindsight"),))
    yield gaussian(100_000, 8, 2, 1e-2, family="small-gaussian")
    centred_data: list[RealData | Family] = [*REAL_DATA.values(), *FAMILIES.values()]
    for data in centred_data:
        for k, epsilon in itertools.product(data.ranks, EPSILONS):
            yield centred_setting(data, k, epsilon)


def _draw_spiked(n: int, dim: int, k: int, sigma: float, seed: int) -> Draw:
    rng = np.random.default_rng([seed, _DATA_STREAM])
    truth = orthonormalise(rng.standard_normal((dim, k))).T
    signal = (np.sqrt(_strengths(k))[:, None] * truth).astype(np.float32)
    records = np.empty((n, k + 1, dim), np.float32)
    records[:, :k] = signal
    scatter = np.zeros((dim, dim))
    for rows in _blocks(n):
        noise = sigma * rng.standard_normal((rows.stop - rows.start, dim), dtype=np.float32)
        records[rows, k] = noise
        scatter += _scatter(noise)
    # Every record has the same signal rows, so their part of the mean needs no pass over records.
    moment = _scatter(signal) + scatter / n
    return Draw(records, truth, _leading(moment, k), moment)


def _draw_vectors(n: int, dim: int, k: int, heavy: bool, seed: int) -> Draw:
    rng = np.random.default_rng([seed, _DATA_STREAM])
    truth = orthonormalise(rng.standard_normal((dim, k))).T
    signal = (np.sqrt(_strengths(k))[:, None] * truth).astype(np.float32)
    records = np.empty((n, dim), np.float32)
    scatter = np.zeros((dim, dim))
    for rows in _blocks(n):
        size = rows.stop - rows.start
        x = rng.standard_normal((size, k), dtype=np.float32) @ signal
        x += rng.standard_normal((size, dim), dtype=np.float32)
        if heavy:
            chi = np.sqrt(rng.chisquare(_DEGREES_OF_FREEDOM, (size, 1)) / _DEGREES_OF_FREEDOM)
            x /= chi.astype(np.float32)
        records[rows] = x
        scatter += _scatter(x)
    return _population_draw(records, truth, scatter / n)


def _draw_slow(n: int, spectrum: tuple[float, ...], k: int, seed: int) -> Draw:
    rng = np.random.default_rng([seed, _DATA_STREAM])
    dim = len(spectrum)
    basis = orthonormalise(rng.standard_normal((dim, dim))).T
    signal = (np.sqrt(spectrum)[:, None] * basis).astype(np.float32)
    records = np.empty((n, dim), np.float32)
    scatter = np.zeros((dim, dim))
    for rows in _blocks(n):
        x = rng.standard_normal((rows.stop - rows.start, dim), dtype=np.float32) @ signal
        records[rows] = x
        scatter += _scatter(x)
    return _population_draw(records, basis[:k], scatter / n)


def _population_draw(records: Records, truth: Matrix, moment: Matrix) -> Draw:
    return Draw(records, truth, _leading(moment, len(truth)), moment, ClippedCovariance(records))


def _draw_centred(data: RealData | Family, k: int, seed: int) -> Draw:
    if isinstance(data, RealData):
        vectors = clean = _load_real(data)
    else:
        vectors = ClippedCovariance(data.draw(seed))
        clean = ClippedCovariance(data.clean(vectors.records))
    truth = _leading(clean.exact, k)
    return Draw(vectors.records, truth, truth, clean.exact, vectors)


# Cache one data set: its settings are consecutive and share its computations.
@functools.lru_cache(maxsize=1)
def _load_real(data: RealData) -> ClippedCovariance:
    return ClippedCovariance(load(data))


def _draw_flights(shuffled: bool, bounded: bool, k: int, seed: int) -> Draw:
    all_flights = _load_flights(bounded)
    vectors = _flights_vectors(bounded)
    truth = _leading(vectors.exact, k)
    records = all_flights.shuffled(seed).records if shuffled else all_flights.records
    return Draw(records, truth, truth, vectors.exact, vectors)


# Cache one: the other has 195 MB, which the rest of the table does not need.
@functools.lru_cache(maxsize=1)
def _load_flights(bounded: bool) -> flights.Flights:
    return flights.load(bounded=bounded)


@functools.lru_cache(maxsize=1)
def _flights_vectors(bounded: bool) -> ClippedCovariance:
    return ClippedCovariance(centred(_load_flights(bounded).records))


def _strengths(k: int) -> Matrix:
    return np.linspace(10.0, 5.0, k)


def _slow_spectrum(kind: str, dim: int) -> tuple[float, ...]:
    if kind == "inverse":
        return tuple(10.0 / i for i in range(1, dim + 1))
    return (10.0, 1.5, *[1.0] * (dim - 2))


def _scatter(rows: Records) -> Matrix:
    wide = rows.astype(np.float64)
    return np.asarray(wide.T @ wide)


def _leading(moment: Matrix, k: int) -> Matrix:
    return np.ascontiguousarray(ritz_pairs(moment, k)[1].T)


def _blocks(n: int) -> Iterator[slice]:
    for first in range(0, n, _BLOCK):
        yield slice(first, min(first + _BLOCK, n))


def _short(n: int) -> str:
    return f"{n // 1000}k" if n % 1000 == 0 else str(n)


def _power(delta: float) -> str:
    """Format a power of ten as 1e-2, not 1e-02."""
    exponent = math.floor(math.log10(delta) + 0.5)
    return f"1e{exponent}" if math.isclose(delta, 10.0**exponent) else f"{delta:g}"


TABLE: dict[str, Setting] = {setting.name: setting for setting in _table()}
"""Settings by name; settings with targets come first, in the order of estimators.md."""
