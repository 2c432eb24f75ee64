"""Figures 1 to 3 of 003."""

from __future__ import annotations

import functools

from streaming_pca.experiments.claims import Beats, Ratio, Slope
from streaming_pca.experiments.experiment import Experiment
from streaming_pca.experiments.scales import (
    BOUNDED,
    NOT_SAID,
    QUICK,
    SEEDS,
    Scale,
    grid_scale,
    methods_of,
    panel,
    rank_panels,
)
from streaming_pca.experiments.settings import Setting

__all__ = ["adadpo_fig1", "adadpo_fig2", "adadpo_fig3"]

_ADADPO_RIVALS = ("k-dp-pca", "k-dp-ojas", *BOUNDED)
_FLAT_DIM = 10
"""On Gaussian records of d = 100 ADADPO stays near a random subspace at all these n."""


def adadpo_fig1(quick: bool) -> Experiment:
    full = Scale(
        n=50_000, dim=100, k=5, ns=(20_000, 60_000, 200_000), dims=(25, 50, 100, 200), ks=(),
        gaps=(1.0, 2.5, 5.0, 8.0), sigmas=(0.005, 0.025, 0.1, 0.5), seeds=SEEDS,
    )  # fmt: skip
    s = QUICK if quick else full
    grids = ((2, 10), (3, 20)) if quick else ((2, 50), (2, 200), (5, 100))
    panels = [
        panel("dimension", f"k = {s.k}, n = {s.n:,}", "dimension d", s.dims, lambda v: s.at(dim=int(v))),
        panel("gap", f"k = {s.k}, d = {s.dim}", "eigengap", s.gaps, lambda v: s.at(gap=v)),
        panel("noise", f"k = {s.k}, d = {s.dim}", "noise level σ", s.sigmas, lambda v: s.at(sigma=v)),
    ]
    panels += [
        panel(f"n-k{k}-d{d}", f"k = {k}, d = {d}", "records n", s.ns, functools.partial(_at_n, s, k, d))
        for k, d in grids
    ]
    ns = tuple(panel.key for panel in panels[3:])
    return Experiment(
        name="adadpo-fig1",
        figure="003 figure 1",
        words="ADADPO consistently attains lower subspace error, over dimension, eigengap, noise and sample "
        "size; the deterministic bounded-data baselines are less competitive; the privacy term vanishes with "
        "sigma",
        measure="subspace",
        panels=tuple(panels),
        methods=methods_of(quick, "adadpo", "adadpo-printed", "private-oja", *_ADADPO_RIVALS),
        claims=(
            Beats("adadpo", _ADADPO_RIVALS, ("dimension", "gap", "noise")),
            Beats("adadpo", _ADADPO_RIVALS, ns),
            Slope("adadpo", "noise", 0.6, 1.4, "+1"),
        ),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; {s.seeds} trials instead of 10, for time",
    )


def _at_n(s: Scale, k: int, d: int, value: float) -> Setting:
    return s.at(n=int(value), k=k, dim=d)


def adadpo_fig2(quick: bool) -> Experiment:
    full = Scale(
        n=100_000, dim=100, k=2, ns=(50_000, 100_000, 200_000, 400_000), dims=(), ks=(), gaps=(), sigmas=(),
        seeds=SEEDS,
    )  # fmt: skip
    s = QUICK if quick else full
    title = f"k = {s.k}, d = {s.dim}"
    return Experiment(
        name="adadpo-fig2",
        figure="003 figure 2",
        words="once the warm start is accurate enough, the tangent phase achieves lower error than "
        "continuing with ADADPO alone",
        measure="subspace",
        panels=(
            panel("spiked", f"spiked, {title}", "records n", s.ns, lambda v: s.at(n=int(v))),
            panel(
                "gaussian", f"Gaussian, flat tail, k = {s.k}, d = {_FLAT_DIM}", "records n", s.ns,
                lambda v: s.at("gaussian", n=int(v), dim=_FLAT_DIM, sigma=0.5),
            ),
        ),
        methods=methods_of(quick, "adadpo", "tadadpo"),
        claims=(
            Beats("tadadpo", ("adadpo",), ("spiked",)),
            Beats("tadadpo", ("adadpo",), ("gaussian",)),
        ),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; the Gaussian panel is added: the model of section 4",
    )  # fmt: skip


def adadpo_fig3(quick: bool) -> Experiment:
    s = grid_scale(quick)
    panels = rank_panels(s)
    return Experiment(
        name="adadpo-fig3",
        figure="003 figure 3",
        words="comparison of ADADPO with baselines for varying k and d: the advantage persists, and "
        "ADADPO benefits from the block's dependence on k",
        measure="subspace",
        panels=panels,
        methods=methods_of(quick, "adadpo", *_ADADPO_RIVALS),
        claims=(
            Beats("adadpo", _ADADPO_RIVALS, tuple(panel.key for panel in panels)),
            Ratio("adadpo", "k-dp-pca", panels[-1].key, shrinks=True),
        ),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; bands are confidence intervals, bars of a standard deviation there",
    )
