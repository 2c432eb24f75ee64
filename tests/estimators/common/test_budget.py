"""The mechanisms of one batch together never cost more than the one charged Gaussian.

Two tests check this for the estimators. One records every draw's scale together with the sensitivity
that its mechanism claims. The other does not rely on the claims: it gives neighbours the same
answers, and measures the distance between the integers that receive the noise. Both add up in fractions.
Seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.budget import WHOLE, Budget, share_multiplier
from streaming_pca.estimators.common.clipped_batches import BatchCosts
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.calibration.multipliers import gaussian_delta
from streaming_pca.privacy.errors import CalibrationError
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, make, mechanism_inputs, moved, start, watched
from tests.privacy.noise import ScriptedSampler, SeededSampler

# Shares.

shares = st.lists(st.floats(1e-9, 0.3), max_size=20)
multipliers = st.floats(1e-3, 1e4)


@settings(deadline=None)
@given(multiplier=multipliers, wanted=shares)
def test_whatever_is_taken_the_squares_of_mu_stay_below_that_of_the_whole(
    multiplier: float, wanted: list[float]
) -> None:
    budget = Budget(multiplier, 1.0)
    taken, left = [], WHOLE
    for share in wanted:
        before = budget.left
        try:
            taken.append(budget.take(share))
        except ValueError:
            assert share * WHOLE > budget.left
            assert budget.left == before
            continue
        left -= max(int(share * WHOLE), 1)
        assert budget.left == left
        assert budget.rest() == left / WHOLE
    if budget.left:
        taken.append(budget.take_rest())
    assert budget.left == 0
    spent = sum(1 / Fraction(m) ** 2 for m in taken)
    assert spent <= 1 / Fraction(multiplier) ** 2
    # Hardly any of it is wasted.
    assert spent >= (1 - Fraction(1, 10**12)) / Fraction(multiplier) ** 2


def test_more_than_is_left_is_refused_and_takes_nothing() -> None:
    budget = Budget(3.0, 1.0)
    budget.take(0.7)
    with pytest.raises(ValueError, match="a share of 300001 millionths, but only 300000 are left"):
        budget.take(0.300001)
    assert budget.left == 300_000
    budget.take_rest()
    with pytest.raises(ValueError, match="nothing is left"):
        budget.take_rest()
    with pytest.raises(ValueError, match="a share of 1 millionths, but only 0 are left"):
        budget.take(1e-30)


@settings(deadline=None)
@given(multiplier=multipliers, millionths=st.integers(1, WHOLE))
def test_a_multiplier_is_rounded_up_and_by_next_to_nothing(multiplier: float, millionths: int) -> None:
    share = Fraction(millionths, WHOLE)
    found = share_multiplier(Fraction(multiplier) ** 2, share)
    wanted = Fraction(multiplier) ** 2 / share
    assert Fraction(found) ** 2 >= wanted
    assert Fraction(math.nextafter(math.nextafter(found, 0), 0)) ** 2 < wanted


@settings(deadline=None)
@given(multiplier=multipliers, sensitivity=st.floats(1e-3, 2.0**42))
def test_a_scale_is_rounded_up(multiplier: float, sensitivity: float) -> None:
    found = Budget(1.0, 1.0).sigma(multiplier, sensitivity)
    exact = Fraction(multiplier) * Fraction(sensitivity)
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**51))


def test_noise_beyond_int64_is_refused() -> None:
    for sensitivity in (2.0**60, math.inf):
        with pytest.raises(CalibrationError, match="raise epsilon"):
            Budget(1.0, 1.0).sigma(2.0, sensitivity)
    with pytest.raises(CalibrationError, match="raise epsilon"):
        BatchCosts(PrivacyParameters(epsilon=1e-4, delta=1e-12))


@pytest.mark.parametrize("contributions", [1, 2, 50])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9), (8.0, 1e-4)])
def test_the_whole_is_one_gaussian_that_keeps_the_promise(
    contributions: int, epsilon: float, delta: float
) -> None:
    costs = BatchCosts(PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions))
    assert gaussian_delta(epsilon, costs.multiplier / math.sqrt(contributions)) <= delta
    assert gaussian_delta(epsilon, 0.9999 * costs.multiplier / math.sqrt(contributions)) > delta
    charge = costs.charge
    assert (float(charge.epsilon), float(charge.delta)) == (epsilon, delta)
    assert charge.rho >= contributions / (2 * Fraction(costs.multiplier) ** 2)


@pytest.mark.parametrize("route", ["covariance", "block"])
def test_what_is_planned_at_the_least_epsilon_can_be_drawn(route: str) -> None:
    """Calibration cannot fail after the charge: heaviest tails, and the smallest shares of looks."""
    low, high = 1e-5, 1.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        try:
            BatchCosts(PrivacyParameters(epsilon=middle, delta=1e-6))
            high = middle
        except CalibrationError:
            low = middle
    estimator = make("adaptive", "auto", dim=3, k=1, epsilon=high, route=route)
    rng = utility_generator(0)
    x = rng.standard_normal((4000, 3)) * 2.0 ** rng.uniform(0, 12, (4000, 1))
    state = start(estimator)
    for i in range(4):
        with replace_noise_sampler(ScriptedSampler()):
            state = estimator.update(state, ArrayBatch.of_vectors(x * 2.0**i))


def gaussian(m: int, d: int, rng: np.random.Generator) -> Floats:
    return rng.standard_normal((m, 1, d)) * np.linspace(3, 0.3, d)


def steep(m: int, d: int, rng: np.random.Generator) -> Floats:
    """Most of the size is along one direction, far from the gap, so weights help."""
    return rng.standard_normal((m, 1, d)) * np.array([30.0, 10.0, *[0.5] * (d - 2)])


def agreeing(m: int, d: int, rng: np.random.Generator) -> Floats:
    """Return factors that nearly agree except for their signs, so that the block route helps."""
    truth = orthonormalise(utility_generator(0).standard_normal((d, 2)))
    factors = (np.sqrt([5.0, 4.0]) * truth).T + 0.05 * rng.standard_normal((m, 2, d))
    return factors * rng.choice([-1.0, 1.0], (m, 1, 1))


def off(m: int, d: int, rng: np.random.Generator) -> Floats:
    return gaussian(m, d, rng) + 40.0


class Stream(NamedTuple):
    """An estimator, the records of its batches, and the expected properties of its last state."""

    name: str
    data: Any
    how: Any = "none"
    options: dict[str, Any] = {}  # noqa: RUF012
    contributions: int = 1
    epsilon: float = 4.0
    k: int = 2
    shows: str = ""


BATCHES, M, DIM = 3, 4000, 5
STREAMS = {
    "covariance": Stream("adaptive", gaussian),
    "one rank": Stream("adaptive", gaussian, k=1, epsilon=0.5),
    "whole space": Stream("adaptive", gaussian, k=5),
    "pairs": Stream("adaptive", off, "pairs"),
    "centre": Stream("adaptive", off, "auto"),
    "centre at hand": Stream("adaptive", gaussian, "auto"),
    "vector": Stream("adaptive", off, (40.0,) * DIM),
    "matrices": Stream("adaptive", gaussian, RecordKind.MATRIX),
    "weights": Stream("adaptive", steep, shows="weights"),
    "weights and centre": Stream("adaptive", steep, "auto", shows="weights"),
    "block": Stream("adaptive", agreeing, epsilon=8.0, shows="block"),
    "block and centre": Stream("adaptive", agreeing, "auto", epsilon=8.0, shows="block"),
    "block, set": Stream("adaptive", gaussian, "auto", {"route": "block"}, shows="block"),
    "half-life": Stream("adaptive", gaussian, "none", {"half_life": "auto"}),
    "half-life of records": Stream("adaptive", gaussian, "none", {"half_life": 3000.0}),
    "users": Stream("adaptive", gaussian, "auto", contributions=3),
    "radius": Stream("adaptive", gaussian, "auto", {"clip_radius": 8.0}),
    "quantile": Stream("adaptive", gaussian, "none", {"clip_quantile": 0.9}),
    "low quantile": Stream("adaptive", gaussian, "none", {"clip_quantile": 0.5}),
    "analyze-gauss": Stream("analyze-gauss", gaussian),
    "analyze-gauss, centre": Stream("analyze-gauss", off, "auto"),
    "analyze-gauss, matrices": Stream("analyze-gauss", gaussian, RecordKind.MATRIX),
    "analyze-gauss, quantile": Stream("analyze-gauss", gaussian, "auto", {"clip_quantile": 0.5}),
    "block alone": Stream("block", gaussian),
    "block alone, centre": Stream("block", off, "auto"),
    "block alone, pairs": Stream("block", agreeing, "none", {"oversampling": 1}),
    "block alone, matrices": Stream("block", gaussian, RecordKind.MATRIX),
    "block alone, radius": Stream("block", gaussian, "none", {"clip_radius": 8.0}),
    "block alone, half-life": Stream("block", gaussian, "none", {"half_life": 3000.0}, contributions=2),
}
every_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=list(STREAMS))


def estimator_of(stream: Stream) -> Estimator[Any, Any]:
    return make(
        stream.name,
        stream.how,
        dim=DIM,
        k=stream.k,
        epsilon=stream.epsilon,
        contributions=stream.contributions,
        **stream.options,
    )


def batch_of(stream: Stream, number: int, m: int = M) -> ArrayBatch:
    x = stream.data(m, DIM, utility_generator(number))
    if stream.how is RecordKind.MATRIX:
        x = np.einsum("nri,nrj->nij", x, x)
        return ArrayBatch(x.reshape(-1, DIM), np.arange(0, m * DIM + 1, DIM), RecordKind.MATRIX)
    return ArrayBatch.of_vectors(x)


def check_shown(stream: Stream, state: Any) -> None:
    if stream.shows == "weights":
        assert state.covariance.weighted
    if stream.shows == "block":
        assert state.route == "block"


class Claimed(NamedTuple):
    multiplier: float
    sensitivity: float
    sigma: float


@contextmanager
def claims() -> Iterator[tuple[list[float], list[Claimed]]]:
    """Record every multiplier that a budget gave, and every scale derived from one."""
    taken: list[float] = []
    claimed: list[Claimed] = []
    takes = {name: getattr(Budget, name) for name in ("take", "take_rest")}
    make_sigma = Budget.sigma

    def sigma(self: Budget, multiplier: float, sensitivity: float) -> float:
        found = make_sigma(self, multiplier, sensitivity)
        claimed.append(Claimed(multiplier, sensitivity, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        for name, original in takes.items():

            def take(self: Budget, *args: float, original: Any = original) -> float:
                taken.append(original(self, *args))
                return taken[-1]

            patch.setattr(Budget, name, take)
        patch.setattr(Budget, "sigma", sigma)
        yield taken, claimed


@every_stream
def test_every_draw_has_the_noise_that_its_share_pays_for(stream: Stream) -> None:
    """Each scale is a sensitivity times a multiplier from the budget, used only once."""
    estimator = estimator_of(stream)
    state = start(estimator)
    z = Fraction(estimator.plan(state).parameters["sigma_over_sensitivity"])
    for number in range(BATCHES):
        with replace_noise_sampler(SeededSampler(number)), watched() as seen, claims() as (taken, claimed):
            state = estimator.update(state, batch_of(stream, number))
        assert seen
        assert {call.name for call in seen} <= {"gaussian_on_vector", "gaussian_on_symmetric"}
        assert [call.args for call in seen] == [(claim.sigma,) for claim in claimed]
        # A share taken early can be spent last.
        assert sorted(claim.multiplier for claim in claimed) == sorted(taken)
        assert sum((Fraction(c.sensitivity) / Fraction(c.sigma)) ** 2 for c in claimed) <= 1 / z**2
        # The last draw uses the whole remainder: a batch wastes nothing.
        spent = sum(1 / Fraction(m) ** 2 for m in taken)
        assert (1 - Fraction(1, 10**9)) / z**2 <= spent <= 1 / z**2
    check_shown(stream, state)


def neighbours(stream: Stream, batch: ArrayBatch) -> Iterator[ArrayBatch]:
    """Replace the record at two places by another one, or by null: the extremes of each clip."""
    d = DIM
    eye = np.eye(d)
    r = int(batch.starts[1])
    rows: list[Any] = [None, *(1e6 * eye[i] for i in (0, -1)), 1e150 * (eye[0] - 2 * eye[1]), 1e-9 * eye[1]]
    rows.append(50.0 + 3 * eye[1])
    for place in (0, len(batch) - 1):
        for x in rows:
            items = [batch.rows[a:b] for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]
            new = x
            if x is not None:
                new = np.zeros((r, d))
                new[0] = x
                if stream.how is RecordKind.MATRIX:
                    new = np.outer(x, x)
            items[place] = new
            yield ArrayBatch.of_records(items, d, batch.kind)
            if stream.how is RecordKind.MATRIX and new is not None:
                items[place] = -new
                yield ArrayBatch.of_records(items, d, batch.kind)


@every_stream
def test_neighbours_are_no_further_apart_than_the_charge_says(stream: Stream) -> None:
    """The bound covers all mechanisms of a batch together, given the earlier answers."""
    estimator = estimator_of(stream)
    state = start(estimator)
    z = Fraction(estimator.plan(state).parameters["sigma_over_sensitivity"])
    m = M if stream.shows else 1200
    for number in range(2):
        batch = batch_of(stream, number, m)
        # Replacements of the same record are neighbours of each other, and these are far apart.
        whole = mechanism_inputs(estimator, batch, state=state)
        answers = [call.answer for call in whole]
        first, last = [whole], [whole]
        for i, neighbour in enumerate(neighbours(stream, batch)):
            ends = first if i < 6 + 5 * (stream.how is RecordKind.MATRIX) else last
            ends.append(mechanism_inputs(estimator, neighbour, answers, state))
        mus = [moved(a, b) for ends in (first, last) for a, b in combinations(ends, 2)]
        assert max(mus) <= 1 / z**2
        # The charge is not many times too large either.
        assert max(mus) >= Fraction(2, 10) / z**2
        with replace_noise_sampler(SeededSampler()):
            state = estimator.update(state, batch)
        check_shown(stream, state)


def test_a_mechanism_that_overspends_would_be_seen() -> None:
    """All draws get 0.7 times their noise."""
    stream = STREAMS["covariance"]
    estimator = estimator_of(stream)
    batch = batch_of(stream, 0, 1200)
    z = Fraction(estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"])
    with pytest.MonkeyPatch.context() as patch:
        make_sigma = Budget.sigma
        patch.setattr(Budget, "sigma", lambda self, *args: 0.7 * make_sigma(self, *args))
        whole = mechanism_inputs(estimator, batch)
        answers = [call.answer for call in whole]
        all_of_them = [mechanism_inputs(estimator, one, answers) for one in neighbours(stream, batch)]
    assert max(moved(a, b) for a in all_of_them[:6] for b in all_of_them[:6]) > 1 / z**2
