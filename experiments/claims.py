"""Kinds of claims in the papers, each compared with the measured errors.

A method wins a point if its mean error is below the errors of all rivals, and below 0.9 of a random
subspace's: among methods that found nothing, no method wins. A claim is reproduced if all points are won,
partly reproduced if at least half are.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from experiments.experiment import (
    NOT_JUDGED,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Comparison,
    Table,
    half_width,
    slope,
)

__all__ = [
    "Across",
    "Beats",
    "Changes",
    "Levels",
    "Ratio",
    "Reaches",
    "Slope",
    "Steeper",
    "Transition",
    "Trend",
]

_LEARNT = 0.9
"""Share of a random subspace's error above which a method has learnt nothing."""


@dataclass(frozen=True)
class Beats:
    """Claim that one method is below others at every point of the panels.

    ``at`` restricts the points to these places.
    """

    winner: str
    losers: tuple[str, ...]
    panels: tuple[str, ...]
    at: tuple[float, ...] | None = None

    def compare(self, table: Table) -> Comparison:
        won = learnt = judged = 0
        ratios: dict[str, list[float]] = {loser: [] for loser in self.losers}
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
            return _absent(where)
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
    """Claim that a method's error is a power of the axis: log-log slope in [low, high]."""

    method: str
    panel: str
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        found = slope(table.line(self.panel, self.method))
        what = f"slope of {self.method} in {table.panel(self.panel).axis}"
        if found is None:
            return _absent(what)
        return _judged(self.low <= found <= self.high, f"{what} {found:+.2f}, claimed {self.claimed}")


@dataclass(frozen=True)
class Steeper:
    """Claim that one method's error grows less along an axis than those of others."""

    method: str
    others: tuple[str, ...]
    panel: str

    def compare(self, table: Table) -> Comparison:
        mine = slope(table.line(self.panel, self.method))
        slopes = {other: slope(table.line(self.panel, other)) for other in self.others}
        theirs = {other: value for other, value in slopes.items() if value is not None}
        what = f"{self.method} grows less in {table.panel(self.panel).axis} than {' and '.join(self.others)}"
        if mine is None or not theirs:
            return _absent(what)
        shown = ", ".join(f"{value:+.2f} {other}" for other, value in theirs.items())
        below = sum(mine < value for value in theirs.values())
        return Comparison(_share(below, len(theirs)), f"{what} (slopes {mine:+.2f} against {shown})")


@dataclass(frozen=True)
class Ratio:
    """Claim that the ratio of two methods' errors shrinks, or grows, along an axis.

    The comparison is between the first and the last place of the axis.
    """

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
            return _absent(what)
        first, last = (math.exp(_log_ratio(mine[x], theirs[x])) for x in (places[0], places[-1]))
        return _judged(
            last < first if self.shrinks else last > first, f"{what} (from {first:.2g} to {last:.2g})"
        )


@dataclass(frozen=True)
class Changes:
    """Claim that an error's ratio, last place over first, lies in [low, high]."""

    method: str
    panel: str
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        errors = list(table.line(self.panel, self.method).values())
        what = f"{self.method} {self.claimed} along {table.panel(self.panel).axis}"
        if len(errors) < 2:
            return _absent(what)
        factor = math.exp(_log_ratio(errors[-1], errors[0]))
        return _judged(self.low <= factor <= self.high, f"{what} (last over first {factor:.2g})")


@dataclass(frozen=True)
class Trend:
    """Claim that a method's error falls, or rises, at every step along the axis.

    A step counts if the confidence intervals of its two ends are disjoint. If a random subspace's error
    also changes, as with k and d, one of the ends must be below 0.9 of it, because the error of a method
    that found nothing changes with it.
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
            return _absent(what)
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
            text += f"; {right - apart} of them within chance"
        return Comparison(_share(apart, len(steps)), text)


@dataclass(frozen=True)
class Across:
    """Claim that a method's error rises from panel to panel, at every common place."""

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
            return _absent(text)
        if learnt < judged:
            text += f"; near a random subspace at {judged - learnt}"
        return Comparison(_share(right, judged), text)


@dataclass(frozen=True)
class Levels:
    """Claim that errors are within a share of the paper's, and below a random subspace's."""

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
            return _absent(what)
        text = f"{what} at {won} of {len(ratios)} (ratios {min(ratios):.2f} to {max(ratios):.2f})"
        if learnt < len(ratios):
            text += f"; near a random subspace at {len(ratios) - learnt}"
        return Comparison(_share(won, len(ratios)), text)


@dataclass(frozen=True)
class Transition:
    """Claim that the place where half of the trials fail is a power of d.

    The power lies in [low, high]; ``panels`` have the same axis for different d.
    """

    method: str
    panels: tuple[str, ...]
    low: float
    high: float
    claimed: str

    def compare(self, table: Table) -> Comparison:
        places: dict[int, float | None] = {}
        for key in self.panels:
            line = table.line(key, self.method)
            if line:
                places[table.panel(key).points[0][1].dim] = crossing(line)
        what = f"{self.method}: half of the trials fail at {table.panel(self.panels[0]).axis}"
        if len(places) < 2:
            return _absent(what)
        shown = ", ".join(f"{'none' if x is None else f'{x:.3g}'} (d = {d})" for d, x in places.items())
        found = {d: x for d, x in places.items() if x is not None}
        if len(found) < len(places):
            return Comparison(NOT_JUDGED, f"{what} = {shown}: no transition within the axis")
        points = [(math.log(d), math.log(x)) for d, x in found.items()]
        power = statistics.linear_regression(*zip(*points, strict=True)).slope
        text = f"{what} = {shown}: d^{power:+.2f}, claimed {self.claimed}"
        return _judged(self.low <= power <= self.high, text)


def crossing(line: dict[float, float]) -> float | None:
    """Find the last place on a logarithmic axis where the mean crosses 1/2."""
    xs = sorted(line)
    for a, b in reversed(list(itertools.pairwise(xs))):
        if (line[a] - 0.5) * (line[b] - 0.5) <= 0 and line[a] != line[b]:
            share = (0.5 - line[a]) / (line[b] - line[a])
            return float(a * (b / a) ** share)
    return None


@dataclass(frozen=True)
class Reaches:
    """Claim that a method's mean purity reaches a share of another's, at one place."""

    method: str
    other: str
    panel: str
    share: float
    at: float

    def compare(self, table: Table) -> Comparison:
        mine, theirs = table.line(self.panel, self.method), table.line(self.panel, self.other)
        what = f"{self.method} has {self.share:.0%} of {self.other}'s purity"
        if self.at not in mine or self.at not in theirs:
            return _absent(what)
        found, expected = 1 - mine[self.at], 1 - theirs[self.at]
        text = f"{what}: {found:.3f} against {expected:.3f} at epsilon = {self.at:g}"
        return _judged(found >= self.share * expected, text)


def _log_ratio(a: float, b: float) -> float:
    """Return the logarithm of a ratio of errors; both may be 0."""
    return math.log(max(a, 1e-300)) - math.log(max(b, 1e-300))


def _absent(text: str) -> Comparison:
    return Comparison(NOT_JUDGED, f"{text} (did not run)")


def _judged(holds: bool, text: str) -> Comparison:
    return Comparison(REPRODUCED if holds else NOT_REPRODUCED, text)


def _share(won: int, of: int) -> str:
    if won == of:
        return REPRODUCED
    return PARTLY if 2 * won >= of else NOT_REPRODUCED
