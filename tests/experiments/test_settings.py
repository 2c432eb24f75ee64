"""The data of the experiments are drawn as the setting describes."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.settings import Draw, Setting
from streaming_pca.linalg.subspace import orthonormalise

SPIKED = Setting("spiked", 20_000, 6, (10.0, 5.0), 0.5)
ONE = Setting("spiked", 20_000, 6, (3.0,), 0.5)
GAUSSIAN = Setting("gaussian", 20_000, 6, (10.0, 5.0), 0.5)
COHERENT = Setting("coherent", 20_000, 40, (200.0,), 0.3, carriers=500)
EVERY = pytest.mark.parametrize(
    "setting", [SPIKED, ONE, GAUSSIAN, COHERENT], ids=lambda s: f"{s.family}{s.k}"
)


def matrix(draw: Draw, first: int = 0, count: int | None = None) -> np.ndarray:
    """Return the mean of the records' matrices."""
    batch = draw.batch(first, draw.setting.n if count is None else count)
    rows = batch.rows.astype(np.float64)
    return rows.T @ rows / len(batch)


@EVERY
def test_records_have_the_moment_that_the_setting_says(setting: Setting) -> None:
    """Deviations of 20,000 records are below 7 standard errors of an entry, with margin."""
    draw = Draw(setting, 1)
    noise = setting.sigma**2
    if setting.family == "coherent":
        noise /= setting.dim - 1
    expected = draw.truth.T @ np.diag(setting.strengths) @ draw.truth + noise * np.eye(setting.dim)
    if setting.family == "coherent":
        expected -= noise * np.outer(draw.truth[0], draw.truth[0])
    np.testing.assert_allclose(
        matrix(draw), expected, atol={"gaussian": 0.7, "spiked": 0.06, "coherent": 1e-3}[setting.family]
    )


@EVERY
def test_the_truth_is_orthonormal_and_leads_the_moment(setting: Setting) -> None:
    draw = Draw(setting, 2)
    np.testing.assert_allclose(draw.truth @ draw.truth.T, np.eye(setting.k), atol=1e-12)
    leading = np.linalg.eigh(matrix(draw))[1][:, ::-1][:, : setting.k].T
    assert draw.error("subspace", leading) < 0.05


@EVERY
def test_batches_are_parts_of_one_stream(setting: Setting) -> None:
    draw = Draw(setting, 3)
    whole = draw.batch(0, 9_000)
    parts = [draw.batch(0, 8_191), draw.batch(8_191, 809)]
    assert [len(part) for part in (whole, *parts)] == [9_000, 8_191, 809]
    np.testing.assert_array_equal(whole.rows, np.concatenate([part.rows for part in parts]))
    assert whole.rows.dtype == np.float32
    assert (np.diff(whole.starts) == setting.rows).all()
    assert len(draw.batch(setting.n - 5, 9_000)) == 5


@EVERY
def test_a_seed_names_one_stream(setting: Setting) -> None:
    a, b, c = Draw(setting, 4), Draw(setting, 4), Draw(setting, 5)
    np.testing.assert_array_equal(a.batch(0, 100).rows, b.batch(0, 100).rows)
    assert not np.array_equal(a.batch(0, 100).rows, c.batch(0, 100).rows)
    assert a.start().random() == b.start().random()
    # An estimator's start must be independent of the truth, which is drawn from the same seed.
    first = orthonormalise(a.start().standard_normal((setting.dim, setting.k))).T
    assert a.error("subspace", first) > 0.1


@EVERY
def test_the_papers_radius_clips_next_to_nothing(setting: Setting) -> None:
    """No record of 20,000 is clipped; the papers' own count gives a probability of 0.01.

    Their noise term is sqrt(ln(n/zeta)) = 3.8 times the necessary value; these seeds are fixed.
    """
    batch = Draw(setting, 6).batch(0, setting.n)
    squared = np.add.reduceat(np.square(batch.rows.astype(np.float64)).sum(axis=1), batch.starts[:-1])
    assert squared.max() <= setting.norm_bound**2


def test_coherence_is_what_the_carriers_say_and_rows_stay_in_the_unit_ball() -> None:
    values = {}
    for carriers in (220, 2_000, 20_000):
        setting = Setting("coherent", 20_000, 40, (200.0,), 0.3, carriers=carriers)
        rows = Draw(setting, 7).batch(0, setting.n).rows.astype(np.float64)
        assert np.linalg.norm(rows, axis=1).max() <= 1.0
        left, singular, _ = np.linalg.svd(rows, full_matrices=False)
        assert np.abs(left[:, 0]).max() == pytest.approx(carriers**-0.5, rel=0.1)
        values[carriers] = singular[:2] ** 2
    # Only the coherence changes.
    for found in values.values():
        assert found[0] == pytest.approx(200, rel=0.02)
        assert found[1] == pytest.approx(0.09 * 20_000 / 39, rel=0.1)


def test_rows_that_do_not_fit_into_the_unit_ball_are_refused() -> None:
    with pytest.raises(ValueError, match="unit ball"):
        Setting("coherent", 20_000, 6, (200.0,), 0.3, carriers=200)


@pytest.mark.parametrize("measure", ["subspace", "energy", "sine"])
def test_errors_are_0_at_the_truth_and_known_at_random(measure: str) -> None:
    setting = ONE if measure == "sine" else SPIKED
    draw = Draw(setting, 8)
    assert draw.error(measure, draw.truth) == pytest.approx(0, abs=1e-12)  # type: ignore[arg-type]
    rng = np.random.default_rng(9)
    found = [
        draw.error(measure, orthonormalise(rng.standard_normal((6, setting.k))).T)  # type: ignore[arg-type]
        for _ in range(4_000)
    ]
    # The root of the mean square for "subspace"; 4,000 draws: 1% is 6 standard errors and more.
    mean = np.sqrt(np.mean(np.square(found))) if measure == "subspace" else np.mean(found)
    assert mean == pytest.approx(setting.random_error(measure), rel=0.03)  # type: ignore[arg-type]


def test_energy_is_what_definition_1_of_004_says() -> None:
    draw = Draw(SPIKED, 10)
    components = orthonormalise(np.random.default_rng(11).standard_normal((6, 2))).T
    sigma = draw.truth.T @ np.diag([10.0, 5.0]) @ draw.truth + 0.25 * np.eye(6)
    kept = np.trace(components @ sigma @ components.T) / np.trace(draw.truth @ sigma @ draw.truth.T)
    assert draw.error("energy", components) == pytest.approx(1 - kept, rel=1e-9)
