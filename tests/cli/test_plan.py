"""`streaming-pca plan` from a user's view."""

from __future__ import annotations

import inspect
import json
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import streaming_pca
from streaming_pca import PrivatePCA
from streaming_pca.cli import plan
from streaming_pca.estimators.forecast.forecast import forecast, planned_batches
from streaming_pca.estimators.forecast.result import as_json
from tests.cli.command import call
from tests.cli.test_app import one_line
from tests.config.test_settings import GOOD

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
PLAN = ("plan", "--records", 100_000)
KNOWN = (*PLAN, "--dim", 50, "--rank", 2, "--epsilon", 1, "--delta", 1e-6)
CONFIG = GOOD.replace("dim = 4", "dim = 6") + (
    'privacy_unit = "user"\ncontributions_per_user = 2\n'
    "[stream.options]\nn_records = 100000\nn_batches = 2\ngrowth = 1.0\n"
)


def facts(capfd: Capture, *arguments: object) -> Any:
    result = call(capfd, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_plan_is_a_table_that_fits_a_terminal(capfd: Capture) -> None:
    plain = call(capfd, *KNOWN, "--gap", 0.1)
    verbose = call(capfd, *KNOWN, "--gap", 0.1, "--verbose")
    for result in (plain, verbose):
        assert result.returncode == 0, result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert "warning" not in result.stdout
        assert result.stdout.startswith(
            "With 100,000 records of 50 features and epsilon 1, the subspace of 2"
        )
    for part in ("rho 0.028", "mu 0.237; noise multiplier 4.2", "1 of 100,000 records", "gap needed", "30%"):
        assert part in verbose.stdout
        assert part not in plain.stdout
    assert "with a gap of 10% the error is" in verbose.stdout


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ((), {}),
        (("--rank", 3), {"n_components": 3}),
        (("--epsilon", 0.5), {"epsilon": 0.5}),
        (("--delta", 1e-7), {"delta": 1e-7}),
    ],
)
def test_defaults_are_those_of_the_library(
    given: tuple[object, ...], parameters: dict[str, Any], capfd: Capture
) -> None:
    """For one batch, and for as many as a fit of more records needs."""
    model = PrivatePCA(**parameters)
    for records in (20_000, 10_000_000):
        found = facts(capfd, "plan", "--records", records, "--dim", 14, *given)
        assert found == json.loads(json.dumps(as_json(model.plan(14, records))))
    text = " ".join(call(capfd, "plan", "--records", 20_000, "--dim", 14, *given).stdout.split())
    (named,) = re.findall(r"Defaults of PrivatePCA: ([^.]*(?:\.\d[^.]*)*)\.", text)
    usual = {name: p.default for name, p in inspect.signature(PrivatePCA).parameters.items()}
    names = {"n_components": "rank"} | {n: n for n in ("epsilon", "delta", "estimator", "centering")}
    expected = {f"{shown} {usual[name]}" for name, shown in names.items() if name not in parameters}
    texts = {text.replace(" 1.0", " 1") for text in expected}
    assert set(named.split(", ")) == texts | {"no bounds", "one batch"}
    assert usual["bounds"] is None
    page = " ".join(call(capfd, "plan", "--help").stdout.replace("│", " ").split())
    for name, value in (("rank", "n_components"), ("epsilon", "epsilon"), ("delta", "delta")):
        number = f"{usual[value]:g}".replace("e-06", "e-6")
        assert f"without --config {number}, as for PrivatePCA" in page, name


def test_a_plot_is_drawn(capfd: Capture, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        for gap in ((), ("--gap", 0.1)):
            result = call(capfd, *KNOWN, *gap, "--plot", tmp_path / name)
            assert result.returncode == 0, result.stderr
            assert (tmp_path / name).read_bytes().startswith(start)
    text = (tmp_path / "a.svg").read_text()
    assert len(text) > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


@pytest.mark.parametrize(
    ("dim", "records", "epsilon", "epsilons", "counts"),
    [
        (14, 20_000, 1.0, "0.125 0.25 0.5 1 2 4 8", "2.5k 5k 10k 20k 40k 80k 160k"),
        (144, 336_776, 0.3, "0.0375 0.075 0.15 0.3 0.6 1.2 2.4", "42.1k 84.2k 168k 337k 674k 1.35M 2.69M"),
        # An eighth of the records is 9,999.5, and angles reach a right angle.
        (14, 79_996, 0.01, "0.0025 0.01 0.04", "10k 20k 40k 80k 160k 320k 640k"),
        (10, 4, 1.0, "0.125 0.25 0.5 1 2 4 8", None),
    ],
)
def test_ticks_of_a_plot_are_short_powers_of_two_times_the_given_numbers(
    dim: int, records: int, epsilon: float, epsilons: str, counts: str | None
) -> None:
    pytest.importorskip("matplotlib")
    figure = plan._figure(forecast(dim, 2, records, epsilon, 1e-6), None)
    figure.canvas.draw()
    for axes, expected in zip(figure.axes, (epsilons, counts), strict=True):
        names = [label.get_text() for label in axes.get_xticklabels()]
        assert expected is None or names == expected.split()
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
        low, high = axes.get_ylim()
        shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert len(shown) >= 2
        assert max(shown) <= 90


def test_a_plot_without_matplotlib_is_one_line(capfd: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delattr(streaming_pca, "plots", raising=False)
    monkeypatch.delitem(sys.modules, "streaming_pca.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = call(capfd, *KNOWN, "--plot", tmp_path / "a.png")
    one_line(result, 2, "--plot needs matplotlib: pip install '.[plots]' in the checkout")
    assert not result.stdout


def test_programs_get_the_same_numbers(capfd: Capture) -> None:
    found = facts(capfd, *KNOWN, "--gap", 0.1)
    own = forecast(50, 2, 100_000, 1.0, 1e-6)
    assert found["batches"] == list(own.batches)
    assert found["entry_noise"] == own.entry_noise
    assert found["charge"]["epsilon"] == "1"
    assert found["error"] == own.error_at(0.1)
    assert [target["error"] for target in found["targets"]] == [0.05, 0.1, 0.3]
    assert found["targets"][0]["records_needed"] == own.records_for(0.1, 0.05)
    growing = facts(capfd, *KNOWN, "--batches", "growing")
    assert growing["batches"] == list(planned_batches(100_000))
    equal = facts(capfd, *KNOWN, "--batches", 4, "--contributions", 4, "--tail", 2)
    assert equal["batches"] == [25_000] * 4
    assert (equal["contributions"], equal["tail"], equal["gap"], equal["error"]) == (4, 2.0, None, None)


def test_a_file_of_settings_tells_the_rest(capfd: Capture, tmp_path: Path) -> None:
    config = tmp_path / "stream.toml"
    config.write_text(CONFIG)
    found = facts(capfd, *PLAN, "--config", config)
    assert (found["dim"], found["rank"], found["contributions"]) == (6, 2, 2)
    assert found["batches"] == [50_000, 50_000]
    # The share of diagnostics is charged, and is missing from the sums.
    assert found["charge"]["epsilon"] == "1"
    assert found["epsilon"] == pytest.approx(0.98)
    # The curve's epsilons are those of the whole guarantee.
    assert [point["epsilon"] for point in found["by_epsilon"]][::2] == [0.125, 0.25, 0.5, 1, 2, 4, 8]
    text = call(capfd, *PLAN, "--config", config).stdout
    assert text.startswith("With 100,000 records of 6 features and epsilon 1, the subspace of 2")
    assert f"Settings: those of the stream in {config}." in " ".join(text.split())
    growing = " ".join(call(capfd, *PLAN, "--config", config, "--batches", "growing").stdout.split())
    assert f"Settings: those of the stream in {config}, except for its batches." in growing
    assert facts(capfd, *PLAN, "--config", config, "--batches", 4)["batches"] == [25_000] * 4
    config.write_text(GOOD + 'privacy_unit = "row"\nmax_rows = 8\n')
    one_line(call(capfd, *PLAN, "--config", config), 2, "name --rows-per-message")
    assert facts(capfd, *PLAN, "--config", config, "--rows-per-message", 8)["batches"] == [32_768, 52_416]
    one_line(call(capfd, *KNOWN, "--rows-per-message", 8), 2, "--rows-per-message needs --config")
    config.write_text(GOOD + 'estimator = "noisy-power"\noptions = { clip_l2 = 1.0 }\ncentering = "none"\n')
    one_line(call(capfd, *PLAN, "--config", config), 2, "forecasts exist for adaptive")


def test_batches_of_a_stream_wait_until_they_are_full(capfd: Capture, tmp_path: Path) -> None:
    config = tmp_path / "stream.toml"
    plan = ("plan", "--config", config, "--records")
    config.write_text(GOOD)
    cure = "take more records or set stream.max_wait_seconds"
    one_line(call(capfd, *plan, 3000), 2, f"do not fill a batch of at least 4096: {cure}")
    assert facts(capfd, *plan, 20_000)["batches"] == [4096, 6552]
    assert "the last 9,352 records do not fill a batch" in " ".join(call(capfd, *plan, 20_000).stdout.split())
    config.write_text(GOOD + "max_wait_seconds = 3600.0\n")
    assert facts(capfd, *plan, 3000)["batches"] == [3000]
    assert facts(capfd, *plan, 20_000)["batches"] == [4096, 6552, 9352]


def test_a_stream_without_a_release_has_no_forecast(capfd: Capture, tmp_path: Path) -> None:
    config = tmp_path / "stream.toml"
    config.write_text(GOOD.replace("epsilon = 1.0", "epsilon = 0.05"))
    known = ("--dim", 4, "--epsilon", 0.05, "--batches", "growing")
    for how in (known, ("--config", config)):
        line = "10000 records do not fill a batch of at least 1"
        one_line(call(capfd, "plan", "--records", 10_000, *how), 2, line)
        assert facts(capfd, "plan", "--records", 20_000, *how)["batches"][0] > 13_000


@pytest.mark.parametrize(
    ("option", "value", "words", "harmless"),
    [
        ("--epsilon", 1000, "epsilon = 1000 is above 20: results may reveal a record", 20),
        ("--delta", 1e-4, "delta = 0.0001 is not below 1/records", 1e-6),
    ],
)
def test_an_epsilon_and_a_delta_that_hardly_protect_are_warned_of(
    option: str, value: float, words: str, harmless: float, capfd: Capture
) -> None:
    result = call(capfd, *KNOWN, option, value)
    assert result.returncode == 0
    assert f"warning: {words}" in " ".join(result.stdout.split())
    assert facts(capfd, *KNOWN, option, value)["warnings"]
    assert facts(capfd, *KNOWN, option, harmless)["warnings"] == []
