"""Registry of all estimators by id."""

from __future__ import annotations

from typing import Any

from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.local.gaussian import LocalGaussianPCA
from streaming_pca.estimators.local.sparse import SparseLocalPCA
from streaming_pca.estimators.oja.oja import OjaPCA
from streaming_pca.estimators.tadadpo import WARM_STARTS, TadaDPO
from streaming_pca.estimators.tensor.online import OnlineTensorPower
from streaming_pca.estimators.tensor.private import PrivateTensorPower
from streaming_pca.validation_errors import meant, nearest

DEFAULT_ESTIMATOR = "adaptive"

_OTHERS: tuple[type[Estimator[Any, Any]], ...] = (
    LocalGaussianPCA,
    OjaPCA,
    OnlineTensorPower,
    PrivateTensorPower,
    SparseLocalPCA,
    TadaDPO,
)

ESTIMATORS: dict[str, type[Estimator[Any, Any]]] = {
    e.info.id: e for e in sorted((*WARM_STARTS.values(), *_OTHERS), key=lambda e: e.info.id)
}


def find(name: str) -> type[Estimator[Any, Any]]:
    """Return the class with this id. ValueError names the default, and the nearest id or all."""
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    known = meant(nearest(name, ESTIMATORS)) or f"; known: {', '.join(sorted(ESTIMATORS))}"
    raise ValueError(f"no estimator {name!r} (the default is {DEFAULT_ESTIMATOR}){known}")
