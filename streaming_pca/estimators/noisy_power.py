"""The noisy power method on windows: a few noisy products with one batch's covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from streaming_pca.estimators.base import Card, Estimator, Options, Plan, State, Subspace
from streaming_pca.estimators.bounded_records import BoundedRecords
from streaming_pca.estimators.contributions import block_sensitivity, block_sum
from streaming_pca.estimators.outcome import Outcome
from streaming_pca.linalg.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs
from streaming_pca.privacy.calibration import gaussian_rho, lattice_sigma
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric_space
from streaming_pca.records import Batch, RecordKind

__all__ = ["NoisyPowerMethod", "NoisyPowerOptions", "NoisyPowerState"]

Matrix = NDArray[np.float64]


class NoisyPowerOptions(Options):
    """Settings of :class:`NoisyPowerMethod`."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    clip_l2: float = Field(ge=1e-70, le=1e70)
    """beta: records are scaled down to a Euclidean norm (the root of their matrix' trace) of
    at most this; public, in units of the records. No default can be right."""
    clip_l1: float | None = Field(default=None, ge=1e-70, le=1e70)
    """alpha: they are scaled down to a sum of their coordinates' sizes of at most this too. A
    pass then needs the less noise the less its basis is concentrated in few coordinates; of
    use below ``clip_l2 * sqrt(dim/rank)`` or so. Not for records of kind matrix."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a batch: the data set of one run of the method."""
    iterations: int = Field(default=4, ge=1, le=1000)
    """T: passes over each batch. Noise grows by sqrt(T), and a pass takes the error of a
    start down by sigma_{k+1}/sigma_k."""
    oversampling: int = Field(default=0, ge=0, le=1000)
    """p: columns beyond the rank; passes then converge by sigma_{k+p+1}/sigma_k."""

    @model_validator(mode="after")
    def _check(self) -> NoisyPowerOptions:
        if self.clip_l1 is not None and self.clip_l1 < self.clip_l2 * 1e-6:
            raise ValueError("clip_l1 must not be below a millionth of clip_l2: lower clip_l2")
        return self

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return self.batch_size


@dataclass(frozen=True)
class NoisyPowerState(State):
    """Where the next batch starts, what the last pass gave, and the average over batches."""

    start: Matrix
    """(d, k + p), orthonormal columns: the last iterate that was learnt from."""
    basis: Matrix
    """(d, k + p): Q of the last pass."""
    image: Matrix
    """(d, k + p): its noisy A Q, of the mean matrix A."""
    average: Matrix
    """(d, k): the batches' bases, turned to each other and averaged by precision."""
    inner: Matrix
    """(k, k) symmetric: their Ritz values likewise, in the average's coordinates."""
    precision: float
    """Sum of the batches' precisions: squares of signal to noise."""


class NoisyPowerMethod(Estimator[NoisyPowerState, NoisyPowerOptions]):
    """DP-Power-Method of 003 (appendix F, lines 2197-2199) and 004 (appendix G), in each batch.

    ==========================================  ====================================================
    both clips (003, line 2199)                 :mod:`~streaming_pca.estimators.bounded_records`
    Y_t = X Q_{t-1} + noise of scale rho_t      :func:`~streaming_pca.estimators.contributions.block_sum`
    (Hardt and Price 2014, Algorithm 1)         and ``gaussian_on_symmetric_space``, T times a batch
    Q_t = QR(Y_t)                               ``orthonormalise``
    noise times beta alpha (003, line 2199)     ``_radius``
    ==========================================  ====================================================

    Mends
    -----
    - Sensitivity. Under replace-one two images are up to 2 rho_t apart. ``block_sum``
      clips images to rho_t in integers, so this holds whatever floats do; records
      within both balls have images within rho_t, and are not touched by it but for roundings.
    - rho_t. For a record within both balls, a_j = sqrt(A_jj), A positive
      semidefinite gives |A_jl| <= a_j a_l, and row j of A Q has a norm of at most
      a_j sum_l a_l |Q_l| <= a_j alpha max_l |Q_l| (Q_l a row of Q). So |A Q|_F <=
      beta alpha max_l |Q_l|: never above beta alpha max|Q| sqrt(k), which Nicolas et
      al. (2024) have from single entries. It is at most beta^2 too, as |Q|_2 = 1.
    - T passes over the same records compose, exactly, as Gaussian mechanisms do; zCDP
      would ask for more noise. (003 and 004 leave it to Nicolas et al.)
    - Noise: on all d k integers, then projected on S_Q, which A Q lies in.
    - Streaming. Each batch is a data set of its own, charged whole; its passes
      start from the last batch's iterate, an earlier output. What the batches give
      is averaged, a post-processing: bases are turned to the average so far (the
      orthogonal Procrustes problem) and weighted by (records times the k-th Ritz
      value over the noise)^2, which puts bases from noise far below others.
    - Batches that cannot tell. With fewer records than noise of a pass lets the
      largest possible k-th eigenvalue, beta^2/k a record, be seen through
      ("too-few-records"), or with a k-th Ritz value within the noise's norm
      ("no-gap"; it would be the noise's), nothing is learnt; the charge stays. At
      k = d there is nothing to miss.

    Records of kind matrix: the method finds the directions of the largest
    absolute eigenvalues.

    Privacy
    -------
    Replace-one. A record is in one batch, and there in T Gaussian mechanisms of
    sensitivity 2 rho_t, rho_t a function of earlier outputs, at one noise
    multiplier z. Each is (1/z)-GDP, all T of them, in each of the c batches that a
    unit may enter, are sqrt(T c)/z-GDP
    (:func:`~streaming_pca.privacy.calibration.lattice_sigma`): (epsilon, delta)-DP.
    Released: T noisy images; all else follows from them.
    """

    card = Card(
        id="noisy-power",
        name="NoisyPowerMethod",
        source="003 appendix F, DP-Power-Method (Hardt and Price 2014; Nicolas et al. 2024), mended",
        adjacency="replace-one",
        private=True,
        needs="clip_l2; memory for a few d x k matrices; large batches",
        summary="power iterations with noise, several passes over each batch",
    )
    options_type: ClassVar[type[NoisyPowerOptions]] = NoisyPowerOptions
    state_type: ClassVar[type[NoisyPowerState]] = NoisyPowerState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kind is RecordKind.MATRIX and self.options.clip_l1 is not None:
            raise ValueError("noisy-power cannot use clip_l1 with records of kind matrix: leave it out")

    @property
    def columns(self) -> int:
        """k + p, at most d."""
        return min(self.k + self.options.oversampling, self.dim)

    def init(self, rng: np.random.Generator) -> NoisyPowerState:
        """A uniformly random start."""
        start = orthonormalise(rng.standard_normal((self.dim, self.columns)))
        zeros = np.zeros((self.dim, self.columns))
        inner = np.zeros((self.k, self.k))
        return NoisyPowerState(0, 0, start, start, zeros, start[:, : self.k].copy(), inner, 0.0)

    def _plan(self, state: NoisyPowerState) -> Plan:
        """One window, T Gaussian mechanisms on each record."""
        granularity, options = self.preprocessing.granularity, self.options
        parameters = {
            "mechanism": self.card.id,
            "clip_l2": options.clip_l2,
            "clip_l1": options.clip_l1,
            "iterations": options.iterations,
            "oversampling": options.oversampling,
            "sigma_over_sensitivity": self._multiplier,
        }
        count = max(options.batch_size // granularity * granularity, granularity)
        least = -(-self._needed * self.preprocessing.units // granularity) * granularity
        mechanisms = options.iterations * self.privacy.contributions
        charge = self.privacy.charge(mechanisms * gaussian_rho(self._multiplier))
        return Plan(count, min(least, count), granularity, charge, parameters)

    @cached_property
    def _sigma(self) -> float:
        """Of every pass, in lattice units: all T c of them compose to the promise."""
        p, passes = self.privacy, self.options.iterations * self.privacy.contributions
        return lattice_sigma(p.epsilon, p.delta, block_sensitivity(self.kind), contributions=passes)

    @property
    def _multiplier(self) -> float:
        return self._sigma / block_sensitivity(self.kind)

    def _radius(self, basis: Matrix) -> float:
        """rho_t: what |A Q|_F is at most for records within both balls."""
        options = self.options
        radius = options.clip_l2**2
        if options.clip_l1 is not None:
            longest = math.sqrt(float(np.max(np.sum(basis * basis, axis=1))))
            radius = min(radius, options.clip_l2 * options.clip_l1 * longest)
        return radius

    def _noise(self, radius: float) -> float:
        """What the norm of a pass' noise is about, of a sum: sigma (sqrt(d) + sqrt(k + p))."""
        root = math.sqrt(self.dim) + math.sqrt(self.columns)
        return 2 * radius * self._multiplier * root

    @cached_property
    def _needed(self) -> int:
        """Transformed records whose k-th eigenvalue, at most beta^2/k each, could pass the noise.

        By the radius at its least: a basis that is spread evenly over all coordinates.
        """
        spread = np.full((self.dim, 1), math.sqrt(self.columns / self.dim))
        smallest = self._radius(spread)
        return math.ceil(self.k * self._noise(smallest) / self.options.clip_l2**2)

    def _update(self, state: NoisyPowerState, batch: Batch) -> tuple[NoisyPowerState, int]:
        """T passes, and one more term of the average; charged as :meth:`plan` says."""
        options = self.options
        records = BoundedRecords.of(self.preprocessing, options.clip_l2, options.clip_l1)
        count = len(batch) // self.preprocessing.units
        basis, image, following = state.basis, state.image, state.start
        noise = 0.0
        for _ in range(options.iterations):
            basis = following
            radius = self._radius(basis)
            exact = block_sum(batch, records, basis, radius)
            noisy = gaussian_on_symmetric_space(exact.total, basis, self._sigma)
            image = noisy * (exact.unit / max(count, 1))
            noise = self._noise(radius) / max(count, 1)
            following = orthonormalise(image)
        # A count that nobody asked for is not worth a pass.
        clipped = records.clipped(batch, self.preprocessing) if self.diagnostics else 0
        new = replace(
            state, batch=state.batch + 1, records=state.records + len(batch), basis=basis, image=image
        )
        values, vectors = self._ritz(basis, image, following)
        if count < self._needed:
            return replace(new, outcome=Outcome.TOO_FEW.value), clipped
        if self.k < self.dim and not values[-1] > noise:
            return replace(new, outcome=Outcome.NO_GAP.value), clipped
        return self._averaged(new, following, values, vectors, noise), clipped

    def _ritz(self, basis: Matrix, image: Matrix, following: Matrix) -> tuple[Matrix, Matrix]:
        """The k largest Ritz values (k,) by absolute size and their vectors (d, k).

        Of Y Q^T + Q Y^T - Q Q^T Y Q^T, the symmetric matrix that the image shows, in the new basis.
        """
        turn, cross = basis.T @ following, following.T @ image
        inner = cross @ turn
        inner = inner + inner.T - turn.T @ (basis.T @ image) @ turn
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        kept = np.argsort(-np.abs(values), kind="stable")[: self.k]
        return np.abs(values[kept]), following @ vectors[:, kept]

    def _averaged(
        self, state: NoisyPowerState, following: Matrix, values: Matrix, vectors: Matrix, noise: float
    ) -> NoisyPowerState:
        """One more batch in the average, turned to it."""
        # Where k = d a value may be 0, and no weight may be.
        weight = max(float(values[-1]) / noise, 1e-3) ** 2
        gain = weight / (state.precision + weight)
        u, _, vt = np.linalg.svd(vectors.T @ state.average)
        turn = u @ vt
        average = (1 - gain) * state.average + gain * (vectors @ turn)
        inner = (1 - gain) * state.inner + gain * (turn.T @ (values[:, None] * turn))
        return replace(
            state,
            start=following,
            average=average,
            inner=(inner + inner.T) / 2,
            precision=state.precision + weight,
            outcome=Outcome.LEARNT.value,
        )

    def _release(self, state: NoisyPowerState) -> Subspace:
        """The span of the average, turned to its Ritz vectors."""
        basis = orthonormalise(state.average)
        # QR takes the average's columns to others of the same span: the inner matrix goes with them.
        turn = np.linalg.svd(basis.T @ state.average)
        rotation = turn[0] @ turn[2]
        values, vectors = ritz_pairs(rotation @ state.inner @ rotation.T, self.k)
        return Subspace((basis @ vectors).T, np.maximum(values, 0.0), None)
