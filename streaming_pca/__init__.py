"""Differentially private streaming PCA over Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_pca.api import PrivatePCA

__all__ = ["PrivatePCA", "__version__"]

__version__ = "0.6.0"


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: commands and producers need no scikit-learn.
    if name == "PrivatePCA":
        from streaming_pca.api import PrivatePCA

        return PrivatePCA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
