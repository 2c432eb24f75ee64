"""State of the covariance route: the covariance at all clip radii, and its noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.common.norm_distribution import NormCounts
from streaming_pca.linalg.packed import pack_symmetric, packed_size, unpack_symmetric

__all__ = ["MAX_COVARIANCE_DIM", "SLOTS", "CovarianceEstimate"]

Matrix = NDArray[np.float64]

MAX_COVARIANCE_DIM = 512
"""Largest dimension of the covariance route: above it SLOTS d x d matrices cost too much time and state."""

SLOTS = 10
"""Most radii of a grid: fineness against noise, time and state."""

_NEW = 2.0
"""Variance of what a new radius adds, over the last one's. Earlier records hardly reached it, which is known
about as well as if it had been measured: so batches weigh by their counts there too."""

GREATEST = 1e300
"""Bound on the numbers of a state; larger ones count as overflowed."""


@dataclass(frozen=True)
class CovarianceEstimate:
    """Post-processed outputs of mechanisms: noisy second moments at all clip radii.

    A Kalman filter combines the noisy sums: its state are the second moments clipped at each
    radius, and each noisy sum measures one of them (each look all of them). The noise of all
    entries has one law, so its covariance over the radii is one small matrix.

    Attributes
    ----------
    radii : (SLOTS,) float64
        Increasing radii, then zeros.
    moments : (SLOTS, d' (d' + 1)/2) float64
        Packed mean second moments, clipped at each radius, along ``basis``.
    noise : (SLOTS, SLOTS) float64
        Covariance of the noise on the moments' diagonals; half of it off the diagonals. The
        noise of entry ij has sqrt(u_i u_j) times the deviation.
    doubt : (SLOTS, SLOTS) float64
        Covariance that the gains use: each batch's noise times its records, so that batches
        weigh by counts.
    basis : (d', d') float64
        Orthonormal columns: the coordinates.
    weights : (d',) float64
        u: records are clipped in coordinates x_i/sqrt(u_i). All 1 without weights.
    excess, squared_excess : (SLOTS,) float64
        E (norm - R)+ and E ((norm - R)+)^2 of each radius.
    above : (SLOTS,) float64
        Share, of the records that are not null, of norms above each radius.
    centre : (d',) float64
        Mean, by counts, of the centres that the sums were taken about.
    sizes : NormCounts
        Counts of norms in the coordinates.
    records, looked : float
        Records behind the estimate that are not null, in all and at the last look at all radii.
    largest : float
        The same of the largest batch.
    looks : int
        Looks at all radii so far.
    chosen : int
        Index of the released radius.
    """

    radii: Matrix
    moments: Matrix
    noise: Matrix
    doubt: Matrix
    basis: Matrix
    weights: Matrix
    excess: Matrix
    squared_excess: Matrix
    above: Matrix
    centre: Matrix
    sizes: NormCounts
    records: float = 0.0
    looked: float = 0.0
    largest: float = 0.0
    looks: int = 0
    chosen: int = 0

    @classmethod
    def empty(cls, dim: int) -> CovarianceEstimate:
        """Return the estimate before any record; ``dim`` is d', or 0 if the route is never taken."""
        small = np.zeros(SLOTS)
        square = np.zeros((SLOTS, SLOTS))
        moments = np.zeros((SLOTS, packed_size(dim) if dim else 0))
        sizes, centre = NormCounts.empty(), np.zeros(dim)
        return cls(
            small, moments, square, square, np.eye(dim), np.ones(dim), small, small, small, centre, sizes
        )

    @property
    def used(self) -> int:
        """Number of radii in the grid."""
        return int(np.count_nonzero(self.radii))

    @property
    def weighted(self) -> bool:
        """True where records are clipped in weighted coordinates."""
        return bool((self.weights != 1.0).any())

    @property
    def turn(self) -> Matrix | None:
        """Matrix from records to the coordinates of the clip; None for the records' own."""
        return self.basis / np.sqrt(self.weights) if self.weighted else None

    def moment(self, slot: int) -> Matrix:
        """Return the (d', d') moment along ``basis``, clipped at one radius."""
        return np.asarray(unpack_symmetric(self.moments[slot], len(self.weights)))

    def all_moments(self) -> Matrix:
        """Return the (used, d', d') moments at all radii, along ``basis``."""
        return np.stack([self.moment(slot) for slot in range(self.used)])

    def released_moment(self) -> Matrix:
        """Return the moment at the chosen radius, in the records' own coordinates."""
        moment = self.moment(self.chosen)
        return self.basis @ moment @ self.basis.T if self.weighted else moment

    def check(self) -> None:
        """Check that an update could have left these values.

        Raises
        ------
        ValueError
        """
        used = self.used
        rising = np.all(np.diff(self.radii[:used], prepend=0.0) > 0) and not self.radii[used:].any()
        if not (rising and np.all(self.radii < GREATEST)):
            raise ValueError("radii of the state must rise from above 0")
        if not self.chosen < max(used, 1):
            raise ValueError(f"the state releases radius {self.chosen} of {used}")
        for name, covariance in (("noise", self.noise), ("doubt", self.doubt)):
            part = covariance[:used, :used]
            largest = float(np.abs(part).max(initial=0.0))
            if np.abs(part - part.T).max(initial=0.0) > 1e-9 * largest:
                raise ValueError(f"{name} of the state must be symmetric")
            if used and np.linalg.eigvalsh(part)[0] < -1e-6 * largest:
                raise ValueError(f"{name} of the state must be a covariance")
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
            radii = np.zeros(SLOTS)
            radii[0] = radius
            return replace(self, radii=radii)
        share = float(np.mean(np.outer(self.weights, self.weights)))
        noise, doubt = (float(part[self.chosen, self.chosen]) * share for part in (self.noise, self.doubt))
        one = CovarianceEstimate.empty(len(self.weights)).with_first_look(
            np.array([radius]), self.released_moment()[None], np.array([[noise]]), 1.0
        )
        one.doubt[0, 0] = doubt
        return replace(one, centre=self.centre, records=self.records)

    def with_first_look(
        self, radii: Matrix, moments: Matrix, noise: Matrix, count: float
    ) -> CovarianceEstimate:
        """Set the first answers, (l, d', d') at all radii, and their noise covariance."""
        used = len(radii)
        grid, whole = np.zeros(SLOTS), np.zeros((SLOTS, SLOTS))
        grid[:used], whole[:used, :used] = radii, noise
        return replace(self, radii=grid, moments=_packed(moments), noise=whole, doubt=whole * count)

    def with_look(self, moments: Matrix, noise: Matrix, count: float) -> CovarianceEstimate:
        """Add one more look at all radii; parameters as for :meth:`with_first_look`."""
        used = self.used
        doubt, before = self.doubt[:used, :used], self.noise[:used, :used]
        new = noise * count
        gain: Matrix = np.asarray(np.linalg.solve((doubt + new).T, doubt.T).T, dtype=np.float64)
        return self._kalman_step(gain, _packed(moments)[:used], doubt - gain @ doubt, before, noise)

    def with_sum(self, slot: int, moment: Matrix, variance: float, count: float) -> CovarianceEstimate:
        """Add one more sum at one radius, with this noise variance on its diagonal."""
        used = self.used
        doubt, before = self.doubt[:used, :used], self.noise[:used, :used]
        # One radius is measured, so only its column of the gain is not 0.
        gain: Matrix = np.zeros((used, used))
        gain[:, slot] = doubt[:, slot] / (doubt[slot, slot] + variance * count)
        seen: Matrix = np.repeat(np.asarray(pack_symmetric(moment))[None], used, axis=0)
        noise: Matrix = np.full((used, used), variance)
        return self._kalman_step(gain, seen, doubt - gain @ doubt, before, noise)

    def _kalman_step(
        self, gain: Matrix, seen: NDArray[Any], doubt: Matrix, before: Matrix, noise: Matrix
    ) -> CovarianceEstimate:
        used = self.used
        moments = self.moments.copy()
        moments[:used] += gain @ (seen - moments[:used])
        left = np.eye(used) - gain
        after = left @ before @ left.T + gain @ noise @ gain.T
        whole, doubts = np.zeros((SLOTS, SLOTS)), np.zeros((SLOTS, SLOTS))
        whole[:used, :used], doubts[:used, :used] = (after + after.T) / 2, (doubt + doubt.T) / 2
        return replace(self, moments=moments, noise=whole, doubt=doubts)

    def discounted(self, kept: float, moved: float = 0.0) -> CovarianceEstimate:
        """Discount earlier records: by a share, or by a variance of drift in their moments."""
        if kept == 1.0 and not moved:
            return self
        used = self.used
        doubt = self.doubt.copy()
        doubt[:used, :used] = doubt[:used, :used] / kept + moved
        return replace(self, doubt=doubt)

    def extended_to(self, radius: float) -> CovarianceEstimate:
        """Extend the grid by larger radii up to this one; the smallest radii make room.

        A new radius starts from the largest old moment, which its batches would have had there.
        """
        used = self.used
        if used < 2 or self.radii[used - 1] >= radius:
            return self
        ratio = float(self.radii[1] / self.radii[0])
        more = min(int(np.ceil(np.log(radius / self.radii[used - 1]) / np.log(ratio))), SLOTS - 1)
        dropped = max(used + more - SLOTS, 0)
        old = slice(dropped, used)
        kept = used - dropped
        radii, moments = np.zeros(SLOTS), np.zeros_like(self.moments)
        radii[: kept + more] = np.concatenate(
            [self.radii[old], self.radii[used - 1] * ratio ** np.arange(1, more + 1)]
        )
        moments[:kept] = self.moments[old]
        moments[kept : kept + more] = self.moments[used - 1]
        grown = [_extended(part[old, old], more) for part in (self.noise, self.doubt)]
        chosen = max(self.chosen - dropped, 0)
        return replace(self, radii=radii, moments=moments, noise=grown[0], doubt=grown[1], chosen=chosen)


def _packed(moments: Matrix) -> Matrix:
    """Pack (l, d, d) moments into (SLOTS, d (d + 1)/2), zeros behind the last."""
    packed = np.stack([pack_symmetric(moment) for moment in moments])
    return np.concatenate([packed, np.zeros((SLOTS - len(packed), packed.shape[1]))])


def _extended(covariance: Matrix, more: int) -> Matrix:
    """Extend a covariance to new radii, each adding ``_NEW`` times the last variance."""
    used = len(covariance)
    out = np.zeros((SLOTS, SLOTS))
    last = np.minimum(np.arange(used + more), used - 1)
    out[: used + more, : used + more] = covariance[np.ix_(last, last)]
    steps = np.arange(1, more + 1) * _NEW * covariance[-1, -1]
    out[used : used + more, used : used + more] += np.minimum.outer(steps, steps)
    return out
