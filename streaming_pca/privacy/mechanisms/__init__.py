"""Privacy mechanisms: the only code that adds noise.

A mechanism takes exact integers, or one number a record and uses only their
order, and draws through the noise sampler. Every later step is
post-processing. Adjacency is replace-one throughout: one
record of the input is replaced by another, or by the null record.

Errors are about public parameters, types and shapes, never about values that
depend on records.

:mod:`~streaming_pca.privacy.mechanisms.modes` is imported at first use: it is compiled,
and a producer of reports does not need the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streaming_pca.privacy.mechanisms.gaussian import (
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
)
from streaming_pca.privacy.mechanisms.histogram import (
    gaussian_histogram,
    gaussian_histogram_argmax,
    laplace_histogram,
    stability_histogram,
    stability_threshold,
)
from streaming_pca.privacy.mechanisms.laplace import laplace_on_vector, laplace_scale
from streaming_pca.privacy.mechanisms.quantile import private_quantile
from streaming_pca.privacy.mechanisms.shuffled import gaussian_on_message, secret_permutation
from streaming_pca.privacy.mechanisms.threshold import AboveThreshold, AlreadyFired

if TYPE_CHECKING:
    from streaming_pca.privacy.mechanisms.modes import (
        gaussian_modes,
        gaussian_modes_threshold,
        stability_modes,
    )

__all__ = [
    "AboveThreshold",
    "AlreadyFired",
    "gaussian_histogram",
    "gaussian_histogram_argmax",
    "gaussian_modes",
    "gaussian_modes_threshold",
    "gaussian_on_message",
    "gaussian_on_symmetric",
    "gaussian_on_symmetric_space",
    "gaussian_on_vector",
    "laplace_histogram",
    "laplace_on_vector",
    "laplace_scale",
    "private_quantile",
    "secret_permutation",
    "stability_histogram",
    "stability_modes",
    "stability_threshold",
]

_COMPILED = frozenset({"gaussian_modes", "gaussian_modes_threshold", "stability_modes"})


def __getattr__(name: str) -> Any:
    if name in _COMPILED:
        from streaming_pca.privacy.mechanisms import modes

        return getattr(modes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
