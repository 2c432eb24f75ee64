"""Reading a ledger without writing to it: `streaming-pca ledger`."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Any

from kafka.errors import KafkaError

from streaming_pca.privacy.entries import Opened, Reserved
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.parameters import Charge, format_rational
from streaming_pca.privacy.verify import Report, verify_log
from streaming_pca.service.clients import admin_client
from streaming_pca.service.log_reader import LedgerLog, LogReader, high_watermark
from streaming_pca.service.topics import TopicError
from streaming_pca.settings import KafkaSettings

__all__ = ["describe_ledger", "describe_spent", "read_ledger", "topic_id_of", "verify_ledger"]

_PATIENCE_SECONDS = 60.0


def topic_id_of(kafka: KafkaSettings, topic: str) -> str:
    """The id of a topic's present life; TopicError if it or its ledger is missing."""
    admin = admin_client(kafka)
    try:
        found = {t["name"]: t for t in admin.describe_topics([topic, f"{topic}.ledger"])}
    except KafkaError as error:
        raise TopicError(f"the broker would not describe the topics: {error}") from None
    finally:
        admin.close()
    for name in (topic, f"{topic}.ledger"):
        if name not in found or found[name]["error_code"]:
            raise TopicError(f"topic {name!r} is missing")
    return str(found[topic]["topic_id"])


def read_ledger(kafka: KafkaSettings, topic: str) -> Ledger:
    """Replay the ledger of an input topic."""
    log = LedgerLog(kafka, f"{topic}.ledger", topic_id_of(kafka, topic))
    try:
        log.catch_up()
        return log.ledger
    finally:
        log.close()


def describe_ledger(kafka: KafkaSettings, topic: str) -> dict[str, Any]:
    """Cap, jobs, batches and every entry, as plain data."""
    log = LedgerLog(kafka, f"{topic}.ledger", topic_id_of(kafka, topic))
    try:
        replayed = log.catch_up()
        ledger = log.ledger
    finally:
        log.close()
    entries = []
    for item in replayed:
        entry = item.entry
        row: dict[str, Any] = {"offset": item.offset, "kind": entry.kind, "void": item.verdict.reason}
        if not isinstance(entry, Opened):
            row |= {"job": entry.job, "batch": entry.batch}
        if isinstance(entry, Reserved):
            row |= {
                "records": entry.count,
                "ranges": [r.model_dump() for r in entry.ranges],
                **_charge(entry.charge),
            }
        entries.append(row)
    opened = ledger.opened
    return {
        "topic": topic,
        "topic_id": ledger.topic_id,
        "cap": None if opened is None else opened.cap.model_dump(mode="json"),
        "filter": None if opened is None else opened.filter,
        "jobs": {
            name: {
                "batch": job.batch,
                "phase": str(job.phase),
                "committed": job.committed,
                "abandoned": job.abandoned,
                "released": job.released,
                "records_committed": job.records_committed,
                "records_abandoned": job.records_abandoned,
                "promise": job.promise,
            }
            for name, job in sorted(ledger.jobs.items())
        },
        "entries": entries,
    }


def describe_spent(kafka: KafkaSettings, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """What one record has been charged: in all, by job, and what is left under the cap."""
    ledger = read_ledger(kafka, topic)
    if ledger.opened is None:
        raise TopicError(f"ledger {topic + '.ledger'!r} is not open")
    spent, cap = ledger.spent(partition, offset), ledger.opened.cap
    left = Charge(epsilon=_left(cap.epsilon, spent.epsilon), delta=_left(cap.delta, spent.delta))
    jobs = {
        name: _charge(job.spend[partition].at(offset))
        for name, job in sorted(ledger.jobs.items())
        if partition in job.spend and job.spend[partition].at(offset) != Charge.nothing()
    }
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "spent": _charge(spent),
        "left": _charge(left),
        "cap": cap.model_dump(mode="json"),
        "jobs": jobs,
    }


def _left(cap: Fraction | float, spent: Fraction | float) -> Fraction | float:
    return cap - spent if spent < cap else Fraction(0)


def _charge(charge: Charge) -> dict[str, str]:
    return {"epsilon": format_rational(charge.epsilon), "delta": format_rational(charge.delta)}


def verify_ledger(kafka: KafkaSettings, topic: str) -> Report:
    """Run the independent verifier over the ledger and the releases of all its jobs."""
    topic_id = topic_id_of(kafka, topic)
    entries = [(m.offset, m.value or b"") for m in _messages(kafka, f"{topic}.ledger")]
    releases: list[bytes] = []
    for job in sorted(read_ledger(kafka, topic).jobs):
        releases.extend(m.value or b"" for m in _messages(kafka, f"{job}.releases"))
    # A worker may have released more while we read: what only a later ledger knows is not judged.
    later = [m.value or b"" for m in _messages(kafka, f"{topic}.ledger")][len(entries) :]
    since = {json.loads(value).get("release_digest") for value in later}
    known = [value for value in releases if hashlib.sha256(value).hexdigest() not in since]
    return verify_log(entries, known, topic_id=topic_id)


def _messages(kafka: KafkaSettings, topic: str) -> list[Any]:
    end = high_watermark(kafka, topic)
    reader = LogReader(kafka, topic)
    try:
        return list(reader.read_to(end, _PATIENCE_SECONDS))
    finally:
        reader.close()
