"""Benchmarks refuse bad arguments in one line with status 2, and their help has examples."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import kernels, noise, scaling, utility, variances

MISTAKES: list[tuple[Any, str, tuple[str, ...]]] = [
    (kernels, "--shapes 4096x256", ("--shapes", "must be MxDxK, as in 4096x256x8, not 4096x256")),
    (kernels, "--shapes 10x3x4", ("--shapes", "K must lie between 1 and")),
    (kernels, "--shapes 5000000x3x1", ("--shapes", "a batch may hold")),
    (kernels, "--threads 0", ("--threads", "must be a whole number of at least 1, not 0")),
    (kernels, "--repeats x", ("--repeats", "must be a whole number of at least 1, not x")),
    (kernels, "--dtypes float16", ("--dtypes", "float16")),
    (kernels, "--fast", ("--fast",)),
    (kernels, "--cpu sse", ("--cpu", "sse")),
    (scaling, "--base 8x8x4", ("--factors: 2x8x4: K must lie between",)),
    (scaling, "--base 1x1x1 --factors 0.5 1", ("--factors: they leave one value of M",)),
    (scaling, "--factors 2 2", ("--factors: a fit needs two different values",)),
    (scaling, "--factors -1", ("--factors",)),
    (scaling, "--streams 4", ("--streams: a fit needs two different values",)),
    (scaling, "--threads none", ("must be a whole number of at least 1, not none",)),
    (utility, "--setting nothing", ("no setting 'nothing'",)),
    (utility, "--estimator nothing", ("no estimator 'nothing'; known: ",)),
    (utility, "--seeds 0", ("--seeds",)),
    (utility, "--first-seed -1", ("--first-seed",)),
    (utility, "--quick", ("--quick is for --plots",)),
    (variances, "--set wine", ()),
]


@pytest.mark.parametrize(("program", "arguments", "words"), MISTAKES, ids=lambda each: str(each)[:40])
def test_bad_arguments_get_one_line_and_a_status(
    program: Any, arguments: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main(arguments.split())
    assert stop.value.code == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert all(word in line for word in words)
    assert not printed.out


@pytest.mark.parametrize(
    ("program", "example"),
    [
        (kernels, "python -m benchmarks.kernels --json > kernels.json"),
        (scaling, "python -m benchmarks.scaling --json > scaling.json"),
        (noise, "example: python -m benchmarks.noise --json"),
    ],
    ids=["kernels", "scaling", "noise"],
)
def test_help_shows_examples(program: Any, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main(["--help"])
    assert stop.value.code == 0
    assert example in " ".join(capsys.readouterr().out.split())
