"""Vector instructions for kernels whose every operation stands in a fixed order.

A compiler keeps sums of floats in their written order: in a plain loop, one at a time. These
helpers write LLVM's vector instructions instead: sixteen chains side by side, fused multiply-adds
only where asked for. Results have the same bits on every processor; one with shorter registers works in
parts. All functions take numba's ``builder``, pointers, and offsets in entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir

from streaming_pca.kernels import Intrinsic

__all__ = [
    "DOUBLE",
    "DOUBLES",
    "FLOAT",
    "FLOATS",
    "HALF",
    "INDEX",
    "LANES",
    "Builder",
    "Value",
    "constant",
    "data_of",
    "fma",
    "fold",
    "horizontal_sum",
    "intrinsic",
    "lanes_at_once",
    "load",
    "load_first",
    "loop",
    "prefetch",
    "rint",
    "shifted",
    "shuffle",
    "splat",
    "store",
    "zeros",
]

LANES = 16
"""Features of a strip: as many float32 as the widest register holds."""

_LANES_NEARBY = 4
"""Entries of float32 that a shuffle reaches in every processor's vectors."""

FLOAT, DOUBLE, INDEX = ir.FloatType(), ir.DoubleType(), ir.IntType(64)
FLOATS = ir.VectorType(FLOAT, LANES)
HALF = ir.VectorType(FLOAT, LANES // 2)
DOUBLES = ir.VectorType(DOUBLE, LANES // 2)
_I32 = ir.IntType(32)

Builder: TypeAlias = Any
Value: TypeAlias = Any


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make an intrinsic, with a type for callers, who pass no context."""
    return Intrinsic(function)


def lanes_at_once(context: Any) -> int:
    """Return the lanes of a strip that kernels hold at a time: 16 with AVX-512, else 8.

    Processors with 16 lanes have 32 registers, others 16.
    """
    _, _, features = context.codegen().magic_tuple()
    return LANES if "+avx512f" in features.split(",") else LANES // 2


def constant(value: int) -> Value:
    """Return an index constant."""
    return ir.Constant(INDEX, value)


def zeros(vector: Any) -> Value:
    """Return a vector of zeros."""
    return ir.Constant(vector, [0.0] * vector.count)


def data_of(context: Any, builder: Builder, signature: Any, args: Sequence[Value], place: int) -> Value:
    """Return the pointer to the first entry of array argument ``place``."""
    return context.make_array(signature.args[place])(context, builder, args[place]).data


def shifted(builder: Builder, offset: Value, by: int) -> Value:
    """Return ``offset + by``."""
    return builder.add(offset, constant(by)) if by else offset


def _place(builder: Builder, base: Value, offset: Value, kind: Any) -> Value:
    return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())


def _width(vector: Any) -> int:
    return 4 if vector.element == FLOAT else 8


def load(builder: Builder, base: Value, offset: Value, vector: Any) -> Value:
    """Load the vector at ``offset``, aligned as its entries."""
    return builder.load(_place(builder, base, offset, vector), align=_width(vector), typ=vector)


def store(builder: Builder, value: Value, base: Value, offset: Value) -> None:
    """Store a vector at ``offset``."""
    builder.store(value, _place(builder, base, offset, value.type), align=_width(value.type))


def load_first(builder: Builder, base: Value, offset: Value, vector: Any, count: Value) -> Value:
    """Load ``count`` entries at ``offset``, then zeros; reads nothing beyond them."""
    lanes = ir.Constant(ir.VectorType(INDEX, vector.count), list(range(vector.count)))
    mask = builder.icmp_signed("<", lanes, splat(builder, count, lanes.type))
    place = _place(builder, base, offset, vector)
    kind = "f32" if vector.element == FLOAT else "f64"
    function = _declared(
        builder,
        ir.FunctionType(vector, [place.type, _I32, mask.type, vector]),
        f"llvm.masked.load.v{vector.count}{kind}.p0",
    )
    return builder.call(function, [place, ir.Constant(_I32, _width(vector)), mask, zeros(vector)])


def _declared(builder: Builder, kind: Any, name: str) -> Any:
    """Return LLVM's function of that name."""
    from numba.core import cgutils

    insert: Any = cgutils.get_or_insert_function
    return insert(builder.module, kind, name)


def prefetch(builder: Builder, base: Value, offset: Value) -> None:
    """Prefetch the cache line at ``offset``; any address is allowed."""
    place = builder.gep(base, [offset])
    function = _declared(
        builder, ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32]), "llvm.prefetch.p0"
    )
    # Read access, nearest cache, data.
    builder.call(function, [place, *(ir.Constant(_I32, flag) for flag in (0, 3, 1))])


def _call(builder: Builder, name: str, *operands: Value) -> Value:
    vector = operands[0].type
    kind = "f32" if vector.element == FLOAT else "f64"
    function = _declared(
        builder,
        ir.FunctionType(vector, [vector] * len(operands)),
        f"llvm.{name}.v{vector.count}{kind}",
    )
    return builder.call(function, operands)


def fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    """Return a b + c, rounded once."""
    return _call(builder, "fma", a, b, c)


def rint(builder: Builder, a: Value) -> Value:
    """Round to the nearest integer, halves to even."""
    return _call(builder, "rint", a)


def splat(builder: Builder, scalar: Value, vector: Any) -> Value:
    """Return a vector with ``scalar`` in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return shuffle(builder, first, undefined, [0] * vector.count)


def shuffle(builder: Builder, a: Value, b: Value, places: Sequence[int]) -> Value:
    """Select entries of a followed by b, by place."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(places)), list(places)))


def _pairs(lanes: int, width: int) -> tuple[list[int], list[int]]:
    """Return the places in two vectors that a step of :func:`fold` adds."""
    group = max(2 * width, _LANES_NEARBY)
    low = [
        vector + start + i
        for block in range(0, lanes, group)
        for vector in (0, lanes)
        for start in range(block, block + group, 2 * width)
        for i in range(width)
    ]
    return low, [i + width for i in low]


def fold(builder: Builder, vectors: Sequence[Value]) -> Value:
    """Sum each vector's entries, as a tree of halves; return the sums as one vector."""
    lanes = len(vectors)
    # Pairs stay within groups of four lanes where possible, so the sums change places.
    places = [[i] * lanes for i in range(lanes)]
    ordered = list(vectors)
    width = lanes // 2
    steps = []
    while width:
        low, high = _pairs(lanes, width)
        steps.append((low, high))
        places = [[(a + b)[i] for i in low] for a, b in zip(places[::2], places[1::2], strict=True)]
        width //= 2
    for vector, place in zip(vectors, places[0], strict=True):
        ordered[place] = vector
    for low, high in steps:
        ordered = [
            builder.fadd(shuffle(builder, a, b, low), shuffle(builder, a, b, high))
            for a, b in zip(ordered[::2], ordered[1::2], strict=True)
        ]
    return ordered[0]


def horizontal_sum(builder: Builder, vector: Value) -> Value:
    """Sum a vector's entries as a tree of halves."""
    width = vector.type.count
    while width > 1:
        width //= 2
        halves = (shuffle(builder, vector, vector, range(first, first + width)) for first in (0, width))
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def loop(
    builder: Builder,
    count: Value,
    carried: Sequence[Value],
    body: Callable[[Value, Sequence[Value]], Sequence[Value]],
) -> list[Value]:
    """Emit ``carried = body(i, carried)`` for i < ``count``, in registers."""
    before = builder.block
    head, after = (builder.append_basic_block(name) for name in ("loop", "done"))
    builder.cbranch(builder.icmp_signed(">", count, constant(0)), head, after)
    builder.position_at_end(head)
    i = builder.phi(INDEX)
    inside = [builder.phi(value.type) for value in carried]
    results = body(i, inside)
    step = builder.add(i, constant(1))
    end = builder.block
    builder.cbranch(builder.icmp_signed("<", step, count), head, after)
    i.add_incoming(constant(0), before)
    i.add_incoming(step, end)
    builder.position_at_end(after)
    outside = []
    for at_start, phi, result in zip(carried, inside, results, strict=True):
        phi.add_incoming(at_start, before)
        phi.add_incoming(result, end)
        final = builder.phi(result.type)
        final.add_incoming(at_start, before)
        final.add_incoming(result, end)
        outside.append(final)
    return outside
