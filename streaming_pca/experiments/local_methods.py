"""The methods of 002's figures: what an estimator of the local model does with the mean of its reports.

A real stream gives an estimator the reports one by one. Here the mean of n of them is drawn at once
(:mod:`streaming_pca.experiments.moments`), and a method is the estimator's own last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.experiments.moments import MomentDraw, MomentSetting
from streaming_pca.linalg.fantope import noise_penalty, sparse_subspace
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.local import noise_sigma

__all__ = ["DENSE", "LOCAL_METHODS", "SPARSE", "LocalMethod"]

Matrix = NDArray[np.float64]

_TOLERANCE, _ITERATIONS = 1e-4, 300
"""Of the penalised problem: a tenth of the estimator's, and errors here are above 0.01."""


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
        return {"method": self.key, "tolerance": _TOLERANCE} if "sparse" in self.id else {"method": self.key}


def printed_sigma(epsilon: float, delta: float) -> float:
    """sigma_1 of Algorithm 1 as printed: of sensitivity 1, where replacing a record has sqrt(2)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _leading(moment: Matrix, k: int) -> Matrix:
    return np.ascontiguousarray(ritz_pairs(moment, k)[1].T)


def _gaussian(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return _leading(draw.noisy(noise_sigma(setting.epsilon, setting.delta)), setting.k)


def _printed(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return _leading(draw.noisy(printed_sigma(setting.epsilon, setting.delta)), setting.k)


def _sparse(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    sigma = noise_sigma(setting.epsilon, setting.delta)
    penalty = noise_penalty(setting.dim, sigma / math.sqrt(setting.n))
    found = sparse_subspace(
        draw.noisy(sigma), setting.k, penalty, tolerance=_TOLERANCE, max_iterations=_ITERATIONS
    )
    return found.components(setting.k, setting.dim)


def _pca(draw: MomentDraw) -> Matrix:
    return _leading(draw.moment, draw.setting.k)


_TABLE = (
    LocalMethod("local-gaussian", "Local Gaussian", "local-gaussian", _gaussian),
    LocalMethod("local-gaussian-printed", "Local Gaussian, printed noise", "local-gaussian", _printed),
    LocalMethod("local-sparse", "Local Gaussian, high dimension", "local-sparse", _sparse),
    LocalMethod("pca", "PCA (not private)", "pca", _pca, private=False),
)

LOCAL_METHODS: dict[str, LocalMethod] = {method.key: method for method in _TABLE}
"""Every method by its key, in the order of the legends."""

DENSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-gaussian-printed", "pca"))
SPARSE = tuple(LOCAL_METHODS[key] for key in ("local-gaussian", "local-sparse", "pca"))
