"""The methods of the figures: an estimator's id, and its options as a function of the setting.

What depends on the data is what the papers' experiments are told too: eigenvalues, sigma, and
radii at which clipping is rare. All else was chosen as 003 F.2 says, by
:mod:`streaming_pca.experiments.tuning` on seeds below those that figures are made with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streaming_pca.experiments.settings import Family, Setting

__all__ = ["METHODS", "OURS", "REFERENCES", "Choice", "Method"]

Choice = Mapping[str, Any]
"""What tuning chooses; its names are a method's own."""


@dataclass(frozen=True)
class Method:
    """A line of the figures.

    Attributes
    ----------
    key : str
        As the CSV names it.
    label : str
        As the papers do.
    id : str
        Of the estimator.
    options : callable
        From a setting and a choice to the estimator's options.
    candidates : tuple of Choice
        What tuning tries; the first is used where nothing was tuned.
    tuned : mapping
        From a family of data to the choice that tuning found there.
    private : bool
    most_seeds : int or None
        Of a full run, for a method that is slow.
    most_values : int or None
        The largest n d that it is run on.
    """

    key: str
    label: str
    id: str
    options: Callable[[Setting, Choice], dict[str, Any]]
    candidates: tuple[Choice, ...] = ({},)
    tuned: Mapping[Family, Choice] | None = None
    private: bool = True
    most_seeds: int | None = None
    most_values: int | None = None

    def runs_on(self, setting: Setting, number: int) -> bool:
        """Whether it is run on a setting, in the trial of this number, from 0."""
        if self.most_values is not None and setting.n * setting.dim > self.most_values:
            return False
        return self.most_seeds is None or number < self.most_seeds

    def options_for(self, setting: Setting) -> dict[str, Any]:
        """With the choice that was tuned for this family of data."""
        return self.options(setting, (self.tuned or {}).get(setting.family, self.candidates[0]))


def _rates(setting: Setting, choice: Choice, steps: float) -> dict[str, Any]:
    """Learning rates of 003 F.2, times a constant; "inverse" in units of lambda_1, which is 10 there."""
    schedule, rate = choice["schedule"], choice["rate"]
    if schedule == "inverse":
        after, power = choice["decay"]
        return {
            "learning_rate": rate * 10.0 / setting.top,
            "offset": 10.0,
            "decay_after": max(math.ceil(after * steps), 1),
            "decay_power": power,
        }
    return {
        "schedule": schedule,
        "learning_rate": rate,
        "noise_level": setting.sigma,
        "largest_eigenvalue": setting.top,
        "gap": setting.top - (*setting.strengths, 0.0)[1],
    }


def _rate_candidates(constants: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    for rate in constants:
        for decay in ((1 / 2, 1 / 2), (1 / 3, 2.0)):
            yield {"schedule": "inverse", "decay": decay, "rate": rate}
    for schedule in ("spectral", "spectral-d"):
        yield {"schedule": schedule, "rate": 1.0}


def _batches(rule: str, n: int, k: int = 1) -> dict[str, Any]:
    """Options of a batch rule for n records, of which each of k components gets its part."""
    if rule == "n/5":
        return {"batch_rule": "fixed", "batch_size": max(n // (5 * k), 8)}
    return {"batch_rule": rule}


def _steps(rule: str, n: float) -> float:
    """Batches (of a component) that a rule makes of n records."""
    return {"n/log n": math.log(n), "sqrt n": math.sqrt(n), "n/5": 5.0}[rule]


def _adadpo(setting: Setting, choice: Choice) -> dict[str, Any]:
    rule = choice["batch_rule"]
    return {**_batches(rule, setting.n), **_rates(setting, choice, _steps(rule, setting.n))}


def _adadpo_printed(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {**_adadpo(setting, choice), "accounting": "paper"}


def _tadadpo(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Half of the records for ADADPO's start, half for the tangent steps."""
    half, rule = setting.n // 2, choice["batch_rule"]
    return {
        **_batches(rule, half),
        **_rates(setting, choice, _steps(rule, half)),
        "warm_estimator": "adadpo",
        "warm_records": half,
        "warm_options": METHODS["adadpo"].options_for(replace(setting, n=half)),
    }


def _private_oja(setting: Setting, choice: Choice) -> dict[str, Any]:
    """B by the same rules: it has no option for them."""
    steps = _steps(choice["batch_rule"], setting.n)
    return {
        "clip_radius": _image_bound(setting, setting.k),
        "batch_size": max(int(setting.n / steps), 2),
        **_rates(setting, choice, steps),
    }


def _k_dp_pca(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Component-wise rates (003 F.2, 004 G.1) for the spectral schedules."""
    rule = choice["batch_rule"]
    rates = _rates(setting, choice, _steps(rule, setting.n))
    if choice["schedule"] != "inverse":
        del rates["largest_eigenvalue"], rates["gap"]
        rates["eigenvalues"] = (*setting.strengths, 0.0)
    return {**_batches(rule, setting.n, setting.k), **rates}


def _k_dp_ojas(setting: Setting, choice: Choice) -> dict[str, Any]:
    """eta_j = 1/(1 + j), which both papers have for it, at lambda_1 = 10."""
    return {
        "clip_radius": choice["radius"] * _image_bound(setting, 1),
        "learning_rate": 10.0 / setting.top,
        "offset": 1.0,
    }


def _gauss(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {"clip_radius": setting.norm_bound**2}


def _output_perturbation(setting: Setting, choice: Choice) -> dict[str, Any]:
    return {**_gauss(setting, choice), "batch_size": setting.n}


def _noisy_power(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Radii of 003, lines 176 and 2197: beta, and that of |a|_1, with beta's own C."""
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


def _image_bound(setting: Setting, k: int) -> float:
    """A radius that |A_i Q|_F exceeds, for a fixed Q of k columns, with probability 0.01 or so."""
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


# The papers' two rules; and few large batches with long steps, for where theirs are small for PrivRange.
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

# What tuning chose.
_LONG_STEPS, _SHORTER_STEPS, _SLOW_DECAY, _QUICK_DECAY = _BATCHED[-1], _BATCHED[-2], _BATCHED[2], _BATCHED[1]
_FAST_DECAY: Choice = {"schedule": "inverse", "decay": (1 / 3, 2.0), "rate": 1.0}
_ADADPO_TUNED: Mapping[Family, Choice] = {"spiked": _LONG_STEPS, "gaussian": _QUICK_DECAY}
# Tangent steps have no part inside the span, which keeps the long ones of ADADPO from overshooting.
_TADADPO_TUNED: Mapping[Family, Choice] = {"spiked": _BATCHED[0], "gaussian": _QUICK_DECAY}
_K_DP_PCA_TUNED: Mapping[Family, Choice] = {
    "spiked": _LONG_STEPS,
    "gaussian": _SHORTER_STEPS,
    "coherent": _SLOW_DECAY,
}

_TABLE = (
    Method("adadpo", "ADADPO", "adadpo", _adadpo, _BATCHED, _ADADPO_TUNED),
    Method(
        "adadpo-printed", "ADADPO, printed accounting", "adadpo", _adadpo_printed, _BATCHED, _ADADPO_TUNED
    ),
    Method("tadadpo", "ADADPO, then TADADPO", "tadadpo", _tadadpo, _BATCHED, _TADADPO_TUNED),
    Method(
        "private-oja", "Private Oja", "private-oja", _private_oja,
        (*_BATCHED[:4], *_BATCHED[-2:]), {"spiked": _LONG_STEPS},
    ),
    Method("k-dp-pca", "k-DP-PCA", "k-dp-pca", _k_dp_pca, _BATCHED, _K_DP_PCA_TUNED),
    Method("dp-pca", "DP-PCA", "dp-pca", _k_dp_pca, _BATCHED, _K_DP_PCA_TUNED),
    Method(
        "k-dp-ojas", "k-DP-Ojas", "k-dp-ojas", _k_dp_ojas,
        tuple({"radius": share} for share in (1.0, 0.1, 0.02)), {"gaussian": {"radius": 0.02}},
        most_seeds=1, most_values=2_500_000,
    ),
    Method("analyze-gauss", "DP-Gauss-1", "analyze-gauss", _gauss),
    Method("output-perturbation", "DP-Gauss-2", "output-perturbation", _output_perturbation),
    Method(
        "noisy-power", "DP-Power-Method", "noisy-power", _noisy_power,
        tuple({"rounds": t} for t in (3, 2, 5, 10)), {"spiked": {"rounds": 5}},
    ),
    Method(
        "adaptive-power", "Adaptive power", "adaptive-power", _adaptive_power,
        tuple({"rounds": t} for t in (3, 5, 10, 20)),
        # T = O(ln(n)/kappa), as the theorem has it: three rounds end before they converge.
        {"coherent": {"rounds": 8}},
    ),
    Method(
        "oja", "Oja (not private)", "oja", _oja, (_FAST_DECAY, *_rate_candidates((1.0, 10.0))), private=False
    ),
    Method("adaptive", "adaptive (ours)", "adaptive", _none),
    Method("block", "block (ours)", "block", _none),
)  # fmt: skip

METHODS: dict[str, Method] = {method.key: method for method in _TABLE}
"""Every method by its key, in the order of the legends."""

OURS = ("adaptive", "block")
REFERENCES = tuple(key for key, method in METHODS.items() if not method.private)
