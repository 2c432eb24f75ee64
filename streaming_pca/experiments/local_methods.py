"""The methods of 002's figures: what an estimator of the local model makes of the mean of its reports.

A stream gives an estimator reports one by one. Here the mean of n of them is drawn at once
(:mod:`streaming_pca.experiments.moments`), and a method is the estimator's own last step, with its
default options but for one; tests hold it against the estimator's release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.local_sparse import SparseLocalOptions
from streaming_pca.experiments.moments import MomentDraw, MomentSetting
from streaming_pca.linalg.fantope import noise_penalty, sparse_subspace
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.local import noise_sigma

__all__ = ["DENSE", "LOCAL_METHODS", "NOISY", "SPARSE", "LocalMethod", "leading", "leading_sparse"]

Matrix = NDArray[np.float64]

_OPTIONS = SparseLocalOptions(refit=False)
"""As printed: the estimator refits on the features that it found, which is ours."""


@dataclass(frozen=True)
class LocalMethod:
    """A line of the local model's figures.

    Attributes
    ----------
    key, label : str
        As the CSV, and as the paper, names it.
    id : str
        Of the estimator whose step it is.
    components : callable
        From a draw to rows (k, d).
    private : bool
    most_seeds : int or None
        Of a full run; None: all.
    """

    key: str
    label: str
    id: str
    components: Callable[[MomentDraw], Matrix]
    private: bool = True
    most_seeds: int | None = None

    def runs_on(self, setting: Any, number: int) -> bool:
        """Whether it is run in the trial of this number, from 0."""
        return self.most_seeds is None or number < self.most_seeds

    def options_for(self, setting: MomentSetting) -> dict[str, Any]:
        """What a row's key depends on besides the setting."""
        options = _OPTIONS.model_dump() if self.id == "local-sparse" else {}
        return {"method": self.key, **options}


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
    LocalMethod("local-gaussian", "Local Gaussian", "local-gaussian", _gaussian),
    LocalMethod("local-gaussian-printed", "Local Gaussian, printed noise", "local-gaussian", _printed),
    LocalMethod("local-sparse", "Local Gaussian, high dimension", "local-sparse", _sparse),
    LocalMethod("pca", "PCA (not private)", "pca", _pca, private=False),
)

LOCAL_METHODS: dict[str, LocalMethod] = {method.key: method for method in _TABLE}
"""Every method by its key, in the order of the legends."""

DENSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-gaussian-printed", "pca"))
NOISY = tuple(method for method in DENSE if method.private)
"""Where the target is the whole set's own: PCA of all of it has no error."""
SPARSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-sparse", "pca"))
