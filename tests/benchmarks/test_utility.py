"""The utility benchmark: its data, its floor and ratios, and verdicts that can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import utility
from benchmarks.accuracy import comparison, plots, rivals
from benchmarks.accuracy.clipped_covariance import ClippedCovariance
from benchmarks.accuracy.comparison import CLIP_QUANTILES, judge, measure
from benchmarks.accuracy.rivals import Skipped, library_pca, oja
from benchmarks.accuracy.settings import (
    TABLE,
    Target,
    flights_setting,
    gaussian,
    select,
    slow,
    spiked,
    student,
)
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.demo import flights
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.randomness import utility_generator

ROOT = Path(__file__).parents[2]


def leading(moment: np.ndarray, k: int) -> np.ndarray:
    return np.linalg.eigh(moment)[1][:, ::-1][:, :k].T


def test_the_floor_of_a_spiked_draw_is_the_mean_matrix_and_near_the_truth() -> None:
    draw = spiked(2_000, 12, 2, 0.5, 1e-2).draw(3)
    assert draw.records.shape == (2_000, 3, 12)
    rows = draw.records.reshape(-1, 12).astype(np.float64)
    assert subspace_error(draw.floor, leading(rows.T @ rows, 2)) < 1e-7
    assert 1e-5 < subspace_error(draw.floor, draw.truth) < 0.02


def test_a_spiked_record_is_strong_along_the_truth() -> None:
    draw = spiked(4, 12, 3, 0.1, 1e-2).draw(0)
    signal = draw.records[0, :3].astype(np.float64)
    assert np.linalg.eigvalsh(signal.T @ signal)[::-1][:3] == pytest.approx([10.0, 7.5, 5.0], rel=1e-5)
    assert np.linalg.norm(signal - signal @ draw.truth.T @ draw.truth) < 1e-5


@pytest.mark.parametrize(
    "setting", [gaussian(40_000, 10, 2, 1e-2), slow("inverse", 40_000, 10, 2, 1e-2)], ids=lambda s: s.family
)
def test_the_floor_of_vectors_is_their_second_moment_and_near_the_truth(setting: Any) -> None:
    draw = setting.draw(1)
    rows = draw.records.astype(np.float64)
    assert subspace_error(draw.floor, leading(rows.T @ rows, 2)) < 1e-6
    assert subspace_error(draw.floor, draw.truth) < 0.1


def spectrum(setting: Any) -> np.ndarray:
    rows = setting.draw(5).records.astype(np.float64)
    return np.linalg.eigvalsh(rows.T @ rows / len(rows))[::-1]


def test_spectra_are_those_of_the_table() -> None:
    assert spectrum(slow("gap", 60_000, 6, 2, 1e-2)) == pytest.approx([10, 1.5, 1, 1, 1, 1], rel=0.05)
    inverse = [10 / i for i in range(1, 7)]
    assert spectrum(slow("inverse", 60_000, 6, 2, 1e-2)) == pytest.approx(inverse, rel=0.05)
    assert spectrum(gaussian(60_000, 6, 2, 1e-2)) == pytest.approx([11, 6, 1, 1, 1, 1], rel=0.05)


def test_student_records_have_tails_that_gaussian_ones_have_not() -> None:
    for setting, heavy in ((student(20_000, 10, 2, 1e-2), True), (gaussian(20_000, 10, 2, 1e-2), False)):
        norms = np.linalg.norm(setting.draw(2).records, axis=1)
        assert (norms.max() > 10 * np.median(norms)) == heavy


def test_a_seed_names_its_records() -> None:
    setting = gaussian(100, 6, 2, 1e-2)
    assert np.array_equal(setting.draw(7).records, setting.draw(7).records)
    assert not np.array_equal(setting.draw(7).records, setting.draw(8).records)


@pytest.mark.parametrize("seed", [0, 1000])
def test_the_librarys_initial_basis_of_a_seed_is_not_the_truth_of_that_seed(seed: int) -> None:
    initial = orthonormalise(utility_generator(seed).standard_normal((200, 2))).T
    assert subspace_error(gaussian(2, 200, 2, 1e-2).draw(seed).truth, initial) > 1.5


SPECTRA = [(k, s) for k in (2, 5) for s in ("0.025", "0.5")]
EXPECTED = {
    (1.4, "floor"): {f"spiked-n100k-k{k}-s{s}-d1e-2" for k, s in SPECTRA},
    (1.15, "floor"): {f"spiked-n400k-k{k}-s{s}-d1e-2" for k, s in SPECTRA},
    (1.5, "floor"): {f"spiked-n400k-k{k}-s{s}-d1e-6" for k, s in SPECTRA},
    (1.1, "route"): {
        *(f"gaussian-n{n}-k{k}-d{d}" for n in ("100k", "400k") for k in (2, 5) for d in ("1e-2", "1e-6")),
        *(f"wide-{family}-d1e-2" for family in ("spiked-n100k-k2-s0.025", "spiked-n100k-k2-s0.5")),
        "wide-gaussian-n100k-k2-d1e-2",
    },
    (1.25, "route"): {
        *(f"slow-inverse-n100k-k{k}-d1e-2" for k in (2, 5)),
        *(f"slow-gap-n100k-k{k}-d1e-2" for k in (1, 2)),
    },
    (0.012, "random"): {"flights-shuffled-k3", "flights-shuffled-k5"},
    (0.03, "random"): {"flights-ordered-k3", "flights-ordered-k5"},
    (0.06, "random"): {"flights-unbounded-k3", "flights-unbounded-k5"},
    (1.15, "hindsight"): {
        "flights-unbounded-k3",
        "flights-unbounded-k5",
        *(f"student-n100k-k{k}-d{d}" for k in (2, 5) for d in ("1e-2", "1e-6")),
    },
}


def test_the_table_has_every_target_of_the_design() -> None:
    found: dict[tuple[float, str], set[str]] = {}
    for setting in TABLE.values():
        for target in setting.targets:
            found.setdefault((target.factor, target.of), set()).add(setting.name)
    assert found == EXPECTED
    assert [s.name for s in TABLE.values() if not s.targets and not s.beside_peers] == [
        "flights-ordered-9-batches-k3",
        "flights-ordered-9-batches-k5",
        "small-gaussian-n100k-k2-d1e-2",
    ]


def test_settings_are_what_their_names_say() -> None:
    for setting in TABLE.values():
        if setting.beside_peers:
            continue
        wide, small = setting.name.startswith("wide"), setting.name.startswith("small")
        dim = 145 if setting.family == "flights" else 1000 if wide else 8 if small else 200
        assert (setting.dim, setting.epsilon) == (dim, 1.0)
        assert setting.n == (336_776 if dim == 145 else 400_000 if "n400k" in setting.name else 100_000)
        assert f"k{setting.k}" in setting.name
        assert setting.delta == (1e-2 if "d1e-2" in setting.name else 1e-6)
        assert setting.seeds == (10 if setting.family == "student" else 5)
        assert setting.in_order == ("ordered" in setting.name)
        assert setting.centering == ("auto" if dim == 145 else "none")
        assert (setting.bounds is not None) == (dim == 145 and "unbounded" not in setting.name)


def test_patterns_select_settings_in_the_tables_order_once() -> None:
    names = [setting.name for setting in select(["flights-*-k5", "flights-ordered-*", "slow-gap-*-k1-*"])]
    assert names == [
        "slow-gap-n100k-k1-d1e-2", "flights-shuffled-k5", "flights-ordered-k3", "flights-ordered-k5",
        "flights-ordered-9-batches-k3", "flights-ordered-9-batches-k5", "flights-unbounded-k5",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no setting 'spiky-\*'"):
        select(["spiked-*", "spiky-*"])


def test_flights_without_bounds_are_the_bounded_ones_before_the_clip() -> None:
    raw = flights_setting("unbounded", 3).draw(0)
    bounded = flights_setting("shuffled", 3).draw(0)
    assert np.abs(raw.records).max() > 2 * flights.BOUND
    assert np.array_equal(np.clip(raw.records, -flights.BOUND, flights.BOUND), bounded.records)
    assert subspace_error(raw.truth, bounded.truth) > 0.01
    in_order = flights_setting("ordered", 3).draw(0)
    assert not np.array_equal(in_order.records, bounded.records)
    assert np.array_equal(in_order.truth, bounded.truth)


@pytest.mark.parametrize(("error", "holds"), [(0.24, True), (0.25, True), (0.26, False)])
def test_a_target_holds_up_to_its_factor_and_fails_beyond(error: float, holds: bool) -> None:
    found = judge(Target(2.0, "floor"), error, {"floor": 0.125}, {})
    assert found["holds"] is holds
    assert found["ratio"] == error / 0.125


def test_what_did_not_run_is_not_judged() -> None:
    missing = judge(Target(1.1, "route"), 0.1, {"route": None}, {"route": "block: not in the registry"})
    assert (missing["holds"], missing["why"]) == (None, "block: not in the registry")
    assert judge(Target(1.1, "route"), None, {"route": 0.1}, {})["holds"] is None


@pytest.fixture
def analyze_gauss_as_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "DEFAULT", "analyze-gauss")
    monkeypatch.setattr(comparison, "ROUTES", ("analyze-gauss",))


@pytest.mark.usefixtures("analyze_gauss_as_default")
def test_ratios_and_verdicts_are_those_of_the_means() -> None:
    targets = (Target(1e-6, "floor"), Target(1.0, "route"), Target(1.0, "random"), Target(1e6, "hindsight"))
    setting = gaussian(4_000, 6, 2, 1e-2, targets)
    found = measure(setting, [0, 1, 2], ["analyze-gauss"])
    rows = {row["method"]: row for row in found["results"]}
    errors = rows["analyze-gauss"]["errors"]
    assert rows["analyze-gauss"]["mean"] == pytest.approx(np.mean(errors))
    assert rows["analyze-gauss"]["sd"] == pytest.approx(np.std(errors, ddof=1))
    assert rows["analyze-gauss"]["ratio_to_floor"] == pytest.approx(np.mean(errors) / rows["floor"]["mean"])
    assert rows["analyze-gauss"]["ratio_to_route"] == 1.0
    assert [target["holds"] for target in found["targets"]] == [False, True, True, True]
    fixed = found["fixed_quantiles"]
    assert [row["clip_quantile"] for row in fixed] == list(CLIP_QUANTILES)
    assert found["targets"][3]["reference"] == min(row["mean"] for row in fixed)
    best = min(fixed, key=lambda row: row["mean"])
    assert found["best_in_hindsight"] == {k: best[k] for k in ("method", "clip_quantile")}
    json.dumps(found, allow_nan=False)


def test_a_route_that_did_not_run_leaves_its_targets_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "DEFAULT", "analyze-gauss")
    monkeypatch.setattr(comparison, "ROUTES", ("analyze-gauss", "no-route"))
    setting = gaussian(2_000, 5, 1, 1e-2, (Target(9.0, "route"), Target(9.0, "hindsight")))
    found = measure(setting, [0], ["analyze-gauss", "no-route", "private-oja"])
    assert [target["holds"] for target in found["targets"]] == [None, None]
    assert found["targets"][0]["why"] == "no-route: not in the registry"
    assert [row["skipped"] for row in found["results"][2:]] == [
        "not in the registry",
        "options of private-oja: clip_radius: must be set",
    ]
    assert "not judged" in utility.verdict(found)


def test_errors_against_the_records_have_no_ratio_to_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    records = np.random.default_rng(0).standard_normal((600, flights.N_FEATURES)).astype(np.float32)
    monkeypatch.setattr(
        "benchmarks.accuracy.settings._load_flights", lambda bounded: flights.Flights(records)
    )
    monkeypatch.setattr(
        "benchmarks.accuracy.settings._flights_vectors", lambda bounded: ClippedCovariance(records)
    )
    found = measure(flights_setting("shuffled", 3), [0], ["analyze-gauss"])
    assert found["results"][0]["mean"] == pytest.approx(0.0, abs=1e-12)
    assert found["results"][1]["ratio_to_floor"] is None
    assert found["results"][1]["ratio_to_random"] == found["results"][1]["mean"] / found["random_error"]


def test_records_in_order_are_taken_as_they_come_in_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = np.random.default_rng(0).standard_normal((20_001, flights.N_FEATURES)).astype(np.float32)
    taken: list[np.ndarray] = []

    class Spy:
        @staticmethod
        def of_vectors(rows: np.ndarray) -> ArrayBatch:
            taken.append(rows)
            return ArrayBatch.of_vectors(rows)

    monkeypatch.setattr(comparison, "ArrayBatch", Spy)
    components = comparison._fit_in_order(
        flights_setting("ordered", 3, batches=9), records, comparison.Run("analyze-gauss"), 0
    )
    assert components.shape == (3, flights.N_FEATURES)
    assert len(taken) == 9
    assert np.array_equal(np.concatenate(taken), records)


def printed_oja(factors: np.ndarray, start: np.ndarray, c: float, trace: float) -> np.ndarray:
    """Run [DunglerSanyal2026, Alg. 7] as printed: QR after every record."""
    q = start
    for t, rows in enumerate(factors, start=1):
        q = np.linalg.qr(q + c / (trace * (t + c)) * rows.T @ (rows @ q))[0]
    return q.T


@pytest.mark.parametrize("shape", [(500, 7), (300, 3, 7)])
def test_oja_is_the_printed_algorithm_for_every_rate(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    records = (rng.standard_normal(shape) * [5, 3, 2, 1, 1, 1, 1] + 1.0).astype(np.float32)
    found = oja(records, 2, seed=4, rates=(1.0, 50.0), centred=True)
    factors = records.reshape(shape[0], -1, 7).astype(np.float64)
    factors -= factors.mean(axis=(0, 1))
    start = orthonormalise(np.random.default_rng([4, 2]).standard_normal((7, 2)))
    trace = np.square(factors).sum() / len(factors)
    for rate, components in found.items():
        assert subspace_error(components, printed_oja(factors, start, rate, trace)) < 1e-7


def test_oja_keeps_the_rate_that_was_best_in_hindsight() -> None:
    found = measure(gaussian(3_000, 6, 2, 1e-2), [0, 1], ["oja"])
    row = found["results"][1]
    assert found["oja_rate"] in rivals.OJA_RATES
    assert row["mean"] < 0.3
    rates = [
        np.mean([subspace_error(oja(d.records, 2, s)[rate], d.truth) for s, d in draws])
        for draws in [[(s, gaussian(3_000, 6, 2, 1e-2).draw(s)) for s in (0, 1)]]
        for rate in rivals.OJA_RATES
    ]
    assert row["mean"] == min(rates)


def test_a_library_is_not_tried_where_it_cannot_finish() -> None:
    with pytest.raises(Skipped, match="vectors only"):
        library_pca("opendp", np.zeros((4, 2, 3), np.float32), 1, 1.0, 0)
    with pytest.raises(Skipped, match="d = 11 > 10"):
        library_pca("opendp", np.zeros((4, 11), np.float32), 1, 1.0, 0)


def test_a_library_that_fails_or_lasts_says_so_and_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = np.ones((4, 3), np.float32)
    with pytest.raises(Skipped, match="/no/python: No such file"):
        library_pca("opendp", records, 1, 1.0, 0, python="/no/python")
    monkeypatch.setitem(rivals.LIBRARIES, "opendp", "import time; time.sleep(60)")
    with pytest.raises(Skipped, match=r"did not finish within 0\.2 s"):
        library_pca("opendp", records, 1, 1.0, 0, time_limit=0.2)
    monkeypatch.setitem(rivals.LIBRARIES, "opendp", "raise ImportError('no such thing')")
    found = measure(gaussian(100, 5, 2, 1e-2), [0, 1], ["opendp"])
    row = found["results"][1]
    assert "ImportError: no such thing" in row["skipped"]
    assert (row["mean"], row["errors"]) == (None, [])


def test_a_librarys_components_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import sys, numpy as np
x, k = np.load(sys.argv[1]), int(float(sys.argv[3]))
np.save(sys.argv[2], np.linalg.svd(x, full_matrices=False)[2][:k])
"""
    monkeypatch.setitem(rivals.LIBRARIES, "diffprivlib", script)
    draw = gaussian(2_000, 5, 2, 1e-2).draw(0)
    components = library_pca("diffprivlib", draw.records, 2, 1.0, 0)
    assert subspace_error(components, draw.floor) < 1e-6


def test_list_shows_settings_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    utility.main(["--list", "--setting", "flights-unbounded-*"])
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        [f"flights-unbounded-k{k}", "<= 0.06 x random; <= 1.15 x hindsight"] for k in (3, 5)
    ]


def test_json_is_a_line_a_setting_and_progress_is_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiny-1", "tiny-2"):
        monkeypatch.setitem(TABLE, name, gaussian(1_000, 4, 1, 1e-2, family="tiny"))
    utility.main(["--json", "--setting", "tiny-*", "--seeds", "2", "--estimator", "analyze-gauss"])
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.out.splitlines()]
    assert [row["seeds"] for row in found] == [[1000, 1001]] * 2
    assert [row["method"] for row in found[0]["results"]] == ["floor", "analyze-gauss"]
    assert len(printed.err.splitlines()) == 2


def test_without_json_a_table_says_what_was_skipped_and_that_oja_was_tuned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TABLE, "tiny", spiked(1_000, 4, 1, 0.5, 1e-2, family="tiny"))
    utility.main(["--setting", "tiny", "--seeds", "1", "--first-seed", "3", "--estimator", "opendp"])
    printed = capsys.readouterr().out
    assert "1 seed from 3" in printed
    assert "skipped: takes vectors only" in printed
    assert "learning rates in hindsight" in printed
    assert "seeds below 1000 were used for tuning" in printed


def test_plots_are_written_for_every_axis(tmp_path: Path) -> None:
    asked = []

    def fake(setting: Any) -> dict[str, Any]:
        asked.append(setting)
        row = {"method": "floor", "mean": 0.1, "sd": None}
        values = {"n": setting.n, "epsilon": setting.epsilon, "dim": setting.dim, "k": setting.k}
        return values | {"random_error": 1.0, "results": [row, row | {"method": "x", "mean": None}]}

    files = plots.write(tmp_path / "new", fake)
    assert [file.name for file in files] == [f"error-against-{axis}.png" for axis in plots.AXES]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    for axis in plots.AXES:
        along = [s for s in asked if s.name.startswith(f"plot-gaussian-{axis}-")]
        assert len({getattr(s, axis) for s in along}) == len(along) > 1
        others = [name for name in plots.AXES if name != axis]
        assert len({tuple(getattr(s, name) for name in others) for s in along}) == 1
