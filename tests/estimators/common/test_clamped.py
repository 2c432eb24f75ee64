"""The noisy count of records that public bounds change. Seeds are fixed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.budget import WHOLE, Budget
from streaming_pca.estimators.common.present import ClampedShare, learn_clamped
from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import make, records, run
from tests.privacy.noise import ScriptedSampler, SeededSampler

D = 3


def bounded(centering: Any = "none", bound: float = 1.0) -> Preprocessing:
    return Preprocessing(dim=D, kind=RecordKind.FACTOR, centering=centering, bounds=(-bound, bound))


def counted(items: list[Any], preprocessing: Preprocessing) -> float:
    """Return the exact number of records (pairs) that bounds change: the noise is 0."""
    batch = ArrayBatch.of_records(items, D)
    with replace_noise_sampler(ScriptedSampler()):
        found = learn_clamped(ClampedShare(), batch, preprocessing, Budget(2.0, 1.0), 1.0)
    return found.value * (len(batch) // preprocessing.units)


INSIDE, BEYOND, BELOW = np.full((1, D), 0.5), np.array([[0.0, 0.0, 1.5]]), np.array([[-2.0, 0.0, 0.0]])
ITEMS = {
    "inside": INSIDE,
    "at the ends": np.array([[1.0, -1.0, 1.0]]),
    "above": BEYOND,
    "below": BELOW,
    "null": None,
    "two rows, one beyond": np.concatenate([INSIDE, BEYOND]),
    "huge": np.full((1, D), 1e300),
    "not a number": np.full((1, D), np.nan),
}
CHANGED = {"above", "below", "two rows, one beyond", "huge"}


@pytest.mark.parametrize("name", ITEMS)
def test_a_record_counts_once_if_any_of_its_values_is_beyond(name: str) -> None:
    with np.errstate(all="raise"):
        assert counted([INSIDE, ITEMS[name], INSIDE, BEYOND], bounded()) == (name in CHANGED) + 1


@pytest.mark.parametrize("bound", [0.1, 0.7, 1 / 3, 1e6 + 0.03, 1e300])
def test_a_value_at_a_bound_in_float32_is_within(bound: float) -> None:
    at = np.array([[bound, -bound, 0.0]], dtype=np.float32 if bound < 1e38 else None).astype(np.float64)
    assert counted([at, at * (1 + 2e-7), -at], bounded(bound=bound)) == 1


@pytest.mark.parametrize("first", ["inside", "above"])
@pytest.mark.parametrize("second", ["inside", "below", "huge"])
def test_a_pair_counts_once(first: str, second: str) -> None:
    found = counted([ITEMS[first], ITEMS[second], INSIDE, INSIDE], bounded("pairs"))
    assert found == ({first, second} != {"inside"})


def test_a_replaced_record_changes_the_count_by_one_at_most() -> None:
    items = [INSIDE, BEYOND, None, BELOW, ITEMS["two rows, one beyond"], INSIDE]
    before = counted(items, bounded())
    for place in range(len(items)):
        for other in ITEMS.values():
            after = counted([*items[:place], other, *items[place + 1 :]], bounded())
            assert abs(after - before) <= 1


def test_without_bounds_nothing_is_spent_and_with_them_at_most_a_hundredth() -> None:
    batch = ArrayBatch.of_vectors(np.zeros((1000, D)))
    budget = Budget(2.0, 1.0)
    known = ClampedShare(0.3, 0.1, 50.0)
    free = Preprocessing(dim=D, kind=RecordKind.FACTOR, centering="none")
    assert learn_clamped(known, batch, free, budget, 1.0) is known
    assert budget.left == WHOLE
    with replace_noise_sampler(SeededSampler(0)):
        learn_clamped(known, batch, bounded(), budget, 1.0)
    assert 0.99 * WHOLE <= budget.left < WHOLE


def test_the_noise_that_is_told_is_the_noise() -> None:
    """400 seeds of two batches: the standard deviation is within 15%, four deviations of its own."""
    batches = [ArrayBatch.of_vectors(np.full((m, D), 2.0)) for m in (1000, 3000)]
    found = []
    for seed in range(400):
        share = ClampedShare()
        with replace_noise_sampler(SeededSampler(seed)):
            for batch in batches:
                share = learn_clamped(share, batch, bounded(), Budget(20.0, 1.0), 1.0)
        found.append(share.value)
    assert np.mean(found) == pytest.approx(1.0, abs=5 * np.sqrt(share.noise / 400))
    assert np.std(found) == pytest.approx(np.sqrt(share.noise), rel=0.15)


@pytest.mark.parametrize("estimator", ["adaptive", "block", "analyze-gauss"])
def test_narrow_bounds_are_doubted_and_wide_ones_are_not(estimator: str) -> None:
    x = np.random.default_rng(0).normal(size=(20_000, 6)) * np.array([4.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    for bound, is_doubted in ((25.0, False), (6.0, True)):
        with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(0)):
            warnings.simplefilter("ignore")
            pca = PrivatePCA(2, bounds=(-bound, bound), estimator=estimator, random_state=0).fit(x)
        assert ("clamped" in pca.doubts_) == is_doubted


@pytest.mark.parametrize(("deviations", "is_large"), [(0.0, False), (2.5, False), (3.5, True)])
def test_noise_alone_seldom_looks_like_narrow_bounds(deviations: float, is_large: bool) -> None:
    """Of 250 fits of 500 records within their bounds five were doubted, at two deviations."""
    assert ClampedShare(0.02 + deviations * 0.03, 0.03**2, 500.0).is_large == is_large


def test_a_state_without_the_share_and_hostile_ones() -> None:
    estimator = make("adaptive")
    state = run(estimator, [records(estimator, 2000, 0)])
    assert decode_fitting_state(estimator, encode_state(state)).clamped == ClampedShare()
    for bad in (ClampedShare(np.nan), ClampedShare(0.1, -1.0), ClampedShare(0.1, 0.1, np.inf)):
        with pytest.raises(ValueError, match=r"clamped|fit"):
            decode_fitting_state(estimator, encode_state(replace(state, clamped=bad)))
