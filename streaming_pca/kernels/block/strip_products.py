"""Products of many rows' strips at once, in registers.

Tiles are laid out as in :mod:`~streaming_pca.kernels.block.strips`. Each function is one loop of
vector instructions in a fixed order: its result for a row depends on that row alone, bit for bit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from streaming_pca.kernels.vectors import (
    DOUBLE,
    DOUBLES,
    FLOATS,
    HALF,
    LANES,
    Builder,
    Value,
    constant,
    data_of,
    fma,
    fold,
    horizontal_sum,
    intrinsic,
    lanes_at_once,
    load,
    loop,
    prefetch,
    shifted,
    shuffle,
    splat,
    store,
    zeros,
)

__all__ = [
    "CHAIN",
    "COLUMNS",
    "MIXED",
    "MOST_COLUMNS",
    "ROWS",
    "add_dots",
    "add_products",
    "mix_columns",
    "square_sum",
]

ROWS, COLUMNS = 8, 4
"""Rows, and most columns, whose products :func:`add_dots` makes at a time."""

MIXED = 4
"""Columns that :func:`mix_columns` makes at a time."""

CHAIN = 32
"""Strips whose products are added in float32, one after the other, before float64 takes over."""

MOST_COLUMNS = 12
"""Most columns whose sums :func:`add_products` makes at a time."""

_SUMS = 24
"""Vectors of sums that 32 registers hold, beside their factors; 16 registers hold half of them."""

_CHAINS = 4
_LINE = 64
"""Bytes of a cache line."""


def _cuts(total: int, most: int) -> list[tuple[int, int]]:
    """Split ``total`` into ranges of nearly equal length, at most ``most`` each."""
    count = -(-total // most)
    return list(itertools.pairwise(total * i // count for i in range(count + 1)))


def _for_width(builder: Builder, columns: Value, most: int, make: Callable[[int], None]) -> None:
    """Emit ``make(width)`` for each width up to ``most``; no code for others."""
    after = builder.append_basic_block("after")
    choice = builder.switch(columns, after)
    for width in range(1, most + 1):
        block = builder.append_basic_block(f"columns{width}")
        choice.add_case(constant(width), block)
        builder.position_at_end(block)
        make(width)
        builder.branch(after)
    builder.position_at_end(after)


@intrinsic
def add_dots(
    typing: Any,
    z: Any,
    z0: Any,
    z_stride: Any,
    q: Any,
    q0: Any,
    columns: Any,
    strips: Any,
    y: Any,
    y0: Any,
    y_stride: Any,
    ahead0: Any,
) -> Any:
    """Add products of 8 rows and some columns over some strips to y.

    ``add_dots(z, z0, z_stride, q, q0, columns, strips, y, y0, y_stride, ahead0)``: y of row
    i and column c, at ``y0 + c * y_stride + i``, float64, grows by the product of
    the row at ``z0 + 16 i`` and the column at ``q0 + 16 c``; strips are ``z_stride`` apart in z and
    16 ``columns`` in q. 4 columns at most, nothing is done for more. Products are chains of ``strips``
    fused steps in float32, in sixteen lanes that a tree adds: (strips + 4) 2**-24 of the sum of the
    products' magnitudes. Meanwhile as much of q, from ``ahead0`` on, is fetched into the cache.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        rows, factors, out = (data_of(context, builder, signature, args, i) for i in (0, 3, 7))
        z0, z_stride, q0, columns, strips = (args[i] for i in (1, 2, 4, 5, 6))
        y0, y_stride, ahead0 = args[8:]
        lanes = lanes_at_once(context)
        vector = FLOATS if lanes == LANES else HALF
        most = _SUMS * lanes // LANES

        def chains(first: int, last: int, width: int, lane: int) -> list[Value]:
            """Sums of some rows and all columns in some lanes, column by column."""
            count = last - first

            def body(strip: Value, totals: Sequence[Value]) -> list[Value]:
                z_place = shifted(builder, builder.add(z0, builder.mul(strip, z_stride)), lane)
                q_step = builder.mul(strip, constant(width * LANES))
                q_place = shifted(builder, builder.add(q0, q_step), lane)
                if last == ROWS and lane + lanes == LANES:
                    for c in range(width):
                        later = shifted(builder, builder.add(ahead0, q_step), LANES * c)
                        prefetch(builder, factors, later)

                def entries(i: int) -> Value:
                    return load(builder, rows, shifted(builder, z_place, LANES * (first + i)), vector)

                def column(c: int) -> Value:
                    return load(builder, factors, shifted(builder, q_place, LANES * c), vector)

                # The fewer of the two stay in registers, and one of the others at a time.
                results = list(totals)
                if count < width:
                    held = [entries(i) for i in range(count)]
                    for c in range(width):
                        q = column(c)
                        for i, v in enumerate(held):
                            results[c * count + i] = fma(builder, v, q, totals[c * count + i])
                else:
                    held = [column(c) for c in range(width)]
                    for i in range(count):
                        v = entries(i)
                        for c, q in enumerate(held):
                            results[c * count + i] = fma(builder, v, q, totals[c * count + i])
                return results

            return loop(builder, strips, [zeros(vector)] * (count * width), body)

        def add(width: int) -> None:
            totals: list[Any] = [None] * (width * ROWS)
            for first, last in _cuts(ROWS, most // width):
                parts = [chains(first, last, width, lane) for lane in range(0, LANES, lanes)]
                for j, halves in enumerate(zip(*parts, strict=True)):
                    c, i = divmod(j, last - first)
                    totals[c * ROWS + first + i] = functools.reduce(builder.fadd, halves)
            for start in range(0, len(totals), lanes):
                some = totals[start : start + lanes]
                sums = fold(builder, some + [zeros(vector)] * (lanes - len(some)))
                for j in range(0, len(some), ROWS):
                    of_column = shuffle(builder, sums, sums, range(j, j + ROWS))
                    place = builder.add(y0, builder.mul(y_stride, constant((start + j) // ROWS)))
                    before = load(builder, out, place, DOUBLES)
                    store(builder, builder.fadd(before, builder.fpext(of_column, DOUBLES)), out, place)

        _for_width(builder, columns, COLUMNS, add)
        return context.get_dummy_value()

    from numba import types

    i = types.int64
    return types.void(z, i, i, q, i, i, i, y, i, i, i), codegen


@intrinsic
def add_products(
    typing: Any,
    z: Any,
    z0: Any,
    u: Any,
    u0: Any,
    columns: Any,
    count: Any,
    s: Any,
    s0: Any,
    s_stride: Any,
    ahead: Any,
    ahead0: Any,
) -> Any:
    """Add the products of many rows' strip and their numbers to the columns' sums.

    ``add_products(z, z0, u, u0, columns, count, s, s0, s_stride, ahead, ahead0)``: the rows' strip
    begins at z0, their numbers u (count, columns) at u0, and column c's sixteen sums
    at ``s0 + c * s_stride``; 12 columns at most, nothing is done for more. In float64: exact
    while the sums are integers below 2**53. Meanwhile 16 entries a row of ``ahead``, from ``ahead0`` on,
    are fetched into the cache.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        rows, factors, out = (data_of(context, builder, signature, args, i) for i in (0, 2, 6))
        z0, u0, columns, count, s0, s_stride, ahead0 = (args[i] for i in (1, 3, 4, 5, 7, 8, 10))
        later = data_of(context, builder, signature, args, 9)
        line = _LINE // context.get_abi_sizeof(context.get_value_type(signature.args[9].dtype))
        lanes = lanes_at_once(context)
        # A column has two vectors, of float64, in as many lanes.
        most = _SUMS // 2 * lanes // LANES

        def add(first: int, last: int, width: int, lanes: range) -> None:
            """Add to the sums of some columns and lanes."""
            parts = range(lanes.start, lanes.stop, DOUBLES.count)
            offsets = [builder.add(s0, builder.mul(s_stride, constant(c))) for c in range(first, last)]
            places = [shifted(builder, offset, part) for offset in offsets for part in parts]

            def body(i: Value, totals: Sequence[Value]) -> list[Value]:
                at = builder.mul(i, constant(LANES))
                if first == lanes.start == 0:
                    for entry in range(0, LANES, line):
                        prefetch(builder, later, shifted(builder, builder.add(ahead0, at), entry))
                place = builder.add(z0, at)
                entries = [
                    builder.fpext(load(builder, rows, shifted(builder, place, part), HALF), DOUBLES)
                    for part in parts
                ]
                u_place = builder.add(u0, builder.mul(i, constant(width)))
                results: list[Value] = []
                for c in range(first, last):
                    pointer = builder.gep(factors, [shifted(builder, u_place, c)])
                    weight = splat(builder, builder.load(pointer, typ=DOUBLE), DOUBLES)
                    for v in entries:
                        results.append(fma(builder, v, weight, totals[len(results)]))
                return results

            totals = loop(builder, count, [load(builder, out, place, DOUBLES) for place in places], body)
            for total, place in zip(totals, places, strict=True):
                store(builder, total, out, place)

        def add_all(width: int) -> None:
            for first in range(0, width, most):
                last = min(first + most, width)
                # So few columns that all lanes of them fit, and fewer would wait for one another.
                step = LANES if (last - first) * LANES < most * lanes else lanes
                for lane in range(0, LANES, step):
                    add(first, last, width, range(lane, lane + step))

        _for_width(builder, columns, MOST_COLUMNS, add_all)
        return context.get_dummy_value()

    from numba import types

    i = types.int64
    return types.void(z, i, u, i, i, i, s, i, i, ahead, i), codegen


@intrinsic
def mix_columns(
    typing: Any,
    y: Any,
    y0: Any,
    y_stride: Any,
    mix: Any,
    m0: Any,
    m_stride: Any,
    columns: Any,
    o: Any,
    o0: Any,
    o_stride: Any,
) -> Any:
    """Multiply 8 rows' products by 4 columns of a small matrix, in float64.

    ``mix_columns(y, y0, y_stride, mix, m0, m_stride, columns, o, o0, o_stride)``: o of row i
    and column c, at ``o0 + c * o_stride + i``, becomes the sum over b of y at
    ``y0 + b * y_stride + i`` times mix at ``m0 + b * m_stride + c``.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        products, factors, out = (data_of(context, builder, signature, args, i) for i in (0, 3, 7))
        y0, y_stride, m0, m_stride, columns, o0, o_stride = (args[i] for i in (1, 2, 4, 5, 6, 8, 9))

        def body(b: Value, totals: Sequence[Value]) -> list[Value]:
            v = load(builder, products, builder.add(y0, builder.mul(b, y_stride)), DOUBLES)
            place = builder.add(m0, builder.mul(b, m_stride))
            results = []
            for c, total in enumerate(totals):
                pointer = builder.gep(factors, [shifted(builder, place, c)])
                results.append(
                    fma(builder, v, splat(builder, builder.load(pointer, typ=DOUBLE), DOUBLES), total)
                )
            return results

        totals = loop(builder, columns, [zeros(DOUBLES)] * MIXED, body)
        for c, total in enumerate(totals):
            store(builder, total, out, builder.add(o0, builder.mul(o_stride, constant(c))))
        return context.get_dummy_value()

    from numba import types

    i = types.int64
    return types.void(y, i, i, mix, i, i, i, o, i, i), codegen


@intrinsic
def square_sum(typing: Any, x: Any, x0: Any, n: Any) -> Any:
    """``square_sum(x, x0, n)``: sum of squares of n float64, a multiple of 8, from x0 on.

    In 32 lanes and a tree; exact for integers while the sum is at most 2**53.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        base = data_of(context, builder, signature, args, 0)
        vectors = builder.sdiv(args[2], constant(LANES // 2))
        turns = builder.sdiv(vectors, constant(_CHAINS))

        def square(i: Value, total: Value) -> Value:
            v = load(builder, base, builder.add(args[1], builder.mul(i, constant(LANES // 2))), DOUBLES)
            return fma(builder, v, v, total)

        def turn(i: Value, totals: Sequence[Value]) -> list[Value]:
            first = builder.mul(i, constant(_CHAINS))
            return [square(shifted(builder, first, c), total) for c, total in enumerate(totals)]

        totals = loop(builder, turns, [zeros(DOUBLES)] * _CHAINS, turn)
        done = builder.mul(turns, constant(_CHAINS))
        (first,) = loop(
            builder,
            builder.sub(vectors, done),
            totals[:1],
            lambda i, values: [square(builder.add(done, i), values[0])],
        )
        low, high = builder.fadd(first, totals[1]), builder.fadd(totals[2], totals[3])
        return horizontal_sum(builder, builder.fadd(low, high))

    from numba import types

    return types.float64(x, types.int64, types.int64), codegen
