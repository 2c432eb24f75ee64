"""Figure 1 of [WangAnandkumar2016], and its theorems on private and online algorithms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.claims import Transition
from experiments.experiment import Experiment, JointMethod, Panel, StreamMethod
from experiments.papers.dense_tensors import robust_tensor_power
from experiments.papers.given_tensor import Calibration, private_tensor_power
from experiments.papers.tensor_data import MixtureSetting, TensorDraw, TensorNoise, TensorSetting
from streaming_pca.linalg.tensors import enough_restarts, enough_steps
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier
from streaming_pca.privacy.parameters import PrivacyParameters

__all__ = ["GIVEN_METHODS", "POWER", "RECORD_METHODS", "tensor_fig1", "tensor_scaling"]

Floats = NDArray[np.float64]


# Methods for a given tensor.


def _power(draw: TensorDraw) -> Floats:
    """Run Algorithm 1."""
    k, d = draw.setting.k, draw.setting.dim
    return robust_tensor_power(draw.tensor, k, enough_restarts(k), enough_steps(d), draw.start())[1]


def _private(draw: TensorDraw, calibration: Calibration) -> Floats:
    """Run Algorithm 3.

    lambda_1 is a public bound on the entries, because no entry of a unit vector exceeds 1.
    """
    setting = draw.setting
    privacy = PrivacyParameters(epsilon=setting.epsilon, delta=setting.delta)
    found = private_tensor_power(
        draw.tensor, setting.k, privacy, draw.start(), calibration=calibration, entry_bound=setting.weight
    )
    return found.components


def _input_perturbation(draw: TensorDraw) -> Floats:
    """Add noise to the entries, then run Algorithm 1 (section 4, comparison with input perturbation).

    One entry and its equals change by at most 1, entries with two equal indices by 2, with three by 6; the
    noise of each is proportional to its change. The noise only affects utility: the tensor is synthetic.
    """
    setting, rng = draw.setting, draw.start()
    d = setting.dim
    multiplier = gaussian_multiplier(setting.epsilon, setting.delta)
    axes = np.sort(np.indices((d, d, d)), axis=0)
    equal = (axes[0] == axes[1]).astype(np.intp) + (axes[1] == axes[2])
    changes = np.array([1.0, 2.0, 6.0])[equal]
    noise = rng.standard_normal((d, d, d))[axes[0], axes[1], axes[2]]
    noisy = draw.tensor + multiplier * changes * noise
    k = setting.k
    return robust_tensor_power(noisy, k, enough_restarts(k), enough_steps(d), rng)[1]


POWER = JointMethod(
    "tensor-power", "tensor power method (not private)", "robust-tensor-power", _power, private=False
)

GIVEN_METHODS = (
    JointMethod(
        "tensor-entry", "Algorithm 3, restarts as one answer", "private-tensor-power",
        functools.partial(_private, calibration="joint"), place=TensorSetting,
    ),
    JointMethod(
        "tensor-entry-printed", "Algorithm 3, printed noise", "private-tensor-power",
        functools.partial(_private, calibration="paper"), most_seeds=1, place=TensorSetting,
    ),
    JointMethod(
        "input-perturbation", "input perturbation", "input-perturbation",
        _input_perturbation, place=TensorSetting,
    ),
)  # fmt: skip


# Methods for records.


def _batch(n: int, parts: int) -> int:
    return max(n // parts, 8)


def _online(setting: MixtureSetting) -> dict[str, Any]:
    """Use six steps per component; the remaining records refine the result."""
    return {"batch_size": _batch(setting.n, 19), "steps": 6}


def _whitened(setting: MixtureSetting) -> dict[str, Any]:
    """Use a third of the records for whitening, then three steps per component.

    There are three components. Batches are few, because the noise of a batch does not decrease with its size.
    """
    first = _batch(setting.n, 3)
    rest = _batch(setting.n - first, 9)
    return {"clip_radius": 1.0, "whitening_records": first, "batch_size": rest, "steps": 3}


def _unwhitened(setting: MixtureSetting) -> dict[str, Any]:
    return {"clip_radius": 1.0, "batch_size": _batch(setting.n, 25), "steps": 8, "whitening": False}


RECORD_METHODS = (
    StreamMethod(
        "tensor-private", "tensor-private, whitened", "tensor-private", _whitened, place=MixtureSetting
    ),
    StreamMethod(
        "tensor-private-unwhitened", "tensor-private, not whitened", "tensor-private",
        _unwhitened, place=MixtureSetting,
    ),
    StreamMethod(
        "tensor-online", "tensor-online (not private)", "tensor-online",
        _online, private=False, place=MixtureSetting,
    ),
)  # fmt: skip


# Figures.


@dataclass(frozen=True)
class _Regime:
    """Row of the figure: noise, and the scale that makes the paper's transitions constant."""

    noise: TensorNoise
    name: str
    axis: str
    scale: Callable[[int], float]
    levels: tuple[float, ...]

    def panel(self, dim: int, levels: tuple[float, ...]) -> Panel:
        points = tuple((x, TensorSetting(self.noise, dim, x / self.scale(dim))) for x in levels)
        return Panel(f"{self.noise}-d{dim}", f"{self.name}, d = {dim}", self.axis, points)


_REGIMES = (
    _Regime("gaussian", "random Gaussian noise", "σ√d", math.sqrt, (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)),
    _Regime("adversarial", "adversarial noise", "σ d", float, (3.0, 4.5, 6.0, 8.0, 12.0, 18.0)),
    _Regime("weak", "weakly correlated noise", "σ ln d", math.log, (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)),
)


def tensor_fig1(quick: bool) -> Experiment:
    dims = (10, 20) if quick else (25, 50, 100)
    return Experiment(
        name="tensor-fig1",
        figure="[WangAnandkumar2016] figure 1: share of trials that fail, against the noise's norm σ",
        words="phase transitions occur at σ = O(1/√d) for random Gaussian noise, O(1/d) for adversarial "
        "noise and O(1/log d) for weakly correlated noise",
        measure="failure",
        panels=tuple(
            regime.panel(dim, regime.levels[1::3] if quick else regime.levels)
            for regime in _REGIMES
            for dim in dims
        ),
        methods=(POWER,),
        claims=tuple(
            Transition(
                POWER.key, tuple(f"{r.noise}-d{dim}" for dim in dims), -0.25, 0.25, "d^0 at this scale"
            )
            for r in _REGIMES
        ),
        seeds=2 if quick else 20,
        unlike="d up to 100 where the paper has 200; L = 10 and R = 16 to 20, which it does not say; each "
        "row is drawn at its own scale of σ only; the operator norm of Gaussian noise is the best of eight "
        "shifted power iterations",
    )


def tensor_scaling(quick: bool) -> Experiment:
    dims = (10, 20) if quick else (20, 40, 80)
    weights = (100.0, 3_200.0) if quick else (100.0, 200.0, 400.0, 800.0, 1_600.0, 3_200.0)
    record_dims = (10, 20) if quick else (25, 50, 100)
    ns = (3_000, 30_000) if quick else (1_000, 3_000, 10_000, 30_000, 100_000)
    given = tuple(
        Panel(
            f"entry-d{dim}", f"a given tensor, an entry protected, d = {dim}", "λ₁ at ε = 1",
            tuple((w, TensorSetting("none", dim, 0.0, w)) for w in weights),
        )
        for dim in dims
    )  # fmt: skip
    records = tuple(
        Panel(
            f"record-d{dim}", f"records, a record protected, d = {dim}", "records n",
            tuple((float(n), MixtureSetting(n, dim)) for n in ns),
        )
        for dim in record_dims
    )  # fmt: skip
    entries, streams = tuple(p.key for p in given), tuple(p.key for p in records)
    return Experiment(
        name="tensor-scaling",
        figure="[WangAnandkumar2016] Theorems 3.1 and 4.2: share of trials that fail, against λ₁ and n",
        words="privately, the λ ε that is needed has no polynomial dependence on d, where input "
        "perturbation's scales linearly with d; online, Õ(k d²) samples are enough",
        measure="failure",
        panels=(*given, *records),
        methods=(*GIVEN_METHODS, *RECORD_METHODS),
        claims=(
            Transition("tensor-entry", entries, -0.35, 0.35, "d^0 but for logarithms"),
            Transition("input-perturbation", entries, 0.7, 1.3, "d^1"),
            Transition("tensor-online", streams, -1.0, 2.2, "at most d^2"),
        ),
        seeds=2 if quick else 10,
        unlike="the paper has no figure of its Algorithms 2 and 3: this is what the theorems say. All three "
        "components are asked for, where Theorem 4.2 is about the first; in any order, as Theorem 2.2 has it",
    )
