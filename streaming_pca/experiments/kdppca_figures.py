"""Figures 1 to 4 of 004."""

from __future__ import annotations

from dataclasses import replace

from streaming_pca.experiments.claims import Beats, Changes, Steeper
from streaming_pca.experiments.experiment import Experiment
from streaming_pca.experiments.scales import (
    BOUNDED,
    GAUSS,
    NOT_SAID,
    QUICK,
    SEEDS,
    Scale,
    grid_scale,
    methods_of,
    panel,
    rank_panels,
)

__all__ = ["kdppca_fig1", "kdppca_fig2", "kdppca_fig3", "kdppca_fig4"]

_LOWEST_NOISE = 0.001


def _kdppca_scale(quick: bool) -> Scale:
    full = Scale(
        n=50_000, dim=200, k=2, ns=(25_000, 50_000, 100_000, 200_000), dims=(50, 100, 200, 400), ks=(),
        gaps=(0.5, 1.0, 3.0, 8.0), sigmas=(0.001, 0.025, 0.2, 1.0), seeds=SEEDS,
    )  # fmt: skip
    return QUICK if quick else full


def _message_scale(quick: bool) -> Scale:
    """Where k-DP-Ojas is what it is about: it draws exact noise for every coordinate of every record."""
    full = replace(_kdppca_scale(False), dim=50, ns=(12_500, 25_000, 50_000, 100_000), dims=(12, 25, 50, 100))
    return QUICK if quick else full


_FEWER = "trials instead of 50, for time"


def kdppca_fig1(quick: bool) -> Experiment:
    s = _kdppca_scale(quick)
    title = f"k = {s.k}, d = {s.dim}"
    return Experiment(
        name="kdppca-fig1",
        figure="004 figure 1",
        words="k-DP-PCA consistently outperforms the baselines, the gap widening when the noise is far below "
        "the signal; as d grows, the other methods' utility degrades faster",
        measure="energy",
        panels=(
            panel("n-s0.025", f"σ = 0.025, {title}", "records n", s.ns, lambda v: s.at(n=int(v))),
            panel(
                "n-s0.001", f"σ = 0.001, {title}", "records n", s.ns,
                lambda v: s.at(n=int(v), sigma=_LOWEST_NOISE),
            ),
            panel("dimension", f"σ = 0.025, n = {s.n:,}", "dimension d", s.dims, lambda v: s.at(dim=int(v))),
        ),
        methods=methods_of(quick, "k-dp-pca", *BOUNDED),
        claims=(
            Beats("k-dp-pca", BOUNDED, ("n-s0.025",)),
            Beats("k-dp-pca", BOUNDED, ("n-s0.001",)),
            Steeper("k-dp-pca", BOUNDED, "dimension"),
        ),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; {s.seeds} {_FEWER}",
    )  # fmt: skip


def kdppca_fig2(quick: bool) -> Experiment:
    s = _message_scale(quick)
    title = f"d = {s.dim}, n = {s.n:,}"
    low, high = s.sigmas[:2] if not quick else s.sigmas[:1], s.sigmas[-2:] if not quick else s.sigmas[1:]
    return Experiment(
        name="kdppca-fig2",
        figure="004 figure 2",
        words="k-DP-PCA outperforms both DP-Gauss algorithms at every eigengap; DP-Gauss-2 improves with the "
        "gap, DP-Gauss-1 stays flat; k-DP-PCA beats k-DP-Ojas at low noise, at larger noise k-DP-Ojas "
        "often matches or exceeds it",
        measure="energy",
        panels=(
            panel("gap", title, "eigengap", s.gaps, lambda v: s.at(gap=v)),
            panel("noise", title, "noise level σ", s.sigmas, lambda v: s.at(sigma=v)),
            panel("n", f"σ = 0.025, d = {s.dim}", "records n", s.ns, lambda v: s.at(n=int(v))),
        ),
        methods=methods_of(quick, "k-dp-pca", "k-dp-ojas", *BOUNDED),
        claims=(
            Beats("k-dp-pca", GAUSS, ("gap",)),
            Changes("output-perturbation", "gap", 0.0, 0.5, "improves"),
            Changes("analyze-gauss", "gap", 0.5, 2.0, "stays flat"),
            Beats("k-dp-pca", ("k-dp-ojas",), ("noise",), low),
            Beats("k-dp-ojas", ("k-dp-pca",), ("noise",), high),
            Beats("k-dp-pca", ("k-dp-ojas", *BOUNDED), ("n",)),
        ),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; {s.seeds} {_FEWER}",
    )


def kdppca_fig3(quick: bool) -> Experiment:
    s = grid_scale(quick)
    panels = rank_panels(s)
    every = tuple(panel.key for panel in panels)
    return Experiment(
        name="kdppca-fig3",
        figure="004 figure 3",
        words="comparison of k-DP-PCA and k-DP-Ojas for varying k and d: in low noise k-DP-PCA outperforms "
        "k-DP-Ojas, and both the bounded-data baselines",
        measure="energy",
        panels=panels,
        methods=methods_of(quick, "k-dp-pca", "k-dp-ojas", *BOUNDED),
        claims=(Beats("k-dp-pca", ("k-dp-ojas",), every), Beats("k-dp-pca", BOUNDED, every)),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; {s.seeds} {_FEWER}; bands are confidence intervals, bars of a standard "
        "deviation there",
    )


def kdppca_fig4(quick: bool) -> Experiment:
    s = _message_scale(quick)
    title = f"k = {s.k}, d = {s.dim}"
    panels = (
        panel("n", title, "records n", s.ns, lambda v: s.at("gaussian", n=int(v), sigma=1.0)),
        panel(
            "gap", f"{title}, n = {s.n:,}", "eigengap", s.gaps,
            lambda v: s.at("gaussian", gap=v, sigma=1.0),
        ),
        panel(
            "dimension", f"k = {s.k}, n = {s.n:,}", "dimension d", s.dims,
            lambda v: s.at("gaussian", dim=int(v), sigma=1.0),
        ),
    )  # fmt: skip
    return Experiment(
        name="kdppca-fig4",
        figure="004 figure 4",
        words="on Gaussian data k-DP-Ojas consistently outperforms other state-of-the-art methods",
        measure="energy",
        panels=panels,
        methods=methods_of(quick, "k-dp-pca", "k-dp-ojas", *GAUSS),
        claims=(Beats("k-dp-ojas", ("k-dp-pca", *GAUSS), tuple(panel.key for panel in panels)),),
        seeds=s.seeds,
        unlike=f"{NOT_SAID}; {s.seeds} {_FEWER}",
    )
