"""Vector instructions against exact fractions, number for number: their order, their reach, their tails."""

from __future__ import annotations

import ctypes
import mmap
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.strip_products import (
    COLUMNS,
    MIXED,
    MOST_COLUMNS,
    ROWS,
    add_dots,
    add_products,
    mix_columns,
    square_sum,
)
from streaming_pca.kernels.block.strips import round_row, scale_row, squared_norm
from streaming_pca.kernels.vectors import LANES
from tests.kernels.exact_floats import Numbers, fma, halved, nearest, times

DIMS = [1, 15, 16, 17, 31, 64, 65, 100, 200]
SINGLE, DOUBLE = np.float32, np.float64
BOTH = pytest.mark.parametrize("kind", [SINGLE, DOUBLE])
UNTOUCHED = 7.25
Array = NDArray[Any]


@njit()
def _squared_norm(x, x0, d):  # type: ignore[no-untyped-def]
    return squared_norm(x, x0, d)


@njit()
def _round_row(x, x0, d, scale, z, z0, stride):  # type: ignore[no-untyped-def]
    return round_row(x, x0, d, scale, z, z0, stride)


@njit()
def _scale_row(x, x0, d, scale, z, z0, stride):  # type: ignore[no-untyped-def]
    return scale_row(x, x0, d, scale, z, z0, stride)


@njit()
def _add_dots(z, z0, z_stride, q, q0, columns, strips, y, y0, y_stride):  # type: ignore[no-untyped-def]
    # What is fetched ahead may be anywhere.
    add_dots(z, z0, z_stride, q, q0, columns, strips, y, y0, y_stride, 10**15)


@njit()
def _add_products(z, z0, u, u0, columns, count, s, s0, s_stride):  # type: ignore[no-untyped-def]
    add_products(z, z0, u, u0, columns, count, s, s0, s_stride, u, -(10**15))


@njit()
def _mix_columns(y, y0, y_stride, mix, m0, m_stride, columns, o, o0, o_stride):  # type: ignore[no-untyped-def]
    mix_columns(y, y0, y_stride, mix, m0, m_stride, columns, o, o0, o_stride)


@njit()
def _square_sum(x, x0, n):  # type: ignore[no-untyped-def]
    return square_sum(x, x0, n)


def spread(rng: np.random.Generator, size: Any, octaves: float = 6) -> Array:
    """Numbers of many magnitudes, so that another order gives other bits."""
    return rng.standard_normal(size) * 2.0 ** rng.uniform(-octaves, octaves, size)


def squares_of(entries: Numbers) -> float:
    """What the kernels make of a row: four chains a lane in float32, and a tree in float64."""
    d = len(entries)
    whole = d // LANES
    turned = whole // 4 * 4
    chains = [[0.0] * LANES for _ in range(4)]
    for place, v in enumerate(entries):
        strip, lane = divmod(place, LANES)
        chain = strip % 4 if strip < turned else 0 if strip < whole else 1
        chains[chain][lane] = fma(v, v, chains[chain][lane], SINGLE)
    lanes = [(a + b) + (c + e) for a, b, c, e in zip(*chains, strict=True)]
    return halved(lanes, DOUBLE)


def test_the_judge_rounds_as_numpy_does() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([spread(rng, 300, 120), 2.0 ** np.arange(-150.0, -120)])
    x = np.concatenate([x, x + np.spacing(x.astype(SINGLE)).astype(DOUBLE) / 2, [3.4028236e38, 1e39]])
    with np.errstate(over="ignore", under="ignore"):
        wanted = x.astype(SINGLE).tolist()
    assert [nearest(Fraction(v), SINGLE) for v in x.tolist()] == wanted
    third = Fraction(1, 3)
    assert nearest(third, DOUBLE) == 1 / 3
    assert nearest(third * Fraction(2) ** -1074, DOUBLE) == 0.0


@BOTH
@pytest.mark.parametrize("d", DIMS)
def test_a_squared_norm_is_summed_in_its_order(d: int, kind: Any) -> None:
    rng = np.random.default_rng(d)
    for offset in (0, 1, 7, 16):
        x = np.full(offset + d + LANES, np.nan, dtype=kind)
        x[offset : offset + d] = spread(rng, d)
        entries = x[offset : offset + d].astype(SINGLE).tolist()
        assert _squared_norm(x, offset, d) == squares_of(entries)


@BOTH
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("d", DIMS)
def test_a_row_is_scaled_and_rounded_once_and_written_in_its_strips_alone(
    d: int, rounded: bool, kind: Any
) -> None:
    rng = np.random.default_rng(d)
    strips = -(-d // LANES)
    put = _round_row if rounded else _scale_row
    for offset, rows, place in ((0, 1, 0), (3, 5, 2), (16, 9, 8)):
        # Odd multiples of 1/2 among them, which are rounded to even numbers.
        values = np.where(rng.random(d) < 0.5, spread(rng, d, 20), rng.integers(-9, 9, d) + 0.5)
        scale = float(SINGLE(rng.choice([1.0, 8.0, 1e5 / 3])))
        x = np.full(offset + d + LANES, np.nan, dtype=kind)
        x[offset : offset + d] = values
        stride = rows * LANES
        z = np.full(strips * stride + LANES, UNTOUCHED, dtype=SINGLE)
        found = put(x, offset, d, scale, z, place * LANES, stride)
        # Where a float64 is no float32 its product is rounded to float64 first.
        products = [times(v, scale, kind) for v in x[offset : offset + d].tolist()]
        entries = [nearest(Fraction(v), SINGLE) for v in products]
        entries = [float(round(v)) for v in entries] if rounded else entries
        wanted = np.full_like(z, UNTOUCHED)
        for strip in range(strips):
            first = strip * stride + place * LANES
            some = entries[strip * LANES : (strip + 1) * LANES]
            wanted[first : first + LANES] = some + [0.0] * (LANES - len(some))
        assert np.array_equal(z, wanted)
        assert found == squares_of(entries)


@pytest.mark.parametrize("d", DIMS)
def test_float32_and_float64_of_the_same_values_have_the_same_bits(d: int) -> None:
    """Small and large ones, too, whose squares vanish or overflow."""
    rng = np.random.default_rng(d)
    for octaves in (3, 60, 140):
        with np.errstate(over="ignore"):
            single = spread(rng, d, octaves).astype(SINGLE)
        found = []
        for x in (single, single.astype(DOUBLE)):
            z = np.zeros(-(-d // LANES) * LANES, dtype=SINGLE)
            norm = _squared_norm(x, 0, d)
            square = _round_row(x, 0, d, float(SINGLE(12345.67)), z, 0, LANES)
            scaled = np.zeros_like(z)
            other = _scale_row(x, 0, d, float(SINGLE(1e-3)), scaled, 0, LANES)
            found.append(np.array([norm, square, other]).tobytes() + z.tobytes() + scaled.tobytes())
        assert found[0] == found[1]


@pytest.fixture
def last_page() -> Any:
    """Bytes right before memory that nobody may read."""
    size = mmap.PAGESIZE
    room = mmap.mmap(-1, 2 * size)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mprotect"):
        pytest.skip("no mprotect")
    view = (ctypes.c_char * (2 * size)).from_buffer(room)
    behind = ctypes.c_void_p(ctypes.addressof(view) + size)
    assert libc.mprotect(behind, ctypes.c_size_t(size), 0) == 0
    yield np.frombuffer(room, dtype=np.uint8)[:size]
    assert libc.mprotect(behind, ctypes.c_size_t(size), 3) == 0


@BOTH
def test_nothing_behind_a_row_is_read(kind: Any, last_page: Array) -> None:
    """The process would end here."""
    rng = np.random.default_rng(0)
    for d in range(1, 40):
        row = last_page[-d * np.dtype(kind).itemsize :].view(kind)
        row[:] = rng.standard_normal(d)
        z = np.zeros(-(-d // LANES) * LANES, dtype=SINGLE)
        assert _squared_norm(row, 0, d) == squares_of(row.astype(SINGLE).tolist())
        _round_row(row, 0, d, 1000.0, z, 0, LANES)
        assert np.array_equal(z[:d], np.rint((kind(1000) * row).astype(SINGLE)))
        _scale_row(row, 0, d, 1.0, z, 0, LANES)
        assert np.array_equal(z[:d], row.astype(SINGLE))


@pytest.mark.parametrize("columns", range(1, COLUMNS + 2))
@pytest.mark.parametrize("strips", [1, 2, 5, 32])
def test_dots_are_chains_in_lanes_and_a_tree(strips: int, columns: int) -> None:
    """Each row's and column's product is summed alike, wherever the two stand."""
    rng = np.random.default_rng(strips)
    rows = 11
    z = spread(rng, strips * rows * LANES + 3).astype(SINGLE)
    q = spread(rng, strips * columns * LANES + 5).astype(SINGLE)
    z0, q0, y0, stride = 3 + 2 * LANES, 5, 4, 13
    before = spread(rng, 80)
    y = before.copy()
    _add_dots(z, z0, rows * LANES, q, q0, columns, strips, y, y0, stride)
    wanted = before.copy()
    for c in range(columns if columns <= COLUMNS else 0):
        for i in range(ROWS):
            lanes = [0.0] * LANES
            for s in range(strips):
                a, b = z0 + s * rows * LANES + i * LANES, q0 + s * columns * LANES + c * LANES
                lanes = [fma(float(z[a + j]), float(q[b + j]), lanes[j], SINGLE) for j in range(LANES)]
            wanted[y0 + c * stride + i] += halved(lanes, SINGLE)
    assert np.array_equal(y, wanted)


def test_no_strips_add_nothing() -> None:
    y = np.arange(40.0)
    _add_dots(np.ones(200, SINGLE), 0, 16, np.ones(64, SINGLE), 0, 2, 0, y, 0, 8)
    assert np.array_equal(y, np.arange(40.0))
    assert _square_sum(y, 0, 0) == 0.0


@pytest.mark.parametrize("columns", range(1, MOST_COLUMNS + 2))
@pytest.mark.parametrize("count", [0, 1, 6])
def test_products_are_added_row_by_row(columns: int, count: int) -> None:
    rng = np.random.default_rng(columns)
    z = spread(rng, (count + 2) * LANES + 3).astype(SINGLE)
    u = spread(rng, 5 + count * columns + 3)
    stride = 2 * LANES + 1
    before = spread(rng, 7 + columns * stride)
    s = before.copy()
    _add_products(z, 3 + LANES, u, 5, columns, count, s, 7, stride)
    wanted = before.copy()
    for c in range(columns if columns <= MOST_COLUMNS else 0):
        for lane in range(LANES):
            place = 7 + c * stride + lane
            for i in range(count):
                a = float(z[3 + LANES + i * LANES + lane])
                wanted[place] = fma(a, float(u[5 + i * columns + c]), wanted[place], DOUBLE)
    assert np.array_equal(s, wanted)


@pytest.mark.parametrize("columns", [0, 1, 7])
def test_mixed_columns_are_chains(columns: int) -> None:
    rng = np.random.default_rng(columns)
    y, mix = spread(rng, 3 + columns * 11 + ROWS), spread(rng, 2 + columns * 6 + MIXED)
    o = np.full(60, UNTOUCHED)
    _mix_columns(y, 3, 11, mix, 2, 6, columns, o, 5, 9)
    wanted = np.full(60, UNTOUCHED)
    for c in range(MIXED):
        for i in range(ROWS):
            total = 0.0
            for b in range(columns):
                total = fma(float(y[3 + b * 11 + i]), float(mix[2 + b * 6 + c]), total, DOUBLE)
            wanted[5 + c * 9 + i] = total
    assert np.array_equal(o, wanted)


@pytest.mark.parametrize("vectors", [1, 3, 4, 5, 13])
def test_a_sum_of_squares_is_summed_in_its_order(vectors: int) -> None:
    half = LANES // 2
    x = np.full(3 + vectors * half + LANES, np.nan)
    x[3 : 3 + vectors * half] = spread(np.random.default_rng(vectors), vectors * half)
    chains = [[0.0] * half for _ in range(4)]
    for place, v in enumerate(x[3 : 3 + vectors * half].tolist()):
        i, lane = divmod(place, half)
        chain = i % 4 if i < vectors // 4 * 4 else 0
        chains[chain][lane] = fma(v, v, chains[chain][lane], DOUBLE)
    lanes = [(a + b) + (c + d) for a, b, c, d in zip(*chains, strict=True)]
    assert _square_sum(x, 3, vectors * half) == halved(lanes, DOUBLE)
