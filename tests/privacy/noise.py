"""Samplers without noise and with reproducible noise, and two-sided tests of its scale.

Every test of a scale is a chi-square or gamma test at level 2e-7, with enough
draws that the same test misses noise of 0.7 or 1.3 times the scale with
probability below 1e-7 (computed by `missed`). So a run of all of them fails by
chance less than once in 10**5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.mechanisms.pure import add
from streaming_pca.privacy.randomness import NoiseSampler

LEVEL = 2e-7
MISS = 1e-7
FACTORS = [0.7, 1.3]


class ScriptedSampler(NoiseSampler):
    """Sampler without noise, unless scripted, that records its requests."""

    def __init__(self, noise: Callable[[int, float], NDArray[np.int64]] | None = None) -> None:
        self.noise = noise or (lambda size, scale: np.zeros(size, dtype=np.int64))
        self.asked: list[tuple[str, int, float]] = []

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        self.asked.append(("gaussian", total.size, sigma))
        return add(total, self.noise(total.size, sigma))

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        self.asked.append(("laplace", size, scale))
        return self.noise(size, scale)

    def permutation(self, n: int) -> NDArray[np.int64]:
        self.asked.append(("permutation", n, 0.0))
        return np.arange(n, dtype=np.int64)


class SeededSampler(NoiseSampler):
    """Independent noise of the right law and size, identical in each run of a test."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def rng(self) -> np.random.Generator:
        return self._rng

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        return add(total, np.rint(self.rng().normal(scale=sigma, size=total.size)).astype(np.int64))

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        return np.rint(self.rng().laplace(scale=scale, size=size)).astype(np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        return self.rng().permutation(n).astype(np.int64)


def distribution_of_sum(n: int, law: str) -> Any:
    """Return the law of a sum of n squared normal or absolute Laplace draws; scale 1."""
    # The import takes a second, which every worker process would spend for the samplers alone.
    from scipy import stats

    return stats.chi2(n) if law == "gaussian" else stats.gamma(n)


def acceptance(n: int, law: str) -> tuple[float, float]:
    """Return the accepted interval of a sum of n squared normal or absolute Laplace draws; scale 1."""
    distribution = distribution_of_sum(n, law)
    return float(distribution.ppf(LEVEL / 2)), float(distribution.isf(LEVEL / 2))


def missed(n: int, law: str, factor: float) -> float:
    """Return the probability of accepting noise of ``factor`` times the scale."""
    low, high = acceptance(n, law)
    distribution = distribution_of_sum(n, law)
    by = factor**2 if law == "gaussian" else factor
    return float(distribution.cdf(high / by) - distribution.cdf(low / by))


def has_scale(noise: NDArray[np.floating] | NDArray[np.int64], scale: float, law: str = "gaussian") -> bool:
    """Return the result of the two-sided test."""
    x = np.asarray(noise, dtype=np.float64).ravel() / scale
    low, high = acceptance(x.size, law)
    return low <= float(np.sum(x * x) if law == "gaussian" else np.sum(np.abs(x))) <= high


def has_scale_alone(draw: Callable[[float], NDArray[Any]], scale: float, law: str = "gaussian") -> bool:
    """Return whether noise drawn at ``scale`` passes the test, and noise at 0.7 and 1.3 of it fails."""
    noise = draw(scale)
    assert max(missed(noise.size, law, factor) for factor in FACTORS) < MISS
    return has_scale(noise, scale, law) and not any(has_scale(draw(f * scale), scale, law) for f in FACTORS)
