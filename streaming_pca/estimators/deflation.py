"""Deflation: k components, one after the other, by any oracle that learns one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Estimator, Options, State, Subspace
from streaming_pca.estimators.learning_rates import LearningRates
from streaming_pca.estimators.outcome import Outcome
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.records import Batch

__all__ = ["ComponentRates", "Deflation", "DeflationState", "Learnt"]

Floats = NDArray[np.float64]

# A column of which less is left when others are taken out has no direction of its own.
_VANISHED = 1e-6


@dataclass(frozen=True)
class DeflationState(State):
    """All components, and which of them is being learnt."""

    basis: NDArray[np.float64]
    """(d, k), orthonormal columns: found in this pass before ``component``, in the last one from it on."""
    values: NDArray[np.float64]
    """(k,) private Ritz values, each as the last batch that its component learnt from saw it; 0 before."""
    component: int
    """The one that the next batch is for, from 0."""
    step: int
    """Batches that it has been given in this pass."""
    steps: NDArray[np.int64]
    """(k,) batches that each component has learnt from, in all passes: learning rates go on."""
    scale: float | None = None
    """What the oracle found in the last batch to clip by, where it looks for that."""


@dataclass(frozen=True)
class Learnt:
    """What an oracle has learnt from a batch: outputs of mechanisms, but for ``clipped``.

    Attributes
    ----------
    iterate : (d,) float64 or None
        Of any length; None where nothing is learnt. One that is not finite is passed over.
    value : float
        Private Ritz value of the iterate; of no use where nothing is learnt.
    outcome : Outcome
    clipped : int
        Records that a clip changed: exact, and as secret as a record.
    scale : float or None
        What it found to clip by.
    """

    iterate: Floats | None
    value: float
    outcome: Outcome
    clipped: int
    scale: float | None = None


class ComponentRates(LearningRates):
    """Learning rates of which each component may have its own (004, appendix G.1; 003, appendix F.2)."""

    eigenvalues: tuple[float, ...] | None = None
    """lambda_1 to lambda_{k+1} of the spectral schedules, falling: public guesses. Component i takes
    lambda_i and lambda_i - lambda_{i+1} from them, in place of ``largest_eigenvalue`` and ``gap``."""

    def _check_guesses(self) -> None:
        values = self.eigenvalues
        if values is None:
            super()._check_guesses()
            return
        if self.schedule == "inverse":
            raise ValueError('eigenvalues is for the spectral schedules, not for schedule = "inverse"')
        if self.noise_level is None:
            raise ValueError(f'schedule = "{self.schedule}" needs noise_level: a public guess')
        if self.largest_eigenvalue is not None or self.gap is not None:
            raise ValueError(
                "eigenvalues takes the place of largest_eigenvalue and gap: give one or the other"
            )
        rising = any(a < b for a, b in pairwise(values))
        if len(values) < 2 or rising or not np.inf > values[0] or not values[-2] > 0 or not values[-1] >= 0:
            raise ValueError("eigenvalues must be two or more that fall, above 0 but for the last")

    def of_component(self, component: int) -> LearningRates:
        """The learning rates of a component, from 0."""
        if self.eigenvalues is None:
            return self
        this, after = self.eigenvalues[component : component + 2]
        return self.model_copy(update={"largest_eigenvalue": this, "gap": this - after})


S = TypeVar("S", bound=DeflationState)
O = TypeVar("O", bound=Options)


class Deflation(Estimator[S, O], Generic[S, O]):
    """k-DP-PCA's frame, 004 Algorithm 1 (lines 108-123), equally its Algorithm 4 (line 634).

    ===========  =================================================================
    line 1       m: ``_steps_per_component`` batches a component, P_0 = I
    line 3       ``_learn``, the oracle of one component, on the next batch
    line 4       P = I - U U^T: ``removed`` of the oracle is U, the components
                 that this pass has found before
    line 6       ``_release``
    ===========  =================================================================

    Mends
    -----
    - The stream need not end with the k-th component: another pass begins, on new
      records, each component from where it was, with learning rates that go on. What
      a component of the new pass starts from is the old one, projected by P; where nothing is
      left of it, the coordinate that P keeps most of.
    - The oracle's answer is made orthogonal to U and normalised here, after every batch,
      and all columns after it to it: the basis is orthonormal at any time.
    - A batch from which nothing is learnt counts as one of the component's batches, but not
      for its learning rate. A component that no batch shows, as where the records span
      fewer than k directions, must not hold up the others.

    Privacy
    -------
    Batches are disjoint, so a record is in one of them, and a component's oracle sees
    nothing of others but U, outputs of theirs. What a batch costs is the oracle's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        guesses = getattr(self.options, "eigenvalues", None)
        if guesses is not None and len(guesses) != self.k + 1:
            raise ValueError(f"eigenvalues must be rank + 1 = {self.k + 1} numbers, not {len(guesses)}")

    def init(self, rng: np.random.Generator) -> S:
        """A uniformly random basis; the first component is next."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        steps = np.zeros(self.k, dtype=np.int64)
        made: type[Any] = self.state_type
        return cast(S, made(0, 0, basis, np.zeros(self.k), 0, 0, steps))

    @abstractmethod
    def _steps_per_component(self) -> int:
        """Batches that a component is given in a pass, at least 1; of public quantities only."""

    @abstractmethod
    def _learn(self, state: S, batch: Batch, iterate: Floats, removed: Floats) -> Learnt:
        """One batch for the component ``state.component``; charged as the plan says.

        Parameters
        ----------
        state : DeflationState
            Before the batch: this is learning step ``state.steps[state.component] + 1``.
        batch : Batch
            Of any length.
        iterate : (d,) float64
            Unit vector at right angles to ``removed``.
        removed : (d, i) float64, C order
            U, orthonormal columns: the components found before; i may be 0.
        """

    def _update(self, state: S, batch: Batch) -> tuple[S, int]:
        """One batch for one component, and on to the next one if it was its last."""
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
            batch=state.batch + 1,
            records=state.records + len(batch),
            outcome=learnt.outcome.value,
            basis=basis,
            values=values,
            component=(i + 1) % self.k if last else i,
            step=0 if last else state.step + 1,
            steps=steps,
            scale=learnt.scale,
        )
        return new, learnt.clipped

    def _release(self, state: S) -> Subspace:
        """The components by decreasing Ritz value."""
        order = np.argsort(-state.values, kind="stable")
        return Subspace(state.basis[:, order].T, np.maximum(state.values[order], 0.0), None)


def orthonormalise_from(basis: Floats, first: int) -> None:
    """Make columns from ``first`` on orthonormal, each to those before it, in place.

    Parameters
    ----------
    basis : (d, k) float64
        The columns before ``first`` are orthonormal. One of which hardly anything is left
        becomes the coordinate of which most is, projected: at least 1 - j/d of its
        squared length, as these shares add up to d - j at column j.
    first : int
    """
    d, k = basis.shape
    for j in range(first, k):
        before = basis[:, :j]
        column = _taken_out(before, basis[:, j])
        if column is None:
            kept = 1.0 - np.einsum("ij,ij->i", before, before)
            column = _taken_out(before, np.eye(1, d, int(np.argmax(kept)))[0])
        # With less left than roundings: no orthonormal columns were before.
        assert column is not None
        basis[:, j] = column


def _taken_out(before: Floats, column: Floats) -> Floats | None:
    """The unit vector of a column less its part in a span; None where hardly anything is left."""
    size = float(np.abs(column).max())
    if not 0 < size < np.inf:
        return None
    unit = column / size
    unit = unit / np.linalg.norm(unit)
    # Twice: what roundings leave of the span after the first is as large as they are, no more after it.
    left = unit - before @ (before.T @ unit)
    left = left - before @ (before.T @ left)
    length = float(np.linalg.norm(left))
    return left / length if length > _VANISHED else None
