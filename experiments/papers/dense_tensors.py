"""Dense tensors: products, sums of cubes, and the power method of [WangAnandkumar2016, Alg. 1].

==================================  ==================================================
T(I, u, u)                          :func:`products_of_tensor`
Algorithm 1, steps 5, 6             :func:`robust_tensor_power`
==================================  ==================================================

The other steps are those of :mod:`streaming_pca.linalg.tensors`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.tensors import deflated, normalised, product_values, random_starts

__all__ = ["products_of_tensor", "robust_tensor_power", "sum_of_cubes", "symmetrised"]

Floats = NDArray[np.float64]


def products_of_tensor(tensor: Floats, candidates: Floats) -> Floats:
    """Compute T(I, u, u), (d, L), for every candidate u, a column (d, L)."""
    d = len(tensor)
    once = (tensor.reshape(d * d, d) @ candidates).reshape(d, d, -1)
    return np.asarray(np.einsum("ijl,jl->il", once, candidates))


def symmetrised(tensor: Floats) -> Floats:
    """Average a (d, d, d) tensor over the six orders of its axes."""
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    total = np.zeros_like(tensor, dtype=np.float64)
    for order in orders:
        total += tensor.transpose(order)
    # Sums of the same six numbers in another order may differ in their last bit. The largest
    # of them is the same for all six orders, which a swap and the cycles generate.
    total = np.maximum(total, total.transpose(0, 2, 1))
    total = np.maximum(total, np.maximum(total.transpose(1, 2, 0), total.transpose(2, 0, 1)))
    return np.asarray(total / 6)


def sum_of_cubes(weights: Floats, components: Floats) -> Floats:
    """Return the (d, d, d) sum of lambda_i v_i (x) v_i (x) v_i."""
    dense = np.einsum("i,ia,ib,ic->abc", weights, components, components, components, optimize=True)
    return symmetrised(dense)


def robust_tensor_power(
    tensor: Floats, k: int, restarts: int, steps: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Find components by the robust tensor power method [WangAnandkumar2016, Alg. 1]. Not private.

    Returns weights (k,), in order of discovery, and components (k, d), unit rows.

    Parameters
    ----------
    tensor : (d, d, d), symmetric.
    restarts, steps : L and R.
    rng : utility randomness.
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
            products = deflated(products_of_tensor(tensor, candidates), candidates, *found)
            candidates = normalised(products, candidates)
        products = deflated(products_of_tensor(tensor, candidates), candidates, *found)
        values = product_values(products, candidates)
        best = int(np.argmax(values))
        weights[i], components[i] = values[best], candidates[:, best]
    return weights, components
