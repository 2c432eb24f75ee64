"""Estimators configured for tests, and a record of their mechanisms' calls.

A new estimator joins by its class in the registry, and ``suite_options`` of that class.
Mechanisms are recorded where estimators call them: by the names that
`privacy.mechanisms` exports, in every module of `streaming_pca.estimators`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, State, Subspace
from streaming_pca.estimators.common.composed import ComposedEstimator
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.linalg.packed import pack_symmetric
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.local import noise_sigma
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.privacy.noise import SeededSampler

Floats = NDArray[np.float64]
D = 5
SUITE = {name: estimator.suite_options for name, estimator in ESTIMATORS.items()}
OPTIONS = {name: suite.options for name, suite in SUITE.items()}
# With one Gaussian's budget for all mechanisms, which read all records, costs do not add up by number.
MEETS = {name: suite.mechanisms for name, suite in SUITE.items() if suite.mechanisms > 1}
# Estimators whose mechanisms all read all records, with shares of one Gaussian's budget.
COMPOSED = {name for name, estimator in ESTIMATORS.items() if issubclass(estimator, ComposedEstimator)}
# Estimators that charge a part of the promise for each of a user's batches.
IN_PARTS = {name for name, estimator in ESTIMATORS.items() if estimator.splits_budget}
UNCLAIMED = {name for name, suite in SUITE.items() if not suite.has_rho}
# Replaces the options above where the radius must not depend on the records.
PUBLIC_RADIUS = {
    name: SUITE[name].clip or {}
    for name, estimator in ESTIMATORS.items()
    if "radius_range" in estimator.options_type.model_fields
}
CENTERINGS: dict[str, list[Any]] = {
    name: [*estimator.centerings, (0.5,) * D]
    for name, estimator in ESTIMATORS.items()
    if RecordKind.FACTOR in estimator.kinds
}
CASES = [(name, centering) for name, all_of_it in CENTERINGS.items() for centering in all_of_it]
MATRIX_CASES = [
    (name, RecordKind.MATRIX)
    for name, estimator in ESTIMATORS.items()
    if RecordKind.MATRIX in estimator.kinds
]
LOCAL_CASES = [
    (name, RecordKind.LOCAL) for name, estimator in ESTIMATORS.items() if RecordKind.LOCAL in estimator.kinds
]

EVERY_CASE = [*CASES, *MATRIX_CASES, *LOCAL_CASES]
every_case = pytest.mark.parametrize(("name", "how"), EVERY_CASE, ids=str)
# Estimators with mechanisms of their own: a local report's mechanism belongs to its producer.
PRIVATE_CASES = [
    (name, how) for name, how in EVERY_CASE if find(name).info.private and not find(name).info.local
]
private_case = pytest.mark.parametrize(("name", "how"), PRIVATE_CASES, ids=str)


def crossed(cases: list[tuple[str, Any]], names: str, values: list[Any]) -> pytest.MarkDecorator:
    """Cross cases with values: all on one centering of each estimator and kind, one on each other.

    That one value rotates, so that each centering meets each value, if not for every estimator.
    All other combinations are left to `make test-rest`.
    """
    first = {(name, isinstance(how, RecordKind) and how): how for name, how in reversed(cases)}
    crossings = []
    for i, (name, how) in enumerate(cases):
        is_first = first[name, isinstance(how, RecordKind) and how] == how
        for j, value in enumerate(values):
            more = value if isinstance(value, tuple) else (value,)
            marks = () if is_first or i % len(values) == j else pytest.mark.rest
            crossings.append(pytest.param(name, how, *more, marks=marks, id=f"{name}-{how}-{value}"))
    return pytest.mark.parametrize(f"name, how, {names}", crossings)


def sized(name: str, count: int) -> dict[str, Any]:
    """Return an estimator's options with batches of ``count`` records."""
    fields = find(name).options_type.model_fields
    options = SUITE[name].options | {size: count for size in ("batch_size", "first_batch") if size in fields}
    if "max_batch" in fields:
        options["max_batch"] = count
    if "warm_estimator" in fields:
        options |= {"warm_options": sized(options["warm_estimator"], count), "warm_records": count}
    return options


class FixedSampler(SeededSampler):
    """Add no noise; pick the same candidate for any scores, as one possible output of the mechanism."""

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        return total.copy()


class ClosedSampler:
    """Fail when anything is drawn."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was drawn")


# Tests of utility need batches this large.
LARGE = {"max_batch": 40_000}


def make(
    name: str,
    how: Any = "none",
    *,
    dim: int = D,
    k: int = 2,
    epsilon: float | None = None,
    delta: float = 1e-6,
    contributions: int = 1,
    public: dict[str, Any] | None = None,
    **options: Any,
) -> Estimator[Any, Any]:
    estimator = find(name)
    kind = how if isinstance(how, RecordKind) else RecordKind.FACTOR
    if kind not in estimator.kinds and how == "none":
        kind = RecordKind.LOCAL
    centering = how if kind is RecordKind.FACTOR else "none"
    if not isinstance(centering, str):
        centering = (0.5,) * dim if len(centering) != dim else centering
    if 1 <= k <= dim:
        k = min(k, SUITE[name].rank or k)
    return estimator(
        dim,
        k,
        PrivacyParameters(
            epsilon=SUITE[name].epsilon if epsilon is None else epsilon,
            delta=delta,
            contributions=contributions,
        ),
        Preprocessing(dim=dim, kind=kind, centering=centering, **(public or {})),
        estimator.options_type(**{**OPTIONS[name], **options}),
    )


def made(
    kind: type[Estimator[Any, Any]],
    dim: int,
    k: int,
    how: Any = "none",
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    contributions: int = 1,
    share: float = 0.0,
    **options: Any,
) -> Any:
    """Build an estimator of vectors with the centring ``how``, or of records of the kind ``how``."""
    is_kind = isinstance(how, RecordKind)
    return kind(
        dim,
        k,
        PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions),
        Preprocessing(
            dim=dim, kind=how if is_kind else RecordKind.FACTOR, centering="none" if is_kind else how
        ),
        kind.options_type(**options),
        share,
    )


def spiked(m: int, d: int, k: int, seed: int) -> tuple[Floats, Floats]:
    """Return rows with k directions of variance 9 among ones of 0.01, and those directions."""
    rng = utility_generator(seed)
    truth = orthonormalise(rng.standard_normal((d, k)))
    return 3 * rng.standard_normal((m, k)) @ truth.T + 0.1 * rng.standard_normal((m, d)), truth.T


def records(estimator: Estimator[Any, Any], m: int, seed: int = 0) -> list[Any]:
    """Return anisotropic records, one in ten null."""
    rng = np.random.default_rng(seed)
    d, is_local = estimator.dim, estimator.kind is RecordKind.LOCAL
    deviations = np.linspace(2, 0.3, d)
    noise = noise_sigma(estimator.privacy.epsilon, estimator.privacy.delta) if is_local else 0.0
    out: list[Any] = []
    for _ in range(m):
        x = rng.standard_normal((1, d)) * deviations
        if rng.random() < 0.1:
            out.append(None)
        elif is_local:
            report = pack_symmetric(x.T @ x / (x @ x.T))
            out.append((report + noise * rng.standard_normal(report.shape))[None])
        else:
            out.append(x.T @ x - 0.1 * np.eye(d) if estimator.kind is RecordKind.MATRIX else x)
    return out


def agreeing(how: Any, m: int, seed: int = 0) -> list[Any]:
    """Return records with a gap, and of bounded spread, so that the blocks of a range agree."""
    rows = np.random.default_rng(seed).choice([-1.0, 1.0], (m, 1, D)) * np.linspace(2, 0.6, D)
    return [x.T @ x - 0.3 * np.eye(D) for x in rows] if how is RecordKind.MATRIX else [*rows]


def pack(estimator: Estimator[Any, Any], items: list[Any]) -> ArrayBatch:
    return ArrayBatch.of_records(items, estimator.dim, estimator.kind)


def start(estimator: Estimator[Any, Any]) -> Any:
    return estimator.init(utility_generator(7))


def run(estimator: Estimator[Any, Any], batches: list[list[Any]], sampler: Any = None) -> State:
    state = start(estimator)
    with replace_noise_sampler(sampler or SeededSampler()):
        for items in batches:
            state = estimator.update(state, pack(estimator, items))
    return state


# These have no private input, or are recorded when they are asked.
PUBLIC = {"AboveThreshold", "gaussian_modes_threshold", "laplace_scale", "stability_threshold"}


class Call(NamedTuple):
    """One call of a mechanism."""

    name: str
    values: NDArray[Any]
    """The private input."""
    args: tuple[Any, ...]
    answer: Any


@lru_cache(maxsize=1)
def callers(loaded: int) -> dict[str, list[ModuleType]]:
    """Return the modules of estimators with each mechanism's name, for this number of loaded modules.

    A run of all tests has thousands of modules: a search at each update would cost more than the update.
    """
    modules = [m for name, m in sys.modules.items() if name.startswith("streaming_pca.estimators.")]
    names = [name for name in mechanisms.__all__ if name not in PUBLIC]
    return {name: [module for module in modules if hasattr(module, name)] for name in names}


@contextmanager
def watched(answers: list[Any] | None = None) -> Iterator[list[Call]]:
    """Record every call of a mechanism by an estimator; ``answers`` replace its own."""
    seen: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, modules in callers(len(sys.modules)).items():
            original = getattr(mechanisms, name)

            def call(values: Any, *args: Any, name: str = name, original: Any = original) -> Any:
                exact = _as_array(values)
                answer = original(values, *args) if answers is None else answers[len(seen)]
                seen.append(Call(name, exact, args, answer))
                return answer.copy() if isinstance(answer, np.ndarray) else answer

            for module in modules:
                if getattr(module, name) is original:
                    patch.setattr(module, name, call)

        begun, asked = mechanisms.AboveThreshold.__init__, mechanisms.AboveThreshold.ask
        public: dict[int, tuple[Any, ...]] = {}

        def begin(self: mechanisms.AboveThreshold, *args: Any) -> None:
            public[id(self)] = args
            begun(self, *args)

        def ask(self: mechanisms.AboveThreshold, query: int) -> bool:
            answer = asked(self, query) if answers is None else bool(answers[len(seen)])
            seen.append(Call("AboveThreshold", _as_array(query), public[id(self)], answer))
            return answer

        patch.setattr(mechanisms.AboveThreshold, "__init__", begin)
        patch.setattr(mechanisms.AboveThreshold, "ask", ask)
        yield seen


def _as_array(values: Any) -> NDArray[Any]:
    """Copy a mechanism's input; keys of a histogram, which may be None, as objects.

    Counted bins become, by histogram, the number of records in each bin.
    """
    if isinstance(values, BinCounts):
        return np.array([*bins_of(values), None], dtype=object)[:-1]
    return np.array(values, dtype=object if isinstance(values, list) else None)


def bins_of(counted: BinCounts) -> list[Counter[int]]:
    """Return the number of records in each bin, by histogram."""
    bins: list[Counter[int]] = [Counter() for _ in range(counted.histograms)]
    for owner, key, count in zip(counted.owners, counted.keys, counted.counts, strict=True):
        assert count > 0
        assert key not in bins[owner]
        bins[owner][int(key)] = int(count)
    return bins


def replaced(before: Counter[int], after: Counter[int]) -> int:
    """Return the least number of replaced records that explains the change of a histogram."""
    return max((before - after).total(), (after - before).total())


def mechanism_inputs(
    estimator: Estimator[Any, Any],
    items: list[Any] | ArrayBatch,
    answers: list[Any] | None = None,
    state: Any = None,
) -> list[Call]:
    """Return the inputs of an update's mechanisms, by default the first update, given their answers."""
    batch = items if isinstance(items, ArrayBatch) else pack(estimator, items)
    with replace_noise_sampler(SeededSampler()), watched(answers) as seen:
        estimator.update(start(estimator) if state is None else state, batch)
    assert answers is None or len(seen) == len(answers)
    return seen


def moved(a: list[Call], b: list[Call]) -> Fraction:
    """Return the squared mu of two neighbours with equal Gaussian answers: sum |D_i|^2/sigma_i^2."""
    total = Fraction(0)
    for one, other in zip(a, b, strict=True):
        assert one.name.startswith("gaussian_on")
        total += Fraction(differing(one, other)) / Fraction(one.args[-1]) ** 2
    return total


def differing(a: Call, b: Call) -> int:
    """Return two sums' squared distance in lattice units, or the number of differing records."""
    assert (a.name, a.values.shape, repr(a.args)) == (b.name, b.values.shape, repr(b.args))
    if a.name.startswith("gaussian_on"):
        return sum((int(x) - int(y)) ** 2 for x, y in zip(a.values.flat, b.values.flat, strict=True))
    changed = a.values != b.values
    if a.name.endswith("_modes"):
        return max(replaced(p, q) for p, q in zip(a.values, b.values, strict=True))
    if a.name == "AboveThreshold":
        return abs(int(a.values) - int(b.values))
    return int(np.count_nonzero(changed))


def check_subspace(estimator: Estimator[Any, Any], release: Subspace) -> None:
    assert release.components.shape == (estimator.k, estimator.dim)
    gram = release.components @ release.components.T
    if estimator.info.releases == "tensor":
        gram = np.diag(np.diagonal(gram))
        assert release.weights is not None
        np.testing.assert_array_equal(release.weights, release.explained_variance)
    np.testing.assert_allclose(gram, np.eye(estimator.k), atol=1e-12)
    assert release.explained_variance.shape == (estimator.k,)
    assert (release.explained_variance >= 0).all()
    assert (np.diff(release.explained_variance) <= 0).all()
    if release.mean is not None:
        assert release.mean.shape == (estimator.dim,)
        assert np.isfinite(release.mean).all()
