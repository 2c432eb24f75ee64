"""Attacks on the ledger and their results: one test an attack.

The attacker writes anything that a job may write, chooses every charge after every
verdict, and owns records; the log's order is Kafka's, and so is fencing
(tests/privacy/ledger/test_ledger_search.py tries their orders).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.clipped_sums import covariance_sum
from streaming_pca.privacy.ledger import protocol
from streaming_pca.privacy.ledger.cap import BudgetExceeded, within_cap
from streaming_pca.privacy.ledger.entries import (
    Cap,
    MalformedEntry,
    Opened,
    Reserved,
    decode_entry,
    encode_entry,
    entry_hash,
)
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.mechanism_costs import least_rho
from streaming_pca.privacy.ledger.protocol import BatchStatus
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.parameters import Charge, parse_rational
from streaming_pca.service.commit.recovery import Action, LedgerMismatch, recover
from streaming_pca.service.commit.state_topic import Checkpoint, encode_checkpoint
from tests.privacy.ledger.test_ledger import OF_USERS, ONE, PROMISE, TINY, Writer, drawn_logs, span
from tests.privacy.ledger.test_verify import messages


@contextmanager
def any_charge() -> Iterator[None]:
    """Let reservations charge any amount, however small: the filter alone must hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "_check_charge", lambda entry, job: "")
        yield


# ------------------------------------------------------------------- exceeding a cap adaptively

shares = st.one_of(
    st.just(Fraction(1)),
    st.sampled_from([Fraction(1, n) for n in (2, 3, 7, 997)]),
    st.fractions(min_value=0, max_value=1),
    st.integers(20, 300).map(lambda n: 1 - Fraction(1, 10**n)),
    st.integers(20, 300).map(lambda n: Fraction(1, 10**n)),
)
beyond = st.integers(1, 600).map(lambda n: Fraction(1, 10**n))


@any_charge()
@settings(deadline=None)
@given(
    st.fractions(min_value=Fraction(1, 1000), max_value=20),
    st.fractions(min_value=0, max_value=1),
    st.lists(st.tuples(shares, shares, beyond, st.booleans()), max_size=8),
)
def test_who_chooses_each_charge_from_what_is_left_never_passes_a_basic_cap(
    epsilon: Fraction, delta: Fraction, steps: list[tuple[Fraction, Fraction, Fraction, bool]]
) -> None:
    log, spent_epsilon, spent_delta = Writer(epsilon, delta), Fraction(0), Fraction(0)
    for number, (of_epsilon, of_delta, more, users) in enumerate(steps):
        left, left_delta = epsilon - spent_epsilon, delta - spent_delta
        promise = OF_USERS if users else PROMISE
        for too_much in (Charge(epsilon=left + more, delta=0), Charge(epsilon=0, delta=left_delta + more)):
            job = f"greedy {number} {too_much.epsilon}"
            assert not log.reserve(job, span(0, 1), charge=too_much, promise=promise).accepted
        cost = Charge(epsilon=left * of_epsilon, delta=left_delta * of_delta)
        assert log.reserve(f"job {number}", span(0, 1), charge=cost, promise=promise).accepted
        spent_epsilon, spent_delta = spent_epsilon + left * of_epsilon, spent_delta + left_delta * of_delta
        assert log.ledger.spent(0, 0) == Charge(epsilon=spent_epsilon, delta=spent_delta, rho=None)
    assert spent_epsilon <= epsilon
    assert spent_delta <= delta
    assert verify_log(messages(log)).ok


def largest_rho(cap: Cap, spent: Fraction, digits: int) -> Fraction:
    """Return the largest rho with these decimals that fits in the rest: an independent solution."""
    with mpmath.workdps(digits + 60):
        e = mpmath.mpf(Fraction(cap.epsilon).numerator) / Fraction(cap.epsilon).denominator
        d = mpmath.mpf(Fraction(cap.delta).numerator) / Fraction(cap.delta).denominator
        log = mpmath.log(1 / d)
        # rho + 2 sqrt(rho L) = e, solved for sqrt(rho) without cancellation
        edge = (e / (mpmath.sqrt(log + e) + mpmath.sqrt(log))) ** 2
        left = edge - mpmath.mpf(spent.numerator) / spent.denominator
        return Fraction(int(mpmath.floor(left * mpmath.mpf(10) ** digits)), 10**digits)


@any_charge()
@settings(deadline=None)
@given(
    st.fractions(min_value=Fraction(1, 1000), max_value=20),
    st.one_of(
        st.fractions(min_value=Fraction(1, 10**12), max_value=Fraction(99, 100)).filter(bool),
        st.integers(1, 300).map(lambda n: Fraction(1, 10**n)),
    ),
    st.lists(st.tuples(shares, st.integers(30, 400), st.booleans()), max_size=6),
)
def test_who_chooses_each_charge_from_what_is_left_never_passes_a_zcdp_cap(
    epsilon: Fraction, delta: Fraction, steps: list[tuple[Fraction, int, bool]]
) -> None:
    cap = Cap(epsilon=epsilon, delta=delta)
    log, spent = Writer(epsilon, delta, "zcdp"), Fraction(0)
    for number, (share, digits, users) in enumerate(steps):
        promise = OF_USERS if users else PROMISE
        most = max(largest_rho(cap, spent, digits), Fraction(0))
        # The edge is irrational: adding one to the last decimal exceeds it.
        above = Charge(epsilon=0, delta=0, rho=most + Fraction(1, 10**digits))
        assert not log.reserve(f"greedy {number}", span(0, 1), charge=above, promise=promise).accepted
        cost = Charge(epsilon=9, delta=1, rho=most * share)
        assert log.reserve(f"job {number}", span(0, 1), charge=cost, promise=promise).accepted
        spent += most * share
    assert log.ledger.spent(0, 0).rho == spent
    with mpmath.workdps(600):
        rho, e, d = (mpmath.mpf(x.numerator) / x.denominator for x in (spent, epsilon, delta))
        assert rho + 2 * mpmath.sqrt(rho * mpmath.log(1 / d)) <= e


@settings(deadline=None)
@given(drawn_logs())
def test_no_log_whatever_it_holds_takes_a_record_or_a_user_above_the_cap(writer: Writer) -> None:
    opened = writer.ledger.opened
    assert opened is not None
    of_records: dict[tuple[int, int], list[Charge]] = {(9, 9): []}
    of_users: dict[str, list[Charge]] = {}
    for entry, verdict in zip(writer.log, writer.verdicts, strict=True):
        if not verdict.accepted or not hasattr(entry, "ranges"):
            continue
        if isinstance(entry, Reserved) and entry.promise.get("privacy_unit") == "user":
            of_users.setdefault(entry.job, []).append(entry.charge)
        else:
            for r in entry.ranges:
                for offset in range(r.start, r.end):
                    of_records.setdefault((r.partition, offset), []).append(entry.charge)
        # A user may have records in each job's costliest batch.
        users = sum((reduce(or_, charges) for charges in of_users.values()), Charge.nothing())
        for charges in of_records.values():
            assert within_cap(sum(charges, users), opened.cap, opened.filter)


@any_charge()
@given(
    st.lists(
        st.tuples(st.sampled_from("uvw"), st.fractions(min_value=0, max_value=1), st.booleans()), max_size=30
    ),
    st.integers(1, 4),
)
def test_a_user_in_the_costliest_batches_of_every_job_pays_what_every_record_is_charged(
    batches: list[tuple[str, Fraction, bool]], contributions: int
) -> None:
    """A batch charged rho costs its user rho/c, for c batches of a job."""
    log = Writer(epsilon="inf", delta=1, rule="zcdp")
    of_job: dict[str, list[Fraction]] = {}
    for number, (job, rho, abandoned) in enumerate(batches):
        charge = Charge(epsilon=0, delta=0, rho=rho)
        log.reserve(job, span(number, number + 1), charge=charge, promise=OF_USERS)
        if abandoned:
            log.abandon(job)  # no user has counted in it, and other batches may replace it
        else:
            log.commit(job)
            log.release(job)
        of_job.setdefault(job, []).append(rho)
    worst = sum(sum(sorted(rhos)[-contributions:]) / contributions for rhos in of_job.values())
    assert log.ledger.everywhere.rho is not None
    assert worst <= log.ledger.everywhere.rho


# ------------------------------------------------------------------------ numbers that break a reader


def test_charges_whose_sum_is_above_the_largest_charge_are_judged_like_others() -> None:
    """A sum may exceed the largest number of one charge; a reader must not fail on it."""
    huge = Charge(epsilon=10**12, delta=TINY)
    log = Writer(epsilon=1)
    assert log.reserve("a", span(0, 1)).accepted
    refused = log.reserve("b", span(0, 1), charge=huge)
    assert "asked epsilon 1000000000000, delta 1e-30; already charged epsilon 1," in refused.reason
    free = Writer(epsilon="inf")
    for job in "abc":
        assert free.reserve(job, span(0, 1), charge=huge).accepted
    assert free.ledger.spent(0, 0).epsilon == 3 * 10**12
    assert free.reserve("u", span(0, 1), charge=huge, promise=OF_USERS).accepted
    assert free.ledger.most_charged().epsilon == 4 * 10**12
    assert verify_log(messages(free)).max_epsilon == 4 * 10**12


@any_charge()
def test_a_sum_of_more_digits_than_python_prints_stops_nobody() -> None:
    """Python refuses to print integers of over 4,300 digits: a refusal that prints the sum would fail."""
    log = Writer(epsilon=1)
    for job, n in zip("abc", (1, 3, 7), strict=True):
        cost = Charge(epsilon=Fraction(1, 10**1800 + n), delta=Fraction(1, 10**1800 + n))
        assert log.reserve(job, span(0, 1), charge=cost).accepted
    spent = log.ledger.spent(0, 0)
    assert spent.epsilon == sum(Fraction(1, 10**1800 + n) for n in (1, 3, 7))
    with pytest.raises(ValueError, match="integer string conversion"):
        str(spent.epsilon)
    reason = log.reserve("d", span(0, 1)).reason
    assert "the cap is epsilon 1" in reason
    assert len(reason) < 300
    report = verify_log(messages(log))
    assert report.ok
    json.dumps(report.to_json(), allow_nan=False)


@any_charge()
def test_coprime_denominators_cost_digits_by_charge_and_not_by_batch() -> None:
    """A job charges a record once: its million batches add no digits, however odd its charge."""
    odd = Charge(epsilon=Fraction(1, 10**300 + 7), delta=0, rho=Fraction(1, 10**300 + 9))
    log = Writer(epsilon=2)
    for batch in range(200):
        log.answer("a", span(batch, batch + 1), charge=odd)
        log.answer("u", span(batch, batch + 1), charge=odd, promise=OF_USERS)
    assert log.ledger.spent(0, 77) == odd + odd
    assert list(log.ledger.spend[0].intervals()) == [(0, 200, odd)]


OWN: dict[str, Any] = {"topic_id": "T", "job": "a", "batch": 1, "previous": "", "parameters": {}}
SOUND = Reserved(**OWN, ranges=(span(0, 5),), promise={"epsilon": 1.0, "delta": 1e-6}, charge=ONE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epsilon":"1"', '"epsilon":"2/2"'),
        ('"epsilon":"1"', '"epsilon":"\\u0661"'),  # a digit, to Fraction
        ('"epsilon":"1"', '"epsilon":"1_0"'),
        ('"epsilon":"1"', '"epsilon":1'),
        ('"epsilon":"1"', '"epsilon":"1e-1000000000"'),
        ('"epsilon":"1"', f'"epsilon":"1/{"9" * 5000}"'),
        ('"epsilon":"1"', '"epsilon":"-inf"'),
        ('"epsilon":"1"', '"epsilon":"nan"'),
        ('"epsilon":"1"', '"epsilon":null'),
        ('"epsilon":1.0', '"epsilon":NaN'),
        ('"epsilon":1.0', '"epsilon":1e999'),
        ('"job":"a"', '"job":"b","job":"a"'),
        ('"start":0', '"start":"0"'),
        ('"start":0', '"start":false'),
        ('"end":5', '"end":1' + "0" * 4000),
        ('"promise":{', '"promise":' + '{"a":' * 3000),
        ('"version":1', '"version":true'),
    ],
)
def test_an_entry_that_two_readers_could_read_differently_is_read_by_none(old: str, new: str) -> None:
    data = encode_entry(SOUND).decode()
    assert old in data
    with pytest.raises(MalformedEntry):
        decode_entry(data.replace(old, new, 1).encode())


# ------------------------------------------------------------------ another life, an older or torn log


def test_a_topic_that_was_created_again_inherits_no_entry_and_gives_none_away() -> None:
    log = Writer(epsilon=1)
    log.answer("a", span(0, 5))
    again = Ledger("U")
    assert [again.apply(entry).accepted for entry in log.log] == [False] * len(log.log)
    assert again.opened is None
    opened = Opened(topic_id="U", topic="in", cap=Cap(epsilon=1, delta=1))
    assert again.apply(opened).accepted
    # A zombie of the old life continues: its chain is right, but its life is over.
    zombie = log.reserved("a", span(5, 9))
    assert not again.apply(zombie).accepted
    assert not again.apply(zombie.model_copy(update={"topic_id": "U"})).accepted
    assert again.job("a").head == entry_hash(opened)


@settings(deadline=None)
@given(drawn_logs(sound=True), st.data())
def test_a_ledger_that_lost_its_end_is_refused_or_lost_no_answer(writer: Writer, data: st.DataObject) -> None:
    """The state knows the last answered batch; a ledger that lacks it is refused."""
    kept = Ledger("T")
    for entry in writer.log[: data.draw(st.integers(1, len(writer.log)))]:
        kept.apply(entry)
    for name, job in writer.ledger.jobs.items():
        accepted = (e for e, verdict in zip(writer.log, writer.verdicts, strict=True) if verdict.accepted)
        answered = [e.batch for e in accepted if e.kind == "COMMITTED" and e.job == name]
        assert job.last_committed == max(answered, default=0)
        left = kept.job(name)
        try:
            found = recover(left, job.last_committed, job.state_digest, {})
        except LedgerMismatch:
            assert left.last_committed < job.last_committed
            continue
        # Later entries never give an answered batch another answer.
        assert left.last_committed == job.last_committed
        if found.action is Action.RESUME:
            assert left.batch not in answered
        if found.action is Action.PUBLISH:
            assert left.phase is BatchStatus.COMMITTED


@settings(deadline=None)
@given(drawn_logs(sound=True), st.data())
def test_a_state_that_lost_its_end_is_refused(writer: Writer, data: st.DataObject) -> None:
    for name, job in writer.ledger.jobs.items():
        if not job.last_committed:
            continue
        older = data.draw(st.integers(0, job.last_committed - 1))
        with pytest.raises(LedgerMismatch):
            recover(job, older, f"state {name} {older}" if older else "", {})


def test_a_leader_that_ignores_that_its_reservation_is_void_is_found_out() -> None:
    log = Writer(epsilon=1)
    log.answer("a", span(0, 5))
    for promise in (PROMISE, OF_USERS):
        late = Writer(epsilon=1)
        for entry in log.log[1:]:
            late.put(entry)
        assert not late.reserve("b", span(0, 5), promise=promise).accepted
        assert not late.commit("b", batch=1).accepted
        assert "is not the job's last batch" in str(verify_log(messages(late)).problems)


def test_an_entry_that_is_written_twice_counts_once() -> None:
    """A producer may send again, or a zombie late: the chain has advanced."""
    for kind in ("charge", "reserve", "commit", "abandon", "release"):
        again = Writer(epsilon=9)
        if kind == "charge":
            again.charge("c", span(0, 5))
        else:
            again.reserve("a", span(0, 5))
        if kind in ("commit", "release"):
            again.commit("a")
        if kind == "abandon":
            again.abandon("a")
        if kind == "release":
            again.release("a")
        before = again.ledger.spent(0, 0)
        assert "hash chain" in again.put(again.log[-1]).reason
        assert again.ledger.spent(0, 0) == before


# ------------------------------------------------------------------------------------- leaks


def test_the_digest_in_the_ledger_tells_nothing_to_whoever_guesses_the_state() -> None:
    guess = Checkpoint("T", "a", 1, {0: 5}, bytes(32), b"state", b"release")
    digests = {encode_checkpoint(replace(guess, salt=bytes([i]) * 32))[1] for i in range(8)}
    assert len(digests) == 8


def test_a_refusal_names_charges_and_offsets_and_nothing_else() -> None:
    log = Writer(epsilon=1)
    log.answer("a", span(0, 5))
    entry = log.reserved("b", span(4, 9)).model_copy(update={"parameters": {"secret": "of the records"}})
    with pytest.raises(BudgetExceeded) as refusal:
        log.ledger.check_budget(entry)
    assert str(refusal.value) == (
        "partition 0, offsets 4 to 8: asked epsilon 1, delta 1e-06; "
        "already charged epsilon 1, delta 1e-06; the cap is epsilon 1, delta 1"
    )


@settings(deadline=None)  # the first example compiles
@given(st.integers(0, 6), st.integers(0, 2**32))
def test_a_record_of_wider_numbers_changes_no_other_records_part(at: int, seed: int) -> None:
    """One float64 payload makes the whole batch float64: the others must not round differently for it."""
    rng = np.random.default_rng(seed)
    narrow = rng.standard_normal((7, 3)).astype(np.float32)
    wide = narrow.astype(np.float64)
    wide[at] = rng.standard_normal(3) / 3
    apart = Preprocessing(dim=3, centering=(0.1, 0.2, 0.3), bounds=(-1.0, 1.1), scale=(0.7, 1.3, 3.1))

    def total(x: Any) -> Any:
        return covariance_sum(ArrayBatch.of_vectors(x), apart, 0.7).total

    assert np.array_equal(total(narrow) - total(narrow[at : at + 1]), total(wide) - total(wide[at : at + 1]))


# ------------------------------------------------------------------------------------ bad parameters


@pytest.mark.parametrize(
    "bad", [math.nan, -1, -math.inf, "nan", "-1e-300", "1/0", None, True, b"1", "", "1e9999"]
)
@pytest.mark.parametrize("name", ["epsilon", "delta"])
@pytest.mark.parametrize("kind", [Charge, Cap])
def test_a_charge_or_cap_that_is_no_number_of_at_least_0_is_refused_by_name(
    kind: Any, name: str, bad: Any
) -> None:
    with pytest.raises(ValueError, match=name):
        kind(**{"epsilon": 1, "delta": 0} | {name: bad})


@pytest.mark.parametrize("text", ["1e9_9_9_9_9_9_9", "1e-9_9_9_9_9_9_9", "1_0", "1 / 3", "\uff11/\uff13"])
def test_a_number_that_versions_of_python_read_differently_or_slowly_is_read_by_none(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="must be a number"):
        parse_rational(text)
    assert time.process_time() - begun < 0.5


def test_a_reservation_cannot_hold_up_readers_by_a_number_of_its_mechanism() -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="sigma_over_sensitivity must be a number"):
        least_rho({}, {"mechanism": "block", "sigma_over_sensitivity": "1e-9_9_9_9_9_9_9"})
    assert time.process_time() - begun < 0.5
