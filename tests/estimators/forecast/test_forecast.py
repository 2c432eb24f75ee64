"""Forecasts: their formulas agree with simulated and with private noise."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.clipped_batches import GrowingBatches
from streaming_pca.estimators.common.forgetting import batch_doubt, kept_share
from streaming_pca.estimators.forecast.forecast import (
    MOST_RECORDS,
    forecast,
    forecast_estimator,
    planned_batches,
)
from streaming_pca.estimators.forecast.result import TARGETS, Forecast, as_json, describe
from streaming_pca.estimators.registry import find
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.privacy.calibration.multipliers import least_multiplier
from streaming_pca.privacy.errors import ParameterError
from tests.estimators.suite import Floats, made, make

DIM, RANK, RECORDS, GAP = 30, 3, 12_000, 0.06


def known_records(seed: int) -> tuple[Floats, Floats]:
    """Return Gaussian records with exactly the gap, total variance 1, and their leading eigenvectors."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((RECORDS, DIM))
    white = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / RECORDS)).T
    values = np.full(DIM, (1 - RANK * GAP) / DIM)
    values[:RANK] += GAP
    turned = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    return white * np.sqrt(values) @ turned.T, turned[:, :RANK].T


def configured(name: str, radius: float, batches: int, contributions: int = 1) -> Estimator[Any, Any]:
    """Return an estimator with a public radius; it spends everything on one sum per batch."""
    options = {"clip_radius": radius, "n_records": RECORDS, "n_batches": batches}
    return made(find(name), DIM, RANK, contributions=contributions, **options)


def learnt(estimator: Estimator[Any, Any], x: Floats) -> tuple[Floats, Floats]:
    """Return the components and the standard errors of their variances."""
    state, first = estimator.init(np.random.default_rng(0)), 0
    while first < len(x):
        count = estimator.plan(state).count
        state = estimator.update(state, ArrayBatch.of_vectors(x[first : first + count], complete=True))
        first += count
    release = estimator.release(state)
    return release.components, release.explained_variance_error


def distance(one: Floats, other: Floats) -> float:
    """Return |U U^T - V V^T|_F of orthonormal rows."""
    return math.sqrt(max(2 * len(one) - 2 * float(np.sum((one @ other.T) ** 2)), 0.0))


@pytest.mark.parametrize(
    ("name", "batches", "contributions"), [("adaptive", 1, 1), ("analyze-gauss", 4, 1), ("adaptive", 3, 2)]
)
def test_the_noise_makes_the_error_that_was_forecast(name: str, batches: int, contributions: int) -> None:
    """The root mean square of eight fits is within 25%.

    The noise is real. The mean square is (to first order) chi-squared over its
    n = 8 k (d - k) = 648 degrees of freedom; by Chernoff's bound
    exp(-n (r - 1 - ln r)/2), r = 1.25^2, it is beyond with probability 1e-16,
    and below, r = 0.75^2, with 1e-19. The second order, 2% in 16 fits, leaves
    20% of room, and 1e-10: below 1e-6 for the three cases together.
    """
    squares, forecasts = [], []
    for seed in range(8):
        x, leading = known_records(seed)
        radius = 1.001 * float(np.max(np.sum(x**2, axis=1)))
        estimator = configured(name, radius, batches, contributions)
        # The total variance is 1.
        forecasts.append(forecast_estimator(estimator, RECORDS, tail=radius))
        found, errors = learnt(estimator, x)
        squares.append(distance(found, leading) ** 2)
        # Apart from the noise, a release accounts for its influence on the choice of directions.
        assert np.all(errors > 0.98 * forecasts[-1].variance_error)
        assert np.all(errors < 3 * forecasts[-1].variance_error)
    measured = math.sqrt(np.mean(squares))
    expected = math.sqrt(np.mean([(f.error_at(GAP) * f.random_error) ** 2 for f in forecasts]))
    assert 0.05 < expected / forecasts[0].random_error < 0.3
    assert measured == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(("dim", "rank"), [(10, 1), (10, 3), (50, 2), (50, 5)])
def test_the_error_saturates_as_simulated(dim: int, rank: int) -> None:
    # Noise with a fixed seed: no privacy, no chance.
    rng = np.random.default_rng(dim + rank)
    for x in (0.1, 0.5, 1.0, 2.0, 6.0):
        gap = 1 / (2 * rank)
        entry = x * gap / math.sqrt(dim)
        f = forecast(dim, rank, 1000, 1.0, 1e-6).with_noise(entry)
        squares, edges, angles, lost = [], [], [], []
        for _ in range(60):
            normal = rng.standard_normal((dim, dim))
            noise = entry * (normal + normal.T) / math.sqrt(2)
            leading = np.eye(dim)[:rank]
            found = np.linalg.eigh(gap * leading.T @ leading + noise)[1][:, -rank:].T
            squares.append(distance(found, leading) ** 2)
            angles.append(principal_angles(found, leading)[0])
            lost.append(gap * (rank - np.sum((found @ leading.T) ** 2)))
            edges.append(np.linalg.norm(noise, 2))
        assert math.sqrt(np.mean(squares)) == pytest.approx(f.error_at(gap) * f.random_error, rel=0.15)
        assert np.mean(edges) == pytest.approx(f.largest_noise, rel=0.2)
        # A bound of the first order, nearly attained. Above 60 degrees the text calls the subspace lost.
        forecast_angle, is_lost = f.angle_at(gap), f.angle_at(gap) > math.radians(60)
        assert is_lost == ("expected to be lost in noise" in " ".join(describe(f, gap).split()))
        upper = math.pi / 2 if is_lost else 1.1 * forecast_angle
        assert 0.7 * forecast_angle < np.mean(angles) < upper
        assert np.mean(lost) < f.variance_lost


@pytest.mark.parametrize(
    ("name", "lowest", "highest"), [("flat", 0.85, 1.0), ("1/i", 0.22, 0.36), ("near", 0.12, 0.18)]
)
def test_a_spectrum_that_is_not_flat_is_turned_by_less(name: str, lowest: float, highest: float) -> None:
    """docs/guide/choose-epsilon.md has these numbers; noise has a fixed seed and the forecast's own size."""
    spectra = {
        "flat": (np.array([2.0] * 3 + [1.0] * 37), 3),
        "1/i": (1 / np.arange(1.0, 41.0), 3),
        "near": (np.array([38.0, 37.0, *range(18, 0, -1)]), 1),
    }
    variances, rank = spectra[name]
    shares, dim = variances / variances.sum(), len(variances)
    gap = float(shares[rank - 1] - shares[rank])
    noise = gap / 500
    rng, angles = np.random.default_rng(0), []
    for _ in range(300):
        drawn = rng.standard_normal((dim, dim)) * noise
        vectors = np.linalg.eigh(np.diag(shares) + (drawn + drawn.T) / math.sqrt(2))[1]
        angles.append(principal_angles(vectors[:, ::-1][:, :rank].T, np.eye(rank, dim))[0])
    forecast_angle = forecast(dim, rank, 10_000, 1.0, 1e-6).with_noise(noise).angle_at(gap)
    assert lowest < np.mean(angles) / forecast_angle < highest


def test_forecasts_charge_what_estimators_charge() -> None:
    for contributions in (1, 3):
        estimator = configured("adaptive", 1.0, 3, contributions)
        plan = estimator.plan(estimator.init(np.random.default_rng(0)))
        assert forecast_estimator(estimator, RECORDS).charge == plan.charge


def test_equal_batches_cost_by_their_number_and_unequal_ones_less() -> None:
    one = forecast(20, 2, 10_000, 1.0, 1e-6, public_radius=True)
    assert one.entry_noise == pytest.approx(one.multiplier / 10_000 / math.sqrt(0.99))
    assert one.mu == pytest.approx(1 / least_multiplier(1.0, 1e-6))
    equal = forecast(20, 2, 10_000, 1.0, 1e-6, public_radius=True, batches=4)
    assert equal.batches == (2500,) * 4
    assert equal.entry_noise == pytest.approx(one.multiplier / 10_000 * math.sqrt(4 / 0.99))
    growing = forecast(20, 2, 10_000, 1.0, 1e-6, public_radius=True, batches=(1000, 2000, 3000, 4000))
    assert one.entry_noise < growing.entry_noise < equal.entry_noise
    # Where sampling dominates the uncertainty, batches weigh by their counts, and lengths do not matter.
    parts: list[Any] = [4, (1000, 2000, 3000, 4000)]
    certain = [forecast(1, 1, 10_000, 1e4, 1e-6, public_radius=True, batches=b).entry_noise for b in parts]
    assert certain[0] == pytest.approx(certain[1], rel=0.01)
    assert forecast(20, 2, 10, 1.0, 1e-6, public_radius=True, batches=3).batches == (4, 3, 3)
    users = forecast(20, 2, 10_000, 1.0, 1e-6, public_radius=True, batches=4, contributions=4)
    assert users.entry_noise == pytest.approx(2 * equal.entry_noise)
    assert float(users.charge.rho or 0) == pytest.approx(float(one.charge.rho or 0))
    long = forecast(20, 2, 10_000, 1.0, 1e-6, public_radius=True, tail=3.0)
    assert long.entry_noise == pytest.approx(3 * one.entry_noise)


def test_gap_error_and_records_agree() -> None:
    f = forecast(50, 2, 100_000, 1.0, 1e-6, batches=2)
    for error in TARGETS:
        gap = f.gap_for(error)
        assert f.error_at(gap) == pytest.approx(error)
        assert f.records_for(gap, error) == pytest.approx(100_000, abs=1)
        first_order = math.sqrt(2 * 2 * 48) * f.entry_noise / gap
        assert first_order == pytest.approx(error * f.random_error, rel=0.01)
    assert f.error_at(1e-12) == pytest.approx(1.0)
    assert f.records_for(1e-12, 0.01) is None


def test_the_whole_space_needs_no_gap() -> None:
    f = forecast(4, 4, 1000, 1.0, 1e-6)
    assert (f.gap_for(0.05), f.error_at(0.1), f.random_error, f.warnings) == (0.0, 0.0, 0.0, ())
    assert (f.angle_at(0.1), f.variance_lost) == (0.0, 0.0)
    assert "the 4 components span the whole space, which noise cannot turn" in str(f).replace("\n", " ")
    assert "Expected angle" not in str(f)


def test_many_features_get_a_bound_for_the_block_route() -> None:
    block, covariance = (forecast(dim, 2, 10**6, 1.0, 1e-6) for dim in (513, 512))
    assert (block.route, covariance.route) == ("block", "covariance")
    assert block.entry_noise == pytest.approx(2 * covariance.entry_noise)
    assert block.largest_noise < covariance.largest_noise * 1.1
    assert block.total_error is None
    assert block.variance_lost is None
    for found, is_bound in ((block, True), (covariance, False)):
        text = str(found).replace("\n", " ")
        assert ("it is a bound, for residuals as large as records" in text) == is_bound
        assert ("is expected at most about" in text) == is_bound
        assert ("For any spectrum" in text) != is_bound


def test_an_endless_stream_is_cut_as_its_estimator_cuts_it() -> None:
    assert planned_batches(4096) == (4096,)
    assert planned_batches(20_000) == (4096, 6552, 9352)
    # One record does not close a batch.
    assert planned_batches(4097) == (4096,)
    assert max(planned_batches(10**7)) == 131_072
    for records in (10**6, 10**7, 10**7 + 1):
        sizes, options = planned_batches(records), GrowingBatches()
        assert 0 <= records - sum(sizes) < 400
        assert sizes[:-1] == tuple(options.count(i) for i in range(len(sizes) - 1))
    reported = GrowingBatches(n_records=9000, n_batches=3, growth=1.0)
    assert planned_batches(9000, reported) == (3000,) * 3


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
@pytest.mark.parametrize("centering", ["auto", "pairs"])
@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss", "block"])
@pytest.mark.parametrize(
    "options", [{}, {"growth": 2.0}, {"first_batch": 600}, {"max_batch": 20_000}], ids=str
)
def test_the_batches_of_a_stream_are_its_plans(
    name: str, centering: str, epsilon: float, options: dict[str, Any]
) -> None:
    """A small epsilon needs large batches, also the last one, unless the options set their sizes."""
    estimator = made(find(name), DIM, RANK, centering, epsilon=epsilon, **options)
    state, records = estimator.init(np.random.default_rng(0)), 200_000
    sizes: list[int] = []
    while (left := records - sum(sizes)) >= (plan := estimator.plan(state)).least:
        sizes.append(min(plan.count, left))
        state = replace(state, batch=len(sizes), records=sum(sizes))
    assert forecast_estimator(estimator, records).batches == tuple(sizes)


def test_a_stream_that_forgets_gains_nothing_from_more_records() -> None:
    noise = []
    for records in (10**6, 10**7):
        found = forecast_estimator(made(find("adaptive"), DIM, RANK, "auto", half_life=50_000.0), records)
        # The filter of docs/explanation/default-estimator.md, batch by batch.
        before, square = math.inf, 0.0
        for i, size in enumerate(found.batches):
            doubt = batch_doubt(DIM, size, found.multiplier)
            own = (found.multiplier / size) ** 2 / (found.shares.later if i else found.shares.first)
            before /= kept_share(50_000.0, size)
            gain = before / (before + doubt) if i else 1.0
            before, square = gain * doubt, (1 - gain) ** 2 * square + gain**2 * own
        assert found.entry_noise == pytest.approx(math.sqrt(square))
        assert {value for _, value in found.by_records} != {found.entry_noise}
        noise.append(found.entry_noise)
    assert noise[1] > 0.8 * noise[0]
    endless = forecast_estimator(made(find("adaptive"), DIM, RANK, "auto"), 10**7)
    assert noise[1] > 3 * endless.entry_noise
    drifting = forecast_estimator(made(find("adaptive"), DIM, RANK, "auto", half_life="auto"), 10**7)
    assert drifting.entry_noise == endless.entry_noise
    assert any("while the records drift" in each for each in drifting.warnings)


def test_batches_of_rows_count_messages() -> None:
    estimator = made(find("adaptive"), DIM, RANK, "auto")
    assert forecast_estimator(estimator, 2**20, rows=256).batches == (2**20,)
    for records, text in (
        (20_000, "^78 records do not fill a batch"),
        (255, "^255 records do not fill a message"),
    ):
        with pytest.raises(ParameterError, match=text):
            forecast_estimator(estimator, records, rows=256, only_full=True)


def test_too_few_records_for_a_batch_have_no_forecast() -> None:
    estimator = made(find("adaptive"), DIM, RANK, "auto", epsilon=0.05)
    text = "^10000 records do not fill a batch of at least 13855: take more records or a larger epsilon$"
    for each in (None, GrowingBatches()):
        with pytest.raises(ParameterError, match=text):
            forecast_estimator(estimator, 10_000, batches=each)
    assert forecast_estimator(estimator, 10_000, batches=2).batches == (5000, 5000)
    enough = forecast_estimator(estimator, 13_855)
    # Points of the curves need as many.
    assert next(count for count, _ in enough.by_records) == 13_855
    assert next(value for value, _ in enough.by_epsilon) == 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 6}, "rank = 6 is above dim = 5"),
        ({"rank": 0}, "rank must be a whole number"),
        ({"dim": 10_000}, "dim must be at most 8192"),
        ({"records": 1}, "1 records do not fill 1 batches of at least 2"),
        ({"records": 10**11}, "records must be at most"),
        ({"records": 10**7}, "take 3 batches or more"),
        ({"batches": 600}, "1000 records do not fill 600 batches of at least 2"),
        ({"batches": 10**9}, "batches must be at most"),
        ({"batches": (400, 500)}, "900 records together, not 1000"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": 1e13}, "epsilon"),
        ({"epsilon": 1e-300, "delta": 1e-300}, "need more noise than a float holds"),
        ({"delta": 1.0}, "delta must"),
        ({"contributions": 0}, "contributions must be"),
        ({"tail": 0.0}, "tail must be"),
        ({"tail": 1e9}, "tail must lie"),
    ],
)
def test_a_wrong_parameter_is_named(changes: dict[str, Any], message: str) -> None:
    parameters = {"dim": 5, "rank": 2, "records": 1000, "epsilon": 1.0, "delta": 1e-6, **changes}
    with pytest.raises(ParameterError, match=message):
        forecast(**parameters)


def test_a_wrong_gap_or_error_is_named() -> None:
    f = forecast(5, 2, 1000, 1.0, 1e-6)
    for gap in (0.0, -1.0, 0.51, 1e-13, math.nan):
        with pytest.raises(ParameterError, match="gap"):
            f.error_at(gap)
    for error in (0.0, 1.0):
        with pytest.raises(ParameterError, match="error"):
            f.gap_for(error)


def test_doubtful_parameters_are_warned_of() -> None:
    warned: Forecast = forecast(50, 2, 1000, 0.1, 1e-3, contributions=2)
    assert len(warned.warnings) == 3
    for line, start in zip(warned.warnings, ("delta = 0.001", "contributions = 2", "the noise"), strict=True):
        assert line.startswith(start)
        assert "\n" not in line
    assert forecast(50, 2, 100_000, 1.0, 1e-6).warnings == ()


def test_remedies_for_noise_name_only_what_can_be_lowered() -> None:
    def last(rank: int, batches: int) -> str:
        return forecast(50, rank, 1000, 0.1, 1e-6, batches=batches).warnings[-1]

    assert last(1, 1).endswith("take more records or a larger epsilon")
    assert last(2, 2).endswith("take more records, a larger epsilon, fewer batches or fewer components")


@pytest.mark.parametrize(
    ("batches", "other"),
    [
        (3, 3),
        ((1000, 2000, 9000), (500, 1000, 4500)),
        (GrowingBatches(), GrowingBatches()),
        (GrowingBatches(n_records=12_000, n_batches=3), GrowingBatches(n_records=6000, n_batches=3)),
    ],
)
def test_points_of_the_curves_are_forecasts_of_their_own(batches: Any, other: Any) -> None:
    f = forecast(20, 2, 12_000, 1.0, 1e-6, batches=batches)
    epsilons, counts = dict(f.by_epsilon), dict(f.by_records)
    assert len(epsilons) == len(counts) == 13
    assert epsilons[1.0] == counts[12_000] == f.entry_noise
    for epsilon in (0.125, 0.5, 8.0):
        assert epsilons[epsilon] == forecast(20, 2, 12_000, epsilon, 1e-6, batches=batches).entry_noise
    assert counts[6000] == forecast(20, 2, 6000, 1.0, 1e-6, batches=other).entry_noise
    for points in (f.by_epsilon, f.by_records):
        values, noises = zip(*points, strict=True)
        assert list(values) == sorted(values)
        assert list(noises) == sorted(noises, reverse=True)


def test_points_without_a_forecast_are_absent() -> None:
    assert next(count for count, _ in forecast(5, 2, 8, 1.0, 1e-6, batches=2).by_records) == 4
    most = forecast(5, 2, MOST_RECORDS, 1.0, 1e-6, batches=3000)
    assert max(count for count, _ in most.by_records) == 10**10
    assert [value for value, _ in forecast(5, 2, 100, 1e12 / 3, 1e-6).by_epsilon][-1] < 1e13


def test_more_records_than_a_batch_holds_take_more_batches() -> None:
    f = forecast(5, 2, 4_000_000, 1.0, 1e-6)
    assert len(f.batches) == 1
    own = forecast(5, 2, 8_000_000, 1.0, 1e-6, batches=2)
    assert dict(f.by_records)[8_000_000] == own.entry_noise
    options = GrowingBatches(n_records=4_000_000, n_batches=1)
    g = forecast(5, 2, 4_000_000, 1.0, 1e-6, batches=options)
    assert dict(g.by_records)[8_000_000] == pytest.approx(own.entry_noise, rel=1e-6)


@pytest.mark.parametrize("dim", [3, 500, 8192])
@pytest.mark.parametrize("epsilon", [1e-9, 1.0, 100.0])
def test_text_fits_a_terminal(dim: int, epsilon: float) -> None:
    f = forecast(dim, 2, 10**9, epsilon, 1e-6, batches=planned_batches(10**9), contributions=1000)
    for gap in (None, 0.1):
        for verbose in (False, True):
            assert max(map(len, describe(f, gap, verbose=verbose).splitlines())) <= 80


def test_the_text_begins_with_plain_words_and_has_no_formulas_unless_asked_for() -> None:
    f = forecast(14, 3, 20_000, 1.0, 1e-6)
    text, more = describe(f), describe(f, verbose=True)
    first = " ".join(text.split("\n\n")[0].split())
    angle = math.degrees(f.angle_at(1 / 15))
    assert first.startswith(
        "With 20,000 records of 14 features and epsilon 1, the subspace of 3 components is expected about "
        f"{angle:.1f} degrees from the one without noise, if variance 3 exceeds the next one by 6.7% "
        "of the total variance and the records have one size. "
    )
    assert first.endswith("Each record is charged epsilon 1 and delta 1e-06.")
    for word in ("mu", "rho", "noise multiplier", "shares of mu²", "gap needed"):
        assert not re.search(rf"\b{word}\b", text)
        assert re.search(rf"\b{word}", more)
    for title, rows in (("against epsilon", ("0.25", "0.5", "1", "2", "4")),
                        ("against records", ("5,000", "10,000", "20,000", "40,000", "80,000"))):  # fmt: skip
        (block,) = (part for part in text.split("\n\n") if title in part)
        _, head, *lines = block.splitlines()
        assert head.split()[1:] == ["gap", "17%", "gap", "6.7%", "gap", "1.7%"]
        assert [line.split()[0] for line in lines] == list(rows)
    assert "covers noise alone" in " ".join(text.split())
    assert "is expected to be lost in noise" in " ".join(str(forecast(50, 2, 1000, 0.1, 1e-6)).split())
    one = " ".join(describe(forecast(14, 1, 20_000, 1.0, 1e-6), 0.1).split())
    assert "the leading direction is expected about" in one
    assert "assumed are" not in one
    tiny = " ".join(str(forecast(5, 2, 3_000_000, 30.0, 1e-6, tail=3)).split())
    assert "is expected less than 0.01 degrees" in tiny
    assert "and the tail is 3." in tiny
    assert "<0.01°" in tiny


def test_json_has_curves_at_the_given_gap_or_at_assumed_ones() -> None:
    f = forecast(14, 3, 20_000, 1.0, 1e-6)
    for gap, gaps in ((None, [1 / 6, 1 / 15, 1 / 60]), (0.1, [0.1])):
        facts = as_json(f, gap)
        assert facts["gaps"] == pytest.approx(gaps)
        assert facts["angles"] == [f.angle_at(each) for each in facts["gaps"]]
        for name, points in (("epsilon", f.by_epsilon), ("records", f.by_records)):
            shown = facts[f"by_{name}"]
            assert [(point[name], point["entry_noise"]) for point in shown] == list(points)
            assert all(len(point["angles"]) == len(gaps) for point in shown)
            assert facts["angles"] in [point["angles"] for point in shown]


def test_other_estimators_have_no_forecast() -> None:
    with pytest.raises(ParameterError, match="forecasts exist for adaptive"):
        forecast_estimator(make("private-oja"), 1000)
