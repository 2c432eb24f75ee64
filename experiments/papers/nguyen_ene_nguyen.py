"""Error of adaptive power against its bounds, since [NguyenEneNguyen2026] has no figures."""

from __future__ import annotations

from experiments.claims import Beats, Slope
from experiments.experiment import Claim, Experiment, Panel
from experiments.methods import methods_of
from experiments.settings import Setting

__all__ = ["power_coherence", "power_epsilon", "power_n", "unit_gaussian", "unit_rows"]

_POWER = ("adaptive-power", "analyze-gauss", "noisy-power", "dp-pca")
_UNIT_NOISE = 0.3


def _sizes(quick: bool) -> tuple[int, int]:
    return (20_000, 20) if quick else (200_000, 50)


def unit_rows(n: int, dim: int, carriers: int, epsilon: float = 1.0) -> Setting:
    """Return rows of length at most 1.

    sigma_1^2 = n/100, and sigma_2^2 is near 0.09 n/(d - 1).
    """
    return Setting("coherent", n, dim, (n / 100,), _UNIT_NOISE, epsilon, 1e-6, carriers)


def unit_gaussian(n: int, dim: int) -> Setting:
    """Return Gaussian rows whose eigenvalues sum to 1: one is 0.5, the others are equal."""
    rest = 0.5 / (dim - 1)
    return Setting("gaussian", n, dim, (0.5 - rest,), rest**0.5, 1.0, 1e-6)


def _experiment(
    quick: bool, name: str, figure: str, words: str, panels: tuple[Panel, ...], claims: tuple[Claim, ...]
) -> Experiment:
    return Experiment(
        name=f"adaptive-power-{name}",
        figure=f"[NguyenEneNguyen2026] {figure}",
        words=words,
        measure="sine",
        panels=panels,
        methods=methods_of(quick, *_POWER),
        claims=claims,
        seeds=2 if quick else 10,
        unlike="the paper has no figures: its bounds, on data that meet its conditions",
    )


def power_coherence(quick: bool) -> Experiment:
    n, dim = _sizes(quick)
    # a^2 = n/(100 carriers) is at most 1 - 0.09.
    shares = (0.012, 1.0) if quick else (0.011, 0.035, 0.1, 0.3, 1.0)
    carriers = {int(n * share) ** -0.5: int(n * share) for share in reversed(shares)}
    title = f"rows in the unit ball, n = {n:,}, d = {dim}"
    panel = Panel.along(
        "coherence", title, "coherence max |U_i1|", carriers, lambda v: unit_rows(n, dim, carriers[v])
    )
    return _experiment(
        quick, "coherence", "Corollary 1.1: sin² against coherence",
        "the error adapts to the coherence: sin^2 goes with its square, where Dwork et al.'s does not "
        "depend on it",
        (panel,),
        (
            Slope("adaptive-power", "coherence", 1.4, 2.6, "+2"),
            Slope("analyze-gauss", "coherence", -0.4, 0.4, "0"),
            Beats("adaptive-power", ("analyze-gauss",), ("coherence",)),
        ),
    )  # fmt: skip


def power_n(quick: bool) -> Experiment:
    _, dim = _sizes(quick)
    ns = (10_000, 40_000) if quick else (20_000, 60_000, 200_000, 600_000)
    panels = (
        Panel.along("n", f"rows in the unit ball, d = {dim}", "records n", ns,
                    lambda v: unit_rows(int(v), dim, int(v) // 4)),
        Panel.along("n-gaussian", f"Gaussian, trace 1, d = {dim}", "records n", ns,
                    lambda v: unit_gaussian(int(v), dim)),
    )  # fmt: skip
    return _experiment(
        quick, "n", "Theorems 1.1 and 1.2: sin² against n",
        "sin^2 falls with the square of n, plus a statistical 1/n on Gaussian data; it is below "
        "Dwork et al.'s where the gap is constant",
        panels,
        (
            Slope("adaptive-power", "n", -2.6, -1.4, "-2"),
            Slope("adaptive-power", "n-gaussian", -2.6, -0.7, "-2 to -1"),
            Beats("adaptive-power", ("analyze-gauss",), ("n", "n-gaussian")),
            Beats("adaptive-power", ("dp-pca",), ("n-gaussian",)),
        ),
    )  # fmt: skip


def power_epsilon(quick: bool) -> Experiment:
    n, dim = _sizes(quick)
    epsilons = (0.5, 2.0) if quick else (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    title = f"rows in the unit ball, n = {n:,}, d = {dim}"
    return _experiment(
        quick, "epsilon", "Corollary 1.1: sin² against epsilon",
        "sin^2 falls with the square of epsilon, and is below Dwork et al.'s where the gap is constant",
        (Panel.along("epsilon", title, "epsilon", epsilons, lambda v: unit_rows(n, dim, n // 4, v)),),
        (
            Slope("adaptive-power", "epsilon", -2.6, -1.4, "-2"),
            Beats("adaptive-power", ("analyze-gauss",), ("epsilon",)),
        ),
    )  # fmt: skip
