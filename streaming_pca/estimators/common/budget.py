"""Budget of one batch: shares of mu^2, each spent once. Proof: docs/explanation/budget.md."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.calibration.multipliers import product_up, require_room
from streaming_pca.privacy.mechanisms import gaussian_on_vector

WHOLE = 1_000_000
"""Millionths of the whole budget: whole numbers, so shares add up exactly."""

_GRAIN = 2**10  # lattice units of one record: noise of less than a record is not rounded away


class Budget:
    """Budget of one batch; each mechanism takes a share of it.

    ``multiplier`` is z, the noise scale over sensitivity of the one Gaussian that the batch is charged for;
    error messages name the contract's ``epsilon``.

    A Gaussian mechanism of multiplier z/sqrt(s) is (sqrt(s)/z)-GDP. Mechanisms that are mu_i-GDP compose to
    sqrt(sum mu_i^2)-GDP, also where each one, and its mu_i, is chosen after seeing the earlier answers, if
    the sum of squares never exceeds a bound fixed beforehand ([DongRothSu2022]; [SmithThakurta2022];
    [KoskelaTobabenHonkela2023]). Shares add up to 1 at most, so all mechanisms on one batch are (1/z)-GDP
    together: the cost of one Gaussian of multiplier z.
    """

    def __init__(self, multiplier: float, epsilon: float) -> None:
        self.multiplier = multiplier
        self._squared = Fraction(multiplier) ** 2
        self._epsilon = epsilon
        self.left = WHOLE

    def take(self, share: float) -> float:
        """Spend a share, and return the multiplier of a Gaussian of that cost, rounded up.

        The share, in (0, 1], is rounded down to millionths, at least one.

        Raises ValueError if less is left: the answer would cost more than was charged.
        """
        millionths = max(int(share * WHOLE), 1)
        if millionths > self.left:
            raise ValueError(f"a share of {millionths} millionths, but only {self.left} are left")
        self.left -= millionths
        return share_multiplier(self._squared, Fraction(millionths, WHOLE))

    def rest(self) -> float:
        """Return the unspent share."""
        return self.left / WHOLE

    def take_rest(self) -> float:
        """Spend the unspent share; as :meth:`take`. Raises ValueError if nothing is left."""
        if not self.left:
            raise ValueError("nothing is left of the batch's budget")
        millionths, self.left = self.left, 0
        return share_multiplier(self._squared, Fraction(millionths, WHOLE))

    def sigma(self, multiplier: float, sensitivity: float) -> float:
        """Return a noise scale in lattice units, rounded up; CalibrationError if int64 is too narrow."""
        return require_room(product_up(multiplier, sensitivity), self._epsilon)


def share_multiplier(squared: Fraction, share: Fraction) -> float:
    """Compute the square root of squared/share as a float, rounded up."""
    wanted = squared / share
    root = math.sqrt(wanted)
    while Fraction(root) ** 2 < wanted:
        root = math.nextafter(root, math.inf)
    return root


def noisy_counts(
    exact: NDArray[np.int64], multiplier: float, sensitivity: float, budget: Budget
) -> tuple[NDArray[np.float64], float]:
    """Add Gaussian noise to counts; returns them and its standard deviation, in records."""
    sigma = budget.sigma(multiplier, sensitivity * _GRAIN)
    noisy = gaussian_on_vector(exact * _GRAIN, sigma)
    return np.asarray(noisy, dtype=np.float64) / _GRAIN, sigma / _GRAIN


def noisy_count(exact: int, share: float, budget: Budget) -> tuple[float, float]:
    """Count records with Gaussian noise, for a share; returns the count and its standard deviation.

    Adjacency: replace-one. Released: the number, of sensitivity 1.
    """
    noisy, deviation = noisy_counts(np.array([exact], dtype=np.int64), budget.take(share), 1.0, budget)
    return float(noisy[0]), deviation
