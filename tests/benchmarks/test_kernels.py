"""The benchmark of the kernels reports its measurements on its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import covariance_update, kernels, mean_kernels
from benchmarks.timing import instruction_sets
from benchmarks.timing.workload import Shape, Workload
from streaming_pca.kernels.lattice import RADIUS

ROOT = Path(__file__).parents[2]
TINY = ["--shapes", "60x6x2", "--repeats", "1", "--records", "50", "--coordinates", "3"]

RATIOS = {
    "ratio_to_floor",
    "centred_ratio_to_floor",
    "update_ratio_to_floor",
    "default_update_ratio_to_floor",
    "orthonormalise_ratio_to_floor",
    "speedup_vs_incremental_pca",
}


def test_the_last_line_has_a_row_for_every_dtype_and_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(covariance_update, "SHAPE", Shape(500, 16, 2))
    kernels.main(["--json", *TINY])
    printed = capsys.readouterr()
    found = json.loads(printed.out.splitlines()[-1])
    cases = {(row["m"], row["d"], row["k"], row["dtype"], row["threads"]) for row in found["rows"]}
    assert cases == {(60, 6, 2, dtype, n) for dtype in ("float32", "float64") for n in (1, 2)}
    for row in found["rows"]:
        assert all(row[key] > 0 for key in (*RATIOS, "rows_per_second"))
        assert row["update_of"] == "private-oja"
        assert row["bits_of_one_thread"] is True
        assert row["ratio_to_floor"] == pytest.approx(row["seconds"]["sum"] / row["seconds"]["floor"])
        assert all(0 < least <= row["seconds"][name] for name, least in row["fastest_seconds"].items())
    assert [row["kernel"] for row in found["mean"]] == list(mean_kernels.KERNELS)
    assert all(row["compiled_ns"] > 0 and row["ratio"] > 0 for row in found["mean"])
    assert found["machine"]["cpu"] == "native"
    assert "60x6x2, float64" in printed.err


# All kernels are compiled for each; tests/kernels/test_processors.py has both.
@pytest.mark.soak
@pytest.mark.parametrize("cpu", ["avx2", "avx512"])
def test_kernels_and_blas_are_held_to_an_instruction_set(cpu: str) -> None:
    try:
        wanted = instruction_sets.environment(cpu)
    except instruction_sets.Lacking as lacking:
        pytest.skip(str(lacking))
    options = ["--cpu", cpu, "--json", "--group", "block", "--dtypes", "float32", "--threads", "1"]
    command = [sys.executable, "-m", "benchmarks.kernels", *options, "--shapes", "60x6x2", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["rows"]) == 1
    machine = found["machine"]
    assert machine["cpu"] == cpu
    _, processor, *vectors = machine["numba"].split()
    assert processor == wanted["NUMBA_CPU_NAME"]
    assert ("avx512f" in vectors) == (cpu == "avx512")
    assert all(blas.split()[-1] == wanted["OPENBLAS_CORETYPE"] for blas in machine["blas"])


def test_what_the_processor_lacks_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instruction_sets, "features_of_host", lambda: frozenset({"sse2", "avx"}))
    with pytest.raises(SystemExit) as stop:
        kernels.main(["--cpu", "avx2", *TINY])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--cpu avx2: this processor has no avx2: it lacks avx2, bmi," in line


def test_without_json_there_are_tables_of_the_groups_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main([*TINY, "--group", "mean"])
    printed = capsys.readouterr().out
    assert "clamped sum" in printed
    assert "60x6x2" not in printed
    kernels.main([*TINY, "--group", "block", "--dtypes", "float32", "--threads", "1"])
    heads, row, *notes = capsys.readouterr().out.splitlines()
    assert heads.split()[:5] == ["m", "x", "d", "x", "k"]
    assert row.split()[:3] == ["60x6x2", "float32", "1"]
    assert "clamped sum" not in " ".join(notes)


def test_the_shapes_of_the_issue_are_the_default() -> None:
    assert kernels.SHAPES == ((4096, 256, 8), (8192, 1024, 16), (2048, 4096, 32))


def test_a_sum_that_depends_on_threads_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = iter([{"sum": np.array([1])}, {"sum": np.array([1])}, {"sum": np.array([2])}])
    monkeypatch.setattr(kernels, "_totals", lambda work: next(totals))
    with pytest.raises(SystemExit, match="2"):
        kernels.main(["--json", *TINY])
    assert capsys.readouterr().err.splitlines()[-1].endswith("the sum differs from the sum of one thread")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("ratio_to_floor", 4.1, "60x6x2, float32, 1 threads: the sum takes 4.10 floors, at most 4"),
        (
            "centred_ratio_to_floor",
            9.0,
            "60x6x2, float32, 1 threads: the centred sum takes 9.00 floors, at most 4",
        ),
        (
            "speedup_vs_incremental_pca",
            39.0,
            "60x6x2, float32, 1 threads: a step is 39.0 times as fast as IncrementalPCA's, at least 40",
        ),
    ],
)
def test_a_missed_target_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str, value: float, line: str
) -> None:
    row = dict.fromkeys(RATIOS, 1.0) | {"m": 60, "d": 6, "k": 2, "dtype": "float32", "threads": 1}
    row |= {"speedup_vs_incremental_pca": 200.0}
    rows = [row]
    monkeypatch.setattr(kernels, "measure", lambda *_: rows)
    asked = ["--json", "--check", "--group", "block", "--dtypes", "float32", *TINY]
    kernels.main(asked)
    rows[0] = row | {key: value}
    with pytest.raises(SystemExit, match="1"):
        kernels.main(asked)
    assert capsys.readouterr().err.splitlines()[-1] == line
    kernels.main([argument for argument in asked if argument != "--check"])


def test_both_dtypes_hold_the_same_records() -> None:
    sums = [Workload(Shape(50, 5, 2), dtype).sums for dtype in ("float32", "float64")]
    for name, call in sums[0].items():
        assert np.array_equal(call().total, sums[1][name]().total)


@pytest.mark.parametrize("shape", [Shape(300, 20, 3), Shape(600, 256, 8)])
def test_some_records_are_clipped_and_the_centred_kernel_is_the_ordinary_one(shape: Shape) -> None:
    work = Workload(shape, "float32")
    for call in work.sums.values():
        assert 0.02 < call().clipped / shape.m < 0.3
    centred = work.sums["centred"]()
    assert centred.centre is not None
    # Below 0.05 |C| a slower kernel takes over: see block_sum.
    assert centred.unit * RADIUS**2 > 0.1 * np.linalg.norm(centred.centre)


def test_the_floor_is_in_float32_whatever_the_records_are() -> None:
    work = Workload(Shape(50, 5, 2), "float64")
    product: Any = work.floor()()
    assert product.dtype == np.float32
    exact = (work.rows.astype(np.float64) @ work.basis).T @ work.rows
    assert product == pytest.approx(exact, rel=1e-3)
