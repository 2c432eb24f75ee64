"""The benchmark of the noise runs and reports its measurements; its speed is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ingest, latency, noise
from benchmarks.kafka import bare_consumer

ROOT = Path(__file__).parents[2]
QUICK = ["--sizes", "16", "100", "--repeats", "1"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.noise", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_every_mechanism_is_measured_at_every_size_and_progress_is_apart() -> None:
    done = run("--json", *QUICK)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    results = document["results"]
    assert {(row["mechanism"], row["values"]) for row in results} == {
        (name, n) for name in noise.MECHANISMS for n in (16, 100)
    }
    assert all(row["nanoseconds_per_value"] > 0 for row in results)
    other = document["beside_opendp"]
    assert other["values"] == 131_072
    assert other["times_as_fast"] > 1
    assert "gaussian_on_vector, 16 values" in done.stderr


def test_without_json_a_table_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(noise, "COMPARED", 4096)
    noise.main(QUICK)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-2:] == ["16", "100"]
    assert [line.split()[0] for line in lines[1:-1]] == list(noise.MECHANISMS)
    assert "times as fast" in lines[-1]


def test_the_sizes_of_the_issue_are_the_default() -> None:
    assert noise.SIZES == (1_600, 16_000, 130_000)


@pytest.mark.parametrize("arguments", [["--sizes", "0"], ["--repeats", "-1"], ["--sizes", "x"], ["--fast"]])
def test_bad_arguments_get_one_line_and_a_status(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        noise.main(arguments)
    # The text of SystemExit is printed at the end, with status 1.
    (line,) = str(stop.value.code).splitlines()
    assert arguments[0] in line
    assert not capsys.readouterr().out


def test_readers_are_compared_on_a_real_broker(kafka_bootstrap: str, tmp_path: Path) -> None:
    plan = ingest.Plan(batch=32_768, batches=1, repeats=1, estimator="block", options={})
    (row,) = ingest.measure(kafka_bootstrap, tmp_path, plan, rows_per_message=256)
    assert row["message_bytes"] == 256 * 1024
    assert row["worker_to_bare_consumer"] > 0
    assert (row["worker_to_librdkafka"] is None) != bare_consumer.librdkafka_is_there()
    assert row["rows_per_second"]["worker"] > 0
    assert row["cpu_seconds_per_million_rows"]["worker"] > 0
    # There are two processes, each with its own interpreter.
    assert row["peak_bytes"] > row["clock_peak_bytes"] > 2**20
    assert row["peak_over_two_batches_bytes"] == row["peak_bytes"] - 2 * row["batch_bytes"]
    assert row["anonymous_over_two_batches_bytes"] < row["peak_over_two_batches_bytes"]


def test_a_release_is_timed_from_the_last_record_of_its_batch(kafka_bootstrap: str, tmp_path: Path) -> None:
    row = latency.measure(kafka_bootstrap, tmp_path, batch=512, batches=2, seconds=0.5, estimator="block")
    assert row["latency_ms"]["least"] > 0
    assert row["latency_ms"]["least"] <= row["latency_ms"]["median"] <= row["latency_ms"]["most"]
    beyond = row["latency_ms"]["median"] - row["learning_ms"]
    assert row["beyond_learning_ms"]["median"] == pytest.approx(beyond, abs=0.2)


@pytest.mark.parametrize("wrong", [["--batch", "100"], ["--batches", "0"], ["--repeats", "0"]])
def test_ingest_refuses_what_it_cannot_measure(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        ingest.main(wrong)
    assert wrong[0] in capsys.readouterr().err
