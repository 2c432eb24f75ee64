"""The ledger accepts every estimator's reservations, and rejects any lower charge."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.privacy.ledger import entries
from streaming_pca.privacy.ledger.entries import Cap, OffsetRange, Opened, Reserved
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.mechanism_costs import least_rho
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service.commit.batch_result import parameters_of
from tests.estimators.suite import PUBLIC_RADIUS, SUITE, UNCLAIMED, D, pack, records, start
from tests.privacy.noise import SeededSampler

CLAIMING = [
    name
    for name, estimator in ESTIMATORS.items()
    if estimator.info.private and not estimator.info.local and name not in UNCLAIMED
]
EPSILONS = (0.1, 0.7, 1.0, 1 / 3, 8.0)
# The last share cannot be subtracted exactly by a decimal of 17 digits.
SHARES = (0.0, 0.02, 0.123456789012345)


def stream_of(name: str, **how: Any) -> StreamSettings:
    estimator = find(name)
    base: dict[str, Any] = {"name": "s", "input": "in", "dim": D, "rank": SUITE[name].rank or 2}
    base |= {"estimator": name, "options": SUITE[name].options, "epsilon": 1.0, "delta": 1e-6}
    base |= {"centering": "none", "diagnostics_share": 0.0}
    if estimator.info.local:
        base |= {"record_kind": "local"}
    if not estimator.info.private:
        base |= {"private": False, "epsilon": math.inf, "delta": math.inf}
    return StreamSettings(**(base | how))


def reserved(stream: StreamSettings, state: Any = None) -> Reserved:
    estimator = stream.build_estimator()
    plan = estimator.plan(start(estimator) if state is None else state)
    entry = Reserved(
        topic_id="T",
        job=stream.name,
        batch=1,
        previous="",
        ranges=(OffsetRange(partition=0, start=0, end=plan.count, count=plan.count),),
        promise=stream.privacy_contract,
        parameters=parameters_of(stream, plan),
        charge=plan.charge,
    )
    again = entries.decode_entry(entries.encode_entry(entry))
    assert isinstance(again, Reserved)
    return again


def verdict(entry: Reserved, rule: Any, **changes: Any) -> str:
    """Return the reason why the entry is void under an infinite cap; "" if it counts."""
    ledger = Ledger("T")
    ledger.apply(Opened(topic_id="T", topic="in", cap=Cap(epsilon="inf", delta="inf"), filter=rule))
    charge = entry.charge.model_copy(update=changes)
    return ledger.check(entry.model_copy(update={"charge": charge, "previous": ledger.job("s").head})).reason


def check(entry: Reserved) -> None:
    """Check that both filters accept the charge, and reject anything lower."""
    for rule in ("basic", "zcdp"):
        assert verdict(entry, rule) == ""
        if entry.promise.get("private") is False or entry.promise.get("local"):
            continue
        for part in ("epsilon", "delta"):
            lower = getattr(entry.charge, part) * (1 - Fraction(1, 10**9))
            assert f"charges {part}" in verdict(entry, rule, **{part: lower})
        for factor in (Fraction(1, 2), 1 - Fraction(1, 10**6)) if entry.charge.rho is not None else ():
            assert "its mechanisms cost" in verdict(entry, rule, rho=entry.charge.rho * factor)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_what_an_estimator_reserves_counts_and_less_does_not(name: str, epsilon: float) -> None:
    info = find(name).info
    units: list[dict[str, Any]] = [{}]
    if info.private:
        units = [{"epsilon": epsilon}, {"epsilon": epsilon, "delta": 1e-9}]
    if info.private and not info.local:
        user = {"epsilon": epsilon, "privacy_unit": "user"}
        units += [user | {"contributions_per_user": c} for c in (1, 2, 50)]
    shares = SHARES if info.private and not info.local else (0.0,)
    centerings = [c for c in ("none", "auto") if c == "none" or c in find(name).centerings]
    if info.local or not info.private:
        centerings = ["none"]
    variants = [{}, PUBLIC_RADIUS.get(name, {}), *SUITE[name].variants]
    for options, unit, share, centering in product(variants, units, shares, centerings):
        how = unit | {"diagnostics_share": share, "centering": centering}
        entry = reserved(stream_of(name, options=SUITE[name].options | options, **how))
        check(entry)
        assert (entry.charge.rho is None) == (name in UNCLAIMED)


@pytest.mark.parametrize("name", CLAIMING)
def test_later_batches_count_too(name: str) -> None:
    for kind in (RecordKind.FACTOR, RecordKind.MATRIX):
        if kind not in find(name).kinds:
            continue
        stream = stream_of(name, record_kind=kind, diagnostics_share=0.02)
        estimator = stream.build_estimator()
        state = start(estimator)
        with replace_noise_sampler(SeededSampler()):
            for i in range(3):
                check(reserved(stream, state))
                state = estimator.update(state, pack(estimator, records(estimator, 200, i)))


@pytest.mark.parametrize("name", [*sorted(UNCLAIMED)])
def test_where_an_answer_may_tell_all_no_rho_can_be_claimed(name: str) -> None:
    entry = reserved(stream_of(name, epsilon=1.0))
    for rule in ("basic", "zcdp"):
        assert "its mechanisms cost infinity" in verdict(entry, rule, rho=Fraction(10**6))


def test_a_lower_bound_is_within_a_millionth_of_the_honest_claim() -> None:
    for name in CLAIMING:
        entry = reserved(stream_of(name))
        ratio = least_rho(entry.promise, entry.parameters) / entry.charge.rho
        assert 1 - Fraction(1, 10**6) < ratio <= 1


def test_reports_charge_nothing_and_what_is_not_private_infinity() -> None:
    for name, wrong, reported in (
        ("local-gaussian", Charge(epsilon=1, delta="1e-6", rho="1/2"), "reports, which cost nothing"),
        ("local-gaussian", Charge.unbounded(), "reports, which cost nothing"),
        ("oja", Charge.nothing(), "does not charge infinity"),
        ("oja", Charge(epsilon=9, delta=1, rho=9), "does not charge infinity"),
    ):
        entry = reserved(stream_of(name))
        assert verdict(entry, "basic") == ""
        assert reported in verdict(entry, "basic", **dict(wrong))


@pytest.mark.parametrize(
    "changes",
    [
        {"promise": {"record_kind": "factor"}},
        {"promise": {"local": "true"}},
        {"parameters": {"mechanism": "oja"}},
        {"parameters": {"mechanism": "block", "sigma_over_sensitivity": 4.2, "clip_radius": 1.0}},
    ],
)
def test_records_are_reports_only_where_nothing_else_is_said(changes: dict[str, dict[str, Any]]) -> None:
    entry = reserved(stream_of("local-gaussian"))
    changed = entry.model_copy(update={key: getattr(entry, key) | more for key, more in changes.items()})
    assert "charges epsilon 0" in verdict(changed, "basic")


def test_a_promise_must_name_what_it_promises() -> None:
    entry = reserved(stream_of("private-oja"))
    for name in ("epsilon", "delta"):
        for value in (None, "", [], "x", True):
            changed = entry.model_copy(update={"promise": entry.promise | {name: value}})
            assert f"has no valid {name}" in verdict(changed, "basic")
