"""Output perturbation: sensitivities in integers, the test of the gap, and its accuracy.

Tests with real noise state their probability of failing by chance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import covariance_sum
from streaming_pca.estimators.covariance.output_perturbation import GapBounds, OutputPerturbation, eigenpairs
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.parameters import parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, differing, made, mechanism_inputs, spiked
from tests.privacy.calibration.accounting import Gaussian, Route, delta_of
from tests.privacy.noise import ScriptedSampler, SeededSampler

KINDS = [RecordKind.FACTOR, RecordKind.MATRIX]


def make(dim: int = 4, k: int = 1, kind: RecordKind = RecordKind.FACTOR, **more: Any) -> OutputPerturbation:
    centering = more.pop("centering", "none")
    how = RecordKind.MATRIX if kind is RecordKind.MATRIX else centering
    return made(OutputPerturbation, dim, k, how, **{"clip_radius": 1.0, **more})


def start(estimator: OutputPerturbation) -> Any:
    return estimator.init(utility_generator(0))


def unit_matrix(matrix: Floats) -> Floats:
    return matrix / np.linalg.norm(matrix)


def neighbours(kind: RecordKind, dim: int, count: int, seed: int) -> tuple[ArrayBatch, ArrayBatch]:
    """Return records that span two directions; the last one is replaced, adversarially for even seeds."""
    rng = np.random.default_rng(seed)
    e = np.eye(dim)
    if seed % 2:
        base = rng.standard_normal((dim,)) * np.linspace(3, 0.1, dim)
        last = [rng.standard_normal((1, dim)) * 10 for _ in range(2)]
    else:
        base, last = e[0], [(e[:1] + e[1:2]) * 7, (e[:1] - e[1:2]) * 7]
    rows = [[(2 * base)[None]] * (count - 1) + [x] for x in last]
    if kind is RecordKind.MATRIX:
        swap = np.outer(e[0], e[1]) + np.outer(e[1], e[0])
        rows = [[x.T @ x for x in rows[0][:-1]] + [sign * 9 * swap] for sign in (1, -1)]
    first, second = (ArrayBatch.of_records(one, dim, kind) for one in rows)
    return first, second


def gap_and_projector(batch: ArrayBatch, dim: int, k: int) -> tuple[int, Floats]:
    total = covariance_sum(batch, Preprocessing(dim=dim, kind=batch.kind, centering="none"), 1.0).total
    values, vectors = eigenpairs(total)
    return round(values[k - 1] - values[k]), vectors[:, :k] @ vectors[:, :k].T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 10, 300])
@pytest.mark.parametrize("k", [1, 2])
def test_gaps_and_projectors_of_neighbours_are_within_their_bounds(
    kind: RecordKind, count: int, k: int
) -> None:
    dim, bounds = 4, GapBounds(kind, 4, count)
    for seed in range(20):
        (g, p), (h, q) = (gap_and_projector(b, dim, k) for b in neighbours(kind, dim, count, seed))
        assert abs(g - h) <= bounds.gap
        assert max(g, h) <= bounds.reach + bounds.gap_slack
        assert np.linalg.norm(p - q) <= bounds.projector_distance(max(g, h))


@pytest.mark.parametrize("kind", KINDS)
def test_the_projectors_bound_is_attained(kind: RecordKind) -> None:
    """A bound of 0.99 times this one would be wrong."""
    one, other = neighbours(kind, 4, 300, 0)
    (g, p), (h, q) = (gap_and_projector(b, 4, 1) for b in (one, other))
    bounds = GapBounds(kind, 4, 300)
    assert np.linalg.norm(p - q) > 0.99 * bounds.projector_distance(max(g, h))
    assert bounds.gap_of_distance(bounds.projector_distance(10**14)) == pytest.approx(1e14, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "records", "apart"),
    [
        (RecordKind.FACTOR, [np.eye(1, 2), np.eye(2)[1:]], 2 * 2**40),
        (RecordKind.MATRIX, [np.diag([1.0, -1.0]), np.diag([-1.0, 1.0])], 2 * math.sqrt(2) * 2**26),
    ],
)
def test_the_gaps_bound_is_attained(kind: RecordKind, records: list[Floats], apart: float) -> None:
    one, other = (ArrayBatch.of_records([9 * records[0], 9 * last], 2, kind) for last in records)
    most, least = (gap_and_projector(batch, 2, 1)[0] for batch in (one, other))
    assert most - least == pytest.approx(apart, rel=1e-6)
    assert most <= GapBounds(kind, 2, 2).gap <= most * 1.001


@pytest.mark.parametrize("d", [5, 60])
def test_floats_are_within_their_public_bound(d: int) -> None:
    """Eigenpairs of an integer matrix, recombined with more digits, reproduce it within eta."""
    rng = np.random.default_rng(d)
    z = np.rint(rng.standard_normal((3 * d, d)) * 2.0**20 / math.sqrt(d)) / 1.5 // 1
    total = (z.T @ z).astype(np.int64)
    values, vectors = eigenpairs(total)
    wide = vectors.astype(np.longdouble)
    back = (wide * values.astype(np.longdouble)) @ wide.T
    bounds = GapBounds(RecordKind.FACTOR, d, 3 * d)
    assert np.linalg.norm((back - total).astype(np.float64)) < 0.1 * bounds.eta
    assert np.linalg.norm((wide.T @ wide - np.eye(d)).astype(np.float64)) < 0.1 * bounds.relative


def test_a_failure_of_the_eigensolver_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matrix: Floats) -> Any:
        raise np.linalg.LinAlgError("did not converge")

    total = np.eye(3, dtype=np.int64)
    monkeypatch.setattr(np.linalg, "eigh", fails)
    values, vectors = eigenpairs(total)
    assert np.array_equal(values, np.zeros(3))
    assert np.array_equal(vectors, np.eye(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_integers_that_meet_noise_are_within_their_sensitivities(kind: RecordKind, seed: int) -> None:
    """Compare gap, projector and variances of neighbours, given the answer of each mechanism."""
    estimator = make(kind=kind)
    plan = estimator.plan(start(estimator)).parameters
    ratios = [plan[f"{name}_sigma_over_sensitivity"] for name in ("gap", "projector", "variance")]
    one, other = neighbours(kind, 4, 3000, seed)
    first = mechanism_inputs(estimator, one)
    second = mechanism_inputs(estimator, other, [call.answer for call in first])
    assert [call.name for call in first] == ["gaussian_on_vector", *["gaussian_on_symmetric"] * 2]
    for a, b, ratio in zip(first, second, ratios, strict=True):
        assert math.sqrt(differing(a, b)) <= a.args[0] / ratio * (1 + 1e-12)
    # The projectors use the sensitivity up: the noise has to hide this distance.
    if seed % 2 == 0:
        # The bound uses a gap that is lower by its noise and quantile.
        assert math.sqrt(differing(first[1], second[1])) > 0.5 * 2**30
        assert abs(first[1].args[0] / (2**30 * ratios[1]) - 1) < 1e-6


@pytest.mark.parametrize("shares", [(0.2, 0.05), (0.5, 0.0)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (8.0, 0.01)])
@pytest.mark.parametrize("contributions", [1, 3])
def test_all_that_a_unit_meets_costs_the_promise(
    shares: tuple[float, float], epsilon: float, delta: float, contributions: int
) -> None:
    """The accountant adds the probability that a bound fails; nearly the whole promise is spent."""
    estimator = make(
        epsilon=epsilon,
        delta=delta,
        contributions=contributions,
        gap_share=shares[0],
        variance_share=shares[1],
    )
    plan = estimator.plan(start(estimator))
    p = plan.parameters
    names = ["projector", "gap", *(["variance"] if shares[1] else [])]
    mechanisms = [Gaussian(p[f"{name}_sigma_over_sensitivity"]) for name in names]
    spent = delta_of(mechanisms, epsilon, Route.GDP, contributions)
    spent += contributions * p["gap_failure_delta"]
    # The accountant itself rounds up, by a part in 10**12.
    assert 0.99 * delta < spent <= delta * (1 + 1e-9)
    assert plan.charge.epsilon <= parse_rational(epsilon)
    assert plan.charge.delta <= parse_rational(delta)


def test_the_bound_of_the_gap_fails_as_rarely_as_is_charged() -> None:
    """delta_1 = 0.05: of 4,000 bounds 200 are above, +- 14; except for 1e-6 on both sides, 130 to 280."""
    estimator = make(delta=0.5)
    bounds = GapBounds(RecordKind.FACTOR, 4, 10_000)
    gap = 2**50
    with replace_noise_sampler(SeededSampler(1)):
        above = sum(estimator._noisy_gap(float(gap), bounds)[1] > gap for _ in range(4000))
    assert 130 < above < 280


def test_no_bound_is_above_what_so_many_records_can_have() -> None:
    estimator = make()
    bounds = GapBounds(RecordKind.FACTOR, 4, 50)
    with replace_noise_sampler(ScriptedSampler(lambda size, scale: np.full(size, 2**63 - 1))):
        assert estimator._noisy_gap(1.0, bounds)[1] == 50 * 2**40
    # This keeps entries of the projector exact in float64.
    for kind in KINDS:
        for count in (2, 2**22):
            bounds = GapBounds(kind, 4, count)
            assert 2.0**30 / bounds.projector_distance(math.floor(bounds.reach)) < 2**52


def test_a_batch_without_a_gap_teaches_nothing_and_says_so() -> None:
    """Two directions have equal variance: the gap of 4,000 records passes with probability below 1e-7."""
    x = np.tile(2 * np.eye(2), (2000, 1)) @ np.eye(2, 4)
    estimator = make()
    state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    assert state.outcome == "no-gap"
    assert state.gap is not None
    assert (state.batch, state.records, state.precision, state.sensitivity) == (1, 4000, 0.0, None)
    assert np.array_equal(state.basis, start(estimator).basis)
    assert estimator.release(state).outcome == "no-gap"


def test_fewer_records_than_could_pass_are_told_apart() -> None:
    """Without noise, this is the clearest possible gap: one direction, all records at the radius."""
    estimator = make()
    least = estimator.plan(start(estimator)).least
    for count, outcome, gap in ((least + 1, "learnt", 1.0), (least - 1, "too-few-records", 1.0),
                                (0, "too-few-records", 0.0)):  # fmt: skip
        with replace_noise_sampler(ScriptedSampler()):
            x = np.tile(3 * np.eye(1, 4), (count, 1))
            state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
        assert state.outcome == outcome
        assert state.gap == pytest.approx(gap)


def test_what_passes_has_noise_below_the_projectors_own_gap() -> None:
    """The diagonal has sqrt(2 d) deviations: the noise's norm at the largest Delta is 1."""
    estimator = make(dim=50, k=3)
    z = estimator.plan(start(estimator)).parameters["projector_sigma_over_sensitivity"]
    assert estimator._most * z * math.sqrt(2 * 50) == pytest.approx(1.0)


# Accuracy with real noise.


def bound(estimator: OutputPerturbation, gap: float, records: int, deviations: float = 3.0) -> float:
    """Return 2 sqrt(2 k) |E|_2 with |E|_2 <= Delta z (sqrt(2 d) + deviations), for a gap of the mean.

    E's entries off the diagonal have a deviation of Delta z/sqrt(2): its norm is below
    Delta z (sqrt(2 d) + t) except for 2 exp(-t^2/2) (Gordon; Borell), and the k leading
    eigenvectors of P + E are within 2 sqrt(2 k) |E|_2 of P's (Yu, Wang and Samworth 2015).
    """
    bounds = GapBounds(estimator.kind, estimator.dim, records)
    z = estimator.plan(start(estimator)).parameters["projector_sigma_over_sensitivity"]
    # The lower bound of the gap is below the true one by at most twice the quantile, except for delta_1.
    units = 2**40 if estimator.kind is RecordKind.FACTOR else 2**26
    per_unit = records / estimator.options.clip_radius * units
    lower = gap * per_unit - 2 * estimator._gap_noise(bounds)[1]
    delta = bounds.projector_distance(int(lower))
    return 2 * math.sqrt(2 * estimator.k) * delta * z * (math.sqrt(2 * estimator.dim) + deviations)


def test_it_finds_a_spiked_subspace_within_the_papers_bound() -> None:
    """Dwork et al. 2014: |P_W - P| = O(beta^2 sqrt(k d) z/gap), here with its constants.

    n = 20,000, d = 8, k = 2, R = 64, a gap of 8 or more after clipping (7 is used): Delta =
    R sqrt(2)/(7 n) = 6.5e-4 for sqrt(2) G = 2 R, z = 4.9: |E|_2 <= 6.5e-4 4.9 (4 + 5.5) =
    0.030, and the bound is 4 times that, 0.13 with the quantile of the gap's noise taken off.
    Sampling adds the error of the exact subspace of the records, about
    0.1/3 sqrt(k d/n) = 1e-3. It fails with probability below 1e-6.
    """
    x, truth = spiked(20_000, 8, 2, 1)
    estimator = make(8, 2, clip_radius=64.0, batch_size=20_000)
    state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    claimed = bound(estimator, 7.0, 20_000, 5.5)
    assert claimed < 0.16
    release = estimator.release(state)
    assert subspace_error(release.components, truth) < claimed + 0.005
    assert state.outcome == "learnt"
    # z sqrt(2) R/n = 0.09 on each entry: 5 of these, and 9 is off by 0.1 by itself, by 0.15 clipped.
    np.testing.assert_allclose(release.explained_variance, [9.0, 9.0], atol=1.0)


def test_the_noise_falls_as_one_over_the_records() -> None:
    """Four times the records leave a quarter of the error or less: the gap's quantile stays.

    For R = 100, gaps are 450 and 1,800 R, less 200. Means are over 20 seeds, the same in each run.
    """
    errors = []
    for records in (5000, 20_000):
        x, _ = spiked(records, 8, 2, 3)
        exact = np.linalg.svd(x, full_matrices=False)[2][:2]
        estimator = make(8, 2, clip_radius=100.0)
        found = []
        for seed in range(20):
            with replace_noise_sampler(SeededSampler(seed)):
                state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
            found.append(subspace_error(estimator.release(state).components, exact))
        errors.append(np.mean(found))
    assert 0.12 < errors[1] / errors[0] < 0.26


def test_projectors_of_batches_are_averaged_by_precision() -> None:
    """The average over four batches of one size has about half of one batch's error."""
    x, _ = spiked(80_000, 8, 2, 4)
    exact = np.linalg.svd(x, full_matrices=False)[2][:2]
    estimator = make(8, 2, clip_radius=64.0)
    first, last = [], []
    for seed in range(10):
        with replace_noise_sampler(SeededSampler(seed)):
            state = start(estimator)
            for part in np.split(x, 4):
                state = estimator.update(state, ArrayBatch.of_vectors(part))
                if state.batch == 1:
                    first.append(subspace_error(estimator.release(state).components, exact))
        last.append(subspace_error(estimator.release(state).components, exact))
    assert np.mean(last) < 0.75 * np.mean(first)
    assert state.precision == pytest.approx(4 * state.sensitivity**-2, rel=0.2)


@pytest.mark.parametrize("variances", [0.0, 0.1])
def test_the_whole_space_needs_no_gap(variances: float) -> None:
    x, _ = spiked(1000, 4, 2, 6)
    estimator = make(4, 4, clip_radius=60.0, variance_share=variances, epsilon=4.0)
    with replace_noise_sampler(SeededSampler(0)):
        state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    assert state.outcome == "learnt"
    assert state.gap is None
    release = estimator.release(state)
    np.testing.assert_allclose(release.components @ release.components.T, np.eye(4), atol=1e-12)
    assert (release.explained_variance[0] > 5) == bool(variances)
    assert estimator.plan(state).least == 1


def test_without_a_share_there_are_no_variances() -> None:
    x, _ = spiked(20_000, 4, 1, 5)
    estimator = make(clip_radius=30.0, variance_share=0.0)
    with replace_noise_sampler(SeededSampler(0)):
        release = estimator.release(estimator.update(start(estimator), ArrayBatch.of_vectors(x)))
    assert np.array_equal(release.explained_variance, [0.0])


# Edges.
