"""sin^2 error of 000's algorithm: the paper has bounds and no figures."""

from __future__ import annotations

from streaming_pca.experiments.claims import Beats, Slope
from streaming_pca.experiments.experiment import Experiment, Panel
from streaming_pca.experiments.scales import QUICK_SEEDS, methods_of, panel
from streaming_pca.experiments.settings import Setting

__all__ = ["power_coherence", "power_epsilon", "power_n"]

_POWER = ("adaptive-power", "analyze-gauss", "noisy-power", "dp-pca")
_UNIT_NOISE = 0.3
_NO_FIGURE = "000 has no figures: its bounds, on data that meet its conditions"


def _power_sizes(quick: bool) -> tuple[int, int]:
    return (20_000, 20) if quick else (200_000, 50)


def _unit_rows(n: int, dim: int, carriers: int, epsilon: float = 1.0) -> Setting:
    """sigma_1^2 = n/100 and sigma_2^2 near 0.09 n/(d - 1), in rows of length at most 1."""
    return Setting("coherent", n, dim, (n / 100,), _UNIT_NOISE, epsilon, 1e-6, carriers)


def _unit_gaussian(n: int, dim: int) -> Setting:
    """Eigenvalues that sum to 1: 0.5, and the rest equal."""
    rest = 0.5 / (dim - 1)
    return Setting("gaussian", n, dim, (0.5 - rest,), rest**0.5, 1.0, 1e-6)


def power_coherence(quick: bool) -> Experiment:
    n, dim = _power_sizes(quick)
    # a^2 = n/(100 carriers) is at most 1 - 0.09.
    shares = (0.012, 1.0) if quick else (0.011, 0.035, 0.1, 0.3, 1.0)
    all_carriers = [int(n * share) for share in shares]
    points = tuple((carriers**-0.5, _unit_rows(n, dim, carriers)) for carriers in reversed(all_carriers))
    return Experiment(
        name="adaptive-power-coherence",
        figure="000 Corollary 1.1: sin² against coherence",
        words="the error adapts to the coherence: sin^2 goes with its square, where Dwork et al.'s does not "
        "depend on it",
        measure="sine",
        panels=(
            Panel(
                "coherence", f"rows in the unit ball, n = {n:,}, d = {dim}", "coherence max |U_i1|", points
            ),
        ),
        methods=methods_of(quick, *_POWER),
        claims=(
            Slope("adaptive-power", "coherence", 1.4, 2.6, "+2"),
            Slope("analyze-gauss", "coherence", -0.4, 0.4, "0"),
            Beats("adaptive-power", ("analyze-gauss",), ("coherence",)),
        ),
        seeds=QUICK_SEEDS if quick else 10,
        unlike=_NO_FIGURE,
    )


def power_n(quick: bool) -> Experiment:
    _, dim = _power_sizes(quick)
    ns = (10_000, 40_000) if quick else (20_000, 60_000, 200_000, 600_000)
    return Experiment(
        name="adaptive-power-n",
        figure="000 Theorems 1.1 and 1.2: sin² against n",
        words="sin^2 falls with the square of n, to which Gaussian data add a statistical 1/n; it is below "
        "Dwork et al.'s where the gap is constant",
        measure="sine",
        panels=(
            panel("n", f"rows in the unit ball, d = {dim}", "records n", ns,
                   lambda v: _unit_rows(int(v), dim, int(v) // 4)),
            panel("n-gaussian", f"Gaussian, trace 1, d = {dim}", "records n", ns,
                   lambda v: _unit_gaussian(int(v), dim)),
        ),
        methods=methods_of(quick, *_POWER),
        claims=(
            Slope("adaptive-power", "n", -2.6, -1.4, "-2"),
            Slope("adaptive-power", "n-gaussian", -2.6, -0.7, "-2 to -1"),
            Beats("adaptive-power", ("analyze-gauss",), ("n", "n-gaussian")),
            Beats("adaptive-power", ("dp-pca",), ("n-gaussian",)),
        ),
        seeds=QUICK_SEEDS if quick else 10,
        unlike=_NO_FIGURE,
    )  # fmt: skip


def power_epsilon(quick: bool) -> Experiment:
    n, dim = _power_sizes(quick)
    epsilons = (0.5, 2.0) if quick else (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    return Experiment(
        name="adaptive-power-epsilon",
        figure="000 Corollary 1.1: sin² against epsilon",
        words="sin^2 falls with the square of epsilon, and is below Dwork et al.'s where the gap is constant",
        measure="sine",
        panels=(
            panel(
                "epsilon", f"rows in the unit ball, n = {n:,}, d = {dim}", "epsilon", epsilons,
                lambda v: _unit_rows(n, dim, n // 4, v),
            ),
        ),
        methods=methods_of(quick, *_POWER),
        claims=(
            Slope("adaptive-power", "epsilon", -2.6, -1.4, "-2"),
            Beats("adaptive-power", ("analyze-gauss",), ("epsilon",)),
        ),
        seeds=QUICK_SEEDS if quick else 10,
        unlike=_NO_FIGURE,
    )  # fmt: skip
