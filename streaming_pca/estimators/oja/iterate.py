"""Iterate of Oja's rule: its start, one step of it, and its release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Estimator, Options, State, Subspace
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs

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
        """Draw a uniformly random basis."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        made: type[Any] = self.state_type
        return cast(S, made(0, 0, basis, np.zeros((self.k, self.k))))

    def learnt_subspace(self, state: S) -> Subspace:
        """Return the span of the iterate, rotated to its Ritz vectors."""
        values, turn = ritz_pairs(state.inner, self.k)
        return Subspace((state.basis @ turn).T, np.maximum(values, 0.0), None)


def oja_step(basis: Floats, gradient: Floats, rate: float) -> tuple[Floats, Floats]:
    """Make a step of Oja's rule.

    Parameters
    ----------
    basis : (d, k) float64
        Q, orthonormal columns.
    gradient : (d, k) float64
        Estimate of A Q, projected on S_Q = {Y : Q^T Y symmetric}.

    Returns
    -------
    The next basis (d, k), and the Rayleigh quotients (k, k) that the gradient gives it
    """
    new = orthonormalise(basis + rate * gradient)
    inner = new.T @ basis @ (basis.T @ gradient) @ (basis.T @ new)
    return new, (inner + inner.T) / 2
