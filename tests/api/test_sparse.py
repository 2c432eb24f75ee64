"""Sparse rows give the same bits as dense ones with less memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from streaming_pca import PrivatePCA
from streaming_pca.data import array_batch
from streaming_pca.data.array_batch import ArrayBatch, SparseBatch
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import CASES, QUIET, RepeatingSampler
from tests.data.refusals import refuses
from tests.threads import limited_threads


def sparse_rows(m: int, d: int = 8, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.3) * np.linspace(0.5, 0.05, d)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_batch, "_BLOCK_ENTRIES", 2**9)
    monkeypatch.setattr(array_batch, "_LEAST_ROWS", 4)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("parameters", (CASES | QUIET).values(), ids=CASES | QUIET)
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix])
def test_sparse_rows_give_the_bits_of_dense_rows(kind: Any, parameters: dict[str, Any]) -> None:
    X, more = sparse_rows(1001).astype(np.float32), sparse_rows(301, seed=1).astype(np.float32)
    found = []
    for given, other in ((X, more), (kind(X), kind(more))):
        with replace_noise_sampler(RepeatingSampler()):
            pca = PrivatePCA(**parameters, random_state=1).fit(given).partial_fit(other)
        found.append(encode_state(pca._state))
        assert pca.n_features_in_ == 8
    assert found[0] == found[1]


NAMES = ("csr_array", "csr_matrix", "csc_array", "coo_array", "lil_matrix", "dok_array", "bsr_matrix")
FORMATS = [getattr(sp, name) for name in NAMES]


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("whiten", [False, True])
def test_functions_of_rows_take_every_format(kind: Callable[[Any], Any], whiten: bool) -> None:
    X = sparse_rows(300)
    pca = PrivatePCA(2, scale=2.0, bounds=(-0.4, 1.0), epsilon=20, whiten=whiten).fit(X)
    np.testing.assert_allclose(pca.transform(kind(X)), pca.transform(X), atol=1e-12)
    np.testing.assert_allclose(pca.score_samples(kind(X)), pca.score_samples(X), rtol=1e-12)
    assert pca.transform(kind(X.astype(np.float32))).dtype == np.float32
    assert pca.transform(kind(np.zeros((3, 8)))).shape == (3, 2)


def test_entries_of_one_place_add_up_and_the_given_matrix_stays() -> None:
    twice = sp.csr_matrix((np.array([1e308, 1e308, 2.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), (2, 3))
    refuses("infinity", PrivatePCA(1).fit, twice)
    assert twice.nnz == 3
    twice.data[:] = [0.25, 0.5, 2.0]
    pca = PrivatePCA(1).fit(np.eye(3))
    assert np.array_equal(pca.transform(twice), pca.transform(twice.toarray()))


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (sp.csr_array(np.array([[np.nan, 1.0], [0.0, 1.0]])), "NaN"),
        (sp.csr_array((0, 4)), "0 sample"),
        (sp.csr_array(np.eye(1, 4)), "minimum of 2"),
        (sp.csr_array(np.eye(4) * 1j), "omplex"),
    ],
)
def test_bad_sparse_rows_are_refused(X: Any, words: str) -> None:
    pca = PrivatePCA(2)
    refuses(words, pca.fit, X)
    assert not hasattr(pca, "privacy_spent_")


def test_memory_is_that_of_a_few_blocks() -> None:
    # As a dense array the rows would take 80 MB.
    X = sp.random_array((10_000, 1000), density=0.002, rng=0, format="csr")
    pca = PrivatePCA(2, estimator="block", bounds=(0, 1))
    pca.fit(X[:100])
    tracemalloc.start()
    try:
        with limited_threads(2):
            pca.fit(X)
        pca.transform(X)
        pca.score_samples(X)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48e6


def test_a_batch_of_no_records_is_a_batch() -> None:
    empty = SparseBatch.of_rows(sp.csr_array((0, 3)))
    assert [len(part) for part in empty.dense_parts()] == [0]
    chosen = SparseBatch.of_rows(sp.csr_array(np.eye(3))).only(np.array([True, False, True]))
    assert np.array_equal(chosen.packed().rows, np.eye(3)[[0, 2]])
    assert type(chosen.copy().packed()) is ArrayBatch
