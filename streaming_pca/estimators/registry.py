"""Every estimator by its id."""

from __future__ import annotations

from typing import Any

from streaming_pca.estimators.adaptive import AdaptivePCA
from streaming_pca.estimators.analyze_gauss import AnalyzeGauss
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.block import BlockPCA
from streaming_pca.estimators.private_oja import PrivateOja

__all__ = ["ESTIMATORS", "find"]

ESTIMATORS: dict[str, type[Estimator[Any, Any]]] = {
    e.card.id: e for e in (AdaptivePCA, AnalyzeGauss, BlockPCA, PrivateOja)
}


def find(name: str) -> type[Estimator[Any, Any]]:
    """The estimator with this id; ValueError lists the known ones."""
    try:
        return ESTIMATORS[name]
    except KeyError:
        raise ValueError(f"no estimator {name!r}; known: {', '.join(sorted(ESTIMATORS))}") from None
