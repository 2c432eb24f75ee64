"""k-DP-PCA and DP-PCA: batches, steps, the mechanisms of a record, and accuracy."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from experiments.printed import with_spectral_rates
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Outcome
from streaming_pca.estimators.oja.deflation import DeflationState
from streaming_pca.estimators.oja.k_dp_pca import DPPCA, KDPPCA, KDPPCAOptions
from streaming_pca.estimators.oja.truncated_mean import AdaptiveMean, MeanFound
from streaming_pca.kernels.coordinates import COORDINATE_RADIUS
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.parameters import parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, agreeing, differing, made, mechanism_inputs, pack, start, watched
from tests.privacy.calibration.accounting import Approximate
from tests.privacy.noise import SeededSampler

D = 5


def make(how: Any = "none", *, dim: int = D, k: int = 2, kind: type[KDPPCA] = KDPPCA, **more: Any) -> KDPPCA:
    return made(kind, dim, k, how, **{"delta": 1e-3, **more})


def after_one_component(estimator: KDPPCA, how: Any, m: int) -> DeflationState:
    """Return a state with one component projected out."""
    with replace_noise_sampler(SeededSampler()):
        state = estimator.update(start(estimator), pack(estimator, agreeing(how, m, 5)))
    assert (state.component, state.outcome) == (1, "learnt")
    return state


@pytest.mark.parametrize("how", ["none", "pairs", RecordKind.MATRIX], ids=str)
@pytest.mark.parametrize("component", [0, 1])
def test_a_record_meets_the_range_or_the_mean_within_their_sensitivities(how: Any, component: int) -> None:
    """The range moves by one block's bin.

    The mean moves by one bin a coordinate and, in integers, by 2 * 2**30 sqrt(d), which is attained.
    """
    m = 4000
    estimator = make(how, epsilon=8.0, steps_per_component=1, range_constant=20.0)
    state = start(estimator) if component == 0 else after_one_component(estimator, how, m)
    items = agreeing(how, m)
    whole = mechanism_inputs(estimator, items, state=state)
    answers = [call.answer for call in whole]
    assert [call.name for call in whole] == ["stability_histogram", "gaussian_modes", "gaussian_on_vector"]
    # Products to every corner of the box, with opposite signs.
    x = state.basis[:, component]
    if how is RecordKind.MATRIX:
        ones = np.resize([1.0, -1.0], D)
        a = np.outer(x, ones) + np.outer(ones, x)
        news: list[Any] = [None, *(sign * size * a for sign in (1, -1) for size in (1e-9, 1.0, 1e3, 1e300))]
    else:
        p = np.resize([1.0, -1.0], D) - x * (np.resize([1.0, -1.0], D) @ x)
        sizes = (1e-9, 1.0, 1e3, 1e150, 1e300)
        news = [None, *(size * (0.1 * x + s * p)[None] for s in (1, -1) for size in sizes)]
    reached = 0
    for place in (0, 1, 1999, 2000, 2001, m - 1):
        changed = []
        for new in news:
            neighbour = items.copy()
            neighbour[place] = new
            changed.append(mechanism_inputs(estimator, neighbour, answers, state))
        for one, other in combinations([*changed, whole], 2):
            keys, of_bins, distance = map(differing, one, other)
            assert keys <= 1
            assert of_bins <= 1
            assert distance <= 4 * COORDINATE_RADIUS**2 * D
            assert not (keys and (of_bins or distance))
            assert place >= 2000 or not (of_bins or distance)
            assert place < 2000 or not keys
            reached = max(reached, distance)
    assert reached >= 0.8 * 4 * COORDINATE_RADIUS**2 * (D - component)


@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_what_a_unit_meets_costs_the_promise(contributions: int, epsilon: float) -> None:
    """Range and mean each cost it, on disjoint halves; c batches cost a c-th each."""
    delta = 1e-5
    estimator = make(epsilon=epsilon, delta=delta, contributions=contributions)
    plan = estimator.plan(start(estimator))
    assert plan.charge.epsilon == parse_rational(epsilon)
    assert plan.charge.delta == parse_rational(delta)
    e, d = epsilon / contributions, delta / contributions
    z = plan.parameters["sigma_over_sensitivity"]
    keys, modes, total = mechanism_inputs(estimator, agreeing("none", 60_000))
    assert keys.args[0] <= e
    assert keys.args[1] <= d
    assert total.args[0] >= z * 2 * COORDINATE_RADIUS * math.sqrt(D) * (1 - 1e-12)
    # The reference is zCDP's conversion (Canonne, Kamath and Steinke 2020, Proposition 12), evaluated here.
    rho, alpha = modes.args[0] + 1 / (2 * z**2), 1 + np.logspace(-3, 4, 10**6)
    log_delta = (alpha - 1) * (alpha * rho - e) + alpha * np.log1p(-1 / alpha) - np.log(alpha - 1)
    assert math.exp(log_delta.min()) + (1 + math.exp(e)) * modes.args[1] <= d
    if contributions > 1:
        # Basic composition applies for all halves that the unit is in.
        assert math.fsum([Approximate(e, d).epsilon] * contributions) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [("fixed", 3000), ("sqrt n", 1000 // 2), ("n/log n", int(1e6 / (2 * math.log(1e6)))), ("n/log^3 n", 379)],
)
def test_batches_follow_the_rules(rule: str, wanted: int) -> None:
    estimator = make(n_records=1_000_000, batch_rule=rule, batch_size=3000, epsilon=20.0)
    plan = estimator.plan(start(estimator))
    assert plan.least <= plan.count
    assert plan.count == wanted
    paired = make("pairs", n_records=1_000_000, batch_rule=rule, batch_size=3000, epsilon=20.0)
    assert paired.plan(start(paired)).count == wanted // 2 * 2
    assert estimator._steps_per_component() == 500_000 // wanted
    assert plan.parameters["failure_probability"] == 0.01 / (2 * (500_000 // wanted))
    assert plan.count <= estimator.options.largest_batch


def test_a_batch_needs_a_pair_a_block_and_as_many_records_for_the_mean() -> None:
    """m = C1 ln(1/(delta tau))/epsilon blocks, tau/(2 T) for tau; a batch that never suffices is reported."""
    options = {"n_records": 100_000, "batch_size": 5000, "epsilon": 0.5, "range_constant": 3.0}
    blocks = math.ceil(3 * math.log(1 / (1e-3 * 0.01 / 20)) / 0.5)
    for how, records_of_one in (("none", 1), ("pairs", 2)):
        estimator = make(how, **options)
        plan = estimator.plan(start(estimator))
        assert plan.parameters["range_blocks"] == blocks
        assert (plan.count, plan.least) == (5000, 4 * blocks * records_of_one)
    small = make(**{**options, "batch_size": 100})
    plan = small.plan(start(small))
    assert plan.count == plan.least == 100
    state = small.update(start(small), pack(small, agreeing("none", 100)))
    assert state.outcome == "too-few-records"


def test_without_a_known_number_failures_of_all_batches_add_up_to_half() -> None:
    estimator = make()
    sums = math.fsum(2 * estimator._failure(t) for t in range(1, 10**5))
    assert 0.0099 < sums <= 0.01
    assert estimator._steps_per_component() == 8


def test_a_rule_needs_the_number_of_records() -> None:
    with pytest.raises(ValueError, match='batch_rule = "sqrt n" needs n_records'):
        make(batch_rule="sqrt n")
    assert KDPPCAOptions(batch_size=MAX_RECORDS).largest_batch == MAX_RECORDS
    assert make(n_records=2, batch_rule="n/log^3 n", k=5).plan(start(make())).count >= 1


def test_where_no_range_is_found_nothing_is_learnt() -> None:
    """Zeros have no spread, so no bin is found."""
    estimator = make(steps_per_component=1)
    state = start(estimator)
    with replace_noise_sampler(SeededSampler()), watched() as seen:
        after = estimator.update(state, pack(estimator, [np.zeros((1, D))] * 2000))
    assert (after.outcome, after.component, after.steps.tolist()) == ("no-scale", 1, [0, 0])
    assert [call.name for call in seen] == ["stability_histogram"]
    assert np.array_equal(after.basis, state.basis)


def test_a_step_is_the_papers() -> None:
    """The answers of the second component's oracle are exact; lines 5 and 6 and constants of Algorithm 7."""
    m = 4000
    options = {"tail_constant": 1.5, "tail_exponent": 1.25, "learning_rate": 0.3, "offset": 2.0}
    estimator = make(steps_per_component=1, epsilon=8.0, range_constant=20.0, **options)
    state = after_one_component(estimator, "none", m)
    given: list[Any] = []

    def mean(
        self: AdaptiveMean, part: ArrayBatch, about: Any, basis: Floats, removed: Floats, *rest: float
    ) -> Any:
        given.extend(rest)
        rows = part.rows
        inside = np.eye(D) - removed @ removed.T
        found = inside @ (rows.T @ (rows @ basis)) / len(part)
        return MeanFound(Outcome.LEARNT, found, centred=1.0, clipped=17)

    scale = 0.0

    def watched_scale(self: AdaptiveMean, *args: Any) -> float | None:
        nonlocal scale
        scale = original(self, *args) or 0.0
        return scale

    original = AdaptiveMean.scale
    items = agreeing("none", m, 3)
    with pytest.MonkeyPatch.context() as patch, replace_noise_sampler(SeededSampler()):
        patch.setattr(AdaptiveMean, "mean", mean)
        patch.setattr(AdaptiveMean, "scale", watched_scale)
        after, clipped = estimator.learn_batch(state, pack(estimator, items))
    tau = 0.01 / (2 * 2 * 3)
    assert given[0] == pytest.approx(2**0.25 * 1.5 * math.sqrt(scale) * math.log(25) ** 1.25)
    assert given[1] == pytest.approx(3 * 1.5 * math.sqrt(scale) * math.log(2000 * D / tau) ** 1.25)
    u, w = state.basis[:, :1], state.basis[:, 1]
    rows = np.concatenate(items[2000:])
    inside = np.eye(D) - u @ u.T
    gradient = inside @ (rows.T @ (rows @ w)) / 2000
    stepped = inside @ (w + 0.3 / (1 + 2) * gradient)
    np.testing.assert_allclose(after.basis[:, 1], stepped / np.linalg.norm(stepped), atol=1e-12)
    assert after.values[1] == pytest.approx(w @ gradient)
    assert clipped == 17
    assert after.scale == scale
    assert estimator._radius(scale, m, 2) == given[1]
    assert (after.component, after.steps.tolist()) == (0, [1, 1])


def test_the_range_is_that_of_the_products() -> None:
    """l of the covariance of differences is twice the products' l, within its bin and sampling.

    Products of x ~ N(0, 1) along e_1, times 1: A w = x^2 e_1 w_1, variance 2 w_1^2. Blocks of some
    600 pairs estimate it to 5 sqrt(14/600) < 80% at most, their fullest bin nearer; the bin is 2^(1/4) wide.
    """
    estimator = make(k=1, epsilon=4.0)
    state = start(estimator)
    rng = utility_generator(3)
    x = rng.standard_normal((60_000, 1)) * np.eye(1, D)
    batch, blocks = ArrayBatch.of_vectors(x), estimator._range_blocks(1)
    scale = estimator.adaptive_mean.scale
    found = scale(batch, estimator.preprocessing, state.basis, np.zeros((D, 0)), blocks)
    exact = 2 * 2 * state.basis[0, 0] ** 2
    assert exact / 1.8 < found < exact * 1.5


def test_dp_pca_is_k_dp_pca_for_one_component() -> None:
    batches = [agreeing("none", 4000, i) for i in range(3)]
    states = []
    for kind in (DPPCA, KDPPCA):
        estimator = make(k=1, kind=kind, epsilon=4.0)
        state = start(estimator)
        with replace_noise_sampler(SeededSampler()):
            for items in batches:
                state = estimator.update(state, pack(estimator, items))
        assert estimator.plan(state).parameters["mechanism"] == estimator.info.id
        states.append(state)
    assert np.array_equal(states[0].basis, states[1].basis)
    with pytest.raises(ValueError, match="dp-pca finds one component, not 2: ask for 1, or take k-dp-pca"):
        make(k=2, kind=DPPCA)


def spiked(m: int, v: Floats, values: list[float], sigma: float, rng: np.random.Generator) -> ArrayBatch:
    """Return A = V L V^T + z z^T of [DunglerSanyal2025, appendix G.1], as factors of k + 1 rows."""
    factor = (np.sqrt(values) * v).T
    fixed = np.broadcast_to(factor, (m, *factor.shape))
    return ArrayBatch.of_vectors(np.concatenate([fixed, sigma * rng.standard_normal((m, 1, len(v)))], axis=1))


def zeta(components: Floats, v: Floats, values: list[float], sigma: float) -> float:
    """Return sqrt(1 - <U U^T, S>/|S|_k), Definition 1."""
    s = (v * values) @ v.T + sigma**2 * np.eye(len(v))
    best = sum(values) + sigma**2 * len(values)
    return math.sqrt(max(1 - np.trace(components @ s @ components.T) / best, 0.0))


@pytest.mark.parametrize(
    ("kind", "values", "how"),
    [(KDPPCA, [10.0, 5.0], "none"), (DPPCA, [10.0], "none"), (KDPPCA, [10.0, 5.0], RecordKind.MATRIX)],
    ids=str,
)
def test_it_finds_a_spiked_subspace_as_theorem_1_says(
    kind: type[KDPPCA], values: list[float], how: Any
) -> None:
    """[DunglerSanyal2025, Theorem 1]: if n is large enough for its condition (1), then with probability 0.99

    zeta = O~(kappa' (sqrt(V k/n) + gamma d k sqrt(ln(1/delta))/(epsilon n))).

    Line (1): e^(kappa'^2) <= e^4, and additional terms below 10^4. lambda_1^2 V = sigma^4 (d + 1) and
    lambda_1^2 gamma^2 = 2 sigma^4 here. In place of O~ the constants and logarithms of Algorithm 7, line 9,
    for a step's m = n/(2 k T) records, and Lambda <= 2^(1/4) 2 (gamma lambda_1)^2: the bound is
    kappa' (sqrt(V k/n) + 12 sqrt(2) 2^(1/8) ln(m d 2 T/tau) gamma d sqrt(2 ln(2.5/delta))/(epsilon m)),
    0.0004 and 0.0017 in numbers, where a random subspace has about 0.9. Twenty times the
    learning rate of G.1 is used, so that 16 steps leave nothing of the start. Fixed seeds.
    """
    n, d, sigma, epsilon, delta, steps = 320_000, 10, 0.1, 4.0, 1e-2, 16
    k = len(values)
    rng = utility_generator(11)
    v = orthonormalise(rng.standard_normal((d, k)))
    estimator = make(
        how,
        dim=d,
        k=k,
        epsilon=epsilon,
        delta=delta,
        kind=with_spectral_rates(kind),
        n_records=n,
        batch_size=n // k // steps,
        range_constant=8.0,
        learning_rate=20.0,
        starts=tuple(20 * sigma * value for value in values),
        slopes=tuple((a - b) / math.log(n) for a, b in pairwise((*values, sigma**2))),
    )
    state, sampler = start(estimator), SeededSampler(5)
    for _ in range(steps * k):
        batch = spiked(estimator.plan(state).count, v, values, sigma, rng)
        if how is RecordKind.MATRIX:
            f = batch.rows.reshape(-1, k + 1, d)
            batch = pack(estimator, list(np.einsum("mri,mrj->mij", f, f)))
        with replace_noise_sampler(sampler):
            state = estimator.update(state, batch)
    kappa = values[0] / min(a - b for a, b in zip(values, [*values[1:], sigma**2], strict=True))
    spread, gamma = math.sqrt(d + 1) * sigma**2 / values[0], math.sqrt(2) * sigma**2 / values[0]
    m = n / (2 * k * steps)
    constant = 12 * math.sqrt(2) * 2**0.125 * math.log(m * d * 2 * steps / 0.01)
    private = constant * gamma * d * math.sqrt(2 * math.log(2.5 / delta)) / (epsilon * m)
    bound = kappa * (spread * math.sqrt(k / n) + private)
    assert state.steps.min() > 12
    assert zeta(estimator.release(state).components, v, values, sigma) < bound < 2e-3
