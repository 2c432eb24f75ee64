"""What every estimator keeps, whatever its algorithm; and what each one is good for.

A new estimator joins by its id in ESTIMATORS and its options in OPTIONS.
Mechanisms are watched where estimators call them: by the names that
`privacy.mechanisms` exports, in every module of `streaming_pca.estimators`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from streaming_pca.estimators.base import Estimator, State, Subspace
from streaming_pca.estimators.batching import GrowingBatches
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.estimators.state_bytes import decode_state, encode_state, state_values
from streaming_pca.linalg.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.calibration import gaussian_delta
from streaming_pca.privacy.parameters import PrivacyParameters, parse_rational
from streaming_pca.privacy.randomness import replace_noise_door, utility_generator
from streaming_pca.records import Batch, RecordKind
from tests.privacy.noise import SeededDoor

D = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "adaptive": {"first_batch": 64, "max_batch": 256},
    "analyze-gauss": {"first_batch": 64, "max_batch": 256},
    "block": {"first_batch": 64, "max_batch": 256},
    "private-oja": {"clip_radius": 2.0, "batch_size": 64, "learning_rate": 0.5},
}
# Instead of the above where the radius must not depend on the records.
PUBLIC_RADIUS: dict[str, dict[str, Any]] = {
    "adaptive": {"clip_radius": 3.0, "route": "covariance"},
    "analyze-gauss": {"clip_radius": 3.0},
    "block": {"clip_radius": 3.0},
}
CENTERINGS: dict[str, list[Any]] = {
    "adaptive": ["none", "augment", "pairs", "private-mean", (0.5,) * D],
    "analyze-gauss": ["none", "augment", "pairs", "private-mean", (0.5,) * D],
    "block": ["none", "augment", "pairs", "private-mean", (0.5,) * D],
    "private-oja": ["none", "pairs", "private-mean", (0.5,) * D],
}
CASES = [(name, centering) for name, all_of_it in CENTERINGS.items() for centering in all_of_it]
MATRIX_CASES = [(name, RecordKind.MATRIX) for name in ESTIMATORS]

every_case = pytest.mark.parametrize(("name", "how"), [*CASES, *MATRIX_CASES], ids=str)


class FixedDoor(SeededDoor):
    """No noise; the same candidate whatever the scores, as one output of the mechanism."""

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        return scores.size // 2


class ClosedDoor:
    """Fails when anything is drawn."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was drawn")


# Batches as large as the tests of utility want them.
LARGE = {"max_batch": 40_000}


def make(
    name: str,
    how: Any = "none",
    *,
    dim: int = D,
    k: int = 2,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    contributions: int = 1,
    public: dict[str, Any] | None = None,
    **options: Any,
) -> Estimator[Any, Any]:
    kind = RecordKind.MATRIX if how is RecordKind.MATRIX else RecordKind.FACTOR
    centering = "none" if kind is RecordKind.MATRIX else how
    if not isinstance(centering, str):
        centering = (0.5,) * dim if len(centering) != dim else centering
    estimator = find(name)
    return estimator(
        dim,
        k,
        PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions),
        Preprocessing(dim=dim, kind=kind, centering=centering, **(public or {})),
        estimator.options_type(**{**OPTIONS[name], **options}),
    )


def records(estimator: Estimator[Any, Any], m: int, seed: int = 0) -> list[Any]:
    """Anisotropic records, one in ten null."""
    rng = np.random.default_rng(seed)
    d = estimator.dim
    out: list[Any] = []
    for _ in range(m):
        x = rng.standard_normal((1, d)) * np.linspace(2, 0.3, d)
        if rng.random() < 0.1:
            out.append(None)
        else:
            out.append(x.T @ x - 0.1 * np.eye(d) if estimator.kind is RecordKind.MATRIX else x)
    return out


def pack(estimator: Estimator[Any, Any], items: list[Any]) -> Batch:
    return Batch.of_records(items, estimator.dim, estimator.kind)


def start(estimator: Estimator[Any, Any]) -> Any:
    return estimator.init(utility_generator(7))


def run(estimator: Estimator[Any, Any], batches: list[list[Any]], door: Any = None) -> State:
    state = start(estimator)
    with replace_noise_door(door or SeededDoor()):
        for items in batches:
            state = estimator.update(state, pack(estimator, items))
    return state


class Call(NamedTuple):
    """One call of a mechanism."""

    name: str
    values: NDArray[Any]
    """Its private input."""
    args: tuple[Any, ...]
    answer: Any


@contextmanager
def watched(answers: list[Any] | None = None) -> Iterator[list[Call]]:
    """Every call of a mechanism by an estimator; with ``answers``, these instead of its own."""
    seen: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in mechanisms.__all__:
            original = getattr(mechanisms, name)

            def call(values: Any, *args: Any, name: str = name, original: Any = original) -> Any:
                at = len(seen)
                exact = values.copy()
                answer = original(values, *args) if answers is None else answers[at]
                seen.append(Call(name, exact, args, answer))
                return answer.copy() if isinstance(answer, np.ndarray) else answer

            for module in [m for n, m in sys.modules.items() if n.startswith("streaming_pca.estimators.")]:
                # A fixed scale is all that `laplace_scale` gives: nothing private goes in.
                if getattr(module, name, None) is original and name != "laplace_scale":
                    patch.setattr(module, name, call)
        yield seen


def mechanism_inputs(
    estimator: Estimator[Any, Any], items: list[Any], answers: list[Any] | None = None
) -> list[Call]:
    """What one update's mechanisms are asked, given what they answer."""
    state, batch = start(estimator), pack(estimator, items)
    with replace_noise_door(SeededDoor()), watched(answers) as seen:
        estimator.update(state, batch)
    assert answers is None or len(seen) == len(answers)
    return seen


def differing(a: Call, b: Call) -> int:
    """Squared distance of two sums in lattice units; records that differ, of numbers a record."""
    assert (a.name, a.values.shape, repr(a.args)) == (b.name, b.values.shape, repr(b.args))
    if a.name.startswith("gaussian_on"):
        return sum((int(x) - int(y)) ** 2 for x, y in zip(a.values.flat, b.values.flat, strict=True))
    return int(np.count_nonzero(a.values != b.values))


def check_subspace(estimator: Estimator[Any, Any], release: Subspace) -> None:
    assert release.components.shape == (estimator.k, estimator.dim)
    gram = release.components @ release.components.T
    np.testing.assert_allclose(gram, np.eye(estimator.k), atol=1e-12)
    assert release.explained_variance.shape == (estimator.k,)
    assert (release.explained_variance >= 0).all()
    assert (np.diff(release.explained_variance) <= 0).all()
    if release.mean is not None:
        assert release.mean.shape == (estimator.dim,)
        assert np.isfinite(release.mean).all()


def test_every_estimator_is_in_this_suite() -> None:
    assert set(OPTIONS) == set(CENTERINGS) == set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_introduces_itself(name: str) -> None:
    estimator = find(name)
    assert estimator.card.id == name
    assert estimator.card.name == estimator.__name__
    assert estimator.card.adjacency == "replace-one"
    assert dataclasses.is_dataclass(estimator.state_type)


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="adaptive, analyze-gauss, block, private-oja"):
        find("analyse-gauss")


@every_case
def test_releases_have_orthonormal_components(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = start(estimator)
    check_subspace(estimator, estimator.release(state))
    with replace_noise_door(SeededDoor()):
        for i in range(3):
            state = estimator.update(state, pack(estimator, records(estimator, 200, i)))
            check_subspace(estimator, estimator.release(state))


@every_case
@pytest.mark.parametrize(("dim", "k"), [(1, 1), (5, 1), (5, 5), (2, 2)])
def test_any_rank_from_one_to_the_dimension_works(name: str, how: Any, dim: int, k: int) -> None:
    estimator = make(name, how, dim=dim, k=k)
    check_subspace(estimator, estimator.release(run(estimator, [records(estimator, 60)] * 2)))


@every_case
@pytest.mark.parametrize("m", [0, 1, 2, 3, 7, 64])
def test_batches_of_any_length_work(name: str, how: Any, m: int) -> None:
    """An empty one, fewer records than the rank, odd lengths; pairs come in even numbers."""
    estimator = make(name, how, k=4)
    m -= m % estimator.preprocessing.granularity
    state = run(estimator, [records(estimator, m), records(estimator, 40)])
    check_subspace(estimator, estimator.release(state))
    assert (state.batch, state.records) == (2, m + 40)


@every_case
@pytest.mark.parametrize("what", ["null", "zero", "duplicate", "huge", "tiny", "one large"])
def test_degenerate_records_work(name: str, how: Any, what: str) -> None:
    estimator = make(name, how)
    one = next(r for r in records(estimator, 50) if r is not None)
    batch = {
        "null": [None] * 50,
        "zero": [0 * one] * 50,
        "duplicate": [one] * 50,
        "huge": [1e300 * one] * 50,
        "tiny": [1e-300 * one] * 50,
        "one large": [1e150 * one] + [one] * 49,
    }[what]
    for door in (SeededDoor(), FixedDoor()):
        check_subspace(estimator, estimator.release(run(estimator, [batch, batch], door)))


@every_case
def test_the_noise_alone_makes_two_runs_differ(name: str, how: Any) -> None:
    estimator = make(name, how)
    batches = [records(estimator, 100, i) for i in range(3)]
    first = encode_state(run(estimator, batches))
    assert first == encode_state(run(make(name, how), batches))
    assert first != encode_state(run(estimator, batches, SeededDoor(1)))


@every_case
def test_a_state_survives_its_bytes(name: str, how: Any) -> None:
    estimator = make(name, how)
    for n_batches in range(3):
        state = run(estimator, [records(estimator, 80, i) for i in range(n_batches)])
        data = encode_state(state)
        again: Any = decode_state(estimator.state_type, data)
        assert type(again) is type(state)
        assert encode_state(again) == data
        values = state_values(again)
        for value_name, before in state_values(state).items():
            after = values.pop(value_name)
            assert type(before) is type(after)
            if isinstance(before, np.ndarray):
                assert (before.dtype, before.tobytes()) == (after.dtype, after.tobytes())
        assert not values
        batch = pack(estimator, records(estimator, 80, 9))
        nexts = []
        for s in (state, again):
            with replace_noise_door(SeededDoor(3)):
                nexts.append(encode_state(estimator.update(s, batch)))
        assert nexts[0] == nexts[1]


@every_case
def test_updating_leaves_the_old_state_and_the_batch_alone(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = run(estimator, [records(estimator, 80)])
    batch = pack(estimator, records(estimator, 80, 1))
    before, rows = encode_state(state), batch.rows.copy()
    with replace_noise_door(SeededDoor()):
        estimator.update(state, batch)
    estimator.release(state)
    assert encode_state(state) == before
    assert np.array_equal(batch.rows, rows)


@every_case
def test_null_records_keep_their_place_and_change_nothing_but_the_count(name: str, how: Any) -> None:
    estimator = make(name, how, **PUBLIC_RADIUS.get(name, {}))
    items = [r for r in records(estimator, 200) if r is not None][:100]
    units = estimator.preprocessing.units
    with_nulls: list[Any] = []
    for i in range(0, len(items), units):
        with_nulls += [*items[i : i + units], *[None] * units]
    # The radius of a mean is found on all records, null ones included.
    plain, nulls = (
        [call for call in mechanism_inputs(estimator, batch) if call.name != "private_quantile"]
        for batch in (items, with_nulls)
    )
    assert len(plain) == len(nulls) > 0
    for a, b in zip(plain, nulls, strict=True):
        assert np.array_equal(a.values, b.values)


@every_case
def test_a_null_record_takes_the_place_of_one_and_shifts_no_other(name: str, how: Any) -> None:
    """Parts are cut by position: nothing but the record's own contribution changes."""
    estimator = make(name, how)
    items = records(estimator, 200)
    whole = mechanism_inputs(estimator, items)
    answers = [call.answer for call in whole]
    for place in (0, 1, 39, 40, 99, 198, 199):
        neighbour = items.copy()
        neighbour[place] = None
        nulled = mechanism_inputs(estimator, neighbour, answers)
        assert sum(differing(a, b) > 0 for a, b in zip(whole, nulled, strict=True)) <= 1


@every_case
@pytest.mark.parametrize("m", [120, 4000])
def test_neighbours_reach_one_mechanism_within_its_sensitivity(name: str, how: Any, m: int) -> None:
    """Sums in lattice units as they meet the noise; sigma over its multiplier is the sensitivity.

    In the larger batch every part is there that an estimator cuts. The slots of
    the covariance route are three sums of one: see test_covariance_route.
    """
    estimator = make(name, how)
    parameters = estimator.plan(start(estimator)).parameters
    ratio = min(p["sigma_over_sensitivity"] for p in (parameters, parameters.get("mean", parameters)))
    items = records(estimator, m)
    whole = mechanism_inputs(estimator, items)
    assert len(whole) > 0
    answers = [call.answer for call in whole]
    rng = np.random.default_rng(11)
    one = next(r for r in items if r is not None)
    # In each of the parts of 4000: 3%, 3%, 1% and what is left, or 10% and rounds.
    for place in (0, 5, 30, 77, 119) if m == 120 else (50, 180, 260, 500, 3999):
        news = (None, -1e200 * one, 1e3 * one, rng.standard_normal(one.shape) * 1e-3)
        for new in news if m == 120 else news[:2]:
            neighbour = items.copy()
            if estimator.kind is RecordKind.MATRIX and new is not None:
                new = (new + new.T) / 2
            neighbour[place] = new
            moved = mechanism_inputs(estimator, neighbour, answers)
            changed = {
                i: d for i, (a, b) in enumerate(zip(whole, moved, strict=True)) if (d := differing(a, b))
            }
            sums = [d for i, d in changed.items() if whole[i].name.startswith("gaussian_on")]
            if sums:
                sigma = max(whole[i].args[-1] for i in changed)
                assert sum(sums) <= Fraction(sigma / ratio * (1 + 1e-12)) ** 2
            slots = all(whole[i].name == "gaussian_on_symmetric" for i in changed)
            assert len(changed) <= (2 if slots else 1)
            assert len(sums) in (0, len(changed))
            assert sums or sum(changed.values()) <= 1


@every_case
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9), (0.3, 0.01), (8.0, 1e-6)])
def test_the_charge_is_the_promise_and_not_more(name: str, how: Any, epsilon: float, delta: float) -> None:
    estimator = make(name, how, epsilon=epsilon, delta=delta)
    charge = estimator.plan(start(estimator)).charge
    assert charge.epsilon <= parse_rational(epsilon)
    assert charge.delta <= parse_rational(delta)
    ratio = estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"]
    assert charge.rho is not None
    assert charge.rho >= 1 / (2 * Fraction(ratio) ** 2)


class ListeningDoor(SeededDoor):
    """Remembers the scales of the exponential mechanism and of histograms."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[float] = []

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        self.scales.append(scale)
        return super().noisy_max(scores, scale)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        self.scales.append(scale)
        return super().discrete_laplace(size, scale)


@every_case
@pytest.mark.parametrize("contributions", [1, 2, 7])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_whatever_a_unit_meets_in_its_batches_costs_the_promise_together(
    name: str, how: Any, contributions: int, epsilon: float
) -> None:
    estimator = make(name, how, epsilon=epsilon, contributions=contributions)
    plan = estimator.plan(start(estimator))
    assert plan.charge.epsilon <= parse_rational(epsilon)
    assert plan.charge.delta <= parse_rational(1e-6)
    # c batches, mu-GDP each, are sqrt(c) mu-GDP: (epsilon, delta) for the mu of one Gaussian mechanism.
    mu = 1 / plan.parameters["sigma_over_sensitivity"]
    assert gaussian_delta(epsilon, 1 / (mu * math.sqrt(contributions))) <= 1e-6
    assert plan.charge.rho is not None
    assert plan.charge.rho >= contributions * Fraction(mu) ** 2 / 2
    door = ListeningDoor()
    run(estimator, [records(estimator, 200, i) for i in range(2)], door)
    for scale in door.scales:
        # A pure mechanism's trade-off function is that of a Gaussian at their common fixed point.
        pure = 2 / scale
        assert pure <= epsilon
        # A record meets one mechanism; a user's batches may mix them.
        assert contributions == 1 or -2 * ndtri(1 / (1 + math.exp(pure))) <= mu * (1 + 1e-9)
        assert plan.charge.rho >= contributions * Fraction(pure) ** 2 / 2 * (1 - Fraction(1, 10**9))


@every_case
def test_the_plan_depends_on_the_state_alone(name: str, how: Any) -> None:
    estimator = make(name, how)
    one, other = (
        run(estimator, [records(estimator, 100, seed), records(estimator, 100, seed + 5)]) for seed in (0, 1)
    )
    with replace_noise_door(ClosedDoor()):
        plan = estimator.plan(one)
        assert plan == estimator.plan(one) == make(name, how).plan(one)
        assert plan == estimator.plan(decode_state(estimator.state_type, encode_state(one)))
        # Neither estimator's plan uses more of the state than the number of batches.
        assert plan == estimator.plan(other)
        assert plan.count % plan.granularity == 0
        assert plan.count >= plan.granularity == estimator.preprocessing.granularity


@every_case
def test_releasing_and_starting_draw_no_noise(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = run(estimator, [records(estimator, 100)])
    with replace_noise_door(ClosedDoor()):
        first, second = estimator.release(state), estimator.release(state)
        start(estimator)
    assert np.array_equal(first.components, second.components)


@pytest.mark.parametrize(("name", "centering"), CASES, ids=str)
def test_bounds_and_scale_work_with_every_centering(name: str, centering: Any) -> None:
    estimator = make(name, centering, public={"bounds": (-1.0, 1.0), "scale": 2.0})
    check_subspace(estimator, estimator.release(run(estimator, [records(estimator, 100)] * 2)))


@every_case
def test_batches_of_another_shape_or_kind_are_refused(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = start(estimator)
    other = RecordKind.FACTOR if estimator.kind is RecordKind.MATRIX else RecordKind.MATRIX
    with replace_noise_door(ClosedDoor()):
        with pytest.raises(ValueError, match="features"):
            estimator.update(state, Batch.of_records([None, None], D + 1, estimator.kind))
        with pytest.raises(ValueError, match="kind"):
            estimator.update(state, Batch.of_records([None, None], D, other))


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("k", [0, 6, -1])
def test_a_rank_outside_the_dimension_is_refused(name: str, k: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        make(name, k=k)


@every_case
def test_signs_do_not_flip_between_releases(name: str, how: Any) -> None:
    """The leading direction, which every batch shows clearly."""
    estimator = make(name, how, k=1, epsilon=8.0, **PUBLIC_RADIUS.get(name, {}))
    state = start(estimator)
    previous = None
    with replace_noise_door(FixedDoor()):
        for i in range(4):
            state = estimator.update(state, pack(estimator, records(estimator, 200, i)))
            row = estimator.release(state).components[0]
            if previous is not None and abs(row @ previous) > 0.1:
                assert row @ previous > 0
            previous = row


# One estimator at a time.


def test_private_oja_refuses_to_augment() -> None:
    with pytest.raises(ValueError, match="augment"):
        make("private-oja", "augment")


def test_private_oja_needs_a_radius() -> None:
    with pytest.raises(ValueError, match="clip_radius"):
        find("private-oja").options_type()


@pytest.mark.parametrize(
    "options",
    [
        {"radius_range": (1.0, 1.0)},
        {"radius_range": (0.0, 1.0)},
        {"clip_radius": 1e300},
        {"clip_radius": 0.0},
    ],
)
def test_analyze_gauss_refuses_radii_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="radius"):
        make("analyze-gauss", **options)


@pytest.mark.parametrize("bound", [1e-160, 1e160])
def test_extreme_bounds_leave_a_radius_to_find(bound: float) -> None:
    estimator = make("analyze-gauss", public={"bounds": (-bound, bound)})
    check_subspace(estimator, estimator.release(run(estimator, [records(estimator, 100)])))


def test_analyze_gauss_finds_its_radius_on_records_that_enter_nothing_else() -> None:
    estimator = make("analyze-gauss", "none")
    with watched() as seen:
        state: Any = run(estimator, [records(estimator, 1000)], FixedDoor())
    assert [call.name for call in seen] == ["laplace_histogram", "laplace_histogram", "gaussian_on_symmetric"]
    looked = seen[0].values.size + seen[1].values.size
    assert looked + state.covariance.weight == 1000
    assert 0 < looked <= 200


@pytest.mark.parametrize("where", ["all alike", "one far above", "all above the range", "all null", "three"])
def test_a_radius_is_found_on_any_sizes(where: str) -> None:
    """In one bin, with a record above every other, above every bin, without a size, too few for a bin.

    Without noise: what would be wrong here would be so in most runs.
    """
    x = np.ones((4000, D))
    sizes = {"one far above": (2.0**-10, 2.0**40), "all above the range": (1e-6, 1.0)}.get(where)
    x[7] *= 1e6 if where == "one far above" else 1
    x = np.full_like(x, np.nan) if where == "all null" else x[:3] if where == "three" else x
    estimator = make("analyze-gauss", k=1, **({"radius_range": sizes} if sizes else {}))
    with watched() as seen, replace_noise_door(FixedDoor()):
        state = estimator.update(start(estimator), Batch.of_vectors(x))
    release = estimator.release(state)
    check_subspace(estimator, release)
    if where in ("all alike", "one far above"):
        # The trace is 5, and bins are 1/8 octave: no clip, and a radius no larger than need be.
        # What seems cut off is put back as far as a bin is wide.
        assert release.explained_variance[0] == pytest.approx(5, rel=0.09)
        noise = state.covariance.noise**0.5 / (seen[-1].args[-1] / 2**40 / state.covariance.weight)
        assert 4.9 < noise < 5 * 2 ** (2 / 8)
    if where == "all above the range":
        # The tail is looked at from the last bin on, so even these need no clip.
        assert 0.99 < release.explained_variance[0] < 5.01


def test_growing_batches_add_up_to_a_known_number() -> None:
    for n_records in (2, 3, 17, 1000, 336_776, 1_000_001):
        for n_batches, growth in ((1, 1.6), (9, 1.6), (10, 1.0), (3000, 1.6), (3000, 64.0)):
            batching = GrowingBatches(n_records=n_records, n_batches=n_batches, growth=growth)
            sizes, i = [], 0
            while sum(sizes) < n_records:
                sizes.append(batching.count(i))
                i += 1
            assert sum(sizes) == n_records
            assert len(sizes) <= n_batches
            assert all(size % 2 == 0 for size in sizes[:-1])


def test_growing_batches_grow_to_their_limit() -> None:
    batching = GrowingBatches(first_batch=100, growth=1.5, max_batch=1000)
    sizes = [batching.count(i) for i in range(10)]
    assert sizes[:3] == [100, 150, 224]
    assert sizes[-1] == batching.count(10**9) == 1000
    assert sizes == sorted(sizes)
    assert GrowingBatches(first_batch=100, growth=1.0).count(10**12) == 100


@pytest.mark.parametrize(
    "options",
    [{"first_batch": 100, "max_batch": 50}, {"n_records": MAX_RECORDS * 3, "n_batches": 2}, {"growth": 0.9}],
)
def test_batches_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_batch|n_batches|growth"):
        GrowingBatches(**options)


# Utility, with real secret noise.


def spiked(m: int, d: int, k: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows with k directions of variance 9 among ones of 0.01, and those directions."""
    rng = utility_generator(seed)
    truth = orthonormalise(rng.standard_normal((d, k)))
    return 3 * rng.standard_normal((m, k)) @ truth.T + 0.1 * rng.standard_normal((m, d)), truth.T


def learn(estimator: Estimator[Any, Any], x: NDArray[np.float64]) -> Subspace:
    """All records, in the batches that the estimator plans."""
    state, taken = start(estimator), 0
    while taken < len(x):
        count = min(estimator.plan(state).count, len(x) - taken)
        state = estimator.update(state, Batch.of_vectors(x[taken : taken + count]))
        taken += count
    return estimator.release(state)


def test_analyze_gauss_finds_a_spiked_subspace() -> None:
    """Noise on the mean is sqrt(2) R z/n, below 0.05 an entry for R = 64 and z = 4.3.

    The spectral norm of an 8 x 8 symmetric matrix of such entries passes 0.5
    with probability below 1e-12 (3 sqrt(8) + 7 deviations are less than that);
    with a gap of at least 5 the error is then at most sqrt(2) 2 0.5/5 = 0.28.
    The median of 400 traces is missed by 50 ranks with probability below 1e-8.
    """
    x, truth = spiked(20_000, 8, 2, 1)
    estimator = make("analyze-gauss", dim=8, first_batch=20_000, clip_quantile=0.5, **LARGE)
    assert subspace_error(learn(estimator, x).components, truth) < 0.3


def test_private_oja_finds_a_spiked_subspace() -> None:
    """Noise on a batch's mean is 2 R z/B = 2 20 1.2/4000 = 0.012 an entry, for z(4, 1e-6) < 1.2.

    Twelve deviations of its norm on 8 x 2 entries, 0.2, are small against the
    gap of 4 or more that is left after clipping: so are the errors.
    """
    x, truth = spiked(48_000, 8, 2, 2)
    estimator = make(
        "private-oja", dim=8, epsilon=4.0, clip_radius=20.0, batch_size=4000, learning_rate=5.0, offset=0.0
    )
    assert subspace_error(learn(estimator, x).components, truth) < 0.2


@pytest.mark.parametrize("name", ESTIMATORS)
def test_matrices_do_as_well_as_their_factors(name: str) -> None:
    """As above; clipped at a Frobenius norm of 64, noise of 2 64 1.2/4000 = 0.04 an entry at most."""
    x, truth = spiked(16_000, 8, 2, 3)
    options = {
        "adaptive": {"first_batch": 4000, **LARGE},
        "analyze-gauss": {"first_batch": 4000, "clip_radius": 64.0, **LARGE},
        "block": {"first_batch": 4000, **LARGE},
        "private-oja": {"clip_radius": 64.0, "batch_size": 4000, "learning_rate": 5.0, "offset": 0.0},
    }[name]
    estimator = make(name, RecordKind.MATRIX, dim=8, epsilon=4.0, **options)
    state = start(estimator)
    for part in np.split(x, 4):
        rows = (part[:, :, None] * part[:, None, :]).reshape(-1, 8)
        starts = np.arange(0, len(rows) + 1, 8, dtype=np.int64)
        state = estimator.update(state, Batch(rows, starts, RecordKind.MATRIX))
    assert subspace_error(estimator.release(state).components, truth) < 0.3


def shifted(m: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Spiked rows far from the origin, their exact leading directions and mean."""
    x, _ = spiked(m, 8, 2, 4)
    x = x + 2.5 * np.resize([1.0, -1.0], 8)
    mean = x.mean(axis=0)
    return x, np.linalg.svd(x - mean, full_matrices=False)[2][:2], mean


@pytest.mark.parametrize("centering", ["augment", "pairs", "vector"])
def test_centring_removes_a_large_mean(centering: str) -> None:
    """Noise on the mean moment is sqrt(2) R z/n < 0.0045 an entry: R < 300, z(16, 1e-6) < 0.42.

    "augment" multiplies that of its constant by the mean's squared norm, 50:
    0.23, and six deviations of all its terms are below 1.7. With a gap of 8.9
    the error is then below sqrt(2) 1.7/8.9 = 0.27. The other two have less. A
    bin's noise has a scale of 2/16: of the 1,500 records that the tail is counted
    on, its quantile of 0.99 is missed by 7 with probability below 1e-20, and what a
    clip of 2% of the records takes from the mean is below 0.03. (A radius that the
    estimator chooses weighs the subspace alone: in 2 draws of 1,000 it is
    the median, and the mean is then up to 0.3 off.)
    """
    x, truth, mean = shifted(40_000)
    how: Any = tuple(mean.tolist()) if centering == "vector" else centering
    options = {"first_batch": 40_000, "clip_quantile": 0.99, **LARGE}
    estimator = make("analyze-gauss", how, dim=8, epsilon=16.0, **options)
    release = learn(estimator, x)
    assert subspace_error(release.components, truth) < 0.3
    if centering == "augment":
        assert release.mean is not None
        assert np.abs(release.mean - mean).max() < 0.15
    else:
        assert release.mean is None


def test_without_centring_a_large_mean_hides_the_subspace() -> None:
    x, truth, _ = shifted(20_000)
    estimator = make("analyze-gauss", "none", dim=8, epsilon=16.0, first_batch=20_000, **LARGE)
    assert subspace_error(learn(estimator, x).components, truth) > 0.5


def test_private_oja_with_pairs_removes_a_large_mean() -> None:
    x, truth, _ = shifted(48_000)
    estimator = make(
        "private-oja",
        "pairs",
        dim=8,
        epsilon=8.0,
        clip_radius=20.0,
        batch_size=6000,
        learning_rate=5.0,
        offset=0.0,
    )
    assert subspace_error(learn(estimator, x).components, truth) < 0.2
