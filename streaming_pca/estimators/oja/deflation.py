"""Deflation: k components, one after the other, each learnt by an oracle."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.estimators.base import Estimator, Options, Outcome, State, Subspace
from streaming_pca.linalg.subspace import orthonormalise

Floats = NDArray[np.float64]

_VANISHED = 1e-6
"""Least length of a unit column after others are projected out; below it the column has no direction."""


@dataclass(frozen=True)
class DeflationState(State):
    """All components, and the position of the learning among them."""

    basis: NDArray[np.float64]
    """(d, k), orthonormal columns. Columns before ``component`` are of this pass, the others of the last."""
    values: NDArray[np.float64]
    """(k,) private Ritz values, each from the last batch that its component learnt from; 0 before."""
    component: int
    """Component of the next batch, from 0."""
    step: int
    """Batches of that component in this pass so far."""
    steps: NDArray[np.int64]
    """(k,) batches that each component has learnt from, over all passes; learning rates depend on it."""
    scale: float | None = None
    """Scale that the oracle clipped the last batch by, if it estimates one."""


@dataclass(frozen=True)
class Learnt:
    """Result of an oracle on one batch. All of it is output of mechanisms, except ``clipped``."""

    iterate: Floats | None
    """(d,) iterate of any length; None if nothing is learnt. It is ignored if it is not finite."""
    value: float
    """Private Ritz value of the iterate; meaningless if nothing is learnt."""
    outcome: Outcome
    clipped: int
    """Records that a clip changed: exact, and as secret as a record."""
    scale: float | None = None
    """Estimated scale to clip by."""


S = TypeVar("S", bound=DeflationState)
O = TypeVar("O", bound=Options)


class Deflation(Estimator[S, O], Generic[S, O]):
    """Frame of k-DP-PCA [DunglerSanyal2025, Alg. 1], and of its Algorithm 4.

    ===========  =================================================================
    step 1       m: ``_steps_per_component`` batches a component, P_0 = I
    step 3       ``_learn``, the oracle of one component, on the next batch
    step 4       P = I - U U^T: ``removed`` of the oracle is U, the components
                 that this pass has found before
    step 6       ``learnt_subspace``
    ===========  =================================================================

    Deviations from the paper
    -------------------------
    - The stream may continue after the k-th component. Then another pass begins, on new records, with
      learning rates that continue. A component starts from its previous value, projected by P; if nothing is
      left of that, from the coordinate that P preserves best.
    - After every batch the oracle's answer is made orthogonal to U and normalised here,
      and all later columns are made orthogonal to it: the basis is always orthonormal.
    - A batch that nothing is learnt from counts as one of the component's batches, but
      not for its learning rate. A component that no batch shows (the records span fewer
      than k directions) must not hold up the others.

    Privacy
    -------
    Batches are disjoint, so a record is in one of them. The oracle of a component sees
    nothing of the others except U, which is their output. The cost of a batch is the oracle's.
    """

    def init(self, rng: np.random.Generator) -> S:
        """Draw a uniformly random basis; the first component is next."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        steps = np.zeros(self.k, dtype=np.int64)
        made: type[Any] = self.state_type
        return cast(S, made(0, 0, basis, np.zeros(self.k), 0, 0, steps))

    def _steps_per_component(self) -> int:
        """Return the batches of a component in a pass: at least 1, from public quantities only."""
        return 1

    @abstractmethod
    def _learn(self, state: S, batch: Batch, iterate: Floats, removed: Floats) -> Learnt:
        """Learn from one batch for ``state.component``; the charge is the plan's.

        This is learning step ``state.steps[state.component] + 1``. ``removed`` is U, (d, i), C order, with
        orthonormal columns: the earlier components of this pass; i may be 0. ``iterate``, (d,), is a unit
        vector orthogonal to them.
        """

    def learn_batch(self, state: S, batch: Batch) -> tuple[S, int]:
        """Give a batch to one component, and move on after its last one."""
        i = state.component
        removed = np.ascontiguousarray(state.basis[:, :i])
        learnt = self._learn(state, batch, np.ascontiguousarray(state.basis[:, i]), removed)
        basis, values, steps = state.basis, state.values, state.steps
        if learnt.iterate is not None and np.isfinite(learnt.iterate).all():
            basis, values, steps = basis.copy(), values.copy(), steps.copy()
            basis[:, i] = learnt.iterate
            orthonormalise_from(basis, i)
            values[i] = learnt.value
            steps[i] += 1
        last = state.step + 1 >= self._steps_per_component()
        new = replace(
            state,
            outcome=learnt.outcome.value,
            basis=basis,
            values=values,
            component=(i + 1) % self.k if last else i,
            step=0 if last else state.step + 1,
            steps=steps,
            scale=learnt.scale,
        )
        return new, learnt.clipped

    def learnt_subspace(self, state: S) -> Subspace:
        """Return the components by decreasing Ritz value."""
        order = np.argsort(-state.values, kind="stable")
        return Subspace(state.basis[:, order].T, np.maximum(state.values[order], 0.0), None)


def orthonormalise_from(basis: Floats, first: int) -> None:
    """Orthonormalise the columns from ``first`` on, each against the columns before it, in place.

    The columns of ``basis`` before ``first`` are orthonormal. A column with almost nothing left is
    replaced by the coordinate with most left, projected: at least 1 - j/d of its squared length, because
    these shares add up to d - j at column j.
    """
    d, k = basis.shape
    for j in range(first, k):
        before = basis[:, :j]
        column = _taken_out(before, basis[:, j])
        if column is None:
            kept = 1.0 - np.einsum("ij,ij->i", before, before)
            column = _taken_out(before, np.eye(1, d, int(np.argmax(kept)))[0])
        # Less can be left only if the columns before were not orthonormal.
        assert column is not None
        basis[:, j] = column


def _taken_out(before: Floats, column: Floats) -> Floats | None:
    """Return a column less its part in a span, as a unit vector. None if almost nothing is left."""
    size = float(np.abs(column).max())
    if not 0 < size < np.inf:
        return None
    unit = column / size
    unit = unit / np.linalg.norm(unit)
    # Twice: rounding leaves a small part of the span after the first projection.
    left = unit - before @ (before.T @ unit)
    left = left - before @ (before.T @ left)
    length = float(np.linalg.norm(left))
    return left / length if length > _VANISHED else None
