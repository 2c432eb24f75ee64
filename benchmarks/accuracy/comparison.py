"""Every method on one setting: errors over seeds, their ratios, and whether the targets hold.

Estimators run as users run them, by ``PrivatePCA.fit``, or by the loop of a stream if records must stay in
order, which ``fit`` does not preserve.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.peers import ORACLE, PEERS, oracle
from benchmarks.accuracy.rivals import LIBRARIES, OJA_RATES, Skipped, library_pca, oja
from benchmarks.accuracy.settings import Draw, Setting, Target
from streaming_pca import PrivatePCA
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.demo.flights import random_error
from streaming_pca.estimators.factory import configure, records_to_take
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.randomness import utility_generator

__all__ = [
    "CLIP_QUANTILES",
    "COMPARED",
    "DEFAULT",
    "FIRST_SEED",
    "NOTES",
    "RIVALS",
    "ROUTES",
    "Run",
    "Scores",
    "default_methods",
    "judge",
    "measure",
]

DEFAULT = "adaptive"
ROUTES = ("analyze-gauss", "block")
COMPARED = (DEFAULT, *ROUTES, "adadpo")
RIVALS = ("oja", *LIBRARIES, *PEERS, ORACLE)

_CHOSEN = {"coinpress": "t = ", "oja": "c = ", ORACLE: "quantile "}

CLIP_QUANTILES = (0.5, 0.9, 0.99, 0.997, 0.999, 0.9999)
FIRST_SEED = 1000

NOTES = (
    "error: |U U^T - V V^T|_F, mean and standard deviation (sd) over seeds",
    f"seeds below {FIRST_SEED} were used for tuning",
    "floor: exact leading subspace of the same records, without privacy",
    "route: the better of analyze-gauss and block; hindsight: the best of their fixed clip quantiles; "
    "both by mean error",
    f"oja: not private, one pass, the best of {len(OJA_RATES)} learning rates in hindsight; "
    "its seconds are those of all rates",
    "diffprivlib, opendp: pure epsilon, clip at the exact median norm (a gift), in a process of their own",
    "captured: share of the exact leading subspace's variance in these records",
    "coinpress [BiswasEtAl2020]: the exact lambda_1 (a gift), the best number of steps t in hindsight",
    "adaptive-cov, separate-cov [DongLiangYi2022], largest-norm: the exact largest norm (a gift)",
    "peer: the best of those four by mean error",
    "oracle: not private, one covariance with Gaussian noise, the best clip quantile in hindsight; "
    "seconds of these five leave out sums that seeds share",
)


def default_methods(setting: Setting) -> tuple[str, ...]:
    """Return the default methods of a setting."""
    if setting.beside_peers:
        return (DEFAULT, *PEERS, ORACLE)
    return (*COMPARED, "oja", *LIBRARIES)


class Run(NamedTuple):
    """Method with, for a route judged in hindsight, its fixed quantile."""

    method: str
    clip_quantile: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.clip_quantile is None else {"clip_quantile": self.clip_quantile}

    def __str__(self) -> str:
        return self.method if self.clip_quantile is None else f"{self.method} at {self.clip_quantile}"


@dataclass
class Scores:
    """Errors, captured variance and seconds, one per seed, or a reason for skipping.

    ``variant`` is the parameter chosen in hindsight, for methods with such a parameter.
    """

    errors: list[float] = field(default_factory=list)
    captured: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    skipped: str | None = None
    variant: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.errors) if self.errors and self.skipped is None else None

    def as_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "sd": statistics.stdev(self.errors) if len(self.errors) > 1 and self.mean is not None else None,
            "errors": self.errors,
            "captured": statistics.fmean(self.captured) if self.captured else None,
            "captured_by_seed": self.captured,
            "variant": self.variant,
            "seconds": statistics.fmean(self.seconds) if self.seconds else None,
            "skipped": self.skipped,
        }


def measure(
    setting: Setting,
    seeds: Sequence[int],
    methods: Sequence[str],
    rivals_python: str = sys.executable,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure the methods on one setting, and check its targets; return JSON data.

    Parameters
    ----------
    setting : Setting
    seeds : sequence of int
        Each seed draws new records, which all methods share.
    methods : sequence of str
        Ids of estimators and names of rivals.
    rivals_python : str
        Python executable that runs other libraries.
    progress : callable
        Called with a description of the current step.
    """
    scores = {run: Scores(skipped=_reason_to_skip(setting, run)) for run in _runs(setting, methods)}
    variants: dict[Run, dict[float | None, Scores]] = {run: {} for run in scores}
    floor = Scores()
    for seed in seeds:
        progress(f"{setting.name}, seed {seed}: records")
        draw = setting.draw(seed)
        most = float(np.vdot(draw.floor @ draw.covariance, draw.floor))
        floor.errors.append(subspace_error(draw.floor, draw.truth))
        floor.captured.append(1.0)
        for run, found in scores.items():
            if found.skipped is not None:
                continue
            progress(f"{setting.name}, seed {seed}: {run}")
            start = time.perf_counter()
            try:
                made = _components(setting, draw, run, seed, rivals_python)
            except Skipped as reason:
                found.skipped = str(reason)
                continue
            taken = time.perf_counter() - start
            for variant, components in made.items():
                one = variants[run].setdefault(variant, Scores(variant=variant))
                one.errors.append(subspace_error(components, draw.truth))
                one.captured.append(float(np.vdot(components @ draw.covariance, components)) / most)
                one.seconds.append(taken)
        # The largest draw is 1.9 GB: free it before the next one.
        del draw
    best = {
        run: min(variants[run].values(), key=lambda one: one.mean or 0.0) if found.skipped is None else found
        for run, found in scores.items()
    }
    return _summary(setting, seeds, best, floor)


def _components(
    setting: Setting, draw: Draw, run: Run, seed: int, rivals_python: str
) -> Mapping[float | None, NDArray[np.float64]]:
    """Return a run's components by the parameter to choose in hindsight, or by None."""
    records, k, epsilon = draw.records, setting.k, setting.epsilon
    if run.method in PEERS or run.method == ORACLE:
        if draw.vectors is None:
            raise Skipped("takes vectors only, and these records are factors")
        method = oracle if run.method == ORACLE else PEERS[run.method]
        return method(draw.vectors, k, epsilon, setting.delta, seed)
    if run.method == "oja":
        by_rate = oja(records, k, seed, centred=setting.centering != "none")
        return {rate: components for rate, components in by_rate.items()}
    if run.method in LIBRARIES:
        return {None: library_pca(run.method, records, k, epsilon, seed, python=rivals_python)}
    if setting.in_order:
        return {None: _fit_in_order(setting, records, run, seed)}
    pca = PrivatePCA(**_parameters(setting, run), random_state=seed).fit(records)
    return {None: pca.components_}


def _parameters(setting: Setting, run: Run) -> dict[str, Any]:
    return {
        "n_components": setting.k,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "estimator": run.method,
        "centering": setting.centering,
        "bounds": setting.bounds,
        "options": _options(setting, run),
    }


def _options(setting: Setting, run: Run) -> dict[str, Any]:
    if setting.batches is not None and "n_batches" in find(run.method).options_type.model_fields:
        return run.options | {"n_batches": setting.batches}
    return run.options


def _fit_in_order(setting: Setting, records: NDArray[np.float32], run: Run, seed: int) -> NDArray[np.float64]:
    """Fit records in order, in batches of the planned size."""
    n = len(records)
    estimator = configure(setting.dim, scale=None, n_records=n, **_parameters(setting, run))
    state = estimator.init(utility_generator(seed))
    usable = n - n % estimator.preprocessing.granularity
    first = 0
    with np.errstate(all="ignore"):
        while first < usable:
            count = records_to_take(estimator.plan(state).count, usable - first)
            state = estimator.update(state, ArrayBatch.of_vectors(records[first : first + count]))
            first += count
        return estimator.release(state).components


def _runs(setting: Setting, methods: Sequence[str]) -> Iterator[Run]:
    for method in methods:
        yield Run(method)
    if any(target.of == "hindsight" for target in setting.targets):
        for route in ROUTES:
            if route in methods:
                yield from (Run(route, quantile) for quantile in CLIP_QUANTILES)


def _reason_to_skip(setting: Setting, run: Run) -> str | None:
    if run.method in RIVALS:
        return None
    if run.method not in ESTIMATORS:
        return "not in the registry"
    options = find(run.method).options_type
    if run.clip_quantile is not None and "clip_quantile" not in options.model_fields:
        return "has no option clip_quantile"
    try:
        configure(setting.dim, scale=None, n_records=setting.n, **_parameters(setting, run))
    except ValueError as error:
        return str(error)
    return None


def judge(
    target: Target, error: float | None, references: dict[str, float | None], missing: dict[str, str]
) -> dict[str, Any]:
    """Compare a mean error with a target.

    Parameters
    ----------
    target : Target
    error : float or None
        Mean error of the default estimator, if it ran.
    references : dict
        Mean error for each reference of targets, if known.
    missing : dict
        Reasons why references are unknown.

    Returns
    -------
    dict
        ``holds`` is None if it cannot be determined, and ``why`` is the reason.
    """
    reference = references[target.of]
    found: dict[str, Any] = {"at_most": target.factor, "times": target.of, "reference": reference}
    if error is None or reference is None:
        why = f"{DEFAULT} did not run" if error is None else missing[target.of]
        return found | {"ratio": None, "holds": None, "why": why}
    return found | {
        "ratio": _ratio(error, reference),
        "holds": error <= target.factor * reference,
        "why": None,
    }


def _ratio(error: float | None, reference: float | None) -> float | None:
    return error / reference if error is not None and reference else None


def _best(scores: dict[Run, Scores], runs: Sequence[Run]) -> tuple[Run | None, str]:
    """Return the run with the smallest mean error, if all ran; otherwise None and the reason."""
    for run in runs:
        if run not in scores:
            return None, f"{run} did not run"
        if scores[run].mean is None:
            return None, f"{run}: {scores[run].skipped}"
    return min(runs, key=lambda run: scores[run].mean or 0.0), ""


def _summary(
    setting: Setting,
    seeds: Sequence[int],
    scores: dict[Run, Scores],
    floor: Scores,
) -> dict[str, Any]:
    route, no_route = _best(scores, [Run(route) for route in ROUTES])
    fixed = [Run(route, quantile) for route in ROUTES for quantile in CLIP_QUANTILES]
    hindsight, no_hindsight = _best(scores, fixed)
    peers = [Run(name) for name in PEERS if Run(name) in scores and scores[Run(name)].mean is not None]
    peer = _best(scores, peers)[0] if peers else None
    references = {
        # The floor has no error if errors are measured against the floor itself.
        "floor": floor.mean if setting.judged_against == "population" else None,
        "route": None if route is None else scores[route].mean,
        "hindsight": None if hindsight is None else scores[hindsight].mean,
        "random": random_error(setting.dim, setting.k),
        "oracle": scores[Run(ORACLE)].mean if Run(ORACLE) in scores else None,
        "peer": None if peer is None else scores[peer].mean,
    }
    missing = {"floor": "errors are measured against it", "route": no_route, "hindsight": no_hindsight}
    default = scores[Run(DEFAULT)].mean if Run(DEFAULT) in scores else None

    def row(name: str, found: Scores) -> dict[str, Any]:
        ratios = {f"ratio_to_{of}": _ratio(found.mean, reference) for of, reference in references.items()}
        chosen = None if found.variant is None else f"{_CHOSEN[name]}{found.variant:g}"
        return {"method": name, "chosen": chosen} | found.as_json() | ratios

    plain = [row(run.method, found) for run, found in scores.items() if run.clip_quantile is None]
    return {
        "setting": setting.name,
        "family": setting.family,
        "source": setting.source,
        "n": setting.n,
        "dim": setting.dim,
        "k": setting.k,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "centering": setting.centering,
        "in_order": setting.in_order,
        "judged_against": setting.judged_against,
        "seeds": list(seeds),
        "targets": [judge(target, default, references, missing) for target in setting.targets],
        "better_route": None if route is None else route.method,
        "best_in_hindsight": None if hindsight is None else hindsight._asdict(),
        "best_peer": None if peer is None else peer.method,
        "oja_rate": scores[Run("oja")].variant if Run("oja") in scores else None,
        "random_error": references["random"],
        "results": [row("floor", floor), *plain],
        "fixed_quantiles": [
            run._asdict() | found.as_json() for run, found in scores.items() if run.clip_quantile is not None
        ],
        "notes": NOTES,
    }
