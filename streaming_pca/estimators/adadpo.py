"""ADADPO: adaptive private Oja, one range and one centre for the whole block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.adaptive_mean import AdaptiveMean, least_records
from streaming_pca.estimators.adaptive_options import AdaptiveMeanOptions
from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.linalg.subspace import orthonormalise, project_symmetric, ritz_pairs
from streaming_pca.records import Batch

__all__ = ["AdaDPO", "AdaDPOOptions", "AdaDPOState"]


class AdaDPOOptions(AdaptiveMeanOptions):
    """Settings of :class:`AdaDPO`: the inputs of 003, Algorithm 2."""

    batch_rule: Literal["fixed", "n/log n", "sqrt n"] = "fixed"
    """B is ``batch_size``, or n/ln n (003, Theorem 2) or sqrt n (003, F.2) of ``n_records``."""

    def _by_rule(self, n: int, k: int) -> float:
        match self.batch_rule:
            case "n/log n":
                return n / math.log(n)
            case "sqrt n":
                return math.sqrt(n)
            case _:
                return self.batch_size


@dataclass(frozen=True)
class AdaDPOState(State):
    """The iterate, and its last noisy Q^T A Q."""

    basis: NDArray[np.float64]
    """(d, k), orthonormal columns."""
    inner: NDArray[np.float64]
    """(k, k) symmetric: Rayleigh quotients of ``basis`` as the last batch saw them."""
    scale: float | None = None
    """Lambda of the last batch."""
    centred: float | None = None
    """Share of the coordinates that the last batch's histograms found a centre for."""


class AdaDPO(Estimator[AdaDPOState, AdaDPOOptions]):
    """ADADPO, 003 Algorithm 2 (lines 162-176).

    ===========  ================================================================
    line 1       ``init``
    line 2       T from ``batch_rule``; without ``n_records`` the failure
                 probability of step t is zeta/(2 t (t + 1)), which sums to zeta/2
    line 3       Algorithm 4, PrivRange, on the batch's first half:
                 :meth:`~streaming_pca.estimators.adaptive_mean.AdaptiveMean.scale`
    line 4       R_t = 3 K sqrt(Lambda) ln^a(B d k/(2 zeta))
    lines 5-7    Algorithm 5, TruncatedMean, on the second half, and the noise
                 sigma_t: :meth:`~streaming_pca.estimators.adaptive_mean.AdaptiveMean.mean`
    line 8       one step of the projected mean
    ===========  ================================================================

    Mends
    -----
    Those of :mod:`~streaming_pca.estimators.adaptive_mean`, and:

    - Noise (line 7): independent Gaussians on all d k integers, then the
      projection on S_Q, which line 8 has anyway: isotropic there, half the printed
      GOE's variance inside the Q-block, the same privacy.
    - PrivRange may find nothing: then Q stays, the batch is charged, and its
      outcome says so. The printed algorithm goes on with no number.
    - C1 is a setting, as the paper gives none. A batch with fewer than a pair for
      each of its blocks teaches nothing, and its outcome says so.
    - epsilon > 1: the analytic Gaussian multiplier (the remark after Lemma 2).

    Privacy
    -------
    Replace-one. A record is in one half of one batch. Released: the range,
    (epsilon, delta)-DP; the noisy mean about a private centre, together (epsilon,
    delta)-DP by ``accounting``.
    """

    card = Card(
        id="adadpo",
        name="AdaDPO",
        source="003 Algorithms 2, 4 and 5",
        adjacency="replace-one",
        private=True,
        needs="large batches and a learning rate that suits the data",
        summary="Oja with a private range and centre for the whole block",
    )
    options_type: ClassVar[type[AdaDPOOptions]] = AdaDPOOptions
    state_type: ClassVar[type[AdaDPOState]] = AdaDPOState
    in_parts: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_mean = AdaptiveMean.of_batches(self.privacy, self.dim * self.k, self.options.accounting)

    def init(self, rng: np.random.Generator) -> AdaDPOState:
        """A uniformly random basis."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        return AdaDPOState(0, 0, basis, np.zeros((self.k, self.k)))

    def _steps(self, state: AdaDPOState) -> int:
        """Steps taken before the next batch, those included that a batch gave no range for."""
        return state.batch

    def _failure(self, step: int) -> float:
        """zeta/(2T), step from 1."""
        return self.options.failure(step, self._all_steps)

    @property
    def _all_steps(self) -> int | None:
        """T, where it is known."""
        n = self.options.n_records
        return None if n is None else max(n // self.options.records_a_batch(1), 1)

    def _range_blocks(self, step: int) -> int:
        return self.adaptive_mean.range_blocks(self._failure(step), self.options.range_constant)

    def _plan(self, state: AdaDPOState) -> Plan:
        """B records: half for the range, half for centre and mean."""
        granularity = self.preprocessing.granularity
        blocks = self._range_blocks(self._steps(state) + 1)
        count = max(self.options.records_a_batch(1) // granularity * granularity, granularity)
        parameters = {
            "mechanism": self.card.id,
            "range_blocks": blocks,
            **self.options.clip_parameters,
            **self.adaptive_mean.parameters,
        }
        least = min(least_records(blocks, self.preprocessing), count)
        return Plan(count, least, granularity, self.privacy.charge(None), parameters)

    def _update(self, state: AdaDPOState, batch: Batch) -> tuple[AdaDPOState, int]:
        """One step, if a range is found; charged as :meth:`plan` says."""
        step = self._steps(state) + 1
        found = self.adaptive_mean.learn(
            batch,
            self.preprocessing,
            state.basis,
            self._removed(state.basis),
            self._range_blocks(step),
            lambda scale: (math.sqrt(scale), self._radius(scale, len(batch), step)),
        )
        new = replace(
            state,
            batch=state.batch + 1,
            records=state.records + len(batch),
            outcome=found.outcome.value,
            scale=found.scale,
            centred=found.centred,
        )
        if found.mean is not None:
            basis, inner = self._step(state, found.mean, step)
            new = replace(new, basis=basis, inner=inner)
        return new, found.clipped

    def _removed(self, basis: NDArray[np.float64]) -> NDArray[np.float64]:
        """(d, c) orthonormal: what is projected out of the images."""
        return np.zeros((self.dim, 0))

    def _radius(self, scale: float, records: int, step: int) -> float:
        inside = max(records, 2) * self.dim * self.k / (2 * self.options.failure_probability)
        return 3 * self.options.tail(scale, inside)

    def _rate(self, state: AdaDPOState, step: int) -> float:
        return self.options.rate(step, self.dim, self.options.n_records or state.records + 2)

    def _step(
        self, state: AdaDPOState, mean: NDArray[np.float64], step: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The next iterate, and its Rayleigh quotients."""
        projected = project_symmetric(mean, state.basis)
        basis = orthonormalise(state.basis + self._rate(state, step) * projected)
        inner = basis.T @ state.basis @ (state.basis.T @ projected) @ (state.basis.T @ basis)
        return basis, (inner + inner.T) / 2

    def _release(self, state: AdaDPOState) -> Subspace:
        """The span of the iterate, turned to its Ritz vectors."""
        values, turn = ritz_pairs(state.inner, self.k)
        return Subspace((state.basis @ turn).T, np.maximum(values, 0.0), None)
