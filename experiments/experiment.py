"""Experiments with panels, methods and claims, and the table of measured errors."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from experiments.settings import Measure

__all__ = [
    "FIRST_SEED",
    "KEY_DIGITS",
    "Claim",
    "Comparison",
    "Experiment",
    "JointMethod",
    "Method",
    "Panel",
    "Place",
    "Row",
    "StreamMethod",
    "Table",
    "Verdict",
    "half_width",
    "row_key",
    "slope",
]

FIRST_SEED = 1000
"""First seed of the figures; tuning uses lower seeds."""

KEY_DIGITS = 12

Verdict = str
REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_JUDGED = "reproduced", "partly", "not reproduced", "not judged"


class Place(Protocol):
    """Data and privacy parameters at a point of an axis."""

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


@dataclass(frozen=True)
class Method:
    """Line of a figure.

    Attributes
    ----------
    key, label : str
        Names in the CSV and in the figure.
    id : str
        Id of the estimator or of another algorithm.
    private : bool
    most_seeds : int or None
        Number of trials of a full run, for a slow method; None means all.
    place : type or None
        Type of place that the method runs on; None means any.
    variant : type or None
        Subclass of the estimator that runs.
    """

    key: str
    label: str
    id: str
    private: bool = field(default=True, kw_only=True)
    most_seeds: int | None = field(default=None, kw_only=True)
    place: type | None = field(default=None, kw_only=True)
    variant: type[Any] | None = field(default=None, kw_only=True)

    def runs_on(self, setting: Any, number: int) -> bool:
        """Return whether the method runs on a place in a trial, numbered from 0."""
        if self.place is not None and not isinstance(setting, self.place):
            return False
        return self.most_seeds is None or number < self.most_seeds

    def options_for(self, setting: Any) -> dict[str, Any]:
        """Return the estimator's options at a place; they are part of a row's key."""
        raise NotImplementedError


@dataclass(frozen=True)
class StreamMethod(Method):
    """Method that runs an estimator over records; ``options`` maps a place to its options."""

    options: Callable[[Any], dict[str, Any]]

    def options_for(self, setting: Any) -> dict[str, Any]:
        return self.options(setting)


@dataclass(frozen=True)
class JointMethod(Method):
    """Method that reads a whole draw at a time, not as a stream.

    Attributes
    ----------
    components : callable
        Maps a draw to rows (k, d).
    options : mapping
        Options, which are part of a row's key.
    """

    components: Callable[[Any], NDArray[np.float64]]
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def options_for(self, setting: Any) -> dict[str, Any]:
        return {"method": self.key, **self.options}


@dataclass(frozen=True)
class Panel:
    """Plot: settings along an axis.

    Attributes
    ----------
    key : str
        Name in the CSV.
    title, axis : str
    points : tuple of (float, Place)
        Positions on the axis, with the settings there.
    log : bool
        True for a logarithmic axis.
    printed : mapping
        Maps a method's key and a position on the axis to the paper's number.
    data : str
        Synthetic data that replace the paper's, if those are not available.
    """

    key: str
    title: str
    axis: str
    points: tuple[tuple[float, Place], ...]
    log: bool = True
    printed: Mapping[tuple[str, float], float] = field(default_factory=dict)
    data: str = ""

    @classmethod
    def along(
        cls, key: str, title: str, axis: str, values: Iterable[float], at: Callable[[float], Place]
    ) -> Panel:
        """Make a panel of the settings ``at(value)``."""
        return cls(key, title, axis, tuple((float(value), at(value)) for value in values))


class Claim(Protocol):
    """Statement of a paper, expressed as a comparison of numbers."""

    def compare(self, table: Table) -> Comparison: ...


@dataclass(frozen=True)
class Experiment:
    """Figure or table of a paper.

    Attributes
    ----------
    name : str
    figure : str
        Reference to the paper's figure or table.
    words : str
        The paper's claims in its own words.
    measure : str
        Error to plot: a key of :data:`~experiments.settings.MEASURES`.
    panels : tuple of Panel
    methods : tuple of Method
    claims : tuple of Claim
    seeds : int
        Default number of trials.
    unlike : str
        Differences from the paper's figure, with reasons.
    replaced : str
        Unavailable data of the paper, and the synthetic data that replace them.
    told : callable or None
        Returns lines to print after the comparison.
    """

    name: str
    figure: str
    words: str
    measure: Measure
    panels: tuple[Panel, ...]
    methods: tuple[Method, ...]
    claims: tuple[Claim, ...]
    seeds: int
    unlike: str
    replaced: str = ""
    told: Callable[[], list[str]] | None = None

    def settings(self) -> tuple[Place, ...]:
        """Return all settings without duplicates."""
        return tuple(dict.fromkeys(setting for panel in self.panels for _, setting in panel.points))


@dataclass(frozen=True)
class Row:
    """One fit at one place of one panel.

    Attributes
    ----------
    error : float or None
        None if the method refused the setting.
    seconds : float or None
    learnt : float or None
        Share of the batches that the estimator learnt from: batches without an outcome, or with the
        outcome "learnt".
    batches : int or None
    key : str
        Digest of setting, estimator and options together: :func:`row_key`.
    note : str
        Reason for a refusal.
    paper : float or None
        The paper's number.
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


def row_key(setting: Place, method: Method) -> str:
    """Return a hexadecimal digest of the setting, the estimator and its options."""
    what = [setting.as_json(), method.id, method.options_for(setting)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class Comparison:
    """Verdict on a claim, and the supporting numbers."""

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
        """Return the errors, one per seed."""
        return self._errors.get((panel, method, x), ())

    def mean(self, panel: str, method: str, x: float) -> float | None:
        """Return the mean error over seeds; None if the method did not run."""
        found = self.errors(panel, method, x)
        return statistics.fmean(found) if found else None

    def learnt(self, panel: str, method: str, x: float) -> float | None:
        """Return the mean share of batches that the estimator learnt from."""
        found = self._learnt.get((panel, method, x))
        return statistics.fmean(found) if found else None

    def line(self, panel: str, method: str) -> dict[float, float]:
        """Return the mean errors at the points of an axis where the method ran."""
        means = {x: self.mean(panel, method, x) for x, _ in self.panel(panel).points}
        return {x: mean for x, mean in means.items() if mean is not None}

    def panel(self, key: str) -> Panel:
        """Return a panel by its key."""
        return next(panel for panel in self.experiment.panels if panel.key == key)

    def random(self, panel: str) -> dict[float, float]:
        """Return the error of a random subspace along an axis."""
        return {x: s.random_error(self.experiment.measure) for x, s in self.panel(panel).points}

    def best(self, panel: str, x: float) -> str | None:
        """Return the private method with the least mean error."""
        means = {
            method.key: mean
            for method in self.experiment.methods
            if method.private and (mean := self.mean(panel, method.key, x)) is not None
        }
        return min(means, key=means.__getitem__) if means else None

    def compare(self) -> Comparison:
        """Compare all claims and combine their verdicts."""
        found = [claim.compare(self) for claim in self.experiment.claims]
        verdicts = {comparison.verdict for comparison in found}
        verdict = verdicts.pop() if len(verdicts) == 1 else PARTLY
        if verdicts == {NOT_JUDGED, NOT_REPRODUCED}:
            verdict = NOT_REPRODUCED
        texts = [f"{comparison.text}: {comparison.verdict}" for comparison in found]
        if any(method.private for method in self.experiment.methods):
            texts.append(self._winners())
        return Comparison(verdict, "; ".join(texts))

    def _winners(self) -> str:
        """Count the points where each private method has the least error."""
        places = [(panel.key, x) for panel in self.experiment.panels for x, _ in panel.points]
        best = [found for panel, x in places if (found := self.best(panel, x)) is not None]
        counts = sorted(((best.count(key), key) for key in set(best)), reverse=True)
        shown = ", ".join(f"{key} {count}" for count, key in counts)
        return f"least private error, of {len(best)} points: {shown or 'none'}"

    def points(self) -> list[dict[str, Any]]:
        """Return every mean with its interval, for JSON."""
        return [
            {
                "panel": panel.key,
                "x": x,
                "method": method.key,
                "error": statistics.fmean(errors),
                "half_width": half_width(errors),
                "seeds": len(errors),
                "learnt": self.learnt(panel.key, method.key, x),
                "paper": panel.printed.get((method.key, x)),
            }
            for panel in self.experiment.panels
            for x, _ in panel.points
            for method in self.experiment.methods
            if (errors := self.errors(panel.key, method.key, x))
        ]

    def beside_the_papers(self) -> list[str]:
        """Format the paper's numbers and ours as lines, preceded by a heading.

        The result is empty if the paper has no numbers.
        """
        cells = [("data", "at", "method", "paper", "ours")]
        for panel in self.experiment.panels:
            for (method, x), number in panel.printed.items():
                errors = self.errors(panel.key, method, x)
                ours = f"{statistics.fmean(errors):.3f} ± {half_width(errors):.3f}" if errors else "none"
                cells.append((panel.title, f"{panel.axis} = {x:g}", method, f"{number:.3f}", ours))
        if len(cells) == 1:
            return []
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        padded = (zip(row, widths, strict=True) for row in cells)
        return ["  ".join(f"{cell:{width}}" for cell, width in row).rstrip() for row in padded]


def half_width(errors: Sequence[float]) -> float:
    """Return half of the mean's 95% confidence interval, by Student's t; 0 for one error."""
    if len(errors) < 2:
        return 0.0
    quantile = float(stdtrit(len(errors) - 1, 0.975))
    return quantile * statistics.stdev(errors) / math.sqrt(len(errors))


def slope(line: dict[float, float]) -> float | None:
    """Fit the slope of log error in log x by least squares; None for fewer than two points."""
    points = [(math.log(x), math.log(y)) for x, y in line.items() if x > 0 and y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
