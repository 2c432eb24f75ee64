"""The kinds of claims that the papers make about their figures, each compared with what was measured.

A point is won where the mean error is below that of every rival, and below 0.9 of a random
subspace's: among methods that found nothing there is no winner. All points won: reproduced. Half
of them: partly.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from streaming_pca.experiments.experiment import (
    NOT_JUDGED,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Comparison,
    Table,
    half_width,
    slope,
)

__all__ = ["Across", "Beats", "Changes", "Levels", "Ratio", "Slope", "Steeper", "Trend"]

_LEARNT = 0.9
"""Of a random subspace's error: above it nothing was learnt."""


@dataclass(frozen=True)
class Beats:
    """One method is below others at every point of the panels (of the places ``at``, where given)."""

    winner: str
    losers: tuple[str, ...]
    panels: tuple[str, ...]
    at: tuple[float, ...] | None = None

    def compare(self, table: Table) -> Comparison:
        won = learnt = 0
        ratios: dict[str, list[float]] = {loser: [] for loser in self.losers}
        judged = 0
        for panel in self.panels:
            mine, chance = table.line(panel, self.winner), table.random(panel)
            theirs = {loser: table.line(panel, loser) for loser in self.losers}
            for x, error in mine.items():
                rivals = {loser: line[x] for loser, line in theirs.items() if x in line}
                if not rivals or (self.at is not None and x not in self.at):
                    continue
                judged += 1
                found = error < _LEARNT * chance[x]
                learnt += found
                won += found and error < min(rivals.values())
                for loser, other in rivals.items():
                    ratios[loser].append(_log_ratio(error, other))
        where = f"{self.winner} below {' and '.join(self.losers)}"
        if not judged:
            return Comparison(NOT_JUDGED, f"{where} (did not run)")
        shown = ", ".join(
            f"{math.exp(statistics.fmean(logs)):.2g} x {loser}" for loser, logs in ratios.items() if logs
        )
        missing = [loser for loser, logs in ratios.items() if not logs]
        text = f"{where} at {won} of {judged} points (geometric mean {shown}"
        if learnt < judged:
            text += f"; near a random subspace at {judged - learnt}"
        if missing:
            text += f"; without {', '.join(missing)}, which did not run"
        return Comparison(_share(won, judged), text + ")")


@dataclass(frozen=True)
class Slope:
    """The error of a method goes with a power of the axis: log-log slope in [low, high]."""

    method: str
    panel: str
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        found = slope(table.line(self.panel, self.method))
        what = f"slope of {self.method} in {table.panel(self.panel).axis}"
        if found is None:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        holds = self.low <= found <= self.high
        text = f"{what} {found:+.2f}, claimed {self.claimed}"
        return Comparison(REPRODUCED if holds else NOT_REPRODUCED, text)


@dataclass(frozen=True)
class Steeper:
    """One method's error grows less along an axis than others' do."""

    method: str
    others: tuple[str, ...]
    panel: str

    def compare(self, table: Table) -> Comparison:
        mine = slope(table.line(self.panel, self.method))
        slopes = {other: slope(table.line(self.panel, other)) for other in self.others}
        theirs = {other: value for other, value in slopes.items() if value is not None}
        axis = table.panel(self.panel).axis
        what = f"{self.method} grows less in {axis} than {' and '.join(self.others)}"
        if mine is None or not theirs:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        shown = ", ".join(f"{value:+.2f} {other}" for other, value in theirs.items())
        below = sum(mine < value for value in theirs.values())
        return Comparison(_share(below, len(theirs)), f"{what} (slopes {mine:+.2f} against {shown})")


@dataclass(frozen=True)
class Ratio:
    """One method's error over another's shrinks from the first place of an axis to the last, or grows."""

    method: str
    other: str
    panel: str
    shrinks: bool

    def compare(self, table: Table) -> Comparison:
        mine, theirs = table.line(self.panel, self.method), table.line(self.panel, self.other)
        axis = table.panel(self.panel).axis
        what = f"{self.method} over {self.other} {'shrinks' if self.shrinks else 'grows'} along {axis}"
        places = [x for x in mine if x in theirs]
        if len(places) < 2:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        first, last = (math.exp(_log_ratio(mine[x], theirs[x])) for x in (places[0], places[-1]))
        holds = last < first if self.shrinks else last > first
        text = f"{what} (from {first:.2g} to {last:.2g})"
        return Comparison(REPRODUCED if holds else NOT_REPRODUCED, text)


@dataclass(frozen=True)
class Changes:
    """A method's error over an axis, last place over first, lies in [low, high]: it falls, or is flat."""

    method: str
    panel: str
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        line = table.line(self.panel, self.method)
        axis = table.panel(self.panel).axis
        if len(line) < 2:
            return Comparison(NOT_JUDGED, f"{self.method} {self.claimed} along {axis} (did not run)")
        errors = list(line.values())
        factor = math.exp(_log_ratio(errors[-1], errors[0]))
        text = f"{self.method} {self.claimed} along {axis} (last over first {factor:.2g})"
        return Comparison(REPRODUCED if self.low <= factor <= self.high else NOT_REPRODUCED, text)


@dataclass(frozen=True)
class Trend:
    """A method's error falls, or rises, at every step along the axis.

    A step counts where the confidence intervals of its two ends are apart. Where a random subspace's
    error moves too, as it does with k and d, one of the ends must be below 0.9 of it: a method that
    found nothing follows it.
    """

    method: str
    panel: str
    rises: bool

    def compare(self, table: Table) -> Comparison:
        line, chance = table.line(self.panel, self.method), table.random(self.panel)
        panel = table.panel(self.panel)
        what = f"{self.method} {'rises' if self.rises else 'falls'} along {panel.axis} ({panel.title})"
        xs = list(line)
        if len(xs) < 2:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        halves = {x: half_width(table.errors(self.panel, self.method, x)) for x in xs}
        steps = list(itertools.pairwise(xs))
        right = apart = 0
        for a, b in steps:
            rise = (line[b] - line[a]) * (1 if self.rises else -1)
            moves = not math.isclose(chance[a], chance[b])
            shown = not moves or min(line[a] / chance[a], line[b] / chance[b]) < _LEARNT
            right += rise > 0
            apart += shown and rise > halves[a] + halves[b]
        text = f"{what} at {right} of {len(steps)} steps, from {line[xs[0]]:.3g} to {line[xs[-1]]:.3g}"
        if apart < right:
            text += f"; {right - apart} of them no more than chance"
        return Comparison(_share(apart, len(steps)), text)


@dataclass(frozen=True)
class Across:
    """A method's error rises from panel to panel, at every place that they share."""

    method: str
    panels: tuple[str, ...]
    what: str

    def compare(self, table: Table) -> Comparison:
        right = judged = learnt = 0
        for low, high in itertools.pairwise(self.panels):
            a, b = table.line(low, self.method), table.line(high, self.method)
            for x in a:
                if x in b:
                    found = min(a[x] / table.random(low)[x], b[x] / table.random(high)[x]) < _LEARNT
                    judged, learnt, right = judged + 1, learnt + found, right + (found and b[x] > a[x])
        text = f"{self.method} rises with {self.what} at {right} of {judged} points"
        if not judged:
            return Comparison(NOT_JUDGED, f"{text} (did not run)")
        if learnt < judged:
            text += f"; near a random subspace at {judged - learnt}"
        return Comparison(_share(right, judged), text)


@dataclass(frozen=True)
class Levels:
    """A method's errors are within a share of the paper's numbers, and below a random subspace's."""

    method: str
    within: float

    def compare(self, table: Table) -> Comparison:
        ratios, won, learnt = [], 0, 0
        for panel in table.experiment.panels:
            chance = table.random(panel.key)
            for x, error in table.line(panel.key, self.method).items():
                paper = panel.printed.get((self.method, x))
                if paper is None:
                    continue
                ratios.append(error / paper)
                found = error < _LEARNT * chance[x]
                learnt += found
                won += found and abs(error / paper - 1) <= self.within
        what = f"{self.method} within {self.within:.0%} of the paper's numbers"
        if not ratios:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        text = f"{what} at {won} of {len(ratios)} (ratios {min(ratios):.2f} to {max(ratios):.2f})"
        if learnt < len(ratios):
            text += f"; near a random subspace at {len(ratios) - learnt}"
        return Comparison(_share(won, len(ratios)), text)


def _log_ratio(a: float, b: float) -> float:
    """Of errors, which may be 0."""
    return math.log(max(a, 1e-300)) - math.log(max(b, 1e-300))


def _share(won: int, of: int) -> str:
    if won == of:
        return REPRODUCED
    return PARTLY if 2 * won >= of else NOT_REPRODUCED
