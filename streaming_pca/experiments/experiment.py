"""What an experiment is: panels of settings, methods, and the paper's claims; and what it has found."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scipy.special import stdtrit

from streaming_pca.experiments.settings import Measure

__all__ = [
    "FIRST_SEED",
    "KEY_DIGITS",
    "Claim",
    "Comparison",
    "Experiment",
    "Line",
    "Panel",
    "Place",
    "Row",
    "Table",
    "Verdict",
    "beside_the_papers",
    "half_width",
    "row_key",
    "slope",
]

FIRST_SEED = 1000
"""Figures are made with seeds from here on; those below were for tuning."""

KEY_DIGITS = 12

Verdict = str
REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_JUDGED = "reproduced", "partly", "not reproduced", "not judged"


class Place(Protocol):
    """What a panel has at a point of its axis: a setting of the k-PCA papers, or of the local model."""

    @property
    def n(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...

    def draw(self, seed: int) -> Any: ...

    def random_error(self, measure: Measure) -> float: ...


class Line(Protocol):
    """A method, as figures know it: an estimator that is run on records, or one's last step."""

    @property
    def key(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def private(self) -> bool: ...
    @property
    def most_seeds(self) -> int | None: ...

    def runs_on(self, setting: Any, number: int) -> bool: ...

    def options_for(self, setting: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Panel:
    """A plot: settings along an axis.

    Attributes
    ----------
    key : str
        As the CSV names it.
    title, axis : str
    points : tuple of (float, Place)
        The place on the axis, and the setting there.
    log : bool
        Whether the axis is logarithmic.
    printed : mapping
        From a method's key and a place on the axis to the number that the paper has there.
    data : str
        What stands for the paper's data, where that could not be had.
    """

    key: str
    title: str
    axis: str
    points: tuple[tuple[float, Place], ...]
    log: bool = True
    printed: Mapping[tuple[str, float], float] = field(default_factory=dict)
    data: str = ""


class Claim(Protocol):
    """What a paper says in words, as a comparison of numbers."""

    def compare(self, table: Table) -> Comparison: ...


@dataclass(frozen=True)
class Experiment:
    """A figure of a paper.

    Attributes
    ----------
    name : str
    figure : str
        Where it is in which paper.
    words : str
        What the paper says that it shows.
    measure : str
        What is plotted: :data:`~streaming_pca.experiments.settings.MEASURES`.
    panels : tuple of Panel
    methods : tuple of Line
    claims : tuple of Claim
    seeds : int
        Of a run that names no number.
    unlike : str
        In what it differs from the paper's figure, and why.
    replaced : str
        Which data of the paper could not be had, and what stands for them.
    told : callable or None
        Makes lines that are printed after the comparison.
    """

    name: str
    figure: str
    words: str
    measure: Measure
    panels: tuple[Panel, ...]
    methods: tuple[Line, ...]
    claims: tuple[Claim, ...]
    seeds: int
    unlike: str
    replaced: str = ""
    told: Callable[[], list[str]] | None = None

    def settings(self) -> tuple[Place, ...]:
        """Every setting once."""
        return tuple(dict.fromkeys(setting for panel in self.panels for _, setting in panel.points))


@dataclass(frozen=True)
class Row:
    """One fit, at one place of one panel.

    Attributes
    ----------
    error : float or None
        None where the method refused the setting.
    seconds : float or None
    learnt : float or None
        Share of the batches that something was learnt from: those without an
        outcome, or with the outcome "learnt".
    batches : int or None
    key : str
        Of setting, estimator and options together: :func:`row_key`.
    note : str
        Why it was refused.
    paper : float or None
        What the paper has there.
    """

    panel: str
    x: float
    method: str
    seed: int
    error: float | None
    seconds: float | None
    learnt: float | None
    batches: int | None
    key: str
    note: str = ""
    paper: float | None = None


def row_key(setting: Place, method: Line) -> str:
    """Hexadecimal digits that change with the setting, the estimator or its options."""
    what = [setting.as_json(), method.id, method.options_for(setting)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class Comparison:
    """A claim beside the numbers."""

    verdict: Verdict
    text: str


class Table:
    """Mean errors by panel, method and place on the axis.

    Parameters
    ----------
    experiment : Experiment
    rows : iterable of Row
    """

    def __init__(self, experiment: Experiment, rows: Iterable[Row]) -> None:
        self.experiment = experiment
        self._errors: dict[tuple[str, str, float], list[float]] = defaultdict(list)
        self._learnt: dict[tuple[str, str, float], list[float]] = defaultdict(list)
        self.refused: dict[str, str] = {}
        for row in rows:
            at = (row.panel, row.method, row.x)
            if row.error is None:
                self.refused.setdefault(row.method, row.note)
                continue
            self._errors[at].append(row.error)
            if row.learnt is not None:
                self._learnt[at].append(row.learnt)

    def errors(self, panel: str, method: str, x: float) -> Sequence[float]:
        """One a seed."""
        return self._errors.get((panel, method, x), ())

    def mean(self, panel: str, method: str, x: float) -> float | None:
        """Mean error over seeds; None where the method did not run."""
        found = self.errors(panel, method, x)
        return statistics.fmean(found) if found else None

    def learnt(self, panel: str, method: str, x: float) -> float | None:
        """Mean share of batches that were learnt from."""
        found = self._learnt.get((panel, method, x))
        return statistics.fmean(found) if found else None

    def line(self, panel: str, method: str) -> dict[float, float]:
        """Mean errors along an axis, where the method ran."""
        means = {x: self.mean(panel, method, x) for x, _ in self.panel(panel).points}
        return {x: mean for x, mean in means.items() if mean is not None}

    def panel(self, key: str) -> Panel:
        """A panel by its key."""
        return next(panel for panel in self.experiment.panels if panel.key == key)

    def random(self, panel: str) -> dict[float, float]:
        """What a random subspace scores along an axis."""
        return {x: s.random_error(self.experiment.measure) for x, s in self.panel(panel).points}

    def best(self, panel: str, x: float) -> str | None:
        """The private method with the least mean error."""
        means = {
            method.key: mean
            for method in self.experiment.methods
            if method.private and (mean := self.mean(panel, method.key, x)) is not None
        }
        return min(means, key=means.__getitem__) if means else None

    def compare(self) -> Comparison:
        """All claims as one."""
        found = [claim.compare(self) for claim in self.experiment.claims]
        verdicts = {comparison.verdict for comparison in found}
        verdict = verdicts.pop() if len(verdicts) == 1 else PARTLY
        if verdicts == {NOT_JUDGED, NOT_REPRODUCED}:
            verdict = NOT_REPRODUCED
        said = [f"{comparison.text}: {comparison.verdict}" for comparison in found]
        if any(method.private for method in self.experiment.methods):
            said.append(self._winners())
        return Comparison(verdict, "; ".join(said))

    def _winners(self) -> str:
        """How often each private method had the least error."""
        places = [(panel.key, x) for panel in self.experiment.panels for x, _ in panel.points]
        best = [found for panel, x in places if (found := self.best(panel, x)) is not None]
        counts = sorted(((best.count(key), key) for key in set(best)), reverse=True)
        shown = ", ".join(f"{key} {count}" for count, key in counts)
        return f"least private error, of {len(best)} points: {shown or 'none'}"


def beside_the_papers(table: Table) -> list[str]:
    """The paper's numbers and ours, a line each under a heading; nothing where it has none."""
    cells = [("data", "at", "method", "paper", "ours")]
    for panel in table.experiment.panels:
        for (method, x), number in panel.printed.items():
            errors = table.errors(panel.key, method, x)
            ours = f"{statistics.fmean(errors):.3f} ± {half_width(errors):.3f}" if errors else "none"
            cells.append((panel.title, f"{panel.axis} = {x:g}", method, f"{number:.3f}", ours))
    if len(cells) == 1:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    padded = (zip(row, widths, strict=True) for row in cells)
    return ["  ".join(f"{cell:{width}}" for cell, width in row).rstrip() for row in padded]


def half_width(errors: Sequence[float]) -> float:
    """Half of the 95% confidence interval of the mean, by Student's t; 0 for a single error."""
    if len(errors) < 2:
        return 0.0
    quantile = float(stdtrit(len(errors) - 1, 0.975))
    return quantile * statistics.stdev(errors) / math.sqrt(len(errors))


def slope(line: dict[float, float]) -> float | None:
    """Of log error against log x, by least squares; None for fewer than two points."""
    points = [(math.log(x), math.log(y)) for x, y in line.items() if x > 0 and y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
