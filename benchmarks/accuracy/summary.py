"""Geometric means of error ratios to the oracle and the best peer.

A cell is a setting. It counts if the oracle's error is below 0.6 of a random subspace's error: above, the
records contain too little information at this epsilon, and every method is about as good as chance.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.accuracy.comparison import DEFAULT
from benchmarks.accuracy.peers import ORACLE

__all__ = ["SOLVABLE", "summarise", "summary_lines"]

SOLVABLE = 0.6
"""Upper limit of the oracle's error in cells that count, as a share of a random subspace's error."""

_SHORT = 0.99


def summarise(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return geometric means over measured settings by group; None if no cell counts.

    Parameters
    ----------
    found : sequence of dict
        Results of :func:`benchmarks.accuracy.comparison.measure`.

    Returns
    -------
    dict
        ``groups``: maps "all", "real", "synthetic" and "epsilon E" to the number of cells, the two means
        (``over_oracle``, ``over_peer``), and ``short``, the number of cells where the default captured less
        than 0.99 of the oracle's variance. ``worst``: the cell with the largest ratio to the oracle.
        ``left_out``: number of measured cells that do not count.
    """
    compared = [cell for cell in map(_cell, found) if cell is not None]
    cells = [cell for cell in compared if cell["solvable"]]
    if not cells:
        return None
    return {
        "groups": {name: _means(group) for name, group in _groups(cells)},
        "worst": max(
            ({"setting": cell["setting"], "over_oracle": cell["over_oracle"]} for cell in cells),
            key=lambda cell: cell["over_oracle"],
        ),
        "left_out": len(compared) - len(cells),
    }


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Format the summary as lines of text."""
    lines = [f"{'geometric means':<18}{'cells':>7}{'ours/oracle':>13}{'ours/peer':>11}{'short':>7}"]
    for name, group in summary["groups"].items():
        peer = "-" if group["over_peer"] is None else f"{group['over_peer']:.3g}"
        lines.append(
            f"{name:<18}{group['cells']:>7}{group['over_oracle']:>13.3g}{peer:>11}{group['short']:>7}"
        )
    worst = summary["worst"]
    lines += [
        f"worst cell: {worst['setting']}, {worst['over_oracle']:.3g} x oracle",
        f"cells: settings whose oracle's error is below {SOLVABLE:g} of a random subspace's; "
        f"{summary['left_out']} others left out",
        f"short: cells where {DEFAULT} captured less than {_SHORT:g} of the oracle's variance",
    ]
    return lines


def _cell(found: dict[str, Any]) -> dict[str, Any] | None:
    rows = {row["method"]: row for row in found["results"]}
    ours, oracle = rows.get(DEFAULT), rows.get(ORACLE)
    if ours is None or oracle is None or ours["ratio_to_oracle"] is None:
        return None
    return {
        "setting": found["setting"],
        "source": found["source"],
        "epsilon": found["epsilon"],
        "solvable": oracle["mean"] < SOLVABLE * found["random_error"],
        "over_oracle": ours["ratio_to_oracle"],
        "over_peer": ours["ratio_to_peer"],
        "short": ours["captured"] < _SHORT * oracle["captured"],
    }


def _groups(cells: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "all", cells
    for source in ("real", "synthetic"):
        group = [cell for cell in cells if cell["source"] == source]
        if group:
            yield source, group
    for epsilon in sorted({cell["epsilon"] for cell in cells}):
        yield f"epsilon {epsilon:g}", [cell for cell in cells if cell["epsilon"] == epsilon]


def _means(cells: list[dict[str, Any]]) -> dict[str, Any]:
    peers = [cell["over_peer"] for cell in cells if cell["over_peer"] is not None]
    return {
        "cells": len(cells),
        "over_oracle": statistics.geometric_mean(cell["over_oracle"] for cell in cells),
        "over_peer": statistics.geometric_mean(peers) if peers else None,
        "short": sum(cell["short"] for cell in cells),
    }
