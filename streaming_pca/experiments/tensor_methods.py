"""The methods of 001's experiments: what is done with a tensor that is given, and estimators of records."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.given_tensor import Calibration, private_tensor_power
from streaming_pca.experiments.tensor_settings import MixtureSetting, TensorDraw, TensorSetting
from streaming_pca.experiments.whole_methods import PlacedMethod, WholeMethod
from streaming_pca.linalg.tensors import enough_restarts, enough_steps, robust_tensor_power
from streaming_pca.privacy.calibration import gaussian_multiplier
from streaming_pca.privacy.parameters import PrivacyParameters

__all__ = ["GIVEN_METHODS", "POWER", "RECORD_METHODS", "RecordMethod"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RecordMethod(PlacedMethod):
    """A line of a figure that runs an estimator over records: what options it has is said by the place.

    Attributes
    ----------
    options : callable
        From the place to the estimator's options.
    """

    options: Callable[[Any], dict[str, Any]]

    def options_for(self, setting: Any) -> dict[str, Any]:
        """Those of the place."""
        return self.options(setting)


def _power(draw: TensorDraw) -> Floats:
    """Algorithm 1."""
    k, d = draw.setting.k, draw.setting.dim
    return robust_tensor_power(draw.tensor, k, enough_restarts(k), enough_steps(d), draw.start())[1]


def _private(draw: TensorDraw, calibration: Calibration) -> Floats:
    """Algorithm 3. No entry exceeds lambda_1, as no entry of a unit vector exceeds 1: its bound is public."""
    setting = draw.setting
    privacy = PrivacyParameters(epsilon=setting.epsilon, delta=setting.delta)
    found = private_tensor_power(
        draw.tensor, setting.k, privacy, draw.start(), calibration=calibration, entry_bound=setting.weight
    )
    return found.components


def _input_perturbation(draw: TensorDraw) -> Floats:
    """Noise on the entries, then Algorithm 1 (001, line 238).

    One entry and its equals change by at most 1, those with two equal indices by 2, those with three by 6:
    each has noise of its own change. What is drawn stands for a mechanism's noise: the tensor is synthetic.
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


def _batch(n: int, parts: int) -> int:
    return max(n // parts, 8)


def _online(setting: MixtureSetting) -> dict[str, Any]:
    """Six steps a component, and what is left over."""
    return {"batch_size": _batch(setting.n, 19), "steps": 6}


def _whitened(setting: MixtureSetting) -> dict[str, Any]:
    """A third for the whitening; three components of three steps: few batches, as noise does not shrink."""
    first = _batch(setting.n, 3)
    rest = _batch(setting.n - first, 9)
    return {"clip_radius": 1.0, "whitening_records": first, "batch_size": rest, "steps": 3}


def _unwhitened(setting: MixtureSetting) -> dict[str, Any]:
    return {"clip_radius": 1.0, "batch_size": _batch(setting.n, 25), "steps": 8, "whitening": False}


POWER = WholeMethod(
    "tensor-power", "tensor power method (not private)", "robust-tensor-power", _power, private=False
)

GIVEN_METHODS = (
    WholeMethod(
        "tensor-entry", "Algorithm 3, restarts as one answer", "private-tensor-power",
        functools.partial(_private, calibration="joint"), place=TensorSetting,
    ),
    WholeMethod(
        "tensor-entry-printed", "Algorithm 3, printed noise", "private-tensor-power",
        functools.partial(_private, calibration="paper"), most_seeds=1, place=TensorSetting,
    ),
    WholeMethod(
        "input-perturbation", "input perturbation", "input-perturbation",
        _input_perturbation, place=TensorSetting,
    ),
)  # fmt: skip
"""For a tensor that is given."""

RECORD_METHODS = (
    RecordMethod(
        "tensor-private", "tensor-private, whitened", "tensor-private", _whitened, place=MixtureSetting
    ),
    RecordMethod(
        "tensor-private-unwhitened", "tensor-private, not whitened", "tensor-private",
        _unwhitened, place=MixtureSetting,
    ),
    RecordMethod(
        "tensor-online", "tensor-online (not private)", "tensor-online",
        _online, private=False, place=MixtureSetting,
    ),
)  # fmt: skip
"""For records."""
