"""Sums have the same bits for every instruction set that they are compiled for."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.timing.instruction_sets import Lacking, environment

ROOT = Path(__file__).parents[2]

# Every number of columns that kernels have code for, tails of strips, several chains, records of several
# rows, and symmetric matrices; with and without a centre.
DIGEST = """
import hashlib, json, numpy as np
from numba.core.registry import cpu_target
from streaming_pca.estimators.common.clipped_sums import block_sum, block_residual_norms
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.records import RecordKind

rng = np.random.default_rng(0)
digest = hashlib.sha256()

def add(batch, p, k):
    basis = orthonormalise(rng.standard_normal((p.dim, k)))
    for centre in (None, rng.standard_normal(basis.shape) / 20):
        found = block_sum(batch, p, basis, 3.0, centre)
        digest.update(np.ascontiguousarray(found.total).tobytes() + bytes([found.clipped % 256]))
        about = np.zeros_like(basis) if centre is None else centre
        digest.update(value_array(block_residual_norms(batch, p, basis, about)).tobytes())

for k in range(1, 17):
    rows = rng.standard_normal((90, 37 + k)).astype(np.float32 if k % 2 else np.float64)
    add(ArrayBatch.of_vectors(rows), Preprocessing(dim=37 + k, centering="none"), k)
plain = Preprocessing(dim=1100, centering="none")
add(ArrayBatch.of_vectors(rng.standard_normal((30, 1100)) / 20), plain, 13)
factors = [rng.standard_normal((r, 70)) / 8 for r in (1, 3, 20, 2, 1)]
add(ArrayBatch.of_records(factors, 70), Preprocessing(dim=70, centering="none"), 5)
halves = rng.standard_normal((6, 21, 21)) / 8
kind = RecordKind.MATRIX
matrices = list(halves + halves.transpose(0, 2, 1))
add(ArrayBatch.of_records(matrices, 21, kind), Preprocessing(dim=21, kind=kind, centering="none"), 4)
_, processor, features = cpu_target.target_context.codegen().magic_tuple()
print(json.dumps([digest.hexdigest(), processor, "+avx512f" in features, "+avx2" in features]))
"""


def digest_on(**variables: str) -> list[object]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU")}
    clean |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    # BLAS must give the same bits for bases, so that only the kernels' instructions differ.
    clean["OPENBLAS_CORETYPE"] = "Prescott"
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(
        command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def native() -> object:
    return digest_on()[0]


# Where the processor has wider vectors, `native` already uses them.
@pytest.mark.parametrize("name", ["avx2", pytest.param("avx512", marks=pytest.mark.soak)])
def test_sums_have_the_same_bits_with_other_vectors(name: str, native: object) -> None:
    try:
        variables = environment(name)
    except Lacking as lacking:
        pytest.skip(str(lacking))
    digest, processor, wide, narrow = digest_on(**variables)
    assert (processor, wide, narrow) == (variables["NUMBA_CPU_NAME"], name == "avx512", True)
    assert digest == native


@pytest.mark.soak
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a processor of x86-64 is compiled for")
def test_sums_have_the_same_bits_without_fused_instructions(native: object) -> None:
    digest, processor, *wider = digest_on(NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="+sse2")
    assert (processor, wider) == ("x86-64", [False, False])
    assert digest == native
