"""ADADPO: adaptive private Oja with one range and one centre for the whole block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.estimators.base import EstimatorInfo, Plan, SuiteOptions
from streaming_pca.estimators.oja.oja import AdaptiveMeanOptions, IterateEstimator, IterateState, oja_step
from streaming_pca.estimators.oja.truncated_mean import AdaptiveMean, range_plan
from streaming_pca.estimators.worst_cases import BLOCK_RANGE_CASES
from streaming_pca.linalg.subspace import project_symmetric


class AdaDPOOptions(AdaptiveMeanOptions):
    """Settings of :class:`AdaDPO`: the inputs of [DunglerSanyal2026, Alg. 2]."""

    batch_rule: Literal["fixed", "n/log n", "sqrt n"] = "fixed"
    """B: ``batch_size``; or of ``n_records`` n/ln n ([DunglerSanyal2026, Theorem 2]) or sqrt n (there
    appendix F.2)."""

    def _by_rule(self, n: int, k: int) -> float:
        match self.batch_rule:
            case "n/log n":
                return n / math.log(n)
            case "sqrt n":
                return math.sqrt(n)
            case _:
                return self.batch_size


@dataclass(frozen=True)
class AdaDPOState(IterateState):
    """Iterate, and the last batch's range and centre."""

    scale: float | None = None
    """Lambda of the last batch."""
    centred: float | None = None
    """Share of coordinates that have a centre, in the last batch."""


class AdaDPO(IterateEstimator[AdaDPOState, AdaDPOOptions]):
    """ADADPO [DunglerSanyal2026, Alg. 2].

    ===========  ================================================================
    step 1       ``init``
    step 2       T from ``batch_rule``; without ``n_records`` the failure
                 probability of step t is zeta/(2 t (t + 1)), which sums to zeta/2
    step 3       Algorithm 4, PrivRange, on the batch's first half:
                 :meth:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean.scale`
    step 4       R_t = 3 K sqrt(Lambda) ln^a(B d k/(2 zeta))
    steps 5 - 7  Algorithm 5, TruncatedMean, on the second half, and the noise
                 sigma_t: :meth:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean.mean`
    step 8       one step of the projected mean
    ===========  ================================================================

    Deviations from the paper
    -------------------------
    Those of :mod:`~streaming_pca.estimators.oja.truncated_mean`, and:

    - Noise (step 7): independent Gaussians on all d k integers, then the projection on
      S_Q that step 8 applies. The result is isotropic in S_Q, with half of the printed
      GOE's variance inside the Q-block, at the same privacy.
    - PrivRange may find no range. Then Q stays, the batch is charged, and its outcome
      is "no-scale". The printed algorithm continues without a number.
    - C1 is a setting, because the paper gives no value. A batch with fewer than one
      pair for each block is not learnt from; its outcome is "too-few-records".
    - epsilon > 1: the analytic Gaussian multiplier (the remark after Lemma 2).

    Privacy
    -------
    Replace-one. A record is in one half of one batch. Released: the range,
    (epsilon, delta)-DP; the noisy mean about a private centre, together (epsilon, delta)-DP.
    """

    info = EstimatorInfo(
        id="adadpo",
        source="DunglerSanyal2026, Algorithms 2, 4 and 5",
        private=True,
        needs="large batches and a learning rate that suits the data",
        summary="Oja with a private range and centre for the whole block",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"batch_size": 64, "learning_rate": 0.5, "range_constant": 8.0},
        epsilon=16.0,
        # A tail exponent of 0 omits the logarithm of the radius, which needs more records.
        useful={
            "batch_size": 4000,
            "learning_rate": 1.0,
            "offset": 0.0,
            "tail_exponent": 0.0,
            "range_constant": 16.0,
        },
        mechanisms=2,
        nulls_count=True,
        has_rho=False,
        always_learns=False,
    )
    worst_cases = BLOCK_RANGE_CASES
    splits_budget: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_mean = AdaptiveMean(*self.privacy.batch_guarantee, self.dim * self.k)

    def _steps(self, state: AdaDPOState) -> int:
        """Count the steps before the next batch, including those without a range."""
        return state.batch

    def _failure(self, step: int) -> float:
        """Return zeta/(2T) for a step, counted from 1."""
        return self.options.failure(step, self._all_steps)

    @property
    def _all_steps(self) -> int | None:
        """T, where it is known."""
        n = self.options.n_records
        return None if n is None else max(n // self.options.records_a_batch(1), 1)

    def _range_blocks(self, step: int) -> int:
        return self.adaptive_mean.range_blocks(self._failure(step), self.options.range_constant)

    def plan_mechanisms(self, state: AdaDPOState) -> Plan:
        count = self.preprocessing.whole_count(self.options.records_a_batch(1))
        return range_plan(self, count, self._range_blocks(self._steps(state) + 1))

    def learn_batch(self, state: AdaDPOState, batch: Batch) -> tuple[AdaDPOState, int]:
        """Make one step if a range is found; the charge is the plan's."""
        step = self._steps(state) + 1
        found = self.adaptive_mean.learn(
            batch,
            self.preprocessing,
            state.basis,
            self._removed(state.basis),
            self._range_blocks(step),
            lambda scale: (math.sqrt(scale), self._radius(scale, len(batch), step)),
        )
        new = replace(state, outcome=found.outcome.value, scale=found.scale, centred=found.centred)
        if found.mean is not None:
            basis, inner = self._step(state, found.mean, step)
            new = replace(new, basis=basis, inner=inner)
        return new, found.clipped

    def _removed(self, basis: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (d, c) orthonormal columns that are projected out of the products."""
        return np.zeros((self.dim, 0))

    def _radius(self, scale: float, records: int, step: int) -> float:
        inside = max(records, 2) * self.dim * self.k / (2 * self.options.failure_probability)
        return 3 * self.options.tail(scale, inside)

    def _step(
        self, state: AdaDPOState, mean: NDArray[np.float64], step: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return oja_step(state.basis, project_symmetric(mean, state.basis), self.options.rate(step))
