"""Figure 1 of 001, and what its theorems say of its private and its online algorithm, without a figure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from streaming_pca.experiments.experiment import (
    NOT_JUDGED,
    NOT_REPRODUCED,
    REPRODUCED,
    Comparison,
    Experiment,
    Panel,
    Table,
)
from streaming_pca.experiments.tensor_methods import GIVEN_METHODS, POWER, RECORD_METHODS
from streaming_pca.experiments.tensor_settings import MixtureSetting, TensorNoise, TensorSetting

__all__ = ["Transition", "tensor_fig1", "tensor_scaling"]


@dataclass(frozen=True)
class Transition:
    """Where failures cross one half moves with a power of d that lies in [low, high].

    Attributes
    ----------
    method : str
    panels : tuple of str
        The same axis, at different d.
    low, high : float
    claimed : str
    """

    method: str
    panels: tuple[str, ...]
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        places: dict[int, float | None] = {}
        for key in self.panels:
            line = table.line(key, self.method)
            if line:
                places[table.panel(key).points[0][1].dim] = crossing(line)
        axis = table.panel(self.panels[0]).axis
        what = f"{self.method}: half of the trials fail at {axis}"
        if len(places) < 2:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        shown = ", ".join(f"{'none' if x is None else f'{x:.3g}'} (d = {d})" for d, x in places.items())
        found = {d: x for d, x in places.items() if x is not None}
        if len(found) < len(places):
            return Comparison(NOT_JUDGED, f"{what} = {shown}: no transition within the axis")
        points = [(math.log(d), math.log(x)) for d, x in found.items()]
        power = statistics.linear_regression(*zip(*points, strict=True)).slope
        verdict = REPRODUCED if self.low <= power <= self.high else NOT_REPRODUCED
        return Comparison(verdict, f"{what} = {shown}: d^{power:+.2f}, claimed {self.claimed}")


def crossing(line: dict[float, float]) -> float | None:
    """Where the mean crosses 1/2 for the last time, between two places of a logarithmic axis."""
    xs = sorted(line)
    for a, b in reversed(list(itertools.pairwise(xs))):
        if (line[a] - 0.5) * (line[b] - 0.5) <= 0 and line[a] != line[b]:
            share = (0.5 - line[a]) / (line[b] - line[a])
            return float(a * (b / a) ** share)
    return None


@dataclass(frozen=True)
class _Regime:
    """A row of the figure: the noise, and the scale at which the paper's transitions stand still."""

    noise: TensorNoise
    name: str
    axis: str
    scale: Callable[[int], float]
    levels: tuple[float, ...]


_REGIMES = (
    _Regime("gaussian", "random Gaussian noise", "σ√d", math.sqrt, (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)),
    _Regime("adversarial", "adversarial noise", "σ d", float, (3.0, 4.5, 6.0, 8.0, 12.0, 18.0)),
    _Regime("weak", "weakly correlated noise", "σ ln d", math.log, (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)),
)


def _fig1_panel(regime: _Regime, dim: int, levels: tuple[float, ...]) -> Panel:
    points = tuple((x, TensorSetting(regime.noise, dim, x / regime.scale(dim))) for x in levels)
    return Panel(f"{regime.noise}-d{dim}", f"{regime.name}, d = {dim}", regime.axis, points)


def tensor_fig1(quick: bool) -> Experiment:
    dims = (10, 20) if quick else (25, 50, 100)
    panels = tuple(
        _fig1_panel(regime, dim, regime.levels[1::3] if quick else regime.levels)
        for regime in _REGIMES
        for dim in dims
    )
    return Experiment(
        name="tensor-fig1",
        figure="001 figure 1: share of trials that fail, against the noise's operator norm σ",
        words="phase transitions occur at σ = O(1/√d) for random Gaussian noise, O(1/d) for adversarial "
        "noise and O(1/log d) for weakly correlated noise",
        measure="failure",
        panels=panels,
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
        figure="001 Theorems 3.1 and 4.2: share of trials that fail, against λ₁ and n",
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
        unlike="001 has no figure of its Algorithms 2 and 3: this is what the theorems say. All three "
        "components are asked for, where Theorem 4.2 is about the first; in any order, as Theorem 2.2 has it",
    )
