"""Topics of real text by private tensors, compared with methods without privacy.

A record is a window: 32 consecutive words in a source file of matplotlib, numba, scikit-learn or Pygments
(comments, docstrings and names alike), as counts of 64 words, divided by their length. Therefore every record
lies on the surface of the unit ball. The label is the package, which no method knows.

The vocabulary is a constant. It was chosen once, without labels, by a rule that prefers words with frequent
use in few files; a real deployment takes it from public text. Nothing else in a record is computed from other
records. Packages change: other versions have slightly more or fewer windows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.claims import Reaches
from experiments.experiment import FIRST_SEED, Experiment, JointMethod, Panel, StreamMethod
from experiments.results import ExperimentError
from experiments.running import released
from experiments.settings import Measure, RowsDraw, generator

__all__ = [
    "PACKAGES",
    "TOPIC_METHODS",
    "VOCABULARY",
    "TopicDraw",
    "TopicSetting",
    "Windows",
    "purity",
    "top_words",
    "topics",
    "versions",
    "windows",
]

Floats = NDArray[np.float64]

PACKAGES: Final = ("matplotlib", "numba", "sklearn", "pygments")
"""Packages by import name."""

_DISTRIBUTIONS: Final = ("matplotlib", "numba", "scikit-learn", "Pygments")

_WINDOW: Final = 32
"""Number of words in a window."""

# fmt: off
VOCABULARY: Final = (
    "alpha", "artist", "axes", "bbox", "block", "blocks", "body", "builder", "bygroups", "canvas",
    "cgutils", "char", "classes", "color", "components", "cuda", "device", "draw", "estimator", "event",
    "expr", "feature", "features", "figure", "font", "height", "image", "impl", "indices", "inst",
    "iter", "kernel", "kwargs", "labels", "legend", "loop", "markup", "mask", "math", "matplotlib",
    "node", "npyfuncs", "offset", "params", "parfor", "path", "punctuation", "random", "renderer",
    "sample", "samples", "scale", "score", "sparse", "stmt", "style", "tags", "tick", "train",
    "transform", "vmin", "weight", "width", "words",
)
# fmt: on

_WORD = re.compile(r"[a-z]{3,}")
_ORDER = 0
_SHOWN = 7
"""Number of words to print for a topic."""


@dataclass(frozen=True)
class Windows:
    """All windows with a word of the vocabulary, package by package.

    Attributes
    ----------
    rows : (n, 64) float32
        Counts, scaled to length 1.
    labels : (n,) int64
        Indices into :data:`PACKAGES`.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]


def versions() -> dict[str, str]:
    """Return the versions of the packages, which affect results."""
    return {name: version(name) for name in _DISTRIBUTIONS}


@functools.lru_cache(maxsize=2)
def windows(most: int) -> Windows:
    """Read at most ``most`` windows of each package, spread over its files.

    Raises
    ------
    ExperimentError
        If a package is not installed.
    """
    rows, labels = [], []
    for label, package in enumerate(PACKAGES):
        counts = _counts(package)
        counts = counts[np.linspace(0, len(counts) - 1, min(most, len(counts))).astype(np.intp)]
        rows.append(counts / np.linalg.norm(counts, axis=1, keepdims=True))
        labels.append(np.full(len(counts), label))
    return Windows(np.concatenate(rows, dtype=np.float32), np.concatenate(labels))


def _counts(package: str) -> Floats:
    place = {word: i for i, word in enumerate(VOCABULARY)}
    absent = len(VOCABULARY)
    found = []
    for file in _files(package):
        words = _WORD.findall(file.read_text(encoding="utf-8", errors="replace").lower())
        whole = len(words) // _WINDOW
        places = np.array([place.get(word, absent) for word in words[: whole * _WINDOW]], dtype=np.intp)
        cells = places.reshape(whole, _WINDOW) + (absent + 1) * np.arange(whole)[:, None]
        counts = np.bincount(cells.ravel(), minlength=whole * (absent + 1)).reshape(whole, absent + 1)
        found.append(counts[:, :absent])
    every = np.concatenate(found).astype(np.float64)
    return np.asarray(every[every.any(axis=1)])


def _files(package: str) -> list[Path]:
    try:
        installed = distribution(_DISTRIBUTIONS[PACKAGES.index(package)])
    except PackageNotFoundError:
        raise ExperimentError(
            f"the text of {package} is part of it: pip install '.[experiments]' in the checkout"
        ) from None
    root = Path(str(installed.locate_file(package)))
    every = (file.relative_to(root) for file in root.rglob("*.py"))
    # Sort by parts, so that the order does not depend on the system's separator.
    return [root.joinpath(*parts) for parts in sorted(file.parts for file in every)]


def _topic_of(components: Floats, found: Windows) -> NDArray[np.intp]:
    """Assign each window to the component at the least angle, for every method."""
    unit = components / np.linalg.norm(components, axis=1, keepdims=True)
    return np.asarray(np.argmax(found.rows @ unit.T, axis=1))


def purity(components: Floats, found: Windows) -> float:
    """Return the share of windows that belong to their topic's most common package.

    Parameters
    ----------
    components : (k, d) float64
        Rows of any nonzero length.
    found : Windows
    """
    topic = _topic_of(components, found)
    table = np.zeros((len(components), len(PACKAGES)), dtype=np.int64)
    np.add.at(table, (topic, found.labels), 1)
    return float(table.max(axis=1).sum() / len(topic))


def top_words(components: Floats, found: Windows) -> list[str]:
    """Describe each topic in a line: leading words, share of windows, most common package."""
    topic = _topic_of(components, found)
    lines = []
    for i, component in enumerate(components):
        words = " ".join(VOCABULARY[j] for j in np.argsort(-component, kind="stable")[:_SHOWN])
        labels = np.bincount(found.labels[topic == i], minlength=len(PACKAGES))
        common = int(np.argmax(labels))
        share = labels.sum() / len(topic)
        of_it = labels[common] / max(int(labels.sum()), 1)
        lines.append(f"{words} ({share:.0%} of the windows, {of_it:.0%} of them {PACKAGES[common]})")
    return lines


@dataclass(frozen=True)
class TopicSetting:
    """All windows, in an order that depends on the seed.

    Attributes
    ----------
    epsilon, delta : float
        Privacy parameters for one window.
    most : int
        Largest number of windows per package.
    """

    epsilon: float
    delta: float = 1e-6
    most: int = 15_000

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
        """Memory of the windows and a permuted copy."""
        return 8 * self.most * self.k * self.dim

    def as_json(self) -> dict[str, Any]:
        """Return everything that determines a draw, with the installed versions."""
        return {"data": "windows", "versions": versions(), **asdict(self)}

    def draw(self, seed: int) -> TopicDraw:
        return TopicDraw(self, seed)

    def random_error(self, measure: Measure) -> float:
        """Return the error of uninformed topics, which assign all windows to the largest package."""
        return 1 - float(np.bincount(windows(self.most).labels).max() / self.n)


class TopicDraw(RowsDraw):
    """Permuted windows."""

    _start = 1

    def __init__(self, setting: TopicSetting, seed: int) -> None:
        super().__init__(setting, seed)
        self.windows = windows(setting.most)
        self._rows = self.windows.rows[generator(seed, _ORDER).permutation(setting.n)]

    def error(self, measure: Measure, components: Floats) -> float:
        """Return 1 minus the purity."""
        return 1 - purity(components, self.windows)


def _private(setting: TopicSetting) -> dict[str, Any]:
    """Use two fifths of the windows for whitening, then few large batches.

    The error of the whitening persists, and the noise of a batch does not depend on its size. These options
    were chosen on seeds below those of the figure. Every window has length 1.
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
    """Run NMF, independent of the seed: it starts from singular vectors, and ignores order."""
    from sklearn.decomposition import NMF

    found = NMF(k, init="nndsvda", max_iter=300).fit(windows(most).rows)
    return np.asarray(found.components_, dtype=np.float64)


def _package_means(draw: TopicDraw) -> Floats:
    """Average by label: nearly the best result with one direction per package."""
    found = draw.windows
    return np.array([found.rows[found.labels == i].mean(axis=0) for i in range(len(PACKAGES))])


TOPIC_METHODS = (
    StreamMethod("tensor-private", "tensor-private, whitened", "tensor-private", _private),
    StreamMethod("tensor-online", "tensor-online (not private)", "tensor-online", _online, private=False),
    JointMethod("nmf", "NMF (not private)", "nmf", _nmf, private=False),
    JointMethod(
        "package-means", "means of the packages (knows labels)", "means", _package_means, private=False
    ),
)


def _told(settings: Sequence[TopicSetting]) -> list[str]:
    """Describe the records, the guarantee, and the topics of the first trial."""
    first = settings[0]
    packages = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = [
        f"records: {first.n:,} windows of {_WINDOW} words from the sources of {packages}; counts of "
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
    return Experiment(
        name="topics",
        figure="a use for [WangAnandkumar2016]: topics of real text, against epsilon",
        words="one important direction is to apply private tensor decomposition to topic modeling "
        "([WangAnandkumar2016], section 5); expected here: nine tenths of NMF's purity at epsilon 1 and 2",
        measure="impurity",
        panels=(Panel("topics", "windows of four packages' text, k = 4, d = 64", "epsilon", points),),
        methods=TOPIC_METHODS,
        claims=tuple(Reaches("tensor-private", "nmf", "topics", 0.9, epsilon) for epsilon in judged),
        seeds=2 if quick else 10,
        unlike="the paper has no such experiment",
        told=functools.partial(_told, [setting for epsilon, setting in points if epsilon in judged]),
    )
