"""Tiles against exact integers: what norms and products may be off by, up to 20,000 features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.kernels.block import terms as product_terms
from streaming_pca.kernels.block import tiles
from streaming_pca.kernels.block.terms import new_sums
from streaming_pca.kernels.block.tiles import (
    Frame,
    Tile,
    fill_products,
    frame_of,
    longest_column,
    longest_record,
    new_tile,
    put_records,
)
from streaming_pca.kernels.lattice import RADIUS
from streaming_pca.kernels.vectors import LANES

Array = NDArray[Any]
V = 2.0**-24


def filled(x: Array, columns: Array) -> tuple[Frame, Tile, Array]:
    """A tile of one-row records, with their products; and z as a matrix."""
    frame = frame_of(columns, columns.shape[1])
    tile = new_tile(frame, 1)
    n = len(x)
    assert n <= tile.rows
    tile.begins[: n + 1] = np.arange(n + 1)
    tile.offsets[:n] = np.arange(n) * x.shape[1]
    put_records(np.ascontiguousarray(x), tile, n)
    fill_products(tile, frame, n)
    return frame, tile, rows_of(tile, frame)[:n, : frame.d]


def rows_of(tile: Tile, frame: Frame) -> Array:
    strips = tile.z.reshape(frame.strips, tile.rows + 1, LANES)[:, : tile.rows]
    return strips.transpose(1, 0, 2).reshape(tile.rows, -1).astype(np.float64)


def products_of(tile: Tile, frame: Frame) -> Array:
    return tile.y.reshape(frame.columns, tile.rows).T


def exact_products(z: Array, column: Array) -> list[float]:
    """Integers below 2**24 times float64: exact in two parts, added without rounding."""
    high = column.astype(np.float32).astype(np.float64)
    low = column - high
    return [math.fsum([*(row * high), *(row * low)]) for row in z]


def hard_rows(d: int) -> Array:
    """Random ones, and those of which all entries are alike: every step of a chain rounds alike."""
    rng = np.random.default_rng(d)
    alike = np.repeat(1 + rng.random((24, 1)), d, axis=1)
    few = np.where(np.arange(d) % 64 == rng.integers(0, 64), 1.0, rng.random((8, 1)) * 1e-2)
    return np.concatenate([rng.standard_normal((8, d)), alike, few, alike * rng.choice([-1, 1], d)])


@pytest.mark.parametrize("d", [1, 16, 17, 100, 1024, 5000, 20_000])
def test_norms_are_within_the_stated_error(d: int) -> None:
    rows = hard_rows(d)
    frame, tile, z = filled(rows, np.ones((d, 1)))
    assert np.array_equal(z, np.rint(z))
    assert np.abs(z).max() < 2**24
    strips = frame.strips
    worst = 0.0
    for i, row in enumerate(z):
        exact = sum(int(v) ** 2 for v in row)
        assert exact <= (RADIUS + math.sqrt(d) / 2 + RADIUS * (strips / 4 + 8) * V) ** 2
        worst = max(worst, abs(tile.squares[i] / exact - 1))
        # Twice what is stated is added, so that it is no smaller than the truth.
        assert exact <= tile.squares[i] * frame.norm_margin
    assert worst <= (strips / 4 + 4) * V
    assert frame.norm_margin - 1 >= 2 * (strips / 4 + 4) * V
    if d >= 5000:
        # All roundings the same way come near to it: the error that is allowed for is there.
        assert worst >= (strips / 4) * V / 16


@pytest.mark.parametrize("d", [1, 16, 17, 100, 600, 1024, 5000, 20_000])
def test_products_are_within_the_stated_error(d: int) -> None:
    rng = np.random.default_rng(d)
    rows = hard_rows(d)
    columns = np.stack(
        [
            rng.standard_normal(d),
            np.full(d, 1 / 3),
            np.sign(rng.standard_normal(d)) * 1.1,
            # A third of a cell of float32: rounding the column has its say.
            np.full(d, 1 + 2.0**-24 - 2.0**-40),
            np.where(rng.random(d) < 0.5, 1e3, 1e-3),
        ],
        axis=1,
    )
    columns /= np.linalg.norm(columns, axis=0)
    frame, tile, z = filled(rows, columns)
    found = products_of(tile, frame)[: len(rows)]
    worst = 0.0
    for c in range(columns.shape[1]):
        for i, exact in enumerate(exact_products(z, columns[:, c])):
            # As stated: relative to the sum of the products' magnitudes, with the rounding of the column.
            magnitude = float(np.abs(z[i]) @ np.abs(columns[:, c]))
            off = abs(found[i, c] - exact)
            assert off <= (min(frame.strips, 32) + 5) * V * magnitude * (1 + 1e-3)
            worst = max(worst, off / np.linalg.norm(z[i]) / np.linalg.norm(columns[:, c]))
    assert 2 * worst <= frame.product_error
    if d >= 600:
        assert worst >= frame.product_error / 64


@pytest.mark.parametrize("r", [1, 2, 7, 63, 64, 65, 128, 300])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (17, 3), (64, 13), (100, 40)])
def test_the_length_of_a_product_is_not_understated(r: int, d: int, k: int) -> None:
    """Nor the product itself anything but exact, in an odd place of its tile."""
    rng = np.random.default_rng(r + 1000 * d)
    k = min(k, d)
    columns = np.linalg.qr(rng.standard_normal((d, k)))[0]
    for cancelling in (False, True):
        x = rng.standard_normal((r, d))
        if cancelling and r > 1:
            # z^T u of few rows is far shorter than |z| |u|.
            x[1::2] = -x[: r // 2 * 2 : 2] * 1e-3
            x[0] -= columns @ (columns.T @ x[0]) * (1 - 1e-6)
        frame = frame_of(columns, k)
        first = 3
        tile = new_tile(frame, r + first)
        sums = new_sums(frame, tile)
        tile.begins[: first + 2] = [*range(first + 1), first + r]
        tile.offsets[: first + r] = [0] * first + [i * d for i in range(r)]
        put_records(x, tile, first + 1)
        fill_products(tile, frame, first + r)
        u = np.rint(products_of(tile, frame)[first : first + r, :k] * 3.7)
        for c in range(k):
            place, step = product_terms.place_of_u(c, tile, frame)
            sums.u[place + first * step : place + (first + r) * step : step] = u[:, c]
        found = product_terms.product_squared(tile, frame, sums, first, first + r)
        z = rows_of(tile, frame)[first : first + r, :d]
        products = z.astype(np.int64).astype(object).T @ u.astype(np.int64).astype(object)
        own = sums.own.reshape(frame.strips, -1, LANES).transpose(1, 0, 2).reshape(-1, frame.strips * LANES)
        assert np.array_equal(own[:k, :d].T, products.astype(np.float64))
        assert not own[:, d:].any()
        assert not own[k:].any()
        exact = sum(int(v) ** 2 for v in products.ravel())
        assert exact <= found <= exact * (1 + 4 * (len(sums.own) + 8) * 2.0**-52)


def test_a_tile_has_room_for_the_longest_record() -> None:
    for d in (1, 200, 10_000, 10**6):
        for longest in (1, 64, 65, 1000):
            rows = tiles.tile_rows(d, longest)
            assert rows >= longest
            assert rows % 8 == 0
    assert tiles.tile_rows(10**6, 1) * 10**6 <= 2**26


@given(st.integers(0, 6), st.integers(0, 12), st.data())
def test_records_of_other_rows_than_there_are_are_told(m: int, rows: int, data: st.DataObject) -> None:
    extreme = st.one_of(st.integers(-2, 15), st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63)]))
    lengths = data.draw(st.lists(st.integers(-1, 5), min_size=m, max_size=m))
    begins = np.array(data.draw(st.lists(extreme, min_size=m, max_size=m)), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    found = longest_record(begins, starts, rows)
    fitting = all(n >= 0 and a >= 0 and a + n <= rows for a, n in zip(begins.tolist(), lengths, strict=True))
    assert found == (max([1, *lengths]) if fitting else -1)


def test_starts_say_where_each_record_ends() -> None:
    assert longest_record(np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), 5) == -1
    # Differences that wrap around are no lengths.
    wide = np.array([-(2**63), 2**63 - 1], dtype=np.int64)
    assert longest_record(np.zeros(1, dtype=np.int64), wide, 5) == -1


def test_the_longest_column() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 3))
    assert longest_column(x) == pytest.approx(float((x * x).sum(axis=0).max()))
    assert longest_column(np.zeros((0, 2))) == 0.0
    for bad in (np.nan, np.inf, 1e200):
        for c in range(3):
            y = x.copy()
            y[4, c] = bad
            assert not longest_column(y) <= 1.01
