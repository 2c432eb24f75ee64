"""Gaussian messages about single records, in an order that stays secret.

Each message alone is :func:`~streaming_pca.privacy.mechanisms.gaussian.gaussian_on_vector`,
with its noise drawn ahead: a call of the sampler costs more than a short vector's noise.
What the order adds to its privacy is proved in :mod:`streaming_pca.privacy.shuffling`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_count, require_positive
from streaming_pca.privacy.mechanisms.addition import add, require_integers
from streaming_pca.privacy.randomness import noise_door

__all__ = ["NoiseAhead", "gaussian_on_message", "secret_permutation"]

_BLOCK_VALUES = 2**16


def secret_permutation(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same places in a uniformly random order, from the operating system's generator.

    Parameters
    ----------
    places : (n,) int64

    Raises
    ------
    ParameterError
        If ``places`` is not a vector of int64.

    Notes
    -----
    The order is not an output: whoever uses it must release nothing but what
    :mod:`streaming_pca.privacy.shuffling` speaks of, the messages sent in it. Numbers
    that depend on the order in another way, exact or noisy, are not covered.
    """
    require_integers("places", places)
    if places.ndim != 1:
        raise ParameterError(f"places must be a vector, not of shape {places.shape}")
    return np.asarray(places[noise_door().permutation(places.size)])


class NoiseAhead:
    """Discrete Gaussian noise for a known number of messages, drawn by the block; each is used once.

    Parameters
    ----------
    messages, dim : int
        How many messages, of how many integers.
    sigma : float
        Noise scale in lattice units.
    """

    def __init__(self, messages: int, dim: int, sigma: float) -> None:
        require_count("messages", messages)
        require_count("dim", dim)
        require_positive("sigma", sigma)
        self.sigma, self._dim, self._left = sigma, dim, messages
        self._block = np.zeros((0, dim), dtype=np.int64)
        self._used = 0

    def __repr__(self) -> str:
        return f"NoiseAhead({self._dim}, {self.sigma!r})"

    def take(self) -> NDArray[np.int64]:
        """Noise of one message, (dim,) int64.

        Raises
        ------
        ParameterError
            If all of it has been used.
        """
        if self._used == len(self._block):
            count = min(self._left, max(_BLOCK_VALUES // self._dim, 1))
            if not count:
                raise ParameterError("no noise is left: more messages were sent than were announced")
            drawn = noise_door(public_size=True).discrete_gaussian(count * self._dim, self.sigma)
            self._block, self._used = drawn.reshape(count, self._dim), 0
            self._left -= count
        self._used += 1
        return np.asarray(self._block[self._used - 1])


def gaussian_on_message(
    contribution: NDArray[np.int64], noise: NoiseAhead, sigma: float
) -> NDArray[np.int64]:
    """One record's contribution and discrete Gaussian noise, in lattice units.

    Parameters
    ----------
    contribution : (d,) int64
        Of norm at most b, in lattice units.
    noise : NoiseAhead
    sigma : float
        Noise scale, that of ``noise``.

    Returns
    -------
    (d,) int64, within 2**62 of 0

    Raises
    ------
    ParameterError
        If ``contribution`` is not int64, or not of the dimension of the noise, or
        the scales differ.

    Notes
    -----
    Released: every coordinate plus an independent discrete Gaussian. Adjacency:
    replace-one; a record is in one message, and two contributions differ by at most 2 b
    in L2. A sequence of them about records in a secret uniform order, each contribution
    a function of its record and earlier messages, is (epsilon, delta)-private for
    ``sigma`` of :func:`~streaming_pca.privacy.shuffling.shuffled_sigma`. It is also
    (2 b)**2/(2 sigma**2)-zCDP, without the order's help: for each fixed order one message
    is of the differing record, and a mixture over orders has no larger Renyi divergence.
    """
    require_integers("contribution", contribution)
    if sigma != noise.sigma:
        raise ParameterError(f"the noise was drawn for sigma = {noise.sigma!r}, not {sigma!r}")
    drawn = noise.take()
    if contribution.shape != drawn.shape:
        raise ParameterError(f"contribution {contribution.shape} and noise {drawn.shape} must have one shape")
    return add(contribution, drawn)
