"""Figures of experiments: a plot per panel, a line per method, means with 95% confidence bands."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.experiment import Experiment, Panel, Table, half_width
from experiments.methods import OURS
from experiments.results import ExperimentError
from experiments.settings import MEASURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "draw"]

# Okabe and Ito's colours, distinct for all eyes. Related methods share a colour, and differ in dashes and
# markers.
_RED, _ORANGE, _PINK, _SKY, _GREEN, _BLUE = "#D55E00", "#E69F00", "#CC79A7", "#56B4E9", "#009E73", "#0072B2"
_LINES = {
    "adadpo": (_RED, "-", "o"),
    "adadpo-printed": (_RED, ":", "o"),
    "tadadpo": (_ORANGE, "-", "s"),
    "private-oja": (_SKY, "-", "^"),
    "k-dp-pca": (_GREEN, "-", "v"),
    "dp-pca": (_GREEN, "-", "v"),
    "k-dp-ojas": (_GREEN, "--", "P"),
    "analyze-gauss": (_BLUE, "-", "D"),
    "output-perturbation": (_BLUE, "--", "d"),
    "noisy-power": (_PINK, "-", "X"),
    "adaptive-power": (_RED, "-", "o"),
    "oja": ("grey", "--", "."),
    "adaptive": ("black", "-", "*"),
    "block": ("black", "--", "h"),
    "local-gaussian": (_BLUE, "-", "o"),
    "local-gaussian-printed": (_BLUE, ":", "o"),
    "local-sparse": (_RED, "-", "s"),
    "pca": ("grey", "-.", "x"),
}
_TENSOR_LINES = {
    "tensor-power": (_BLUE, "-", "o"),
    "tensor-entry": (_RED, "-", "o"),
    "tensor-entry-printed": (_RED, ":", "o"),
    "input-perturbation": (_BLUE, "-", "D"),
    "tensor-private": (_GREEN, "-", "v"),
    "tensor-private-unwhitened": (_GREEN, "--", "P"),
    "tensor-online": ("grey", "--", "."),
    "nmf": (_ORANGE, "-", "s"),
    "package-means": ("grey", ":", "x"),
}
"""Line styles of experiments without subspaces."""
_SHARES = {"failure": "chance", "impurity": "one topic for all"}
"""Measures that are shares, with the name of the worst value."""
_LEAST_SHOWN = 1e-14
_COLUMNS = 3
_LONG = 10_000_000
_LEAST_SEEDS = 3
"""Smallest number of trials for a band: with two, the interval is 25 standard errors wide."""


def check_matplotlib() -> None:
    """Check that matplotlib is installed, before hours of work.

    Raises
    ------
    ExperimentError
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise ExperimentError(
            "figures need matplotlib: pip install '.[experiments]' in the checkout"
        ) from None


def draw(experiment: Experiment, table: Table, file: Path) -> None:
    """Write the figure as a PNG.

    Raises
    ------
    ExperimentError
        If the file cannot be written.
    """
    # Without pyplot, to avoid windows and figures that outlive this call; savefig of a PNG uses Agg.
    from matplotlib.figure import Figure

    columns = min(len(experiment.panels), _COLUMNS)
    lines = -(-len(experiment.panels) // columns)
    figure = Figure(figsize=(max(4.1 * columns, 5.5), 3.4 * lines + 1.1), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, panel in zip(grid, experiment.panels, strict=False):
        _draw_panel(ax, experiment, table, panel)
    for ax in grid[len(experiment.panels) :]:
        ax.set_visible(False)
    for ax in grid[: len(experiment.panels) : columns]:
        ax.set_ylabel(MEASURES[experiment.measure])
    handles: dict[str, Any] = {}
    for ax in grid:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=2 * columns, fontsize="small"
    )
    figure.suptitle(f"{experiment.name}: {experiment.figure}", fontsize="medium")
    try:
        _save(figure, file)
    except OSError as error:
        raise ExperimentError(f"--out: {file}: {error.strerror or error}") from None


def _save(figure: Figure, file: Path) -> None:
    """Save as a PNG of 128 colours: a third of the size, without visible difference."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=80)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)


def _draw_panel(ax: Axes, experiment: Experiment, table: Table, panel: Panel) -> None:
    shown: list[float] = list(table.random(panel.key).values())
    for method in experiment.methods:
        line = table.line(panel.key, method.key)
        if not line:
            continue
        xs, means = np.array(list(line)), np.array(list(line.values()))
        halves = np.array([half_width(table.errors(panel.key, method.key, x)) for x in line])
        low, high = np.maximum(means - halves, 0.0), means + halves
        means, low, high = (np.maximum(values, _LEAST_SHOWN) for values in (means, low, high))
        style = _style(method.key)
        ax.plot(xs, means, label=method.label, **style)
        if all(len(table.errors(panel.key, method.key, x)) >= _LEAST_SEEDS for x in line):
            ax.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)
        shown += line.values()
    if panel.printed:
        places, numbers = [x for _, x in panel.printed], list(panel.printed.values())
        ax.plot(places, numbers, label="the paper's number", color="black", linestyle="", marker="*")
        shown += numbers
    chance = table.random(panel.key)
    ax.plot(
        list(chance),
        list(chance.values()),
        linestyle=(0, (1, 3)),
        color="grey",
        linewidth=1,
        label=_SHARES.get(experiment.measure, "random subspace"),
    )
    _scale(ax, panel, shown)
    if experiment.measure in _SHARES:
        ax.set_yscale("linear")
        ax.set_ylim(-0.03, 1.03 * max(shown))


def _style(key: str) -> dict[str, Any]:
    colour, line, marker = {**_LINES, **_TENSOR_LINES}[key]
    width = 1.8 if key in OURS else 1.2
    return {"color": colour, "linestyle": line, "marker": marker, "linewidth": width, "markersize": 5}


def _tick(x: float, position: int | None = None) -> str:
    if x >= _LONG:
        return f"{x:.0e}".replace("e+", "e")
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def _scale(ax: Axes, panel: Panel, shown: Sequence[float]) -> None:
    """Set up the axes, with limits from the means, not from wide bands."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if panel.log:
        ax.set_xscale("log")
    ax.set_xticks([x for x, _ in panel.points])
    ax.xaxis.set_major_formatter(FuncFormatter(_tick))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize="small")
    ax.set_yscale("log")
    ax.set_ylim(max(min(shown), _LEAST_SHOWN) / 1.5, max(shown) * 1.5)
    ax.set_title(panel.title, fontsize="small")
    ax.set_xlabel(panel.axis, fontsize="small")
    ax.grid(alpha=0.3)
