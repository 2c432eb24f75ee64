"""The deflation family's frame: order, orthogonality, passes; tested with an exact oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.base import EstimatorInfo, Options, Outcome, Plan
from streaming_pca.estimators.common.state import decode_state, encode_state
from streaming_pca.estimators.oja.deflation import (
    Deflation,
    DeflationState,
    Learnt,
    orthonormalise_from,
)
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from tests.estimators.suite import Floats


class _Options(Options):
    steps: int = 1

    @property
    def largest_batch(self) -> int:
        return 100


@dataclass(frozen=True)
class _Asked:
    component: int
    step: int
    iterate: Floats
    removed: Floats


class _Exact(Deflation[DeflationState, _Options]):
    """Run thirty exact power steps per batch without noise; ``fails`` names batches."""

    info = EstimatorInfo("exact", "none", False, "nothing", "a test's oracle")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[_Asked] = []
        self.fails: set[int] = set()
        self.answer: Floats | None = None

    def _steps_per_component(self) -> int:
        return self.options.steps

    def plan_mechanisms(self, state: DeflationState) -> Plan:
        return Plan(10, 10, 1, self.privacy.charge(None), {})

    def _learn(self, state: DeflationState, batch: ArrayBatch, iterate: Floats, removed: Floats) -> Learnt:
        assert removed.flags.c_contiguous
        self.asked.append(_Asked(state.component, state.step, iterate.copy(), removed.copy()))
        if state.batch in self.fails:
            return Learnt(None, 99.0, Outcome.NO_SCALE, 0)
        if self.answer is not None:
            return Learnt(self.answer, 1.0, Outcome.LEARNT, 3, 2.5)
        moment = batch.rows.T @ batch.rows / len(batch)
        inside = np.eye(self.dim) - removed @ removed.T
        x = iterate
        for _ in range(30):
            x = inside @ moment @ x
            x /= np.linalg.norm(x)
        # The vector is neither normalised nor orthogonal: the frame must correct this.
        return Learnt(7 * x + 3 * removed.sum(axis=1), float(x @ moment @ x / (x @ x)), Outcome.LEARNT, 1)


def make(dim: int = 6, k: int = 3, steps: int = 1, centering: Any = "none") -> _Exact:
    privacy = PrivacyParameters(epsilon=1.0, delta=1e-6)
    return _Exact(dim, k, privacy, Preprocessing(dim=dim, centering=centering), _Options(steps=steps))


def rows(m: int, d: int, seed: int = 0) -> ArrayBatch:
    """Return rows with variances 4^0, 4^-1, ..."""
    return ArrayBatch.of_vectors(utility_generator(seed).standard_normal((m, d)) * 2.0 ** -np.arange(d))


def run(estimator: _Exact, n: int, m: int = 400) -> list[DeflationState]:
    states = [estimator.init(utility_generator(1))]
    for i in range(n):
        states.append(estimator.update(states[-1], rows(m, estimator.dim, i)))
    return states


def orthonormal(basis: Floats) -> bool:
    return bool(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-14)


def test_components_take_turns_and_passes_follow_each_other() -> None:
    estimator = make(k=3, steps=2)
    states = run(estimator, 14)
    assert [a.component for a in estimator.asked] == [0, 0, 1, 1, 2, 2] * 2 + [0, 0]
    assert [a.step for a in estimator.asked] == [0, 1] * 7
    assert states[-1].steps.tolist() == [6, 4, 4]
    assert (states[-1].batch, states[-1].records) == (14, 14 * 400)
    assert states[-1].outcome == "learnt"


def test_an_oracle_sees_orthonormal_components_and_an_iterate_at_right_angles_to_them() -> None:
    estimator = make(k=4, steps=2)
    states = run(estimator, 20)
    assert all(orthonormal(state.basis) for state in states)
    for asked, before in zip(estimator.asked, states, strict=False):
        assert np.array_equal(asked.removed, before.basis[:, : asked.component])
        assert np.array_equal(asked.iterate, before.basis[:, asked.component])
        assert np.abs(asked.removed.T @ asked.iterate).max(initial=0.0) < 1e-14
        assert abs(np.linalg.norm(asked.iterate) - 1) < 1e-14


def test_a_new_pass_begins_where_the_old_one_ended() -> None:
    estimator = make(k=2)
    states = run(estimator, 4)
    third = estimator.asked[2]
    assert third.component == 0
    assert third.removed.shape == (6, 0)
    assert np.array_equal(third.iterate, states[2].basis[:, 0])
    # Its neighbour is only turned enough to be orthogonal to the new first component.
    turned = states[3].basis[:, 1] @ states[2].basis[:, 1]
    assert turned > 0.99
    assert states[2].basis[:, 1] @ states[3].basis[:, 0] != 0


def test_exact_components_give_the_leading_subspace() -> None:
    """[DunglerSanyal2025, Theorem 2]: with a zeta-approximate oracle <U U^T, S> >= (1 - zeta^2) |S|_k.

    Thirty power steps leave zeta = (1/4)^30 of the batch's own second moments. Those of 40,000
    records differ from 4^-i by less than 6 sqrt(2/40000) = 4.3% (and mix by less), with probability
    above 1 - 1e-8: the angle to the first two coordinates, about 0.043 4/3, is below 0.1.
    """
    estimator = make(dim=6, k=2)
    states = run(estimator, 2, m=40_000)
    assert subspace_error(estimator.release(states[-1]).components, np.eye(6)[:2]) < 0.1


def test_a_batch_that_shows_nothing_is_a_step_of_the_pass_but_not_of_the_learning_rate() -> None:
    estimator = make(k=2, steps=2)
    estimator.fails = {0, 1, 5}
    states = run(estimator, 6)
    assert [a.component for a in estimator.asked] == [0, 0, 1, 1, 0, 0]
    assert states[-1].steps.tolist() == [1, 2]
    for before, after in ((states[0], states[1]), (states[1], states[2]), (states[5], states[6])):
        assert after.outcome == "no-scale"
        assert np.array_equal(before.basis, after.basis)
        assert np.array_equal(before.values, after.values)
    assert 99.0 not in states[-1].values


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_an_iterate_that_is_not_finite_is_passed_over(what: float) -> None:
    estimator = make()
    estimator.answer = np.array([1.0, what, 0, 0, 0, 0])
    states = run(estimator, 2)
    assert np.array_equal(states[0].basis, states[2].basis)
    assert states[2].component == 2


@pytest.mark.parametrize("answer", [np.zeros(6), np.eye(6)[0] * 1e300, np.eye(6)[0] * 1e-300])
def test_any_finite_iterate_leaves_an_orthonormal_basis(answer: Floats) -> None:
    """Equal answers for all components work too; projection leaves nothing of the later ones."""
    estimator = make()
    estimator.answer = answer
    assert run(estimator, 1)[-1].scale == 2.5
    assert all(orthonormal(state.basis) for state in run(estimator, 7))


def test_a_release_falls_and_what_was_never_learnt_comes_last() -> None:
    estimator = make(k=3)
    state = replace(run(estimator, 1)[-1], values=np.array([1.0, -2.0, 5.0]))
    release = estimator.release(state)
    assert release.explained_variance.tolist() == [5.0, 1.0, 0.0]
    np.testing.assert_allclose(np.abs(release.components @ state.basis), np.eye(3)[[2, 0, 1]], atol=1e-14)


@pytest.mark.parametrize(("dim", "k"), [(1, 1), (5, 1), (5, 5), (2, 2)])
def test_any_rank_works(dim: int, k: int) -> None:
    estimator = make(dim=dim, k=k)
    states = run(estimator, 2 * k + 1)
    assert all(orthonormal(state.basis) for state in states)
    state = states[-1]
    assert encode_state(decode_state(DeflationState, encode_state(state))) == encode_state(state)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_columns_are_made_orthonormal_in_order(first: int) -> None:
    rng = utility_generator(3)
    basis = orthonormalise(rng.standard_normal((7, 4)))
    basis[:, first:] = rng.standard_normal((7, 4 - first)) * 10.0 ** rng.integers(-200, 200, 4 - first)
    before = basis.copy()
    orthonormalise_from(basis, first)
    assert orthonormal(basis)
    assert np.array_equal(basis[:, :first], before[:, :first])
    # This equals QR with a positive diagonal.
    scaled = before / np.abs(before).max(axis=0)
    np.testing.assert_allclose(basis, orthonormalise(scaled), atol=1e-12)


def test_nearly_parallel_columns_are_orthonormal_to_the_last_digits() -> None:
    rng = utility_generator(4)
    for tilt in 10.0 ** np.arange(-18, 0):
        basis = np.repeat(rng.standard_normal((5, 1)), 5, axis=1) + tilt * rng.standard_normal((5, 5))
        orthonormalise_from(basis, 0)
        assert orthonormal(basis)


def test_a_column_that_vanishes_becomes_the_coordinate_that_is_left_most() -> None:
    basis = np.zeros((3, 3))
    basis[:, 0] = basis[:, 1] = [3.0, 4.0, 0.0]
    orthonormalise_from(basis, 0)
    np.testing.assert_allclose(basis[:, 1], [0, 0, 1], atol=1e-15)
    np.testing.assert_allclose(np.abs(basis[:, 2]), [0.8, 0.6, 0], atol=1e-15)
