"""Adaptive power: noisy power steps, each with a private threshold that large records are left out above."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.estimators.base import Card, Options, Plan
from streaming_pca.estimators.deflation import Deflation, DeflationState, Learnt
from streaming_pca.estimators.outcome import Outcome
from streaming_pca.linalg.lattice import BLOCK, MATRIX_RADIUS, MAX_RECORDS
from streaming_pca.linalg.rounding import clip_and_round
from streaming_pca.preprocessing import transformed
from streaming_pca.privacy.calibration import gaussian_rho, lattice_sigma, pure_epsilon
from streaming_pca.privacy.mechanisms import AboveThreshold, gaussian_on_vector
from streaming_pca.records import Batch, RecordKind

__all__ = ["AdaptivePowerMethod", "AdaptivePowerOptions"]

Floats = NDArray[np.float64]

_RADIUS = float(MATRIX_RADIUS)


class AdaptivePowerOptions(Options):
    """Settings of :class:`AdaptivePowerMethod`."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size", "n_records"})

    clip_radius: float = Field(ge=1e-70, le=1e70)
    """Bound of ``|A_i x|`` for unit vectors x, which is 1 in the paper; in squared units of the records,
    public. What is larger is scaled down to it; a bound that is too large costs next to nothing."""
    rounds: int = Field(default=8, ge=1, le=1000)
    """T, the power steps on a window. More need more noise, sqrt(T) times as much each."""
    octaves: int = Field(default=30, ge=1, le=400)
    """How many times the bound may be halved in the search for a threshold."""
    n_records: int | None = Field(default=None, ge=1, le=2**40)
    """The number of records that will ever come, where it is known: the window is n/k of them."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a window, where ``n_records`` does not tell."""
    failure_probability: float = Field(default=0.01, gt=0, lt=1)
    """beta: how likely a search may end above the threshold that it should find."""

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return self.batch_size if self.n_records is None else min(self.n_records + 1, MAX_RECORDS)


class AdaptivePowerMethod(Deflation[DeflationState, AdaptivePowerOptions]):
    """The adaptive power method, 000 Algorithm 1 (line 144).

    ===========  =====================================================================
    line 2       ``init``; a later pass begins with the old component
    line 3       ``rounds``, on the same window: one batch, one component
    line 4       the threshold n - 6 ln(1/beta)/epsilon' (Remark A.1: beta, where the
                 algorithm prints delta); its noise, and line 7's, are
                 :class:`~streaming_pca.privacy.mechanisms.threshold.AboveThreshold`'s
    lines 5-7    ``_threshold``: theta = bound 2^-j, from ``octaves`` down to 1, and the
                 bound itself if none of them fired
    line 8       ``_sum``: a record of size above theta adds nothing
    line 9       ``_learn``
    line 10      :class:`~streaming_pca.estimators.deflation.Deflation`
    ===========  =====================================================================

    Mends
    -----
    - Noise of line 9: theta sqrt(2 ln(2/delta))/epsilon there, 2 theta sqrt(ln(2/delta))/epsilon
      in the proof of Lemma 3.1, both for a record more or less. Neither is taken: replacing
      a record moves the sum by up to 2 theta, and the multiplier of that is the accountant's.
    - Composition (Lemma 3.1, advanced composition): a window's T rounds are 2 T
      mechanisms, c windows' are 2 T c, each (1/z)-GDP: T Gaussians of multiplier z and T
      AboveThresholds of epsilon' = ``pure_epsilon(z)``. Together (epsilon, delta) for the z
      of :func:`~streaming_pca.privacy.calibration.lattice_sigma` with 2 T c contributions.
    - The iterate is normalised, as the paper advises in practice. Then |A x| <= |A|, and
      thetas run from 2^-octaves of the public bound to the bound, where the paper
      searches n^(-4T) to (2n)^T, for it lets x grow.
    - The paper assumes records within the bound. Here |A x| above it is scaled down to it.
    - A record's size is |P A x| of its matrix, computed record by record; x is in P.
      The filtered sum is of exact integers in units of theta 2^-26, and each record's
      integer norm is checked against 2^26: the filter alone would bound a float.
    - k > 1: deflation, each component on a window of its own.
    - A window of fewer than 12 ln(1/beta)/epsilon' records, of which the filter may take out
      half, tells nothing and is not tried; it is charged.

    Privacy
    -------
    Replace-one. A record is in one window. Released of it: in each round the answers of
    AboveThreshold on counts of sensitivity 1, hence theta, and the noisy sum, of sensitivity
    2 theta given theta: theta is an output. Each round's x is an output of the one before;
    composition is adaptive. In a user's c windows all 2 T c compose.
    """

    card = Card(
        id="adaptive-power",
        name="AdaptivePowerMethod",
        source="000 Algorithm 1",
        adjacency="replace-one",
        private=True,
        needs="clip_radius, a bound that may be loose, and large windows",
        summary="noisy power steps that leave out records above a private threshold",
    )
    options_type: ClassVar[type[AdaptivePowerOptions]] = AdaptivePowerOptions
    state_type: ClassVar[type[DeflationState]] = DeflationState

    @cached_property
    def _sigma(self) -> float:
        """Of each of the d integers, in every round."""
        p, mechanisms = self.privacy, 2 * self.options.rounds * self.privacy.contributions
        return lattice_sigma(p.epsilon, p.delta, 2 * _RADIUS, contributions=mechanisms)

    @property
    def _multiplier(self) -> float:
        return self._sigma / (2 * _RADIUS)

    @cached_property
    def _search_epsilon(self) -> float:
        """epsilon' of one AboveThreshold."""
        # The quotient may have been rounded down, which would cost more than the Gaussian does.
        return min(pure_epsilon(self._multiplier * (1 + 1e-15)), self.privacy.epsilon)

    @cached_property
    def _slack(self) -> int:
        """How many records may lie above a threshold that is taken: 6 ln(1/beta)/epsilon'."""
        return math.ceil(6 * math.log(1 / self.options.failure_probability) / self._search_epsilon)

    def _steps_per_component(self) -> int:
        return 1

    def _plan(self, state: DeflationState) -> Plan:
        """A window for one component."""
        options, granularity, units = self.options, self.preprocessing.granularity, self.preprocessing.units
        wanted = options.batch_size if options.n_records is None else options.n_records // self.k
        count = min(max(wanted // granularity, 1) * granularity, MAX_RECORDS)
        multiplier = self._multiplier
        parameters = {
            "mechanism": self.card.id,
            "clip_radius": options.clip_radius,
            "rounds": options.rounds,
            "octaves": options.octaves,
            "failure_probability": options.failure_probability,
            "search_epsilon": self._search_epsilon,
            "sigma_over_sensitivity": multiplier,
        }
        search = Fraction(repr(self._search_epsilon)) ** 2 / 2
        rho = self.privacy.contributions * options.rounds * (gaussian_rho(multiplier) + search)
        return Plan(
            count, min(2 * self._slack * units, count), granularity, self.privacy.charge(rho), parameters
        )

    def _learn(self, state: DeflationState, batch: Batch, iterate: Floats, removed: Floats) -> Learnt:
        """T power steps on one window."""
        count = len(batch) // self.preprocessing.units
        if count < 2 * self._slack:
            return Learnt(None, 0.0, Outcome.TOO_FEW, 0)
        value, theta, changed = 0.0, self.options.clip_radius, np.zeros(count, dtype=bool)
        for _ in range(self.options.rounds):
            sizes = self._sizes(batch, iterate, removed)
            theta = self._threshold(sizes)
            # Written so that NaN counts as above.
            changed |= ~(sizes <= theta)
            total = self._sum(batch, iterate, removed, theta)
            noisy = gaussian_on_vector(total, self._sigma) * (theta / _RADIUS / count)
            mean = np.asarray(noisy - removed @ (removed.T @ noisy))
            value = float(iterate @ mean)
            length = float(np.linalg.norm(mean))
            # All of the noise may lie in U; a length of 0 otherwise has no chance.
            iterate = mean / length if length > 0 else iterate
        return Learnt(iterate, value, Outcome.LEARNT, int(changed.sum()), theta)

    def _sizes(self, batch: Batch, iterate: Floats, removed: Floats) -> Floats:
        """|P A x| of every record (m,), each a function of its record alone; inf or NaN if it overflows."""
        across = np.ascontiguousarray(removed.T)

        def kernel(block: Batch) -> Floats:
            starts, rows = transformed(self.preprocessing, block)
            out = np.empty(len(starts) - 1)
            _image_sizes(rows, starts, self.kind is RecordKind.MATRIX, iterate, across, out)
            return out

        return batch.map(kernel)

    def _threshold(self, sizes: Floats) -> float:
        """theta: the first of the rising thresholds that hardly any record lies above."""
        search = AboveThreshold(len(sizes) - self._slack, self._search_epsilon)
        for octave in range(self.options.octaves, 0, -1):
            theta = math.ldexp(self.options.clip_radius, -octave)
            # A comparison with NaN is false.
            if search.ask(int(np.count_nonzero(sizes <= theta))):
                return theta
        return self.options.clip_radius

    def _sum(self, batch: Batch, iterate: Floats, removed: Floats, theta: float) -> NDArray[np.int64]:
        """Exact sum (d,) of P A x over the records of size theta at most, in units of theta 2^-26.

        At theta = bound larger ones are scaled down to it. A record adds integers of norm 2^26 at
        most, whatever it holds.
        """
        return batch.sum(_Filtered(self, iterate, removed, theta))


class _Filtered:
    """What a block adds to the sum."""

    limit = BLOCK
    whole = False

    def __init__(
        self, estimator: AdaptivePowerMethod, iterate: Floats, removed: Floats, theta: float
    ) -> None:
        self.preprocessing, self.iterate = estimator.preprocessing, iterate
        self.across = np.ascontiguousarray(removed.T)
        self.shape: tuple[int, ...] = (estimator.dim,)
        self.largest = theta if theta < estimator.options.clip_radius else math.inf
        self.per_unit = _RADIUS / theta

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        starts, rows = transformed(self.preprocessing, block)
        total = np.zeros(self.shape, dtype=np.int64)
        of_matrices = self.preprocessing.kind is RecordKind.MATRIX
        _sum_filtered(
            rows, starts, of_matrices, self.iterate, self.across, self.largest, self.per_unit, total
        )
        return total


@njit(cache=True, nogil=True)
def _dot(a: Floats, b: Floats) -> float:
    # Four sums, so that one addition need not wait for the last.
    s0 = s1 = s2 = s3 = 0.0
    whole = a.shape[0] - a.shape[0] % 4
    for j in range(0, whole, 4):
        s0 += a[j] * b[j]
        s1 += a[j + 1] * b[j + 1]
        s2 += a[j + 2] * b[j + 2]
        s3 += a[j + 3] * b[j + 3]
    for j in range(whole, a.shape[0]):
        s0 += a[j] * b[j]
    return (s0 + s1) + (s2 + s3)


@njit(cache=True, nogil=True)
def _image(rows: Floats, of_matrices: bool, x: Floats, across: Floats, out: Floats) -> float:
    """out = P A x of one record, in a fixed order; its length.

    Parameters
    ----------
    rows : (r, d) float64
        A itself, or F with A = F^T F; none of a null record, whose image is 0.
    of_matrices : bool
    x : (d,) float64
    across : (c, d) float64
        U^T, with P = I - U U^T.
    out : (d,) float64
        inf or NaN where it overflows.
    """
    out[:] = 0.0
    for i in range(rows.shape[0]):
        s = _dot(rows[i], x)
        if of_matrices:
            out[i] = s
        else:
            for j in range(x.shape[0]):
                out[j] += s * rows[i, j]
    for i in range(across.shape[0]):
        s = _dot(across[i], out)
        for j in range(x.shape[0]):
            out[j] -= s * across[i, j]
    return math.sqrt(_dot(out, out))


@njit(cache=True, nogil=True)
def _image_sizes(
    rows: Floats, starts: NDArray[np.int64], of_matrices: bool, x: Floats, across: Floats, sizes: Floats
) -> None:
    """Lengths (m,) of all records' images."""
    image = np.empty(x.shape[0])
    for i in range(sizes.shape[0]):
        sizes[i] = _image(rows[starts[i] : starts[i + 1]], of_matrices, x, across, image)


@njit(cache=True, nogil=True)
def _sum_filtered(
    rows: Floats,
    starts: NDArray[np.int64],
    of_matrices: bool,
    x: Floats,
    across: Floats,
    largest: float,
    per_unit: float,
    total: NDArray[np.int64],
) -> None:
    """Add the images that are not longer than ``largest``, rounded and of norm 2**26 at most."""
    image = np.empty((1, x.shape[0]))
    units = np.empty((1, x.shape[0]))
    for i in range(starts.shape[0] - 1):
        # Written so that NaN is above.
        if not _image(rows[starts[i] : starts[i + 1]], of_matrices, x, across, image[0]) <= largest:
            continue
        clip_and_round(image, per_unit, _RADIUS, units)
        for j in range(x.shape[0]):
            total[j] += np.int64(units[0, j])
