"""How far an eigengap and a projector move when one record is replaced.

X and X' = X + D are lattice sums of neighbours (:func:`contributions.covariance_sum`),
|D|_F <= F, |X|_F <= n R for n records. P is the projector on the k leading eigenvectors, the
gap is lambda_k - lambda_{k+1}.

*Floats.* Eigenvalues and eigenvectors are computed in floats. They are the exact ones of a
symmetric X~ with |X~ - X|_F <= eta := u_d n R, but that the vectors are a relative u_d off.
u_d = 256 d^2 2^-53 is public. It covers the conversion of X to float64, the backward error
of Householder's tridiagonalisation and of QL or divide-and-conquer, small multiples of
d^2 2^-53 |X|_F (Higham 2002, chapter 19; LAPACK's guide, section 4.7, has 2^-53 times "a
modestly growing function" of d), and the loss of orthogonality. For neighbours
|X~ - X~'|_F <= F + 2 eta =: G. All below is about X~ and X~', whatever two runs in floats,
each with its own threads, made of X and X'.

*Gap.* By Weyl's inequality each of lambda_k and lambda_{k+1} moves by between the least and
the largest eigenvalue of the difference D~. So the gap moves by at most the distance of these
two, at most sqrt(2) |D~|_F <= sqrt(2) G. (For factors, without floats, that is 2 R.)

*Projector.* Let g >= g' be the gaps of the two, the larger first, P and P' the projectors,
X(t) = X~ + t D~ or the way back. Its gap is at least g - sqrt(2) t G. While that is positive
the projector P(t) is differentiable. With eigenvectors V and V_c of its range and kernel,
dP/dt has the block V_c^T D~ V, entries divided by lambda_j - lambda_i, its transpose, and no
other. The squares of these two blocks of D~ add up to at most G^2, so |dP/dt|_F <=
G/(g - sqrt(2) t G), and

    |P - P'|_F <= Delta(g),  Delta(l) = -ln(1 - sqrt(2) G/l)/sqrt(2) = G/l + ...

for l > sqrt(2) G: less by sqrt(2) than Davis and Kahan's theorem has, and attained for large
gaps. Delta falls, so Delta(l) is enough for any l <= max(g, g').
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.contributions import covariance_sensitivity
from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS
from streaming_pca.records import RecordKind

__all__ = ["GapBounds", "eigenpairs"]

_SQRT2_UP = math.nextafter(math.sqrt(2), 2)


class GapBounds:
    """Bounds for the sum of ``count`` records, in lattice units; public, and rounded up.

    Parameters
    ----------
    kind : RecordKind
    dim : int
    count : int
        Transformed records, null ones included.
    at_most : int, optional
        What floats may do is bounded for as many: then it does not vary with the batch.

    Attributes
    ----------
    reach : float
        No eigengap of the sum is larger.
    eta : float
        What floats may do to the sum, in Frobenius norm.
    relative : float
        u_d: what they may do to a projector.
    sum : float
        G.
    gap : float
        Sensitivity of the eigengap, rounded to an integer.
    gap_slack : float
        How far that integer can be above the eigengap of X~.
    """

    def __init__(self, kind: RecordKind, dim: int, count: int, at_most: int | None = None) -> None:
        of_factors = kind is RecordKind.FACTOR
        radius = float(RADIUS) ** 2 if of_factors else float(MATRIX_RADIUS)
        self.relative = 256.0 * dim**2 * 2.0**-53
        # A gap of indefinite matrices is two eigenvalues of one norm.
        self.reach = count * radius * (1.0 if of_factors else _SQRT2_UP)
        self.eta = self.relative * max(count, at_most or 0) * radius
        self.exact = covariance_sensitivity(kind)
        self.sum = (self.exact + 2 * self.eta) * (1 + 1e-15)
        # One eta for the two differences of eigenvalues, one unit for rounding them.
        self.gap = (_SQRT2_UP * self.sum + self.eta + 1) * (1 + 1e-15)
        self.gap_slack = self.eta + 1

    def inner(self, k: int) -> float:
        """Sensitivity of V^T X V, rounded to integers, for k columns orthonormal to floats."""
        return (self.exact * (1 + 4 * self.relative) + 2 * self.eta + k) * (1 + 1e-15)

    def projector_distance(self, gap: int) -> float:
        """Delta: how far projectors of neighbours are apart, one of which has a gap of at least this.

        In Frobenius norm, errors of floats included; inf where no bound is known.
        """
        ratio = _SQRT2_UP * self.sum / max(gap, 1) * (1 + 1e-15)
        if not ratio < 1:
            return math.inf
        return (-math.log1p(-ratio) / math.sqrt(2) + 2 * self.relative) * (1 + 1e-12)

    def gap_of_distance(self, distance: float) -> float:
        """The gap from which on Delta is at most this."""
        return -_SQRT2_UP * self.sum / math.expm1(-math.sqrt(2) * distance)


def eigenpairs(total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues (d,) of a symmetric sum, decreasing, and eigenvectors (d, d)."""
    try:
        values, vectors = np.linalg.eigh(total.astype(np.float64))
    except np.linalg.LinAlgError:
        # LAPACK is not known to fail on finite input; no error may tell that it did.
        return np.zeros(len(total)), np.eye(len(total))
    return values[::-1], vectors[:, ::-1]
