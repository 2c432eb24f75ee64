"""k-DP-PCA: adaptive private Oja, one component at a time; and DP-PCA, for one component."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.data.batch import Batch
from streaming_pca.estimators.base import EstimatorInfo, Plan, SuiteOptions
from streaming_pca.estimators.oja.adadpo import AdaDPO
from streaming_pca.estimators.oja.deflation import Deflation, DeflationState, Learnt
from streaming_pca.estimators.oja.oja import AdaptiveMeanOptions
from streaming_pca.estimators.oja.truncated_mean import AdaptiveMean, range_plan
from streaming_pca.estimators.worst_cases import COMPONENT_RANGE_CASES


class KDPPCAOptions(AdaptiveMeanOptions):
    """Settings of :class:`KDPPCA`: the inputs of [DunglerSanyal2025, Algs. 1 and 2]."""

    batch_rule: Literal["fixed", "sqrt n", "n/log n", "n/log^3 n"] = "fixed"
    """B: ``batch_size``; or of ``n_records`` sqrt(n)/k or n/(k ln n) ([DunglerSanyal2026, appendix F.2]), or
    n/ln^3 n ([DunglerSanyal2025, appendix G.1], which found sqrt n better). A component gets n/k records."""
    steps_per_component: int = Field(default=8, ge=1, le=2**20)
    """Batches for a component before the next one's turn, if ``n_records`` is not set."""

    def _by_rule(self, n: int, k: int) -> float:
        match self.batch_rule:
            case "sqrt n":
                return math.sqrt(n) / k
            case "n/log n":
                return n / (k * math.log(n))
            case "n/log^3 n":
                return n / math.log(n) ** 3
            case _:
                return self.batch_size


class KDPPCA(Deflation[DeflationState, KDPPCAOptions]):
    """k-DP-PCA [DunglerSanyal2025, Alg. 1] with the oracle ModifiedDP-PCA (Algorithm 2).

    ===============  ================================================================
    Algorithm 1      :class:`~streaming_pca.estimators.oja.deflation.Deflation`; m = n/k
                     records a component with ``n_records``, else ``steps_per_component`` batches
    Alg. 2, step 1   ``init``, and Deflation's projection
    step 2           T = m/B, B by ``batch_rule``
    step 3           PrivRange (Algorithm 6), on the batch's first half:
                     :meth:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean.scale`
    step 4           PrivMean (Algorithm 7), on the second half:
                     :meth:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean.mean`; bins of width
                     2^(1/4) K sqrt(Lambda) ln^a 25, radius 3 K sqrt(Lambda) ln^a(B d/tau), with its own B and
                     tau: half a batch's records, and tau/(2 T) of step 4
    steps 5 - 6      ``_learn``; P and the norm in Deflation; eta_t of appendix G.1 by
                     ``schedule = "spectral"`` and ``eigenvalues``
    ===============  ================================================================

    Deviations from the paper
    -------------------------
    Those of :mod:`~streaming_pca.estimators.oja.truncated_mean` and of Deflation, and:

    - Range and mean (steps 3 and 4): in the paper both read the same half, at half of
      (epsilon, delta) each, and the other half is never read. Here each has its own half,
      at the whole budget: equal in privacy, and better in use.
    - Adjacency (Algorithm 7, step 9): printed for add/remove, although its 12 = 2 (2 3) has
      the whole width of the box for one record. Replace-one needs that width too: a
      record's coordinate may move from one end of the box to the other.
    - The bins' constant is printed as log^2 25, with log^a in the step after it: a = 2 of
      [LiuEtAl2022]. Here it is ln^a 25.
    - The range: Algorithm 6 has no 1/2 for differences of pairs and returns l; [DunglerSanyal2026, Alg. 4]
      has 1/2 and returns 2 l. These are one number, because bins are quarter octaves.
    - PrivRange may find no range. Then the iterate stays, the batch is charged, and its
      outcome is "no-scale". A batch with fewer pairs than PrivRange has blocks is not
      tried; its outcome is "too-few-records".
    - Without ``n_records`` T is undefined: batch t of the run has the failure probability
      tau/(2 t (t + 1)), which sums to tau/2.
    - epsilon > 1: the analytic Gaussian multiplier.

    Privacy
    -------
    Replace-one. A record is in one half of one batch. Released: the range,
    (epsilon, delta)-DP; the noisy mean about a private centre, together (epsilon,
    delta)-DP. A user may enter c batches: each costs a c-th.
    """

    info = EstimatorInfo(
        id="k-dp-pca",
        source="DunglerSanyal2025, Algorithms 1, 2, 6 and 7",
        private=True,
        needs="large batches and a learning rate that suits the data",
        summary="one component after the other, by Oja with a private range and centre",
    )
    suite_options: ClassVar[SuiteOptions] = replace(
        AdaDPO.suite_options,
        options=AdaDPO.suite_options.options | {"steps_per_component": 1},
        useful=AdaDPO.suite_options.useful | {"steps_per_component": 2},
    )
    worst_cases = COMPONENT_RANGE_CASES
    splits_budget: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_mean = AdaptiveMean(*self.privacy.batch_guarantee, self.dim)

    def _count(self) -> int:
        """Return B, in whole pairs where the centring needs them."""
        return self.preprocessing.whole_count(self.options.records_a_batch(self.k))

    def _steps_per_component(self) -> int:
        """Return T, the batches of a component in a pass."""
        if self.options.n_records is None:
            return self.options.steps_per_component
        return max(self.options.n_records // self.k // self._count(), 1)

    def _failure(self, batch: int) -> float:
        """Return tau/(2 T) for a batch, counted from 1."""
        known = self.options.n_records is not None
        return self.options.failure(batch, self._steps_per_component() if known else None)

    def _range_blocks(self, batch: int) -> int:
        return self.adaptive_mean.range_blocks(self._failure(batch), self.options.range_constant)

    def _radius(self, scale: float, records: int, batch: int) -> float:
        """Return R for a batch of ``records`` records."""
        granularity = self.preprocessing.granularity
        products = (records - records // (2 * granularity) * granularity) // self.preprocessing.units
        return 3 * self.options.tail(scale, products * self.dim / self._failure(batch))

    def plan_mechanisms(self, state: DeflationState) -> Plan:
        blocks, failure = self._range_blocks(state.batch + 1), self._failure(state.batch + 1)
        return range_plan(self, self._count(), blocks, failure_probability=failure)

    def _learn(
        self, state: DeflationState, batch: Batch, iterate: NDArray[np.float64], removed: NDArray[np.float64]
    ) -> Learnt:
        """Make one Oja step if a range is found."""
        number, i = state.batch + 1, state.component
        found = self.adaptive_mean.learn(
            batch,
            self.preprocessing,
            iterate[:, None],
            removed,
            self._range_blocks(number),
            lambda scale: (2**0.25 * self.options.tail(scale, 25), self._radius(scale, len(batch), number)),
        )
        if found.mean is None:
            return Learnt(None, 0.0, found.outcome, found.clipped)
        gradient = found.mean[:, 0]
        eta = self.options.rate(int(state.steps[i]) + 1, i)
        value = float(iterate @ gradient)
        return Learnt(iterate + eta * gradient, value, found.outcome, found.clipped, found.scale)


class DPPCA(KDPPCA):
    """DP-PCA [LiuEtAl2022]: :class:`KDPPCA` for one component.

    This is [DunglerSanyal2025, Alg. 2] alone. With k = 1 nothing is projected out and every
    batch is for the one component. Steps, deviations and privacy are those of :class:`KDPPCA`.
    """

    info = EstimatorInfo(
        id="dp-pca",
        source="DunglerSanyal2025, Algorithm 2 with k = 1 (LiuEtAl2022)",
        private=True,
        needs="rank = 1, large batches and a learning rate that suits the data",
        summary="the leading component, by Oja with a private range and centre",
    )
    suite_options: ClassVar[SuiteOptions] = replace(KDPPCA.suite_options, rank=1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.k != 1:
            raise ValueError(f"dp-pca finds one component, not {self.k}: ask for 1, or take k-dp-pca")
