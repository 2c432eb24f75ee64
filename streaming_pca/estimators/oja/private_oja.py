"""Private Oja: one noisy, clipped block update a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from streaming_pca.data.batch import Batch
from streaming_pca.estimators.base import EstimatorInfo, Plan, SuiteOptions
from streaming_pca.estimators.common.clipped_sums import block_sensitivity, block_sum
from streaming_pca.estimators.oja.oja import IterateEstimator, IterateState, LearningRates, oja_step
from streaming_pca.estimators.worst_cases import PRIVATE_OJA_CASES
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma, textbook_multiplier
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric_space


class PrivateOjaOptions(LearningRates):
    """Settings of :class:`PrivateOja`: the inputs of [DunglerSanyal2026, Alg. 1]."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    clip_radius: float = Field(gt=0)
    """R, for ``|A_i Q|_F``; in squared units of the records, public. No default suits all data."""
    batch_size: int = Field(default=4096, ge=2, le=MAX_RECORDS)
    """Records B of a batch."""
    calibration: Literal["paper", "analytic"] = "paper"
    """Printed noise multiplier, or the smallest one, at the same (epsilon, delta)."""

    @model_validator(mode="after")
    def _check(self) -> PrivateOjaOptions:
        if not 1e-200 <= self.clip_radius <= 1e200:
            raise ValueError("clip_radius must lie between 1e-200 and 1e200")
        return self


class PrivateOja(IterateEstimator[IterateState, PrivateOjaOptions]):
    """Private Oja [DunglerSanyal2026, Alg. 1].

    ===========  =========================================================
    step 1       sigma = 2 R sqrt(2 ln(1.25/delta))/(B epsilon); the analytic
                 value where epsilon > 1, or by ``calibration = "analytic"``
    step 2       ``init``
    steps 4 - 6  ``update``; clip_R (section 2.1) is
                 :func:`~streaming_pca.estimators.common.clipped_sums.block_sum`
    ===========  =========================================================

    Deviations from the paper
    -------------------------
    - Noise (step 5): independent Gaussians on all d k integers, then the projection on S_Q: isotropic there,
      half the printed variance inside the Q-block, the same privacy.
    - Centring: the printed algorithm has second moments only ("none"). "pairs"
      and a public vector are public maps of the records and work here too.

    Privacy
    -------
    Replace-one. Each record is in one batch; a batch releases its noisy clipped
    mean, of sensitivity 2R/B, by a Gaussian mechanism that is (epsilon, delta)-DP.
    A user may enter c batches: then c such mechanisms compose to (epsilon, delta).
    """

    info = EstimatorInfo(
        id="private-oja",
        source="DunglerSanyal2026, Algorithm 1",
        private=True,
        needs="clip_radius and a learning rate that suit the data",
        summary="clipped block Oja updates with noise in the symmetric space",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"clip_radius": 2.0, "batch_size": 64, "learning_rate": 0.5},
        variants=({"calibration": "analytic"},),
        clip={"clip_radius": 4.0},
        useful={"clip_radius": 64.0, "batch_size": 4000, "learning_rate": 5.0, "offset": 0.0},
    )
    worst_cases = PRIVATE_OJA_CASES

    def plan_mechanisms(self, state: IterateState) -> Plan:
        granularity = self.preprocessing.granularity
        multiplier = self._sigma() / block_sensitivity(self.kind)
        parameters = {
            "mechanism": "private-oja",
            "clip_radius": self.options.clip_radius,
            "sigma_over_sensitivity": multiplier,
        }
        count = self.preprocessing.whole_count(self.options.batch_size)
        # The noise of a sum does not shrink with its batch: fewer than B/4 records are not worth a step.
        least = self.preprocessing.whole_count(count // 4)
        charge = self.privacy.charge(self.privacy.contributions * gaussian_rho(multiplier))
        return Plan(count, least, granularity, charge, parameters)

    def _sigma(self) -> float:
        p, printed = self.privacy, None
        # The printed multiplier is proved for epsilon <= 1 only.
        if self.options.calibration == "paper" and p.epsilon <= 1:
            printed = textbook_multiplier(p.epsilon, p.delta) * math.sqrt(p.contributions)
        return lattice_sigma(p.epsilon, p.delta, block_sensitivity(self.kind), printed, p.contributions)

    def learn_batch(self, state: IterateState, batch: Batch) -> tuple[IterateState, int]:
        """Make one Oja step on the batch's noisy mean; the charge is the plan's."""
        exact = block_sum(batch, self.preprocessing, state.basis, self.options.clip_radius)
        noisy = gaussian_on_symmetric_space(exact.total, state.basis, self._sigma())
        mean = noisy * (exact.unit / max(len(batch) // self.preprocessing.units, 1))
        basis, inner = oja_step(state.basis, mean, self.options.rate(state.batch + 1))
        return replace(state, basis=basis, inner=inner), exact.clipped
