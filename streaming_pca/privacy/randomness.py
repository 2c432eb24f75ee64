"""The two doors to randomness. Nothing else in the package draws a random number.

The *secret* door yields privacy noise from OpenDP's exact integer samplers and
secret permutations, fed by the operating system's generator; it cannot be seeded. Behind it
a process may have drawn noise ahead (:mod:`~streaming_pca.privacy.noise_pool`). The *utility*
door yields reproducible numbers for things whose privacy does not rest on
them: an initial basis, the order of rows in an experiment.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Not opendp.prelude, which imports scikit-learn where it is installed: a second for every command.
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian, make_laplace, make_noisy_max
from opendp.measures import max_divergence
from opendp.metrics import l1_distance, l2_distance, linf_distance
from opendp.mod import enable_features

__all__ = [
    "NoiseDoor",
    "noise_ahead",
    "noise_door",
    "replace_noise_door",
    "secret_salt",
    "utility_generator",
]


class NoiseDoor(Protocol):
    """Samplers of integer noise, and of secret orders."""

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        """``size`` independent draws, P(j) proportional to exp(-j**2/(2 scale**2))."""

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        """``size`` independent draws, P(j) proportional to exp(-|j|/scale)."""

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        """Index of the largest score after permute-and-flip's exponential noise of ``scale``."""

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniformly random order of 0 to n - 1."""


enable_features("contrib")


@lru_cache(maxsize=64)
def _measurement(kind: str, scale: float) -> Any:
    """Build a sampler of OpenDP, which takes 50 us."""
    domain = vector_domain(atom_domain(T="i64"))
    match kind:
        case "gaussian":
            return make_gaussian(domain, l2_distance(T="f64"), scale=scale)
        case "laplace":
            return make_laplace(domain, l1_distance(T="i64"), scale=scale)
    return make_noisy_max(domain, linf_distance(T="i64"), max_divergence(), scale=scale)


class _SecretDoor:
    """OpenDP's samplers."""

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        return np.array(_measurement("gaussian", scale)([0] * size), dtype=np.int64)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        return np.array(_measurement("laplace", scale)([0] * size), dtype=np.int64)

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        return int(_measurement("noisy_max", scale)(scores.tolist()))

    def permutation(self, n: int) -> NDArray[np.int64]:
        # The order of independent uniform keys is uniform given that no two are equal.
        while True:
            keys = np.frombuffer(secrets.token_bytes(16 * n), dtype=np.uint64).reshape(n, 2)
            order = np.lexsort((keys[:, 1], keys[:, 0]))
            if not np.any(np.all(keys[order[1:]] == keys[order[:-1]], axis=1)):
                return order.astype(np.int64)


_SECRET = _SecretDoor()
_door: NoiseDoor = _SECRET
_ahead: ContextVar[NoiseDoor | None] = ContextVar("noise drawn ahead", default=None)


def noise_door(*, public_size: bool = False) -> NoiseDoor:
    """The door that mechanisms draw from; for ``privacy/mechanisms`` only.

    Parameters
    ----------
    public_size : bool
        Whether the number of values that will be asked for is public: then they
        may have been drawn ahead. How many are left of those is a metric, so a
        request whose size tells of records must not touch them.
    """
    ahead = _ahead.get() if public_size and _door is _SECRET else None
    return _door if ahead is None else ahead


@contextmanager
def noise_ahead(door: NoiseDoor) -> Iterator[None]:
    """Answer requests of public size from what was drawn ahead; for ``privacy/noise_pool`` only.

    For the current thread, or task. A door that a test has put in place goes first.
    """
    token = _ahead.set(door)
    try:
        yield
    finally:
        _ahead.reset(token)


@contextmanager
def replace_noise_door(door: NoiseDoor) -> Iterator[None]:
    """Let a test watch or fix the noise. No setting, command or public class reaches this."""
    global _door
    before, _door = _door, door
    try:
        yield
    finally:
        _door = before


def secret_salt(n_bytes: int = 32) -> bytes:
    """A fresh salt for digests of secret bytes."""
    return secrets.token_bytes(n_bytes)


def utility_generator(seed: int | None) -> np.random.Generator:
    """A reproducible generator; never for noise that privacy rests on."""
    return np.random.default_rng(seed)
