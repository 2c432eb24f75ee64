"""Saturation-safe int64 addition of discrete noise.

OpenDP's samplers saturate: a draw beyond int64 becomes its end. Here the sum is
clipped so that a saturated draw and the true one give the same answer, and the
answer is then a function of (total + noise) in unbounded integers: what is
private there stays private, to the last bit and with no tail to charge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.noise import LARGEST_TOTAL

__all__ = ["add", "require_integers"]

_ENDS = np.iinfo(np.int64)


def require_integers(name: str, values: NDArray[np.int64]) -> None:
    """Refuse an array of anything but int64: rounding is the caller's to do, and to account for."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int64:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ParameterError(f"{name} must be an array of int64, not {kind}")


def add(total: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
    """Total and noise, clipped to ``LARGEST_TOTAL - 1`` on both sides.

    Notes
    -----
    A total is clipped to [-2**62, 2**62] first, which moves no two neighbours
    apart in any norm. A draw N >= 2**63 - 1 arrives as 2**63 - 1; total + N and
    total + 2**63 - 1 are both at least 2**62 - 1, and clip to that. Likewise
    below. So the answer is clip(total + N).
    """
    bounded = np.clip(total, -LARGEST_TOTAL, LARGEST_TOTAL)
    noise = noise.reshape(total.shape)
    # int64 wraps without a warning; a sum wrapped when its sign is neither term's.
    wrapped = bounded + noise
    ends = np.where(noise < 0, _ENDS.min, _ENDS.max)
    whole = np.where(((bounded ^ wrapped) & (noise ^ wrapped)) < 0, ends, wrapped)
    return np.asarray(np.clip(whole, 1 - LARGEST_TOTAL, LARGEST_TOTAL - 1))
