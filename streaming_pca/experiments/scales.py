"""What the experiments share: sizes, panels, and the methods of every figure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streaming_pca.experiments.experiment import Panel
from streaming_pca.experiments.methods import METHODS, OURS, REFERENCES, Method
from streaming_pca.experiments.settings import Family, Setting

__all__ = [
    "BOUNDED",
    "GAUSS",
    "LOW_NOISE",
    "NOT_SAID",
    "QUICK",
    "QUICK_SEEDS",
    "SEEDS",
    "Scale",
    "eigenvalues",
    "grid_scale",
    "methods_of",
    "panel",
    "rank_panels",
]

SEEDS, QUICK_SEEDS = 5, 2
GAUSS = ("analyze-gauss", "output-perturbation")
BOUNDED = (*GAUSS, "noisy-power")
LOW_NOISE = 0.025
_QUICK_VALUES = 40_000
NOT_SAID = (
    "The papers do not say n, sigma, lower eigenvalues or the axes' values unless a title here has them"
)


@dataclass(frozen=True)
class Scale:
    """Sizes of a full run, and of one that only shows that all works.

    Attributes
    ----------
    n, dim, k : int
        Where no axis moves them.
    ns, dims, ks : tuple of int
    gaps, sigmas : tuple of float
        Smallest eigenvalues of the signal, and noise levels.
    """

    n: int
    dim: int
    k: int
    ns: tuple[int, ...]
    dims: tuple[int, ...]
    ks: tuple[int, ...]
    gaps: tuple[float, ...]
    sigmas: tuple[float, ...]
    seeds: int

    def at(
        self,
        family: Family = "spiked",
        *,
        n: int | None = None,
        dim: int | None = None,
        k: int | None = None,
        sigma: float = LOW_NOISE,
        gap: float = 5.0,
    ) -> Setting:
        """A setting with lambda_1 = 10 and lambda_k = ``gap``, evenly spaced."""
        return Setting(family, n or self.n, dim or self.dim, eigenvalues(k or self.k, gap), sigma)


QUICK = Scale(
    n=4_000, dim=20, k=2, ns=(2_000, 8_000), dims=(10, 20), ks=(1, 3), gaps=(2.0, 8.0),
    sigmas=(0.025, 0.5), seeds=QUICK_SEEDS,
)  # fmt: skip


def eigenvalues(k: int, gap: float) -> tuple[float, ...]:
    """From 10 down to the gap."""
    return (10.0,) if k == 1 else tuple(10.0 - (10.0 - gap) * i / (k - 1) for i in range(k))


def panel(key: str, title: str, axis: str, values: Sequence[float], at: Callable[[float], Setting]) -> Panel:
    return Panel(key, title, axis, tuple((float(value), at(value)) for value in values))


def methods_of(quick: bool, *keys: str) -> tuple[Method, ...]:
    """The methods named, and what every figure has: the reference, and ours.

    In a quick experiment what is slow runs once, on the smallest data.
    """
    wanted = {*keys, *REFERENCES, *OURS}
    found = [method for key, method in METHODS.items() if key in wanted]
    if quick:
        found = [replace(m, most_seeds=1, most_values=_QUICK_VALUES) if m.most_values else m for m in found]
    return tuple(found)


def grid_scale(quick: bool) -> Scale:
    full = Scale(
        n=50_000, dim=100, k=2, ns=(), dims=(25, 100, 200), ks=(1, 2, 5, 10), gaps=(), sigmas=(), seeds=SEEDS
    )
    return QUICK if quick else full


def rank_panels(s: Scale) -> tuple[Panel, ...]:
    """Rank along the axis, a panel a dimension."""
    return tuple(
        panel(f"k-d{d}", f"d = {d}, n = {s.n:,}", "rank k", s.ks, functools.partial(_at_k, s, d))
        for d in s.dims
    )


def _at_k(s: Scale, d: int, value: float) -> Setting:
    return s.at(k=int(value), dim=d)
