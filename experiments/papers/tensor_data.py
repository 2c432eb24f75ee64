"""Data of [WangAnandkumar2016]: given tensors with noise, and records with a third moment.

Memory: a tensor of d features has 8 d^3 bytes, and a few exist at the same time; records have 4 n d bytes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from experiments.papers.dense_tensors import products_of_tensor, sum_of_cubes, symmetrised
from experiments.settings import Measure, RowsDraw, generator
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import normalised, product_values, random_starts

__all__ = ["MixtureDraw", "MixtureSetting", "TensorDraw", "TensorNoise", "TensorSetting", "failure"]

Floats = NDArray[np.float64]
TensorNoise = Literal["gaussian", "adversarial", "weak", "none"]

_RATIOS = (1.0, 0.75, 0.5)
"""Weights of the paper's tensor (appendix A), as shares of the first."""
_FOUND = 0.25
"""Smallest overlap of a component that counts as found (appendix A)."""
_TRUTH, _NOISE, _RECORDS, _START = range(4)
_NORM_STARTS, _NORM_STEPS = 8, 60
"""Starts and steps of the power iteration for an operator norm."""


def failure(components: Floats, truth: Floats, ordered: bool) -> float:
    """Return 0 if each row of ``truth`` is found among ``components``, otherwise 1.

    A row is found if a component overlaps it by 1/4 or more.

    Parameters
    ----------
    components, truth : (k, d) float64, unit rows
    ordered : bool
        If True, compare rows with the same index, as in the paper's figure; otherwise compare under the
        best permutation, as in Theorem 2.2.
    """
    found = components @ truth.T >= _FOUND
    if ordered:
        return float(not np.diagonal(found).all())
    rows, columns = linear_sum_assignment(found, maximize=True)
    return float(not found[rows, columns].all())


class _Components:
    """Common base of both kinds of places: three components, trials that fail or succeed."""

    dim: int

    @property
    def k(self) -> int:
        return len(_RATIOS)

    def random_error(self, measure: Measure) -> float:
        """Return 1: random components fail, except in about one trial of fifty at d = 25."""
        return 1.0


@dataclass(frozen=True)
class TensorSetting(_Components):
    """Point of figure 1: T = sum lambda_i v_i (x) v_i (x) v_i, plus noise.

    Attributes
    ----------
    noise : str
        "gaussian": independent entries, symmetrised. "adversarial": sum_i of v_2 (x) e_i (x) e_i and its
        permutations. "weak": the sum of v_i (x) v_i (x) v_i over a basis of the complement of v_1, v_2,
        v_3. In these three, v_i = e_i, as in the paper. "none": without noise, and v_1, v_2, v_3 are random:
        incoherent, as in Theorem 4.2.
    dim : int
    level : float
        Operator norm of the noise.
    weight : float
        lambda_1; the others are three quarters and half of it.
    epsilon, delta : float
        Privacy parameters for one entry of the tensor.
    """

    noise: TensorNoise
    dim: int
    level: float
    weight: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-6

    @property
    def n(self) -> int:
        """Number of tensors; the setting has no records."""
        return 1

    @property
    def bytes(self) -> int:
        return 8 * 6 * self.dim**3

    def as_json(self) -> dict[str, Any]:
        return {"tensor": "given", **asdict(self)}

    def draw(self, seed: int) -> TensorDraw:
        """Draw the tensor of a seed."""
        return TensorDraw(self, seed)


def _random_truth(setting: TensorSetting | MixtureSetting, seed: int) -> Floats:
    basis = generator(seed, _TRUTH).standard_normal((setting.dim, setting.k))
    return np.ascontiguousarray(orthonormalise(basis).T)


class TensorDraw:
    """Tensor of one seed.

    Attributes
    ----------
    truth : (3, d) float64, unit rows
    tensor : (d, d, d) float64, symmetric
    """

    def __init__(self, setting: TensorSetting, seed: int) -> None:
        self.setting, self._seed = setting, seed
        weights = setting.weight * np.array(_RATIOS)
        if setting.noise == "none":
            self.truth = _random_truth(setting, seed)
            self.tensor = sum_of_cubes(weights, self.truth)
            return
        self.truth = np.eye(setting.k, setting.dim)
        self.tensor = sum_of_cubes(weights, self.truth) + setting.level * _unit_noise(
            setting.noise, setting.dim, seed if setting.noise == "gaussian" else 0
        )

    def start(self) -> np.random.Generator:
        """Return utility randomness, the same for all methods on this draw."""
        return generator(self._seed, _START)

    def error(self, measure: Measure, components: Floats) -> float:
        """Return 1 for a failed trial, otherwise 0.

        With noise, components must be in the paper's order; without noise, any order counts.
        """
        return failure(components, self.truth, ordered=self.setting.noise != "none")


@functools.lru_cache(maxsize=4)
def _unit_noise(noise: TensorNoise, dim: int, seed: int) -> Floats:
    """Return noise with an operator norm of 1."""
    if noise == "weak":
        return sum_of_cubes(np.ones(dim - 3), np.eye(dim)[3:])
    if noise == "adversarial":
        one_way = np.zeros((dim, dim, dim))
        one_way[1][np.diag_indices(dim)] = 1.0
        # E(u, u, u) = 3 (v_2 . u) |u|^2 is at most 3; the mean over orders is a third of E.
        return symmetrised(one_way)
    drawn = symmetrised(generator(seed, _NOISE).standard_normal((dim, dim, dim)))
    return np.asarray(drawn / _operator_norm(drawn, generator(seed, _START)))


def _operator_norm(tensor: Floats, rng: np.random.Generator) -> float:
    """Estimate max E(u, u, u) over unit u from below, by several shifted power iterations.

    The paper uses a similar routine (appendix A); with the shift, every step increases the value.
    """
    dim = len(tensor)
    u = random_starts(rng, dim, _NORM_STARTS)
    # A shift of about the norm of symmetric Gaussian noise, 2.3 sqrt(d/6).
    shift = math.sqrt(dim)
    for _ in range(_NORM_STEPS):
        u = normalised(products_of_tensor(tensor, u) + shift * u, u)
    return float(product_values(products_of_tensor(tensor, u), u).max())


@dataclass(frozen=True)
class MixtureSetting(_Components):
    """Records of mean 0 with a third moment: x = c v_J + z.

    J is 1, 2 or 3 with probabilities in the ratios of the paper's weights. c is ``HIGH`` with probability 0.1
    and otherwise slightly negative, so that E[c] = 0; z ~ N(0, sigma^2 I/d). Therefore E[x (x) x (x) x] is
    E[c^3] sum p_i v_i (x) v_i (x) v_i, with random orthonormal v_i.

    Attributes
    ----------
    n, dim : int
    epsilon, delta : float
        Privacy parameters for one record.
    sigma : float
        Square root of E|z|^2.
    """

    n: int
    dim: int
    epsilon: float = 1.0
    delta: float = 1e-6
    sigma: float = 0.3

    @property
    def bytes(self) -> int:
        return 8 * self.n * self.dim

    def as_json(self) -> dict[str, Any]:
        return {"tensor": "moment", **asdict(self)}

    def draw(self, seed: int) -> MixtureDraw:
        """Draw the records of a seed."""
        return MixtureDraw(self, seed)


class MixtureDraw(RowsDraw):
    """Records of one seed.

    Attributes
    ----------
    truth : (3, d) float64, unit rows
    """

    HIGH, OFTEN = 0.9, 0.1
    _start = _START

    def __init__(self, setting: MixtureSetting, seed: int) -> None:
        super().__init__(setting, seed)
        self.truth = _random_truth(setting, seed)
        rng = generator(seed, _RECORDS)
        shares = np.array(_RATIOS) / sum(_RATIOS)
        which = rng.choice(setting.k, setting.n, p=shares)
        low = -self.HIGH * self.OFTEN / (1 - self.OFTEN)
        heights = np.where(rng.random(setting.n) < self.OFTEN, self.HIGH, low)
        self._rows = rng.standard_normal((setting.n, setting.dim), dtype=np.float32)
        self._rows *= np.float32(setting.sigma / math.sqrt(setting.dim))
        self._rows += (heights[:, None] * self.truth[which]).astype(np.float32)

    def error(self, measure: Measure, components: Floats) -> float:
        """Return 1 for a failed trial, otherwise 0."""
        return failure(components, self.truth, ordered=False)
