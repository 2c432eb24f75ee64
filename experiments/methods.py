"""Methods of the k-PCA figures: an estimator's id, and its options as a function of the setting.

Options that depend on the data use quantities that the papers' experiments also know: eigenvalues, sigma, and
radii where clipping is rare. All others were chosen as in [DunglerSanyal2026, appendix F.2], by
:mod:`experiments.tuning` on seeds below those of the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from experiments.experiment import Method
from experiments.printed import PrintedAdaDPO, with_spectral_rates
from experiments.settings import Family, Setting
from streaming_pca.estimators.registry import find

__all__ = ["BOUNDED", "GAUSS", "METHODS", "OURS", "REFERENCES", "Choice", "TunedMethod", "methods_of"]

Choice = Mapping[str, Any]
"""Options that tuning chooses, under a method's own names."""

_QUICK_VALUES = 40_000
"""Largest n d for a slow method in a quick run."""


@dataclass(frozen=True)
class TunedMethod(Method):
    """Method whose options were tuned for each family of data.

    Attributes
    ----------
    options : callable
        Maps a setting and a choice to the estimator's options.
    candidates : tuple of Choice
        Candidates for tuning; without tuning, the first is used.
    tuned : mapping
        Maps a family of data to the choice of tuning.
    most_values : int or None
        Largest n d for this method.
    """

    options: Callable[[Setting, Choice], dict[str, Any]]
    candidates: tuple[Choice, ...] = ({},)
    tuned: Mapping[Family, Choice] | None = None
    most_values: int | None = field(default=None, kw_only=True)

    def runs_on(self, setting: Setting, number: int) -> bool:
        if self.most_values is not None and setting.n * setting.dim > self.most_values:
            return False
        return super().runs_on(setting, number)

    def options_for(self, setting: Setting) -> dict[str, Any]:
        return self.options(setting, (self.tuned or {}).get(setting.family, self.candidates[0]))


def _rates(setting: Setting, choice: Choice, steps: float) -> dict[str, Any]:
    """Return the learning rates of [DunglerSanyal2026, appendix F.2], times a constant, for each component.

    The rate of "inverse" is in units of lambda_1, which is 10 in that paper.
    """
    schedule, rate = choice["schedule"], choice["rate"]
    if schedule == "inverse":
        after, power = choice["decay"]
        return {
            "learning_rate": rate * 10.0 / setting.top,
            "offset": 10.0,
            "decay_after": max(math.ceil(after * steps), 1),
            "decay_power": power,
        }
    values = (*setting.strengths, 0.0)
    spread = 20 * setting.sigma * (setting.dim if schedule == "spectral-d" else 1)
    return {
        "learning_rate": rate,
        "starts": tuple(spread * value for value in values[:-1]),
        "slopes": tuple((one - other) / math.log(setting.n) for one, other in pairwise(values)),
    }


def _rate_candidates(constants: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    for rate in constants:
        for decay in ((1 / 2, 1 / 2), (1 / 3, 2.0)):
            yield {"schedule": "inverse", "decay": decay, "rate": rate}
    for schedule in ("spectral", "spectral-d"):
        yield {"schedule": schedule, "rate": 1.0}


def _batches(rule: str, n: int, k: int = 1) -> dict[str, Any]:
    """Return the options of a batch rule for n records, divided among k components."""
    if rule == "n/5":
        return {"batch_rule": "fixed", "batch_size": max(n // (5 * k), 8)}
    return {"batch_rule": rule}


def _steps(rule: str, n: float) -> float:
    """Return the number of batches (of a component) for n records by a rule."""
    return {"n/log n": math.log(n), "sqrt n": math.sqrt(n), "n/5": 5.0}[rule]


def _adadpo(setting: Setting, choice: Choice) -> dict[str, Any]:
    rule = choice["batch_rule"]
    return {**_batches(rule, setting.n), **_rates(setting, choice, _steps(rule, setting.n))}


def _adadpo_printed(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {**_adadpo(setting, choice), "accounting": "paper"}


def _tadadpo(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Use half of the records for ADADPO's start, and half for the tangent steps."""
    half, rule = setting.n // 2, choice["batch_rule"]
    return {
        **_batches(rule, half),
        **_rates(setting, choice, _steps(rule, half)),
        "warm_estimator": "adadpo",
        "warm_records": half,
        "warm_options": METHODS["adadpo"].options_for(replace(setting, n=half)),
    }


def _private_oja(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Size batches by the same rules; the estimator lacks an option for them."""
    steps = _steps(choice["batch_rule"], setting.n)
    return {
        "clip_radius": _product_bound(setting, setting.k),
        "batch_size": max(int(setting.n / steps), 2),
        **_rates(setting, choice, steps),
    }


def _k_dp_pca(setting: Setting, choice: Choice) -> dict[str, Any]:
    rule = choice["batch_rule"]
    return {**_batches(rule, setting.n, setting.k), **_rates(setting, choice, _steps(rule, setting.n))}


def _k_dp_ojas(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Use eta_j = 1/(1 + j) at lambda_1 = 10, as both papers do."""
    return {
        "clip_radius": choice["radius"] * _product_bound(setting, 1),
        "learning_rate": 10.0 / setting.top,
        "offset": 1.0,
    }


def _gauss(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {"clip_radius": setting.norm_bound**2}


def _output_perturbation(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {**_gauss(setting, choice), "batch_size": setting.n}


def _noisy_power(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Use the radii of [DunglerSanyal2026, appendix F]: beta, and a bound on |a|_1 with beta's C."""
    rare = setting.noise_bound
    alpha = math.sqrt(setting.dim) * (setting.norm_bound - rare) + setting.sigma * setting.dim + rare
    return {
        "clip_l2": setting.norm_bound,
        "clip_l1": min(alpha, math.sqrt(setting.dim * setting.rows) * setting.norm_bound),
        "iterations": choice["rounds"],
        "batch_size": setting.n,
    }


def _adaptive_power(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {"clip_radius": setting.norm_bound**2, "rounds": choice["rounds"]}


def _product_bound(setting: Setting, k: int) -> float:
    """Return a radius that |A_i Q|_F exceeds with probability about 0.01.

    This holds for a fixed Q of k columns.
    """
    if setting.family == "coherent":
        return 1.0
    rare = math.sqrt(2 * setting.rarity)
    noise = setting.sigma * (math.sqrt(setting.dim) + rare)
    seen = setting.sigma * (math.sqrt(k) + rare)
    if setting.rows > 1:
        signal = math.sqrt(sum(value**2 for value in setting.strengths[:k]))
        return signal + noise * seen
    signal = math.sqrt(sum(setting.strengths))
    if setting.family == "gaussian":
        signal = math.sqrt(setting.top) * (math.sqrt(setting.k) + rare)
    return (signal + noise) * (signal + seen)


def _oja(setting: Setting, choice: Choice) -> dict[str, Any]:
    return _rates(setting, choice, setting.n)


def _none(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {}


def _with_rates(key: str, label: str, *arguments: Any, **more: Any) -> TunedMethod:
    """Return a method whose estimator also has the papers' other learning rates."""
    return TunedMethod(key, label, key, *arguments, variant=with_spectral_rates(find(key)), **more)


# The papers' two rules, and a few large batches with long steps, because their batches are too small for
# PrivRange.
_BATCHED = (
    *(
        {"batch_rule": rule, **rates}
        for rule in ("n/log n", "sqrt n")
        for rates in _rate_candidates((1.0, 10.0))
    ),
    *(
        {"batch_rule": "n/5", "schedule": "inverse", "decay": (1 / 2, 1 / 2), "rate": rate}
        for rate in (10.0, 100.0)
    ),
)

# Results of tuning.
_LONG_STEPS, _SHORTER_STEPS, _SLOW_DECAY, _QUICK_DECAY = _BATCHED[-1], _BATCHED[-2], _BATCHED[2], _BATCHED[1]
_FAST_DECAY: Choice = {"schedule": "inverse", "decay": (1 / 3, 2.0), "rate": 1.0}
_ADADPO_TUNED: Mapping[Family, Choice] = {"spiked": _LONG_STEPS, "gaussian": _QUICK_DECAY}
# Tangent steps lack the component inside the span that prevents ADADPO's long steps from overshooting.
_TADADPO_TUNED: Mapping[Family, Choice] = {"spiked": _BATCHED[0], "gaussian": _QUICK_DECAY}
_K_DP_PCA_TUNED: Mapping[Family, Choice] = {
    "spiked": _LONG_STEPS,
    "gaussian": _SHORTER_STEPS,
    "coherent": _SLOW_DECAY,
}

_TABLE = (
    _with_rates("adadpo", "ADADPO", _adadpo, _BATCHED, _ADADPO_TUNED),
    TunedMethod(
        "adadpo-printed", "ADADPO, printed accounting", "adadpo", _adadpo_printed, _BATCHED,
        _ADADPO_TUNED, variant=with_spectral_rates(PrintedAdaDPO),
    ),
    _with_rates("tadadpo", "ADADPO, then TADADPO", _tadadpo, _BATCHED, _TADADPO_TUNED),
    _with_rates(
        "private-oja", "Private Oja", _private_oja, (*_BATCHED[:4], *_BATCHED[-2:]), {"spiked": _LONG_STEPS}
    ),
    _with_rates("k-dp-pca", "k-DP-PCA", _k_dp_pca, _BATCHED, _K_DP_PCA_TUNED),
    _with_rates("dp-pca", "DP-PCA", _k_dp_pca, _BATCHED, _K_DP_PCA_TUNED),
    TunedMethod(
        "k-dp-ojas", "k-DP-Ojas", "k-dp-ojas", _k_dp_ojas,
        tuple({"radius": share} for share in (1.0, 0.1, 0.02)), {"gaussian": {"radius": 0.02}},
        most_seeds=1, most_values=2_500_000,
    ),
    TunedMethod("analyze-gauss", "DP-Gauss-1", "analyze-gauss", _gauss),
    TunedMethod("output-perturbation", "DP-Gauss-2", "output-perturbation", _output_perturbation),
    TunedMethod(
        "noisy-power", "DP-Power-Method", "noisy-power", _noisy_power,
        tuple({"rounds": t} for t in (3, 2, 5, 10)), {"spiked": {"rounds": 5}},
    ),
    TunedMethod(
        "adaptive-power", "Adaptive power", "adaptive-power", _adaptive_power,
        tuple({"rounds": t} for t in (3, 5, 10, 20)),
        # T = O(ln(n)/kappa), as in the theorem, because three rounds do not converge.
        {"coherent": {"rounds": 8}},
    ),
    _with_rates(
        "oja", "Oja (not private)", _oja, (_FAST_DECAY, *_rate_candidates((1.0, 10.0))), private=False
    ),
    TunedMethod("adaptive", "adaptive (ours)", "adaptive", _none),
    TunedMethod("block", "block (ours)", "block", _none),
)  # fmt: skip

METHODS: dict[str, TunedMethod] = {method.key: method for method in _TABLE}
"""Methods by key, in the order of the legends."""

OURS = ("adaptive", "block")
REFERENCES = tuple(key for key, method in METHODS.items() if not method.private)
GAUSS = ("analyze-gauss", "output-perturbation")
BOUNDED = (*GAUSS, "noisy-power")


def methods_of(quick: bool, *keys: str) -> tuple[TunedMethod, ...]:
    """Return the named methods, the reference and ours, which every figure contains.

    In a quick experiment, a slow method runs once, on the smallest data.
    """
    wanted = {*keys, *REFERENCES, *OURS}
    found = [method for key, method in METHODS.items() if key in wanted]
    if quick:
        found = [replace(m, most_seeds=1, most_values=_QUICK_VALUES) if m.most_values else m for m in found]
    return tuple(found)
