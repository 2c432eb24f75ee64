"""Exact sums of products of a third moment: records clipped, whitened, on the lattice.

For one-row records x, clipped to |x| <= R, and unit candidates u_1..u_L a
record adds the (d, L) matrix x a^T, a_l = (x . u_l)^2. All products are one sum.

Privacy
-------
Replace-one. |x a^T|_F = |x| |a| <= R^3 rho with rho^2 = lambda_max(G o G), G = U^T U
(:func:`joint_radius`), so a sum moves by at most 2 R^3 rho. The guarantee does not depend
on rho, which is public: z = x 2**20/R and a 2**20/rho are rounded to integers of norm at
most 2**20 each by :func:`~streaming_pca.kernels.rounding.clip_and_round`. Any record, for
every float input, adds integers z a^T of norm at most 2**40, and two sums differ by at
most 2**41: :data:`PRODUCT_SENSITIVITY`. Sums are exact in any order. With a whitening the
records are W^T z, clipped to their own radius; the bounds hold with k in place of d,
for any W.

Proof: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, BlockSum
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block
from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import MAX_RECORDS, RADIUS, LatticeSum, lattice_unit, quantise_basis
from streaming_pca.kernels.rounding import clip_and_round, quantise_records
from streaming_pca.linalg.tensors import Whitening

Matrix = NDArray[np.float64]

PRODUCT_SENSITIVITY = 2.0 * RADIUS**2
"""L2 sensitivity of :func:`product_sum` in lattice units, for any candidates and any whitening."""
_UNIT = float(RADIUS)  # lattice units of a clip radius


def joint_radius(candidates: Matrix) -> float:
    """Return rho of unit columns (n, L): between 1 and sqrt(L)."""
    gram = candidates.T @ candidates
    largest = float(np.linalg.eigvalsh(gram * gram)[-1])
    # Rounded up, so that rounding clips no record.
    return math.sqrt(max(largest, 1.0)) * (1 + 1e-9)


class Space:
    """Coordinates of the records: the data's space, or a whitened one.

    ``clip_radius`` is R, in units of the records; ``whitening`` is from an earlier output, and
    ``whitened_radius`` then clips W^T x.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        clip_radius: float,
        whitening: Whitening | None = None,
        whitened_radius: float = 1.0,
    ) -> None:
        self.preprocessing = preprocessing
        self.per_unit = 1 / lattice_unit(clip_radius, RADIUS)
        self.radius = clip_radius if whitening is None else whitened_radius
        self.basis: Matrix | None = None
        if whitening is not None:
            self.basis = quantise_basis(whitening.basis)
            # Factors from z . (2**20 U) to W^T x in units of its radius over 2**20.
            self.factors = clip_radius / whitened_radius / _UNIT / whitening.roots

    def records(self, block: Block) -> tuple[Matrix, int]:
        """Return integer rows of norm at most RADIUS, and the count of clipped records.

        One row for each record that is not null; clipped are those of norm above R.
        """
        # A record of more rows has no third moment.
        starts, rows = transformed(self.preprocessing, block.single_rows())
        z = np.empty_like(rows)
        clipped = quantise_records(rows, starts, self.per_unit, _UNIT, z)
        if self.basis is None:
            return z, clipped
        seen = (z @ self.basis) * self.factors
        out = np.empty_like(seen)
        quantise_records(seen, starts, 1.0, _UNIT, out)
        return out, clipped


@njit(cache=True, nogil=True)
def quantise_squares(overlaps: Matrix, per_unit: float) -> None:
    """Square rows (n, L) in place; clip and round them to norms of at most RADIUS.

    ``overlaps`` are (n, L) exact integers, in units of 2**-40; on return integers. ``per_unit``: lattice
    units per unit of the squares.
    """
    squares = np.empty((1, overlaps.shape[1]))
    for i in range(overlaps.shape[0]):
        for j in range(overlaps.shape[1]):
            seen = overlaps[i, j] * 2.0**-40
            squares[0, j] = seen * seen
        clip_and_round(squares, per_unit, 2.0**20, overlaps[i : i + 1])


def _products(space: Space, candidates: Matrix, per_unit: float, block: Block) -> NDArray[np.int64]:
    z, clipped = space.records(block)
    squares = np.ascontiguousarray(z @ candidates)
    quantise_squares(squares, per_unit)
    return np.append((z.T @ squares).ravel().astype(np.int64), clipped)


def product_sum(batch: Batch, space: Space, candidates: Matrix) -> LatticeSum:
    """Return the exact lattice sum of x a^T over the one-row records of a batch.

    Records of more rows count as null. ``candidates`` are (n, L), unit columns, public or an earlier output;
    they are rounded to multiples of 2**-20. The total is (n, L).
    """
    if len(batch) > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower batch_size")
    joint = joint_radius(candidates)
    products = partial(_products, space, quantise_basis(candidates), RADIUS / joint)
    vector = batch.sum(BlockSum(products, (candidates.size + 1,)))
    unit = space.radius**3 * joint / RADIUS**2
    return LatticeSum(vector[:-1].reshape(candidates.shape), unit, PRODUCT_SENSITIVITY, int(vector[-1]))
