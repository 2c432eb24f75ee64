"""Lawful ledgers of every estimator, changed in one place: each change that weakens the promise is refused.

A weakness is anything that a reader of releases could use: less noise, more mechanisms or batches under the
same noise, a larger epsilon of a pure mechanism, fewer records to hide among, a charge or a contract below
the amount spent, a history with an entry less, or twice, or elsewhere, and a release that contradicts the
ledger.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest

from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier, pure_epsilon
from streaming_pca.privacy.ledger.entries import LedgerEntry, Opened, Reserved, decode_entry, encode_entry
from streaming_pca.privacy.ledger.verify import StoredState, verify_log
from streaming_pca.privacy.parameters import parse_rational
from tests.estimators.test_charges_are_lawful import PUBLIC_RADIUS, SUITE, reserved, stream_of
from tests.privacy.ledger.test_ledger import Writer

PRIVATE = [name for name, e in ESTIMATORS.items() if e.info.private and not e.info.local]
Parameters = dict[str, Any]

LESS = {f"{of}sigma_over_sensitivity" for of in ("", "projector_", "variance_", "gap_")}
"""Parameters that are weaker when smaller."""
MORE = {f"{of}_epsilon" for of in ("search", "radius", "gap")} | {"centre_rho", "centre_delta", "rounds"}
MORE |= {"iterations", "gap_failure_delta", "epsilon", "contributions_per_user"}
"""Parameters that are weaker when larger; ``epsilon`` belongs to counts."""
NO_NUMBERS: list[Any] = [None, "", "much", "nan", True, [], {}, -1, 0, "inf"]
UNKNOWN: list[Any] = ["none", "raw", "gauss", "Block", "", None, 3, ["block"], {}]


def settings_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield streams of an estimator: options, units, centring, counts, epsilon."""
    for options in [{}, PUBLIC_RADIUS.get(name, {}), *SUITE[name].variants]:
        yield {"options": SUITE[name].options | options}
    counting: dict[str, Any] = {"centering": find(name).centerings[0], "diagnostics_share": 0.02}
    if name == "tadadpo":
        # The printed constant of its start leaves room for other counts, and no rho shows them.
        start = SUITE[name].options["warm_options"] | {"calibration": "analytic"}
        counting |= {"options": SUITE[name].options | {"warm_options": start}}
    yield counting | {"epsilon": 0.7}
    for contributions in (1, 4):
        unit = {"privacy_unit": "user", "contributions_per_user": contributions}
        yield unit | counting | {"delta": 1e-9}
    if name == "output-perturbation":
        yield {"rank": stream_of(name).dim}


def log_of(*entries: LedgerEntry, cap: Any = "inf") -> Writer:
    """Return a log with valid chains of the entries."""
    writer = Writer(cap, cap)
    for entry in entries:
        assert not isinstance(entry, Opened)
        writer.put(entry.model_copy(update={"previous": writer.ledger.job(entry.job).head}))
    return writer


def verdicts(entry: Reserved) -> tuple[str, tuple[str, ...]]:
    """Return the writer's reason for refusing a reservation, and the verifier's problems."""
    writer = log_of(entry)
    found = verify_log([(i, encode_entry(each)) for i, each in enumerate(writer.log)])
    return writer.verdicts[-1].reason, found.problems


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, value) of everything in a table except tables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def put(table: Parameters, path: tuple[str, ...], value: Any) -> Parameters:
    """Return a copy with another value; without the key if it is Ellipsis."""
    changed = copy.deepcopy(table)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def scaled(value: Any, factor: Fraction) -> Any:
    exact = Fraction(parse_rational(value)) * factor
    if isinstance(value, int):
        return max(int(exact), 1)
    return str(exact) if isinstance(value, str) else float(exact)


def weaker_parameters(entry: Reserved) -> Iterator[tuple[str, Parameters]]:
    """Yield (change, parameters) of weaker mechanisms, and of mechanisms with unknown cost."""
    parameters = entry.parameters
    for path, value in leaves(parameters):
        key, text = path[-1], ".".join(path)
        counts = key in LESS | MORE | {"secret_order_of"}
        # Options are the request; the other numbers describe the actual mechanisms.
        if not counts or value is None or path[0] == "options" or text in unused(entry):
            continue
        for factor in (2, 1000):
            weaker = Fraction(factor) if key in MORE else Fraction(1, factor)
            yield f"{text} by {weaker}", put(parameters, path, scaled(value, weaker))
        for no_number in [..., *NO_NUMBERS]:
            # Omitting a part of a mechanism costs nothing: that is another, cheaper mechanism.
            if not (key == "variance_sigma_over_sensitivity" and no_number in (..., None)):
                yield f"{text} = {no_number}", put(parameters, path, no_number)
    for name in UNKNOWN:
        yield f"mechanism = {name}", parameters | {"mechanism": name}
    for part in ("mean", "diagnostics"):
        if part in parameters:
            for wrong in (3, "counts", [], {}, parameters[part] | {"mechanism": "other"}):
                yield f"{part} = {wrong}", parameters | {part: wrong}
    if entry.parameters.get("accounting"):
        yield "accounting = none", parameters | {"accounting": "none"}


def unused(entry: Reserved) -> set[str]:
    """Return the numbers that no draw uses."""
    parameters = entry.parameters
    found = set()
    if "projector_sigma_over_sensitivity" in parameters:
        found |= {"sigma_over_sensitivity"}
        if entry.promise["rank"] == entry.promise["dim"]:
            found |= {"gap_sigma_over_sensitivity", "projector_sigma_over_sensitivity", "gap_failure_delta"}
    return found


def weaker_entries(entry: Reserved) -> Iterator[tuple[str, Reserved]]:
    """Yield (change, entry) with a weaker contract, charge or mechanism."""
    promise, charge = entry.promise, entry.charge
    for text, parameters in weaker_parameters(entry):
        yield text, entry.model_copy(update={"parameters": parameters})
    # A contract that promises less than the noise, with the charge changed or not.
    for name in ("epsilon", "delta"):
        for factor in (Fraction(1, 1000), Fraction(1, 2), Fraction(2), Fraction(1000)):
            changed = promise | {name: scaled(promise[name], factor)}
            for with_charge in (False, True) if factor < 1 else (False,):
                # Half of a delta is within the reserve of printed constants.
                printed = "'paper'" in str(entry.parameters["options"]) or "start" in entry.parameters
                if name == "delta" and factor == Fraction(1, 2) and printed:
                    continue
                update: dict[str, Any] = {"promise": changed}
                if with_charge:
                    update["charge"] = charge.model_copy(update={name: parse_rational(changed[name])})
                text = f"contract {name} by {factor}, charge too: {with_charge}"
                yield text, entry.model_copy(update=update)
        for nothing in (0, 0.0, "0", None, "inf"):
            less = charge.model_copy(update={name: Fraction(0)})
            for cost in (charge, less):
                update = {"promise": promise | {name: nothing}, "charge": cost}
                yield f"contract {name} = {nothing}", entry.model_copy(update=update)
        for factor in (Fraction(1, 2), Fraction(1, 1000), Fraction(0)):
            less = charge.model_copy(update={name: getattr(charge, name) * factor})
            yield f"charge {name} by {factor}", entry.model_copy(update={"charge": less})
    for factor in (Fraction(1, 2), Fraction(1, 1000), Fraction(0)) if charge.rho is not None else ():
        less = charge.model_copy(update={"rho": charge.rho * factor})
        yield f"rho by {factor}", entry.model_copy(update={"charge": less})
    if "contributions_per_user" in promise:
        for factor in (2, 1000):
            more = promise | {"contributions_per_user": promise["contributions_per_user"] * factor}
            yield f"contributions by {factor}", entry.model_copy(update={"promise": more})
        for number in NO_NUMBERS:
            more = promise | {"contributions_per_user": number}
            yield f"contributions = {number}", entry.model_copy(update={"promise": more})
    for unit in ("User", "user ", "record", "", None, 3, ["user"]):
        yield f"unit {unit}", entry.model_copy(update={"promise": promise | {"privacy_unit": unit}})


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(each, how, id=f"{each} {i}")
        for each in PRIVATE
        for i, how in enumerate(settings_of(each))
    ],
)
def test_every_weaker_reservation_is_refused_by_writer_and_verifier(name: str, how: dict[str, Any]) -> None:
    check_weaker(reserved(stream_of(name, **how)))


def of_earlier_version(name: str) -> Reserved:
    """Return a reservation with a mechanism that only earlier versions had."""
    entry = reserved(stream_of(name))
    parameters, charge = dict(entry.parameters), entry.charge
    z = parameters["sigma_over_sensitivity"]
    if name == "adadpo":
        del parameters["centre_rho"], parameters["centre_delta"]
        half = float(entry.promise["epsilon"]) / 2, float(entry.promise["delta"]) / 2
        z = gaussian_multiplier(*half) * (1 + 1e-12)
        parameters |= {"accounting": "paper", "sigma_over_sensitivity": z}
    elif name == "output-perturbation":
        gap = parameters.pop("gap_sigma_over_sensitivity")
        parameters |= {"gap_noise": "laplace", "gap_epsilon": pure_epsilon(gap)}
    else:
        mean = {"mechanism": "mean", "radius_epsilon": pure_epsilon(z), "sigma_over_sensitivity": z}
        parameters |= {"mean": mean}
        rho = Fraction(mean["radius_epsilon"]) ** 2 / 2
        charge = charge.model_copy(update={"rho": max(charge.rho, rho)})
    return again(entry.model_copy(update={"parameters": parameters, "charge": charge}))


@pytest.mark.parametrize("name", ["adadpo", "output-perturbation", "private-oja"])
def test_weaker_reservations_of_earlier_versions_are_refused_too(name: str) -> None:
    """They have the printed accounting, a Laplace gap, and a separate mean."""
    check_weaker(of_earlier_version(name))


def check_weaker(entry: Reserved) -> None:
    assert verdicts(entry) == ("", ())
    mutants = list(weaker_entries(entry))
    assert [text for text, mutant in mutants if not all(verdicts(again(mutant)))] == []
    # 60 of a contract, a charge and a unit, and a dozen for each number of a mechanism.
    assert len(mutants) > 60


def again(entry: Reserved) -> Reserved:
    """Return the entry as readers see it."""
    of_users = entry.promise.get("privacy_unit") == "user"
    found = decode_entry(encode_entry(entry.model_copy(update={"version": 1 + of_users})))
    assert isinstance(found, Reserved)
    return found


@dataclass
class History:
    """Two jobs on one topic, with everything that a verifier reads."""

    writer: Writer
    releases: list[bytes] = field(default_factory=list)
    states: dict[str, StoredState] = field(default_factory=dict)

    def problems(self, log: list[LedgerEntry] | None = None, **other: Any) -> tuple[str, ...]:
        data = [(i, encode_entry(each)) for i, each in enumerate(self.writer.log if log is None else log)]
        releases, states = other.get("releases", self.releases), other.get("states", self.states)
        return verify_log(data, releases, states, topic_id="T").problems


def publish(history: History, entry: Reserved, start: int, **facts: Any) -> None:
    """Append a whole batch of an entry's job; its release matches except for given facts."""
    writer, job = history.writer, entry.job
    batch, count = writer.ledger.job(job).batch + 1, 40 - writer.ledger.job(job).batch
    ranges = [{"partition": 0, "start": start, "end": start + 40, "count": count}]
    more: dict[str, Any] = {"batch": batch, "ranges": ranges, "previous": writer.ledger.job(job).head}
    plain = entry.model_dump(mode="json") | more | {"topic_id": writer.topic_id}
    new = decode_entry(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    assert writer.put(new).accepted
    assert writer.commit(job).accepted
    contract = entry.promise
    logs = {name: contract[name] for name in ("privacy_unit", "dim", "rank", "estimator", "epsilon", "delta")}
    logs |= {name: contract[name] for name in ("contributions_per_user",) if name in contract}
    logs |= {"stream": job, "batch": batch, "records": writer.ledger.job(job).records_committed}
    logs |= {"batch_records": count} | facts
    data = json.dumps({name: value for name, value in logs.items() if value is not None}).encode()
    history.releases.append(data)
    digest = hashlib.sha256(data).hexdigest()
    assert writer.release(job, digest=digest).accepted
    history.states[job] = StoredState(f"state {job} {batch}", writer.topic_id, job, batch, "", digest)


def made(**facts: Any) -> History:
    """Build a job of messages and one of users, three batches each; facts change the last release."""
    history = History(Writer("inf", "inf"))
    one = reserved(stream_of("block")).model_copy(update={"job": "one"})
    of_users = {"privacy_unit": "user", "contributions_per_user": 3}
    other = reserved(stream_of("noisy-power", **of_users)).model_copy(update={"job": "other"})
    for i in range(3):
        publish(history, one, 100 * i)
        publish(history, other, 100 * i, **(facts if i == 2 else {}))
    return history


def weaker_logs(log: list[LedgerEntry]) -> Iterator[tuple[str, list[LedgerEntry]]]:
    """Yield (change, log) with an entry dropped, doubled, moved or from another life."""
    for i, entry in enumerate(log):
        yield f"{i} dropped", log[:i] + log[i + 1 :]
        for j in range(i + 1, len(log)):
            # A second OPENED, or a repeated entry, is off its job's chain.
            if not isinstance(entry, Opened):
                yield f"{i} again at {j}", [*log[:j], entry, *log[j:]]
            if isinstance(entry, Opened) or entry.job == getattr(log[j], "job", None):
                yield f"{i} moved to {j}", [*log[:i], *log[i + 1 : j + 1], entry, *log[j + 1 :]]
        foreign = entry.model_copy(update={"topic_id": "U"})
        yield f"{i} of another life", [*log[:i], foreign, *log[i + 1 :]]


def test_every_history_with_an_entry_less_or_twice_or_elsewhere_is_refused() -> None:
    history = made()
    assert history.problems() == ()
    mutants = dict(weaker_logs(history.writer.log))
    assert [text for text, log in mutants.items() if not history.problems(log)] == []
    assert len(mutants) > 250


WRONG_FACTS: dict[str, list[Any]] = {
    "epsilon": [None, 0.5, 1e-3, 2.0, "much", 0],
    "delta": [None, 5e-7, 1e-9, 2e-6, "x"],
    "private": [False, "yes"],
    "local": [True],
    "privacy_unit": [None, "message", "row", "User"],
    "contributions_per_user": [None, 1, 2, 6, 3.5],
    "records": [None, 0, 1, 79, 10**6, 116.5],
    "batch_records": [0, 1, 39, 76],
    "dim": [None, 1, 10**6],
    "rank": [None, 1, 10**6],
    "estimator": [None, "block", "raw"],
}


@pytest.mark.parametrize("name", WRONG_FACTS)
def test_a_release_says_what_its_ledger_says(name: str) -> None:
    """The digest in the ledger matches the false release, as if a worker wrote both."""
    for value in WRONG_FACTS[name]:
        (problem,) = made(**{name: value}).problems()
        assert f"(stream 'other', batch 3): its {name} is" in problem


def test_a_state_holds_the_release_that_was_published() -> None:
    history = made()
    for job, state in history.states.items():
        of_release = ({"release_digest": "0" * 64}, {"release_digest": ""})
        for changes in (*of_release, {"batch": 2}, {"digest": "other"}):
            problems = history.problems(states=history.states | {job: replace(state, **changes)})
            assert len(problems) == 1, changes


def with_earlier(history: History, earlier: list[LedgerEntry], *releases: bytes) -> tuple[str, ...]:
    return history.problems([*earlier, *history.writer.log], releases=[*releases, *history.releases])


def earlier_life() -> tuple[Writer, bytes]:
    """Return a whole life of the topic, and its release."""
    old = History(Writer("inf", "inf", topic_id="U"))
    entry = reserved(stream_of("block")).model_copy(update={"job": "one", "topic_id": "U"})
    publish(old, entry, 0, created="long ago")
    return old.writer, old.releases[0]


def test_releases_of_an_earlier_life_that_holds_are_counted() -> None:
    history, (old, release) = made(), earlier_life()
    log = [(i, encode_entry(each)) for i, each in enumerate([*old.log, *history.writer.log])]
    report = verify_log(log, [release, *history.releases], history.states)
    assert (report.problems, report.releases, report.other_releases) == ((), 6, 1)


def test_one_forged_entry_of_a_life_that_never_was_verifies_nothing() -> None:
    history, (old, release) = made(), earlier_life()
    for i in range(len(old.log)):
        problems = with_earlier(history, old.log[:i] + old.log[i + 1 :], release)
        assert len(problems) == 1, problems
    (problem,) = with_earlier(history, old.log[-1:], release)
    assert problem.endswith("(stream 'one', batch 1): differs from the release in the ledger")
    # A life that is invalid for another reason does not vouch for any of its releases either.
    (problem,) = with_earlier(history, [*old.log, old.log[1]], release)
    assert "of an earlier life, whose ledger is not valid: offset 4: the hash chain of job 'one'" in problem


def test_no_release_of_an_earlier_life_follows_one_of_this_life() -> None:
    history, (old, release) = made(), earlier_life()
    (problem,) = history.problems([*old.log, *history.writer.log], releases=[*history.releases, release])
    assert problem.endswith("is of an earlier life of the topic, and comes after one of this life")


@pytest.mark.parametrize("first", ["local-gaussian", "block", "oja"])
def test_reports_and_records_are_not_on_one_topic(first: str) -> None:
    names = ["local-gaussian", "block"] if first == "local-gaussian" else [first, "local-gaussian"]
    one, other = (
        reserved(stream_of(name)).model_copy(update={"job": job})
        for name, job in zip(names, "ab", strict=True)
    )
    writer = log_of(one, other)
    assert writer.verdicts[1].accepted
    (problem,) = verify_log([(i, encode_entry(each)) for i, each in enumerate(writer.log)]).problems
    for text in (writer.verdicts[2].reason, problem):
        assert "job 'a' reads the topic's messages as" in text
