"""Conditions of a measurement: threads and machine."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba.core.registry import cpu_target
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from benchmarks.timing.timing import Call
from streaming_pca.kernels.threads import use_threads

__all__ = ["in_blas_threads", "machine", "with_threads"]


@contextlib.contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Give kernels ``count`` threads and BLAS one, like the commands.

    Two thread pools on the same cores cost far more than they gain.
    """
    use_threads(count)
    try:
        with threadpool_limits(1):
            yield
    finally:
        use_threads(None)


def in_blas_threads(call: Call, count: int) -> Call:
    """Return the call with ``count`` BLAS threads, reset to one afterwards."""
    pools = [pool for pool in ThreadpoolController().lib_controllers if pool.user_api == "blas"]

    def limited() -> object:
        for pool in pools:
            pool.set_num_threads(count)
        try:
            return call()
        finally:
            for pool in pools:
                pool.set_num_threads(1)

    return limited


def machine() -> dict[str, Any]:
    """Describe the machine; the load averages the last minute and includes this process."""
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and "numpy" in pool["filepath"]]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": _compiled_for(),
        "blas": [f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}" for pool in blas],
    }


def _compiled_for() -> str:
    """Return numba's version, its target processor, and the enabled vector instructions."""
    _, processor, features = cpu_target.target_context.codegen().magic_tuple()
    vectors = [name for name in ("avx2", "fma", "avx512f") if f"+{name}" in features.split(",")]
    return " ".join([numba.__version__, processor, *vectors])


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
