"""Local Gaussian mechanism: one record's x x^T, private before it leaves its user."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.kernels.lattice import RADIUS, lattice_unit
from streaming_pca.linalg.masks import numbers_or_nan
from streaming_pca.linalg.packed import packed_size
from streaming_pca.privacy.calibration.multipliers import lattice_sigma
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector

MAX_DIM: Final = 2**13
"""Largest number of features of a record."""

_SENSITIVITY: Final = math.nextafter(math.sqrt(2), math.inf) * RADIUS**2
"""Sensitivity of the upper triangle of z z^T, |z| <= RADIUS, rounded up; the power of two is exact."""

_BLOCK_ENTRIES: Final = 2**16
"""Numbers of one draw, or one row if it is longer: bounds the memory in addition to the report."""


def noise_sigma(epsilon: float, delta: float) -> float:
    """Return the noise standard deviation of each number of a report.

    Records are in the unit ball. It is the same in any dimension; 5.9746 for (1, 1e-6). CalibrationError if
    64 bits are too few for it.
    """
    sigma = lattice_sigma(epsilon, delta, _SENSITIVITY)
    # A power of two divides exactly.
    return sigma / RADIUS**2


class LocalGaussian:
    """Mechanism that makes (epsilon, delta)-locally private reports x x^T plus noise.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of one report.
    radius : float
        R, public. A longer vector is clipped to it, and a report is of x x^T/R^2.

    Attributes
    ----------
    sigma : float
        Noise standard deviation of each number of a report, :func:`noise_sigma`.

    Raises
    ------
    CalibrationError
        If the noise is too large for 64 bits: at delta = 1e-6 below epsilon = 1e-4.

    Notes
    -----
    Released: the upper triangle of x x^T with its diagonal, each of the
    d(d+1)/2 numbers plus independent noise of standard deviation sigma.
    Adjacency: a user's x is replaced by any other y; both are of norm at most 1
    after the clip and the division by R. Only the user sees x, so this is
    local differential privacy: no other user, and no server, is trusted.

    *Sensitivity.* It is sqrt(2) S^2, exactly: x becomes integers z with |z| <= S = 2**20, checked in
    integers. All products z_i z_j <= 2**40 are exact in int64.

    *Noise.* :func:`~streaming_pca.privacy.mechanisms.gaussian.gaussian_on_vector` of one scale for
    all entries, by :func:`~streaming_pca.privacy.calibration.multipliers.lattice_sigma`. Division by
    S^2 and rounding to float32 come after the noise: they are post-processing.

    *Cost.* About 40 ns a number, in one thread: 2 ms at d = 200, 0.1 s at d = 2000, after 0.2 s
    for the first report of a process. Memory is the report, and 10 MB.

    The sensitivity, the noise multiplier and the clip deviate from the paper; proofs and deviations:
    docs/explanation/proofs/noise.md.

    Source: [WangXu2020, Alg. 1]; steps 1 to 3 run here, 4 and 5 on the server.

    ==========================  =======================================
    Line of the paper           Here
    ==========================  =======================================
    input, |X| <= 1             :func:`unit_ball_integers`
    2, X X^T                    products z_i z_j in :meth:`privatize`
    2, Z and sigma_1            ``gaussian_on_vector``, :func:`noise_sigma`
    2, the lower triangle       not sent: it is a copy
    ==========================  =======================================
    """

    def __init__(self, epsilon: float, delta: float, radius: float = 1.0) -> None:
        self.epsilon, self.delta, self.radius = epsilon, delta, radius
        self.sigma = noise_sigma(epsilon, delta)
        try:
            self._unit = lattice_unit(radius, RADIUS)
        except ValueError as error:
            raise ParameterError(str(error)) from None

    def __repr__(self) -> str:
        return f"LocalGaussian(epsilon={self.epsilon!r}, delta={self.delta!r}, radius={self.radius!r})"

    def privatize(self, x: ArrayLike) -> NDArray[np.float32]:
        """Make a report of one record.

        Parameters
        ----------
        x : (d,) numbers, d at most :data:`MAX_DIM`
            A record longer than the radius is clipped. If a number is missing, masked or not finite, the
            report is of the zero vector, as for a null record. The choice to report must not depend on x.

        Returns
        -------
        (d(d+1)/2,) float32
            The upper triangle, row by row (:mod:`streaming_pca.linalg.packed`).

        Raises
        ------
        ParameterError
            If x is not a vector of 1 to :data:`MAX_DIM` real numbers: its shape and type are public.
        """
        values = numbers_or_nan(x, "x")
        if values.dtype.kind not in "fiu" or values.ndim != 1 or not 1 <= values.size <= MAX_DIM:
            raise ParameterError(
                f"a record is a vector of 1 to {MAX_DIM} numbers, not {values.dtype} of shape {values.shape}"
            )
        # A warning of an overflow or a signalling NaN would reveal x, and may be made an error.
        with np.errstate(all="ignore"):
            z = unit_ball_integers(values.astype(np.float64), 1 / self._unit)
        dim = z.size
        report = np.empty(packed_size(dim), dtype=np.float32)
        first = row = 0
        while row < dim:
            rows = range(row, min(dim, row + max(1, _BLOCK_ENTRIES // (dim - row))))
            exact = np.concatenate([z[i] * z[i:] for i in rows])
            noisy = gaussian_on_vector(exact, self.sigma * RADIUS**2)
            report[first : first + exact.size] = noisy / float(RADIUS**2)
            first, row = first + exact.size, rows.stop
        return report


def unit_ball_integers(x: NDArray[np.float64], per_unit: float) -> NDArray[np.int64]:
    """Clip any vector (d,) and round it to integers of norm at most RADIUS; zeros if not finite.

    ``per_unit`` are lattice units per unit of x; vectors longer than RADIUS/per_unit are clipped. The sum of
    squares is at most RADIUS**2: computed in integers, and entries move towards 0, unit by unit, until it is.
    """
    largest = float(np.max(np.abs(x)))
    if not (math.isfinite(largest) and largest > 0):
        return np.zeros(x.size, dtype=np.int64)
    # The largest entry is between 1/2 and 1: no square overflows, and squares that underflow are negligible.
    exponent = math.frexp(largest)[1]
    with np.errstate(all="ignore"):
        scaled = np.ldexp(x, -exponent)
        norm = math.sqrt(float(scaled @ scaled))
        units = min(float(np.ldexp(per_unit, exponent)), RADIUS / norm)
        z = np.rint(scaled * units).astype(np.int64)
    # Rounding carries a vector of d entries at most sqrt(d)/2 past the radius, so few rounds are needed.
    while int(z @ z) > RADIUS**2:
        z -= np.sign(z)
    return z
