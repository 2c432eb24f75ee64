"""Private mean from a small disjoint share of every batch, for ``centering = "auto"``.

It serves the estimators of papers; the default and its two routes use
:mod:`~streaming_pca.estimators.common.centre`.

A batch is cut by position. Its first records, the *share*, measure the mean. The
other records are centred at the new mean and go to the estimator. The share is cut again:

*Radius*: a private quantile of |S (x - c)|, with c the centre so far and S the scale,
is the clip radius R. *Sum*: S (x - c) of the other records, clipped to R, are added
up with Gaussian noise. The noisy sum over the public number of its records estimates
the mean's distance from c.

Batches are averaged by their counts. Clipping is about the centre so far, so R, and
with it the noise, falls from the distance of the mean from 0 (or from the middle of the
bounds) to the spread of the records. The first share is halved, so that a model of one
batch profits too: its second half is centred at the first half's mean, and the two are
averaged by their noise.

Privacy
-------
Adjacency: replace-one. A record's term depends on the record, on its position and on
earlier outputs only. A record of several rows adds their mean, a null record 0.

- Radius: epsilon-DP by :func:`~streaming_pca.privacy.mechanisms.private_quantile`.
- Sum: integer vectors of norm at most 2**40, checked as integers. Replacing one
  moves the sum by at most 2**41: the sensitivity that the noise is calibrated to.

Released: radius and noisy sum; the centre follows from them and from public numbers. The
parts (of each round) share no record with each other nor with the estimator's part. So they
compose in parallel, adaptively, and each may cost the whole (epsilon, delta).
Units in several batches: docs/explanation/proofs/private-mean.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block, evenly_spread
from streaming_pca.estimators.record_reader import NormKernel, RecordReader, added_up
from streaming_pca.kernels.lattice import BLOCK, lattice_unit
from streaming_pca.kernels.reading import RecordsView
from streaming_pca.kernels.record_means import MEAN_RADIUS, record_mean_norms, sum_record_means
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma, pure_epsilon
from streaming_pca.privacy.mechanisms import gaussian_on_vector, private_quantile
from streaming_pca.privacy.mechanisms.pure import counts_at_most
from streaming_pca.privacy.parameters import Charge, PrivacyParameters

Vector = NDArray[np.float64]

SHARE = 0.02
"""Share of a later batch: small, as these records never serve the estimator."""
FIRST_SHARE = 0.05
"""Share of the first batch with a share, which may be the only batch, and start far from its mean."""
LARGEST_SHARE = 0.2
"""Share of a batch that is too small for the shares above to measure a mean."""
_SHARE_RECORDS = 400.0
"""Least records of a share times epsilon, where the batch has them."""

QUANTILE = 0.9
"""Quantile of |S (x - c)| that becomes the radius."""
_RESOLVED = 60.0
"""Distance of the quantile from the top, in ranks times epsilon. All candidates above every
record have the same score; e^-30 of the best possible makes up for their number, and for
the best one's distance from the quantile."""
ROUNDS = 2
"""Rounds of the first share, where it has records for two."""
_LEAST_RADIUS_RECORDS = 64.0
"""Records times epsilon below which candidates far above every record are likely even at the median."""

RADIUS_RANGE = (2.0**-116, 2.0**116)
"""Range of the radius without bounds: square roots of the estimators' range of traces."""
_OCTAVES_BELOW_BOUND = 20
"""Octaves of the range below the largest norm that bounds allow."""
_GREATEST, _LEAST = 1e100, 1e-100
"""Limits of that largest norm, which keep candidates finite and above 0."""
_STEPS_PER_OCTAVE = 32
"""Candidates an octave: trades resolution of the radius against time."""
_SPREAD = 0.5
"""Octaves over which equal norms are spread, see :func:`_spread`."""

_SENSITIVITY = 2.0 * MEAN_RADIUS


def _refuse_pairs(preprocessing: Preprocessing) -> None:
    """Raise ValueError for pairs, which have no mean: kernels read record by record."""
    if preprocessing.units > 1:
        raise ValueError("pairs have no mean")


class _MeanSum:
    """Kernel of :meth:`Batch.sum` that adds up clipped, rounded means."""

    limit = BLOCK

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.records, self.per_unit = RecordReader(preprocessing), per_unit
        _refuse_pairs(preprocessing)
        self.whole = self.records.whole
        self.shape: tuple[int, ...] = (preprocessing.dim,)

    def __call__(self, batch: Block) -> NDArray[np.int64]:
        read = self.records.read(batch)

        def part(first: int, last: int) -> NDArray[np.int64]:
            room, total = np.empty((read.longest, self.shape[0])), np.zeros(self.shape, dtype=np.int64)
            sum_record_means(read, first, last, self.records.how, self.per_unit, room, total)
            return total

        return added_up(read, part, self.shape, self.records.step)


def clipped_mean_sum(batch: Batch, preprocessing: Preprocessing, radius: float) -> NDArray[np.int64]:
    """Sum the records' clipped, centred and scaled means exactly.

    Parameters
    ----------
    preprocessing : Preprocessing
        Preprocessing with a centre.
    radius : float
        R, in scaled units of the data.

    Returns
    -------
    (d,) int64
        In units of R 2**-40. Replace-one sensitivity 2**41 in L2.
    """
    return batch.sum(_MeanSum(preprocessing, 1 / lattice_unit(radius, MEAN_RADIUS)))


class PrivateMean:
    """Mechanisms of the private mean, for one stream.

    Parameters
    ----------
    privacy : PrivacyParameters
        Bound on their cost for a unit of privacy, with all other mechanisms it meets.
    preprocessing : Preprocessing
        Preprocessing with ``centering = "auto"``.
    """

    def __init__(self, privacy: PrivacyParameters, preprocessing: Preprocessing) -> None:
        self._privacy, self._preprocessing = privacy, preprocessing

    @staticmethod
    def limits_of(preprocessing: Preprocessing) -> tuple[Vector, Vector]:
        """Return lower and upper limits of every mean: the bounds, or -1e300 and 1e300."""
        bounds = (-1e300, 1e300) if preprocessing.bounds is None else preprocessing.bounds
        lower, upper = (
            np.broadcast_to(np.asarray(bound, dtype=np.float64), (preprocessing.dim,)) for bound in bounds
        )
        return lower, upper

    @classmethod
    def start_of(cls, preprocessing: Preprocessing) -> Vector:
        """Return the (d,) centre before any record: the middle of the bounds, or 0."""
        lower, upper = cls.limits_of(preprocessing)
        return np.asarray(lower / 2 + upper / 2)

    @property
    def least(self) -> int:
        """Least records of a batch that measures the mean."""
        return math.ceil(self._least_share / LARGEST_SHARE) + 1

    @property
    def _least_share(self) -> int:
        return 2 * math.ceil(_LEAST_RADIUS_RECORDS / self._epsilon)

    @property
    def charge(self) -> Charge:
        """Charge of all batches that a unit of privacy may enter, together.

        It composes in parallel with the estimator's charge.
        """
        batches = self._privacy.contributions
        epsilon = Fraction(repr(self._epsilon))
        radius = Charge(epsilon=0, delta=0, rho=batches * epsilon * epsilon / 2)
        return self._privacy.charge(batches * gaussian_rho(self._multiplier)) | radius

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters as a reservation names them."""
        return {
            "mechanism": "mean",
            "share": SHARE,
            "first_share": FIRST_SHARE,
            "largest_share": LARGEST_SHARE,
            "first_rounds": ROUNDS,
            "clip_quantile": QUANTILE,
            "radius_range": list(self._radius_range()),
            "radius_epsilon": self._epsilon,
            "sigma_over_sensitivity": self._multiplier,
        }

    def records(self, count: int, weight: float) -> int:
        """Return the number of records in the share of a batch.

        Parameters
        ----------
        count : int
            Records of the batch.
        weight : float
            Records averaged into the running mean.

        Returns
        -------
        int
            0 if the share would be too small to find a radius: the mean then stays.
        """
        if count < self.least:
            return 0
        share = SHARE if weight else FIRST_SHARE
        wanted = max(share * count, _SHARE_RECORDS / self._epsilon)
        return int(min(math.ceil(wanted), LARGEST_SHARE * count))

    def refresh(self, mean: Vector | None, weight: float, share: Batch) -> tuple[Vector, float]:
        """Update the running mean: (epsilon, delta)-DP for each record of the share.

        Parameters
        ----------
        mean : (d,) float64 or None
            Running mean, in units of the data; None at first.
        weight : float
            Records averaged into it.

        Returns
        -------
        (d,) float64, float
            New mean, within the bounds, and its weight.
        """
        centre = self.start_of(self._preprocessing) if mean is None else mean
        if not len(share):
            return centre, weight
        lower, upper = self.limits_of(self._preprocessing)
        precision, learnt = 0.0, 0
        for part in (share,) if weight else self._rounds(share):
            step, radius, count = self._step(part, centre)
            learnt += count
            if weight:
                gain = count / (weight + count)
            else:
                precision += (count / radius) ** 2
                gain = (count / radius) ** 2 / precision
            with np.errstate(all="ignore"):
                centre = np.clip(centre + gain * step, lower, upper)
        return centre, weight + learnt

    def _rounds(self, share: Batch) -> tuple[Batch, ...]:
        if len(share) < ROUNDS * self._least_share:
            return (share,)
        half = len(share) // ROUNDS
        return share.split([half, len(share) - half])

    def _step(self, part: Batch, centre: Vector) -> tuple[Vector, float, int]:
        """Return the mean's distance from the centre, the radius and the summed records' number."""
        about = self._preprocessing.about(centre)
        first = self._radius_records(len(part))
        looked, rest = part.split([first, len(part) - first])
        radius = self._radius(looked, about)
        noisy = gaussian_on_vector(clipped_mean_sum(rest, about, radius), self._sigma)
        step = noisy * (lattice_unit(radius, MEAN_RADIUS) / len(rest))
        scale = 1.0 if about.scale is None else np.asarray(about.scale)
        with np.errstate(all="ignore"):
            return step / scale, radius, len(rest)

    @property
    def _sigma(self) -> float:
        """Noise scale in lattice units, equal in every batch."""
        p = self._privacy
        return lattice_sigma(p.epsilon, p.delta, _SENSITIVITY, contributions=p.contributions)

    @property
    def _multiplier(self) -> float:
        return self._sigma / _SENSITIVITY

    @property
    def _epsilon(self) -> float:
        """Epsilon of one batch's quantile, for each record in its part."""
        if self._privacy.contributions == 1:
            return self._privacy.epsilon
        return min(pure_epsilon(self._multiplier), self._privacy.epsilon)

    def _radius_range(self) -> tuple[float, float]:
        bound = self._preprocessing.largest_squared_norm
        if bound is None:
            return RADIUS_RANGE
        high = min(max(math.sqrt(bound), _LEAST), _GREATEST)
        return high * 2.0**-_OCTAVES_BELOW_BOUND, high

    def _radius_records(self, share: int) -> int:
        """Return the number of records for the radius: enough for its quantile, at most half."""
        wanted = max(_RESOLVED / (1 - QUANTILE) / self._epsilon, 0.1 * share)
        return int(min(wanted, share / 2))

    def _radius(self, part: Batch, about: Preprocessing) -> float:
        low, high = self._radius_range()
        norms = part.map(MeanNorms(about))
        steps = math.ceil((math.log2(high / low) + _SPREAD) * _STEPS_PER_OCTAVE)
        candidates = high * 2.0 ** (_SPREAD - np.arange(steps, -1, -1) / _STEPS_PER_OCTAVE)
        resolved = 1 - _RESOLVED / (self._epsilon * len(norms))
        quantile = max(min(QUANTILE, resolved), 0.5)
        counts = norms.sum(_SpreadCounts(low, high, candidates))
        return min(private_quantile(counts, len(norms), candidates, quantile, self._epsilon), high)


class MeanNorms(NormKernel):
    """Norm of the mean of each record's rows, transformed; 0 for null records."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__(RecordReader(preprocessing))
        _refuse_pairs(preprocessing)

    def fill(self, read: RecordsView, first: int, last: int, out: Vector) -> None:
        """Write the norms."""
        room = np.empty((read.longest, read.rows.shape[1]))
        record_mean_norms(read, first, last, self.records.how, room, out)


class _SpreadCounts:
    """Numbers of spread norms that are at most each candidate."""

    ordered = True

    def __init__(self, low: float, high: float, candidates: Vector) -> None:
        self.low, self.high, self.candidates = low, high, candidates

    def __call__(self, norms: Vector, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts_at_most(_spread(norms, places, self.low, self.high), self.candidates)


def _spread(norms: Vector, places: NDArray[np.int64], low: float, high: float) -> Vector:
    """Clip norms to [low, high], and spread them by public factors of 1 to sqrt(2).

    Records far from the centre have nearly equal norms. If all these lie between two
    neighbouring candidates, every candidate above has the same score, up to the end of
    the range. Spread over several cells, the norms single out one candidate. The same
    holds for norms of 0. A factor depends on the record's position alone: multiples of the
    golden ratio fill the unit interval evenly from any start.
    """
    return np.asarray(np.clip(norms, low, high) * 2.0 ** (_SPREAD * evenly_spread(places)))
