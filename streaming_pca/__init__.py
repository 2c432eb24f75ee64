"""Differentially private streaming PCA over Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_pca.api import BudgetAccountant, BudgetError, FeatureMap, PrivatePCA
    from streaming_pca.estimators.warnings import DoubtfulResultWarning

__all__ = [
    "BudgetAccountant",
    "BudgetError",
    "DoubtfulResultWarning",
    "FeatureMap",
    "PrivatePCA",
    "__version__",
]

__version__ = "0.6.0"


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: commands and producers need no scikit-learn.
    if name in ("BudgetAccountant", "BudgetError", "FeatureMap", "PrivatePCA"):
        from streaming_pca import api

        return getattr(api, name)
    if name == "DoubtfulResultWarning":
        from streaming_pca.estimators.warnings import DoubtfulResultWarning

        return DoubtfulResultWarning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
