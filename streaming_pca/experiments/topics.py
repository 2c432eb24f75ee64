"""A use for it: topics of real text, by private tensors, beside methods that promise nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.experiments.experiment import (
    FIRST_SEED,
    NOT_JUDGED,
    NOT_REPRODUCED,
    REPRODUCED,
    Comparison,
    Experiment,
    Panel,
    Table,
)
from streaming_pca.experiments.settings import Measure
from streaming_pca.experiments.tensor_methods import RecordMethod
from streaming_pca.experiments.topic_windows import PACKAGES, VOCABULARY, WINDOW, Windows, versions, windows
from streaming_pca.experiments.whole_methods import WholeMethod
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import Batch

__all__ = ["Reaches", "TopicDraw", "TopicSetting", "purity", "top_words", "topics"]

Floats = NDArray[np.float64]

_ORDER, _START = range(2)
_SHOWN = 7
"""Words of a topic that are shown."""


def purity(components: Floats, found: Windows) -> float:
    """Share of windows whose topic's commonest package is theirs.

    A window's topic is the component that it has the least angle to: the same rule for every method.

    Parameters
    ----------
    components : (k, d) float64
        Of any length but 0.
    found : Windows
    """
    unit = components / np.linalg.norm(components, axis=1, keepdims=True)
    topic = np.argmax(found.rows @ unit.T, axis=1)
    table = np.zeros((len(components), len(PACKAGES)), dtype=np.int64)
    np.add.at(table, (topic, found.labels), 1)
    return float(table.max(axis=1).sum() / len(topic))


@dataclass(frozen=True)
class TopicSetting:
    """All windows, in an order that the seed says.

    Attributes
    ----------
    epsilon, delta : float
        For one window.
    most : int
        Windows of a package.
    """

    epsilon: float
    delta: float = 1e-6
    most: int = 15_000

    @property
    def family(self) -> str:
        return "topics"

    @property
    def n(self) -> int:
        return len(windows(self.most).rows)

    @property
    def dim(self) -> int:
        return len(VOCABULARY)

    @property
    def k(self) -> int:
        return len(PACKAGES)

    @property
    def bytes(self) -> int:
        """The windows, and a copy in another order."""
        return 8 * self.most * self.k * self.dim

    def as_json(self) -> dict[str, Any]:
        """The text is that of the versions that are installed."""
        return {"data": "windows", "versions": versions(), **asdict(self)}

    def draw(self, seed: int) -> TopicDraw:
        return TopicDraw(self, seed)

    def random_error(self, measure: Measure) -> float:
        """Topics that say nothing of the package: all are of the package with most windows."""
        return 1 - float(np.bincount(windows(self.most).labels).max() / self.n)


class TopicDraw:
    """The windows in one order."""

    def __init__(self, setting: TopicSetting, seed: int) -> None:
        self.setting, self.seed = setting, seed
        self.windows = windows(setting.most)
        self._rows = self.windows.rows[self._generator(_ORDER).permutation(setting.n)]

    def batch(self, first: int, count: int) -> Batch:
        """Windows ``first`` to ``first + count``, in the order drawn."""
        rows = self._rows[first : first + count]
        return Batch(rows, np.arange(len(rows) + 1, dtype=np.int64))

    def start(self) -> np.random.Generator:
        """Utility randomness of an estimator: the same for all on this draw."""
        return self._generator(_START)

    def error(self, measure: Measure, components: Floats) -> float:
        """1 less the purity."""
        return 1 - purity(components, self.windows)

    def _generator(self, use: int) -> np.random.Generator:
        return utility_generator((self.seed << 64) | (use << 32))


def _private(setting: TopicSetting) -> dict[str, Any]:
    """Two fifths of the windows for the whitening, whose error stays; then few and large batches, as noise
    does not shrink with a batch. Chosen on seeds below those of the figure. Every window has length 1.
    """
    first = 2 * setting.n // 5
    return {
        "clip_radius": 1.0,
        "whitening_records": first,
        "batch_size": (setting.n - first) // 12,
        "steps": 2,
        "restarts": 10,
        "whitened_radius": 4.0,
    }


def _online(setting: TopicSetting) -> dict[str, Any]:
    return {"batch_size": setting.n // 32, "steps": 6}


def _nmf(draw: TopicDraw) -> Floats:
    return _nmf_of(draw.setting.most, draw.setting.k)


@functools.lru_cache(maxsize=2)
def _nmf_of(most: int, k: int) -> Floats:
    """The same at every seed: a start by singular vectors, and no order of records."""
    from sklearn.decomposition import NMF

    found = NMF(k, init="nndsvda", max_iter=300).fit(windows(most).rows)
    return np.asarray(found.components_, dtype=np.float64)


def _package_means(draw: TopicDraw) -> Floats:
    """What knows the labels: the most that one direction a package can do, or nearly."""
    found = draw.windows
    return np.array([found.rows[found.labels == i].mean(axis=0) for i in range(len(PACKAGES))])


TOPIC_METHODS = (
    RecordMethod("tensor-private", "tensor-private, whitened", "tensor-private", _private),
    RecordMethod("tensor-online", "tensor-online (not private)", "tensor-online", _online, private=False),
    WholeMethod("nmf", "NMF (not private)", "nmf", _nmf, private=False),
    WholeMethod(
        "package-means", "means of the packages (knows labels)", "means", _package_means, private=False
    ),
)


@dataclass(frozen=True)
class Reaches:
    """A method's mean purity is at least a share of another's, at one place."""

    method: str
    other: str
    panel: str
    share: float
    at: float

    def compare(self, table: Table) -> Comparison:
        mine, theirs = table.line(self.panel, self.method), table.line(self.panel, self.other)
        what = f"{self.method} has {self.share:.0%} of {self.other}'s purity"
        if self.at not in mine or self.at not in theirs:
            return Comparison(NOT_JUDGED, f"{what} (did not run)")
        found, wanted = 1 - mine[self.at], 1 - theirs[self.at]
        text = f"{what}: {found:.3f} beside {wanted:.3f} at epsilon = {self.at:g}"
        return Comparison(REPRODUCED if found >= self.share * wanted else NOT_REPRODUCED, text)


def top_words(components: Floats, found: Windows) -> list[str]:
    """A line a topic: its leading words, its share of the windows, and the package of most of them."""
    unit = components / np.linalg.norm(components, axis=1, keepdims=True)
    topic = np.argmax(found.rows @ unit.T, axis=1)
    lines = []
    for i, component in enumerate(components):
        words = " ".join(VOCABULARY[j] for j in np.argsort(-component, kind="stable")[:_SHOWN])
        labels = np.bincount(found.labels[topic == i], minlength=len(PACKAGES))
        common = int(np.argmax(labels))
        share = labels.sum() / len(topic)
        of_it = labels[common] / max(int(labels.sum()), 1)
        lines.append(f"{words} ({share:.0%} of the windows, {of_it:.0%} of them {PACKAGES[common]})")
    return lines


def _told(settings: Sequence[TopicSetting]) -> list[str]:
    """What the records are, what is promised, and the topics of the first trial."""
    from streaming_pca.experiments.running import released

    first = settings[0]
    said = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = [
        f"records: {first.n:,} windows of {WINDOW} words from the sources of {said}; counts of "
        f"{first.dim} words, at length 1",
        "protected: one window. Replacing one changes what is released by at most what (epsilon, "
        f"delta = {first.delta:g}) allows",
        "not protected: a file, or its author, who has many windows; the vocabulary and the number of "
        "windows, which are taken to be public; the labels, which only judge; nothing in the lines that are "
        "marked as not private",
    ]
    for setting in settings:
        draw = setting.draw(FIRST_SEED)
        lines.append(f"topics at epsilon = {setting.epsilon:g}, first trial:")
        lines += [f"  {line}" for line in top_words(released(TOPIC_METHODS[0], draw), draw.windows)]
    return lines


def topics(quick: bool) -> Experiment:
    most = 3_000 if quick else 15_000
    epsilons = (2.0, 8.0) if quick else (0.5, 1.0, 2.0, 4.0, 8.0)
    points = tuple((epsilon, TopicSetting(epsilon, most=most)) for epsilon in epsilons)
    judged = (2.0,) if quick else (1.0, 2.0)
    told = [setting for epsilon, setting in points if quick or epsilon in judged]
    return Experiment(
        name="topics",
        figure="a use for 001: topics of real text, against epsilon",
        words="one important direction is to apply private tensor decomposition to topic modeling (001, "
        "section 5); expected here: nine tenths of NMF's purity at epsilon 1 and 2",
        measure="impurity",
        panels=(Panel("topics", "windows of four packages' text, k = 4, d = 64", "epsilon", points),),
        methods=TOPIC_METHODS,
        claims=tuple(Reaches("tensor-private", "nmf", "topics", 0.9, epsilon) for epsilon in judged),
        seeds=2 if quick else 10,
        unlike="001 has no such experiment",
        told=functools.partial(_told, told[:1] if quick else told),
    )
