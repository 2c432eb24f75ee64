"""The methods of 002's figures: what an estimator of the local model makes of the mean of its reports.

A stream gives an estimator reports one by one. Here the mean of n of them is drawn at once
(:mod:`streaming_pca.experiments.moments`), and a method is the estimator's own last step, with its
default options but for one; tests hold it against the estimator's release.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.local_sparse import SparseLocalOptions
from streaming_pca.experiments.moments import MomentDraw
from streaming_pca.experiments.whole_methods import WholeMethod
from streaming_pca.linalg.fantope import noise_penalty, sparse_subspace
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.local import noise_sigma

__all__ = ["DENSE", "LOCAL_METHODS", "NOISY", "SPARSE", "leading", "leading_sparse"]

Matrix = NDArray[np.float64]

_OPTIONS = SparseLocalOptions(refit=False)
"""As printed: the estimator refits on the features that it found, which is ours."""


def printed_sigma(epsilon: float, delta: float) -> float:
    """sigma_1 of Algorithm 1 as printed: of sensitivity 1, where replacing a record has sqrt(2)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def leading(mean: Matrix, k: int) -> Matrix:
    """Rows (k, d) of Algorithm 1, line 5."""
    return np.ascontiguousarray(ritz_pairs(mean, k)[1].T)


def leading_sparse(mean: Matrix, k: int, sigma: float) -> Matrix:
    """Rows (k, d) of Algorithm 2, lines 5 to 13; ``sigma`` is the noise of an entry of the mean."""
    found = sparse_subspace(
        mean,
        k,
        _OPTIONS.penalty_constant * noise_penalty(len(mean), sigma),
        tolerance=_OPTIONS.tolerance,
        max_iterations=_OPTIONS.max_iterations,
    )
    return found.components(k, len(mean))


def _gaussian(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return leading(draw.noisy(noise_sigma(setting.epsilon, setting.delta)), setting.k)


def _printed(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return leading(draw.noisy(printed_sigma(setting.epsilon, setting.delta)), setting.k)


def _sparse(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    sigma = noise_sigma(setting.epsilon, setting.delta)
    return leading_sparse(draw.noisy(sigma), setting.k, sigma / math.sqrt(setting.n))


def _pca(draw: MomentDraw) -> Matrix:
    return leading(draw.moment, draw.setting.k)


_TABLE = (
    WholeMethod("local-gaussian", "Local Gaussian", "local-gaussian", _gaussian),
    WholeMethod("local-gaussian-printed", "Local Gaussian, printed noise", "local-gaussian", _printed),
    WholeMethod(
        "local-sparse",
        "Local Gaussian, high dimension",
        "local-sparse",
        _sparse,
        options=_OPTIONS.model_dump(),
    ),
    WholeMethod("pca", "PCA (not private)", "pca", _pca, private=False),
)

LOCAL_METHODS: dict[str, WholeMethod] = {method.key: method for method in _TABLE}
"""Every method by its key, in the order of the legends."""

DENSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-gaussian-printed", "pca"))
NOISY = tuple(method for method in DENSE if method.private)
"""Where the target is the whole set's own: PCA of all of it has no error."""
SPARSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-sparse", "pca"))
