"""Upper triangles and their symmetric matrices."""

from __future__ import annotations

import numpy as np
import pytest

from streaming_pca.linalg.packed import dim_of_packed, pack_symmetric, packed_size, unpack_symmetric
from tests.data.refusals import refuses


def symmetric(*shape: int) -> np.ndarray:
    a = np.arange(float(np.prod(shape))).reshape(shape)
    return a + np.swapaxes(a, -1, -2)


def test_the_order_is_row_by_row() -> None:
    matrix = np.array([[1, 2, 3], [2, 4, 5], [3, 5, 6]])
    np.testing.assert_array_equal(pack_symmetric(matrix), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(unpack_symmetric(np.arange(1, 7), 3), matrix)


def test_only_the_upper_triangle_is_read() -> None:
    np.testing.assert_array_equal(pack_symmetric(np.array([[1, 2], [np.nan, 3]])), [1, 2, 3])


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 4), (0, 2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_what_is_packed_is_unpacked(shape: tuple[int, ...], dtype: type) -> None:
    matrix = symmetric(*shape).astype(dtype)
    packed = pack_symmetric(matrix)
    assert packed.shape == (*shape[:-2], packed_size(shape[-1]))
    assert packed.dtype == dtype
    upper = np.triu_indices(shape[-1])
    np.testing.assert_array_equal(packed, matrix[..., upper[0], upper[1]])
    back = unpack_symmetric(packed, shape[-1])
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, matrix)


def test_the_size_tells_the_order() -> None:
    sizes = {packed_size(d): d for d in [*range(1, 200), 2000, 2**13, 2**40]}
    assert all(dim_of_packed(n) == d for n, d in sizes.items())
    for size in set(range(-3, 2000)) - sizes.keys():
        refuses(f"{size} numbers are not the upper triangle of a matrix", dim_of_packed, size)


def test_other_shapes_are_refused() -> None:
    for shape in ((2, 3), (4,), (2, 2, 2, 2), (0, 0)):
        refuses("expected square matrices", pack_symmetric, np.zeros(shape))
    refuses("of a matrix of 2, not 3", unpack_symmetric, np.zeros(3), 3)
    refuses("are not the upper triangle of a matrix", unpack_symmetric, np.zeros((2, 4)))
    refuses("expected upper triangles", unpack_symmetric, np.zeros((1, 1, 3)))
