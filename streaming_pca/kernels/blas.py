"""BLAS called from compiled code, without the interpreter's lock.

All operands are integers, or integers over a power of two, whose products and partial sums float64 holds
exactly: so the result is the same in any order, and from any library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

from llvmlite import ir
from numpy.typing import NDArray

from streaming_pca.kernels import Intrinsic, njit

Builder: TypeAlias = Any
Value: TypeAlias = Any

_BYTE, _INT, _DOUBLE = ir.IntType(8), ir.IntType(32), ir.DoubleType()
_PLAIN, _TRANSPOSED = ord("N"), ord("T")


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make an intrinsic, with a type for callers, who pass no context."""
    return Intrinsic(function)


def array_pointer(context: Any, builder: Builder, signature: Any, args: Sequence[Value], place: int) -> Value:
    """Return the pointer to the first entry of array argument ``place``."""
    return context.make_array(signature.args[place])(context, builder, args[place]).data


@cache
def _address(name: str) -> int:
    from numba.extending import get_cython_function_address

    return int(get_cython_function_address("scipy.linalg.cython_blas", name))


dsyrk_address, dgemm_address = partial(_address, "dsyrk"), partial(_address, "dgemm")
"""Return the addresses of SciPy's functions: numbers, because numba caches no names."""


def _check(*arrays: Any) -> None:
    """Raise numba's TypingError unless all are (n, m) float64 in C order: BLAS would read others wrongly."""
    from numba import types
    from numba.core.errors import TypingError

    for array in arrays:
        is_right = isinstance(array, types.Array) and (array.ndim, array.layout) == (2, "C")
        if not (is_right and array.dtype == types.float64):
            raise TypingError(f"BLAS multiplies float64 in C order, not {array}")


def _call(builder: Builder, address: Value, operands: Sequence[Value]) -> None:
    """Call a function of Fortran, which takes the addresses of all its arguments."""

    def held(value: Value) -> Value:
        if isinstance(value.type, ir.PointerType):
            return value
        place = builder.alloca(value.type)
        builder.store(value, place)
        return place

    places = [held(operand) for operand in operands]
    kind = ir.FunctionType(ir.VoidType(), [place.type for place in places])
    builder.call(builder.inttoptr(address, kind.as_pointer()), places)


@intrinsic
def _call_dsyrk(typing: Any, address: Any, n: Any, k: Any, a: Any, c: Any) -> Any:
    """dsyrk("U", "N", n, k, 1.0, a, n, 1.0, c, n), in Fortran's order of entries."""
    from numba import types

    _check(a, c)

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        upper, plain = (ir.Constant(_BYTE, letter) for letter in (ord("U"), _PLAIN))
        one = ir.Constant(_DOUBLE, 1.0)
        size, rows = (builder.trunc(args[i], _INT) for i in (1, 2))
        source, target = (array_pointer(context, builder, signature, args, i) for i in (3, 4))
        _call(builder, args[0], [upper, plain, size, rows, one, source, size, one, target, size])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, a, c), codegen


@intrinsic
def _call_dgemm(
    typing: Any,
    address: Any,
    second: Any,
    m: Any,
    n: Any,
    k: Any,
    a: Any,
    b: Any,
    ldb: Any,
    beta: Any,
    c: Any,
) -> Any:
    """Call dgemm, in Fortran's order of entries: c = a op(b) + beta c, with op of letter ``second``."""
    from numba import types

    _check(a, b, c)

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        first, one = ir.Constant(_BYTE, _PLAIN), ir.Constant(_DOUBLE, 1.0)
        letter = builder.trunc(args[1], _BYTE)
        rows, columns, inner, ldb = (builder.trunc(args[i], _INT) for i in (2, 3, 4, 7))
        left, right, target = (array_pointer(context, builder, signature, args, i) for i in (5, 6, 9))
        operands = [first, letter, rows, columns, inner, one, left, rows, right, ldb, args[8], target, rows]
        _call(builder, args[0], operands)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, number, number, number, number, a, b, number, types.float64, c), codegen


@njit(cache=True, nogil=True)
def add_gram(dsyrk: int, rows: NDArray[Any], count: int, total: NDArray[Any]) -> None:
    """Add rows^T rows of the first ``count`` rows to the lower triangle of ``total``.

    Both, (n, d) and (d, d), are float64 in C order; entries above the diagonal stay unchanged. ``dsyrk`` is
    :func:`dsyrk_address`.
    """
    _call_dsyrk(dsyrk, rows.shape[1], count, rows, total)


@njit(cache=True, nogil=True)
def multiply(dgemm: int, rows: NDArray[Any], count: int, columns: NDArray[Any], out: NDArray[Any]) -> None:
    """Write rows columns of the first ``count`` rows, at least 1, to ``out``.

    All, (n, d), (d, c) and (n, c), are float64 in C order; ``dgemm`` is :func:`dgemm_address`.
    """
    d, c = columns.shape
    _call_dgemm(dgemm, _PLAIN, c, count, d, columns, rows, d, 0.0, out)


@njit(cache=True, nogil=True)
def add_product(
    dgemm: int, rows: NDArray[Any], of_rows: NDArray[Any], kept: float, total: NDArray[Any]
) -> None:
    """Compute kept total + rows^T of_rows in ``total``; ``kept`` is 1, or 0 to overwrite it.

    ``rows`` (n, d), n at least 1, ``of_rows`` (n, k) and ``total`` (d, k) are float64 in C order.
    """
    n, d = rows.shape
    _call_dgemm(dgemm, _TRANSPOSED, of_rows.shape[1], d, n, of_rows, rows, d, kept, total)
