"""TADADPO: adaptive private Oja in the tangent space of a warm start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from streaming_pca.data.batch import Batch
from streaming_pca.estimators.adaptive import AdaptivePCA
from streaming_pca.estimators.base import Estimator, EstimatorInfo, Options, Plan, Subspace, SuiteOptions
from streaming_pca.estimators.block.block import BlockPCA
from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.estimators.covariance.analyze_gauss import AnalyzeGauss
from streaming_pca.estimators.covariance.output_perturbation import OutputPerturbation
from streaming_pca.estimators.oja.adadpo import AdaDPO, AdaDPOOptions, AdaDPOState
from streaming_pca.estimators.oja.k_dp_ojas import DPOjas
from streaming_pca.estimators.oja.k_dp_pca import DPPCA, KDPPCA
from streaming_pca.estimators.oja.private_oja import PrivateOja
from streaming_pca.estimators.power.adaptive_power import AdaptivePowerMethod
from streaming_pca.estimators.power.noisy_power import NoisyPowerMethod
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.validation_errors import options_lines

WARM_STARTS: dict[str, type[Estimator[Any, Any]]] = {
    e.info.id: e
    for e in (
        AdaDPO,
        AdaptivePCA,
        AdaptivePowerMethod,
        AnalyzeGauss,
        BlockPCA,
        DPOjas,
        DPPCA,
        KDPPCA,
        NoisyPowerMethod,
        OutputPerturbation,
        PrivateOja,
    )
}


class TadaDPOOptions(AdaDPOOptions):
    """Settings of :class:`TadaDPO`: inputs of [DunglerSanyal2026, Algorithm 3], and its start's."""

    warm_estimator: str = "adadpo"
    """The private estimator that finds the start; the paper's is "adadpo"."""
    warm_records: int = Field(default=65_536, ge=2, le=2**40)
    """Records that the start is learnt from: it ends with the batch that reaches them."""
    warm_options: dict[str, Any] = Field(default_factory=dict)
    """The start's own settings; its ``n_records``, where it has one, is ``warm_records``."""
    radius_constant: float = Field(default=3.0, gt=0)
    """C_R of the truncation threshold, which the paper does not give."""

    @model_validator(mode="after")
    def _check_warm(self) -> TadaDPOOptions:
        if self.warm_estimator not in WARM_STARTS:
            raise ValueError(
                f"no warm_estimator {self.warm_estimator!r}; known: {', '.join(sorted(WARM_STARTS))}"
            )
        try:
            self.parse_warm_options()
        except ValidationError:
            lines = options_lines(WARM_STARTS[self.warm_estimator].options_type, self._warm_values)
            raise ValueError("; ".join(f"warm_options {line}" for line in lines)) from None
        return self

    def parse_warm_options(self) -> Options:
        return WARM_STARTS[self.warm_estimator].options_type(**self._warm_values)

    @property
    def _warm_values(self) -> dict[str, Any]:
        fields = WARM_STARTS[self.warm_estimator].options_type.model_fields
        known = {"n_records": self.warm_records} if "n_records" in fields else {}
        return {**known, **self.warm_options}

    @property
    def largest_batch(self) -> int:
        return max(self.records_a_batch(1), self.parse_warm_options().largest_batch)


@dataclass(frozen=True)
class TadaDPOState(AdaDPOState):
    """State of ADADPO, with the start's state until the start is learnt."""

    warm: NDArray[np.uint8] | None = field(kw_only=True)
    """Bytes of the start's state (:func:`~streaming_pca.estimators.common.state.encode_state`); None once
    it is learnt."""
    warm_batches: int = field(kw_only=True)
    """Batches of the start."""


def _warm(estimator: type[Estimator[Any, Any]], options: dict[str, Any], records: int) -> dict[str, Any]:
    return {"warm_estimator": estimator.info.id, "warm_options": options, "warm_records": records}


class TadaDPO(AdaDPO):
    """TADADPO [DunglerSanyal2026, Algorithm 3].

    ===========  ================================================================
    input Q_0    the last release of ``warm_estimator`` on the first
                 ``warm_records``, which no other mechanism reads
    steps 2-3    Y_i = (I - Q Q^T) A_i Q: ``_removed``
    step 4       Algorithm 4, PrivRange, at failure probability zeta/(8T)
    step 5       r_t = C_R K sqrt(Lambda) ln^a(B d k T/zeta)
    steps 6-8    Algorithm 5, TruncatedMean, and its noise, as ADADPO's
    step 9       one step of the mean, projected on the tangent space
    ===========  ================================================================

    Deviations from the paper
    -------------------------
    Those of :class:`~streaming_pca.estimators.oja.adadpo.AdaDPO`, and:

    - C_R is a setting, as the paper gives none.
    - Any private estimator can find the start. Without ``n_records`` T is the number of
      the step: the sum of failure probabilities zeta/(8 t (t + 1)) is bounded.
    - Tangent steps do not measure Q^T A Q: the explained variances are the start's, turned with the basis.

    Privacy
    -------
    Adjacency: replace-one. Released: the start's releases, then private ranges and noisy
    means of the tangent steps. A record is in a batch of the start or of the tangent
    steps, never both. A batch of the start costs each record (epsilon, delta), a tangent
    step costs the same as ADADPO's. A user may enter c batches of both sorts: each then
    costs a c-th of (epsilon, delta).
    """

    info = EstimatorInfo(
        id="tadadpo",
        source="DunglerSanyal2026, Algorithm 3",
        private=True,
        needs="a start within the reach of its steps, and a learning rate that suits the data",
        summary="refines another estimator's subspace by private steps in its tangent space",
    )
    options_type: ClassVar[type[TadaDPOOptions]] = TadaDPOOptions
    state_type: ClassVar[type[TadaDPOState]] = TadaDPOState
    suite_options: ClassVar[SuiteOptions] = replace(
        AdaDPO.suite_options,
        options=AdaDPO.suite_options.options | _warm(PrivateOja, PrivateOja.suite_options.options, 50),
        variants=(_warm(OutputPerturbation, OutputPerturbation.suite_options.options, 50),),
        clip=_warm(AnalyzeGauss, {"clip_radius": 4.0}, 50),
        useful=AdaDPO.suite_options.useful
        | {"learning_rate": 0.05}
        | _warm(AnalyzeGauss, {"clip_radius": 64.0}, 8000),
    )
    options: TadaDPOOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        epsilon, delta = self.privacy.batch_guarantee
        self.warm: Estimator[Any, Any] = WARM_STARTS[self.options.warm_estimator](
            self.dim,
            self.k,
            PrivacyParameters(epsilon=epsilon, delta=delta),
            self.preprocessing,
            self.options.parse_warm_options(),
        )
        # Some estimators count clipped records only where diagnostics pay for the count.
        self.warm.diagnostics = self.diagnostics

    def init(self, rng: np.random.Generator) -> TadaDPOState:
        warm = self.warm.init(rng)
        basis, inner = self._start(warm)
        return TadaDPOState(0, 0, basis, inner, warm=_bytes(warm), warm_batches=0)

    def _start(self, warm: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a start's subspace as an iterate, and its Rayleigh quotients."""
        found = self.warm.learnt_subspace(warm)
        return np.ascontiguousarray(found.components.T), np.diag(found.explained_variance)

    def _steps(self, state: AdaDPOState) -> int:
        """Count tangent steps, including batches without a range."""
        assert isinstance(state, TadaDPOState)
        return state.batch - state.warm_batches

    def plan_mechanisms(self, state: AdaDPOState) -> Plan:
        """Return the start's plan, or B records: half for the range, half for centre and mean."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super().plan_mechanisms(state)
        plan = self.warm.plan_mechanisms(self._warm_state(state))
        return replace(
            plan,
            # Later batches have no rho, so a ledger that asks for one must refuse the first batch.
            charge=self.privacy.charge(None),
            parameters=plan.parameters | {"mechanism": self.info.id, "start": self.warm.info.id},
        )

    def planned_records(self, batches: int, records: int) -> int:
        """Return the start's planned size, or B."""
        if records < self.options.warm_records:
            return self.warm.planned_records(batches, records)
        return self.preprocessing.whole_count(self.options.records_a_batch(1))

    def learn_batch(self, state: AdaDPOState, batch: Batch) -> tuple[AdaDPOState, int]:
        """Learn a batch of the start, or take one tangent step."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super().learn_batch(state, batch)
        before = self._warm_state(state)
        warm, clipped = self.warm.learn_batch(before, batch)
        warm = replace(warm, batch=before.batch + 1, records=before.records + len(batch))
        basis, inner = self._start(warm)
        ended = warm.records >= self.options.warm_records
        new = replace(
            state,
            basis=basis,
            inner=inner,
            outcome=warm.outcome,
            warm=None if ended else _bytes(warm),
            warm_batches=state.warm_batches + 1,
        )
        return new, clipped

    def _warm_state(self, state: TadaDPOState) -> Any:
        """Decode the start's state, with this state's count of records."""
        assert state.warm is not None
        return replace(decode_fitting_state(self.warm, state.warm.tobytes()), records=state.records)

    def _removed(self, basis: NDArray[np.float64]) -> NDArray[np.float64]:
        return basis

    def _failure(self, step: int) -> float:
        """Return zeta/(8T); steps count from 1."""
        return super()._failure(step) / 4

    def _radius(self, scale: float, records: int, step: int) -> float:
        steps = self._all_steps or step
        inside = max(records, 2) * self.dim * self.k * steps / self.options.failure_probability
        return self.options.radius_constant * self.options.tail(scale, inside)

    def _step(
        self, state: AdaDPOState, mean: NDArray[np.float64], step: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the next iterate, and the start's Rayleigh quotients in it."""
        tangent = mean - state.basis @ (state.basis.T @ mean)
        basis = orthonormalise(state.basis + self.options.rate(step) * tangent)
        turn = basis.T @ state.basis
        inner = turn @ state.inner @ turn.T
        return basis, (inner + inner.T) / 2

    def learnt_subspace(self, state: AdaDPOState) -> Subspace:
        """Return the start's release, or after the start the span of the iterate."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super().learnt_subspace(state)
        return self.warm.learnt_subspace(self._warm_state(state))


def _bytes(state: Any) -> NDArray[np.uint8]:
    return np.frombuffer(encode_state(state), dtype=np.uint8)
