"""Real counts: windows of the text of four packages that are always installed with this one's experiments.

A record is a window: 32 words that follow each other in a source file of matplotlib, numba, scikit-learn or
Pygments (comments, docstrings and names alike), as counts of 64 words, divided by their length. So
every record lies in the unit ball, on its surface. The label is the package, which no method is told.

The vocabulary is a constant. It was chosen once, without labels, by a rule that says of a word how much it
is used and how few files use it; a real deployment takes it from public text. Nothing else of a record is
computed from other records. Packages change: other versions give a few more windows, or fewer.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming_pca.experiments.results import ExperimentError

__all__ = ["PACKAGES", "VOCABULARY", "WINDOW", "Windows", "versions", "windows"]

PACKAGES: Final = ("matplotlib", "numba", "sklearn", "pygments")
"""As they are imported."""

_DISTRIBUTIONS: Final = ("matplotlib", "numba", "scikit-learn", "Pygments")

WINDOW: Final = 32
"""Words of a window."""

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


@dataclass(frozen=True)
class Windows:
    """All windows that have a word of the vocabulary, package by package.

    Attributes
    ----------
    rows : (n, 64) float32
        Counts, at length 1.
    labels : (n,) int64
        Of :data:`PACKAGES`.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]


def versions() -> dict[str, str]:
    """Of the packages: what a result depends on."""
    return {name: version(name) for name in _DISTRIBUTIONS}


@functools.lru_cache(maxsize=2)
def windows(most: int) -> Windows:
    """The windows of the packages, at most so many of each, spread over its files.

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


def _counts(package: str) -> NDArray[np.float64]:
    place = {word: i for i, word in enumerate(VOCABULARY)}
    absent = len(VOCABULARY)
    found = []
    for file in _files(package):
        words = _WORD.findall(file.read_text(encoding="utf-8", errors="replace").lower())
        whole = len(words) // WINDOW
        places = np.array([place.get(word, absent) for word in words[: whole * WINDOW]], dtype=np.intp)
        cells = places.reshape(whole, WINDOW) + (absent + 1) * np.arange(whole)[:, None]
        counts = np.bincount(cells.ravel(), minlength=whole * (absent + 1)).reshape(whole, absent + 1)
        found.append(counts[:, :absent])
    every = np.concatenate(found).astype(np.float64)
    return np.asarray(every[every.any(axis=1)])


def _files(package: str) -> list[Path]:
    try:
        installed = distribution(_DISTRIBUTIONS[PACKAGES.index(package)])
    except PackageNotFoundError:
        raise ExperimentError(
            f"the text of {package} is a part of this experiment: pip install 'streaming-pca[experiments]'"
        ) from None
    root = Path(str(installed.locate_file(package)))
    every = (file.relative_to(root) for file in root.rglob("*.py"))
    # By its parts, so that the order does not depend on the system's.
    return [root.joinpath(*parts) for parts in sorted(file.parts for file in every)]
