"""Read-only views of a ledger: `streaming-pca ledger`."""

from __future__ import annotations

import math
from contextlib import closing
from fractions import Fraction
from typing import Any

from kafka import TopicPartition

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.privacy.ledger.cap import approximate, remainder, within_cap
from streaming_pca.privacy.ledger.entries import Charged, LedgerEntry, Opened, Reserved
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.log_reader import LedgerLog, LedgerReplay
from streaming_pca.service.errors import TopicError, session_lost_by
from streaming_pca.service.kafka.clients import offsets_by, reading_consumer
from streaming_pca.service.topics.find import topic_id_of
from streaming_pca.text import offsets_text

_COUNTS = ("charges", "committed", "abandoned", "released", "records_committed", "records_abandoned")


def read_ledger(kafka: KafkaSettings, topic: str) -> LedgerReplay:
    with closing(LedgerLog(kafka, f"{topic}.ledger", topic_id_of(kafka, topic))) as log:
        log.catch_up()
        return log


def describe_ledger(kafka: KafkaSettings, topic: str) -> dict[str, Any]:
    with closing(LedgerLog(kafka, f"{topic}.ledger", topic_id_of(kafka, topic))) as log:
        entries = [
            {"offset": item.offset, "kind": item.entry.kind, "void": item.verdict.reason, **_row(item.entry)}
            for item in log.new_entries()
        ]
    ledger = log.ledger
    opened, everywhere = ledger.opened, ledger.everywhere
    return {
        "topic": topic,
        "topic_id": ledger.topic_id,
        "cap": None if opened is None else opened.cap.model_dump(mode="json"),
        "filter": None if opened is None else opened.filter,
        "everywhere": None
        if opened is None or everywhere == Charge.nothing()
        else describe_charge(everywhere, with_rho=opened.filter == "zcdp"),
        "jobs": {
            name: {
                "batch": job.batch,
                "phase": str(job.phase),
                "standing": str(job.status),
                **{count: getattr(job, count) for count in _COUNTS},
                "promise": job.contract,
            }
            for name, job in sorted(ledger.jobs.items())
        },
        "entries": entries,
    }


def _row(entry: LedgerEntry) -> dict[str, Any]:
    """Describe an entry's fields, without its kind."""
    row = entry.model_dump(mode="json", include={"job", "batch", "positions"})
    if isinstance(entry, Reserved):
        row["records"] = entry.count
    if isinstance(entry, Reserved | Charged):
        row["ranges"] = [r.model_dump() for r in entry.ranges]
        row |= describe_charge(entry.charge, with_rho=entry.charge.rho is not None)
    return row | entry.model_dump(include={"reason"})


def describe_spent(kafka: KafkaSettings, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Describe the charges of one record: total, by job, and remaining under the cap."""
    ledger = read_ledger(kafka, topic).ledger
    if ledger.opened is not None and ledger.spent(partition, offset) == ledger.everywhere:
        # The record is in no range of the ledger, so it may never have existed.
        require_record(kafka, topic, partition, offset)
    place = {"topic": topic, "partition": partition, "offset": offset}
    return place | describe_record(ledger, topic, partition, offset)


def describe_record(ledger: Ledger, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Describe the charges of a record that need not exist: total, by job, and left under the cap."""
    opened = ledger.opened
    if opened is None:
        raise TopicError(f"ledger {topic + '.ledger'!r} is not open")
    spent, zcdp = ledger.spent(partition, offset), opened.filter == "zcdp"
    of_jobs = {name: job.spent(partition, offset) for name, job in sorted(ledger.jobs.items())}
    return {
        "spent": describe_charge(spent, with_rho=zcdp),
        "left": describe_left(spent, opened),
        "cap": opened.cap.model_dump(mode="json"),
        "jobs": {
            name: describe_charge(charge, with_rho=zcdp)
            for name, charge in of_jobs.items()
            if charge != Charge.nothing()
        },
    }


def require_record(kafka: KafkaSettings, topic: str, partition: int, offset: int) -> None:
    """Raise ConfigurationError, naming the existing offsets, unless a record exists or existed."""
    ends = end_offsets(kafka, topic)
    if partition not in ends:
        raise ConfigurationError(
            f"--partition {partition}: topic {topic!r} has partitions 0 to {max(ends, default=0)}"
        )
    if offset >= ends[partition]:
        raise ConfigurationError(f"--offset {offset}: {existing_offsets(topic, partition, ends[partition])}")


def existing_offsets(topic: str, partition: int, end: int) -> str:
    """Name the existing offsets of a partition that ends before ``end``."""
    held = offsets_text(0, end) if end else "no records"
    return f"partition {partition} of topic {topic!r} has {held}"


def end_offsets(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """Return the end of each partition of a topic, including open transactions."""
    with (
        session_lost_by(f"reading the ends of {topic!r}", "Describe"),
        closing(reading_consumer(kafka, committed=False, topics=[topic])) as consumer,
    ):
        tps = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        ends = offsets_by(consumer.end_offsets, tps, kafka.request_timeout_ms)
    return {tp.partition: end for tp, end in ends.items()}


def describe_charge(charge: Charge, *, with_rho: bool) -> dict[str, str | None]:
    """Describe a charge as plain data; a rho of None claims no bound, and never fits the zcdp filter."""
    parts = {"epsilon": charge.epsilon, "delta": charge.delta} | ({"rho": charge.rho} if with_rho else {})
    return {name: None if part is None else approximate(part) for name, part in parts.items()}


def describe_left(spent: Charge, opened: Opened) -> dict[str, str]:
    """Describe a record's remaining budget, in the filter's units."""
    if opened.filter == "zcdp":
        return {"rho": approximate(_rho_left(spent, opened))}
    pairs = {"epsilon": (opened.cap.epsilon, spent.epsilon), "delta": (opened.cap.delta, spent.delta)}
    return {name: approximate(remainder(*pair)) for name, pair in pairs.items()}


def _rho_left(spent: Charge, opened: Opened) -> Fraction | float:
    """Return the largest rho that fits, which is irrational, rounded down to 12 decimals."""

    def fits(rho: Fraction) -> bool:
        more = Charge(epsilon=Fraction(0), delta=Fraction(0), rho=rho)
        return within_cap(spent + more, opened.cap, opened.filter)

    steps = 10**12
    if not fits(Fraction(0)):
        return Fraction(0)
    if not isinstance(opened.cap.epsilon, Fraction) or opened.cap.delta >= 1:
        return math.inf
    low, high = 0, math.floor(opened.cap.epsilon * steps) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(Fraction(middle, steps)) else (low, middle)
    return Fraction(low, steps)
