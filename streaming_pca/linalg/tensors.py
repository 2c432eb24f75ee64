"""Symmetric third-order tensors: images T(I, u, u), deflation, whitening, the power method.

A moment E[x (x) x (x) x] is never formed: its image T(I, u, u) is the mean of
(x . u)^2 x, so L candidates u and k found components take O(d (k + L)) numbers.
A tensor that is given as a dense array has images too.

Source: Wang and Anandkumar 2016 (001).

==================================  ==================================================
T(I, u, u) of a dense tensor        :func:`images_of_tensor`
Algorithm 1, line 3                 :func:`random_starts`
Algorithm 1, line 4                 :func:`normalised`
Algorithm 1, lines 5, 6             :func:`robust_tensor_power`
Algorithm 2, line 6 (u)             :func:`images_of_rows`
Algorithm 2, line 6 (lambda)        :func:`image_values`: T(u, u, u) = u . T(I, u, u)
Algorithm 2, line 7                 :func:`deflated`
whitening (line 68)                 :func:`whitening_of`, :func:`unwhitened`
L and R (Theorem 2.2)               :func:`enough_restarts`, :func:`enough_steps`
==================================  ==================================================

Mends
-----
- Algorithm 2, line 7 prints the overlap with the next, unnormalised iterate. Deflation
  by lambda v (x) v (x) v takes lambda (v . u)^2 v off the image of u: u is the
  candidate that the image was computed for.
- The theorems give L and R up to a constant; the two functions have ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import ritz_pairs

__all__ = [
    "Whitening",
    "deflated",
    "enough_restarts",
    "enough_steps",
    "image_values",
    "images_of_rows",
    "images_of_tensor",
    "normalised",
    "random_starts",
    "robust_tensor_power",
    "sum_of_cubes",
    "symmetrised",
    "unwhitened",
    "whitening_of",
]

Floats = NDArray[np.float64]


def images_of_rows(rows: Floats, candidates: Floats) -> Floats:
    """Sum of (x . u)^2 x over rows x, for every candidate u.

    Parameters
    ----------
    rows : (n, d) float64
    candidates : (d, L) float64
        In columns.

    Returns
    -------
    (d, L) float64
        The images under sum x (x) x (x) x; O((n + d) L) memory.
    """
    seen = rows @ candidates
    return np.asarray(rows.T @ (seen * seen))


def images_of_tensor(tensor: Floats, candidates: Floats) -> Floats:
    """T(I, u, u) for every candidate u.

    Parameters
    ----------
    tensor : (d, d, d) float64, symmetric
    candidates : (d, L) float64
        In columns.

    Returns
    -------
    (d, L) float64
    """
    d = len(tensor)
    once = (tensor.reshape(d * d, d) @ candidates).reshape(d, d, -1)
    return np.asarray(np.einsum("ijl,jl->il", once, candidates))


def image_values(images: Floats, candidates: Floats) -> Floats:
    """T(u, u, u) = u . T(I, u, u) for every candidate: (L,) from two (d, L)."""
    return np.asarray(np.einsum("il,il->l", images, candidates))


def deflated(images: Floats, candidates: Floats, weights: Floats, components: Floats) -> Floats:
    """Images under T - sum_j lambda_j v_j (x) v_j (x) v_j, from those under T.

    Parameters
    ----------
    images, candidates : (d, L) float64
    weights : (i,) float64
    components : (i, d) float64
        v_j in rows; i may be 0.
    """
    overlaps = components @ candidates
    return np.asarray(images - components.T @ (weights[:, None] * overlaps * overlaps))


def normalised(images: Floats, candidates: Floats) -> Floats:
    """Columns of ``images`` (d, L) at unit length; where that cannot be, the candidate stays."""
    with np.errstate(all="ignore"):
        largest = np.abs(images).max(axis=0)
        # Scaled first: squares of large entries overflow.
        scaled = images / largest
        unit = scaled / np.linalg.norm(scaled, axis=0)
    return np.where(np.isfinite(unit).all(axis=0), unit, candidates)


def random_starts(rng: np.random.Generator, dim: int, count: int) -> Floats:
    """Columns (dim, count), independent and uniform on the unit sphere; ``rng`` is utility randomness."""
    columns = rng.standard_normal((dim, count))
    return np.asarray(columns / np.linalg.norm(columns, axis=0))


def symmetrised(tensor: Floats) -> Floats:
    """Mean of a (d, d, d) tensor over the six orders of its axes."""
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    total = np.zeros_like(tensor, dtype=np.float64)
    for order in orders:
        total += tensor.transpose(order)
    # Sums of the same six numbers in another order may differ in their last bit.
    # The largest of them is one number: a swap and the cycles make all six orders.
    total = np.maximum(total, total.transpose(0, 2, 1))
    total = np.maximum(total, np.maximum(total.transpose(1, 2, 0), total.transpose(2, 0, 1)))
    return np.asarray(total / 6)


def sum_of_cubes(weights: Floats, components: Floats) -> Floats:
    """sum_i lambda_i v_i (x) v_i (x) v_i as a dense (d, d, d) array; components (k, d) in rows."""
    dense = np.einsum("i,ia,ib,ic->abc", weights, components, components, components, optimize=True)
    return symmetrised(dense)


def enough_restarts(k: int) -> int:
    """L = 2 k log k, at least 10: Theorem 2.2 asks for Omega(max(K_0, k) log max(K_0, k))."""
    return max(10, math.ceil(2 * k * math.log(k)))


def enough_steps(dim: int) -> int:
    """R = 2 log2(d) + 6: Theorem 2.2 asks for Omega(log(lambda_max d/error))."""
    return math.ceil(2 * math.log2(max(dim, 2))) + 6


def robust_tensor_power(
    tensor: Floats, k: int, restarts: int, steps: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Robust tensor power method, Algorithm 1 (001, lines 49-62). Not private.

    Parameters
    ----------
    tensor : (d, d, d) float64, symmetric
    k : int
        Components to find.
    restarts, steps : int
        L and R.
    rng : Generator
        Utility randomness.

    Returns
    -------
    weights : (k,) float64
        In the order in which they were found.
    components : (k, d) float64
        Unit rows.

    Raises
    ------
    ValueError
        If the tensor has no (d, d, d) shape or k is not between 1 and d.
    """
    if tensor.ndim != 3 or len(set(tensor.shape)) != 1:
        raise ValueError(f"expected a tensor of shape (d, d, d), not {tensor.shape}")
    d = len(tensor)
    if not 1 <= k <= d:
        raise ValueError(f"k must lie between 1 and {d}, not {k}")
    weights, components = np.zeros(k), np.zeros((k, d))
    for i in range(k):
        found = (weights[:i], components[:i])
        candidates = random_starts(rng, d, restarts)
        for _ in range(steps):
            images = deflated(images_of_tensor(tensor, candidates), candidates, *found)
            candidates = normalised(images, candidates)
        images = deflated(images_of_tensor(tensor, candidates), candidates, *found)
        values = image_values(images, candidates)
        best = int(np.argmax(values))
        weights[i], components[i] = values[best], candidates[:, best]
    return weights, components


@dataclass(frozen=True)
class Whitening:
    """Maps that make linearly independent components orthogonal, and back.

    Attributes
    ----------
    basis : (d, k) float64
        U, orthonormal columns: leading eigenvectors of a second moment M.
    roots : (k,) float64, above 0
        S^(1/2), roots of their eigenvalues.
    """

    basis: Floats
    roots: Floats

    @property
    def whiten(self) -> Floats:
        """W = U S^(-1/2), (d, k): W^T M W = I."""
        return self.basis / self.roots

    @property
    def unwhiten(self) -> Floats:
        """B = U S^(1/2), (d, k): B W^T is the projection on the span of U."""
        return self.basis * self.roots


def whitening_of(moment: Floats, k: int, floor: float) -> Whitening:
    """The whitening of a second moment.

    Parameters
    ----------
    moment : (d, d) float64, symmetric
        May be noisy, and so indefinite.
    k : int
    floor : float, above 0
        Eigenvalues below it count as it: what noise has made small would
        blow up W, and the third moment's noise with it.

    Returns
    -------
    Whitening
    """
    values, basis = ritz_pairs(moment, k)
    return Whitening(basis, np.sqrt(np.maximum(values, floor)))


def unwhitened(whitening: Whitening, weights: Floats, components: Floats) -> tuple[Floats, Floats]:
    """Weights and unit components in the data's space, of those in the whitened one.

    With T = sum mu_i (x) mu_i (x) mu_i in the span of U, T(W, W, W) is the sum over W^T mu_i,
    and B W^T mu_i = mu_i. So lambda v (x) v (x) v stands for lambda (B v) (x) (B v) (x) (B v),
    which is lambda |B v|^3 times the cube of a unit vector.

    Parameters
    ----------
    whitening : Whitening
    weights : (k,) float64
    components : (k, k) float64
        In rows.

    Returns
    -------
    weights : (k,) float64
    components : (k, d) float64
        Unit rows.
    """
    back = components @ whitening.unwhiten.T
    sizes = np.linalg.norm(back, axis=1)
    return weights * sizes**3, np.asarray(back / sizes[:, None])
