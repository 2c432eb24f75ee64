"""Experiments run, resume, and report the verdicts on the papers' claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from experiments import drawing, running, tuning
from experiments.claims import Beats, Changes, Ratio, Slope, Steeper, Trend
from experiments.experiment import (
    FIRST_SEED,
    Experiment,
    Panel,
    Row,
    Table,
    half_width,
    row_key,
    slope,
)
from experiments.methods import METHODS, TunedMethod
from experiments.papers.wang_xu import LOCAL_METHODS
from experiments.results import ExperimentError, ResultFile
from experiments.running import left_to_do, run
from experiments.settings import Draw, Setting

SEEDS = range(FIRST_SEED, FIRST_SEED + 2)


def setting(n: int) -> Setting:
    return Setting("spiked", n, 5, (10.0, 5.0), 0.1)


def refusing(setting: Setting, choice: Any) -> dict[str, Any]:
    return {"clip_radius": -1.0}


BAD = TunedMethod("bad", "bad", "analyze-gauss", refusing)


def small(*methods: TunedMethod) -> Experiment:
    """Build two panels that share a setting."""
    return Experiment(
        name="small",
        figure="none",
        words="nothing",
        measure="subspace",
        panels=(
            Panel("a", "a", "n", ((500.0, setting(500)), (2_000.0, setting(2_000)))),
            Panel("b", "b", "sigma", ((0.1, setting(2_000)),)),
        ),
        methods=methods or (METHODS["analyze-gauss"], METHODS["adaptive"]),
        claims=(),
        seeds=2,
        unlike="",
    )


def test_every_method_runs_at_every_place_with_every_seed(tmp_path: Path) -> None:
    experiment = small()
    reported: list[tuple[int, str]] = []
    table = run(
        experiment, SEEDS, ResultFile(tmp_path / "x.csv"), 2, lambda s, m: reported.append((s.n, m.key))
    )
    assert sorted(reported) == sorted(
        [(n, key) for n in (500, 2_000) for key in ("adaptive", "analyze-gauss")] * 2
    )
    for panel, x in (("a", 500.0), ("a", 2_000.0), ("b", 0.1)):
        for key in ("adaptive", "analyze-gauss"):
            assert len(table.errors(panel, key, x)) == 2
            assert table.learnt(panel, key, x) == 1.0
    # One fit is shown in two places.
    assert table.errors("a", "adaptive", 2_000.0) == table.errors("b", "adaptive", 0.1)
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "panel,x,method,seed,error,seconds,learnt,batches,key,note,paper"
    assert len(lines) == 1 + 3 * 2 * 2


def test_a_run_takes_up_what_the_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, path = small(), tmp_path / "x.csv"
    first = run(experiment, SEEDS, ResultFile(path))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(running, "fit", lambda *_: pytest.fail("it was run again"))
        again = run(experiment, SEEDS, ResultFile(path))
    assert again.errors("a", "adaptive", 500.0) == first.errors("a", "adaptive", 500.0)
    assert path.read_bytes() == before
    more = range(FIRST_SEED, FIRST_SEED + 3)
    assert sum(len(w.methods) for w in left_to_do(experiment, more, ResultFile(path).rows)) == 4
    # A killed run leaves a torn line: the work of that line is repeated.
    lines = before.splitlines(keepends=True)
    for cut in (3, 20, 40, 70):
        path.write_bytes(b"".join(lines[:3]) + lines[3][:cut])
        assert sum(len(w.methods) for w in left_to_do(experiment, SEEDS, ResultFile(path).rows)) == 8 - 2


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, path = small(), tmp_path / "x.csv"
    original, calls = running.fit, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(running, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, SEEDS, ResultFile(path))
    left = sum(len(work.methods) for work in left_to_do(experiment, SEEDS, ResultFile(path).rows))
    # Fits concurrent with the fourth may have ended; the fourth itself did not.
    assert 1 <= left <= 8 - 3


def test_other_options_are_another_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    run(small(METHODS["noisy-power"]), SEEDS, ResultFile(path))
    changed = dataclasses.replace(METHODS["noisy-power"], tuned={"spiked": {"rounds": 4}})
    assert row_key(setting(500), changed) != row_key(setting(500), METHODS["noisy-power"])
    file = ResultFile(path)
    assert len(left_to_do(small(changed), SEEDS, file.rows)) == 4
    run(small(changed), SEEDS, file)
    # The old ones are gone: a file holds one version of the experiment.
    assert {row.key for row in ResultFile(path).rows} == {row_key(setting(n), changed) for n in (500, 2_000)}


def test_a_refusal_is_noted_and_tried_again(tmp_path: Path) -> None:
    experiment, path = small(BAD, METHODS["analyze-gauss"]), tmp_path / "x.csv"
    table = run(experiment, SEEDS, ResultFile(path))
    assert "clip_radius" in table.refused["bad"]
    assert table.line("a", "bad") == {}
    assert sum(len(work.methods) for work in left_to_do(experiment, SEEDS, ResultFile(path).rows)) == 4


def test_a_method_that_is_not_there_is_noted(tmp_path: Path) -> None:
    absent = TunedMethod("absent", "absent", "no-such-id", refusing)
    table = run(small(absent), SEEDS, ResultFile(tmp_path / "x.csv"))
    assert "no-such-id" in table.refused["absent"]


def test_a_slow_method_runs_fewer_times_and_on_small_data_only() -> None:
    slow = dataclasses.replace(METHODS["adaptive"], most_seeds=1, most_values=500 * 5)
    (work,) = left_to_do(small(slow), SEEDS, [])
    assert (work.setting.n, work.seed) == (500, FIRST_SEED)


def test_the_reference_is_not_private_and_far_better(tmp_path: Path) -> None:
    found = running.fit(METHODS["oja"], Draw(setting(2_000), 1), "subspace")
    assert found.error is not None
    assert found.error < 0.05


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b\n1,2\n", "is not an experiment's file"), ("HEAD\na,b,c,d,e,f,g,h,i,j\nx\n", "line 2")],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text.replace("HEAD", "panel,x,method,seed,error,seconds,learnt,batches,key,note,paper"))
    before = path.read_text()
    with pytest.raises(ExperimentError, match=expected):
        ResultFile(path)
    assert path.read_text() == before


def table_of(lines: dict[str, list[float]], measure: str = "subspace") -> Table:
    """Build methods with these errors at n = 1,000, 10,000 and 100,000."""
    ns = (1_000, 10_000, 100_000)
    panel = Panel("n", "n", "records n", tuple((float(n), setting(n)) for n in ns))
    experiment = dataclasses.replace(
        small(*(dataclasses.replace(METHODS["adaptive"], key=key) for key in lines)), panels=(panel,)
    )
    rows = [
        Row("n", float(n), key, FIRST_SEED, error, 1.0, 1.0, 1, "0" * 12)
        for key, errors in lines.items()
        for n, error in zip(ns, errors, strict=False)
    ]
    return Table(experiment, rows)


@pytest.mark.parametrize(
    ("claim", "lines", "verdict", "message"),
    [
        (Beats("a", ("b",), ("n",)), {"a": [0.1, 0.2, 0.1], "b": [0.2, 0.4, 0.2]}, "reproduced", "0.5 x b"),
        (Beats("a", ("b",), ("n",)), {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.4, 0.2]}, "partly", "2 of 3"),
        (Beats("a", ("b",), ("n",)), {"a": [3, 5, 0.1], "b": [0.2, 0.4, 0.2]}, "not reproduced", "1 of 3"),
        # A random subspace scores 1.55: the better of two methods that found nothing has not won.
        (Beats("a", ("b",), ("n",)), {"a": [1.5] * 3, "b": [1.6] * 3}, "not reproduced", "near a random"),
        (Beats("a", ("b",), ("n",), (1_000.0,)), {"a": [0.1, 9, 9], "b": [0.2] * 3}, "reproduced", "1 of 1"),
        (Beats("a", ("b", "c"), ("n",)), {"a": [0.1] * 3, "b": [0.2] * 3}, "reproduced", "without c"),
        (Beats("a", ("b",), ("n",)), {"b": [0.2] * 3}, "not judged", "did not run"),
        (Slope("a", "n", -1.2, -0.8, "-1"), {"a": [1.0, 0.1, 0.01]}, "reproduced", "-1.00"),
        (Slope("a", "n", -1.2, -0.8, "-1"), {"a": [1.0, 0.5, 0.25]}, "not reproduced", "-0.30"),
        (Steeper("a", ("b",), "n"), {"a": [1, 2, 4], "b": [1, 4, 16]}, "reproduced", "+0.30"),
        (Steeper("a", ("b",), "n"), {"a": [1, 4, 16], "b": [1, 2, 4]}, "not reproduced", "+0.60"),
        (Ratio("a", "b", "n", True), {"a": [1, 1, 1], "b": [1, 2, 4]}, "reproduced", "from 1 to 0.25"),
        (Ratio("a", "b", "n", False), {"a": [1, 1, 1], "b": [1, 2, 4]}, "not reproduced", "from 1 to 0.25"),
        (Trend("a", "n", rises=False), {"a": [1, 0.5, 0.1]}, "reproduced", "2 of 2 steps"),
        (Trend("a", "n", rises=False), {"a": [1, 0.5, 0.6]}, "partly", "1 of 2 steps"),
        (Trend("a", "n", rises=True), {"a": [1, 0.5, 0.4]}, "not reproduced", "0 of 2 steps"),
        (Trend("a", "n", rises=True), {}, "not judged", "did not run"),
        (Changes("a", "n", 0.0, 0.5, "falls"), {"a": [1, 1, 0.1]}, "reproduced", "0.1"),
        (Changes("a", "n", 0.0, 0.5, "falls"), {"a": [1, 0.1, 1]}, "not reproduced", "1"),
        (Changes("a", "n", 0.0, 0.5, "falls"), {}, "not judged", "did not run"),
    ],
)  # fmt: skip
def test_claims_are_compared_with_numbers(
    claim: Any, lines: dict[str, list[float]], verdict: str, message: str
) -> None:
    found = claim.compare(table_of(lines))
    assert found.verdict == verdict, found.text
    assert message in found.text


def test_claims_add_up_to_one_verdict() -> None:
    good, bad = Beats("a", ("b",), ("n",)), Beats("b", ("a",), ("n",))
    absent = Beats("c", ("a",), ("n",))
    lines = {"a": [0.1] * 3, "b": [0.2] * 3}
    for claims, verdict in (
        ((good,), "reproduced"), ((bad,), "not reproduced"), ((good, bad), "partly"),
        ((absent,), "not judged"), ((good, absent), "partly"), ((bad, absent), "not reproduced"),
    ):  # fmt: skip
        table = table_of(lines)
        table.experiment = dataclasses.replace(table.experiment, claims=claims)
        found = table.compare()
        assert found.verdict == verdict
        assert "least private error, of 3 points: a 3" in found.text
        assert "\n" not in found.text


def test_slopes_and_intervals_are_those_of_the_textbook() -> None:
    assert slope({1.0: 1.0, 10.0: 0.01}) == pytest.approx(-2)
    assert slope({1.0: 1.0}) is None
    # t of 2 degrees is 4.3027; sd 1 over sqrt 3.
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert half_width([1.0]) == 0.0


def test_tuning_puts_the_best_candidate_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of a thousand times the signal always loses to the least possible noise."""
    monkeypatch.setattr(tuning, "GRIDS", {"spiked": (setting(5_000),)})
    gauss = dataclasses.replace(
        METHODS["analyze-gauss"],
        options=lambda setting, choice: dict(choice),
        candidates=({"clip_radius": 1e6}, {"clip_radius": -1.0}, {"clip_radius": 20.0}),
    )
    found = tuning.tune(gauss, "spiked", range(2))
    assert [choice["clip_radius"] for _, choice in found] == [20.0, 1e6, -1.0]
    assert found[-1][0] == float("inf")


def test_every_method_has_a_line_of_its_own() -> None:
    assert set(drawing._LINES) == {*METHODS, *LOCAL_METHODS}
    # These two never share a figure with their lookalikes.
    apart = {key: line for key, line in drawing._LINES.items() if key not in ("dp-pca", "adaptive-power")}
    assert len(set(apart.values())) == len(apart)


def test_a_full_disk_is_one_line_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ResultFile(tmp_path / "x.csv")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ExperimentError, match=r"x\.csv: No space left on device$"):
        run(small(), SEEDS, file)
