"""Privacy mechanisms: the only code that adds noise.

A mechanism takes exact integers and draws through the noise sampler. Every later step is post-processing.
Adjacency is replace-one throughout: one record of the input is replaced by another, or by the null record.

A parameter out of its range is a :class:`~streaming_pca.privacy.errors.ParameterError`. Errors are about
public parameters, types and shapes, never about values that depend on records.
"""

from streaming_pca.privacy.mechanisms.gaussian import (
    gaussian_on_message,
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
    secret_permutation,
)
from streaming_pca.privacy.mechanisms.histogram import (
    gaussian_modes,
    gaussian_modes_threshold,
    stability_histogram,
    stability_threshold,
)
from streaming_pca.privacy.mechanisms.pure import AboveThreshold, laplace_on_vector, laplace_scale

__all__ = [
    "AboveThreshold",
    "gaussian_modes",
    "gaussian_modes_threshold",
    "gaussian_on_message",
    "gaussian_on_symmetric",
    "gaussian_on_symmetric_space",
    "gaussian_on_vector",
    "laplace_on_vector",
    "laplace_scale",
    "secret_permutation",
    "stability_histogram",
    "stability_threshold",
]
