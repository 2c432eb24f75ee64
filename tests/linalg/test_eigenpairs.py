"""Leading eigenpairs agree with a full decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy
from scipy.linalg import LinAlgError

from streaming_pca.linalg.subspace import leading_eigenpairs, orthonormalise


@pytest.mark.parametrize(("m", "count"), [(1, 1), (5, 2), (64, 3), (90, 1), (90, 7), (90, 90)])
def test_they_are_the_leading_ones(m: int, count: int) -> None:
    rng = np.random.default_rng(m)
    given = np.sort(rng.standard_normal(m))[::-1]
    basis = orthonormalise(rng.standard_normal((m, m)))
    matrix = (basis * given) @ basis.T
    values, vectors = leading_eigenpairs((matrix + matrix.T) / 2, count)
    np.testing.assert_allclose(values, given[:count], atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(vectors * basis[:, :count], axis=0)), 1, atol=1e-8)


@pytest.mark.parametrize("m", [30, 300])
def test_equal_eigenvalues_have_orthonormal_vectors(m: int) -> None:
    basis = orthonormalise(np.random.default_rng(0).standard_normal((m, 20)))
    values, vectors = leading_eigenpairs(basis @ basis.T, 25)
    np.testing.assert_allclose(values, [1] * 20 + [0] * 5, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(25), atol=1e-12)


def test_where_one_routine_gives_up_the_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*_: Any, **__: Any) -> Any:
        raise LinAlgError("Internal Error.")

    matrix = np.diag(np.arange(100.0))
    monkeypatch.setattr(scipy.linalg, "eigh", gives_up)
    values, vectors = leading_eigenpairs(matrix, 2)
    assert values.tolist() == [99, 98]
    assert np.abs(vectors[[99, 98], [0, 1]]).tolist() == [1, 1]
