"""Rounded directions and their products are exact integers, however BLAS adds them up."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from numba.core.errors import TypingError

from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.block.variances import _Layers
from streaming_pca.estimators.common.centre import MeanNorms, _MeanSum
from streaming_pca.estimators.common.clipped_sums import block_residual_norms
from streaming_pca.estimators.common.residual_sums import NO_CENTRE
from streaming_pca.estimators.record_reader import RecordReader
from streaming_pca.kernels.blas import dgemm_address, multiply
from streaming_pca.kernels.block.chunks import Chunk, fill_chunk, grid, new_chunk, product_squared
from streaming_pca.kernels.lattice import RADIUS
from streaming_pca.kernels.reading import NO_MAP


def filled(records: list[np.ndarray], columns: np.ndarray, k: int) -> tuple[Chunk, int]:
    d = len(columns)
    batch = ArrayBatch.of_records(records, d)
    read = RecordReader(Preprocessing(dim=d, centering="none")).read(batch)
    chunk = new_chunk(d, k, columns.shape[1], read.longest)
    end, count = fill_chunk(read, 0, len(records), NO_MAP, columns, NO_CENTRE, 1.0, dgemm_address(), chunk)
    assert end == len(records)
    return chunk, count


@pytest.mark.parametrize("d", [1, 7, 256, 5000])
def test_products_are_the_exact_ones(d: int) -> None:
    """These are the longest directions and columns possible: all entries alike, and of one sign."""
    rng = np.random.default_rng(d)
    k = min(d, 3)
    alike = np.full((d, k), math.sqrt(1.01 / d))
    for columns in (grid(np.linalg.qr(rng.standard_normal((d, k)))[0]), grid(alike)):
        records = [np.ones((1, d)), rng.standard_normal((4, d)), rng.choice([-1.0, 1.0], (1, d)) * 1e300]
        chunk, count = filled(records, columns, k)
        assert count == 3
        scaled = np.ldexp(columns, 30).astype(np.int64).astype(object)
        z = chunk.z[:6].astype(np.int64).astype(object)
        assert np.array_equal(np.ldexp(chunk.y[:6], 30).astype(np.int64).astype(object), z @ scaled)
        # A sum of magnitudes bounds every partial sum, in any order.
        assert np.max(np.abs(z) @ np.abs(scaled)) < 2**53
        for n, (a, b) in enumerate(((0, 1), (1, 5), (5, 6))):
            assert chunk.terms[2, n] == np.sum(z[a:b] ** 2) <= (RADIUS + math.sqrt(4 * d) / 2) ** 2


def test_the_square_of_a_product_is_rounded_up() -> None:
    rng = np.random.default_rng(0)
    chunk, _ = filled([rng.standard_normal((5, 40))], grid(np.linalg.qr(rng.standard_normal((40, 4)))[0]), 4)
    chunk.u[:5] = rng.integers(-(2**22), 2**22, (5, 4))
    found = product_squared(chunk, 0, dgemm_address())
    z, u = (values[:5].astype(np.int64).astype(object) for values in (chunk.z, chunk.u))
    exact = np.sum((z.T @ u) ** 2)
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**40))


def test_null_records_take_no_place() -> None:
    records = [np.zeros((1, 3)), np.zeros((0, 3)), np.array([[0.0, 1e-300, 0.0]]), np.zeros((2, 3))]
    chunk, count = filled(records, grid(np.eye(3)), 3)
    assert (count, chunk.places[0]) == (1, 2)
    assert chunk.z[0].tolist() == [0.0, RADIUS, 0.0]


def test_what_blas_would_read_wrongly_is_refused() -> None:
    """Kernels are compiled for neither single-precision numbers nor another memory order."""
    d, k = 6, 2
    right = np.zeros((4, d)), np.zeros((d, k)), np.zeros((4, k))
    multiply(dgemm_address(), right[0], 4, *right[1:])
    for place in range(3):
        for wrong in (right[place].astype(np.float32), np.asfortranarray(right[place]), right[place][0]):
            rows, columns, out = (*right[:place], wrong, *right[place + 1 :])
            with pytest.raises(TypingError):
                multiply(dgemm_address(), rows, 4, columns, out)


def test_shapes_and_lengths_that_kernels_trust_are_checked() -> None:
    p = Preprocessing(dim=4, centering="none")
    batch = ArrayBatch.of_vectors(np.ones((3, 4)))
    basis = np.eye(4)[:, :2]
    for q, c in ((basis, basis[:, :1]), (basis * 30, basis), (basis, basis * math.nan)):
        with pytest.raises(ValueError, match="basis"):
            block_residual_norms(batch, p, q, c)
    with pytest.raises(ValueError, match="caps"):
        _Layers(p, basis.T, np.ones((3, 1)))
    with pytest.raises(ValueError, match="basis"):
        _Layers(p, basis.T * 2, np.ones((3, 3)))
    pairs = Preprocessing(dim=4, centering="pairs")
    for make in (MeanNorms, partial(_MeanSum, per_unit=1.0)):
        with pytest.raises(ValueError, match="pairs"):
            make(pairs)
    # A single-precision basis is converted to double precision.
    norms = value_array(
        block_residual_norms(batch, p, basis.astype(np.float32), 0 * basis.astype(np.float32))
    )
    np.testing.assert_allclose(norms, 2 * math.sqrt(2), rtol=1e-5)
