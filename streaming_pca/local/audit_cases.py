"""Worst-case neighbours of what producers run, for the empirical audit."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from streaming_pca.local.gaussian import LocalGaussian
from streaming_pca.privacy.audit import Case, Claim, repeated
from streaming_pca.privacy.audit_mechanisms import replayed

__all__ = ["LOCAL_CASES"]


def _local_gaussian(epsilon: float, delta: float) -> list[Case]:
    """Two huge records at a right angle, along the axes: as far apart as two reports ever are.

    The score is the projection on their difference, which decides the likelihood ratio.
    """
    mechanism = LocalGaussian(epsilon, delta)
    inputs = (np.array([0.0, 1e9]), np.array([1e9, 0.0]))
    difference = np.array([1.0, 0.0, -1.0])
    # As in audit_mechanisms: at this scale no audit sees the gap to rounded noise.
    claim = Claim(epsilon, delta, math.sqrt(2) / mechanism.sigma)

    def answer(second: bool) -> float:
        return float(mechanism.privatize(inputs[second]) @ difference)

    return [
        Case("LocalGaussian", "LocalGaussian", claim, repeated(answer)),
        Case("LocalGaussian/replay", "LocalGaussian", claim, replayed(answer)),
    ]


LOCAL_CASES: dict[str, Callable[[float, float], list[Case]]] = {"LocalGaussian": _local_gaussian}
"""By the names in ``streaming_pca.local``."""
