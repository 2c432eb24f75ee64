"""Noise as a function of its input: the same in every process that finishes a batch."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.mechanisms.pure import add


class HashedSampler:
    """Sampler of correctly distributed noise, drawn from a digest of its arguments.

    Processes that add noise to the same exact sums get the same results, independent of their other streams
    and of the process that finishes a batch. If one integer of a sum differs, all of the noise does.
    """

    def _generator(self, kind: str, scale: float, *arrays: NDArray[np.int64]) -> np.random.Generator:
        digest = hashlib.blake2b(f"{kind} {scale.hex()}".encode(), digest_size=16)
        for array in arrays:
            digest.update(str(array.shape).encode() + np.ascontiguousarray(array, np.int64).tobytes())
        return np.random.default_rng(int.from_bytes(digest.digest(), "big"))

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        noise = self._generator("gaussian", float(sigma), total).normal(scale=sigma, size=total.size)
        return add(total, np.rint(noise).astype(np.int64))

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        noise = self._generator("laplace", float(scale), np.array([size])).laplace(scale=scale, size=size)
        return np.rint(noise).astype(np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        return self._generator("permutation", 0.0, np.array([n])).permutation(n).astype(np.int64)
