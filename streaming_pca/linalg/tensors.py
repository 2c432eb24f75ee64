"""Symmetric third-order tensors: products T(I, u, u), deflation, whitening, the power method.

A moment E[x (x) x (x) x] is never formed: its product T(I, u, u) is the mean of (x . u)^2 x, so L candidates
u and k found components take O(d (k + L)) numbers. Dense tensors: :mod:`experiments.papers.dense_tensors`.

Source: [WangAnandkumar2016].

==================================  ==================================================
Algorithm 1, step 3                 :func:`random_starts`
Algorithm 1, step 4                 :func:`normalised`
Algorithm 2, step 6 (u)             :func:`products_of_rows`
Algorithm 2, step 6 (lambda)        :func:`product_values`: T(u, u, u) = u . T(I, u, u)
Algorithm 2, step 7                 :func:`deflated`
whitening (section 1.2)             :func:`spectral_whitening`, :func:`unwhitened`
L and R (Theorem 2.2)               :func:`enough_restarts`, :func:`enough_steps`
==================================  ==================================================

Deviations from the paper
-------------------------
- Algorithm 2, step 7 prints the overlap with the next, unnormalised iterate. Deflation by lambda v (x) v (x)
  v subtracts lambda (v . u)^2 v from the product of u: u is the candidate that the product was computed for.
- The theorems give L and R up to a constant; the two functions choose one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import ritz_pairs

Floats = NDArray[np.float64]


def products_of_rows(rows: Floats, candidates: Floats) -> Floats:
    """Sum (x . u)^2 x over rows x (n, d), for every candidate u, a column (d, L).

    These are the products under sum x (x) x (x) x, (d, L), in O((n + d) L) memory.
    """
    seen = rows @ candidates
    return np.asarray(rows.T @ (seen * seen))


def product_values(products: Floats, candidates: Floats) -> Floats:
    """Compute T(u, u, u) = u . T(I, u, u) for every candidate: (L,) from two (d, L)."""
    return np.asarray(np.einsum("il,il->l", products, candidates))


def deflated(products: Floats, candidates: Floats, weights: Floats, components: Floats) -> Floats:
    """Deflate products (d, L) by known components, the rows v_j of (i, d); i may be 0.

    Products under T become products under T - sum_j lambda_j v_j (x) v_j (x) v_j.
    """
    overlaps = components @ candidates
    return np.asarray(products - components.T @ (weights[:, None] * overlaps * overlaps))


def normalised(products: Floats, candidates: Floats) -> Floats:
    """Scale columns (d, L) to unit length. Where that fails (0, inf or NaN), the candidate stays."""
    with np.errstate(all="ignore"):
        largest = np.abs(products).max(axis=0)
        # Scaled first, because squares of large entries overflow.
        scaled = products / largest
        unit = scaled / np.linalg.norm(scaled, axis=0)
    return np.where(np.isfinite(unit).all(axis=0), unit, candidates)


def random_starts(rng: np.random.Generator, dim: int, count: int) -> Floats:
    """Draw independent columns (dim, count) on the unit sphere; ``rng`` is utility randomness."""
    columns = rng.standard_normal((dim, count))
    return np.asarray(columns / np.linalg.norm(columns, axis=0))


def enough_restarts(k: int) -> int:
    """Return L = 2 k log k, at least 10. Theorem 2.2 asks for Omega(max(K_0, k) log max(K_0, k))."""
    return max(10, math.ceil(2 * k * math.log(k)))


def enough_steps(dim: int) -> int:
    """Return R = 2 log2(d) + 6; Theorem 2.2 asks for Omega(log(lambda_max d/error))."""
    return math.ceil(2 * math.log2(max(dim, 2))) + 6


@dataclass(frozen=True)
class Whitening:
    """Pair of maps that make linearly independent components orthogonal, and back.

    The first is W = U S^(-1/2), (d, k): W^T M W = I.
    """

    basis: Floats
    """(d, k) U, orthonormal columns: leading eigenvectors of a second moment M."""
    roots: Floats
    """(k,), above 0: S^(1/2), roots of their eigenvalues."""

    @property
    def unwhiten(self) -> Floats:
        """B = U S^(1/2), (d, k): B W^T is the projection on the span of U."""
        return self.basis * self.roots


def spectral_whitening(moment: Floats, k: int, floor: float) -> Whitening:
    """Compute the whitening of a second moment, which may be noisy, and so indefinite.

    Eigenvalues below the floor, above 0, are set to it: eigenvalues that noise has made small would
    blow up W, and the third moment's noise with it.
    """
    values, basis = ritz_pairs(moment, k)
    return Whitening(basis, np.sqrt(np.maximum(values, floor)))


def unwhitened(whitening: Whitening, weights: Floats, components: Floats) -> tuple[Floats, Floats]:
    """Map weights (k,) and rows (k, k) from the whitened space to the data's.

    With T = sum mu_i (x) mu_i (x) mu_i in the span of U, T(W, W, W) is the sum over W^T mu_i,
    and B W^T mu_i = mu_i. So lambda v (x) v (x) v represents lambda (B v) (x) (B v) (x) (B v),
    which is lambda |B v|^3 times the cube of a unit vector.
    """
    back = components @ whitening.unwhiten.T
    norms = np.linalg.norm(back, axis=1)
    return weights * norms**3, np.asarray(back / norms[:, None])
