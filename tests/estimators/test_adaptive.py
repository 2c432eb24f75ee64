"""The default estimator: its choice of route, its costs, and its robustness.

Data and noise come from generators with fixed seeds unless a test mentions otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.adaptive import AdaptivePCA, AdaptiveState
from streaming_pca.estimators.common.state import decode_state, encode_state
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, made, start
from tests.privacy.noise import ScriptedSampler, SeededSampler


def make(dim: int, k: int = 2, how: Any = "none", **options: Any) -> AdaptivePCA:
    return made(AdaptivePCA, dim, k, how, **options)


def learn(estimator: AdaptivePCA, batches: list[ArrayBatch], seed: int = 0) -> list[AdaptiveState]:
    states = [start(estimator)]
    with replace_noise_sampler(SeededSampler(seed)):
        for batch in batches:
            states.append(estimator.update(states[-1], batch))
    return states[1:]


def gaussian(m: int, d: int, seed: int) -> ArrayBatch:
    rng = utility_generator(seed)
    return ArrayBatch.of_vectors(rng.standard_normal((m, d)) * np.linspace(2, 0.3, d))


def agreeing(m: int, d: int, seed: int, of: int = 0) -> tuple[ArrayBatch, Floats]:
    """Return factors F with F^T F near V L V^T for one V, and V^T."""
    truth = orthonormalise(utility_generator(of).standard_normal((d, 2)))
    rng = utility_generator(seed)
    factors = (np.sqrt([5.0, 4.0]) * truth).T + 0.05 * rng.standard_normal((m, 2, d))
    return ArrayBatch.of_vectors(factors), truth.T


@pytest.mark.parametrize("seed", range(3))
def test_records_that_agree_go_to_the_block_route(seed: int) -> None:
    batch, truth = agreeing(40_000, 20, seed)
    estimator = make(20)
    (state,) = learn(estimator, [batch], seed)
    assert state.route == "block"
    by_block = subspace_error(estimator.release(state).components, truth)
    other = make(20, route="covariance")
    by_covariance = subspace_error(other.release(learn(other, [batch], seed)[0]).components, truth)
    assert by_block < 0.02
    assert by_block < 1.5 * by_covariance


@pytest.mark.parametrize("d", [20, 50])
@pytest.mark.parametrize("seed", range(3))
def test_gaussian_records_go_to_the_covariance_route(d: int, seed: int) -> None:
    states = learn(make(d), [gaussian(20_000, d, seed), gaussian(20_000, d, seed + 10)], seed)
    assert [state.route for state in states] == ["covariance", "covariance"]


def test_above_512_features_the_block_route_is_public() -> None:
    estimator = make(513)
    state = start(estimator)
    assert state.route == "block"
    assert state.covariance.layers.size == state.covariance.weights.size == 0
    (after,) = learn(estimator, [gaussian(600, 513, 0)])
    assert after.route == "block"
    assert start(make(512)).route == "covariance"


def test_the_route_changes_when_the_stream_does() -> None:
    """Records agree, then disagree, then others agree."""
    d = 10
    together, _ = agreeing(40_000, d, 1)
    apart = gaussian(40_000, d, 2)
    states = learn(make(d), [together, apart, together])
    assert states[0].route == "block"
    assert states[1].route == "covariance"


@pytest.mark.parametrize("route", ["covariance", "block"])
def test_a_route_that_is_set_is_taken(route: str) -> None:
    estimator = make(6, route=route)
    for batch in (gaussian(5000, 6, 0), agreeing(5000, 6, 0)[0]):
        (state,) = learn(estimator, [batch])
        assert state.route == route
    untouched = state.covariance.records if route == "block" else state.block.spectrum.any()
    assert not untouched


def test_charges_and_bytes_of_both_routes_are_alike() -> None:
    d = 10
    estimator = make(d)
    plan = estimator.plan(start(estimator))
    assert (plan.charge.epsilon, float(plan.charge.delta)) == (1, 1e-6)
    one, other = (
        learn(estimator, [batch])[0] for batch in (agreeing(40_000, d, 1)[0], gaussian(40_000, d, 2))
    )
    assert (one.route, other.route) == ("block", "covariance")
    assert estimator.plan(one) == estimator.plan(other)
    for state in (one, other):
        assert estimator.plan(state).charge == plan.charge
        after = []
        for s in (state, decode_state(AdaptiveState, encode_state(state))):
            with replace_noise_sampler(SeededSampler(3)):
                after.append(encode_state(estimator.update(s, gaussian(3000, d, 5))))
        assert after[0] == after[1]


def batches_of(what: str, d: int, kind: RecordKind, m: int) -> ArrayBatch:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((m, d))
    scale = {"huge": 1e300, "denormal": 1e-310, "large": 1e100, "small": 1e-100, "spread": 1.0}.get(what, 1.0)
    if what == "spread":
        rows *= 10.0 ** rng.uniform(-150, 150, (m, 1))
    items: list[Any] = [scale * row[None, :] for row in rows]
    if kind is RecordKind.MATRIX:
        items = [np.clip(x.T * (x / scale), -1e308, 1e308) for x in items]
    if what == "null":
        items = [None] * m
    if what == "one":
        items = [items[0]] + [None] * (m - 1)
    if what == "same":
        items = [items[0]] * m
    return ArrayBatch.of_records(items, d, kind)


@pytest.mark.parametrize("how", ["none", "pairs", "auto", RecordKind.MATRIX], ids=str)
@pytest.mark.parametrize("route", ["auto", "block"])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (3, 3), (4, 1)])
def test_nothing_stops_it(how: Any, route: str, d: int, k: int) -> None:
    """Components stay orthonormal and finite for any batch size and records, with noise and without."""
    estimator = make(d, k, how, route=route)
    step = estimator.preprocessing.granularity
    for what in ("normal", "null", "one", "same", "huge", "denormal", "large", "small", "spread"):
        for m in sorted({m + m % step for m in (1, 2, 3, 600)}):
            batch = batches_of(what, d, estimator.kind, m)
            for sampler in (ScriptedSampler(), SeededSampler(0)):
                state = start(estimator)
                with replace_noise_sampler(sampler):
                    for _ in range(2):
                        state = estimator.update(state, batch)
                release = estimator.release(state)
                gram = release.components @ release.components.T
                np.testing.assert_allclose(gram, np.eye(k), atol=1e-12)
                assert np.isfinite(release.explained_variance).all()
                assert release.mean is None or np.isfinite(release.mean).all()
                for error in (release.total_variance, release.total_variance_error, release.angle_bound):
                    assert error is None or (math.isfinite(error) and error >= 0)
