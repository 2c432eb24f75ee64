"""Adaptive private mean: a private scale, a private centre, a clipped mean about it.

Source: [DunglerSanyal2026] and [DunglerSanyal2025]. A batch of products G_i (d x k, or
vectors) is read as two disjoint halves:

*PrivRange* ([DunglerSanyal2026, Alg. 4]; [DunglerSanyal2025, Alg. 6]). Pairs of the first half are
subtracted, so that their common mean cancels, and dealt to m blocks of b pairs. The value of a block is the
maximum over columns r of the largest eigenvalue of (1/2b) sum g_r g_r^T. The fullest bin of a private
histogram of the m values, over powers of 2^(1/4), is the scale. If no bin is full enough, no scale is found.

*TruncatedMean* ([DunglerSanyal2026, Alg. 5]; [DunglerSanyal2025, Alg. 7]). The second half's coordinates are
counted in bins as wide as the scale's root. The fullest noisy bins give a centre, about which each coordinate
is clipped; the mean of the clipped coordinates gets Gaussian noise calibrated to the box that holds them.

Deviations from the paper
-------------------------
- Sums are exact integers: a coordinate is rounded to a
  multiple of 2**-30 of the box's half-width R. A record adds d k integers of
  at most 2**30, so replacing one moves the sum by at most 2**31 sqrt(d k).
- Bins are cut from products that are computed record by record in a fixed order,
  and a block's eigenvalue from its own records alone.
- Histograms over bins that are not known in advance show a bin only above the
  stability threshold, whose delta is counted.
- A coordinate without a centre is clipped about 0: the papers leave this open.
- A spread of 0, which has a bin in the papers, is not a scale: the box would have no width.

Centre and mean read the same records: one histogram query of rho_c over all d k coordinates
(:func:`~streaming_pca.privacy.mechanisms.histogram.gaussian_modes`), a Gaussian of rho_m
with rho_c = rho_m, and a quarter of delta for bins that hold one record: (epsilon, delta)
by the conversion of zCDP. Noise on a count is then sqrt(d k) large. The papers compose d k histograms
(:mod:`experiments.printed`), whose noise is d k large.

A unit that may enter c batches has a c-th of (epsilon, delta) in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, BlockSum
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.base import Outcome, Plan
from streaming_pca.kernels.coordinates import (
    COORDINATE_RADIUS,
    BinCounts,
    bin_coordinates,
    products,
    sum_clamped,
    top_eigenvalue,
)
from streaming_pca.kernels.lattice import BLOCK
from streaming_pca.kernels.threads import thread_count
from streaming_pca.privacy.calibration.multipliers import greatest_rho
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import gaussian_modes, gaussian_on_vector, stability_histogram
from streaming_pca.privacy.mechanisms.histogram import Modes

Floats = NDArray[np.float64]

_EIGENVALUE_STEPS = 60  # power steps for a block's eigenvalue: trades accuracy of the scale against time
_BINS_PER_OCTAVE = 4  # bins of the scale in a factor of 2, as in the papers (powers of 2^(1/4))
_OCTAVES = 400  # scales lie between 2**-400 and 2**400: beyond them the computation overflows
_GREATEST_EPSILON = 100.0
"""Largest epsilon of a batch: above it e^epsilon leaves almost nothing of delta, and no useful noise."""
_BLOCK_VALUES = 2**23
"""Coordinates of products held together: 64 MiB. Trades memory against calls."""
_APART = 16  # bins between the rows of a block's bins: a cache's line
_BINS_HELD = 2**26
"""Bins held together: 256 MiB. With more, the coordinates are read in several turns."""


@dataclass(frozen=True)
class MeanFound:
    """Result of one batch: outputs of mechanisms, except ``clipped``."""

    outcome: Outcome
    mean: Floats | None = None
    """(d, k) noisy, not yet projected; None if nothing is learnt."""
    scale: float | None = None
    """Lambda."""
    centred: float | None = None
    """Share of the coordinates whose histogram showed a bin."""
    clipped: int = 0
    """Records with a clipped coordinate: exact, and as secret as a record."""


def least_records(blocks: int, preprocessing: Preprocessing) -> int:
    """Return the least size of a batch: a pair a block, and as many records for the mean."""
    return 4 * blocks * preprocessing.granularity


def range_plan(estimator: Any, count: int, blocks: int, **more: Any) -> Plan:
    """Plan ``count`` records: half for the range of ``blocks`` blocks, half for centre and mean."""
    preprocessing = estimator.preprocessing
    parameters = {
        "mechanism": estimator.info.id,
        "range_blocks": blocks,
        **more,
        **estimator.options.model_dump(include={"tail_constant", "tail_exponent"}),
        **estimator.adaptive_mean.parameters,
    }
    least = min(least_records(blocks, preprocessing), count)
    return Plan(count, least, preprocessing.granularity, estimator.privacy.charge(None), parameters)


class AdaptiveMean:
    """PrivRange and TruncatedMean at one privacy contract.

    (epsilon, delta) is for each half of one batch; ``values`` is d k, the coordinates of a product.

    Released: the scale's bin, or that no bin was found, (epsilon, delta)-DP; from the other half the centre
    and the noisy mean, together (epsilon, delta)-DP. Adjacency: replace-one; a record is in one half.
    """

    def __init__(self, epsilon: float, delta: float, values: int) -> None:
        if epsilon > _GREATEST_EPSILON:
            raise ParameterError(
                f"epsilon must be at most {_GREATEST_EPSILON:g} per batch for an adaptive mean, "
                f"not {epsilon:g}"
            )
        self.epsilon, self.delta, self.values = epsilon, delta, values
        # L2 sensitivity of a sum of integers of at most COORDINATE_RADIUS.
        sensitivity = math.nextafter(2.0 * COORDINATE_RADIUS * math.sqrt(values), math.inf)
        # A quarter of delta goes to the centre's unseen bins, by (1 + e^epsilon) times their probability
        # (:func:`~streaming_pca.privacy.mechanisms.histogram.gaussian_modes`).
        self.unseen = delta / 4 / (1 + math.exp(epsilon)) * (1 - 1e-12)
        self.rho = greatest_rho(epsilon, delta * 0.75) / 2
        """Cost of the centre, and of the mean."""
        self.sigma = math.nextafter(sensitivity / math.sqrt(2 * self.rho) * (1 + 1e-15), math.inf)
        self.multiplier = self.sigma / sensitivity
        """Multiplier of the mean."""

    def range_blocks(self, failure: float, constant: float) -> int:
        """Return m of PrivRange, ``C1 ln(1/(delta zeta))/epsilon`` ([DunglerSanyal2026, Alg. 4])."""
        return max(math.ceil(constant * math.log(1 / (self.delta * failure)) / self.epsilon), 1)

    def learn(
        self,
        batch: Batch,
        preprocessing: Preprocessing,
        basis: Floats,
        removed: Floats,
        blocks: int,
        clip: Callable[[float], tuple[float, float]],
    ) -> MeanFound:
        """Estimate a batch's scale from its first half, and its mean from the second.

        ``basis`` is (d, k), ``removed`` has (d, c) orthonormal columns to project out of the products,
        ``blocks`` is m of PrivRange, and ``clip(Lambda)`` returns the width of the bins, and R.
        """
        if len(batch) < least_records(blocks, preprocessing):
            return MeanFound(Outcome.TOO_FEW)
        half = len(batch) // (2 * preprocessing.granularity) * preprocessing.granularity
        first, second = batch.split([half, len(batch) - half])
        scale = self.scale(first, preprocessing, basis, removed, blocks)
        if scale is None:
            return MeanFound(Outcome.NO_SCALE)
        return replace(self.mean(second, preprocessing, basis, removed, *clip(scale)), scale=scale)

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "accounting": "zcdp",
            "sigma_over_sensitivity": self.multiplier,
            "centre_rho": self.rho,
            "centre_delta": self.unseen,
        }

    def scale(
        self, part: Batch, preprocessing: Preprocessing, basis: Floats, removed: Floats, blocks: int
    ) -> float | None:
        """Estimate the private range Lambda of a part's products by PrivRange.

        None if no bin is full enough. The part has at least two products for each block.
        """
        each = len(part) // preprocessing.units // 2 // blocks
        taken = 2 * each * preprocessing.units
        paired, _ = part.split([taken * blocks, len(part) - taken * blocks])
        scale_bin = partial(_scale_bin, _Products(preprocessing, basis, removed))
        keys = paired.map_parts([taken] * blocks, scale_bin)
        shown = stability_histogram(keys, self.epsilon, self.delta)
        if not shown:
            return None
        fullest = max(shown, key=lambda key: (shown[key], -key))
        return 2.0 * math.pow(2.0, fullest / _BINS_PER_OCTAVE)

    def mean(
        self,
        part: Batch,
        preprocessing: Preprocessing,
        basis: Floats,
        removed: Floats,
        width: float,
        radius: float,
    ) -> MeanFound:
        """Estimate the noisy mean by TruncatedMean.

        ``basis`` is (d, k). The columns ``removed``, (d, c), are projected out of the products' rows. Bins
        are ``width`` wide, and ``radius`` is R, half the width of the box. The result has no scale.
        """
        d, k = basis.shape
        count = len(part) // preprocessing.units
        products_of = _Products(preprocessing, basis, removed)
        centres, centred = self._centres(part, products_of, count, width)
        clamped = partial(_clamped_sum, products_of, centres, radius)
        vector = part.sum(BlockSum(clamped, (len(centres) + 1,), products_of.limit))
        noisy = gaussian_on_vector(vector[:-1], self.sigma) * (radius / COORDINATE_RADIUS / max(count, 1))
        mean = np.ascontiguousarray((centres + noisy).reshape(k, d).T)
        return MeanFound(Outcome.LEARNT, mean, centred=centred, clipped=int(vector[-1]))

    def _centres(self, part: Batch, products_of: _Products, count: int, width: float) -> tuple[Floats, float]:
        n = self.values
        at_once = max(min(n, _BINS_HELD // max(count, 1)), 1)
        centres, found = np.zeros(n), np.zeros(n, dtype=bool)
        for first in range(0, n, at_once):
            last = min(first + at_once, n)
            bins = part.tally(_Bins(products_of, width, first, last), last - first)
            modes = self._modes(bins, (last - first) / n)
            centres[first:last] = modes.bins * width
            found[first:last] = modes.found
        return centres, float(found.mean())

    def _modes(self, bins: BinCounts, part: float) -> Modes:
        """Find the fullest bins of some coordinates, at their part of the cost."""
        # Slightly less than the part, so that rounding cannot exceed the whole.
        share = part * (1 - 1e-12)
        return gaussian_modes(bins, self.rho * share, self.unseen * share)


class _Products:
    """Products A Q of the records, projected: a function of a block."""

    def __init__(self, preprocessing: Preprocessing, basis: Floats, removed: Floats) -> None:
        self.preprocessing = preprocessing
        self.basis, self.removed = np.ascontiguousarray(basis), np.ascontiguousarray(removed)
        # Whole pairs, few enough that threads together stay within the limit.
        units = preprocessing.units
        most = _BLOCK_VALUES // thread_count() // basis.size // units
        self.limit = min(max(most, 1) * units, BLOCK)

    def __call__(self, block: Block) -> Floats:
        """Return the products' columns, (m, k, d)."""
        starts, rows = transformed(self.preprocessing, block)
        out = np.empty((len(starts) - 1, self.basis.shape[1], self.basis.shape[0]))
        of_matrices = self.preprocessing.kind is RecordKind.MATRIX
        products(rows, starts, of_matrices, self.basis, self.removed, out)
        return out


def _scale_bin(products_of: _Products, part: Block) -> int | None:
    """Return the bin [2^(i/4), 2^((i + 1)/4)) of the spread of a part's pairs.

    The spread is the maximum over columns r of the largest eigenvalue of (1/2b) sum g_r g_r^T, g the
    differences of the b pairs. None for 0, for NaN, and beyond 2^-400 and 2^400.
    """
    both = products_of(part)
    # Overflow gives inf or NaN; a warning would reveal it.
    with np.errstate(all="ignore"):
        differences = both[1::2] - both[::2]
    d = differences.shape[2]
    # Public, and orthogonal to hardly any vector.
    start = np.cos(np.arange(1, d + 1) * math.sqrt(2))
    columns = [np.ascontiguousarray(differences[:, r]) for r in range(differences.shape[1])]
    values = [top_eigenvalue(column, start, _EIGENVALUE_STEPS) / 2 for column in columns]
    spread = max((value for value in values if value == value), default=math.nan)
    inside = 2.0**-_OCTAVES <= spread < 2.0**_OCTAVES
    return math.floor(math.log2(spread) * _BINS_PER_OCTAVE) if inside else None


class _Bins:
    """Bins of the coordinates ``first`` to ``last`` of every record's product."""

    def __init__(self, products_of: _Products, width: float, first: int, last: int) -> None:
        self.products_of, self.width, self.first, self.last = products_of, width, first, last
        self.limit = products_of.limit

    def __call__(self, block: Block) -> NDArray[np.int32]:
        found = self.products_of(block)
        values = found.reshape(len(found), -1)[:, self.first : self.last]
        # Rows a power of two apart, as in a whole block, would share few places of a cache.
        bins = np.empty((values.shape[1], len(values) + _APART), dtype=np.int32)[:, : len(values)]
        bin_coordinates(values, self.width, bins)
        return bins


def _clamped_sum(products_of: _Products, centres: Floats, radius: float, block: Block) -> NDArray[np.int64]:
    """Sum the products' clamped coordinates, then the records with a clipped one."""
    out = np.zeros(len(centres) + 1, dtype=np.int64)
    out[-1] = sum_clamped(products_of(block).reshape(-1, len(centres)), centres, radius, out[:-1])
    return out
