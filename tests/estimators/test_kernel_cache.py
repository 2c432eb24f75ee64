"""Kernels compiled ahead of time include every kernel that batches need."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators import kernel_cache
from streaming_pca.estimators.common.clipped_sums import (
    block_residual_norms,
    block_sum,
    covariance_sum,
    record_norms,
)
from streaming_pca.estimators.kernel_cache import FIRST, are_cached, compile_kernels, compile_reading
from streaming_pca.kernels.block.matrix_sums import sum_matrix_products
from streaming_pca.kernels.block.norms import product_sizes
from streaming_pca.kernels.block.sums import sum_products
from streaming_pca.kernels.factor_rows import factor_squared_norms, sum_factors
from streaming_pca.kernels.plain_records import copy_rows, find_records
from streaming_pca.kernels.residuals import sum_residuals
from streaming_pca.kernels.rounding import quantise_records, record_squared_norms
from streaming_pca.service.input.buffer import PartitionBuffer, RecordBuffer
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.kafka.security.hostile import batch, record
from tests.waiting import wait_for

OF_FACTORS = (sum_products, product_sizes, sum_factors, factor_squared_norms, sum_residuals)
OF_MATRICES = (sum_matrix_products, quantise_records, record_squared_norms, sum_residuals)
MAPS: list[dict[str, Any]] = [
    {"centering": "none"},
    {"centering": "pairs"},
    {"centering": tuple(range(40))},
    {"centering": "none", "bounds": (-1.0, tuple(np.arange(40) + 1.0)), "scale": 2.0},
]


def versions(kernels: tuple[Any, ...]) -> list[int]:
    return [len(kernel.signatures) for kernel in kernels]


def sum_all(batch: ArrayBatch, preprocessing: Preprocessing) -> None:
    d = preprocessing.dim
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((d, 9)))[0]
    record_norms(batch, preprocessing)
    covariance_sum(batch, preprocessing, 1.0)
    block_residual_norms(batch, preprocessing, basis, basis)
    for radius, centre in ((1.0, None), (1.0, basis), (1e-3, basis)):
        block_sum(batch, preprocessing, basis, radius, centre)


@pytest.mark.parametrize("how", MAPS)
def test_no_factor_needs_another_kernel(how: dict[str, Any]) -> None:
    compile_kernels(RecordKind.FACTOR)
    before = versions(OF_FACTORS)
    assert min(before) >= 1
    x = np.random.default_rng(1).standard_normal((60, 40))
    for dtype in (np.float32, np.float64):
        batch = ArrayBatch.of_vectors(x.astype(dtype))
        frozen = ArrayBatch(np.frombuffer(batch.rows.tobytes(), dtype).reshape(-1, 40), batch.starts)
        unaligned = np.frombuffer(b"x" + batch.rows.tobytes(), dtype, offset=1).reshape(-1, 40)
        picked = batch.only(np.repeat(np.arange(30) % 3 > 0, 2))
        for records in (batch, frozen, ArrayBatch(unaligned, batch.starts), picked, picked.split([2, 38])[1]):
            sum_all(records, Preprocessing(dim=40, **how))
    assert versions(OF_FACTORS) == before


def test_no_matrix_needs_another_kernel() -> None:
    compile_kernels(RecordKind.MATRIX)
    before = versions(OF_MATRICES)
    assert min(before) >= 1
    x = np.random.default_rng(1).standard_normal((5, 40, 40))
    for dtype in (np.float32, np.float64):
        batch = ArrayBatch.of_records(list((x + x.transpose(0, 2, 1)).astype(dtype)), 40, RecordKind.MATRIX)
        sum_all(batch, Preprocessing(dim=40, kind=RecordKind.MATRIX, centering="none"))
    assert versions(OF_MATRICES) == before


@pytest.mark.parametrize("unit", ["message", "row"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_block_needs_another_kernel(dtype: Any, unit: Any) -> None:
    compile_reading(RecordKind.FACTOR)
    before = versions((find_records, copy_rows))
    assert min(before) >= 1
    codec = PayloadCodec(40, dtype=dtype, unit=unit)
    x = np.ones((2, 40), dtype)
    for size in (3, 100):
        answer = batch([record(x.tobytes(), i) for i in range(size)], base=5)
        # Small answers are bytes, large ones a view that could be written to.
        for data in (answer, memoryview(bytearray(answer))):
            buffer = RecordBuffer(codec)
            buffer.buffers[0] = PartitionBuffer(0)
            reader = BlockReader(6, TopicPartition("t", 0), MemoryRecords(data))
            buffer.append(0, reader.take())
            assert buffer.buffers[0].rows == 2 * (size - 1)
    assert versions((find_records, copy_rows)) == before


def test_reports_have_no_sums_to_compile() -> None:
    before = versions((*OF_FACTORS, *OF_MATRICES))
    compile_kernels(RecordKind.LOCAL)
    assert versions((*OF_FACTORS, *OF_MATRICES)) == before


ASK = """
import json
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.kernel_cache import are_cached
print(json.dumps([are_cached([kind]) for kind in RecordKind]))
"""


def cached(**variables: str) -> list[bool]:
    """Return for factors, for matrices and for reports if their kernels are cached."""
    command, environment = [sys.executable, "-c", ASK], os.environ | variables
    return json.loads(subprocess.check_output(command, env=environment, text=True, timeout=120))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a processor of x86-64 is named")
def test_kernels_of_another_processor_count_as_missing(tmp_path: Path) -> None:
    compile_kernels(RecordKind.FACTOR)
    compile_reading(RecordKind.FACTOR)
    assert are_cached([RecordKind.FACTOR])
    assert cached()[0]
    # An image that was built elsewhere brings such kernels. Tests share the cache, and no other test compiles
    # for this processor.
    assert cached(NUMBA_CPU_NAME="bonnell", NUMBA_CPU_FEATURES="+ssse3") == [False] * 3
    assert cached(NUMBA_CACHE_DIR=str(tmp_path)) == [False] * 3


@pytest.mark.parametrize("kernel", [sum_products, copy_rows])
def test_an_interrupted_compilation_counts_as_missing(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels(RecordKind.FACTOR)
    compile_reading(RecordKind.FACTOR)
    assert are_cached([RecordKind.FACTOR])
    index = kernel._cache._cache_file
    found = index._load_index()
    monkeypatch.setattr(index, "_load_index", lambda: dict(list(found.items())[:1]))
    assert not are_cached([RecordKind.FACTOR])


def test_a_compiler_that_is_stopped_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compiler = kernel_cache.compile_apart([FIRST])
    children = Path(f"/proc/{compiler.pid}/task/{compiler.pid}/children")
    child = wait_for("its child", children.read_text).split()[0]
    kernel_cache.stop(compiler)
    assert compiler.wait() < 0
    wait_for("its child's end", lambda: not _runs(child))
    kernel_cache.stop(compiler)


def _runs(pid: str) -> bool:
    """Return whether a process exists and is not a zombie; its parent may leave it one for long."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_of_two_processes_at_once_one_compiles(tmp_path: Path) -> None:
    """The other waits for its lock, and uses the compiled kernels of a first batch."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", kernel_cache.__name__, FIRST]
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    seconds = []
    for process in both:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        seconds.append(used.ru_utime)
    assert min(seconds) < 0.6 * max(seconds)
    assert cached(NUMBA_CACHE_DIR=str(tmp_path)) == [False, False, True]
    code = f"from {kernel_cache.__name__} import are_cached; assert are_cached(['{FIRST}'])"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
