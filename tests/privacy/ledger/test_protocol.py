"""Reservations that no sound writer writes are void when judged, and problems when verified."""

from __future__ import annotations

from typing import Any

import pytest

from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.parameters import Charge
from tests.privacy.ledger.test_ledger import OF_USERS, ONE, PARAMETERS, Writer, span
from tests.privacy.ledger.test_verify import messages

NOTHING = Charge(epsilon=0, delta=0)
LAWFUL: dict[str, Any] = {
    "charge": Charge(epsilon=1, delta="2e-6", rho="0.03"),
    "promise": {"epsilon": 1.0, "delta": 2e-6, "privacy_unit": "message"},
    "parameters": {"mechanism": "private-oja", "clip_radius": 1.0, "sigma_over_sensitivity": 4.2},
}
LOCAL: dict[str, Any] = {
    "charge": Charge.nothing(),
    "promise": LAWFUL["promise"] | {"local": True, "record_kind": "local"},
    "parameters": {"mechanism": "none", "local_sigma": 3.0},
}
NOT_PRIVATE: dict[str, Any] = {
    "charge": Charge.unbounded(),
    "promise": {"epsilon": "inf", "delta": "inf", "private": False, "privacy_unit": "message"},
    "parameters": {"mechanism": "none"},
}
MECHANISM = {"sigma_over_sensitivity": 4.2}
MEAN = {"mechanism": "mean", "radius_epsilon": 0.1, "sigma_over_sensitivity": 9.0}
NO_NOISE: dict[str, Any] = {"mechanism": "private-oja", "sigma_over_sensitivity": 0.0042}
WITHOUT_DELTA = Charge(epsilon="inf", delta=0, rho="inf")
OF_GAP = {"gap_failure_delta": 1e-9} | {f"{of}_sigma_over_sensitivity": 99.0 for of in ("gap", "projector")}


def counts(epsilon: str) -> dict[str, Any]:
    return {"mechanism": "counts", "epsilon": epsilon}


def claim(rho: Any, mechanism: str, **parameters: Any) -> dict[str, Any]:
    charge = Charge(epsilon=1, delta="2e-6", rho=rho)
    return {"charge": charge, "parameters": MECHANISM | {"mechanism": mechanism} | parameters}


def promise(**changes: Any) -> dict[str, Any]:
    return {"promise": LAWFUL["promise"] | changes}


# From the issue, word for word, and similar ones. Correct values: 1/(2 4.2^2) = .0283, 1/2 of the histogram.
TOO_LITTLE = "has too little noise for epsilon 1, delta 2e-06"
UNLAWFUL: list[tuple[dict[str, Any], str]] = [
    ({"charge": NOTHING} | promise(epsilon=50.0, delta=0.9), "charges epsilon 0, but its contract has 50"),
    (
        {"charge": Charge(epsilon=50, delta=0)} | promise(epsilon=50.0, delta=0.9),
        "charges delta 0, but its contract has 9/10",
    ),
    *((NOT_PRIVATE | {"charge": cost}, "does not charge infinity") for cost in (NOTHING, ONE, WITHOUT_DELTA)),
    (
        {"charge": NOTHING, "promise": OF_USERS, "parameters": PARAMETERS},
        "it charges epsilon 0, but its contract has 1/4",
    ),
    (LOCAL | {"charge": ONE}, "reports, which cost nothing"),
    ({"charge": Charge.nothing()} | promise(local=True), "it charges epsilon 0, but its contract has 1"),
    (promise(epsilon="inf"), "its contract has inf"),
    ({"promise": {}}, "its privacy contract has privacy_unit None"),
    ({"promise": {"privacy_unit": "row"}}, "its privacy contract has no valid epsilon"),
    ({"promise": {"epsilon": 1.0, "privacy_unit": "row"}}, "its privacy contract has no valid delta"),
    (promise(epsilon="little"), "has no valid epsilon"),
    (claim("1e-9", "private-oja"), "claims rho 1/1000000000, but its mechanisms cost 0.0283447 or more"),
    (claim("0.0284", "noisy-power", iterations=7), "cost 0.198413 or more"),
    (claim("0.06", "adaptive-power", rounds=2, search_epsilon=0.1), "cost 0.0666893 or more"),
    (claim("0.02", "block"), "cost 0.0283447 or more"),
    (claim("0.03", "private-oja", mean=MEAN | {"radius_epsilon": 1.0}), "cost 0.5 or more"),
    (claim("0.03", "private-oja", mean=MEAN | {"sigma_over_sensitivity": 2.0}), "cost 0.125 or more"),
    (claim("0.0284", "private-oja", diagnostics=counts("1/50")), "cost 0.0285447 or more"),
    (
        claim("0.03", "private-oja") | promise(privacy_unit="user", contributions_per_user=3),
        "cost 0.085034 or more",
    ),
    (claim("9", "none"), "its privacy cannot be checked: the mechanism 'none' is not known"),
    ({"parameters": MECHANISM | {"mechanism": "raw"}}, "the mechanism 'raw' is not known"),
    # A thousandth of the noise, and its rho.
    *((claim(rho, **NO_NOISE), f"private-oja {TOO_LITTLE}") for rho in (None, 10**6)),
    ({"parameters": {"mechanism": "block"}}, "its privacy cannot be checked: sigma_over_sensi"),
    (claim("999", "noisy-power", iterations=1000), f"noisy-power {TOO_LITTLE}"),
    (
        claim("999", "block") | promise(privacy_unit="user", contributions_per_user=50),
        f"block {TOO_LITTLE} of 50 batches",
    ),
    (claim("9999", "block", diagnostics=counts("50")), "cost epsilon 50, which leaves nothing of the 1"),
    (
        claim("9999", "block", mean=MEAN | {"radius_epsilon": 50.0}),
        "its mean has too little noise for epsilon 1",
    ),
    (
        {"charge": NOTHING} | promise(epsilon=0.0, delta=0.0),
        "its privacy cannot be checked: epsilon must be a finite number above 0",
    ),
    (promise(privacy_unit="User"), "its privacy contract has privacy_unit 'User'"),
    (claim("9", "private-oja", sigma_over_sensitivity=1e-300), "cost 1e+300 or more"),
    ({"ranges": ()}, "it names no records"),
    ({"ranges": (span(5, 5),)}, "partition 0: no records in the range with start 5, end 5"),
]
TITLED: dict[str, tuple[dict[str, Any], str]] = {
    "a rho a millionth too small": (claim("0.0283446", "private-oja"), "its mechanisms cost 0.0283447"),
    "any rho where an answer may tell all": (claim("9", "output-perturbation", **OF_GAP), "cost infinity"),
    "a range of markers": (
        {"ranges": (span(5, 9, count=0),)},
        "0: no records in the range with start 5, end 9",
    ),
    "an empty range beside another": (
        {"ranges": (span(5, 9), span(3, 3, partition=1))},
        "partition 1: no records in the range with start 3, end 3",
    ),
}


def reserve(writer: Writer, **changes: Any) -> Any:
    how = LAWFUL | {"ranges": (span(0, 5),)} | changes
    ranges: tuple[OffsetRange, ...] = how.pop("ranges")
    return writer.reserve("a", *ranges, **how)


@pytest.mark.parametrize("rule", ["basic", "zcdp"])
@pytest.mark.parametrize("lawful", [LAWFUL, LOCAL, NOT_PRIVATE])
def test_a_lawful_reservation_counts(lawful: dict[str, Any], rule: str) -> None:
    writer = Writer("inf", "inf", rule)
    assert reserve(writer, **lawful).accepted
    assert verify_log(messages(writer)).ok


@pytest.mark.parametrize("rule", ["basic", "zcdp"])
@pytest.mark.parametrize(
    ("changes", "reported"), [*UNLAWFUL, *TITLED.values()], ids=[*(words for _, words in UNLAWFUL), *TITLED]
)
def test_what_is_unlawful_is_void_and_a_problem(changes: dict[str, Any], reported: str, rule: str) -> None:
    writer = Writer("inf", "inf", rule)
    assert reported in reserve(writer, **changes).reason
    assert writer.ledger.most_charged().epsilon == 0
    assert not writer.commit("a").accepted
    report = verify_log(messages(writer))
    assert (report.ok, report.void, report.offsets_charged) == (False, 0, 0)
    assert reported in report.problems[0]
    assert all("\n" not in line for line in report.problems)


@pytest.mark.parametrize("rule", ["basic", "zcdp"])
def test_records_that_were_never_named_are_not_released(rule: str) -> None:
    """The log contains RESERVED without ranges, then COMMITTED and RELEASED."""
    writer = Writer("inf", "inf", rule)
    reserve(writer, ranges=())
    writer.commit("a", batch=1)
    writer.release("a", batch=1)
    report = verify_log(messages(writer))
    assert [line.split(": ")[1] for line in report.problems] == [
        f"{kind} of job 'a'" for kind in ("RESERVED", "COMMITTED", "RELEASED")
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        *({}, {"mechanism": ["block"]}, {"mechanism": "private-oja"}),
        {"mechanism": "private-oja", "sigma_over_sensitivity": "much"},
        {"mechanism": "private-oja", "sigma_over_sensitivity": 0},
        {"mechanism": "private-oja", "sigma_over_sensitivity": "inf"},
        {"mechanism": "block", "clip_radius": None},
        {"mechanism": "noisy-power", "iterations": 1.0, **MECHANISM},
        {"mechanism": "noisy-power", "iterations": True, **MECHANISM},
        {"mechanism": "private-oja", "mean": 3, **MECHANISM},
        {"mechanism": "private-oja", "mean": {}, **MECHANISM},
        {"mechanism": "private-oja", "mean": MEAN | {"mechanism": "counts"}, **MECHANISM},
        {"mechanism": "private-oja", "diagnostics": {"epsilon": "-1"}, **MECHANISM},
    ],
)
@pytest.mark.parametrize("rule", ["basic", "zcdp"])
def test_parameters_that_cannot_be_read_are_no_error(parameters: dict[str, Any], rule: str) -> None:
    verdict = reserve(Writer("inf", "inf", rule), parameters=parameters)
    assert verdict.reason.startswith("its privacy cannot be checked: ")


def test_users_whose_number_of_batches_is_not_told_have_no_rho() -> None:
    verdict = reserve(Writer("inf", "inf", "zcdp"), **promise(privacy_unit="user"))
    assert "contributions_per_user must be" in verdict.reason


@pytest.mark.parametrize(
    "other",
    [
        {"mechanism": "k-dp-ojas", "sigma_over_sensitivity": 1e3, "secret_order_of": 10},
        {"mechanism": "gaussian", "sigma_over_sensitivity": 99.0, "diagnostics": counts("1/8")},
        {"mechanism": "gaussian", "sigma_over_sensitivity": 99.0, "diagnostics": counts("1/4")},
    ],
)
def test_all_batches_of_users_compose_as_the_first(other: dict[str, Any]) -> None:
    """A Gaussian of the whole and parts by basic composition would exceed delta together."""
    how = {"diagnostics": counts("1/8")} if other.get("diagnostics") != counts("1/8") else {}
    first = {"mechanism": "gaussian", "sigma_over_sensitivity": 99.0} | how
    of_users = promise(privacy_unit="user", contributions_per_user=2)
    of_users |= {"charge": Charge(epsilon=1, delta="2e-6")}
    writer = Writer("inf", "inf")
    writer.answer("a", span(0, 5), **LAWFUL | of_users | {"parameters": first})
    verdict = reserve(writer, ranges=(span(5, 10),), **of_users, parameters=other)
    assert verdict.reason.startswith("its mechanism or its counts compose otherwise than those of the")
    assert reserve(writer, ranges=(span(10, 15),), batch=2, **of_users, parameters=first).accepted
    alone = Writer("inf", "inf")
    assert reserve(alone, **of_users, parameters=other).accepted


def test_a_charge_may_lack_a_rounding_of_its_promise_and_no_more() -> None:
    for lack, accepted in (("1e-13", True), ("1e-11", False)):
        writer = Writer("inf", "inf")
        charge = Charge(epsilon=1 - Charge(epsilon=lack, delta=0).epsilon, delta=1)
        assert reserve(writer, charge=charge, **promise()).accepted is accepted


def test_a_job_that_was_started_reserves_nothing_before_and_costs_nothing_by_that() -> None:
    writer = Writer("inf", "inf")
    assert reserve(writer, ranges=(span(0, 100), span(0, 50, partition=1))).accepted
    assert writer.start("b", 100, 50).accepted
    job = writer.ledger.job("b")
    assert (job.started, job.has_begun, job.ends, job.batch) == (True, True, {0: 100, 1: 50}, 0)
    assert job.most_charged() == Charge.nothing()
    before = writer.reserve("b", span(100, 150), span(49, 60, partition=1), **LAWFUL)
    assert before.reason == "partition 1: offset 49 is before the job's start, 50"
    # A partition younger than the entry begins at its first record.
    assert writer.reserve("b", span(100, 150), span(0, 9, partition=2), **LAWFUL).accepted
    assert writer.ledger.job("b").ends == {0: 150, 1: 50, 2: 9}
    report = verify_log(messages(writer))
    assert report.problems == (f"offset 6: RESERVED of job 'b': {before.reason}",)
