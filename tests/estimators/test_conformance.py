"""Every estimator keeps these rules, with any algorithm."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.state import (
    decode_fitting_state,
    decode_state,
    encode_state,
    state_values,
)
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.privacy.calibration.multipliers import gaussian_delta, gaussian_multiplier
from streaming_pca.privacy.calibration.shuffling import is_shuffle_private
from streaming_pca.privacy.errors import CalibrationError
from streaming_pca.privacy.parameters import PrivacyParameters, parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import (
    CASES,
    CENTERINGS,
    COMPOSED,
    EVERY_CASE,
    IN_PARTS,
    MEETS,
    PRIVATE_CASES,
    PUBLIC_RADIUS,
    SUITE,
    UNCLAIMED,
    ClosedSampler,
    D,
    FixedSampler,
    check_subspace,
    crossed,
    differing,
    every_case,
    make,
    mechanism_inputs,
    moved,
    pack,
    private_case,
    records,
    run,
    start,
)
from tests.privacy.noise import SeededSampler


def test_every_estimator_is_in_this_suite() -> None:
    assert {name for name, _ in EVERY_CASE} == set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_introduces_itself(name: str) -> None:
    estimator = find(name)
    assert estimator.info.id == name
    assert estimator.info.adjacency == ("replace-one" if estimator.info.private else "none")
    assert dataclasses.is_dataclass(estimator.state_type)


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="adadpo, adaptive, adaptive-power, analyze-gauss, block, "):
        find("something")
    with pytest.raises(ValueError, match="did you mean analyze-gauss"):
        find("analyse-gauss")


@every_case
def test_releases_have_orthonormal_components(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = start(estimator)
    check_subspace(estimator, estimator.release(state))
    with replace_noise_sampler(SeededSampler()):
        for i in range(3):
            state = estimator.update(state, pack(estimator, records(estimator, 200, i)))
            check_subspace(estimator, estimator.release(state))
    assert (estimator.release(state).outcome is None) == SUITE[name].always_learns


@every_case
def test_public_counts_alone_give_the_size_of_the_next_batch(name: str, how: Any) -> None:
    """Also after a batch that closed early, and after the end of TadaDPO's start."""
    sizes = {"warm_records": 300} if name == "tadadpo" else {}
    estimator = make(name, how, **sizes)
    state = start(estimator)
    with replace_noise_sampler(SeededSampler()):
        for i, m in enumerate((200, 64, 128, 30)):
            assert estimator.planned_records(state.batch, state.records) == estimator.plan(state).count
            state = estimator.update(state, pack(estimator, records(estimator, m, i)))
    assert estimator.planned_records(state.batch, state.records) == estimator.plan(state).count


@crossed(EVERY_CASE, "dim, k", [(1, 1), (5, 1), (5, 5), (2, 2)])
def test_any_rank_from_one_to_the_dimension_works(name: str, how: Any, dim: int, k: int) -> None:
    estimator = make(name, how, dim=dim, k=k)
    check_subspace(estimator, estimator.release(run(estimator, [records(estimator, 60)] * 2)))


@crossed(EVERY_CASE, "m", [0, 1, 2, 3, 7, 64])
def test_batches_of_any_length_work(name: str, how: Any, m: int) -> None:
    """Sizes include an empty batch, one below the rank, and odd lengths; pairs come in even numbers."""
    estimator = make(name, how, k=4)
    m -= m % estimator.preprocessing.granularity
    state = run(estimator, [records(estimator, m), records(estimator, 40)])
    check_subspace(estimator, estimator.release(state))
    assert (state.batch, state.records) == (2, m + 40)


@crossed(EVERY_CASE, "what", ["null", "zero", "duplicate", "huge", "tiny", "one large"])
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
    for sampler in (SeededSampler(), FixedSampler()):
        check_subspace(estimator, estimator.release(run(estimator, [batch, batch], sampler)))


@private_case
def test_the_noise_alone_makes_two_runs_differ(name: str, how: Any) -> None:
    estimator = make(name, how)
    batches = [records(estimator, 400, i) for i in range(3)]
    first = encode_state(run(estimator, batches))
    assert first == encode_state(run(make(name, how), batches))
    assert first != encode_state(run(estimator, batches, SeededSampler(1)))


@every_case
def test_a_state_survives_its_bytes(name: str, how: Any) -> None:
    estimator = make(name, how)
    for n_batches in range(4):
        state = run(estimator, [records(estimator, 80, i) for i in range(n_batches)])
        data = encode_state(state)
        again: Any = decode_state(estimator.state_type, data)
        assert type(again) is type(state)
        assert encode_state(again) == data == encode_state(decode_fitting_state(make(name, how), data))
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
            with replace_noise_sampler(SeededSampler(3)):
                nexts.append(encode_state(estimator.update(s, batch)))
        assert nexts[0] == nexts[1]


@every_case
def test_updating_leaves_the_old_state_and_the_batch_alone(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = run(estimator, [records(estimator, 80)])
    batch = pack(estimator, records(estimator, 80, 1))
    before, rows = encode_state(state), batch.rows.copy()
    with replace_noise_sampler(SeededSampler()):
        estimator.update(state, batch)
    estimator.release(state)
    assert encode_state(state) == before
    assert np.array_equal(batch.rows, rows)


@pytest.mark.parametrize(
    ("name", "how"), [case for case in PRIVATE_CASES if not SUITE[case[0]].nulls_count], ids=str
)
def test_null_records_keep_their_place_and_change_nothing_but_the_count(name: str, how: Any) -> None:
    estimator = make(name, how, **PUBLIC_RADIUS.get(name, {}))
    items = [r for r in records(estimator, 200) if r is not None][:100]
    if name in COMPOSED and how == "auto":
        pytest.skip("null records have a say in where the centre is looked for")
    units = estimator.preprocessing.units
    with_nulls: list[Any] = []
    for i in range(0, len(items), units):
        with_nulls += [*items[i : i + units], *[None] * units]
    plain, nulls = (mechanism_inputs(estimator, batch) for batch in (items, with_nulls))
    assert len(plain) == len(nulls) > 0
    for a, b in zip(plain, nulls, strict=True):
        assert np.array_equal(a.values, b.values)


@private_case
def test_a_null_record_takes_the_place_of_one_and_shifts_no_other(name: str, how: Any) -> None:
    """Parts are split by position: only the record's own contribution changes."""
    estimator = make(name, how)
    ratio = Fraction(estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"])
    items = records(estimator, 200)
    whole = mechanism_inputs(estimator, items)
    answers = [call.answer for call in whole]
    for place in (0, 1, 39, 40, 99, 198, 199):
        neighbour = items.copy()
        neighbour[place] = None
        nulled = mechanism_inputs(estimator, neighbour, answers)
        if name in COMPOSED:
            assert moved(whole, nulled) <= 1 / ratio**2
            continue
        assert sum(differing(a, b) > 0 for a, b in zip(whole, nulled, strict=True)) <= MEETS.get(name, 1)


@crossed(PRIVATE_CASES, "m", [120, 4000])
def test_neighbours_reach_one_mechanism_within_its_sensitivity(name: str, how: Any, m: int) -> None:
    """Sums receive noise in lattice units; sigma over its multiplier is the sensitivity.

    The larger batch contains every part into which an estimator splits it. Where all mechanisms
    read all records, they are together within the sensitivity of one: more in test_budget.
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
    # One place in each of the parts of 4000: 3%, 3%, 1% and the remainder, or 10% and rounds.
    for place in (0, 5, 30, 77, 119) if m == 120 else (50, 180, 260, 500, 3999):
        news = (None, -1e200 * one, 1e3 * one, rng.standard_normal(one.shape) * 1e-3)
        for new in news if m == 120 else news[:2]:
            neighbour = items.copy()
            if estimator.kind is RecordKind.MATRIX and new is not None:
                new = (new + new.T) / 2
            neighbour[place] = new
            other = mechanism_inputs(estimator, neighbour, answers)
            if name in COMPOSED:
                assert moved(whole, other) <= 1 / Fraction(ratio) ** 2
                continue
            changed = {
                i: d for i, (a, b) in enumerate(zip(whole, other, strict=True)) if (d := differing(a, b))
            }
            sums = {i: d for i, d in changed.items() if whole[i].name.startswith("gaussian_on")}
            assert all(d <= 1 for i, d in changed.items() if i not in sums)
            if name in MEETS:
                assert len(changed) <= MEETS[name]
                for i, d in sums.items():
                    assert d <= Fraction(whole[i].args[-1] / ratio * (1 + 1e-12)) ** 2
                continue
            assert len(changed) <= 1
            assert len(sums) in (0, len(changed))
            if sums:
                sigma = max(whole[i].args[-1] for i in sums)
                assert sum(sums.values()) <= Fraction(sigma / ratio * (1 + 1e-12)) ** 2


@crossed(PRIVATE_CASES, "epsilon, delta", [(1.0, 1e-6), (0.1, 1e-9), (0.3, 0.01), (8.0, 1e-6)])
def test_the_charge_is_the_promise_and_not_more(name: str, how: Any, epsilon: float, delta: float) -> None:
    estimator = make(name, how, epsilon=epsilon, delta=delta)
    charge = estimator.plan(start(estimator)).charge
    assert charge.epsilon <= parse_rational(epsilon)
    assert charge.delta <= parse_rational(delta)
    ratio = estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"]
    assert (charge.rho is None) == (name in UNCLAIMED)
    assert charge.rho is None or charge.rho >= 1 / (2 * Fraction(ratio) ** 2)


class ListeningSampler(SeededSampler):
    """Record the scales of histograms."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[float] = []

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        self.scales.append(scale)
        return super().discrete_laplace(size, scale)


@crossed(PRIVATE_CASES, "contributions, epsilon", [(c, e) for e in (0.3, 2.0) for c in (1, 2, 7)])
def test_whatever_a_unit_meets_in_its_batches_costs_the_promise_together(
    name: str, how: Any, contributions: int, epsilon: float
) -> None:
    estimator = make(name, how, epsilon=epsilon, contributions=contributions)
    plan = estimator.plan(start(estimator))
    assert plan.charge.epsilon <= parse_rational(epsilon)
    assert plan.charge.delta <= parse_rational(1e-6)
    # c batches, mu-GDP each, are sqrt(c) mu-GDP: (epsilon, delta) for the mu of one Gaussian mechanism.
    multiplier = plan.parameters["sigma_over_sensitivity"]
    mu = 1 / multiplier
    order = plan.parameters.get("secret_order_of")
    if order is not None:
        assert is_shuffle_private(epsilon / contributions, 1e-6 / contributions, multiplier, order)
        return
    assert gaussian_delta(epsilon, multiplier / math.sqrt(contributions)) <= 1e-6
    assert (plan.charge.rho is None) == (name in UNCLAIMED)
    if name in IN_PARTS:
        assert multiplier >= gaussian_multiplier(epsilon / contributions, 1e-6 / contributions)
        return
    if plan.charge.rho is None:
        return
    assert plan.charge.rho >= contributions * Fraction(mu) ** 2 / 2
    sampler = ListeningSampler()
    run(estimator, [records(estimator, 200, i) for i in range(2)], sampler)
    for scale in sampler.scales:
        # A pure mechanism's trade-off function equals a Gaussian's at their common fixed point.
        pure = 2 / scale
        assert pure <= epsilon
        # A record meets one mechanism; a user's batches may mix them.
        assert contributions == 1 or -2 * ndtri(1 / (1 + math.exp(pure))) <= mu * (1 + 1e-9)
        assert plan.charge.rho >= contributions * Fraction(pure) ** 2 / 2 * (1 - Fraction(1, 10**9))


@every_case
def test_the_plan_depends_on_the_state_alone(name: str, how: Any) -> None:
    estimator = make(name, how)
    seeds = ((0, 5), (1, 6))
    one, other = (run(estimator, [records(estimator, 100, seed) for seed in each]) for each in seeds)
    with replace_noise_sampler(ClosedSampler()):
        plan = estimator.plan(one)
        assert plan == estimator.plan(one) == make(name, how).plan(one)
        assert plan == estimator.plan(decode_state(estimator.state_type, encode_state(one)))
        # The plan uses at most the number of batches from the state.
        assert plan == estimator.plan(other)
        assert plan.count % plan.granularity == 0
        assert plan.count >= plan.granularity == estimator.preprocessing.granularity


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_sizes_batches_does_nothing_else(name: str) -> None:
    """Reservations omit these options, so a batch may be answered under other values."""
    estimator = make(name)
    options = estimator.options.model_dump()
    batch = pack(estimator, records(estimator, 400))
    for option in sorted(type(estimator.options).sizing):
        if isinstance(options[option], str) or options[option] is None:
            continue
        other = make(name, **{option: 2 * options[option]})
        states = []
        for one in (estimator, other):
            with replace_noise_sampler(SeededSampler()):
                states.append(encode_state(one.update(start(one), batch)))
        assert states[0] == states[1], option


@every_case
def test_releasing_and_starting_draw_no_noise(name: str, how: Any) -> None:
    estimator = make(name, how)
    state = run(estimator, [records(estimator, 100)])
    with replace_noise_sampler(ClosedSampler()):
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
    with replace_noise_sampler(ClosedSampler()):
        with pytest.raises(ValueError, match="features"):
            estimator.update(state, ArrayBatch.of_records([None, None], D + 1, estimator.kind))
        with pytest.raises(ValueError, match="kind"):
            estimator.update(state, ArrayBatch.of_records([None, None], D, other))


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("k", [0, 6, -1])
def test_a_rank_outside_the_dimension_is_refused(name: str, k: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        make(name, k=k)


@pytest.mark.parametrize(
    ("name", "how"), [c for c in EVERY_CASE if find(c[0]).info.releases == "subspace"], ids=str
)
def test_signs_do_not_flip_between_releases(name: str, how: Any) -> None:
    """The test follows the leading direction, which every batch shows clearly."""
    estimator = make(name, how, k=1, epsilon=8.0, **PUBLIC_RADIUS.get(name, {}))
    state = start(estimator)
    previous = None
    with replace_noise_sampler(FixedSampler()):
        for i in range(4):
            state = estimator.update(state, pack(estimator, records(estimator, 200, i)))
            row = estimator.release(state).components[0]
            if previous is not None and abs(row @ previous) > 0.1:
                assert row @ previous > 0
            previous = row


@pytest.mark.parametrize("name", ESTIMATORS)
def test_auto_means_pairs_where_the_estimator_finds_no_mean(name: str) -> None:
    kind = find(name)
    meant = kind.resolve_centering("auto")
    assert meant == ("pairs" if "pairs" in kind.centerings and name not in COMPOSED else "auto")
    for value in ("pairs", "none", (0.5,) * D, "median"):
        assert kind.resolve_centering(value) == value


@pytest.mark.parametrize("name", sorted(ESTIMATORS.keys() - COMPOSED))
def test_the_base_class_adds_counts_and_signs(name: str) -> None:
    """An override of these methods would omit them."""
    for method in ("plan", "update", "release"):
        assert getattr(find(name), method) is getattr(Estimator, method), f"{name} overrides {method}"


@pytest.mark.parametrize("name", CENTERINGS)
@pytest.mark.parametrize("centering", ["auto", "pairs", "none"])
def test_a_way_to_centre_works_or_is_refused_with_the_others(name: str, centering: str) -> None:
    if centering in find(name).centerings:
        make(name, centering)
        return
    with pytest.raises(ValueError, match=f'{name} cannot use centering = "{centering}": use .* or a vector'):
        make(name, centering)


@private_case
def test_reservations_and_states_name_the_law_of_their_noise(name: str, how: Any) -> None:
    """A state without it, written by earlier versions, is read as having another noise law."""
    estimator = make(name, how)
    state = start(estimator)
    assert estimator.plan(state).parameters["noise"] == "rounded-gaussian"
    assert state.noise is None
    after = run(estimator, [records(estimator, 80)])
    assert after.noise == "rounded-gaussian"
    with np.load(io.BytesIO(encode_state(after)), allow_pickle=False) as archive:
        values = {key: archive[key] for key in archive.files}
    plain = json.loads(values.pop("__plain__").tobytes())
    del plain["noise"]
    older = io.BytesIO()
    np.savez(
        older, allow_pickle=False, __plain__=np.frombuffer(json.dumps(plain).encode(), np.uint8), **values
    )
    read: Any = decode_state(estimator.state_type, older.getvalue())
    assert read.noise is None
    assert estimator.plan(read).charge == estimator.plan(after).charge
    assert estimator.update(read, pack(estimator, records(estimator, 80, 3))).noise == "rounded-gaussian"


@private_case
def test_a_promise_that_int64_cannot_keep_is_refused_before_a_batch_is_charged(name: str, how: Any) -> None:
    """A charge is made from a plan: after it, no calibration may fail."""
    usual = make(name, how)
    privacy = PrivacyParameters(epsilon=3e-7, delta=1e-9)
    try:
        estimator = find(name)(usual.dim, usual.k, privacy, usual.preprocessing, usual.options)
        estimator.plan(estimator.init(np.random.default_rng(0)))
    except CalibrationError:
        return
    # Its sums have other units, with enough room.
    run(estimator, [records(estimator, 80)])


@private_case
def test_no_record_makes_an_error_where_the_host_asks_for_all_of_them(name: str, how: Any) -> None:
    """An exception would reveal a record: subnormal, huge, or with both kinds of entries."""
    estimator = make(name, how)
    hostile = records(estimator, 200)
    one = next(record for record in hostile if record is not None)
    for i, size in enumerate((5e-324, 1e-310, 1e-160, 1e160, 1.7e308)):
        hostile[20 * i : 20 * i + 4] = [np.full_like(one, value) for value in (size, -size, 0.0, size)]
    state = run(estimator, [records(estimator, 200)])
    with np.errstate(all="raise"), replace_noise_sampler(SeededSampler()):
        estimator.release(estimator.update(state, pack(estimator, hostile)))
