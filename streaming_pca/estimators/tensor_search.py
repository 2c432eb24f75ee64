"""The search for a tensor's components, one after the other, and their refinement ever after.

What both tensor estimators share. It works on images T(I, u, u) alone, whoever
computes them and however: Algorithms 2 and 3 of 001 differ in nothing else.

==================================  ==================================================
Algorithm 2, line 3; 3, line 4      :meth:`TensorSearch.start`
which images a batch computes       :attr:`TensorSearch.queries`
Algorithm 2, lines 7, 8, 10;        :meth:`TensorSearch.learn`
Algorithm 3, lines 8, 10, 11
==================================  ==================================================

Mends
-----
- The stream has no end. When all k components are found, every batch computes
  their own k images, takes the other components off, and averages: a component
  is the direction of the mean image of the last ``window`` batches. So the
  error falls with the records, and what drifts is followed.
- Components that are not found yet: an orthonormal fill, of weight 0.
- The last step's images tell the weights of its candidates, as in Algorithm 2;
  Algorithm 3 asks for them once more. u . T(I, u, u) is T(u, u, u).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.estimators.base import Options
from streaming_pca.linalg.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import (
    deflated,
    enough_restarts,
    enough_steps,
    image_values,
    normalised,
    random_starts,
)
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import Batch

__all__ = ["TensorOptions", "TensorSearch", "single_rows"]

Matrix = NDArray[np.float64]

_LARGEST = 1e150
"""Weights above it are cut: they stay finite."""


class TensorOptions(Options):
    """Settings that both tensor estimators have."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    batch_size: int = Field(default=16_384, ge=2, le=MAX_RECORDS)
    """n: records of a batch, which is one power step."""
    restarts: int | None = Field(default=None, ge=1, le=1000)
    """L: candidates for a component. Left out: 2 k log k, at least 10 (Theorem 2.2)."""
    steps: int | None = Field(default=None, ge=1, le=1000)
    """R: power steps, and so batches, for a component. Left out: 2 log2(dim) + 6 (Theorem 2.2), with
    the rank in the place of dim where a whitening has reduced the search to it."""
    window: int = Field(default=64, ge=1, le=2**20)
    """Batches that a component is averaged over, once all are found."""

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return self.batch_size

    def restarts_of(self, k: int) -> int:
        """L at this rank."""
        return enough_restarts(k) if self.restarts is None else self.restarts

    def steps_in(self, dim: int) -> int:
        """R in this many dimensions."""
        return enough_steps(dim) if self.steps is None else self.steps


def single_rows(batch: Batch) -> Batch:
    """The batch with all records null but those of one row: others have no third moment."""
    return batch.keeping(np.diff(batch.starts) == 1)


@dataclass(frozen=True)
class TensorSearch:
    """Where the search is; O(n (k + L)) numbers in n dimensions."""

    seed: int
    """Of the starts: utility randomness."""
    candidates: Matrix
    """(n, L), unit columns: u of each restart."""
    weights: Matrix
    """(k,): lambda of the components found, 0 for others."""
    components: Matrix
    """(k, n), unit rows: v of those found, orthonormal fill for others."""
    images: Matrix
    """(k, n): the mean image of each component, others taken off."""
    found: int
    """Components found."""
    step: int
    """Power steps that the candidates have made; batches of refinement, once all are found."""

    @classmethod
    def start(cls, rng: np.random.Generator, dim: int, k: int, restarts: int) -> TensorSearch:
        """Nothing found, random candidates."""
        seed = int(rng.integers(2**62))
        fill = orthonormalise(rng.standard_normal((dim, k))).T
        zeros = np.zeros((k, dim))
        return cls(seed, _starts(seed, 0, dim, restarts), np.zeros(k), fill, zeros, 0, 0)

    @property
    def is_complete(self) -> bool:
        """Whether all components are found."""
        return self.found == len(self.weights)

    @property
    def queries(self) -> Matrix:
        """(n, L) or, once all are found, (n, k): what the next batch computes images of."""
        return np.ascontiguousarray(self.components.T) if self.is_complete else self.candidates

    def learn(self, images: Matrix, steps: int, window: int) -> TensorSearch:
        """One power step.

        Parameters
        ----------
        images : as :attr:`queries`
            T(I, u, u) of each, of fresh records.
        steps : int
            R.
        window : int
        """
        return self._refined(images, window) if self.is_complete else self._searched(images, steps)

    def _searched(self, images: Matrix, steps: int) -> TensorSearch:
        i = self.found
        images = deflated(images, self.candidates, self.weights[:i], self.components[:i])
        unit = normalised(images, self.candidates)
        if self.step + 1 < steps:
            return replace(self, candidates=unit, step=self.step + 1)
        values = np.clip(image_values(images, self.candidates), -_LARGEST, _LARGEST)
        best = int(np.argmax(values))
        weights, components, means = self.weights.copy(), self.components.copy(), self.images.copy()
        weights[i], components[i] = values[best], unit[:, best]
        means[i] = values[best] * components[i]
        # The rest is to stay a fill: orthonormal, and to those found.
        components[i + 1 :] = orthonormalise(components.T).T[i + 1 :]
        return replace(
            self,
            candidates=_starts(self.seed, i + 1, *unit.shape),
            weights=weights,
            components=components,
            images=means,
            found=i + 1,
            step=0,
        )

    def _refined(self, images: Matrix, window: int) -> TensorSearch:
        queries = self.queries
        overlaps = (self.components @ queries) ** 2
        np.fill_diagonal(overlaps, 0.0)
        own = images - self.components.T @ (self.weights[:, None] * overlaps)
        gain = max(1 / (self.step + 2), 1 / window)
        mean = np.clip((1 - gain) * self.images.T + gain * own, -_LARGEST, _LARGEST)
        components = normalised(mean, queries)
        return replace(
            self,
            weights=np.clip(image_values(mean, components), -_LARGEST, _LARGEST),
            components=np.ascontiguousarray(components.T),
            images=np.ascontiguousarray(mean.T),
            step=self.step + 1,
        )


def _starts(seed: int, component: int, dim: int, restarts: int) -> Matrix:
    return random_starts(utility_generator((seed << 16) | component), dim, restarts)
