"""Charges for releases made elsewhere: `streaming-pca ledger charge`.

A topic's cap covers the releases of this program. An owner who releases something else about the same records
enters its cost here, so that the cap covers that too. Like every charge, it can never be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streaming_pca.admin.ledger import end_offsets, existing_offsets
from streaming_pca.config.kafka import TOPIC_NAME, ConfigurationError, KafkaSettings
from streaming_pca.privacy.ledger.entries import Charged, OffsetSpan, Opened
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.ledger_writer import LedgerWriter, check_reason, group_of_charges, trace_of
from streaming_pca.service.commit.log_reader import high_watermark
from streaming_pca.service.errors import (
    CREATE,
    BudgetExceededByAnother,
    SessionLost,
    StreamRefused,
    TopicError,
)
from streaming_pca.service.topics.find import require_topics


@dataclass(frozen=True)
class Done:
    """Valid charge at an offset; ``spent`` has the largest total of each part on any record."""

    entry: Charged
    offset: int
    spent: Charge
    opened: Opened


def charge_records(
    kafka: KafkaSettings,
    topic: str,
    job: str,
    charge: Charge,
    ranges: Sequence[OffsetSpan] | None,
    reason: str,
) -> Done:
    """Charge records of an input topic for a release made elsewhere; None: all present and past ones.

    If a record would exceed the cap, nothing is charged; raises BudgetExceeded or BudgetExceededByAnother.
    """
    check_reason(reason)
    if not TOPIC_NAME.fullmatch(job):
        raise ConfigurationError("--job must be 1 to 200 letters, digits, '.', '_' or '-'")
    if not (charge.epsilon or charge.delta or charge.rho):
        raise ConfigurationError("--epsilon and --delta are both 0: nothing would be charged")
    found = require_topics(kafka, [topic, f"{topic}.ledger"], [f"{job}.state"])
    if f"{job}.state" in found:
        # The charge would fence the stream's leader, and a job with charges can never reserve again.
        raise ConfigurationError(f"--job {job} is a stream (topic {job}.state exists): choose another name")
    ends = end_offsets(kafka, topic)
    writer = ChargeWriter(kafka, topic, str(found[topic]["topic_id"]), job)
    try:
        # Before fencing, which would end the session of a stream of that name.
        writer.check(charge)
        return writer.charge(_spans(ranges, ends, topic), charge, reason)
    except (SessionLost, KeyboardInterrupt) as error:
        if writer.committing:
            raise SessionLost(
                f"{str(error) or 'interrupted'}. It is not known whether the charge was written: look for it "
                "in `streaming-pca ledger show` before you charge again"
            ) from None
        if isinstance(error, KeyboardInterrupt):
            raise
        raise SessionLost(f"{error}. Nothing was charged: try again") from None
    finally:
        writer.close()


class ChargeWriter(LedgerWriter):
    """Writer of one job's CHARGED entries."""

    committing = False  # True from just before the commit on, since that may succeed even if it raises

    def __init__(self, kafka: KafkaSettings, topic: str, topic_id: str, job: str) -> None:
        super().__init__(kafka, f"{topic}.ledger", topic_id, job)
        self._topic = topic

    def check(self, charge: Charge) -> None:
        """Refuse a wrong charge before fencing other writers."""
        with self._step("charge.1 read ahead"):
            self.log.catch_up()
        opened, known = self.log.ledger.opened, self.log.ledger.job(self._job)
        if opened is None:
            raise TopicError(f"ledger {self._ledger_topic!r} is not open: set a cap with {CREATE}")
        if opened.filter == "zcdp" and not charge.rho:
            what = "given" if charge.rho is None else "above 0"
            raise ConfigurationError(f"--rho must be {what}: this ledger adds up by zCDP (--filter zcdp)")
        if opened.filter == "basic" and not (charge.epsilon or charge.delta):
            raise ConfigurationError(
                "--epsilon and --delta are both 0: this ledger adds these up (--filter basic), "
                "so nothing would be charged"
            )
        if known.batch:
            raise ConfigurationError(f"--job {self._job} is a stream with batches: choose another name")

    def charge(self, ranges: Sequence[OffsetSpan], charge: Charge, reason: str) -> Done:
        """Write CHARGED, unless a record would exceed the cap."""
        with self._step("charge.2 fence"):
            self._fence()
        with self._step("charge.3 end"):
            end = high_watermark(self._kafka, self._ledger_topic)
        with self._step("charge.4 replay"):
            self.log.catch_up(end)
        ledger = self.log.ledger
        with self._step("charge.5 dry run"):
            entry = self._next(Charged, ranges=tuple(ranges), charge=charge, reason=reason)
            verdict = ledger.check(entry)
            if not verdict.accepted:
                ledger.check_budget(entry)
                raise StreamRefused(f"the ledger refuses the charge: {verdict.reason}")
        with self._step("charge.6 begin"):
            self._begin()
        with self._step("charge.7 CHARGED"):
            sent = self._send_entry(entry)
            ends, group = {r.partition: r.end for r in ranges}, group_of_charges(self._topic, self._job)
            self._transaction.send_offsets(self._topic, ends, group, trace_of(entry))
        with self._step("charge.8 commit"):
            self.committing = True
            self._transaction.commit()
        with self._step("charge.9 read back"):
            verdict = self._read_back(sent.value.offset, entry)
            if not verdict.accepted:
                raise BudgetExceededByAnother(f"nothing was charged: {verdict.reason}")
        assert ledger.opened is not None
        return Done(entry, sent.value.offset, self._most(ranges), ledger.opened)

    def _most(self, ranges: Sequence[OffsetSpan]) -> Charge:
        """Return the largest charges of these records: epsilon, delta and rho separately."""
        ledger, most = self.log.ledger, Charge.nothing()
        for r in ranges:
            for spent in ledger.spend[r.partition].over(r.start, r.end):
                most |= spent
        return most + ledger.everywhere


def _spans(ranges: Sequence[OffsetSpan] | None, ends: dict[int, int], topic: str) -> list[OffsetSpan]:
    """Return the ranges to charge; refuse empty ranges and missing records."""
    if ranges is None:
        everything = [OffsetSpan(partition=p, start=0, end=end) for p, end in sorted(ends.items()) if end]
        if not everything:
            raise ConfigurationError(f"--all: topic {topic!r} has no records")
        return everything
    seen: set[int] = set()
    for r in ranges:
        name = f"--range {r.partition}:{r.start}:{r.end}"
        if r.partition not in ends:
            raise ConfigurationError(f"{name}: topic {topic!r} has partitions 0 to {max(ends)}")
        if r.start >= r.end:
            raise ConfigurationError(f"{name}: the end must be above the start")
        if r.end > ends[r.partition]:
            raise ConfigurationError(
                f"{name}: {existing_offsets(topic, r.partition, ends[r.partition])}, and only existing "
                "records can be charged (END is the first offset after the range)"
            )
        if r.partition in seen:
            raise ConfigurationError(
                f"{name}: partition {r.partition} is given twice: charge it in two commands"
            )
        seen.add(r.partition)
    return sorted(ranges, key=lambda r: r.partition)
