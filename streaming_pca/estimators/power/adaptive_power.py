"""Adaptive power method: noisy power steps below a private threshold on the records' products."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.data.batch import Batch, BlockSum, RecordValues
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.base import EstimatorInfo, Options, Outcome, Plan, SuiteOptions
from streaming_pca.estimators.oja.deflation import Deflation, DeflationState, Learnt
from streaming_pca.estimators.worst_cases import ADAPTIVE_POWER_CASES
from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import MATRIX_RADIUS, MAX_RECORDS
from streaming_pca.kernels.rounding import clip_and_round, dot
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma, pure_epsilon
from streaming_pca.privacy.mechanisms import AboveThreshold, gaussian_on_vector

Floats = NDArray[np.float64]

_RADIUS = float(MATRIX_RADIUS)  # lattice units of theta: bound of a record's integer norm


class AdaptivePowerOptions(Options):
    """Settings of :class:`AdaptivePowerMethod`."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size", "n_records"})

    clip_radius: float = Field(ge=1e-70, le=1e70)
    """Bound of ``|A_i x|`` for unit vectors x, which is 1 in the paper; in squared units of the records,
    public. Larger products are scaled down to it; a bound that is too large costs almost nothing."""
    rounds: int = Field(default=8, ge=1, le=1000)
    """T, the power steps on a batch. More rounds need more noise, sqrt(T) times as much each."""
    octaves: int = Field(default=30, ge=1, le=400)
    """Number of halvings of the bound in the search for a threshold."""
    n_records: int | None = Field(default=None, ge=1, le=2**40)
    """Total number of records of the stream, if known: the batch is n/k of them."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a batch without ``n_records``."""
    failure_probability: float = Field(default=0.01, gt=0, lt=1)
    """beta: probability that a search ends above the threshold that it should find."""

    @property
    def largest_batch(self) -> int:
        return self.batch_size if self.n_records is None else min(self.n_records + 1, MAX_RECORDS)


class AdaptivePowerMethod(Deflation[DeflationState, AdaptivePowerOptions]):
    """Adaptive power method [NguyenEneNguyen2026, Alg. 1].

    ===========  =====================================================================
    step 2       ``init``; a later pass begins with the old component
    step 3       ``rounds``, on the same batch: one batch, one component
    step 4       the threshold n - 6 ln(1/beta)/epsilon' (Remark A.1: beta, where the
                 algorithm prints delta); its noise, and step 7's, are in
                 :class:`~streaming_pca.privacy.mechanisms.pure.AboveThreshold`
    steps 5 - 7  ``_threshold``: theta = bound 2^-j, from ``octaves`` down to 1, and the
                 bound itself if none of them fired
    step 8       ``_sum``: a record whose product has a norm above theta adds nothing
    step 9       ``_learn``
    step 10      :class:`~streaming_pca.estimators.oja.deflation.Deflation`
    ===========  =====================================================================

    Deviations from the paper
    -------------------------
    - Noise of step 9: theta sqrt(2 ln(2/delta))/epsilon there, 2 theta sqrt(ln(2/delta))/epsilon
      in the proof of Lemma 3.1, both for a record more or less. Neither is used: replacing
      a record moves the sum by up to 2 theta, with the multiplier of the accountant.
    - Composition (Lemma 3.1, advanced composition): a batch's T rounds are 2 T
      mechanisms, c batches' are 2 T c, each (1/z)-GDP: T Gaussians of multiplier z and T
      AboveThresholds of epsilon' = ``pure_epsilon(z)``. Together (epsilon, delta) for the z
      of :func:`~streaming_pca.privacy.calibration.multipliers.lattice_sigma` with 2 T c contributions.
    - The iterate is normalised, as the paper advises in practice. Then |A x| <= |A|, and
      thetas run from 2^-octaves of the public bound to the bound. The paper searches
      n^(-4T) to (2n)^T, because it lets x grow.
    - The paper assumes records within the bound. Here |A x| above it is scaled down to it.
    - A record's norm is |P A x| of its matrix, computed record by record; x is in the range of P.
      The filtered sum is of exact integers in units of theta 2^-26, and each record's
      integer norm is checked against 2^26: the filter alone would bound a float.
    - k > 1: deflation, with a separate batch for each component.
    - The filter may remove half of a batch of fewer than 12 ln(1/beta)/epsilon' records, so
      that the batch is uninformative. It is charged, but not tried.

    Privacy
    -------
    Replace-one. A record is in one batch. Released: in each round the answers of
    AboveThreshold on counts of sensitivity 1, hence theta, and the noisy sum, of sensitivity
    2 theta given theta, which is an output. Each round's x is an output of the round before;
    composition is adaptive. In a user's c batches all 2 T c mechanisms compose.
    """

    info = EstimatorInfo(
        id="adaptive-power",
        source="NguyenEneNguyen2026, Algorithm 1",
        private=True,
        needs="clip_radius, a bound that may be loose, and large batches",
        summary="noisy power steps that leave out records above a private threshold",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"clip_radius": 8.0, "batch_size": 64, "rounds": 2, "octaves": 12, "failure_probability": 0.5},
        epsilon=16.0,
        variants=({"rounds": 1}, {"rounds": 5, "octaves": 3}),
        useful={"clip_radius": 64.0, "rounds": 3, "batch_size": 4000},
        # Two rounds, each a sum and up to thirteen answers of one AboveThreshold.
        mechanisms=26,
        nulls_count=True,
        always_learns=False,
    )
    worst_cases = ADAPTIVE_POWER_CASES

    @cached_property
    def _sigma(self) -> float:
        """Noise of each of the d integers, in every round."""
        p, mechanisms = self.privacy, 2 * self.options.rounds * self.privacy.contributions
        return lattice_sigma(p.epsilon, p.delta, 2 * _RADIUS, contributions=mechanisms)

    @property
    def _multiplier(self) -> float:
        return self._sigma / (2 * _RADIUS)

    @cached_property
    def _search_epsilon(self) -> float:
        """epsilon' of one AboveThreshold."""
        # The quotient may have been rounded down; the search must not cost more than the Gaussian.
        return min(pure_epsilon(self._multiplier * (1 + 1e-15)), self.privacy.epsilon)

    @cached_property
    def _slack(self) -> int:
        """Records that may lie above an accepted threshold: 6 ln(1/beta)/epsilon'."""
        return math.ceil(6 * math.log(1 / self.options.failure_probability) / self._search_epsilon)

    def plan_mechanisms(self, state: DeflationState) -> Plan:
        options, granularity, units = self.options, self.preprocessing.granularity, self.preprocessing.units
        wanted = options.batch_size if options.n_records is None else options.n_records // self.k
        count = min(max(wanted // granularity, 1) * granularity, MAX_RECORDS)
        multiplier = self._multiplier
        parameters = {
            "mechanism": self.info.id,
            **options.model_dump(include={"clip_radius", "rounds", "octaves", "failure_probability"}),
            "search_epsilon": self._search_epsilon,
            "sigma_over_sensitivity": multiplier,
        }
        search = Fraction(repr(self._search_epsilon)) ** 2 / 2
        rho = self.privacy.contributions * options.rounds * (gaussian_rho(multiplier) + search)
        return Plan(
            count, min(2 * self._slack * units, count), granularity, self.privacy.charge(rho), parameters
        )

    def _learn(self, state: DeflationState, batch: Batch, iterate: Floats, removed: Floats) -> Learnt:
        count = len(batch) // self.preprocessing.units
        if count < 2 * self._slack:
            return Learnt(None, 0.0, Outcome.TOO_FEW, 0)
        value, theta, across = 0.0, self.options.clip_radius, np.ascontiguousarray(removed.T)
        all_norms: list[RecordValues] = []
        thetas: list[float] = []
        for _ in range(self.options.rounds):
            norms = batch.map(partial(_norms_of, self.preprocessing, iterate, across))
            theta = self._threshold(norms)
            if self.diagnostics:
                all_norms.append(norms)
                thetas.append(theta)
            total = self._sum(batch, iterate, across, theta)
            noisy = gaussian_on_vector(total, self._sigma) * (theta / _RADIUS / count)
            mean = np.asarray(noisy - removed @ (removed.T @ noisy))
            value = float(iterate @ mean)
            length = float(np.linalg.norm(mean))
            # The length is 0 only if all of the noise lies in U.
            iterate = mean / length if length > 0 else iterate
        # The count is made for diagnostics only, whose noise it gets.
        count_changed = partial(_count_changed, thetas)
        changed = int(all_norms[0].sum(count_changed, *all_norms[1:])[0]) if all_norms else 0
        return Learnt(iterate, value, Outcome.LEARNT, changed, theta)

    def _threshold(self, norms: RecordValues) -> float:
        """Return theta: the first of the rising thresholds that hardly any record exceeds."""
        search = AboveThreshold(len(norms) - self._slack, self._search_epsilon)
        thetas = [math.ldexp(self.options.clip_radius, -j) for j in range(self.options.octaves, 0, -1)]
        above = norms.above(thetas)
        for i, theta in enumerate(thetas):
            if search.ask(len(norms) - above(i)):
                return theta
        return self.options.clip_radius

    def _sum(self, batch: Batch, iterate: Floats, across: Floats, theta: float) -> NDArray[np.int64]:
        """Sum P A x exactly over the records of norm at most theta: (d,) integers.

        In units of theta 2^-26. At theta = bound larger products are scaled down to it. Any record
        adds integers of norm at most 2^26.
        """
        largest = theta if theta < self.options.clip_radius else math.inf
        filtered = partial(_filtered, self.preprocessing, iterate, across, largest, _RADIUS / theta)
        return batch.sum(BlockSum(filtered, (self.dim,)))


def _norms_of(preprocessing: Preprocessing, iterate: Floats, across: Floats, block: Block) -> Floats:
    """Return |P A x| of every record, each a function of it alone; inf if it overflows."""
    starts, rows = transformed(preprocessing, block)
    out = np.empty(len(starts) - 1)
    _product_norms(rows, starts, preprocessing.kind is RecordKind.MATRIX, iterate, across, out)
    return np.where(np.isnan(out), np.inf, out)


def _count_changed(thetas: list[float], *norms: Floats) -> NDArray[np.int64]:
    """Count the records whose norm was above the threshold in any round, (1,)."""
    changed = np.zeros(len(norms[0]), dtype=bool)
    for of_round, theta in zip(norms, thetas, strict=True):
        changed |= of_round > theta
    return np.array([np.count_nonzero(changed)], dtype=np.int64)


def _filtered(
    preprocessing: Preprocessing, x: Floats, across: Floats, largest: float, per_unit: float, block: Block
) -> NDArray[np.int64]:
    starts, rows = transformed(preprocessing, block)
    total = np.zeros(len(x), dtype=np.int64)
    of_matrices = preprocessing.kind is RecordKind.MATRIX
    _sum_filtered(rows, starts, of_matrices, x, across, largest, per_unit, total)
    return total


@njit(cache=True, nogil=True)
def _product(rows: Floats, of_matrices: bool, x: Floats, across: Floats, out: Floats) -> float:
    """Compute out = P A x of one record in a fixed order; return its norm.

    ``rows`` is A itself, or F with A = F^T F, and empty for a null record, whose product is 0; ``across`` is
    U^T, (c, d), with P = I - U U^T. ``out`` is inf or NaN where it overflows.
    """
    out[:] = 0.0
    for i in range(rows.shape[0]):
        s = dot(rows[i], x)
        if of_matrices:
            out[i] = s
        else:
            for j in range(x.shape[0]):
                out[j] += s * rows[i, j]
    for i in range(across.shape[0]):
        s = dot(across[i], out)
        for j in range(x.shape[0]):
            out[j] -= s * across[i, j]
    return math.sqrt(dot(out, out))


@njit(cache=True, nogil=True)
def _product_norms(
    rows: Floats, starts: NDArray[np.int64], of_matrices: bool, x: Floats, across: Floats, norms: Floats
) -> None:
    product = np.empty(x.shape[0])
    for i in range(norms.shape[0]):
        norms[i] = _product(rows[starts[i] : starts[i + 1]], of_matrices, x, across, product)


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
    """Add the products of norm at most ``largest``, rounded to norms of at most 2**26."""
    product = np.empty((1, x.shape[0]))
    units = np.empty((1, x.shape[0]))
    for i in range(starts.shape[0] - 1):
        # Written so that NaN is above.
        if not _product(rows[starts[i] : starts[i + 1]], of_matrices, x, across, product[0]) <= largest:
            continue
        clip_and_round(product, per_unit, _RADIUS, units)
        for j in range(x.shape[0]):
            total[j] += np.int64(units[0, j])
