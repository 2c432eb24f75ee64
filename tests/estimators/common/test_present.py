"""Null records do not dilute variances, which describe the records that are present.

Noise comes from seeded generators, so no result is left to chance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from streaming_pca.data.array_batch import ArrayBatch, SparseBatch
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.present import PresentShare, learn_present, present_share
from streaming_pca.estimators.registry import find
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, made
from tests.privacy.noise import SeededSampler

D, RADIUS = 6, 1e3
VARIANCES = np.array([25.0, 12.0, 5.0, 2.0, 1.0, 0.5])


def gaussians(count: int, nulls: float, seed: int = 0, mean: float = 3.0) -> Floats:
    """Return normal records, a share of them null: rows of NaNs."""
    rng = utility_generator(seed)
    x = rng.standard_normal((count, D)) * np.sqrt(VARIANCES) + mean
    x[rng.random(count) < nulls] = math.nan
    return x


def learnt(
    batches: list[ArrayBatch], name: str = "adaptive", centering: Any = "auto", **options: Any
) -> tuple[Any, Subspace]:
    estimator = made(find(name), D, 2, centering, epsilon=4.0, **options)
    with replace_noise_sampler(SeededSampler()):
        state = estimator.init(utility_generator(1))
        for batch in batches:
            state = estimator.update(state, batch)
        return state, estimator.release(state)


def truth(x: Floats, centering: Any = "auto") -> Floats:
    """Return the variances of the records that are present, decreasing."""
    if centering == "pairs":
        x = (x[0::2] - x[1::2]) / math.sqrt(2)
    x = x[np.isfinite(x).all(axis=1)]
    if centering == "auto":
        x = x - x.mean(axis=0)
    return np.linalg.eigvalsh(x.T @ x / len(x))[::-1]


@pytest.mark.parametrize("nulls", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("centering", ["auto", "none", "pairs"])
@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss", "block"])
def test_variances_are_of_the_records_that_are_there(name: str, centering: Any, nulls: float) -> None:
    x = gaussians(40_000, nulls)
    batches, options = [ArrayBatch.of_vectors(x)], {}
    if name == "block":
        # At a public radius it takes one step per batch; the half-life forgets the first ones, from a guess.
        batches, options = batches * 12, {"half_life": len(x) / 3}
    _, release = learnt(batches, name, centering, clip_radius=RADIUS, **options)
    wanted = truth(x, centering)
    missed = release.explained_variance - wanted[:2]
    assert np.all(np.abs(missed) <= 0.05 * wanted[:2])
    assert np.all(np.abs(missed) <= 4 * release.explained_variance_error)
    if release.total_variance is not None and release.total_variance_error is not None:
        assert abs(release.total_variance - wanted.sum()) <= 4 * release.total_variance_error


def test_the_error_knows_the_share() -> None:
    x = gaussians(5000, 0.25)
    state, release = learnt([ArrayBatch.of_vectors(x)], clip_radius=RADIUS)
    present = state.present
    least = release.explained_variance * math.sqrt(present.noise) / present.share
    assert least[0] > 0.01
    assert np.all(release.explained_variance_error > least)


@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss", "block"])
def test_a_share_that_changes_from_batch_to_batch_is_followed(name: str) -> None:
    parts = [gaussians(20_000, share, seed) for seed, share in enumerate((0.0, 0.5, 0.1, 0.8))]
    batches, options = [ArrayBatch.of_vectors(part) for part in parts], {}
    if name == "block":
        batches, options = batches * 3, {"half_life": len(parts[0])}
    _, release = learnt(batches, name, "none", clip_radius=RADIUS, **options)
    wanted = truth(np.concatenate(parts), "none")[:2]
    assert np.all(np.abs(release.explained_variance - wanted) <= 0.05 * wanted)


@pytest.mark.parametrize(
    ("name", "centering", "shares", "options"),
    [
        ("adaptive", "auto", (0.8, 0.0), {}),
        ("adaptive", "none", (0.8, 0.0), {}),
        ("adaptive", "none", (0.0, 0.0, 0.0, 1.0), {}),
        ("adaptive", "auto", (*[0.0] * 8, 0.5, 0.5), {"half_life": "auto", "clip_radius": RADIUS}),
        ("adaptive", "auto", (*[0.0] * 8, 0.5, 0.5), {"half_life": "auto"}),
        ("adaptive", "pairs", (0.0, 0.5, 0.0, 0.6), {"half_life": 20_000, "clip_radius": RADIUS}),
    ],
    ids=str,
)
def test_each_batch_is_divided_by_its_own_share_before_it_weighs(
    name: str, centering: Any, shares: tuple[float, ...], options: dict[str, Any]
) -> None:
    """Batches are not weighted by their counts alone, for any gains."""
    parts = [gaussians(20_000, share, seed) for seed, share in enumerate(shares)]
    _, release = learnt([ArrayBatch.of_vectors(part) for part in parts], name, centering, **options)
    wanted = truth(np.concatenate(parts), centering)
    # A chosen radius clips a little.
    bound = 0.05 if "clip_radius" in options else 0.12
    assert np.all(np.abs(release.explained_variance - wanted[:2]) <= bound * wanted[:2])
    assert abs(release.total_variance - wanted.sum()) <= bound * wanted.sum()


@pytest.mark.parametrize("options", [{}, {"clip_radius": RADIUS}, {"half_life": 10**6}], ids=str)
@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss", "block"])
def test_batches_without_records_change_no_variance(name: str, options: dict[str, Any]) -> None:
    """As where each user counts once: all records that follow are null."""
    empty = [np.full((100_000, D), math.nan)] * 8
    for before, after in ((1, 8), (8, 1)):
        parts = [*empty[:before], *[gaussians(20_000, 0.0, seed) for seed in range(3)], *empty[:after]]
        if name == "block" and "clip_radius" in options:
            parts[before:-after] *= 4
        state, release = learnt([ArrayBatch.of_vectors(x) for x in parts], name, **options)
        wanted = truth(np.concatenate(parts[before:-after]))[:2]
        bound = 0.05 if "clip_radius" in options else 0.12
        assert np.all(np.abs(release.explained_variance - wanted) <= bound * wanted)
        assert state.records == sum(map(len, parts))


@pytest.mark.parametrize("nulls", [0.98, 0.99, 0.995])
def test_a_share_near_the_noise_of_its_count_is_no_bias(nulls: float) -> None:
    parts = [gaussians(50_000, nulls, seed) for seed in range(40)]
    _, release = learnt([ArrayBatch.of_vectors(x) for x in parts], centering="none", clip_radius=RADIUS)
    missed = release.explained_variance - truth(np.concatenate(parts), "none")[:2]
    assert np.all(np.abs(missed) <= 3 * release.explained_variance_error), (missed, release)


@pytest.mark.parametrize("last", [0.5, 1.0])
def test_the_total_of_the_block_route_does_not_follow_the_share(last: float) -> None:
    parts = [gaussians(20_000, share, seed) for seed, share in enumerate((0.0, 0.0, 0.0, last, last))]
    batches = [ArrayBatch.of_vectors(part) for part in parts]
    _, release = learnt(batches, "block", "none", half_life=20_000)
    wanted = truth(np.concatenate(parts), "none").sum()
    assert abs(release.total_variance - wanted) <= 0.1 * wanted


def test_the_mean_weighs_by_the_records_that_are_there() -> None:
    parts = [gaussians(20_000, 0.0, 1), *[gaussians(20_000, 0.0, s, mean=6.0) for s in (2, 3, 4)]]
    parts += [np.full((20_000, D), math.nan)] * 4
    state, release = learnt([ArrayBatch.of_vectors(part) for part in parts], clip_radius=RADIUS)
    known = np.concatenate(parts[:4])
    assert np.all(np.abs(state.mean - known.mean(axis=0)) < 0.3)
    wanted = truth(known)[:2]
    assert np.all(np.abs(release.explained_variance - wanted) <= 0.1 * wanted)


def test_records_of_zeros_are_there() -> None:
    x = gaussians(40_000, 0.0, mean=0.0)
    x[utility_generator(9).random(len(x)) < 0.5] = 0.0
    state, release = learnt([ArrayBatch.of_vectors(x)], centering="none", clip_radius=RADIUS)
    assert state.present.share == 1.0
    wanted = truth(x, "none")[:2]
    assert np.all(np.abs(release.explained_variance - wanted) <= 0.05 * wanted)


def test_noise_alone_rescales_nothing() -> None:
    for seed in range(20):
        with replace_noise_sampler(SeededSampler(seed)):
            budget = Budget(5.0, 1.0)
            batch = ArrayBatch.of_vectors(np.ones((1000, D)))
            found = learn_present(PresentShare(), batch, False, budget, 1.0)
        if abs(found.value - 1) <= 2 * math.sqrt(found.noise):
            assert found.share == 1.0
    assert PresentShare(0.9, 0.0025, 1.0).share == 1.0
    assert PresentShare(0.89, 0.0025, 1.0).share == 0.89
    assert PresentShare(-0.5, 0.0025, 1.0).share == 0.05
    assert PresentShare().widened(0.5, 100.0) == 0.5
    assert PresentShare(0.5, 0.0001, 1.0).widened(3.0, 200.0) == pytest.approx(5.0)


def test_a_foreign_state_is_refused() -> None:
    for bad in ((math.nan, 0, 1), (math.inf, 0, 1), (1, -1, 1), (1, math.inf, 1), (1, 0, -1)):
        with pytest.raises(ValueError, match="present"):
            PresentShare(*bad).check()


def test_counts_are_averaged_over_batches_and_forgotten() -> None:
    batches = [ArrayBatch.of_vectors(gaussians(10_000, share, 1)) for share in (0.0, 0.5)]
    with replace_noise_sampler(SeededSampler()):
        one = learn_present(PresentShare(), batches[0], False, Budget(2.0, 1.0), 1.0)
        both, latest = (learn_present(one, batches[1], False, Budget(2.0, 1.0), kept) for kept in (1.0, 0.0))
    assert both.value == pytest.approx(0.75, abs=0.03)
    assert latest.value == pytest.approx(0.5, abs=0.03)
    assert both.noise == pytest.approx(one.noise / 2)
    assert latest.noise == pytest.approx(one.noise)


def test_a_complete_batch_spends_nothing_and_is_known() -> None:
    x = gaussians(5000, 0.0)
    states = [learnt([ArrayBatch.of_vectors(x, complete=c)], clip_radius=RADIUS)[0] for c in (False, True)]
    assert states[1].present == PresentShare(1.0, 0.0, 5000.0)
    ratio = states[1].covariance.released_noise / states[0].covariance.released_noise
    share = 1 - ratio
    assert 0.0005 <= share <= 0.0101
    assert present_share(10**9, 5.0) == 0.0005
    assert present_share(10, 5.0) == 0.01


def test_completeness_never_follows_from_records() -> None:
    x = gaussians(100, 0.0)
    batch = ArrayBatch.of_vectors(x, complete=True)
    assert not ArrayBatch.of_vectors(x).complete
    assert batch.split([40, 60])[1].complete
    # Whether all records are kept is as secret as the records.
    assert not batch.keeping(np.ones(100, dtype=bool)).complete
    assert not batch.keeping(np.arange(100) > 3).complete
    assert not batch.single_rows().complete
    x[7] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        ArrayBatch.of_vectors(x, complete=True)
    assert SparseBatch.of_rows(csr_array(np.eye(4))).complete
