"""Instruction sets that limit kernels and BLAS, to simulate other machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import llvmlite.binding

__all__ = ["INSTRUCTION_SETS", "NATIVE", "Lacking", "environment", "features_of_host"]

NATIVE = "native"


class InstructionSet(NamedTuple):
    """Target processor of numba, its features, and OpenBLAS's kernels for it."""

    processor: str
    features: tuple[str, ...]
    blas: str


_AVX2 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")

INSTRUCTION_SETS: Mapping[str, InstructionSet] = {
    "avx2": InstructionSet("haswell", _AVX2, "Haswell"),
    "avx512": InstructionSet(
        "skylake-avx512", (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"), "SkylakeX"
    ),
}


class Lacking(Exception):
    """The processor lacks an instruction set."""


def features_of_host() -> frozenset[str]:
    """Return the features of this machine's processor, in LLVM's spelling."""
    return frozenset(name for name, has in llvmlite.binding.get_host_cpu_features().items() if has)


def environment(name: str) -> dict[str, str]:
    """Return variables to set before importing numba and numpy; empty for ``native``.

    Raises
    ------
    Lacking
        If this machine's processor cannot execute these instructions.
    """
    if name == NATIVE:
        return {}
    wanted = INSTRUCTION_SETS[name]
    missing = sorted(set(wanted.features) - features_of_host())
    if missing:
        raise Lacking(f"this processor has no {name}: it lacks {', '.join(missing)}")
    return {
        "NUMBA_CPU_NAME": wanted.processor,
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in wanted.features),
        "OPENBLAS_CORETYPE": wanted.blas,
    }
