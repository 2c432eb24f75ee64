"""TADADPO: adaptive private Oja in the tangent space of a start that another estimator found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from streaming_pca.estimators.adadpo import AdaDPO, AdaDPOOptions, AdaDPOState
from streaming_pca.estimators.base import Card, Estimator, Options, Plan, Subspace
from streaming_pca.estimators.fitting_state import decode_fitting_state
from streaming_pca.estimators.state_bytes import encode_state
from streaming_pca.estimators.warm_starts import WARM_STARTS
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.records import Batch

__all__ = ["TadaDPO", "TadaDPOOptions", "TadaDPOState"]


class TadaDPOOptions(AdaDPOOptions):
    """Settings of :class:`TadaDPO`: the inputs of 003, Algorithm 3, and of its start."""

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
            self.of_warm()
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise ValueError(f"warm_options {where}: {problem['msg']}") from None
        return self

    def of_warm(self) -> Options:
        """The start's settings, read."""
        kind = WARM_STARTS[self.warm_estimator].options_type
        known = {"n_records": self.warm_records} if "n_records" in kind.model_fields else {}
        return kind(**{**known, **self.warm_options})

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return max(self.records_a_batch(1), self.of_warm().largest_batch)


@dataclass(frozen=True)
class TadaDPOState(AdaDPOState):
    """That of ADADPO, and the start's as long as it is being learnt."""

    warm: NDArray[np.uint8] | None = field(kw_only=True)
    """Bytes of the start's state (:func:`~streaming_pca.estimators.state_bytes.encode_state`)."""
    warm_batches: int = field(kw_only=True)
    """Batches that the start has had."""


class TadaDPO(AdaDPO):
    """TADADPO, 003 Algorithm 3 (lines 217-234).

    ===========  ================================================================
    input Q_0    the last release of ``warm_estimator`` on the first
                 ``warm_records``: records that nothing else reads
    lines 2-3    Y_i = (I - Q Q^T) A_i Q: ``_removed``
    line 4       Algorithm 4, PrivRange, at failure probability zeta/(8T)
    line 5       r_t = C_R K sqrt(Lambda) ln^a(B d k T/zeta)
    lines 6-8    Algorithm 5, TruncatedMean, and its noise, as ADADPO's
    line 9       one step of the mean, projected on the tangent space
    ===========  ================================================================

    Mends
    -----
    Those of :class:`~streaming_pca.estimators.adadpo.AdaDPO`, and:

    - C_R is a setting, as the paper gives none.
    - Any private estimator can find the start; without ``n_records`` T is the number of
      the step: the sum of failure probabilities zeta/(8 t (t + 1)) is bounded.
    - Tangent steps tell nothing of Q^T A Q: the explained variances stay
      those of the start, turned with the basis.

    Privacy
    -------
    Replace-one. A record is in a batch of the start, or of the tangent steps. The
    start's costs (epsilon, delta) a record, a tangent step's as ADADPO's. A user
    may enter c batches of both sorts: each then has a c-th of the promise.
    """

    card = Card(
        id="tadadpo",
        name="TadaDPO",
        source="003 Algorithm 3",
        adjacency="replace-one",
        private=True,
        needs="a start within the reach of its steps, and a learning rate that suits the data",
        summary="refines another estimator's subspace by private steps in its tangent space",
    )
    options_type: ClassVar[type[TadaDPOOptions]] = TadaDPOOptions
    state_type: ClassVar[type[TadaDPOState]] = TadaDPOState
    options: TadaDPOOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        epsilon, delta = self.privacy.of_each_batch
        self.warm: Estimator[Any, Any] = WARM_STARTS[self.options.warm_estimator](
            self.dim,
            self.k,
            PrivacyParameters(epsilon=epsilon, delta=delta),
            self.preprocessing,
            self.options.of_warm(),
        )
        # For those that count what they clip only where somebody pays to know.
        self.warm.diagnostics = self.diagnostics

    def init(self, rng: np.random.Generator) -> TadaDPOState:
        """The start's own."""
        warm = self.warm.init(rng)
        basis, inner = self._start(warm)
        return TadaDPOState(0, 0, basis, inner, warm=_bytes(warm), warm_batches=0)

    def _start(self, warm: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A start's subspace as an iterate and its Rayleigh quotients."""
        found = self.warm._release(warm)
        return np.ascontiguousarray(found.components.T), np.diag(found.explained_variance)

    def _steps(self, state: AdaDPOState) -> int:
        """Tangent steps, those included that a batch gave no range for."""
        assert isinstance(state, TadaDPOState)
        return state.batch - state.warm_batches

    def _plan(self, state: AdaDPOState) -> Plan:
        """The start's plan, or B records: half for the range, half for centre and mean."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super()._plan(state)
        plan = self.warm._plan(self._warm_state(state))
        return replace(
            plan,
            # No rho, as later batches have none: a ledger that asks for one refuses the first batch.
            charge=self.privacy.charge(None),
            parameters={"mechanism": self.card.id, "start": self.warm.card.id, **_own(plan.parameters)},
        )

    def _update(self, state: AdaDPOState, batch: Batch) -> tuple[AdaDPOState, int]:
        """A batch of the start, or one tangent step."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super()._update(state, batch)
        warm, clipped = self.warm._update(self._warm_state(state), batch)
        basis, inner = self._start(warm)
        ended = warm.records >= self.options.warm_records
        new = replace(
            state,
            batch=state.batch + 1,
            records=warm.records,
            basis=basis,
            inner=inner,
            outcome=warm.outcome,
            warm=None if ended else _bytes(warm),
            warm_batches=state.warm_batches + 1,
        )
        return new, clipped

    def _warm_state(self, state: TadaDPOState) -> Any:
        """The start's state, with the records that this one has counted."""
        assert state.warm is not None
        return replace(decode_fitting_state(self.warm, state.warm.tobytes()), records=state.records)

    def _removed(self, basis: NDArray[np.float64]) -> NDArray[np.float64]:
        """(d, k): the basis itself."""
        return basis

    def _failure(self, step: int) -> float:
        """zeta/(8T), step from 1."""
        return super()._failure(step) / 4

    def _radius(self, scale: float, records: int, step: int) -> float:
        steps = self._all_steps or step
        inside = max(records, 2) * self.dim * self.k * steps / self.options.failure_probability
        return self.options.radius_constant * self.options.tail(scale, inside)

    def _step(
        self, state: AdaDPOState, mean: NDArray[np.float64], step: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The next iterate, and the start's Rayleigh quotients in it."""
        tangent = mean - state.basis @ (state.basis.T @ mean)
        basis = orthonormalise(state.basis + self._rate(state, step) * tangent)
        turn = basis.T @ state.basis
        inner = turn @ state.inner @ turn.T
        return basis, (inner + inner.T) / 2

    def _release(self, state: AdaDPOState) -> Subspace:
        """What the start releases, and after it the span of the iterate."""
        assert isinstance(state, TadaDPOState)
        if state.warm is None:
            return super()._release(state)
        return self.warm._release(self._warm_state(state))


def _own(parameters: dict[str, Any]) -> dict[str, Any]:
    """A plan's parameters, but for the name of its mechanism."""
    return {name: value for name, value in parameters.items() if name != "mechanism"}


def _bytes(state: Any) -> NDArray[np.uint8]:
    return np.frombuffer(encode_state(state), dtype=np.uint8)
