"""Every estimator by its id."""

from __future__ import annotations

from typing import Any

from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.local_gaussian import LocalGaussianPCA
from streaming_pca.estimators.local_sparse import SparseLocalPCA
from streaming_pca.estimators.oja import OjaPCA
from streaming_pca.estimators.tadadpo import TadaDPO
from streaming_pca.estimators.tensor_online import OnlineTensorPower
from streaming_pca.estimators.tensor_private import PrivateTensorPower
from streaming_pca.estimators.warm_starts import WARM_STARTS

__all__ = ["ESTIMATORS", "find"]

_OTHERS: tuple[type[Estimator[Any, Any]], ...] = (
    LocalGaussianPCA,
    OjaPCA,
    OnlineTensorPower,
    PrivateTensorPower,
    SparseLocalPCA,
    TadaDPO,
)

ESTIMATORS: dict[str, type[Estimator[Any, Any]]] = {
    e.card.id: e for e in sorted((*WARM_STARTS.values(), *_OTHERS), key=lambda e: e.card.id)
}


def find(name: str) -> type[Estimator[Any, Any]]:
    """The estimator with this id; ValueError lists the known ones."""
    try:
        return ESTIMATORS[name]
    except KeyError:
        raise ValueError(f"no estimator {name!r}; known: {', '.join(sorted(ESTIMATORS))}") from None
