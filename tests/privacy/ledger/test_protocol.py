"""Reservations that no sound writer writes are void when judged, and problems when verified."""

from __future__ import annotations

from typing import Any

import pytest

from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.parameters import Charge
from tests.privacy.ledger.test_ledger import OF_USERS, ONE, PARAMETERS, PROMISE, Writer, span
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
NO_NOISE = {"mechanism": "private-oja", "sigma_over_sensitivity": 0.0042}
OF_GAP = {f"{name}_sigma_over_sensitivity": 99.0 for name in ("gap", "projector")} | {
    "gap_failure_delta": 1e-9
}


def claim(rho: str, mechanism: str, **parameters: Any) -> dict[str, Any]:
    charge = Charge(epsilon=1, delta="2e-6", rho=rho)
    return {"charge": charge, "parameters": MECHANISM | {"mechanism": mechanism} | parameters}


# From the issue, word for word, and similar ones. Correct values: 1/(2 4.2^2) = .0283, 1/2 of the histogram.
UNLAWFUL: dict[str, tuple[dict[str, Any], str]] = {
    "a charge of 0 under a promise of epsilon 50, delta .9": (
        {"charge": NOTHING, "promise": LAWFUL["promise"] | {"epsilon": 50.0, "delta": 0.9}},
        "it charges epsilon 0, but its contract has 50",
    ),
    "a delta of 0 under a promise of .9": (
        {
            "charge": Charge(epsilon=50, delta=0),
            "promise": LAWFUL["promise"] | {"epsilon": 50.0, "delta": 0.9},
        },
        "it charges delta 0, but its contract has 9/10",
    ),
    "private: false charged 0": (NOT_PRIVATE | {"charge": NOTHING}, "does not charge infinity"),
    "private: false charged a promise": (NOT_PRIVATE | {"charge": ONE}, "does not charge infinity"),
    "private: false without delta": (
        NOT_PRIVATE | {"charge": Charge(epsilon="inf", delta=0, rho="inf")},
        "does not charge infinity",
    ),
    "unit user charged 0": (
        {"charge": NOTHING, "promise": OF_USERS, "parameters": PARAMETERS},
        "it charges epsilon 0, but its contract has 1/4",
    ),
    "reports that are charged": (LOCAL | {"charge": ONE}, "reports, which cost nothing"),
    "local: true for records": (
        {"charge": Charge.nothing(), "promise": LAWFUL["promise"] | {"local": True}},
        "it charges epsilon 0, but its contract has 1",
    ),
    "an infinite promise": ({"promise": LAWFUL["promise"] | {"epsilon": "inf"}}, "its contract has inf"),
    "no promise": ({"promise": {}}, "its privacy contract has privacy_unit None"),
    "no epsilon": ({"promise": {"privacy_unit": "row"}}, "its privacy contract has no valid epsilon"),
    "half of a promise": (
        {"promise": {"epsilon": 1.0, "privacy_unit": "row"}},
        "its privacy contract has no valid delta",
    ),
    "a promise of words": ({"promise": LAWFUL["promise"] | {"epsilon": "little"}}, "has no valid epsilon"),
    "a rho of 1e-9 at sigma/sensitivity 4.2": (
        claim("1e-9", "private-oja"),
        "it claims rho 1/1000000000, but its mechanisms cost 0.0283447 or more",
    ),
    "a rho a millionth too small": (claim("0.0283446", "private-oja"), "its mechanisms cost 0.0283447"),
    "one of seven passes": (claim("0.0284", "noisy-power", iterations=7), "cost 0.198413 or more"),
    "a search that is not counted": (
        claim("0.06", "adaptive-power", rounds=2, search_epsilon=0.1),
        "cost 0.0666893 or more",
    ),
    "a rho too small for all that reads a batch": (claim("0.02", "block"), "cost 0.0283447 or more"),
    "a mean that is not counted": (
        claim("0.03", "private-oja", mean=MEAN | {"radius_epsilon": 1.0, "sigma_over_sensitivity": 9.0}),
        "cost 0.5 or more",
    ),
    "a mean of less noise": (
        claim("0.03", "private-oja", mean=MEAN | {"radius_epsilon": 0.1, "sigma_over_sensitivity": 2.0}),
        "cost 0.125 or more",
    ),
    "counts that are not counted": (
        claim("0.0284", "private-oja", diagnostics={"mechanism": "counts", "epsilon": "1/50"}),
        "cost 0.0285447 or more",
    ),
    "one of three batches of a user": (
        claim("0.03", "private-oja")
        | {"promise": LAWFUL["promise"] | {"privacy_unit": "user", "contributions_per_user": 3}},
        "cost 0.085034 or more",
    ),
    "any rho where an answer may tell all": (
        claim("9", "output-perturbation", **OF_GAP),
        "cost infinity or more",
    ),
    "no mechanism": (claim("9", "none"), "its privacy cannot be checked: the mechanism 'none' is not known"),
    "raw records": ({"parameters": MECHANISM | {"mechanism": "raw"}}, "the mechanism 'raw' is not known"),
    "a thousandth of the noise": (
        {"charge": Charge(epsilon=1, delta="2e-6"), "parameters": MECHANISM | NO_NOISE},
        "private-oja has too little noise for epsilon 1, delta 2e-06",
    ),
    "a thousandth of the noise, and its rho": (
        {"charge": Charge(epsilon=1, delta="2e-6", rho=10**6), "parameters": MECHANISM | NO_NOISE},
        "private-oja has too little noise for epsilon 1, delta 2e-06",
    ),
    "no sigma": ({"parameters": {"mechanism": "block"}}, "its privacy cannot be checked: sigma_over_sensi"),
    "a thousand passes at the noise of one": (
        claim("999", "noisy-power", iterations=1000),
        "noisy-power has too little noise for epsilon 1, delta 2e-06",
    ),
    "fifty batches of a user at the noise of one": (
        claim("999", "block")
        | {"promise": LAWFUL["promise"] | {"privacy_unit": "user", "contributions_per_user": 50}},
        "block has too little noise for epsilon 1, delta 2e-06 of 50 batches",
    ),
    "counts of epsilon 50": (
        claim("9999", "block", diagnostics={"mechanism": "counts", "epsilon": "50"}),
        "its counts cost epsilon 50, which leaves nothing of the 1 in its contract",
    ),
    "a quantile of epsilon 50": (
        claim("9999", "block", mean=MEAN | {"radius_epsilon": 50.0}),
        "its mean has too little noise for epsilon 1",
    ),
    "nothing promised and nothing charged": (
        {"charge": NOTHING, "promise": LAWFUL["promise"] | {"epsilon": 0.0, "delta": 0.0}},
        "its privacy cannot be checked: epsilon must be a finite number above 0",
    ),
    "a user in capitals": (
        {"promise": LAWFUL["promise"] | {"privacy_unit": "User"}},
        "its privacy contract has privacy_unit 'User'",
    ),
    "next to no noise": (
        claim("9", "private-oja", sigma_over_sensitivity=1e-300),
        "cost 1e+300 or more",
    ),
    "no ranges": ({"ranges": ()}, "it names no records"),
    "an empty range": ({"ranges": (span(5, 5),)}, "partition 0: no records in the range with start 5, end 5"),
    "a range of markers": (
        {"ranges": (span(5, 9, count=0),)},
        "partition 0: no records in the range with start 5, end 9",
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
@pytest.mark.parametrize(("changes", "reported"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_an_unlawful_reservation_is_void_and_a_problem(
    changes: dict[str, Any], reported: str, rule: str
) -> None:
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
        {},
        {"mechanism": ["block"]},
        {"mechanism": "private-oja"},
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
    promise = LAWFUL["promise"] | {"privacy_unit": "user"}
    assert "contributions_per_user must be" in reserve(Writer("inf", "inf", "zcdp"), promise=promise).reason


def test_a_charge_may_lack_a_rounding_of_its_promise_and_no_more() -> None:
    for lack, accepted in (("1e-13", True), ("1e-11", False)):
        writer = Writer("inf", "inf")
        charge = Charge(epsilon=1 - Charge(epsilon=lack, delta=0).epsilon, delta=1)
        assert (
            reserve(writer, charge=charge, promise=PROMISE | {"epsilon": 1.0, "delta": 2e-6}).accepted
            is accepted
        )


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
