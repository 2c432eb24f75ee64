"""Samplers of randomness: the only source of random bits and of generators in the package.

The *secret* sampler draws privacy noise and secret permutations from the operating system's generator; it
cannot be seeded. Gaussian noise is :mod:`~streaming_pca.privacy.noise`, which keeps no state between draws.
Other laws come from OpenDP's exact integer samplers: OpenSSL's generator renews its state in a fork. The
*utility* generator draws reproducible numbers that privacy does not depend on: an initial basis, the order of
rows in an experiment.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.noise import rounded_gaussian


@lru_cache(maxsize=64)
def _laplace_sampler(scale: float) -> Any:
    """Build a sampler of OpenDP, which takes 50 us."""
    # Imported here: it takes 0.1 s that streams with Gaussian noise only need not pay. Not
    # opendp.prelude, which imports scikit-learn if it is installed: a second for every command.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)


class NoiseSampler:
    """Sampler of noise on integers, and of secret orders, from bits of the operating system."""

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        """Return ``total`` plus independent Gaussians of ``sigma``, rounded to a grid."""
        return rounded_gaussian(total, sigma, secrets.token_bytes)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        """Draw ``size`` independent integers, P(j) proportional to exp(-|j|/scale)."""
        return np.array(_laplace_sampler(scale)([0] * size), dtype=np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Return a uniformly random order of 0 to n - 1."""
        # The order of independent uniform keys is uniform given that no two are equal.
        while True:
            keys = np.frombuffer(secrets.token_bytes(16 * n), dtype=np.uint64).reshape(n, 2)
            order = np.lexsort((keys[:, 1], keys[:, 0]))
            if not np.any(np.all(keys[order[1:]] == keys[order[:-1]], axis=1)):
                return order.astype(np.int64)


_sampler = NoiseSampler()


def noise_sampler() -> NoiseSampler:
    """Return the sampler of the mechanisms; for ``privacy/mechanisms`` only."""
    return _sampler


@contextmanager
def replace_noise_sampler(sampler: NoiseSampler) -> Iterator[None]:
    """Let a test watch or fix the noise; no setting, command or public class calls this."""
    global _sampler
    before, _sampler = _sampler, sampler
    try:
        yield
    finally:
        _sampler = before


def secret_salt(n_bytes: int = 32) -> bytes:
    """Draw a fresh salt for digests of secret bytes."""
    return secrets.token_bytes(n_bytes)


def utility_generator(seed: int | None) -> np.random.Generator:
    """Return a reproducible generator; never for noise that privacy depends on."""
    return np.random.default_rng(seed)
