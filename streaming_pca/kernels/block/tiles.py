"""Tiles: some records at a time, mapped, normalised, rounded and multiplied, within a cache.

A record F of r rows becomes z, about 2**20 F/|F|_F, rounded to integers, and its product
y = z B for the columns B of a :class:`Frame`. With F = f z for a number f,
A Q = F^T F Q is f**2 z^T y for those columns of B that are Q. A tile's result for a record depends on
that record and on public numbers alone, bit for bit, and is the same for float32 and float64
entries of equal values. Error bounds: docs/explanation/proofs/exact-sums.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.strip_products import CHAIN, COLUMNS, ROWS, add_dots
from streaming_pca.kernels.block.strips import round_row, squared_norm
from streaming_pca.kernels.lattice import RADIUS
from streaming_pca.kernels.rounding import NO_EXPONENT, exponent, scale_down
from streaming_pca.kernels.vectors import LANES

__all__ = [
    "LEAST_NORM",
    "MOST_NORM",
    "MOST_ROWS",
    "Frame",
    "Tile",
    "add_products",
    "fill_products",
    "frame_of",
    "longest_column",
    "longest_record",
    "new_tile",
    "put_records",
    "tile_rows",
]

Floats = NDArray[np.float64]

_RADIUS = float(RADIUS)
LEAST_NORM, MOST_NORM = 2.0**-80, 2.0**100
"""Range of squared norms without harmful underflow or overflow in float32."""

_TILE_ENTRIES = 2**17
_LEAST_ROWS, MOST_ROWS = 64, 256
_GROUP = 16


class Frame(NamedTuple):
    """Columns B that records are multiplied by: Q, and columns that span the centre.

    Attributes
    ----------
    d, k : int
        Features of a mapped row, and columns of Q.
    columns : int
        Of B, the first k of which are Q's.
    packed : float32
        B in blocks of 4 columns, each in strips: entry j of column c of the n in a block, from column
        b on, at ``b * strips * 16 + (j // 16) * n * 16 + (c - b) * 16 + j % 16``.
    """

    d: int
    k: int
    columns: int
    packed: NDArray[np.float32]

    @property
    def strips(self) -> int:
        """Number of strips of a row."""
        return -(-self.d // LANES)

    @property
    def norm_margin(self) -> float:
        """Factor by which a float32 sum of squares becomes an upper bound."""
        return 1 + (self.strips / 4 + 8) * 2.0**-23

    @property
    def product_error(self) -> float:
        """Bound of |y_c - z B_c|/(|z| |B_c|)."""
        return (min(self.strips, CHAIN) + 8) * 2.0**-23


@njit(cache=True, nogil=True)
def _pack(columns: Floats, d: int, packed: NDArray[np.float32]) -> None:
    """Pack columns into strips; compiled because four numpy steps slow small sums."""
    strips = (d + LANES - 1) // LANES
    count = columns.shape[1]
    for first in range(0, count, COLUMNS):
        width = min(COLUMNS, count - first)
        for j in range(d):
            place = (first * strips + (j // LANES) * width) * LANES + j % LANES
            for c in range(width):
                packed[place + c * LANES] = columns[j, first + c]


@njit(cache=True, nogil=True)
def longest_column(columns: Floats) -> float:
    """Return the largest squared column norm; not finite where an entry is not."""
    longest = 0.0
    for c in range(columns.shape[1]):
        size = 0.0
        for j in range(columns.shape[0]):
            size += columns[j, c] * columns[j, c]
        # NaN fails the comparison and stays.
        if not size <= longest:
            longest = size
            if not size < math.inf:
                break
    return longest


@njit(cache=True, nogil=True)
def longest_record(begins: NDArray[np.int64], starts: NDArray[np.int64], rows: int) -> int:
    """Return rows of the longest record, at least 1; -1 where a record exceeds ``rows``."""
    if starts.size != begins.size + 1:
        return -1
    longest = 1
    for i in range(begins.size):
        length = starts[i + 1] - starts[i]
        if length < 0 or begins[i] < 0 or begins[i] > rows - length:
            return -1
        longest = max(longest, length)
    return longest


def frame_of(columns: Floats, k: int) -> Frame:
    """Pack columns (d, c) whose first k are Q."""
    d, count = columns.shape
    packed = np.zeros(-(-d // LANES) * count * LANES, dtype=np.float32)
    _pack(np.ascontiguousarray(columns), d, packed)
    return Frame(d, k, count, packed)


class Tile(NamedTuple):
    """Scratch memory for some rows and their products, column by column.

    Attributes
    ----------
    rows : int
        T: capacity, a multiple of 8.
    z : float32
        Laid out as in :mod:`~streaming_pca.kernels.block.strips`.
    squares : (T,) float64
        |z_i|**2.
    y : (columns T,) float64
        Products.
    begins : (T + 1,) int64
        First row of each record, and the end of the last.
    offsets : (T,) int64
        Offset of each row in its source.
    scales : (T,) float64
    exponents : (T,) int64
        scale and e of each record: z is rint(scale 2**-e F).
    """

    rows: int
    z: NDArray[np.float32]
    squares: Floats
    y: Floats
    begins: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scales: Floats
    exponents: NDArray[np.int64]


def tile_rows(d: int, longest: int) -> int:
    """Return T for rows of d features: as many as a cache holds, at least ``longest``."""
    fitting = min(max(_TILE_ENTRIES // max(d, 1), _LEAST_ROWS), MOST_ROWS)
    return -(-max(fitting, longest) // ROWS) * ROWS


def new_tile(frame: Frame, longest: int) -> Tile:
    """Allocate a tile of :func:`tile_rows` rows."""
    rows = tile_rows(frame.d, longest)
    return Tile(
        rows,
        np.zeros(frame.strips * (rows + 1) * LANES, dtype=np.float32),
        np.zeros(rows),
        np.zeros(frame.columns * rows),
        np.zeros(rows + 1, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows),
        np.zeros(rows, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def _put_extreme(source: NDArray[np.floating], tile: Tile, record: int) -> None:
    """Normalise and round a record of any magnitude; zeros for a null one."""
    a, b = tile.begins[record], tile.begins[record + 1]
    r, d = b - a, source.shape[1]
    stride = (tile.rows + 1) * LANES
    flat = source.reshape(-1)
    values = np.empty((r, d))
    for i in range(r):
        for j in range(d):
            values[i, j] = flat[tile.offsets[a + i] + j]
    e = exponent(values)
    size = 0.0
    if e != NO_EXPONENT:
        size = scale_down(values, e, values)
    if size < math.inf and size > 0.0:
        tile.scales[record] = np.float64(np.float32(_RADIUS / math.sqrt(size)))
        tile.exponents[record] = e
    else:
        values[:, :] = 0.0
        tile.scales[record] = 1.0
    scale = tile.scales[record]
    for i in range(r):
        tile.squares[a + i] = round_row(values, i * d, d, scale, tile.z, (a + i) * LANES, stride)


@njit(cache=True, nogil=True)
def put_records(source: NDArray[np.floating], tile: Tile, records: int) -> None:
    """Normalise and round the records at ``tile.begins`` and ``tile.offsets``.

    Fills ``z``, ``squares``, ``scales`` and ``exponents``: z of a record is rint(scale 2**-e F); zeros
    for a null one.

    Parameters
    ----------
    source : (n, d) float32 or float64, C order
    tile : Tile
    records : int
        Number of records.
    """
    z, squares, offsets = tile.z, tile.squares, tile.offsets
    begins, scales, exponents = tile.begins, tile.scales, tile.exponents
    d = source.shape[1]
    stride = (tile.rows + 1) * LANES
    # Groups hide the latency of roots and quotients while entries stay in the nearest cache.
    for first in range(0, records, _GROUP):
        last = min(first + _GROUP, records)
        for j in range(begins[first], begins[last]):
            squares[j] = squared_norm(source, offsets[j], d)
        for i in range(first, last):
            size = 0.0
            for j in range(begins[i], begins[i + 1]):
                size += squares[j]
            # NaN fails the comparison and counts as extreme.
            if size >= LEAST_NORM and size <= MOST_NORM:
                scales[i] = np.float64(np.float32(_RADIUS / math.sqrt(size)))
                exponents[i] = 0
            else:
                scales[i] = 0.0
        for i in range(first, last):
            scale = scales[i]
            if scale == 0.0:
                exponents[i] = 0
                _put_extreme(source, tile, i)
                continue
            for j in range(begins[i], begins[i + 1]):
                squares[j] = round_row(source, offsets[j], d, scale, z, j * LANES, stride)


@njit(cache=True, nogil=True)
def add_products(
    z: NDArray[np.float32], z0: int, stride: int, frame: Frame, s: int, y: Floats, y0: int, y_stride: int
) -> None:
    """Add up to 32 strips from s on to the products of 8 rows.

    Strip s of the rows is at z0 of z; products in column c start at ``y0 + c * y_stride``.
    """
    strips = (frame.d + LANES - 1) // LANES
    count = min(CHAIN, strips - s)
    place = s * min(COLUMNS, frame.columns) * LANES
    first = place
    for c in range(0, frame.columns, COLUMNS):
        width = min(COLUMNS, frame.columns - c)
        # Behind the last columns, the next rows need the first again.
        ahead = first
        left = frame.columns - c - COLUMNS
        if left > 0:
            ahead = ((c + COLUMNS) * strips + s * min(COLUMNS, left)) * LANES
        add_dots(z, z0, stride, frame.packed, place, width, count, y, y0 + c * y_stride, y_stride, ahead)
        place = ahead


@njit(cache=True, nogil=True)
def fill_products(tile: Tile, frame: Frame, n: int) -> None:
    """Compute y = z B of the first n rows."""
    strips = (frame.d + LANES - 1) // LANES
    stride = (tile.rows + 1) * LANES
    z, y, rows = tile.z, tile.y, tile.rows
    y[:] = 0.0
    for s in range(0, strips, CHAIN):
        for i in range(0, n, ROWS):
            add_products(z, s * stride + i * LANES, stride, frame, s, y, i, rows)
