"""State of the covariance route: its layers at all clip radii, and their noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.common.norm_distribution import BINS, NormCounts
from streaming_pca.linalg.packed import pack_symmetric, packed_size, unpack_symmetric

Matrix = NDArray[np.float64]

MAX_COVARIANCE_DIM = 512
"""Largest dimension of the covariance route: above it SLOTS d x d matrices cost too much time and state."""
SLOTS = 10
"""Most radii of a grid: trades fineness against noise, time and state."""
_NEW = 2.0
"""Noise variance of a new layer, over the sum of all others. Earlier records hardly reached that layer, so
it is known about as well as if measured, and batches weigh as they do in other layers."""
GREATEST = 1e300
"""Bound on the numbers of a state; larger ones count as overflowed."""
_CERTAIN, _FAR = 4.0, 1 / 16
"""Deviations that make a median certainly wrong; mean norm, over the median, far below it."""
UNKNOWN = 1e300
"""Variance of an unmeasured layer."""


@dataclass(frozen=True)
class CovarianceEstimate:
    """Post-processed outputs of mechanisms: noisy layers of the second moment.

    The moment clipped at a radius is the sum of the layers up to it
    (:mod:`~streaming_pca.estimators.covariance.layered_sums`). Each batch measures layers with
    independent noise: a look measures all layers, a sum the layers up to its radius. Each layer is
    averaged by itself, so no two layers share noise. Batches weigh by their sizes alone.
    """

    radii: Matrix  # (SLOTS,) increasing radii, then zeros
    layers: Matrix  # (SLOTS, d' (d' + 1)/2) packed mean layers, along basis
    noise: Matrix
    """(SLOTS,) variance of the noise on a layer's diagonal; half of it off the diagonal. The noise of
    entry ij has sqrt(u_i u_j) times the deviation."""
    basis: Matrix  # (d', d') orthonormal columns: the coordinates
    weights: Matrix  # (d',) u: records are clipped in coordinates x_i/sqrt(u_i). All 1 without weights.
    excess: Matrix  # (SLOTS,) E (norm - R)+ of each radius
    squared_excess: Matrix  # (SLOTS,) E ((norm - R)+)^2 of each radius
    above: Matrix  # (SLOTS,) share, of the records that are not null, of norms above each radius
    centre: Matrix  # (d',) mean of the centres that the sums were taken about, by their weights
    sizes: NormCounts  # counts of norms in the coordinates
    records: float = 0.0
    """Records of the estimate, by the weight that is left of them. Null records are not counted here and
    below."""
    looked: float = 0.0  # records at the last look at all radii, by the weight that is left of them
    largest: float = 0.0  # records of the largest batch
    looks: int = 0  # looks at all radii so far
    chosen: int = 0  # index of the released radius
    doubt: float = UNKNOWN
    """Variance of all batches together, over a squared radius; it weighs the next batch."""

    @classmethod
    def empty(cls, dim: int) -> CovarianceEstimate:
        """Return the estimate before any record; ``dim`` is d', or 0 if the route is never taken."""
        small = np.zeros(SLOTS)
        layers = np.zeros((SLOTS, packed_size(dim) if dim else 0))
        sizes, centre = NormCounts.empty(), np.zeros(dim)
        return cls(small, layers, small, np.eye(dim), np.ones(dim), small, small, small, centre, sizes)

    @property
    def used(self) -> int:
        """Number of radii in the grid."""
        return int(np.count_nonzero(self.radii))

    @property
    def depths(self) -> Matrix:
        """Distance of each radius from the one below it, (used,)."""
        return np.diff(self.radii[: self.used], prepend=0.0)

    @property
    def weighted(self) -> bool:
        """True where records are clipped in weighted coordinates."""
        return bool((self.weights != 1.0).any())

    @property
    def turn(self) -> Matrix | None:
        """Matrix from records to the coordinates of the clip; None for the records' own."""
        return self.basis / np.sqrt(self.weights) if self.weighted else None

    def all_moments(self) -> Matrix:
        """Return the (used, d', d') moments at all radii, along ``basis``."""
        return np.stack([self.moment(slot) for slot in range(self.used)])

    def moment(self, slot: int) -> Matrix:
        """Return the (d', d') moment along ``basis``, clipped at one radius."""
        return np.asarray(unpack_symmetric(self.layers[: slot + 1].sum(axis=0), len(self.weights)))

    def noise_of_moments(self) -> Matrix:
        """Return the (used, used) covariance of the noise on the moments' diagonals."""
        known = np.cumsum(self.noise[: self.used])
        return np.asarray(np.minimum.outer(known, known))

    def released_moment(self) -> Matrix:
        """Return the moment at the chosen radius, in the records' own coordinates."""
        moment = self.moment(self.chosen)
        return self.basis @ moment @ self.basis.T if self.weighted else moment

    @property
    def released_noise(self) -> float:
        """Variance of the noise on the released moment's diagonal, for weights of 1."""
        return float(self.noise[: self.chosen + 1].sum())

    def is_lost(self, least: float) -> bool:
        """Return whether the first median is certainly far from the records: no radius suits them.

        Then most records lie beyond the last bin; or hardly any above the median, and their mean norm is
        far below it. Batches of few records can find such a median. None is below ``least``.
        """
        sizes, whole = self.sizes, self.sizes.present * self.sizes.records
        if self.used < 2 or not whole:
            return False
        deviation = _CERTAIN * math.sqrt(sizes.variance)
        if float(sizes.counts[-1]) - deviation > whole / 2:
            return True
        # A moment is unpacked only if hardly any record lies above.
        if sizes.median < 2 * least or float(sizes.counts.sum()) + deviation * math.sqrt(BINS) >= whole / 4:
            return False
        error = _CERTAIN * math.sqrt(self.noise[0] * np.sum(self.weights**2))
        return float(np.trace(self.moment(0))) + error < _FAR * float(self.radii[0])

    def check(self) -> None:
        """Check that an update could have left these values, or raise ValueError."""
        used = self.used
        rising = np.all(np.diff(self.radii[:used], prepend=0.0) > 0) and not self.radii[used:].any()
        if not (rising and np.all(self.radii < GREATEST)):
            raise ValueError("radii of the state must rise from above 0")
        if not self.chosen < max(used, 1):
            raise ValueError(f"the state releases radius {self.chosen} of {used}")
        if not (np.all(self.noise >= 0) and np.all(self.noise[used:] == 0) and 0 < self.doubt <= UNKNOWN):
            raise ValueError("noise of the state must be variances of its layers")
        if not (isinstance(self.layers, np.ndarray) and np.abs(self.layers).max(initial=0.0) < GREATEST):
            raise ValueError("layers of the state are out of their range")
        if not (np.all(self.weights > 0) and np.abs(self.basis).max(initial=0.0) < 1.01):
            raise ValueError("coordinates of the state must be orthonormal, with weights above 0")
        counts = (self.records, self.looked, self.largest, self.sizes.records, self.sizes.variance)
        if not all(0 <= number < GREATEST for number in counts):
            raise ValueError("numbers of the state are out of their range")
        if not (0 <= self.sizes.median < GREATEST and 0 <= self.sizes.present <= 1):
            raise ValueError("sizes of the state are out of their range")

    def at_radius(self, radius: float) -> CovarianceEstimate:
        """Reduce the estimate to one radius, in the records' own coordinates."""
        if self.used < 2:
            return self.on_grid(np.array([radius]))
        one = CovarianceEstimate.empty(len(self.weights)).on_grid(np.array([radius]))
        share = float(np.mean(np.outer(self.weights, self.weights)))
        layers, noise = np.zeros_like(self.layers), np.zeros(SLOTS)
        layers[0], noise[0] = pack_symmetric(self.released_moment()), self.released_noise * share
        one = replace(one, centre=self.centre, records=self.records, doubt=self.doubt)
        return replace(one, layers=layers, noise=noise)

    def on_grid(self, radii: Matrix) -> CovarianceEstimate:
        """Set the radii of an estimate without radii, or replace its only radius."""
        grid = np.zeros(SLOTS)
        grid[: len(radii)] = radii
        return replace(self, radii=grid)

    def gain(self, doubt: float) -> float:
        """Return the weight that a batch of this variance has in the new mean."""
        return self.doubt / (self.doubt + doubt)

    def with_layers(self, layers: Matrix, noise: Matrix, doubt: float) -> CovarianceEstimate:
        """Average a batch's (used, d', d') mean layers into the estimate.

        ``noise`` has the variances of their noise on a diagonal; ``doubt`` is :func:`batch_doubt`.
        """
        used, gain = self.used, self.gain(doubt)
        seen = np.stack([pack_symmetric(layer) for layer in layers])
        means, noises = self.layers.copy(), self.noise.copy()
        means[:used] += gain * (seen - means[:used])
        noises[:used] = (1 - gain) ** 2 * noises[:used] + gain**2 * noise
        return replace(self, layers=means, noise=noises, doubt=gain * doubt)

    def discounted(self, kept: float, moved: float = 0.0) -> CovarianceEstimate:
        """Discount earlier records: by a share, or by a variance of drift, over the squared radius."""
        doubt = min(self.doubt / kept + moved, UNKNOWN)
        left = self.doubt / doubt
        return replace(self, doubt=doubt, records=left * self.records, looked=left * self.looked)

    def extended_to(self, radius: float) -> CovarianceEstimate:
        """Extend the grid by larger radii up to this one; the smallest radii make room.

        A new layer starts from 0, its value for earlier batches, so this batch must not be clipped below its
        norms: a jump widens the grid's ratio. The layers of radii that make room are merged into the next.
        """
        used = self.used
        if used < 2 or self.radii[used - 1] >= radius:
            return self
        jump = float(radius / self.radii[used - 1])
        ratio = max(float(self.radii[1] / self.radii[0]), jump ** (1 / (SLOTS - 1)) * (1 + 1e-12))
        more = min(int(np.ceil(np.log(jump) / np.log(ratio))), SLOTS - 1)
        dropped = max(used + more - SLOTS, 0)
        kept = used - dropped
        radii = np.zeros(SLOTS)
        radii[:kept] = self.radii[dropped:used]
        radii[kept : kept + more] = self.radii[used - 1] * ratio ** np.arange(1, more + 1)

        def moved(values: Matrix, new: float) -> Matrix:
            found = np.zeros_like(values)
            found[:kept] = values[dropped:used]
            found[0] += values[:dropped].sum(axis=0)
            found[kept : kept + more] = new
            return found

        return replace(
            self,
            radii=radii,
            layers=moved(self.layers, 0.0),
            noise=moved(self.noise, _NEW * float(self.noise.sum())),
            chosen=max(self.chosen - dropped, 0),
        )
