"""Figures of [DunglerSanyal2026] (adadpo) and [DunglerSanyal2025] (kdppca), which share data and methods."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from experiments.claims import Beats, Changes, Ratio, Slope, Steeper
from experiments.experiment import Claim, Experiment, Panel
from experiments.methods import BOUNDED, GAUSS, methods_of
from experiments.settings import Family, Measure, Setting

__all__ = [
    "adadpo_fig1",
    "adadpo_fig2",
    "adadpo_fig3",
    "eigenvalues",
    "kdppca_fig1",
    "kdppca_fig2",
    "kdppca_fig3",
    "kdppca_fig4",
]

_SEEDS = 5
_LOW_NOISE, _LOWEST_NOISE = 0.025, 0.001
_FLAT_DIM = 10
"""Dimension of Gaussian records: at d = 100, ADADPO stays near a random subspace at all these n."""
_ADADPO_RIVALS = ("k-dp-pca", "k-dp-ojas", *BOUNDED)
_NOT_SAID = (
    "The papers do not say n, sigma, lower eigenvalues or the axes' values unless a title here has them"
)
_FEWER = f"{_SEEDS} trials instead of 50, for time"
_BANDS = "bands are confidence intervals, bars of a standard deviation there"


@dataclass(frozen=True)
class _Scale:
    """Sizes of a run.

    Attributes
    ----------
    n, dim, k : int
        Values where no axis varies them.
    ns, dims, ks : tuple of int
    gaps, sigmas : tuple of float
        Smallest eigenvalues of the signal, and noise levels.
    """

    n: int
    dim: int
    k: int
    ns: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    ks: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    sigmas: tuple[float, ...] = ()

    def at(
        self,
        family: Family = "spiked",
        *,
        n: float | None = None,
        dim: float | None = None,
        k: int | None = None,
        sigma: float = _LOW_NOISE,
        gap: float = 5.0,
    ) -> Setting:
        """Return a setting with lambda_1 = 10 and lambda_k = ``gap``, evenly spaced."""
        values = eigenvalues(k or self.k, gap)
        return Setting(family, int(n or self.n), int(dim or self.dim), values, sigma)

    def along(self, key: str, title: str, axis: str, **fixed: Any) -> Panel:
        """Make a panel along n, dim, gap or sigma."""
        label, values = {
            "n": ("records n", self.ns),
            "dim": ("dimension d", self.dims),
            "gap": ("eigengap", self.gaps),
            "sigma": ("noise level σ", self.sigmas),
        }[axis]
        return Panel.along(key, title, label, values, lambda v: self.at(**{**fixed, axis: v}))

    def rank_panels(self) -> tuple[Panel, ...]:
        """Make one panel per dimension, with the rank along the axis."""
        return tuple(
            Panel.along(
                f"k-d{d}", f"d = {d}, n = {self.n:,}", "rank k", self.ks, functools.partial(self._rank, d)
            )
            for d in self.dims
        )

    def _rank(self, dim: int, k: float) -> Setting:
        return self.at(k=int(k), dim=dim)


_QUICK = _Scale(
    n=4_000, dim=20, k=2, ns=(2_000, 8_000), dims=(10, 20), ks=(1, 3), gaps=(2.0, 8.0), sigmas=(0.025, 0.5)
)
_ADADPO = _Scale(
    n=50_000, dim=100, k=5, ns=(20_000, 60_000, 200_000), dims=(25, 50, 100, 200),
    gaps=(1.0, 2.5, 5.0, 8.0), sigmas=(0.005, 0.025, 0.1, 0.5),
)  # fmt: skip
_TANGENT = _Scale(n=100_000, dim=100, k=2, ns=(50_000, 100_000, 200_000, 400_000))
_RANKS = _Scale(n=50_000, dim=100, k=2, dims=(25, 100, 200), ks=(1, 2, 5, 10))
_KDPPCA = _Scale(
    n=50_000, dim=200, k=2, ns=(25_000, 50_000, 100_000, 200_000), dims=(50, 100, 200, 400),
    gaps=(0.5, 1.0, 3.0, 8.0), sigmas=(0.001, 0.025, 0.2, 1.0),
)  # fmt: skip
_OJAS = replace(_KDPPCA, dim=50, ns=(12_500, 25_000, 50_000, 100_000), dims=(12, 25, 50, 100))
"""Sizes for figures about k-DP-Ojas, which draws exact noise for every coordinate of every record."""


def eigenvalues(k: int, gap: float) -> tuple[float, ...]:
    """Return k evenly spaced eigenvalues from 10 down to the gap."""
    return (10.0,) if k == 1 else tuple(10.0 - (10.0 - gap) * i / (k - 1) for i in range(k))


def _experiment(
    quick: bool,
    name: str,
    words: str,
    panels: Iterable[Panel],
    methods: tuple[str, ...],
    claims: tuple[Claim, ...],
    unlike: str,
) -> Experiment:
    paper, figure = name.split("-fig")
    measure: Measure = "subspace" if paper == "adadpo" else "energy"
    return Experiment(
        name=name,
        figure=f"[DunglerSanyal{2026 if paper == 'adadpo' else 2025}] figure {figure}",
        words=words,
        measure=measure,
        panels=tuple(panels),
        methods=methods_of(quick, *methods),
        claims=claims,
        seeds=2 if quick else _SEEDS,
        unlike=f"{_NOT_SAID}; {unlike}",
    )


def adadpo_fig1(quick: bool) -> Experiment:
    s = _QUICK if quick else _ADADPO
    grids = ((2, 10), (3, 20)) if quick else ((2, 50), (2, 200), (5, 100))
    by_n = [s.along(f"n-k{k}-d{d}", f"k = {k}, d = {d}", "n", k=k, dim=d) for k, d in grids]
    return _experiment(
        quick, "adadpo-fig1",
        "ADADPO consistently attains lower subspace error, over dimension, eigengap, noise and sample "
        "size; the deterministic bounded-data baselines are less competitive; the privacy term vanishes with "
        "sigma",
        (
            s.along("dimension", f"k = {s.k}, n = {s.n:,}", "dim"),
            s.along("gap", f"k = {s.k}, d = {s.dim}", "gap"),
            s.along("noise", f"k = {s.k}, d = {s.dim}", "sigma"),
            *by_n,
        ),
        ("adadpo", "adadpo-printed", "private-oja", *_ADADPO_RIVALS),
        (
            Beats("adadpo", _ADADPO_RIVALS, ("dimension", "gap", "noise")),
            Beats("adadpo", _ADADPO_RIVALS, tuple(panel.key for panel in by_n)),
            Slope("adadpo", "noise", 0.6, 1.4, "+1"),
        ),
        f"{_SEEDS} trials instead of 10, for time",
    )  # fmt: skip


def adadpo_fig2(quick: bool) -> Experiment:
    s = _QUICK if quick else _TANGENT
    flat = f"Gaussian, flat tail, k = {s.k}, d = {_FLAT_DIM}"
    return _experiment(
        quick, "adadpo-fig2",
        "once the warm start is accurate enough, the tangent phase achieves lower error than "
        "continuing with ADADPO alone",
        (
            s.along("spiked", f"spiked, k = {s.k}, d = {s.dim}", "n"),
            s.along("gaussian", flat, "n", family="gaussian", dim=_FLAT_DIM, sigma=0.5),
        ),
        ("adadpo", "tadadpo"),
        tuple(Beats("tadadpo", ("adadpo",), (key,)) for key in ("spiked", "gaussian")),
        "the Gaussian panel is added: the model of section 4",
    )  # fmt: skip


def adadpo_fig3(quick: bool) -> Experiment:
    panels = (_QUICK if quick else _RANKS).rank_panels()
    return _experiment(
        quick, "adadpo-fig3",
        "comparison of ADADPO with baselines for varying k and d: the advantage persists, and "
        "ADADPO benefits from the block's dependence on k",
        panels,
        ("adadpo", *_ADADPO_RIVALS),
        (
            Beats("adadpo", _ADADPO_RIVALS, tuple(panel.key for panel in panels)),
            Ratio("adadpo", "k-dp-pca", panels[-1].key, shrinks=True),
        ),
        _BANDS,
    )  # fmt: skip


def kdppca_fig1(quick: bool) -> Experiment:
    s = _QUICK if quick else _KDPPCA
    title = f"k = {s.k}, d = {s.dim}"
    return _experiment(
        quick, "kdppca-fig1",
        "k-DP-PCA consistently outperforms the baselines, the gap widening when the noise is far below "
        "the signal; as d grows, the other methods' utility degrades faster",
        (
            s.along("n-s0.025", f"σ = 0.025, {title}", "n"),
            s.along("n-s0.001", f"σ = 0.001, {title}", "n", sigma=_LOWEST_NOISE),
            s.along("dimension", f"σ = 0.025, n = {s.n:,}", "dim"),
        ),
        ("k-dp-pca", *BOUNDED),
        (
            Beats("k-dp-pca", BOUNDED, ("n-s0.025",)),
            Beats("k-dp-pca", BOUNDED, ("n-s0.001",)),
            Steeper("k-dp-pca", BOUNDED, "dimension"),
        ),
        _FEWER,
    )  # fmt: skip


def kdppca_fig2(quick: bool) -> Experiment:
    s = _QUICK if quick else _OJAS
    title = f"d = {s.dim}, n = {s.n:,}"
    half = len(s.sigmas) // 2
    return _experiment(
        quick, "kdppca-fig2",
        "k-DP-PCA outperforms both DP-Gauss algorithms at every eigengap; DP-Gauss-2 improves with the "
        "gap, DP-Gauss-1 stays flat; k-DP-PCA beats k-DP-Ojas at low noise, at larger noise k-DP-Ojas "
        "often matches or exceeds it",
        (
            s.along("gap", title, "gap"),
            s.along("noise", title, "sigma"),
            s.along("n", f"σ = 0.025, d = {s.dim}", "n"),
        ),
        ("k-dp-pca", "k-dp-ojas", *BOUNDED),
        (
            Beats("k-dp-pca", GAUSS, ("gap",)),
            Changes("output-perturbation", "gap", 0.0, 0.5, "improves"),
            Changes("analyze-gauss", "gap", 0.5, 2.0, "stays flat"),
            Beats("k-dp-pca", ("k-dp-ojas",), ("noise",), s.sigmas[:half]),
            Beats("k-dp-ojas", ("k-dp-pca",), ("noise",), s.sigmas[half:]),
            Beats("k-dp-pca", ("k-dp-ojas", *BOUNDED), ("n",)),
        ),
        _FEWER,
    )  # fmt: skip


def kdppca_fig3(quick: bool) -> Experiment:
    panels = (_QUICK if quick else _RANKS).rank_panels()
    every = tuple(panel.key for panel in panels)
    return _experiment(
        quick, "kdppca-fig3",
        "comparison of k-DP-PCA and k-DP-Ojas for varying k and d: in low noise k-DP-PCA outperforms "
        "k-DP-Ojas, and both the bounded-data baselines",
        panels,
        ("k-dp-pca", "k-dp-ojas", *BOUNDED),
        (Beats("k-dp-pca", ("k-dp-ojas",), every), Beats("k-dp-pca", BOUNDED, every)),
        f"{_FEWER}; {_BANDS}",
    )  # fmt: skip


def kdppca_fig4(quick: bool) -> Experiment:
    s = _QUICK if quick else _OJAS
    title = f"k = {s.k}, d = {s.dim}"
    records: dict[str, Any] = {"family": "gaussian", "sigma": 1.0}
    panels = (
        s.along("n", title, "n", **records),
        s.along("gap", f"{title}, n = {s.n:,}", "gap", **records),
        s.along("dimension", f"k = {s.k}, n = {s.n:,}", "dim", **records),
    )
    return _experiment(
        quick, "kdppca-fig4",
        "on Gaussian data k-DP-Ojas consistently outperforms other state-of-the-art methods",
        panels,
        ("k-dp-pca", "k-dp-ojas", *GAUSS),
        (Beats("k-dp-ojas", ("k-dp-pca", *GAUSS), tuple(panel.key for panel in panels)),),
        _FEWER,
    )  # fmt: skip
