"""Variances of the block route, by one pass along its directions, and their total.

The route's own products are clipped far below the largest records, so their eigenvalues are not
variances. The squares along each direction are measured in layers up to caps that hold nearly all
of them; the part above the last cap enters the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.clipped_sums import record_norms
from streaming_pca.estimators.common.norm_distribution import (
    NormDistribution,
    norm_shares,
    private_norm_distribution,
)
from streaming_pca.estimators.common.residual_sums import NO_CENTRE, allocate_room, check_columns
from streaming_pca.estimators.record_reader import RecordReader, added_up
from streaming_pca.kernels.blas import dgemm_address
from streaming_pca.kernels.block.chunks import grid
from streaming_pca.kernels.block.norms import LAYER, add_layers
from streaming_pca.privacy.mechanisms import gaussian_on_vector

TOTAL_LATTICE = LAYER
"""Largest term: fine enough that rounding costs next to nothing; 2**22 terms fit int64."""

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
_SHARE = 0.001  # share of the sum: trades the total's noise against the block's
_QUANTILE = 0.95
"""Quantile of the traces that becomes the clip radius: trades the total's noise against its clip."""
_COUNTS_PART = 0.25  # price of counting the traces, over the price of a first count


@dataclass(frozen=True)
class TotalVariance:
    """Running mean of the traces of (transformed) records."""

    value: float = 0.0
    noise: float = 0.0
    """Variance of the value's noise."""
    weight: float = 0.0
    """Number of records averaged into the value."""

    def check(self) -> None:
        """Check that a batch could have left these values, or raise ValueError."""
        if not (self.noise >= 0 and 0 <= self.weight < math.inf):
            raise ValueError("noise and weight of the state's total variance must not be below 0")

    def averaged(self, new: TotalVariance, gain: float, shift: float = 0.0) -> TotalVariance:
        """Average a batch's total in, plus a known shift, with this weight."""
        if not new.weight:
            return self
        return TotalVariance(
            self.value + gain * (new.value + shift - self.value),
            (1 - gain) ** 2 * self.noise + gain**2 * new.noise,
            new.weight / gain,
        )


def _sum_terms(radius: float, traces: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sum floor(2**40 min(trace/R, 1)), (1,)."""
    with np.errstate(all="ignore"):
        ratio = traces / radius
    # Comparisons with NaN are false, so a trace that overflowed counts as clipped.
    terms = np.where(ratio < 1, ratio, 1.0) * TOTAL_LATTICE
    return np.array([int(np.floor(terms).astype(np.int64).sum())], dtype=np.int64)


def learn_total(
    batch: Batch,
    preprocessing: Preprocessing,
    budget: Budget,
    multiplier: float,
    norm_range: tuple[float, float],
    present: float = 1.0,
) -> tuple[TotalVariance, NormDistribution | None]:
    """Measure a batch's noisy mean of min(trace, R), R its 0.95 quantile.

    It also returns the batch's distribution of traces, where one was counted. The trace of a symmetric
    matrix is not a variance: this kind spends nothing.

    ``multiplier``: noise multiplier of the whole batch. ``norm_range``: public range of the traces.
    ``present``: share of the records that are not null, an earlier answer: the mean is over these.

    Adjacency: replace-one. Released: counts of traces, and the sum of floor(2**40 min(trace/R, 1))
    plus Gaussian noise, each for its share. Each term is an integer from 0 to
    2**40 and a function of its record alone, so the sum's sensitivity is 2**40.
    """
    if preprocessing.kind is not RecordKind.FACTOR:
        return TotalVariance(), None
    traces = record_norms(batch, preprocessing)
    count = len(traces)
    if not count:
        return TotalVariance(), None
    shares = norm_shares(count, multiplier, _COUNTS_PART)
    found = private_norm_distribution(traces, *norm_range, budget, shares)
    radius = found.quantile(_QUANTILE)
    exact = traces.sum(partial(_sum_terms, radius))
    sigma = budget.sigma(budget.take(_SHARE), float(TOTAL_LATTICE))
    there = count * present
    scale = radius / TOTAL_LATTICE / there
    noisy = float(gaussian_on_vector(exact, sigma)[0]) * scale
    return TotalVariance(noisy, (sigma * scale) ** 2, there), found


Matrix = NDArray[np.float64]

# Set on synthetic data (docs/explanation/default-estimator.md, "Constants").
VARIANCES_SHARE = 0.05
"""Share of a batch: trades precise variances against noise in the components."""
_CAPS = np.array([12.0, 48.0, 192.0])  # ends of the layers, over the route's own value along the direction
_PARTS = (0.5, 0.3, 0.2)  # parts of the share that the layers get
_ABOVE = np.array([0.015, 0.003])
"""Usual parts of the variance in the layers after the first: noise is shrunk to them."""
_FULL = 0.01  # mean of the last layer's terms above which its caps were far too low
_LARGEST = 1e6  # largest error, over the variance
_PRECISION = 0.001  # least relative error of a variance


class _Layers:
    """Sum of the layers of every record, as a kernel of :meth:`Batch.sum`."""

    limit = 2**12

    def __init__(self, preprocessing: Preprocessing, directions: Matrix, caps: Matrix) -> None:
        self.columns, self.caps = grid(directions.T), np.ascontiguousarray(caps, dtype=np.float64)
        check_columns(self.columns)
        if caps.ndim != 2 or caps.shape[1] != len(directions) + 1:
            raise ValueError(f"caps of shape {caps.shape} for {len(directions)} directions and the rest")
        self.records = RecordReader(preprocessing, self.columns)
        self.whole = self.records.whole
        self.shape: tuple[int, ...] = caps.shape

    def __call__(self, batch: Block) -> NDArray[np.int64]:
        read, how = self.records.read(batch), self.records.how

        def part(first: int, last: int) -> NDArray[np.int64]:
            chunk, _, _ = allocate_room(self.columns, self.columns.shape[1], read.longest)
            total, dgemm = np.zeros(self.shape, dtype=np.int64), dgemm_address()
            add_layers(read, first, last, how, self.columns, NO_CENTRE, self.caps, dgemm, chunk, total)
            return total

        return added_up(read, part, self.shape, self.records.step)


def take_shares(budget: Budget) -> list[float]:
    """Take the layers' shares from a batch's budget, before its rounds spend the rest."""
    return [budget.take(VARIANCES_SHARE * part) for part in _PARTS]


def relative_tail(found: NormDistribution | None, total: float) -> Matrix:
    """Return the excess of the traces beyond multiples of the total, relative to it.

    E (t - c T)+/T of the traces t of records that are not null, of mean T, for c the caps' multiples. A
    direction's squares are assumed to have an equally heavy tail, in units of their mean.
    """
    if found is None or not total > 0:
        return np.zeros(len(_CAPS))
    beyond = found.excess(_CAPS * total) / (found.present * total)
    return np.minimum(np.where(np.isfinite(beyond), beyond, 0.0), 1.0)


def _normal_excess(first: Matrix, caps: Matrix) -> Matrix:
    """Return normal numbers' E (x^2 - c)+, (3, n), from first layers' means, (n,)."""
    variance, above, erfc = first, np.zeros(caps.shape), np.vectorize(math.erfc, otypes=[float])
    for _ in range(30):
        variance = np.clip(first + above[0], 1e-6 * caps[0], 4 * caps[0])
        ends = np.sqrt(caps / variance)
        density = math.sqrt(2 / math.pi) * np.exp(-(ends**2) / 2)
        above = variance * (ends * density + (1 - ends**2) * erfc(ends / math.sqrt(2)))
    return np.maximum(above, 0.0)


def measure_variances(
    batch: Batch,
    preprocessing: Preprocessing,
    directions: Matrix,
    scales: Matrix,
    budget: Budget,
    multipliers: Sequence[float],
    count: float,
    tail: Matrix,
) -> Matrix:
    """Measure variances along directions, and one for all other directions together.

    Returns (3, k + 1): variances, the variance of their noise, and the deviation of the part that caps hide.

    Parameters
    ----------
    directions : (k, d), orthonormal rows.
    scales : (k + 1,), about the variances, above 0: they set the caps.
    multipliers : one for each layer's Gaussian, from :func:`take_shares`.
    count : records that are not null.
    tail : (3,), excess beyond each cap, relative to the whole, from :func:`relative_tail`.

    Notes
    -----
    Adjacency: replace-one. Released: for each of three layers a vector of k + 1 sums with Gaussian noise.
    A record's term is an integer from 0 to 2**40 for each sum, so that the sensitivity of a layer is
    sqrt(k + 1) 2**40. Directions and scales are earlier outputs.
    """
    caps = _CAPS[:, None] * scales
    exact = np.asarray(batch.sum(_Layers(preprocessing, directions, caps))).reshape(caps.shape)
    sensitivity = math.nextafter(math.sqrt(len(scales)), math.inf) * LAYER
    depths = np.diff(caps, axis=0, prepend=0.0)
    found, noise = np.empty(caps.shape), np.empty(caps.shape)
    for layer, multiplier in enumerate(multipliers):
        sigma = budget.sigma(multiplier, sensitivity)
        unit = depths[layer] / LAYER / count
        found[layer] = np.asarray(gaussian_on_vector(exact[layer], sigma), dtype=np.float64) * unit
        noise[layer] = sigma * unit
    values = np.maximum(found[0], 0.0)
    variances, hidden = noise[0] ** 2, np.zeros(len(scales))
    # Scales from a few clipped records may be a tenth of the variances: then layers hold more than usual.
    normal = _normal_excess(values, caps)
    for layer, usual in enumerate(_ABOVE + tail[:-1] - tail[1:], 1):
        expected = np.maximum(usual * values, normal[layer - 1] - normal[layer])
        spread = (2 * expected) ** 2
        gain = spread / np.maximum(spread + noise[layer] ** 2, 1e-300)
        # A layer above twice its usual part, beyond noise, counts as measured.
        gain = np.where(found[layer] > 2 * expected + 2 * noise[layer], 1.0, gain)
        values = values + np.maximum(expected + gain * (found[layer] - expected), 0.0)
        variances = variances + gain * gain * noise[layer] ** 2
        hidden = hidden + np.where(gain < 1, spread * (1 - gain) ** 2, 0.0)
    # The part above the last layer may be as large as that layer, noise included.
    beyond = np.maximum(found[-1], 0.0) + 2 * tail[-1] * values + normal[-1]
    # If that layer is full of records, their reach is unknown.
    beyond = np.where(found[-1] - 2 * noise[-1] > _FULL * depths[-1], np.inf, beyond)
    beyond = np.minimum(beyond, _LARGEST * np.maximum(values, 1e-300))
    return np.stack([values, variances, np.sqrt(hidden + beyond**2 + (_PRECISION * values) ** 2)])
