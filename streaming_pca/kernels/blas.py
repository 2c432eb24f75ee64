"""BLAS called from compiled code, without the interpreter's lock."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.vectors import DOUBLE, Builder, Value, data_of, intrinsic

__all__ = ["add_gram", "dsyrk_address"]

_BYTE, _INT = ir.IntType(8), ir.IntType(32)


@cache
def dsyrk_address() -> int:
    """Return the address of SciPy's dsyrk: a number, because numba caches no names."""
    from numba.extending import get_cython_function_address

    return int(get_cython_function_address("scipy.linalg.cython_blas", "dsyrk"))


@intrinsic
def _call_dsyrk(typing: Any, address: Any, n: Any, k: Any, a: Any, c: Any) -> Any:
    """dsyrk("U", "N", n, k, 1.0, a, n, 1.0, c, n), in Fortran's order of entries."""
    from numba import types

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        def held(value: Value) -> Value:
            place = builder.alloca(value.type)
            builder.store(value, place)
            return place

        upper, plain = (held(ir.Constant(_BYTE, ord(letter))) for letter in "UN")
        size, rows = (held(builder.trunc(args[i], _INT)) for i in (1, 2))
        one = held(ir.Constant(DOUBLE, 1.0))
        source, target = (data_of(context, builder, signature, args, i) for i in (3, 4))
        operands = [upper, plain, size, rows, one, source, size, one, target, size]
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), operands)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, a, c), codegen


@njit(cache=True, nogil=True)
def add_gram(dsyrk: int, rows: NDArray[Any], count: int, total: NDArray[Any]) -> None:
    """Add rows^T rows of the first ``count`` rows to the lower triangle of ``total``.

    Parameters
    ----------
    dsyrk : int
        :func:`dsyrk_address`.
    rows : (n, d) float64, in C order
    count : int
    total : (d, d) float64, in C order
        Entries above the diagonal stay unchanged.
    """
    _call_dsyrk(dsyrk, rows.shape[1], count, rows, total)
