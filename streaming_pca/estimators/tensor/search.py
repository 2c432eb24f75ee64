"""Search for a tensor's components one after the other, then refinement of all.

Shared by both tensor estimators. It works on products T(I, u, u) alone: Algorithms 2
and 3 of [WangAnandkumar2016] differ only in the way they compute these.

==================================  ==================================================
Algorithm 2, step 3; 3, step 4      :meth:`TensorSearch.start`
candidates of a batch's products    :attr:`TensorSearch.queries`
Algorithm 2, steps 7, 8, 10;        :meth:`TensorSearch.learn`
Algorithm 3, steps 8, 10, 11
==================================  ==================================================

Deviations from the paper
-------------------------
- The stream has no end. When all k components are found, every batch computes their k products, deflates each
  by the others, and averages: a component is the direction of the mean product of the last ``window``
  batches. So the error falls with the records, and the estimate follows drift.
- Components that are not found yet: an orthonormal fill, of weight 0.
- The last step's products give the weights of its candidates, as in Algorithm 2;
  Algorithm 3 queries them again. u . T(I, u, u) is T(u, u, u).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.estimators.base import Options, Subspace
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import (
    deflated,
    enough_restarts,
    enough_steps,
    normalised,
    product_values,
    random_starts,
)
from streaming_pca.privacy.randomness import utility_generator

Matrix = NDArray[np.float64]

_LARGEST = 1e150  # bound of the weights: they stay finite


class TensorOptions(Options):
    """Settings of both tensor estimators."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    batch_size: int = Field(default=16_384, ge=2, le=MAX_RECORDS)
    """n: records of a batch, which is one power step."""
    restarts: int | None = Field(default=None, ge=1, le=1000)
    """L: candidates for a component; by default 2 k log k, at least 10 (Theorem 2.2)."""
    steps: int | None = Field(default=None, ge=1, le=1000)
    """R: power steps, and so batches, for a component; by default 2 log2(dim) + 6 (Theorem 2.2), with
    the rank in place of dim if a whitening has reduced the search to it."""
    window: int = Field(default=64, ge=1, le=2**20)
    """Batches that a component is averaged over, once all are found."""

    def effective_restarts(self, k: int) -> int:
        """Return L at rank k."""
        return enough_restarts(k) if self.restarts is None else self.restarts

    def steps_in(self, dim: int) -> int:
        """Return R in ``dim`` dimensions."""
        return enough_steps(dim) if self.steps is None else self.steps


@dataclass(frozen=True)
class TensorSearch:
    """State of the search: O(n (k + L)) numbers in n dimensions."""

    seed: int
    """Seed of the starts: utility randomness."""
    candidates: Matrix
    """(n, L), unit columns: u of each restart."""
    weights: Matrix
    """(k,): lambda of the components found, 0 for others."""
    components: Matrix
    """(k, n), unit rows: v of found components, orthonormal fill for others."""
    products: Matrix
    """(k, n): the mean product of each component, deflated by the others."""
    found: int
    """Number of components found."""
    step: int
    """Power steps of the candidates; batches of refinement, once all are found."""

    @classmethod
    def start(cls, rng: np.random.Generator, dim: int, k: int, restarts: int) -> TensorSearch:
        seed = int(rng.integers(2**62))
        fill = orthonormalise(rng.standard_normal((dim, k))).T
        return cls(seed, _starts(seed, 0, dim, restarts), np.zeros(k), fill, np.zeros((k, dim)), 0, 0)

    @property
    def is_complete(self) -> bool:
        return self.found == len(self.weights)

    @property
    def queries(self) -> Matrix:
        """Candidates (n, L) of the next batch's products; once all are found, components (n, k)."""
        return np.ascontiguousarray(self.components.T) if self.is_complete else self.candidates

    def learn(self, products: Matrix, steps: int, window: int) -> TensorSearch:
        """Make one power step.

        ``products`` are T(I, u, u) of the :attr:`queries`, of fresh records; ``steps`` is R.
        """
        return self._refined(products, window) if self.is_complete else self._searched(products, steps)

    def _searched(self, products: Matrix, steps: int) -> TensorSearch:
        i = self.found
        products = deflated(products, self.candidates, self.weights[:i], self.components[:i])
        unit = normalised(products, self.candidates)
        if self.step + 1 < steps:
            return replace(self, candidates=unit, step=self.step + 1)
        values = np.clip(product_values(products, self.candidates), -_LARGEST, _LARGEST)
        best = int(np.argmax(values))
        weights, components, means = self.weights.copy(), self.components.copy(), self.products.copy()
        weights[i], components[i] = values[best], unit[:, best]
        means[i] = values[best] * components[i]
        # The rest stays a fill: orthonormal, also to the components found.
        components[i + 1 :] = orthonormalise(components.T).T[i + 1 :]
        return replace(
            self,
            candidates=_starts(self.seed, i + 1, *unit.shape),
            weights=weights,
            components=components,
            products=means,
            found=i + 1,
            step=0,
        )

    def _refined(self, products: Matrix, window: int) -> TensorSearch:
        queries = self.queries
        overlaps = (self.components @ queries) ** 2
        np.fill_diagonal(overlaps, 0.0)
        own = products - self.components.T @ (self.weights[:, None] * overlaps)
        gain = max(1 / (self.step + 2), 1 / window)
        mean = np.clip((1 - gain) * self.products.T + gain * own, -_LARGEST, _LARGEST)
        components = normalised(mean, queries)
        return replace(
            self,
            weights=np.clip(product_values(mean, components), -_LARGEST, _LARGEST),
            components=np.ascontiguousarray(components.T),
            products=np.ascontiguousarray(mean.T),
            step=self.step + 1,
        )


def _starts(seed: int, component: int, dim: int, restarts: int) -> Matrix:
    return random_starts(utility_generator((seed << 16) | component), dim, restarts)


def tensor_subspace(weights: NDArray[np.float64], components: NDArray[np.float64]) -> Subspace:
    """Sort components by decreasing weight; post-processing.

    A weight below 0 is noise, and is released as 0: the components are those of
    positive weight. It is the ``explained_variance`` too, of the third moment.

    ``weights``, (k,), are 0 for components that are not found yet; ``components``, (k, d), are unit rows.
    """
    kept = np.maximum(weights, 0.0)
    # Stable: at weight 0, components found come before the fill.
    order = np.argsort(-kept, kind="stable")
    return Subspace(components[order], kept[order], None, weights=kept[order])
