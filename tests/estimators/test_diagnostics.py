"""Noisy counts of null and clipped records: correct, paid for, and accurate within their error."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.batch import Batch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.split_batch import SplitBatch
from tests.estimators.suite import made
from tests.privacy.noise import ScriptedSampler

D = 3
OPTIONS = {
    name: kind.suite_options.options | kind.suite_options.clip
    for name, kind in ESTIMATORS.items()
    if kind.suite_options.clip is not None
}
"""Options with a public clip at |x|^2 = 4, by estimator; others clip nothing in small batches."""
every_estimator = pytest.mark.parametrize("name", OPTIONS)
of_matrices = pytest.mark.parametrize("name", [n for n in OPTIONS if RecordKind.MATRIX in find(n).kinds])
of_pairs = pytest.mark.parametrize("name", [n for n in OPTIONS if "pairs" in find(n).centerings])


def make(name: str, share: float = 0.02, how: Any = "none", **privacy: Any) -> Estimator[Any, Any]:
    return made(find(name), D, D, how, share=share, **privacy, **OPTIONS[name])


def counts(estimator: Estimator[Any, Any], batch: Batch) -> tuple[int, int]:
    state = estimator.init(utility_generator(3))
    with replace_noise_sampler(ScriptedSampler()):
        found = estimator.update(state, batch).counts
    return int(found[0]), int(found[1])


@every_estimator
def test_null_and_clipped_vectors_are_counted(name: str) -> None:
    # k = d: |A Q|_F is the trace |x|^2 for a vector.
    x = np.array([[1, 0, 0], [0, 2.1, 0], [np.nan, 0, 0], [0, 0, 30], [0, 1.9, 0], [0, np.inf, 1]])
    assert counts(make(name), ArrayBatch.of_vectors(x)) == (2, 2)


@of_matrices
def test_null_and_clipped_matrices_are_counted(name: str) -> None:
    estimator = make(name, how=RecordKind.MATRIX)
    items = [np.diag([3.0, 0, 0]), None, np.diag([4.1, 0, -1]), np.diag([-5.0, 0, 0]), np.zeros((D, D))]
    assert counts(estimator, ArrayBatch.of_records(items, D, RecordKind.MATRIX)) == (1, 2)


@of_pairs
def test_a_pair_is_clipped_once_and_null_records_are_counted_one_by_one(name: str) -> None:
    x = np.array([[9.0, 0, 0], [-9, 0, 0], [1, 0, 0], [np.nan, 0, 0], [5, 5, 5], [5, 5, 5]])
    assert counts(make(name, how="pairs"), ArrayBatch.of_vectors(x)) == (1, 1)


@of_pairs
def test_records_of_several_rows_are_null_for_pairs(name: str) -> None:
    """They teach nothing but are charged; without pairs they are records."""
    two, one = np.full((2, D), 0.1), np.full((1, D), 0.1)
    batch = ArrayBatch.of_records([two, two, two, one, None, one, one, one], D)
    assert counts(make(name, how="pairs"), batch) == (4, 0)
    # Executors and files hold a batch in pieces.
    assert counts(make(name, how="pairs"), SplitBatch.of(batch, [2, 4])) == (4, 0)
    assert counts(make(name), batch)[0] == 1


def test_records_of_one_size_are_not_clipped() -> None:
    estimator = made(find("analyze-gauss"), D, 1, share=0.02)
    assert counts(estimator, ArrayBatch.of_vectors(np.full((1000, D), 1e6))) == (0, 0)


records = st.one_of(
    st.none(),
    st.lists(st.sampled_from([0.0, 1.0, -3.0, 1e-200, 1e200, 2.0]), min_size=D, max_size=D).map(
        lambda row: np.array([row])
    ),
    st.just(np.ones((2, D))),
)


@pytest.mark.parametrize(
    ("name", "centering"),
    [(n, c) for n in OPTIONS for c in ("none", "pairs") if c in find(n).centerings],
)
@settings(max_examples=60, deadline=None)
@given(items=st.lists(records, min_size=6, max_size=6), place=st.integers(0, 5), new=records)
def test_a_replaced_record_moves_the_counts_by_at_most_two(
    name: str, centering: str, items: list[Any], place: int, new: Any
) -> None:
    estimator = make(name, how=centering)
    other = [*items[:place], new, *items[place + 1 :]]
    a = counts(estimator, ArrayBatch.of_records(items, D))
    b = counts(estimator, ArrayBatch.of_records(other, D))
    assert abs(a[0] - b[0]) + abs(a[1] - b[1]) <= 2


@every_estimator
@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("epsilon", [1.0, 0.3, 1 / 3, 7.7])
@pytest.mark.parametrize("share", [0.02, 0.5, 1 / 3])
def test_learning_and_counting_together_cost_the_promise(
    name: str, contributions: int, epsilon: float, share: float
) -> None:
    estimator = make(name, share, contributions=contributions, epsilon=epsilon)
    plan = estimator.plan(estimator.init(utility_generator(0)))
    promised = Fraction(repr(epsilon))
    assert promised * (1 - Fraction(1, 10**15)) <= plan.charge.epsilon <= promised
    assert plan.charge.delta == Fraction("1e-6")
    of_counts = Fraction(plan.parameters["diagnostics"]["epsilon"])
    assert contributions * of_counts == promised * Fraction(repr(share))


@every_estimator
def test_the_noise_is_that_of_the_charge(name: str) -> None:
    estimator = make(name, 0.02, contributions=4)
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        estimator.update(estimator.init(utility_generator(3)), ArrayBatch.of_vectors(np.ones((8, D))))
    ((_, size, scale),) = (asked for asked in sampler.asked if asked[0] == "laplace")
    epsilon = Fraction(
        estimator.plan(estimator.init(utility_generator(3))).parameters["diagnostics"]["epsilon"]
    )
    assert size == 2
    assert 2 / epsilon <= Fraction(scale) <= 2 / epsilon * (1 + Fraction(1, 10**11))


@every_estimator
def test_without_a_share_nothing_is_counted_and_all_goes_to_learning(name: str) -> None:
    estimator = make(name, 0.0)
    state = estimator.init(utility_generator(3))
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        assert estimator.update(state, ArrayBatch.of_vectors(np.ones((8, D)))).counts is None
    assert not [asked for asked in sampler.asked if asked[0] == "laplace"]
    assert estimator.plan(state).charge.epsilon == 1
    assert "diagnostics" not in estimator.plan(state).parameters


@pytest.mark.parametrize("epsilon", [0.02, 0.5, 5.0, 100.0])
def test_the_error_is_the_smallest_that_holds_for_95_percent(epsilon: float) -> None:
    error = Diagnostics(PrivacyParameters(epsilon=epsilon, delta=1e-6), 0.5).error
    decay = math.exp(-epsilon * 0.5 / 2)
    mass = (1 - decay) / (1 + decay)

    def within(t: int) -> float:
        return mass * (1 + 2 * sum(decay**j for j in range(1, t + 1)))

    assert within(error) >= 0.95 - 1e-9
    assert error == 0 or within(error - 1) < 0.95


@pytest.mark.parametrize("share", [-0.1, 0.51, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="diagnostics_share must lie between"):
        make("analyze-gauss", share)
