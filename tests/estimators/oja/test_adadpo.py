"""ADADPO and TADADPO recover subspaces where their theory applies, and report where they cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.printed import PrintedAdaDPO
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.base import Outcome
from streaming_pca.estimators.oja.adadpo import AdaDPO, AdaDPOOptions
from streaming_pca.estimators.tadadpo import TadaDPO, TadaDPOOptions
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, made
from tests.privacy.noise import ScriptedSampler, SeededSampler

D, K = 10, 2
EIGENVALUES = np.array([10.0, 5.0])


def make(kind: Any = AdaDPO, **options: Any) -> Any:
    return made(kind, D, K, delta=1e-2, **options)


def spiked(n: int, sigma: float, seed: int) -> tuple[Floats, Floats]:
    """Return factors of A = V L V^T + z z^T, and V."""
    rng = utility_generator(seed)
    truth = orthonormalise(rng.standard_normal((D, K)))
    signal = np.broadcast_to((np.sqrt(EIGENVALUES) * truth).T, (n, K, D))
    return np.concatenate([signal, sigma * rng.standard_normal((n, 1, D))], axis=1), truth.T


def learn(estimator: Any, x: Floats, seed: int = 0) -> tuple[Any, list[str]]:
    """Return the last state and all outcomes; noise from a fixed generator."""
    state, taken, outcomes = estimator.init(utility_generator(7)), 0, []
    with replace_noise_sampler(SeededSampler(seed)):
        while taken < len(x):
            count = min(estimator.plan(state).count, len(x) - taken)
            state = estimator.update(state, ArrayBatch.of_vectors(x[taken : taken + count]))
            taken += count
            outcomes.append(state.outcome)
    return state, outcomes


def privacy_term(estimator: Any, scale: float, n: int, batch: int) -> float:
    """Return the last term of [DunglerSanyal2026, Theorem 2].

    Terms hidden by its O are included: noise of one step over the gap, times
    lambda_1/(lambda_k - lambda_{k+1}) for the steps.
    """
    sensitivity = 2 * estimator._radius(scale, batch, 1) * math.sqrt(D * K) / (batch / 2)
    noise = estimator.adaptive_mean.multiplier * sensitivity * math.sqrt(D * K)
    gap = EIGENVALUES[-1]
    return noise / gap * EIGENVALUES[0] / gap * math.sqrt(batch / n)


@pytest.mark.parametrize(("sigma", "most"), [(0.5, 0.4), (0.05, 0.004)])
def test_adadpo_recovers_a_spiked_subspace(sigma: float, most: float) -> None:
    """[DunglerSanyal2026, Theorem 2].

    lambda_1 sqrt(k V)/(gap sqrt n) + lambda_1 K d k gamma/(epsilon gap n), without the logarithms.

    lambda_1^2 V = |E (z z^T - sigma^2)^2| = sigma^4 (d + 1); the range Lambda is
    2 lambda_1^2 gamma^2 = 4 sigma^4 or a little more. The whole bound is below
    ``most`` for both, so it is informative: a random subspace has sqrt(3.2); and it
    falls with sigma^2, as adaptivity demands. The start's remainder after ten steps 3/t
    is below 1e-6: each direction outside shrinks by 1 + 15/t. (Fixed seeds.)
    """
    n, batch = 200_000, 20_000
    x, truth = spiked(n, sigma, 1)
    estimator = make(n_records=n, batch_size=batch, learning_rate=3.0, offset=0.0)
    state, outcomes = learn(estimator, x)
    statistics = sigma**2 * math.sqrt(K * (D + 1)) / (EIGENVALUES[-1] * math.sqrt(n))
    bound = statistics + privacy_term(estimator, 5 * sigma**4, n, batch)
    assert bound < most
    assert set(outcomes) == {Outcome.LEARNT}
    release = estimator.release(state)
    assert subspace_error(release.components, truth) < bound
    # Ritz values of the last mean: its noise is below a tenth of them.
    np.testing.assert_allclose(release.explained_variance, EIGENVALUES, rtol=0.1)


def test_the_printed_accounting_learns_where_its_histograms_are_full() -> None:
    """d k = 20 coordinates at epsilon/(2 d k) = 1/40: about 600 records show a bin, of 10,000."""
    x, truth = spiked(120_000, 0.05, 2)
    estimator = make(PrintedAdaDPO, n_records=120_000, batch_size=20_000, offset=0.0)
    state, outcomes = learn(estimator, x)
    assert set(outcomes) == {Outcome.LEARNT}
    assert state.centred == 1.0
    assert subspace_error(estimator.release(state).components, truth) < 0.05


def test_a_batch_too_small_for_the_range_teaches_nothing_and_says_so() -> None:
    """The range takes a pair a block, the mean as many records; m = 4 ln(1/(delta zeta))/epsilon blocks."""
    estimator = make(batch_size=64)
    before = estimator.init(utility_generator(7))
    assert estimator._range_blocks(1) * 4 > 64
    after, outcomes = learn(estimator, spiked(128, 0.5, 3)[0])
    assert outcomes == [Outcome.TOO_FEW] * 2
    assert np.array_equal(after.basis, before.basis)
    assert (after.batch, after.records) == (2, 128)
    assert estimator.release(after).outcome is Outcome.TOO_FEW
    assert estimator.plan(after).charge.epsilon == 1


def test_no_range_teaches_nothing_and_says_so() -> None:
    """The records have all sizes: every block has a separate bin."""
    estimator = make(batch_size=2000)
    before = estimator.init(utility_generator(0))
    sizes = 2.0 ** utility_generator(4).uniform(-60, 60, 2000)
    batch = ArrayBatch.of_vectors(spiked(2000, 0.5, 3)[0] * sizes[:, None, None])
    with replace_noise_sampler(ScriptedSampler()):
        after = estimator.update(before, batch)
    assert after.outcome == Outcome.NO_SCALE
    assert np.array_equal(after.basis, before.basis)


def test_batch_rules_follow_the_paper() -> None:
    def of(**options: Any) -> int:
        return AdaDPOOptions(**options).records_a_batch(1)

    assert of(batch_size=500) == of(batch_size=500, n_records=10**6) == 500
    assert of(batch_rule="sqrt n", n_records=10**6) == 1000
    assert of(batch_rule="n/log n", n_records=10**6) == int(1e6 / math.log(1e6))
    assert of(batch_rule="n/log n", n_records=2) == 2
    with pytest.raises(ValueError, match="needs n_records"):
        of(batch_rule="sqrt n")


def test_failure_probabilities_of_all_steps_add_up_to_half_of_zeta() -> None:
    known = make(n_records=10_000, batch_size=1000, failure_probability=0.1)
    assert math.fsum(known._failure(t) for t in range(1, 11)) == pytest.approx(0.05)
    endless = make(failure_probability=0.1)
    assert 0.0499 < math.fsum(endless._failure(t) for t in range(1, 10_000)) < 0.05


def test_tadadpo_refines_what_its_start_has_found() -> None:
    """[DunglerSanyal2026, Corollary 3].

    x ~ N(0, V L V^T + s^2 I), where tangent products are smaller than products.

    x x^T q is as large as lambda_1, its tangent part as sqrt(lambda_1) s: where the start is
    good enough, the range and with it the noise fall by s^2/lambda_1, up to 1/1,000, compared with more
    steps of the start's own kind on the same records. (Fixed seeds.)
    """
    n, s = 240_000, 0.1
    rng = utility_generator(5)
    truth = orthonormalise(rng.standard_normal((D, K)))
    x = rng.standard_normal((n, K)) * np.sqrt(EIGENVALUES) @ truth.T + s * rng.standard_normal((n, D))
    own = {"batch_size": 20_000, "learning_rate": 0.3, "offset": 0.0, "range_constant": 12.0}
    alone, _ = learn(make(n_records=n, epsilon=4.0, **own), x)
    estimator = make(TadaDPO, n_records=n, epsilon=4.0, warm_records=120_000, warm_options=own, **own)
    state, outcomes = learn(estimator, x)
    assert set(outcomes) == {Outcome.LEARNT}
    assert (state.warm, state.warm_batches, state.batch) == (None, 6, 12)
    errors = [
        subspace_error(e.release(found).components, truth.T)
        for e, found in ((make(), alone), (estimator, state))
    ]
    assert errors[1] < errors[0] / 4
    assert state.scale < alone.scale / 100
    # Opt_T of the bound, c = 1, from an error of 1 at most; and its privacy term by the last range, twice,
    # because the first tangent steps' range was larger.
    opt = math.exp(-EIGENVALUES[-1] * math.fsum(0.3 / t for t in range(1, 7)))
    assert errors[1] < opt + 2 * privacy_term(estimator, state.scale, n // 2, 20_000) < 0.08


def test_the_start_is_the_other_estimators_own_state() -> None:
    """The start equals a separate run on those records; its subspace becomes the first iterate."""
    own = {"clip_radius": 30.0, "batch_size": 500, "learning_rate": 0.2}
    x = spiked(1000, 0.5, 6)[0]
    estimator = make(TadaDPO, warm_estimator="private-oja", warm_records=1000, warm_options=own)
    state, outcomes = learn(estimator, x)
    alone, _ = learn(estimator.warm, x)
    assert outcomes == [None, None]
    assert state.warm is None
    wanted, found = estimator.warm.release(alone), estimator.release(state)
    np.testing.assert_allclose(np.abs(found.components), np.abs(wanted.components), atol=1e-12)
    np.testing.assert_allclose(found.explained_variance, wanted.explained_variance)
    assert estimator.plan(state).parameters["mechanism"] == "tadadpo"
    assert "start" not in estimator.plan(state).parameters


def test_what_a_start_clips_is_counted_where_the_counts_are_paid_for() -> None:
    estimator = make(TadaDPO, warm_estimator="noisy-power", warm_options={"clip_l2": 0.1}, share=0.1)
    with replace_noise_sampler(ScriptedSampler()):
        batch = ArrayBatch.of_vectors(spiked(300, 0.5, 8)[0])
        state = estimator.update(estimator.init(utility_generator(0)), batch)
    assert state.counts.tolist() == [0, 300]


def test_a_start_knows_when_it_ends() -> None:
    assert TadaDPOOptions(warm_estimator="adaptive", warm_records=5000).parse_warm_options().n_records == 5000  # type: ignore[attr-defined]
    estimator = make(TadaDPO, warm_estimator="adaptive", warm_records=5000, warm_options={"n_batches": 1})
    plan = estimator.plan(estimator.init(utility_generator(0)))
    assert plan.count == 5000
    assert plan.parameters["start"] == "adaptive"
    assert plan.charge.rho is None


def test_a_users_batches_of_both_sorts_cost_the_promise_together() -> None:
    """Basic composition covers any mix: a start from one batch of the user's has a c-th."""
    own = {"clip_radius": 30.0}
    estimator = make(TadaDPO, contributions=4, warm_estimator="private-oja", warm_options=own)
    assert estimator.warm.privacy.contributions == 1
    for part in (estimator.warm.privacy, estimator.adaptive_mean):
        assert part.epsilon * 4 <= 1
        assert part.delta * 4 <= 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm_estimator": "oja"}, "no warm_estimator 'oja'; known: adadpo"),
        ({"warm_estimator": "tadadpo"}, "no warm_estimator 'tadadpo'"),
        ({"warm_estimator": "private-oja"}, "warm_options clip_radius: must be set"),
        ({"warm_options": {"batch": 3}}, "warm_options batch: no such setting; did you mean batch_size"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_a_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TadaDPOOptions(**options)
