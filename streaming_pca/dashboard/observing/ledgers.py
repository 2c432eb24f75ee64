"""Replay of one ledger, and its last entries as rows, in bounded memory."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from streaming_pca.admin.broker_status import describe_charges
from streaming_pca.admin.ledger import describe_charge, describe_record
from streaming_pca.dashboard import models
from streaming_pca.privacy.ledger.entries import Charged, Opened, Reserved
from streaming_pca.privacy.ledger.ledger import JobLedger
from streaming_pca.privacy.parameters import Charge, format_number, parse_rational
from streaming_pca.service.commit.log_reader import LedgerReplay, Replayed, lost_entries
from streaming_pca.service.errors import StreamRefused

RANGES_PER_ROW = 8
"""Ranges of all rows together, for each permitted row: beyond these, the oldest rows are dropped."""
LONGEST_TEXT = 500
_INTERNED = 1000


@dataclass(frozen=True, slots=True)
class _Row:
    offset: int
    kind: str
    job: str | None
    batch: int | None
    records: int | None
    ranges: array[int]
    charge: models.Charge | None
    reason: str | None
    void: str | None

    def answer(self) -> models.LedgerEntryRow:
        facts = {name: getattr(self, name) for name in self.__slots__}
        threes = zip(*[iter(self.ranges)] * 3, strict=True)
        ranges = [models.OffsetRangeRow(partition=p, start=start, end=end) for p, start, end in threes]
        return models.LedgerEntryRow(**facts | {"ranges": ranges})


class LedgerView:
    """Ledger of an input topic, replayed message by message, with at most ``most`` rows.

    ``ids`` has the ids of the topics in ``sources`` when they were read, and is empty before that; the replay
    checks entries against ``topic_id``. ``problem`` is the reason why the ledger cannot be read.
    """

    def __init__(self, input: str, most: int) -> None:
        self.input, self.topic = input, f"{input}.ledger"
        self.sources = (self.input, self.topic)
        self._most = most
        self.problem: str | None = None
        self.restart()

    def restart(self, ids: tuple[str | None, ...] = ()) -> None:
        """Discard all state: the next messages come from another topic."""
        self.ids = ids
        self.topic_id = ids[0] if ids else None
        self.next_offset = 0
        self.failed: str | None = None
        self._replay = LedgerReplay(self.topic, self.topic_id or "")
        self.ledger = self._replay.ledger
        self._rows: deque[_Row] = deque()
        self._ranges = 0
        self._dropped = False
        self._charges: dict[tuple[str | None, ...], models.Charge] = {}
        self._summary: models.LedgerSummary | None = None
        self._budgets: dict[str, models.Budget | None] = {}

    @property
    def trouble(self) -> str | None:
        """Reason why the numbers of this ledger are unknown, or None."""
        return self.problem or self.failed

    def begin(self, ids: tuple[str | None, ...], first: int, end: int) -> None:
        """Start at the first entry."""
        self.restart(ids)
        self.forget_before(first)

    def forget_before(self, first: int) -> None:
        """Record a failure if the ledger has lost its first entries, which makes it useless."""
        if first and self.failed is None:
            self.failed = lost_entries(self.topic, first)

    def add(self, offset: int, value: bytes) -> None:
        """Replay the topic's next message, unless the replay has failed."""
        self.next_offset = offset + 1
        if self.failed is not None:
            return
        self._summary = None
        self._budgets.clear()
        try:
            item = self._replay.apply(offset, value)
        except StreamRefused as error:
            self.failed = str(error)
            return
        except Exception as error:
            # Without this entry, later numbers would be wrong.
            self.failed = f"reading ledger {self.topic!r} failed at offset {offset} ({type(error).__name__})"
            raise
        row = self._row(item)
        self._rows.append(row)
        self._ranges += len(row.ranges) // 3
        most = RANGES_PER_ROW * self._most
        while len(self._rows) > 1 and (len(self._rows) > self._most or self._ranges > most):
            self._ranges -= len(self._rows.popleft().ranges) // 3
            self._dropped = True

    def _row(self, item: Replayed) -> _Row:
        entry, void = item.entry, item.verdict.reason
        ranges: array[int] = array("q")
        charge = None
        if isinstance(entry, Reserved | Charged):
            for r in entry.ranges:
                ranges.extend((r.partition, r.start, r.end))
            charge = self._shared(entry.charge)
        reason = getattr(entry, "reason", None)
        return _Row(
            offset=item.offset,
            kind=sys.intern(entry.kind),
            job=None if isinstance(entry, Opened) else sys.intern(entry.job),
            batch=getattr(entry, "batch", None),
            records=getattr(entry, "count", None),
            ranges=ranges,
            charge=charge,
            reason=None if reason is None else reason[:LONGEST_TEXT],
            void=void[:LONGEST_TEXT] if void else None,
        )

    def _shared(self, charge: Charge) -> models.Charge:
        """Convert a charge to the API's model; equal charges share one object."""
        model = charge_model(describe_charge(charge, with_rho=charge.rho is not None))
        if len(self._charges) >= _INTERNED:
            self._charges.clear()
        return self._charges.setdefault((model.epsilon, model.delta, model.rho), model)

    def summary(self) -> models.LedgerSummary:
        if self._summary is not None and self._summary.problem == self.trouble:
            return self._summary
        opened = self.ledger.opened
        facts: dict[str, Any] = {}
        if opened is not None and self.trouble is None:
            zcdp, everywhere = opened.filter == "zcdp", self.ledger.everywhere
            facts = {
                "cap": charge_model(opened.cap.model_dump(mode="json")),
                "filter": opened.filter,
                "most_charged": charge_model(describe_charge(self.ledger.most_charged(), with_rho=zcdp)),
            }
            if everywhere != Charge.nothing():
                facts["everywhere"] = charge_model(describe_charge(everywhere, with_rho=zcdp))
        self._summary = models.LedgerSummary(
            input=self.input,
            topic_id=self.topic_id,
            problem=self.trouble,
            entries=self._replay.entries,
            jobs=[
                models.JobSummary(
                    name=name,
                    standing=str(job.status),
                    batches=batch_counts(job),
                    charges=job.charges,
                    records_committed=job.records_committed,
                    records_abandoned=job.records_abandoned,
                )
                for name, job in sorted(self.ledger.jobs.items())
            ],
            **facts,
        )
        return self._summary

    def budget(self, name: str) -> models.Budget | None:
        """Return a stream's budget; None while the ledger is not open."""
        if name not in self._budgets:
            self._budgets[name] = _budget(describe_charges(self.ledger, self.ledger.job(name)))
        return self._budgets[name]

    def page(self, limit: int, before: int | None, job: str | None) -> models.EntryPage:
        """Return entries at offsets below ``before``, newest first."""
        older = (row for row in reversed(self._rows) if before is None or row.offset < before)
        chosen = list(islice((row for row in older if job is None or row.job == job), limit + 1))
        items = [row.answer() for row in chosen[:limit]]
        after = items[-1].offset if len(chosen) > limit and items else None
        return models.EntryPage(items=items, next=after, complete=not self._dropped)

    def record(self, partition: int, offset: int) -> models.RecordCharge:
        """Return the charges of one record; TopicError unless the ledger is open."""
        charges = describe_record(self.ledger, self.input, partition, offset)
        return models.RecordCharge(
            input=self.input,
            partition=partition,
            offset=offset,
            **{name: charge_model(charges[name]) for name in ("spent", "left", "cap")},
            jobs={name: charge_model(charge) for name, charge in charges["jobs"].items()},
        )


def charge_model(described: dict[str, str | None]) -> models.Charge:
    """Convert a described charge to decimals of at most 12 digits."""
    return models.Charge(**{name: None if v is None else format_number(v) for name, v in described.items()})


def batch_counts(job: JobLedger) -> models.Batches:
    return models.Batches(committed=job.committed, abandoned=job.abandoned, released=job.released)


def _budget(charges: dict[str, Any]) -> models.Budget | None:
    if charges["cap"] is None:
        return None
    spent, left, cap = charges["charged"]["by_all"], charges["left"], charges["cap"]
    shares = [_part(spent[name], left[name]) for name in left]  # of the quantities that the filter adds up
    return models.Budget(
        by_stream=charge_model(charges["charged"]["by_stream"]),
        by_all=charge_model(spent),
        left=charge_model(left),
        cap=charge_model(cap),
        filter=charges["filter"],
        spent_share=max((share for share in shares if share is not None), default=None),
    )


def _part(spent: str | None, left: str) -> float | None:
    if spent is None or left == "inf":
        return None
    if spent == "inf":
        return 1.0
    used, rest = Fraction(parse_rational(spent)), Fraction(parse_rational(left))
    return min(float(used / (used + rest)), 1.0) if used + rest else None
