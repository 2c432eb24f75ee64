"""Oja's rule: its settings and iterate, and Oja's algorithm without privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import transformed
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import (
    Estimator,
    EstimatorInfo,
    Options,
    Plan,
    State,
    Subspace,
    SuiteOptions,
)
from streaming_pca.kernels.lattice import BLOCK, MAX_RECORDS
from streaming_pca.kernels.sequential_oja import oja_steps
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs
from streaming_pca.privacy.parameters import Charge


class LearningRates(Options):
    """Schedule of the learning rate eta_t, t from 1.

    It is c/(t + offset), from ``decay_after`` on times ((decay_after + offset)/(t + offset))**decay_power
    ([DunglerSanyal2026, appendix F.2], family 1; there c = 1, and decay_after is T/2 or T/3).
    """

    learning_rate: float = Field(default=1.0, gt=0, le=1e200)
    """c of eta_t, in inverse squared units of the records."""
    offset: float = Field(default=10.0, ge=0)
    """Added to t in eta_t: keeps the first steps small."""
    decay_after: int | None = Field(default=None, ge=1)
    """Step tau after which eta_t is multiplied by ``((tau + offset)/(t + offset))**decay_power``."""
    decay_power: float = Field(default=0.5, ge=0)
    """See ``decay_after``."""

    def rate(self, t: int, component: int = 0) -> float:
        """Return eta_t; a subclass may have other rates for each component, counted from 0."""
        eta = self.learning_rate / (t + self.offset)
        if self.decay_after is not None and t > self.decay_after:
            eta *= ((self.decay_after + self.offset) / (t + self.offset)) ** self.decay_power
        return eta


class AdaptiveMeanOptions(LearningRates):
    """Batches and tails of :class:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean`."""

    n_records: int | None = Field(default=None, ge=2, le=2**40)
    """n, the total number of records of the stream, if known: batch rules and failure
    probabilities use it."""
    batch_rule: str = "fixed"
    """Rule for the number of records of a batch."""
    batch_size: int = Field(default=16_384, ge=2, le=MAX_RECORDS)
    """Records B of a batch, by the rule "fixed". Nothing is learnt from a batch too small for PrivRange (four
    records for each of its blocks): see ``range_constant``."""
    tail_constant: float = Field(default=1.0, ge=1e-6, le=1e6)
    """K of the papers' Assumption A; their experiments use 1."""
    tail_exponent: float = Field(default=1.0, ge=0, le=20)
    """a of the papers' Assumption A; their experiments use 1."""
    failure_probability: float = Field(default=0.01, gt=0, lt=1)
    """zeta (tau), for all ranges and radii of a run together."""
    range_constant: float = Field(default=4.0, gt=0, le=1e6)
    """C1 of PrivRange, which the papers do not give: m = C1 ln(1/(delta zeta))/epsilon blocks. About
    2 ln(1/delta)/epsilon of them must fall in one bin; with C1 = 4, half may fall in the next bin."""

    @model_validator(mode="after")
    def _check_rule(self) -> AdaptiveMeanOptions:
        if self.batch_rule != "fixed" and self.n_records is None:
            raise ValueError(f'batch_rule = "{self.batch_rule}" needs n_records')
        return self

    @property
    def largest_batch(self) -> int:
        return self.records_a_batch(1)

    def records_a_batch(self, k: int) -> int:
        """Return B for k components that take turns."""
        wanted = self.batch_size if self.n_records is None else int(self._by_rule(self.n_records, k))
        return min(max(wanted, 2), MAX_RECORDS)

    def _by_rule(self, n: int, k: int) -> float:
        """Return B of the rule for n records, before rounding."""
        return self.batch_size

    def tail(self, scale: float, inside: float) -> float:
        """Return K sqrt(Lambda) ln^a(inside)."""
        return self.tail_constant * math.sqrt(scale) * math.pow(math.log(inside), self.tail_exponent)

    def failure(self, step: int, steps: int | None) -> float:
        """Return the failure probability of a step, counted from 1.

        It is zeta/(2 T); without T zeta/(2 t (t + 1)), which sums to zeta/2.
        """
        return self.failure_probability / (2 * (step * (step + 1) if steps is None else steps))


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class IterateState(State):
    """Basis of the subspace, and its variances."""

    basis: Floats
    """(d, k), orthonormal columns."""
    inner: Floats
    """(k, k) symmetric: Rayleigh quotients of ``basis``, estimated from the last batch."""


S = TypeVar("S", bound=IterateState)
O = TypeVar("O", bound=Options)


class IterateEstimator(Estimator[S, O], Generic[S, O]):
    """Estimator whose state is one iterate of k columns."""

    def init(self, rng: np.random.Generator) -> S:
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        made: type[Any] = self.state_type
        return cast(S, made(0, 0, basis, np.zeros((self.k, self.k))))

    def learnt_subspace(self, state: S) -> Subspace:
        values, turn = ritz_pairs(state.inner, self.k)
        return Subspace((state.basis @ turn).T, np.maximum(values, 0.0), None)


def oja_step(basis: Floats, gradient: Floats, rate: float) -> tuple[Floats, Floats]:
    """Make a step of Oja's rule.

    ``basis`` is Q, (d, k) with orthonormal columns; ``gradient`` is an estimate of A Q, projected on the
    space S_Q of Y with symmetric Q^T Y. Returns the next basis (d, k), and the gradient's Rayleigh quotients.
    """
    new = orthonormalise(basis + rate * gradient)
    inner = new.T @ basis @ (basis.T @ gradient) @ (basis.T @ new)
    return new, (inner + inner.T) / 2


_LARGEST = 1e150  # bound of the Rayleigh quotients: keeps their eigenvalues finite


class OjaOptions(LearningRates):
    """Settings of :class:`OjaPCA`: the inputs of [DunglerSanyal2026, Alg. 7]."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    batch_size: int = Field(default=4096, ge=2, le=MAX_RECORDS)
    """Records between two releases; the result does not depend on it."""


class OjaPCA(IterateEstimator[IterateState, OjaOptions]):
    """Oja's algorithm [DunglerSanyal2026, Alg. 7]. **Not private.**

    ===========  ==================================================================
    step 1       ``init``
    steps 2 - 5  ``update``, by :func:`~streaming_pca.kernels.sequential_oja.oja_steps`
    step 3       eta_t is :meth:`~streaming_pca.estimators.oja.oja.LearningRates.rate`,
                 t the number of the record in the stream (of the pair, for "pairs"), from 1
    step 6       ``release``
    ===========  ==================================================================

    Deviations from the paper
    -------------------------
    - The stream has no end: the iterate is released after every ``batch_size``
      records. The steps do not depend on how the stream is cut.
    - A null record makes no step but counts as one. The same holds for a record whose
      step would overflow or reduce the rank of the basis: Q stays.
    - Variances: not in the algorithm. They come from the last batch's mean of
      Q^T A_i Q, which also rotates Q to its Ritz vectors; the subspace is the same.
    - Centring: the printed algorithm has second moments only ("none"). "pairs" and a
      public vector are public maps of the records.

    Privacy
    -------
    None: nothing is clipped and no noise is added. A batch costs each of its records
    infinity, and no share of a contract can pay for diagnostics. It runs only with
    ``private = false``, on a topic whose cap is infinite.
    """

    info = EstimatorInfo(
        id="oja",
        source="DunglerSanyal2026, Algorithm 7",
        private=False,
        needs="private = false, and a learning rate that suits the data",
        summary="a step of Oja's algorithm for each record, without noise: a baseline",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"batch_size": 64, "learning_rate": 0.5}, useful={"batch_size": 4000, "learning_rate": 1.0}
    )

    def plan_mechanisms(self, state: IterateState) -> Plan:
        """Plan ``batch_size`` records; any number is useful."""
        granularity = self.preprocessing.granularity
        count = self.preprocessing.whole_count(self.options.batch_size)
        return Plan(count, granularity, granularity, Charge.unbounded(), {"mechanism": "none"})

    def learn_batch(self, state: IterateState, batch: Batch) -> tuple[IterateState, int]:
        """Make one step for each record; nothing is clipped."""
        units = self.preprocessing.units
        whole = len(batch) // units * units
        paired, _ = batch.split([whole, len(batch) - whole])
        basis = np.array(state.basis, order="C")
        step = state.records // units
        for block in paired.blocks(BLOCK):
            starts, rows = transformed(self.preprocessing, block)
            rates = np.array([self.options.rate(step + i) for i in range(1, len(starts))])
            oja_steps(rows, starts, self.kind is RecordKind.MATRIX, basis, rates)
            step += len(rates)
        inner = self._inner(paired, basis) if whole else state.inner
        return replace(state, basis=basis, inner=inner), 0

    def _inner(self, batch: Batch, basis: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros((self.k, self.k))
        # Overflow of a record must not warn.
        with np.errstate(all="ignore"):
            for block in batch.blocks(BLOCK):
                _, rows = transformed(self.preprocessing, block)
                seen = rows @ basis
                if self.kind is RecordKind.MATRIX:
                    total += basis.T @ seen.reshape(-1, self.dim, self.k).sum(axis=0)
                else:
                    total += seen.T @ seen
            mean = total / (len(batch) // self.preprocessing.units)
            mean = (mean + mean.T) / 2
        return np.nan_to_num(np.clip(mean, -_LARGEST, _LARGEST), nan=0.0)
