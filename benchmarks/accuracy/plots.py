"""Plots of error against n, epsilon, d and k, on spiked and on Gaussian data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.settings import Setting, gaussian, spiked

__all__ = ["AXES", "Grid", "points", "write"]

AXES = {"n": "records n", "epsilon": "epsilon", "dim": "features d", "k": "components k"}
"""Variables of the plots' axes, with their labels."""

_FAMILIES = ("spiked", "gaussian")
_SIGMA = 0.025
_DELTA = 1e-2


@dataclass(frozen=True)
class Grid:
    """Points of each axis; along one axis, the other variables have their second value."""

    n: tuple[int, ...] = (12_500, 50_000, 100_000, 200_000)
    epsilon: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    dim: tuple[int, ...] = (50, 100, 200, 400)
    k: tuple[int, ...] = (1, 2, 5, 10)
    seeds: int = 3

    def axis(self, name: str) -> tuple[float, ...]:
        return tuple(getattr(self, name))


_QUICK = Grid(n=(5_000, 20_000), epsilon=(0.5, 2.0), dim=(20, 40), k=(1, 3), seeds=1)


def points(family: str, axis: str, grid: Grid) -> Iterator[tuple[float, Setting]]:
    """Iterate over a family's settings along an axis, each with its position."""
    for value in grid.axis(axis):
        at: dict[str, Any] = {name: grid.axis(name)[1] for name in AXES} | {axis: value}
        if family == "spiked":
            setting = spiked(at["n"], at["dim"], at["k"], _SIGMA, _DELTA)
        else:
            setting = gaussian(at["n"], at["dim"], at["k"], _DELTA)
        name = f"plot-{family}-{axis}-{value:g}"
        yield value, replace(setting, name=name, epsilon=at["epsilon"], seeds=grid.seeds)


def write(folder: Path, run: Callable[[Setting], dict[str, Any]], quick: bool = False) -> list[Path]:
    """Measure every point and write ``error-against-AXIS.png``, with one panel per family.

    Parameters
    ----------
    folder : Path
        Created if missing.
    run : callable
        Measures a setting; returns the result of :func:`benchmarks.accuracy.comparison.measure`.
    quick : bool
        If True, measure fewer and smaller points.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    grid = _QUICK if quick else Grid()
    files = []
    for axis, label in AXES.items():
        panels = {
            family: [(value, run(setting)) for value, setting in points(family, axis, grid)]
            for family in _FAMILIES
        }
        files.append(folder / f"error-against-{axis}.png")
        _draw(files[-1], label, panels)
    return files


def _draw(file: Path, label: str, panels: dict[str, list[tuple[float, dict[str, Any]]]]) -> None:
    # Without pyplot, to avoid windows and figures that outlive this call.
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (family, found) in zip(axes, panels.items(), strict=True):
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for value, result in found:
            for row in result["results"]:
                if row["mean"] is not None:
                    lines.setdefault(row["method"], []).append((value, row["mean"], row["sd"] or 0.0))
        for method, line in lines.items():
            xs, means, deviations = zip(*line, strict=True)
            style = "--" if method in ("floor", "oja") else "-"
            ax.errorbar(xs, means, yerr=deviations, label=method, linestyle=style, marker="o", capsize=3)
        randoms = [result["random_error"] for _, result in found]
        ax.plot([value for value, _ in found], randoms, ":", color="grey", label="random subspace")
        ax.set_xscale("log")
        ax.set_yscale("log")
        # Ticks at powers of ten would label hardly any of these few points.
        ax.set_xticks([value for value, _ in found])
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set(title=_title(family, [result for _, result in found]), xlabel=label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("error |UU$^T$ - VV$^T$|$_F$")
    axes[-1].legend(fontsize="small")
    figure.savefig(file, dpi=120)


def _title(family: str, results: list[dict[str, Any]]) -> str:
    """Return the family and the variables that are constant over all points."""
    constants = []
    for name, text in (("n", "n = {:,}"), ("epsilon", "epsilon = {:g}"), ("dim", "d = {}"), ("k", "k = {}")):
        values = {result[name] for result in results}
        if len(values) == 1:
            constants.append(text.format(*values))
    return (
        f"{family}, sigma = {_SIGMA:g}\n{', '.join(constants)}"
        if family == "spiked"
        else f"{family}\n{', '.join(constants)}"
    )
