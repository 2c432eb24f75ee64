"""Compilation of the kernels of record sums before the first batch needs them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.centre import MeanNorms, clipped_mean_sum
from streaming_pca.estimators.common.clipped_sums import (
    block_residual_norms,
    block_sum,
    covariance_sum,
    record_norms,
)
from streaming_pca.estimators.covariance.layered_sums import Coordinates
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.kernels.block.matrix_sums import sum_matrix_products
from streaming_pca.kernels.block.sums import sum_products
from streaming_pca.kernels.factor_rows import sum_factors
from streaming_pca.kernels.plain_records import (
    LEAST_RECORD_BYTES,
    PARTS,
    copy_rows,
    find_records,
    whole_records,
)

COMPILING = "compiling kernels (first run)"
"""Words for a display."""
FIRST = "first"
"""Id of the kernels that the default estimator needs for float32 vectors or factors: norms, mean, layers."""

_PATIENCE = 120.0  # seconds to wait for another process that compiles
_DIM, _RANK = 3, 2
_DTYPES = (np.float32, np.float64)


def needs_first_alone(stream: Any) -> bool:
    """Return whether a stream's first batches need only the kernels of :data:`FIRST`."""
    by_covariance = stream.estimator in ("adaptive", "analyze-gauss") and stream.dim <= MAX_COVARIANCE_DIM
    return bool(by_covariance and stream.record_kind is RecordKind.FACTOR and stream.dtype == "float32")


def compile_kernels(kind: str) -> None:
    """Compile the kernels that sum records of a kind, or load them from numba's cache.

    It takes half a minute of one core on a new machine, and less than one second from the cache. The
    kernels serve any number of features, any rank, and float32 and float64 records. Kernels of
    single estimators compile at their first use. It sums records of ones, not records of a stream.
    """
    if kind == FIRST:
        _compile_first(np.float32)
        return
    if kind == RecordKind.LOCAL:
        return
    of = RecordKind(kind)
    preprocessing = Preprocessing(dim=_DIM, kind=of, centering="none")
    basis = np.eye(_DIM)[:, :_RANK]
    for dtype in _DTYPES:
        ones = np.ones((_DIM if of is RecordKind.MATRIX else 1, _DIM), dtype=dtype)
        batch = ArrayBatch.of_records([ones, ones], _DIM, of)
        if of is RecordKind.FACTOR:
            _compile_first(dtype)
        record_norms(batch, preprocessing)
        covariance_sum(batch, preprocessing, 1.0)
        block_residual_norms(batch, preprocessing, basis, basis)
        block_sum(batch, preprocessing, basis, 1.0)
        for radius in (1.0, 1e-3):
            block_sum(batch, preprocessing, basis, radius, basis)


def _compile_first(dtype: type[np.floating]) -> None:
    """Compile the kernels of :data:`FIRST` for one type of records."""
    batch = ArrayBatch.of_vectors(np.ones((2, _DIM), dtype=dtype))
    preprocessing = Preprocessing(dim=_DIM, centering=np.zeros(_DIM))
    batch.map(MeanNorms(preprocessing))
    clipped_mean_sum(batch, preprocessing, 1.0)
    for turn in (None, np.eye(_DIM)):
        coordinates = Coordinates(preprocessing, turn)
        coordinates.layers(batch, [1.0, 2.0], coordinates.norms(batch))


def compile_reading(kind: str) -> None:
    """Compile a kind's kernels, or load them from numba's cache; three seconds of a core on a new machine."""
    data, parts = np.zeros(LEAST_RECORD_BYTES, np.uint8), np.empty((1, PARTS), np.int32)
    data.flags.writeable = False
    find_records(data, 0, parts)
    whole_records(data, 1, 1)
    plain, lengths = np.zeros((1, 2), np.uint8), np.zeros(1, np.int64)
    for word in _READ.get(kind, ()):
        copy_rows(data, parts, plain, 1, False, word(0), word(0), np.zeros((0, _DIM), word), lengths)


_READ: dict[str, list[Any]] = {FIRST: [np.uint32], RecordKind.FACTOR: [np.uint32, np.uint64]}
"""Types of the bits of numbers that are copied unchanged, by kind."""


def are_cached(kinds: Iterable[str]) -> bool:
    """Return whether numba's cache has all kernels of these kinds for this processor."""
    both = len(_DTYPES)
    last: dict[str, list[tuple[Any, int]]] = {
        FIRST: [(sum_factors, 1), (copy_rows, 1)],
        RecordKind.FACTOR: [(sum_products, both), (copy_rows, both)],
        RecordKind.MATRIX: [(sum_matrix_products, both), (find_records, 1)],
        RecordKind.LOCAL: [(find_records, 1)],
    }
    for kernel, least in (each for kind in kinds for each in last[kind]):
        processor = kernel.targetctx.codegen().magic_tuple()
        files = getattr(kernel._cache, "_cache_file", None)
        if files is None:
            return False
        # numba's own key of a cached kernel: (signature, processor and its instructions, code). Its index
        # comes first: a full disk may have had no room for the kernel.
        names = [name for key, name in files._load_index().items() if key[1] == processor]
        found = [name for name in names if Path(files._data_path(name)).exists()]
        # One for each dtype: fewer where a process ended while it compiled.
        if len(found) < least:
            return False
    return True


def compile_apart(kinds: Iterable[str]) -> subprocess.Popen[bytes]:
    """Start filling numba's cache in a separate process; only one of several such processes compiles.

    Its end frees the compiler's 300 MB. :func:`stop` ends it immediately, whereas a compiling thread
    cannot be stopped. Kernels that it does not compile are compiled at their first use.
    """
    command = [sys.executable, "-P", "-m", __spec__.name, *kinds]
    silent = subprocess.DEVNULL
    # Pass no passwords or tokens: nothing there needs one, and its memory is not protected.
    environment = {name: v for name, v in os.environ.items() if not name.upper().startswith("STREAMING_PCA_")}
    # A terminal's Ctrl-C is for the caller, who kills it.
    return subprocess.Popen(  # nosec B603  # this Python, and our module
        command, stdin=silent, stdout=silent, stderr=silent, env=environment, start_new_session=True
    )


def stop(compiler: subprocess.Popen[bytes]) -> None:
    """Kill a compiler and its child; do nothing if it has ended."""
    if compiler.poll() is None:
        os.killpg(compiler.pid, signal.SIGKILL)


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _main(kinds: Sequence[str]) -> None:
    kernel: Any = sum_products
    # numba has no path if it finds no writable folder.
    with suppress(OSError, TypeError):
        folder = Path(kernel._cache.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "compiling.lock", os.O_CREAT | os.O_RDWR, 0o600)
        deadline = time.monotonic() + _PATIENCE
        # Held until the process ends: a waiting process then finds its kernels in the cache.
        while not _is_locked(lock) and not are_cached(kinds) and time.monotonic() < deadline:
            time.sleep(0.2)
        if are_cached(kinds):
            return
    # On a second core. Kernels that it does not compile are compiled at their first use.
    reading = multiprocessing.Process(target=_compile_all, args=(compile_reading, kinds), daemon=True)
    reading.start()
    _compile_all(compile_kernels, kinds)
    reading.join()


def _compile_all(compile_: Callable[[str], None], kinds: Sequence[str]) -> None:
    for kind in kinds:
        compile_(kind)


if __name__ == "__main__":
    _main(sys.argv[1:])
