"""Rows in strips of sixteen features: their norms, and their rounding into tiles.

A tile holds up to T rows as float32 integers, strip by strip: entry j of row i is
``z[(j // 16) * (T + 1) * 16 + i * 16 + j % 16]``. A strip of neighbouring rows is contiguous, as the
products of :mod:`~streaming_pca.kernels.block.strip_products` need, and strips of one row are no
power of two apart, which suits caches. Each function is one loop of vector instructions in a fixed
order: its result for a row depends on that row alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from streaming_pca.kernels.vectors import (
    DOUBLE,
    DOUBLES,
    FLOAT,
    FLOATS,
    HALF,
    LANES,
    Builder,
    Value,
    constant,
    data_of,
    fma,
    horizontal_sum,
    intrinsic,
    load,
    load_first,
    loop,
    rint,
    shifted,
    shuffle,
    splat,
    store,
    zeros,
)

__all__ = ["round_row", "scale_row", "squared_norm"]

_CHAINS = 4
_WIDE = ir.VectorType(DOUBLE, LANES)


def _read(builder: Builder, base: Value, offset: Value, count: Value | None, element: Any) -> list[Value]:
    """Load a strip of a row: one float32 vector or two float64 ones, ``count`` entries."""
    from numba import types

    if element == types.float32:
        if count is None:
            return [load(builder, base, offset, FLOATS)]
        return [load_first(builder, base, offset, FLOATS, count)]
    halves = []
    for first in (0, LANES // 2):
        place = shifted(builder, offset, first)
        if count is None:
            halves.append(load(builder, base, place, DOUBLES))
        else:
            rest = builder.sub(count, constant(first))
            halves.append(load_first(builder, base, place, DOUBLES, rest))
    return halves


def _joined(builder: Builder, parts: Sequence[Value]) -> Value:
    """Return one float32 vector from one part or from two float64 halves."""
    if len(parts) == 1:
        return parts[0]
    low, high = (builder.fptrunc(part, HALF) for part in parts)
    return shuffle(builder, low, high, range(LANES))


def _sum_of_squares(builder: Builder, d: Value, entries: Callable[[Value, Value | None], Value]) -> Value:
    """Sum the squares of ``entries(strip, count)`` over d features; None: a whole strip.

    Strips alternate among four chains, so that no addition waits for the last.
    """

    def square(strip: Value, total: Value, count: Value | None) -> Value:
        v = entries(strip, count)
        return fma(builder, v, v, total)

    def turn(i: Value, totals: Sequence[Value]) -> list[Value]:
        first = builder.mul(i, constant(_CHAINS))
        return [square(shifted(builder, first, c), total, None) for c, total in enumerate(totals)]

    whole = builder.sdiv(d, constant(LANES))
    turns = builder.sdiv(whole, constant(_CHAINS))
    done = builder.mul(turns, constant(_CHAINS))
    totals = loop(builder, turns, [zeros(FLOATS)] * _CHAINS, turn)
    (first,) = loop(
        builder,
        builder.sub(whole, done),
        totals[:1],
        lambda i, values: [square(builder.add(done, i), values[0], None)],
    )
    rest = builder.srem(d, constant(LANES))
    some = builder.zext(builder.icmp_signed(">", rest, constant(0)), rest.type)
    (second,) = loop(builder, some, totals[1:2], lambda i, values: [square(whole, values[0], rest)])
    wide = [builder.fpext(v, _WIDE) for v in (first, second, *totals[2:])]
    while len(wide) > 1:
        wide = [builder.fadd(u, v) for u, v in zip(wide[::2], wide[1::2], strict=True)]
    return horizontal_sum(builder, wide[0])


@intrinsic
def squared_norm(typing: Any, x: Any, x0: Any, d: Any) -> Any:
    """``squared_norm(x, x0, d)``: sum of squares of d entries of x from x0 on.

    Entries are rounded to float32 and their squares added in float32, in 64 lanes,
    which a tree adds in float64: within (d/64 + 4) 2**-24 of the truth, relatively,
    where no square overflows or underflows. float32 and float64 entries of the same
    values have the same sum.
    """

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        base = data_of(context, builder, signature, args, 0)
        element = signature.args[0].dtype

        def entries(strip: Value, count: Value | None) -> Value:
            offset = builder.add(args[1], builder.mul(strip, constant(LANES)))
            return _joined(builder, _read(builder, base, offset, count, element))

        return _sum_of_squares(builder, args[2], entries)

    from numba import types

    return types.float64(x, types.int64, types.int64), codegen


def _row_putter(rounded: bool) -> Any:
    def put(typing: Any, x: Any, x0: Any, d: Any, scale: Any, z: Any, z0: Any, stride: Any) -> Any:
        from numba import types

        def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
            source, target = (data_of(context, builder, signature, args, i) for i in (0, 4))
            element = signature.args[0].dtype
            narrow = splat(builder, builder.fptrunc(args[3], FLOAT), FLOATS)
            wide = splat(builder, args[3], DOUBLES)

            def entries(strip: Value, count: Value | None) -> Value:
                offset = builder.add(args[1], builder.mul(strip, constant(LANES)))
                parts = _read(builder, source, offset, count, element)
                if element == types.float32:
                    v = builder.fmul(parts[0], narrow)
                else:
                    v = _joined(builder, [builder.fmul(part, wide) for part in parts])
                v = rint(builder, v) if rounded else v
                store(builder, v, target, builder.add(args[5], builder.mul(strip, args[6])))
                return v

            return _sum_of_squares(builder, args[2], entries)

        i = types.int64
        return types.float64(x, i, i, types.float64, z, i, i), codegen

    return put


round_row = intrinsic(_row_putter(rounded=True))
"""``round_row(x, x0, d, scale, z, z0, stride)``: rint(scale x) of d entries into the row of z at z0.

``scale`` is a float32. Returns the sum of squares of the stored entries, as
:func:`squared_norm` does. float32 and float64 entries of equal values give the same result.
"""

scale_row = intrinsic(_row_putter(rounded=False))
"""``scale_row``: as :func:`round_row`, without rounding to integers."""
