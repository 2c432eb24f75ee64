"""How far noise and clipping turn the leading subspace of a covariance, to first order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.sizes import SizeDistribution
from streaming_pca.linalg.subspace import ritz_pairs

__all__ = ["Turn", "cut_off"]

Matrix = NDArray[np.float64]

_LEAST_MASS = 0.002


class Turn:
    """How far perturbations of a covariance turn its leading subspace, to first order."""

    def __init__(self, centring: Matrix | None, moment: Matrix, k: int, noise: float) -> None:
        self.centring = centring
        covariance = self.centred(moment)
        d = len(covariance)
        values, vectors = ritz_pairs(covariance, d)
        self.lead, self.rest = vectors[:, :k], vectors[:, k:]
        # The noise alone spreads eigenvalues over +-edge (Wigner): take that off.
        edge = 2 * noise * math.sqrt(d)
        low = values[k:]
        middle = float(low.mean()) if low.size else 0.0
        apart = low - middle
        low = np.sign(apart) * np.sqrt(np.maximum(apart**2 - edge**2, 0.0)) + middle
        least = max(edge / 2, 1e-3 * abs(float(values[0])), 1e-150)
        self.inverse = 1 / np.maximum(values[None, :k] - low[:, None], least) ** 2

    def centred(self, moment: Matrix) -> Matrix:
        return moment if self.centring is None else self.centring @ moment @ self.centring.T

    def of_noise(self, noise: float) -> float:
        """Expected square of the error from noise of this standard deviation off the diagonal."""
        return 2 * noise**2 * float(self.inverse.sum())

    def of_slots(self, shape: Matrix, cut: Matrix, variance: float) -> tuple[Matrix, Matrix, Matrix]:
        """Squares of the error from B = sum of cut_j shape_j less its noise, from that noise, and its spread.

        What the slots have in common is taken off: where the eigenvectors are a
        little wrong, or a stream has turned, that is no bias.

        Parameters
        ----------
        shape : (3, d', d') float64
        cut : (c, 2) float64
            Of the upper two slots, a row for each candidate radius.
        variance : float
            Of the noise off the diagonals of ``shape``.
        """
        centred = np.stack([self.centred(h) for h in shape])
        traces = np.maximum(np.trace(centred, axis1=1, axis2=2), 0.0)
        shares = traces[1:] / max(float(traces.sum()), 1e-300)
        off = np.stack([self.rest.T @ h @ self.lead for h in centred])
        gram = 2 * np.einsum("aij,bij,ij->ab", off, off, self.inverse)
        weights = np.concatenate([np.zeros((len(cut), 1)), cut], axis=1) - (cut @ shares)[:, None]
        seen = np.einsum("ca,ab,cb->c", weights, gram, weights)
        lengths = (weights**2).sum(axis=1)
        of_noise = 2 * variance * float(self.inverse.sum()) * lengths
        deviation = 2 * variance * lengths * math.sqrt(2 * float((self.inverse**2).sum()))
        of_correction = 2 * variance * float(self.inverse.sum()) * (cut**2).sum(axis=1)
        return seen - of_noise, of_correction, deviation


def cut_off(sizes: SizeDistribution, quantiles: Sequence[float], radii: Matrix) -> Matrix:
    """(c, 2): what a clip at each radius cuts off the records of each upper slot, over the slot's mass."""
    edges = [sizes.quantile(q) for q in quantiles]
    columns = []
    for slot, low in enumerate(edges):
        start = np.maximum(radii, low)
        cut = sizes.excess(start) + (start - radii) * sizes.share_above(start)
        mass = float(sizes.share_above(low))
        if slot + 1 < len(edges):
            high = edges[slot + 1]
            end = np.maximum(radii, high)
            cut = cut - sizes.excess(end) - (end - radii) * sizes.share_above(high)
            mass -= float(sizes.share_above(high))
        # A slot of hardly any records shows no shape: nothing is seen to be cut off there.
        told = mass > max(_LEAST_MASS, sizes.doubt)
        columns.append(np.maximum(cut, 0.0) / mass if told else np.zeros(len(radii)))
    return np.stack(columns, axis=1)
