"""local-sparse: [WangXu2020, Algorithm 2]. Fixed seeds; see test_gaussian for the tests of both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.estimators.local import sparse as local_sparse
from streaming_pca.estimators.local.sparse import StoredIterate
from streaming_pca.linalg.subspace import subspace_error
from tests.estimators.local.local_streams import LENGTH, learnt, local, noisy_means, records_on, reports_of
from tests.estimators.suite import check_subspace

D, K, S = 40, 2, 6


def stream(n: int, seed: int, d: int = D) -> tuple[Any, Any, Any, list[int]]:
    """Return an estimator, reports, and the reports' subspace and features."""
    estimator = local("local-sparse", d, K)
    x, rows, features = records_on(n, d, K, S, seed)
    return estimator, reports_of(x, estimator.sigma, seed + 1), rows, features


@pytest.mark.parametrize("n", [4000, 8000, 16_000])
def test_the_error_is_that_of_theorem_4(n: int) -> None:
    """|sin|_F^2 <= C (s/gap)^2 sigma^2 log(d)/n, with C = 1; and less than without sparsity."""
    estimator, batch, rows, _ = stream(n, 3)
    error = subspace_error(estimator.release(learnt(estimator, batch)).components, rows) ** 2 / 2
    gap = LENGTH**2 / K
    assert error <= (S * estimator.sigma / gap) ** 2 * math.log(D) / n
    plain = local("local-gaussian", D, K)
    of_plain = subspace_error(plain.release(learnt(plain, batch)).components, rows) ** 2 / 2
    assert error < of_plain
    # The bound also holds for the printed algorithm, the solution without refit.
    printed = local("local-sparse", D, K, refit=False)
    of_printed = subspace_error(printed.release(learnt(printed, batch)).components, rows) ** 2 / 2
    assert error < of_printed <= (S * estimator.sigma / gap) ** 2 * math.log(D) / n


@pytest.mark.parametrize("seed", range(3))
def test_the_support_is_found_where_theorem_5_says_so(seed: int) -> None:
    estimator, batch, _, features = stream(16_000, seed)
    release = estimator.release(learnt(estimator, batch))
    assert release.support == tuple(features)
    assert set(np.flatnonzero(np.abs(release.components).max(axis=0) > 1e-2)) <= set(features)
    check_subspace(estimator, release)


def test_noise_alone_has_few_features() -> None:
    estimator = local("local-sparse", D, K)
    batch = reports_of(np.zeros((500, D)), estimator.sigma, 1)
    support = estimator.release(learnt(estimator, batch)).support
    assert K <= len(support) <= 4 * K


def test_a_larger_penalty_finds_fewer_features() -> None:
    _, batch, _, _ = stream(2000, 5)
    found = []
    for constant in (0.2, 0.75, 3.0):
        estimator = local("local-sparse", D, K, penalty_constant=constant)
        found.append(len(estimator.release(learnt(estimator, batch)).support))
    assert found[0] > found[1] > found[2] >= K


def test_a_warm_start_takes_fewer_iterations_to_the_same_answer() -> None:
    estimator, batch, _, _ = stream(8000, 7)
    first, second = batch.split([7900, 100])
    before = learnt(estimator, first)
    cold = estimator.update(replace(before, room=StoredIterate.empty(D)), second)
    warm = estimator.update(before, second)
    assert warm.iterations < cold.iterations
    assert warm.total.tobytes() == cold.total.tobytes()
    assert subspace_error(warm.basis, cold.basis) < 1e-3
    assert estimator.release(warm).support == estimator.release(cold).support


def test_what_is_found_depends_on_the_cut_within_the_tolerance() -> None:
    estimator, batch, _, _ = stream(4000, 8)
    states = [learnt(estimator, *batch.split(cut)) for cut in ([4000], [100, 3900], [1000, 1000, 1000, 1000])]
    for state in states[1:]:
        assert state.total.tobytes() == states[0].total.tobytes()
        assert subspace_error(state.basis, states[0].basis) < 1e-3
        np.testing.assert_allclose(state.variances, states[0].variances, atol=1e-3)


def test_the_gap_says_how_far_a_solver_that_was_cut_short_may_be_off() -> None:
    _, batch, _, _ = stream(4000, 9)
    short = local("local-sparse", D, K, max_iterations=2, penalty_constant=0.5)
    long = local("local-sparse", D, K, penalty_constant=0.5)
    cut, full = learnt(short, batch), learnt(long, batch)
    assert cut.iterations == 2
    assert cut.gap > 10 * full.gap
    assert full.gap < 1e-4
    # The next batch continues from there.
    state = cut
    for _ in range(60):
        state = short.update(state, batch.split([0, len(batch)])[0])
    assert state.gap < cut.gap / 5


def test_variances_are_those_of_the_mean_without_the_penalty() -> None:
    estimator, batch, _, _ = stream(16_000, 1)
    release = estimator.release(learnt(estimator, batch))
    assert release.angle_bound is None
    # Records of this length lie half on each direction; errors, and a small bias of the choice.
    off = np.abs(release.explained_variance - LENGTH**2 / K)
    assert (off <= 6 * release.explained_variance_error).all()
    assert release.total_variance == pytest.approx(LENGTH**2, abs=5 * release.total_variance_error)


def test_a_start_with_too_many_features_keeps_the_weightiest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sparse, "_MOST_STORED", 8)
    estimator, batch, _, features = stream(8000, 2)
    first, second = batch.split([7900, 100])
    before = learnt(estimator, first)
    assert set(before.room.features) > set(features)
    assert before.room.features.shape == (8,)
    assert encode_state(decode_fitting_state(estimator, encode_state(before))) == encode_state(before)
    cold = estimator.update(replace(before, room=StoredIterate.empty(D)), second)
    warm = estimator.update(before, second)
    assert warm.iterations < cold.iterations
    assert subspace_error(warm.basis, cold.basis) < 1e-3


@pytest.mark.parametrize("strength", [0.0, 6.0, 60.0])
def test_variances_of_chosen_features_are_those_along_the_components(strength: float) -> None:
    """Noise chooses features whose entries it has made large."""
    matrix, away, too_large = np.zeros((200, 200)), [], []
    matrix[:8, :8] = strength / 8
    for state, release, true in noisy_means(local("local-sparse", 200, 1), matrix, 8, seed=1):
        away.append((release.explained_variance - true) / release.explained_variance_error)
        too_large.append((state.variances - true) / math.sqrt(2))
    assert np.abs(away).max() < 4
    assert np.abs(np.mean(away, axis=0)).max() < 1.5
    assert strength == 60.0 or np.mean(too_large) > 1.5
