"""Products of many rows' strips at once: what the registers hold.

Tiles are laid out as :mod:`~streaming_pca.linalg.strips` says. Each function is one loop of
vector instructions in a fixed order, so that what it makes of a row is a function of that row
alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import types

from streaming_pca.linalg.vectors import (
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
    load,
    loop,
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

ROWS, COLUMNS = 8, 2
"""Rows and columns whose products :func:`add_dots` holds in registers."""

MIXED = 4
"""Columns that :func:`mix_columns` makes at a time."""

CHAIN = 32
"""Strips whose products are added in float32, one after the other, before float64 takes over."""

MOST_COLUMNS = 12
"""Columns whose two vectors of sums fit into 32 registers with two of rows."""

_CHAINS = 4


@intrinsic
def add_dots(
    typing: Any,
    z: Any,
    z0: Any,
    z_stride: Any,
    q: Any,
    q0: Any,
    q_stride: Any,
    strips: Any,
    y: Any,
    y0: Any,
    y_stride: Any,
) -> Any:
    """Add products of 8 rows and 2 columns over some strips to y.

    ``add_dots(z, z0, z_stride, q, q0, q_stride, strips, y, y0, y_stride)``: y of row
    i and column c, at ``y0 + c * y_stride + i``, float64, grows by the product of
    the row at ``z0 + 16 i`` and the column at ``q0 + 16 c``; strides are those of
    strips in z and q. Products are chains of ``strips`` fused steps in
    float32, in sixteen lanes that a tree adds: (strips + 4) 2**-24 of the sum of the
    products' magnitudes.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        rows, columns, out = (data_of(context, builder, signature, args, i) for i in (0, 3, 7))
        z0, z_stride, q0, q_stride, strips, y0, y_stride = (args[i] for i in (1, 2, 4, 5, 6, 8, 9))

        def body(strip: Value, totals: Sequence[Value]) -> list[Value]:
            z_place = builder.add(z0, builder.mul(strip, z_stride))
            q_place = builder.add(q0, builder.mul(strip, q_stride))
            q = [load(builder, columns, shifted(builder, q_place, LANES * c), FLOATS) for c in range(COLUMNS)]
            results = list(totals)
            for i in range(ROWS):
                v = load(builder, rows, shifted(builder, z_place, LANES * i), FLOATS)
                for c in range(COLUMNS):
                    results[c * ROWS + i] = fma(builder, v, q[c], totals[c * ROWS + i])
            return results

        totals = loop(builder, strips, [zeros(FLOATS)] * (ROWS * COLUMNS), body)
        sums = fold(builder, totals)
        for c in range(COLUMNS):
            of_column = shuffle(builder, sums, sums, range(ROWS * c, ROWS * (c + 1)))
            place = builder.add(y0, builder.mul(y_stride, constant(c)))
            before = load(builder, out, place, DOUBLES)
            store(builder, builder.fadd(before, builder.fpext(of_column, DOUBLES)), out, place)
        return context.get_dummy_value()

    i = types.int64
    return types.void(z, i, i, q, i, i, i, y, i, i), codegen


@intrinsic
def add_products(
    typing: Any, z: Any, z0: Any, u: Any, u0: Any, columns: Any, count: Any, s: Any, s0: Any, s_stride: Any
) -> Any:
    """Add the products of many rows' strip and their numbers to the columns' sums.

    ``add_products(z, z0, u, u0, columns, count, s, s0, s_stride)``: the rows' strip
    begins at z0, their numbers u (count, columns) at u0, and column c's sixteen sums
    at ``s0 + c * s_stride``; 12 columns at most, nothing is done for more. In float64: exact
    while the sums are integers below 2**53.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        rows, factors, out = (data_of(context, builder, signature, args, i) for i in (0, 2, 6))
        z0, u0, columns, count, s0, s_stride = (args[i] for i in (1, 3, 4, 5, 7, 8))

        def add(width: int) -> None:
            places = []
            for c in range(width):
                first = builder.add(s0, builder.mul(s_stride, constant(c)))
                places += [first, shifted(builder, first, LANES // 2)]

            def body(i: Value, totals: Sequence[Value]) -> list[Value]:
                place = builder.add(z0, builder.mul(i, constant(LANES)))
                halves = [
                    builder.fpext(load(builder, rows, shifted(builder, place, first), HALF), DOUBLES)
                    for first in (0, LANES // 2)
                ]
                u_place = builder.add(u0, builder.mul(i, constant(width)))
                results = []
                for c in range(width):
                    pointer = builder.gep(factors, [shifted(builder, u_place, c)])
                    weight = splat(builder, builder.load(pointer, typ=DOUBLE), DOUBLES)
                    results += [fma(builder, v, weight, totals[2 * c + h]) for h, v in enumerate(halves)]
                return results

            totals = loop(builder, count, [load(builder, out, place, DOUBLES) for place in places], body)
            for total, place in zip(totals, places, strict=True):
                store(builder, total, out, place)

        after = builder.append_basic_block("after")
        choice = builder.switch(columns, after)
        for width in range(1, MOST_COLUMNS + 1):
            block = builder.append_basic_block(f"columns{width}")
            choice.add_case(constant(width), block)
            builder.position_at_end(block)
            add(width)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    i = types.int64
    return types.void(z, i, u, i, i, i, s, i, i), codegen


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
    """Products of 8 rows' images and 4 columns of a small matrix, in float64.

    ``mix_columns(y, y0, y_stride, mix, m0, m_stride, columns, o, o0, o_stride)``: o of row i
    and column c, at ``o0 + c * o_stride + i``, becomes the sum over b of y at
    ``y0 + b * y_stride + i`` times mix at ``m0 + b * m_stride + c``.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        images, factors, out = (data_of(context, builder, signature, args, i) for i in (0, 3, 7))
        y0, y_stride, m0, m_stride, columns, o0, o_stride = (args[i] for i in (1, 2, 4, 5, 6, 8, 9))

        def body(b: Value, totals: Sequence[Value]) -> list[Value]:
            v = load(builder, images, builder.add(y0, builder.mul(b, y_stride)), DOUBLES)
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

    return types.float64(x, types.int64, types.int64), codegen
