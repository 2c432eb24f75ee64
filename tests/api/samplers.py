"""Deterministic noise, estimator configurations and batches for the tests of PrivatePCA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.registry import ESTIMATORS, find
from tests.estimators.suite import sized
from tests.privacy.noise import SeededSampler

CASES: dict[str, dict[str, Any]] = {
    "adaptive": {"estimator": "adaptive"},
    "adaptive-pairs": {"estimator": "adaptive", "centering": "pairs"},
    "adaptive-bounded": {"estimator": "adaptive", "centering": "none", "bounds": (-2, 2)},
    "analyze-gauss": {"estimator": "analyze-gauss"},
    "analyze-gauss-pairs": {"estimator": "analyze-gauss", "centering": "pairs"},
    "analyze-gauss-bounded": {"estimator": "analyze-gauss", "centering": "none", "bounds": (-2, 2)},
    "block": {"estimator": "block"},
    "block-pairs": {"estimator": "block", "centering": "pairs"},
    "private-oja": {
        "estimator": "private-oja",
        "centering": "none",
        "options": {"clip_radius": 1.0, "learning_rate": 5.0},
    },
}
"""Parameters of PrivatePCA."""

QUIET: dict[str, dict[str, Any]] = {
    "adadpo-pairs": {"estimator": "adadpo", "centering": "pairs", "options": {"batch_size": 200}},
    "oja-pairs": {"estimator": "oja", "private": False, "centering": "pairs"},
    "tadadpo": {
        "estimator": "tadadpo",
        "centering": "none",
        "options": {"batch_size": 200, "warm_records": 150, "warm_estimator": "block"},
    },
}
"""Parameters under which two fits may agree: without noise, or without learning anything."""

for _name, _kind in ESTIMATORS.items():
    _info, _suite = _kind.info, _kind.suite_options
    if _name in CASES | QUIET or _info.local or _info.releases != "subspace":
        continue
    _how: dict[str, Any] = {"estimator": _name, "private": _info.private, "centering": "none"}
    _how |= {"n_components": _suite.rank} if _suite.rank else {}
    _table = CASES if _info.private and _suite.always_learns else QUIET
    _table[_name] = _how | {"options": sized(_name, 100)}


class RepeatingSampler(SeededSampler):
    """Draw the same noise in every call, so that two fits are identical."""

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(0)


def spiked(m: int, d: int = 8, k: int = 2, mean: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    """Return vectors with deviations 0.4 to 0.3 in k directions and 0.03 in the others."""
    rng = np.random.default_rng(seed)
    deviations = np.concatenate([np.linspace(0.4, 0.3, k), np.full(d - k, 0.03)])
    return rng.standard_normal((m, d)) * deviations @ turn(d) + mean


def turn(d: int) -> NDArray[np.float64]:
    """Return an orthogonal matrix; its first rows are the directions of :func:`spiked`."""
    return np.linalg.qr(np.random.default_rng(99).standard_normal((d, d)))[0]


@contextmanager
def watched(parameters: dict[str, Any]) -> Iterator[list[ArrayBatch]]:
    """Record the batches that the estimator learns from."""
    kind, seen = find(parameters["estimator"]), []
    update = kind.update

    def spy(self: Any, state: Any, batch: ArrayBatch) -> Any:
        seen.append(batch)
        return update(self, state, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "update", spy)
        yield seen


def rows(batches: list[ArrayBatch]) -> NDArray[Any]:
    return np.concatenate([batch.rows for batch in batches])
