"""A ledger decides on admission before a stream has read a record."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from streaming_pca.admin.ledger import describe_left
from streaming_pca.config.settings import StreamSettings
from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit import admission
from streaming_pca.service.commit.admission import check_admission, check_room
from streaming_pca.service.commit.batch_result import parameters_of
from streaming_pca.service.errors import StreamRefused
from tests.config.refusals import refusal
from tests.privacy.ledger.test_ledger import Writer, span


def a_stream(**changes: Any) -> StreamSettings:
    settings = {"name": "s", "input": "in", "dim": 5, "rank": 2, "epsilon": 1.0, "delta": 1e-6}
    return StreamSettings(**settings | {"options": {"n_records": 300}} | changes)


def plan_of(stream: StreamSettings) -> Plan:
    made = stream.build_estimator()
    return made.plan(made.init(utility_generator(0)))


def admitted(stream: StreamSettings, **more: Any) -> Writer:
    """Return a ledger that has charged one batch of a stream."""
    log = Writer(1, "1e-6")
    reserve(log, stream, **more)
    return log


def reserve(log: Writer, stream: StreamSettings, **more: Any) -> None:
    charge = check_room(stream, Cap(epsilon="inf", delta=1), "basic")
    how = {
        "charge": charge,
        "promise": stream.privacy_contract,
        "parameters": plan_of(stream).parameters,
    } | more
    assert log.reserve(stream.name, span(0, 5), **how).accepted


@pytest.mark.parametrize(
    ("cap", "rule"),
    [(("1/2", "1e-6"), "basic"), (("1", "1e-7"), "basic"), (("0.1", "1e-6"), "zcdp"), (("1", "0"), "zcdp")],
)
def test_a_cap_below_one_batch_is_refused_by_name_with_the_charge(cap: tuple[str, str], rule: Any) -> None:
    line = refusal(StreamRefused, check_admission, a_stream(), Writer(*cap, rule).ledger)
    assert f"({rule} composition), is below what one batch of stream 's' is charged, epsilon 1," in line
    assert ("rho" in line) == (rule == "zcdp")


@pytest.mark.parametrize(
    ("cap", "rule"), [(("1", "1e-6"), "basic"), (("6", "1e-6"), "zcdp"), (("inf", "1"), "basic")]
)
def test_a_cap_that_one_batch_fills_is_enough(cap: tuple[str, str], rule: Any) -> None:
    check_admission(a_stream(), Writer(*cap, rule).ledger)


@pytest.mark.parametrize(
    "how", [{}, {"estimator": "private-oja", "options": {"clip_radius": 1.0}, "centering": "none"}]
)
def test_each_estimator_is_held_against_the_cap(how: dict[str, Any]) -> None:
    stream = a_stream(**how)
    check_admission(stream, Writer(1, "1e-6").ledger)
    line = refusal(StreamRefused, check_admission, stream, Writer("0.999", "1e-6").ledger)
    assert "below what one batch" in line
    assert line.endswith(
        "lower stream.epsilon and stream.delta, or give a higher --cap to a new ledger "
        "(`streaming-pca topics create`)"
    )


UNBOUNDED = {"private": False, "epsilon": math.inf, "delta": math.inf}
OJA: dict[str, Any] = UNBOUNDED | {"estimator": "oja", "centering": "none", "options": {}}


@pytest.mark.parametrize("rule", ["basic", "zcdp"])
@pytest.mark.parametrize("unit", ["message", "user"])
def test_a_stream_that_is_not_private_needs_an_infinite_cap(rule: Any, unit: str) -> None:
    stream = a_stream(**OJA, privacy_unit=unit)
    check_admission(stream, Writer("inf", "inf", rule).ledger)
    for cap in (("1000", "1"), ("1e12", "inf")):
        line = refusal(StreamRefused, check_admission, stream, Writer(*cap, rule).ledger)
        assert "stream 's' is not private (private = false) and charges infinity, which the cap" in line
        assert "give --cap inf,inf to a new ledger (`streaming-pca topics create`)" in line


@pytest.mark.parametrize("rule", ["basic", "zcdp"])
def test_beside_a_stream_that_is_not_private_others_have_room(rule: Any) -> None:
    log = Writer("inf", "inf", rule)
    oja = a_stream(**OJA, name="oja")
    charge = check_room(oja, Cap(epsilon="inf", delta="inf"), rule)
    assert charge == Charge.unbounded()
    for batch in (span(0, 5), span(5, 9)):
        assert log.reserve("oja", batch, charge=charge, promise=oja.privacy_contract).accepted
        assert log.abandon("oja").accepted
    check_admission(oja, log.ledger)
    check_admission(a_stream(privacy_unit="user"), log.ledger)
    left = describe_left(log.ledger.spent(0, 0), log.ledger.opened)
    assert left["rho" if rule == "zcdp" else "epsilon"] == "inf"
    with pytest.raises(StreamRefused, match=r"stream.epsilon is 1.0, but the ledger has 'inf'"):
        check_admission(a_stream(name="oja"), log.ledger)


def test_what_jobs_of_users_left_of_the_cap_is_too_little_for_any_record() -> None:
    log = Writer("3/2", "1e-5")
    reserve(log, a_stream(name="u", privacy_unit="user"))
    with pytest.raises(
        StreamRefused, match="no room for stream 's': every record, read or not: asked epsilon 1"
    ):
        check_admission(a_stream(), log.ledger)
    check_admission(a_stream(epsilon=0.5), log.ledger)


def test_a_stream_of_users_is_held_against_the_most_charged_record() -> None:
    log = Writer("3/2", "1e-5")
    reserve(log, a_stream(name="a"))
    check_admission(a_stream(), log.ledger)  # other records have room
    with pytest.raises(StreamRefused, match="no room for stream 's': partition 0, offsets 0 to 4: asked"):
        check_admission(a_stream(privacy_unit="user"), log.ledger)


def test_a_stream_that_has_batches_is_not_held_against_its_own_charge() -> None:
    stream = a_stream(privacy_unit="user")
    log = admitted(stream)
    check_admission(stream, log.ledger)
    assert log.ledger.everywhere == Charge(epsilon=1, delta="1e-6", rho=log.ledger.everywhere.rho)


LOCAL: dict[str, Any] = {
    "estimator": "local-gaussian",
    "record_kind": "local",
    "centering": "none",
    "options": {},
}


def test_reports_are_charged_nothing_and_the_promise_says_who_keeps_it() -> None:
    stream = a_stream(**LOCAL)
    assert check_room(stream, Cap(epsilon=0, delta=0), "basic") == Charge.nothing()
    assert check_room(stream, Cap(epsilon=0, delta=0), "zcdp") == Charge.nothing()
    check_admission(stream, Writer(0, 0).ledger)
    assert stream.privacy_contract["local"] is True
    assert "local" not in a_stream().privacy_contract
    assert a_stream().local_guarantee is None
    assert stream.local_guarantee == b"1.0,1e-06"


def test_a_topic_has_reports_or_records() -> None:
    """A record taken for a report would be shown without noise, and uncharged."""
    log = Writer("10", "1e-5")
    reserve(log, a_stream(**LOCAL, name="reports"))
    check_admission(a_stream(**LOCAL, name="more"), log.ledger)
    with pytest.raises(
        StreamRefused, match=r"topic 'in' holds reports, as stream 'reports' reads it, and .*own"
    ):
        check_admission(a_stream(), log.ledger)
    log = Writer("10", "1e-5")
    reserve(log, a_stream(name="records"))
    with pytest.raises(StreamRefused, match="topic 'in' holds records, as stream 'records' reads it, and"):
        check_admission(a_stream(**LOCAL, name="more"), log.ledger)
    with pytest.raises(StreamRefused, match=r"stream.record_kind is 'local', but the ledger has 'factor'"):
        check_admission(a_stream(**LOCAL, name="records"), log.ledger)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy_unit": "row"}, 'privacy_unit = "message"'),
        ({"privacy_unit": "user"}, 'privacy_unit = "message"'),
        ({"dtype": "float64"}, 'dtype = "float32"'),
        ({"centering": "auto"}, "records of kind 'local' need centering = \"none\""),
        ({"record_kind": "factor"}, 'local-gaussian cannot read records of kind "factor": it reads "local"'),
        (
            {"estimator": "adaptive"},
            'adaptive cannot read records of kind "local": it reads "factor" or "matr',
        ),
    ],
)
def test_settings_that_no_report_has_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        a_stream(**LOCAL | changes)


OF_USERS: dict[str, Any] = {"privacy_unit": "user", "contributions_per_user": 2}


def test_options_of_a_stream_whose_batches_compose_are_pinned() -> None:
    """A user's batches keep the contract together because they are calibrated alike."""
    stream = a_stream(**OF_USERS)
    log = admitted(stream, parameters=parameters_of(stream, plan_of(stream)))
    check_admission(stream, log.ledger)
    # Options of batch sizes are not pinned.
    check_admission(a_stream(**OF_USERS, options={"n_records": 600}), log.ledger)
    with pytest.raises(StreamRefused, match=r"stream.options is .*set it back, or choose a new stream.name"):
        check_admission(a_stream(**OF_USERS, options={"n_records": 300, "clip_quantile": 0.9}), log.ledger)


INVERSE: dict[str, Any] = {
    "schedule": "inverse",
    "noise_level": None,
    "largest_eigenvalue": None,
    "gap": None,
}
"""Options of every Oja method that earlier versions recorded, at their defaults."""


@pytest.mark.parametrize(
    ("estimator", "options", "removed"),
    [
        ("private-oja", {"clip_radius": 1.0}, INVERSE),
        ("k-dp-ojas", {"clip_radius": 1.0}, INVERSE | {"eigenvalues": None, "n_records": 600}),
        ("k-dp-pca", {}, INVERSE | {"eigenvalues": None, "accounting": "zcdp"}),
        ("adadpo", {}, INVERSE | {"accounting": "zcdp"}),
        ("tadadpo", {"warm_records": 200}, INVERSE | {"accounting": "zcdp"}),
        ("tadadpo", {"warm_records": 200}, {"warm_options": {"accounting": "zcdp"}}),
        ("output-perturbation", {"clip_radius": 1.0}, {"gap_noise": "gaussian"}),
    ],
    ids=["private-oja", "k-dp-ojas", "k-dp-pca", "adadpo", "tadadpo", "warm-start", "output-perturbation"],
)
@pytest.mark.parametrize("contributions", [1, 2])
def test_removed_options_at_their_former_defaults_are_admitted(
    estimator: str, options: dict[str, Any], removed: dict[str, Any], contributions: int
) -> None:
    """Settings refuse these options, and present versions compute as their defaults did."""
    of_users = {"privacy_unit": "user", "contributions_per_user": contributions}
    stream = a_stream(estimator=estimator, options=options, **of_users)
    assert stream.mechanism_options | removed != stream.mechanism_options
    recorded = {"options": stream.mechanism_options | removed}
    log = admitted(stream, parameters=plan_of(stream).parameters | recorded)
    check_admission(stream, log.ledger)
    with pytest.raises(StreamRefused, match=r"^stream.options is .*set it back"):
        check_admission(a_stream(estimator="adaptive", options={}, **of_users), log.ledger)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "spectral"},
        {"noise_level": 1.0},
        {"largest_eigenvalue": 2.0},
        {"gap": 0.0},
        {"eigenvalues": [2.0, 1.0]},
        {"accounting": "paper"},
        {"gap_noise": "laplace"},
        {"warm_options": {"accounting": "paper"}},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_removed_option_of_another_value_needs_a_new_name(changes: dict[str, Any]) -> None:
    """It changed the batches that users are charged for; settings cannot set it back."""
    stream = a_stream(privacy_unit="user")
    recorded = {"options": stream.mechanism_options | INVERSE | changes}
    log = admitted(stream, parameters=plan_of(stream).parameters | recorded)
    ((key, value),) = (changes.get("warm_options") or changes).items()
    assert refusal(StreamRefused, check_admission, stream, log.ledger) == (
        f"the ledger has charged users of stream 's' for batches with option {key} = {value!r}. "
        "This option was removed: choose a new stream.name"
    )


def test_options_of_other_streams_may_change_between_batches() -> None:
    stream = a_stream()
    log = admitted(stream, parameters=parameters_of(stream, plan_of(stream)))
    check_admission(a_stream(options={"clip_quantile": 0.9}), log.ledger)


def without_law(stream: StreamSettings) -> dict[str, Any]:
    """Return a reservation's parameters of an earlier version: without a law, the noise discrete."""
    parameters = plan_of(stream).parameters
    assert parameters.pop("noise") == "rounded-gaussian"
    return parameters | {"options": stream.mechanism_options}


@pytest.mark.parametrize("how", [{}, {"privacy_unit": "row"}, {"privacy_unit": "user"}])
def test_a_stream_of_an_earlier_version_goes_on_where_a_unit_is_in_one_batch(how: dict[str, Any]) -> None:
    """A batch's charge covers it under its noise's law; no unit meets both laws."""
    stream = a_stream(**how)
    check_admission(stream, admitted(stream, parameters=without_law(stream)).ledger)


def test_a_stream_whose_users_would_meet_both_laws_is_refused() -> None:
    stream = a_stream(**OF_USERS, options={"n_records": 300})
    assert stream.contributions_per_user > 1
    log = admitted(stream, parameters=without_law(stream))
    with pytest.raises(StreamRefused, match=r"earlier version, whose noise was discrete.* new stream.name$"):
        check_admission(stream, log.ledger)


def test_a_batch_that_an_earlier_version_reserved_is_another_batch_now() -> None:
    """It is abandoned, its charge stays, and no answer mixes a charge with another law."""
    stream = a_stream()
    parameters = parameters_of(stream, plan_of(stream))
    assert parameters != without_law(stream) | {"seed": stream.seed}
    assert parameters["noise"] == "rounded-gaussian"


def test_the_default_format_is_part_of_the_contract_where_it_is_another() -> None:
    """Workers that read the same messages differently would answer for different records."""
    assert "content_type" not in a_stream().privacy_contract
    in_json = a_stream(format="json")
    assert in_json.privacy_contract["content_type"] == "application/json"
    for here, there in ((a_stream(), in_json), (in_json, a_stream())):
        log = admitted(there)
        check_admission(there, log.ledger)
        assert refusal(StreamRefused, check_admission, here, log.ledger) == (
            f"stream.format is {here.format!r}, but the ledger has {there.format!r} "
            "for stream 's': set it back, or choose a new stream.name"
        )
    with pytest.raises(ValueError, match=r"reports in octets: set format = \"octets"):
        a_stream(**LOCAL, format="json")
    with pytest.raises(ValueError, match="'octets', 'npy', 'json'"):
        a_stream(format="application/json")


@pytest.mark.parametrize("centering", [{}, {"centering": "none"}], ids=["default", "none"])
@pytest.mark.parametrize("recorded", ["auto", "private-mean"])
def test_a_stream_whose_mean_is_no_longer_estimated_needs_a_new_name(
    recorded: str, centering: dict[str, Any]
) -> None:
    """Settings cannot return to a centring that the estimator does not support."""
    stream = a_stream(estimator="private-oja", options={"clip_radius": 1.0}, **centering)
    log = admitted(stream, promise=stream.privacy_contract | {"centering": recorded})
    assert refusal(StreamRefused, check_admission, stream, log.ledger) == (
        f"an earlier version estimated the mean for stream 's' (stream.centering = {recorded!r}), which "
        "private-oja does not support: choose a new stream.name"
    )


FIELDS: dict[str, Any] = {"features": [{"name": "x", "size": 5}], "privacy_unit": "user"}


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"privacy_unit": "user", "format": "json"}, FIELDS, "stream.features is None"),
        (FIELDS, {"privacy_unit": "user", "format": "json"}, "stream.features is not what the ledger has"),
        (FIELDS, FIELDS | {"user_field": "user.id"}, "stream.user_field is None"),
        (FIELDS | {"user_field": "user.id"}, FIELDS, r"stream\.user_field is \['user', 'id'\]"),
        (FIELDS, FIELDS | {"features": [{"name": "x", "size": 5, "missing": 0}]}, "stream.features is not"),
    ],
)
def test_a_map_can_neither_come_nor_go_nor_change(here: Any, there: Any, words: str) -> None:
    """Another map of the same records would be another stream."""
    before, after = a_stream(**there), a_stream(**here)
    log = admitted(before)
    check_admission(before, log.ledger)
    with pytest.raises(StreamRefused, match=words):
        check_admission(after, log.ledger)


def test_equal_maps_that_are_written_differently_have_one_contract() -> None:
    ways: list[dict[str, Any]] = [
        {"name": "a", "path": "u.x", "bounds": [0, 1]},
        {"name": "a", "path": ["u", "x"], "bounds": (0.0, 1.0), "transform": "none"},
        {"name": "a", "path": "u.x", "bounds": (-0.0, 1), "missing": None, "parse": False},
    ]
    more = {"name": "b", "size": 4}
    contracts = [a_stream(features=[way, more]).privacy_contract for way in ways]
    assert contracts[0] == contracts[1] == contracts[2]
    assert a_stream(features=[more, ways[0]]).privacy_contract["features"] != contracts[0]["features"]


def test_arrow_as_the_format_of_all_messages_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each record would be null and charged, shown only by an info line."""
    log, arrow = Writer("1", "1e-6"), a_stream(format="arrow")
    monkeypatch.setattr(admission, "find_pyarrow", lambda: None)
    check_admission(a_stream(), log.ledger)
    with pytest.raises(StreamRefused, match=r"needs pyarrow: pip install '\.\[arrow\]' in the checkout"):
        check_admission(arrow, log.ledger)
    monkeypatch.setattr(admission, "find_pyarrow", lambda: object())
    check_admission(arrow, log.ledger)
