"""What records contribute to images of a third moment: clipped, whitened, on the lattice.

For one-row records x, clipped to |x| <= R, and unit candidates u_1..u_L a
record adds the (d, L) matrix x a^T, a_l = (x . u_l)^2. All images are one sum.

Sensitivity
-----------
|x a^T|_F = |x| |a|. With G = U^T U, the u_l (x) u_l have the Gram matrix G o G
(entries squared), so for a unit x

    |a|^2 = sum_l <x (x) x, u_l (x) u_l>^2 <= rho^2,    rho^2 = lambda_max(G o G),

and contributions lie in a ball of radius R^3 rho. Two of them may be opposite
(x and -x have the same a): replace-one moves the sum by at most 2 R^3 rho. The
paper's argument for one candidate gives rho = sqrt(L) for L of them, which is
what candidates that have become one have; random ones have about
sqrt(1 + L/d), and the k orthonormal ones of a refinement have 1.

The bound does not rest on rho, which is public: it is checked in integers.
z = x 2**20/R is rounded with |z| <= 2**20, and a 2**20/rho is rounded with
|a| <= 2**20, by :func:`~streaming_pca.linalg.rounding.clip_and_round` each. So a
record adds the integers z a^T, of norm at most 2**40 for every float input.
Two such sums differ by at most 2**41: the same number of lattice units for
ever, whatever rho is.

Exactness
---------
- z . q, q the candidate in units of 2**-20, is a sum of integers below
  2**20 2**20.1 in any order: exact. a is made of it record by record, by a
  product that is rounded once: a function of that record alone.
- A block: 2**13 records of |z| |a| <= 2**40 sum to 2**53, exact; a whole sum
  of 2**22 records is below 2**62, and int64.
- The value: q is off by 2**-21 an entry, z and a by half a unit an entry.
  Relative to R^3 rho: at most 2**-20 (sqrt(d) (2 + L) + sqrt(L))/2 or so.

Whitening
---------
With U, S from an earlier output, W = U S^(-1/2), the records are W^T z instead:
z . U is exact as above (U in units of 2**-20), division by S^(1/2) is rounded
once an entry, and the k numbers are clipped to their own radius and rounded as
a record is. The bounds hold with k in the place of d, whatever W is.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.estimators.tensor_search import single_rows
from streaming_pca.linalg.clipping import quantise_records
from streaming_pca.linalg.lattice import BLOCK, MAX_RECORDS, RADIUS, LatticeSum, lattice_unit, quantise_basis
from streaming_pca.linalg.rounding import clip_and_round
from streaming_pca.linalg.tensors import Whitening
from streaming_pca.preprocessing import Preprocessing, transformed
from streaming_pca.records import Batch

__all__ = ["IMAGE_SENSITIVITY", "Space", "image_sum", "joint_radius"]

Matrix = NDArray[np.float64]

IMAGE_SENSITIVITY = 2.0 * RADIUS**2
"""Of :func:`image_sum` in lattice units, with any candidates and any whitening."""

_UNIT = float(RADIUS)


def joint_radius(candidates: Matrix) -> float:
    """rho of unit columns (n, L): between 1 and sqrt(L)."""
    gram = candidates.T @ candidates
    largest = float(np.linalg.eigvalsh(gram * gram)[-1])
    # Upwards, so that rounding clips no record.
    return math.sqrt(max(largest, 1.0)) * (1 + 1e-9)


class Space:
    """Where records are looked at: the data's space, or a whitened one.

    Parameters
    ----------
    preprocessing : Preprocessing
    clip_radius : float
        R, in units of the records.
    whitening : Whitening, optional
        Of an earlier output.
    whitened_radius : float
        The clip of W^T x, where there is a whitening.
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
            # What turns z . (2**20 U) to W^T x in units of its radius over 2**20.
            self.factors = clip_radius / whitened_radius / _UNIT / whitening.roots

    def records(self, block: Batch) -> tuple[Matrix, int]:
        """Integer rows of norm at most RADIUS, one a record that is not null; and how many R clipped."""
        starts, rows = transformed(self.preprocessing, single_rows(block))
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
    """Square rows (n, L) in place, and clip and round them to norms of at most RADIUS.

    Parameters
    ----------
    overlaps : (n, L) float64
        Exact integers, in units of 2**-40; on return integers.
    per_unit : float
        Lattice units per unit of the squares.
    """
    squares = np.empty((1, overlaps.shape[1]))
    for i in range(overlaps.shape[0]):
        for j in range(overlaps.shape[1]):
            seen = overlaps[i, j] * 2.0**-40
            squares[0, j] = seen * seen
        clip_and_round(squares, per_unit, 2.0**20, overlaps[i : i + 1])


class _Images:
    limit = BLOCK
    whole = False

    def __init__(self, space: Space, candidates: Matrix, joint: float) -> None:
        self.space, self.per_unit = space, RADIUS / joint
        self.candidates = quantise_basis(candidates)
        self.shape: tuple[int, ...] = (candidates.size + 1,)

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        z, clipped = self.space.records(block)
        squares = np.ascontiguousarray(z @ self.candidates)
        quantise_squares(squares, self.per_unit)
        out = np.empty(self.shape, dtype=np.int64)
        out[:-1] = (z.T @ squares).ravel()
        out[-1] = clipped
        return out


def image_sum(batch: Batch, space: Space, candidates: Matrix) -> LatticeSum:
    """Exact lattice sum of x a^T over the one-row records of a batch.

    Parameters
    ----------
    batch : Batch
        Records of more rows count as null.
    space : Space
    candidates : (n, L) float64, unit columns
        Public, or an earlier output; rounded to multiples of 2**-20.

    Returns
    -------
    LatticeSum of an (n, L) total
    """
    if len(batch) > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower batch_size")
    joint = joint_radius(candidates)
    vector = batch.sum(_Images(space, candidates, joint))
    unit = space.radius**3 * joint / RADIUS**2
    total = vector[:-1].reshape(candidates.shape)
    return LatticeSum(total, unit, IMAGE_SENSITIVITY, int(vector[-1]))
