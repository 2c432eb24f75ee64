"""The empirical audit in its small form refutes broken mechanisms and accepts correct ones.

A true claim is refuted with probability at most 1e-4, the level of the audit;
for Gaussian noise it is below 1e-6 (see `test_audit_bounds`). Broken variants
that are noisy draw from a seeded generator, so that their tests cannot fail by
chance; `power` computes the probability of catching them with other noise.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from streaming_pca.audit import cases as audit_cases
from streaming_pca.audit.bounds import (
    REFUTED_AT,
    Case,
    Separation,
    audit,
)
from streaming_pca.audit.mechanisms import MECHANISM_CASES, mechanism_cases
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.errors import UserError
from streaming_pca.estimators.common.clipped_sums import block_sum, covariance_sum
from streaming_pca.estimators.common.worst_sums import Claim
from streaming_pca.estimators.covariance.analyze_gauss import AnalyzeGauss, AnalyzeGaussState
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.estimators.worst_cases import unreachable
from streaming_pca.kernels.lattice import LatticeSum
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.randomness import NoiseSampler, noise_sampler, replace_noise_sampler

PRIVATE = {name: e for name, e in ESTIMATORS.items() if e.info.private and not e.info.local}
SUMS = [name for name, estimator in PRIVATE.items() if "stream" in estimator.worst_cases]
"""Estimators that learn from one clipped sum a batch."""
COMPOSED = [name for name in PRIVATE if name not in SUMS]
DELTA = 1e-6
GAUSSIAN_EPSILON = 8.0
"""mu = 1.53: large enough for a few hundred trials to detect that half of the noise is missing."""
PURE_EPSILON = 2.0
"""Direct bounds on epsilon need e^epsilon times as many trials."""
EPSILONS = {"counts": PURE_EPSILON, "range": PURE_EPSILON, "mean": 32.0}
"""Epsilons of other cases, by kind: pure ones, and the centre, whose part of the budget is mu = 2.36 here."""

# Helpers of mechanisms, and an exception: they release nothing.
NO_MECHANISMS = {
    "gaussian_modes_threshold",
    "laplace_scale",
    "secret_permutation",
    "stability_threshold",
}

GAUSSIAN_TRIALS, PURE_TRIALS = 500, 2000
TRIALS = {
    "stability_histogram": 2000,
    "AboveThreshold": 5000,
    "gaussian_modes": 3000,
    "replay": 300,
    "stream": 320,
    "counts": 1350,
    "sizes": 700,
    "range": 500,
    "search": 2000,
    "order": 2100,
    "adadpo": 700,
    "dp-pca": 700,
    "k-dp-pca": 700,
    "tadadpo": 700,
    "adaptive-power": 700,
    "noisy-power": 700,
}
"""Trials by case, by kind of neighbours or by mechanism, where neither default above is enough."""


FIRST = {
    "matrix": {"analyze-gauss", "k-dp-ojas"},
    "pairs": {"block"},
    "user": {"private-oja"},
    "counts": {"private-oja"},
    "stream": {"analyze-gauss"},
    "mean": {"adaptive"},
    "layers": {"adaptive"},
    "sizes": {"analyze-gauss"},
    "range": {"dp-pca"},
}
"""Estimators audited for a kind of neighbours; the others that share the kind run only in `make soak`.

Sums, and kinds that only one estimator has, are always audited.
"""


def is_first(name: str, kind: str) -> bool:
    return name in FIRST.get(kind, {name})


def by_kind(cases: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Parametrize by estimator and kind of neighbours; leave those not in FIRST to `make soak`."""
    marked = [pytest.param(*case, marks=() if is_first(*case) else pytest.mark.soak) for case in cases]
    return pytest.mark.parametrize(("name", "kind"), marked)


def trials_of(case: Case) -> int:
    subject, *_, kind = case.id.split("/") * 2
    for name in (case.id, kind, subject):
        if name in TRIALS:
            return TRIALS[name]
    if subject in MECHANISM_CASES and subject.startswith("gaussian_on"):
        return 700
    return PURE_TRIALS if case.claim.epsilon == PURE_EPSILON else GAUSSIAN_TRIALS


def cases_of_mechanism(name: str) -> list[Case]:
    epsilon = GAUSSIAN_EPSILON if name.startswith("gaussian") else PURE_EPSILON
    return mechanism_cases(name, epsilon, DELTA)


def cases_of_estimator(name: str, **parameters: Any) -> dict[str, Case]:
    """Return cases by kind of neighbours, each at its epsilon."""
    estimator = parameters.pop("kind", ESTIMATORS[name])
    epsilons = {kind: EPSILONS.get(kind, GAUSSIAN_EPSILON) for kind in estimator.worst_cases}
    cases: dict[str, Case] = {}
    for epsilon in set(epsilons.values()):
        for case in audit_cases.estimator_cases(estimator, epsilon, DELTA, **parameters):
            kind = case.id.split("/")[1]
            if epsilons[kind] == epsilon:
                cases[kind] = case
    return cases


def power(case: Case, n: int, false_positive: float, false_negative: float) -> float:
    """Return the probability that ``n`` judging trials refute a claim, given a threshold's rates."""
    counts = np.arange(n + 1)
    claim = case.claim
    a, b = np.meshgrid(counts, counts, indexing="ij", sparse=True)
    errors = Separation(a, b, n)
    refuted = errors.mu(REFUTED_AT / 2) > claim.mu
    refuted |= errors.epsilon(claim.delta, REFUTED_AT / 2) > claim.epsilon
    first, second = (stats.binom.pmf(counts, n, rate) for rate in (false_positive, false_negative))
    return float(first @ refuted @ second)


class NumpySampler:
    """Noise of ``factor`` times the scale, from a generator that an attacker could copy."""

    def __init__(self, factor: float = 1.0, seed: int | None = 0) -> None:
        self.factor, self.rng = factor, np.random.default_rng(seed)

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        noise = self.rng.normal(scale=self.factor * sigma, size=total.shape)
        return np.asarray(total + np.rint(noise).astype(np.int64))

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        # The difference of two geometric numbers is discrete Laplace.
        p = -math.expm1(-1 / (self.factor * scale))
        first, second = self.rng.geometric(p, (2, size))
        return np.asarray(first - second, dtype=np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        return self.rng.permutation(n)


class HalfOfTheRealSampler(NumpySampler):
    """The real sampler's noise at half the scale."""

    def __init__(self, sampler: NoiseSampler) -> None:
        super().__init__()
        self.sampler = sampler

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        return self.sampler.rounded_gaussian(total, sigma / 2)


# Correct mechanisms.


def test_every_estimator_and_every_mechanism_has_its_worst_case() -> None:
    assert all("sum" in estimator.worst_cases for estimator in PRIVATE.values())
    assert MECHANISM_CASES.keys() == set(mechanisms.__all__) - NO_MECHANISMS


def test_an_estimator_without_a_worst_case_is_told_where_to_add_it() -> None:
    class New(AnalyzeGauss):
        info = dataclasses.replace(AnalyzeGauss.info, id="new")
        worst_cases: ClassVar[dict[str, Any]] = {}

    with pytest.raises(UserError, match="new has no worst cases: set worst_cases of New"):
        audit_cases.estimator_cases(New, 1.0, DELTA)


@pytest.mark.parametrize("name", MECHANISM_CASES)
def test_no_mechanism_is_refuted(name: str) -> None:
    for case in cases_of_mechanism(name):
        finding = audit(case, trials_of(case))
        assert not finding.refuted, case.id


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["first", "rest"])
@pytest.mark.parametrize("name", PRIVATE)
def test_no_estimator_is_refuted(name: str, first: bool) -> None:
    for kind, case in cases_of_estimator(name).items():
        if is_first(name, kind) == first:
            assert not audit(case, trials_of(case)).refuted, case.id


def test_the_worst_cases_of_mechanisms_are_nearly_as_bad_as_the_claims() -> None:
    """A case with little power would accept anything. Noise is fixed; bounds lose less than two fifths."""
    for name in MECHANISM_CASES:
        if name.startswith("gaussian_on"):
            is_tight(cases_of_mechanism(name)[0])


@pytest.mark.soak
@pytest.mark.parametrize("name", PRIVATE)
def test_the_worst_cases_of_estimators_are_nearly_as_bad_as_the_claims(name: str) -> None:
    """Each is tight within a factor of two, as shown below: halved noise is caught."""
    for kind, case in cases_of_estimator(name).items():
        if kind in ("sum", "matrix", "block", "layers", "whitened", "moment"):
            is_tight(case)


def is_tight(case: Case) -> None:
    with replace_noise_sampler(NumpySampler()):
        finding = audit(case, max(2 * trials_of(case), 2000))
    assert finding.mu_lower_bound > case.claim.mu * 3 / 5, case.id


# Halved noise.

# Rates at the best threshold, for Laplace noise at twice the claimed epsilon.
LAPLACE_RATES = (math.exp(-2 * PURE_EPSILON) / 2, 0.5)


@pytest.mark.parametrize("name", [n for n in MECHANISM_CASES if n.startswith("gaussian_on")])
def test_half_of_a_gaussian_noise_is_caught(name: str) -> None:
    case = cases_of_mechanism(name)[0]
    rates = gaussian_rates(2 * case.claim.mu)
    # Catching is nearly certain, so real noise, which no seed repeats, can be used.
    assert power(case, trials_of(case) // 2, *rates) > 1 - 1e-6
    half_is_caught(case, *rates, HalfOfTheRealSampler(noise_sampler()))


def test_half_of_a_pure_noise_is_caught() -> None:
    half_is_caught(cases_of_mechanism("laplace_on_vector")[0], *LAPLACE_RATES)


def test_half_the_noise_of_an_alarm_is_caught() -> None:
    """The rates are sums over the threshold's noise."""
    j, q = np.arange(-200, 201), math.exp(-PURE_EPSILON)
    noise = q ** np.abs(j) * (1 - q) / (1 + q)
    half = math.sqrt(q)

    def below(query: int) -> NDArray[np.float64]:
        """Return P(query + N < 1 + j), with N of scale 2/epsilon: half of the correct scale."""
        t = j - query
        tail = half ** (np.abs(t) + (t >= 0)) / (1 + half)
        return np.where(t >= 0, 1 - tail, tail)

    first = float(noise @ (below(0) ** 4 * (1 - below(1))))
    second = float(noise @ (below(1) ** 4 * (1 - below(0))))
    half_is_caught(cases_of_mechanism("AboveThreshold")[0], second, 1 - first)


@pytest.mark.parametrize("name", ["stability_histogram", "gaussian_modes"])
def test_half_the_noise_of_a_histogram_is_caught(name: str) -> None:
    case = cases_of_mechanism(name)[0]
    with replace_noise_sampler(NumpySampler(0.5)):
        # For noise this small, the rates are counted, on separate noise.
        scores = [case.sample(side, 4000) for side in (False, True)]
        cut = np.linspace(-3, 3, 13)[:, None]
        rates = [((scores[0] > t).mean(), (scores[1] <= t).mean()) for t in cut]
        half_is_caught(case, *max(rates, key=lambda r: power(case, trials_of(case) // 2, *r)))


KINDS = {
    *("sum", "matrix", "pairs", "user", "mean", "block", "layers"),
    *("order", "projector", "whitened", "moment"),
}
"""Cases of Gaussian noise."""


@by_kind(
    [(name, kind) for name, estimator in PRIVATE.items() for kind in estimator.worst_cases if kind in KINDS]
)
def test_half_the_noise_of_an_estimator_is_caught(name: str, kind: str) -> None:
    case = cases_of_estimator(name)[kind]
    half_is_caught(case, *gaussian_rates(2 * case.claim.mu))


@by_kind([(name, "counts") for name in SUMS])
def test_half_the_noise_of_the_counts_is_caught(name: str, kind: str) -> None:
    """Both noisy counts favour the second neighbour: each with probability 1/(1 + q), or q times that."""
    case = cases_of_estimator(name)[kind]
    q = math.exp(-case.claim.epsilon)
    half_is_caught(case, (q / (1 + q)) ** 2, 1 - 1 / (1 + q) ** 2)


def gaussian_rates(mu: float, off: float = 0.5) -> tuple[float, float]:
    """Return rates of a threshold chosen ``off`` standard deviations away from the best one."""
    return float(stats.norm.sf(mu / 2 + off)), float(stats.norm.sf(mu / 2 - off))


def half_is_caught(
    case: Case, false_positive: float, false_negative: float, sampler: NoiseSampler | None = None
) -> None:
    trials = trials_of(case)
    assert power(case, trials // 2, false_positive, false_negative) > 0.999
    with replace_noise_sampler(sampler or NumpySampler(0.5)):
        assert audit(case, trials).refuted


# Other mistakes. The tests above show that the unmodified estimators pass the same cases.


@contextmanager
def no_clip() -> Iterator[None]:
    """Sum records up to a million times the radius, with noise for the radius."""
    factor = 10**6

    def unclipped(kernel: Callable[..., LatticeSum]) -> Callable[..., LatticeSum]:
        def call(*arguments: Any, **others: Any) -> LatticeSum:
            *before, radius = arguments
            wide = kernel(*before, radius * factor, **others)
            return dataclasses.replace(wide, total=wide.total * factor, unit=wide.unit / factor)

        return call

    modules = [module for name, module in sys.modules.items() if name.startswith("streaming_pca.estimators.")]
    with pytest.MonkeyPatch.context() as patch:
        for kernel in (covariance_sum, block_sum):
            for module in modules:
                if getattr(module, kernel.__name__, None) is kernel:
                    patch.setattr(module, kernel.__name__, unclipped(kernel))
        yield


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("kind", ["sum", "matrix"])
def test_a_clip_that_is_not_applied_is_caught(name: str, kind: str) -> None:
    """The records are a million radii apart: a threshold between them never errs."""
    case = cases_of_estimator(name)[kind]
    assert power(case, 100, 0.0, 0.0) > 1 - 1e-6
    with no_clip():
        assert audit(case, 200).refuted


class CentredOnItsBatch(AnalyzeGauss):
    """Subtract the batch's own mean from its records."""

    def learn_batch(self, state: AnalyzeGaussState, batch: ArrayBatch) -> tuple[AnalyzeGaussState, int]:
        centre = tuple(batch.rows.mean(axis=0))
        public = self.preprocessing.model_copy(update={"centering": centre})
        return AnalyzeGauss(self.dim, self.k, self.privacy, public, self.options).learn_batch(state, batch)


def test_a_centre_of_the_same_records_is_caught() -> None:
    """One huge record moves the centre, and all eight contributions turn: eight times mu."""
    case = cases_of_estimator("analyze-gauss", kind=CentredOnItsBatch)["sum"]
    assert power(case, 150, *gaussian_rates(8 * case.claim.mu)) > 1 - 1e-6
    assert audit(case, 300).refuted


def by_content(stream: ArrayBatch, count: int) -> int:
    """End a batch after this number of records that are not null."""
    filled = np.cumsum(np.diff(stream.starts) > 0)
    return min(int(np.searchsorted(filled, count)) + 1, len(stream))


@by_kind([(name, "stream") for name in SUMS])
def test_a_cut_that_depends_on_contents_is_caught(name: str, kind: str) -> None:
    """One null record moves the ends of all six batches: sqrt(6) times mu."""
    case = cases_of_estimator(name, cut=by_content)[kind]
    trials = trials_of(case)
    assert power(case, trials // 2, *gaussian_rates(math.sqrt(6) * case.claim.mu)) > 1 - 1e-6
    with replace_noise_sampler(NumpySampler()):
        assert audit(case, trials).refuted


class FloatNoise(AnalyzeGauss):
    """Noise of the right scale and distribution, but in float64 on a float64 sum."""

    rng = np.random.default_rng(0)

    def learn_batch(self, state: AnalyzeGaussState, batch: ArrayBatch) -> tuple[AnalyzeGaussState, int]:
        assert self.options.clip_radius is not None
        exact = covariance_sum(batch, self.preprocessing, self.options.clip_radius)
        sigma = self.costs.multiplier * exact.sensitivity * exact.unit
        d = self.dim
        noise = np.triu(self.rng.normal(scale=sigma / math.sqrt(2), size=(d, d)), 1)
        noise = noise + noise.T + np.diag(self.rng.normal(scale=sigma, size=d))
        total = batch.rows.T @ batch.rows + noise
        count = float(len(batch))
        grid = state.covariance.on_grid(np.array([self.options.clip_radius]))
        memory = grid.with_layers(total[None] / count, np.array([(sigma / count) ** 2]), doubt=1.0)
        memory = dataclasses.replace(memory, records=count)
        return dataclasses.replace(state, batch=state.batch + 1, covariance=memory), 0


def test_float_noise_on_float_sums_is_caught() -> None:
    """Some doubles are unreachable with x x^T, so releasing one reveals x's absence (Mironov 2012)."""
    case = cases_of_estimator("analyze-gauss", kind=FloatNoise)["floats"]
    shown = float(np.mean(case.sample(False, 5000) < 0))
    assert np.all(case.sample(True, 5000) == 0)
    trials = trials_of(case)
    assert power(case, trials // 2, 1 - shown, 0.0) > 1 - 1e-6
    assert audit(case, trials).refuted


def test_a_double_is_reachable_if_any_float_noise_leads_there() -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=20_000)
    assert not unreachable(sums + rng.normal(size=sums.size), sums).any()
    # 2**-60 has bits that 1 + n never has.
    assert unreachable(np.array([2.0**-60, 0.3]), np.array([1.0, 1.0])).tolist() == [True, True]
    assert not unreachable(np.array([0.25, 1.5, 2.0**-60]), np.array([1.0, 1.0, 0.0])).any()


REPLAYED = [
    "gaussian_on_vector",
    "gaussian_on_symmetric",
    "gaussian_on_symmetric_space",
    "laplace_on_vector",
]


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("seed", [0, None], ids=["seeded", "unseeded"])
def test_a_noise_source_that_can_be_copied_is_caught(name: str, seed: int | None) -> None:
    """A holder of the source's seed or memory draws the same noise and subtracts it."""
    case = next(c for c in cases_of_mechanism(name) if c.id.endswith("/replay"))
    trials = trials_of(case)
    with replace_noise_sampler(NumpySampler(seed=seed)):
        assert power(case, trials // 2, 0.0, 0.0) > 1 - 1e-6
        assert audit(case, trials).refuted


def test_two_processes_with_one_state_draw_different_noise() -> None:
    """A copy of the process draws different noise: equal with probability below 1e-30."""
    case = next(c for c in cases_of_mechanism("gaussian_on_vector") if c.id.endswith("/replay"))
    assert np.all(case.sample(False, 20) != 0)
    with replace_noise_sampler(NumpySampler()):
        assert np.all(case.sample(False, 20) == 0)


def test_the_sampler_is_the_real_one() -> None:
    """No test of this file has left another sampler active."""
    assert type(noise_sampler()).__module__ == "streaming_pca.privacy.randomness"


def test_a_claim_of_a_mechanism_follows_its_parameters() -> None:
    """Cases are built for the requested promise; no other is audited in its name."""
    for name in MECHANISM_CASES:
        for case in mechanism_cases(name, 0.5, 1e-5):
            assert case.id.split("/")[0] == name
            assert isinstance(case.claim, Claim)
            assert case.claim.epsilon == 0.5
            assert case.claim.delta in (0.0, 1e-5)
    for name in SUMS:
        for case in audit_cases.estimator_cases(ESTIMATORS[name], 0.5, 1e-5):
            # The noisy counts take half of that promise, and are pure; so is the histogram of sizes.
            kind = case.id.split("/")[1]
            pure = {"counts": (0.25, 0.0), "radius": (0.5, 0.0)}
            assert (case.claim.epsilon, case.claim.delta) == pure.get(kind, (0.5, 1e-5))
