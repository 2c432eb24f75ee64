"""Reports for tests of estimators that learn from them, with noise of utility randomness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.registry import find
from streaming_pca.linalg.packed import pack_symmetric
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.randomness import utility_generator
from tests.estimators.suite import made

LENGTH = 0.9
"""Length of every record from :func:`records_on`."""


def local(name: str, dim: int, k: int, *, epsilon: float = 8.0, **more: Any) -> Any:
    return made(find(name), dim, k, RecordKind.LOCAL, epsilon=epsilon, **more)


def records_on(n: int, dim: int, k: int, s: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], list[int]]:
    """Return records in a random subspace of s features, the subspace's rows, and the features.

    Their second moment is LENGTH^2/k on the subspace, up to sampling: the gap.
    """
    rng = utility_generator(seed)
    features = np.sort(rng.choice(dim, s, replace=False))
    rows = np.zeros((k, dim))
    rows[:, features] = orthonormalise(rng.standard_normal((s, k))).T
    x = rng.standard_normal((n, k)) @ rows
    return LENGTH * x / np.linalg.norm(x, axis=1)[:, None], rows, features.tolist()


def reports_of(x: NDArray[Any], sigma: float, seed: int) -> ArrayBatch:
    """Return the reports that producers would send, in float32."""
    rng = utility_generator(seed)
    n, d = x.shape
    noise = np.float32(sigma) * rng.standard_normal((n, d * (d + 1) // 2), dtype=np.float32)
    exact = pack_symmetric(x[:, :, None] * x[:, None, :]).astype(np.float32)
    return ArrayBatch(exact + noise, np.arange(n + 1), RecordKind.LOCAL)


def learnt(estimator: Any, *batches: ArrayBatch) -> Any:
    state = estimator.init(utility_generator(0))
    for batch in batches:
        state = estimator.update(state, batch)
    return state


def noisy_means(
    estimator: Any, matrix: NDArray[Any], times: int, seed: int
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield states for this mean with noise of deviation 1, their releases, and the variances along these."""
    rng, n = utility_generator(seed), round(estimator.sigma**2)
    for _ in range(times):
        noise = np.triu(rng.standard_normal(matrix.shape))
        total = n * pack_symmetric(matrix + noise + np.triu(noise, 1).T)
        state = estimator._solved(replace(estimator.init(rng), total=total, reports=n))
        release = estimator.release(state)
        yield state, release, np.einsum("ki,ij,kj->k", release.components, matrix, release.components)
