"""The records' mean, found from coarse to fine: accuracy, effect of noise, influence of a record.

Data and noise have fixed seeds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common import centre as module
from streaming_pca.estimators.common.budget import WHOLE, Budget
from streaming_pca.estimators.common.centre import coarse_to_fine, last_share, refine
from streaming_pca.estimators.common.norm_distribution import private_quantile_radius
from streaming_pca.kernels.record_means import MEAN_RADIUS
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import LARGE, Floats, make, spiked, start, watched
from tests.privacy.noise import ScriptedSampler, SeededSampler

RADII = (2.0**-20, 2.0**30)
Z, D = 4.2, 10


def budget() -> Budget:
    return Budget(Z, 1.0)


def rows(m: int, mean: float, d: int = D, seed: int = 0) -> Floats:
    """Return standard normal rows about a mean of ``mean`` deviations per coordinate, signs alternating."""
    return utility_generator(seed).standard_normal((m, d)) + mean * np.resize([1.0, -1.0], d)


def find(x: Any, seed: int | None = 0, **public: Any) -> tuple[Floats, bool, float]:
    batch = x if isinstance(x, ArrayBatch) else ArrayBatch.of_vectors(x)
    d, about = batch.dim, Preprocessing(dim=batch.dim, **public)
    with replace_noise_sampler(ScriptedSampler() if seed is None else SeededSampler(seed)):
        return coarse_to_fine(batch, about, np.zeros(d), RADII, budget(), last_share(d, len(batch), Z))[:3]


@pytest.mark.parametrize(("mean", "bound"), [(10.0, 0.25), (60.0, 0.25), (1000.0, 0.25), (1e5, 1.5)])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_found_however_far_it_is(mean: float, bound: float, seed: int) -> None:
    """Three clips at the 0.75 quantile leave far less than the records' spread of 1."""
    x = rows(20_000, mean, seed=seed)
    found, known, noise = find(x, seed)
    assert known
    error = np.linalg.norm(found - x.mean(axis=0))
    assert error < bound
    # The reported noise is right up to a factor, as the clip shrinks too.
    assert math.sqrt(noise * D) < bound
    assert error < 4 * math.sqrt(noise * D)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_units_do_not_matter(scale: float) -> None:
    x = rows(20_000, 60.0)
    found, known, _ = find(x * scale)
    assert known
    assert np.linalg.norm(found / scale - x.mean(axis=0)) < 0.25


def test_a_public_scale_is_taken_off_the_centre_again() -> None:
    x = rows(20_000, 60.0) * np.geomspace(1e-3, 1e3, D)
    found, known, _ = find(x, scale=tuple(np.geomspace(1e3, 1e-3, D)))
    assert known
    assert np.linalg.norm((found - x.mean(axis=0)) * np.geomspace(1e3, 1e-3, D)) < 0.25


def test_without_a_mean_noise_moves_nothing() -> None:
    """A noisy mean within two deviations of its noise's length becomes 0, in 100 seeds."""
    x = rows(4000, 0.0, seed=1)
    x -= x.mean(axis=0)
    found = [find(x, seed) for seed in range(100)]
    assert np.mean([known for _, known, _ in found]) < 0.2
    for centre, known, noise in found:
        assert known == bool(centre.any())
        assert np.linalg.norm(centre) < 3 * math.sqrt(noise * D) + 1e-12


@pytest.mark.parametrize("what", ["null", "zero", "huge", "subnormal", "one", "few"])
def test_it_is_finite_whatever_the_records_are(what: str) -> None:
    items: list[Any] = {
        "null": [None] * 50,
        "zero": [np.zeros((1, D))] * 50,
        "huge": [np.full((2, D), 1.7e308), np.full((1, D), -1.7e308)] * 25,
        "subnormal": [np.full((1, D), 5e-324)] * 50,
        "one": [np.ones((1, D))],
        "few": [],
    }[what]
    batch = ArrayBatch.of_records(items, D)
    for seed in (None, *range(5)):
        found, known, noise = find(batch, seed)
        assert np.isfinite(found).all()
        assert math.isfinite(noise)
        assert not known or found.any()


def test_without_noise_the_error_is_what_the_clip_leaves() -> None:
    """Symmetric records have no error once the centre is close; rounds reduce the distance to the spread."""
    found, known, _ = find(np.concatenate([rows(500, 0.0), -rows(500, 0.0)]) + 50.0, None)
    assert known
    np.testing.assert_allclose(found, 50.0, atol=0.2)


def test_the_sum_has_the_noise_of_its_sensitivity() -> None:
    with replace_noise_sampler(SeededSampler()), watched() as seen:
        batch = ArrayBatch.of_vectors(rows(100, 3.0, 3))
        refine(batch, Preprocessing(dim=3), np.full(3, 0.25), RADII, budget(), 0.01)
    *_, (name, total, (sigma,), _) = seen
    assert (name, total.shape) == ("gaussian_on_vector", (3,))
    wanted = Z / math.sqrt(0.01) * 2 * MEAN_RADIUS
    assert wanted <= sigma <= wanted * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(dim=st.integers(1, 10**6), count=st.integers(0, 10**7), multiplier=st.floats(0.01, 1e3))
def test_its_shares_leave_the_most_of_a_batch(dim: int, count: int, multiplier: float) -> None:
    last = last_share(dim, count, multiplier)
    assert module.MEAN_SHARE <= last <= 0.2
    assert last < module.most_share(dim, count, multiplier) < 0.3


def test_what_is_spent_is_public() -> None:
    """There are at most three rounds, and fewer if two of them detect nothing."""
    spent = set()
    for x in (rows(3000, 0.0), rows(3000, 50.0), np.zeros((3000, D))):
        whole = budget()
        with replace_noise_sampler(ScriptedSampler()):
            coarse_to_fine(ArrayBatch.of_vectors(x), Preprocessing(dim=D), np.zeros(D), RADII, whole, 0.1)
        spent.add(WHOLE - whole.left)
    most = 3 * module.radius_share(3000, Z) + 2 * module.MEAN_SHARE + 0.1
    assert max(spent) <= most * WHOLE
    assert min(spent) > 0.1 * WHOLE


@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss", "block"])
@pytest.mark.parametrize("mean", [0.0, 10.0, 60.0, 1000.0])
def test_a_subspace_is_found_at_any_distance_of_the_mean(name: str, mean: float) -> None:
    """The error equals the error about 0, up to a factor, also over three batches."""
    x, truth = spiked(30_000, 8, 2, 4)
    shift = mean * np.resize([1.0, -1.0], 8)
    estimator = make(name, "auto", dim=8, epsilon=2.0, first_batch=10_000, **LARGE)
    state = start(estimator)
    with replace_noise_sampler(SeededSampler(0)):
        for part in np.split(x + shift, 3):
            state = estimator.update(state, ArrayBatch.of_vectors(part))
            release = estimator.release(state)
            gap = np.linalg.norm(release.components @ truth.T)
            assert math.sqrt(max(2 - gap**2, 0.0)) < 0.1
            if release.mean is not None:
                assert np.linalg.norm(release.mean - shift) < 0.4
            assert (release.mean is None) <= (mean == 0)
    assert state.mean_weight == 30_000
    assert release.mean_error < 0.2


def test_a_mean_stays_within_the_bounds() -> None:
    estimator = make("adaptive", "auto", dim=3, k=1, public={"bounds": (0.0, 1.0)})
    x = utility_generator(0).random((300, 3)) * 0.01
    state = start(estimator)
    for seed in range(5):
        with replace_noise_sampler(SeededSampler(seed)):
            state = estimator.update(state, ArrayBatch.of_vectors(x))
        assert state.mean is None or ((state.mean >= 0) & (state.mean <= 1)).all()


def test_it_follows_the_stream() -> None:
    """Rounds are weighted by their noise's precision: the first has the largest share of its batch."""
    estimator = make("adaptive", "auto", dim=3, k=1, epsilon=8.0, **LARGE)
    state = start(estimator)
    parts = [rows(8000, 40.0, 3, 1), rows(8000, 44.0, 3, 2), rows(16_000, 44.0, 3, 3)]
    seen = []
    with replace_noise_sampler(SeededSampler(0)):
        for part in parts:
            state = estimator.update(state, ArrayBatch.of_vectors(part))
            seen.append(state.mean * np.resize([1.0, -1.0], 3))
    np.testing.assert_allclose(seen[0], 40.0, atol=0.2)
    assert (seen[0] < seen[1]).all()
    assert ((seen[1] < seen[2]) & (seen[2] < 44.2)).all()


@pytest.mark.parametrize(("count", "there"), [(20_000, 0), (20_000, 40), (300_000, 100)])
def test_noise_puts_no_radius_far_beyond_few_records(count: int, there: int) -> None:
    """This happens if bounds are far wider than the data, or most records are null. Seeds are fixed."""
    x = np.zeros((count, 1))
    x[:there] = 2.0**-10
    norms = ArrayBatch.of_vectors(x).map(module.MeanNorms(Preprocessing(dim=1, centering="none")))
    for seed in range(60):
        with replace_noise_sampler(SeededSampler(seed)):
            radius, _ = private_quantile_radius(norms, 2.0**-12, 2.0**40, 0.99, Budget(4.0, 1.0), 0.004, 6.0)
        assert radius <= 2.0**-9
