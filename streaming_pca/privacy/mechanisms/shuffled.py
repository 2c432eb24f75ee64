"""Gaussian messages about single records, in an order that stays secret.

Each message alone is :func:`~streaming_pca.privacy.mechanisms.gaussian.gaussian_on_vector`;
:mod:`streaming_pca.privacy.calibration.shuffling` proves how much privacy the order adds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector, require_integers
from streaming_pca.privacy.randomness import noise_sampler


def secret_permutation(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places in a uniformly random order, from the operating system's generator.

    The order is not an output: the caller must release only the messages sent in it, which
    :mod:`streaming_pca.privacy.calibration.shuffling` covers. Numbers that depend on the
    order in another way, exact or noisy, are not covered.
    """
    require_integers("places", places)
    if places.ndim != 1:
        raise ParameterError(f"places must be a vector, not of shape {places.shape}")
    return np.asarray(places[noise_sampler().permutation(places.size)])


def gaussian_on_message(contribution: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
    """Add Gaussian noise to one record's contribution (d,), in lattice units.

    Its norm is at most b. Released: every coordinate plus an independent Gaussian, rounded. Adjacency:
    replace-one; a record is in one message, and two contributions differ by at most 2 b
    in L2. A sequence of them about records in a secret uniform order, each contribution
    a function of its record and earlier messages, is (epsilon, delta)-private for
    ``sigma`` of :func:`~streaming_pca.privacy.calibration.shuffling.shuffled_sigma`. It is also
    (2 b)**2/(2 sigma**2)-zCDP, without the order's help: for each fixed order one message
    is of the differing record, and a mixture over orders has no larger Renyi divergence.
    """
    require_integers("contribution", contribution)
    return gaussian_on_vector(contribution, sigma)
