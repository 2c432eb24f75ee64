"""Traces of ledger entries in the offsets of consumer groups.

A transaction that writes an entry (a batch, PAUSED, RESUMED, RETIRED, CHARGED) also commits offsets of its
job's group on the input topic, with the entry's hash as metadata. So a lost ledger does not take every mark
of its entries with it. A deleted input topic takes its offsets with it, and brokers delete the offsets of
unused groups (`offsets.retention.minutes`, by default a week).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from streaming_pca.admin.broker_status import NO_COORDINATOR
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.commit.ledger_writer import group_of_charges
from streaming_pca.service.kafka.clients import ask_broker, retry

_COORDINATOR_MS = 60_000
"""Longest wait for the coordinator of consumer groups, which a new broker creates on demand."""
_TRACE = re.compile(r"([A-Z]+) ([0-9a-f]{64})")


@dataclass(frozen=True)
class GroupOffset:
    """Offset of a group on a partition of an input topic.

    ``kind`` and ``digest`` are those of the entry that left a trace there, or "". ``is_of_job`` is False for
    a group that may be a consumer's of another program.
    """

    group: str
    partition: int
    offset: int
    kind: str
    digest: str
    is_of_job: bool


def group_offsets(kafka: KafkaSettings, topic: str, jobs: Iterable[str] = ()) -> Iterator[GroupOffset]:
    """Yield all groups' offsets on an input topic, in order; ``jobs`` are known to have used it."""
    charges = group_of_charges(topic, "")
    with ask_broker(kafka, "the broker did not return the offsets of groups") as admin:
        # Either topic reveals a stream; without both, its trace in the offsets of its group does.
        found = (t.rpartition(".") for t in admin.list_topics())
        of_jobs = {name for name, _, role in found if name and role in ("state", "releases")}
        listed = {group["group_id"] for group in admin.list_groups()}
        of_jobs |= {name for name in listed if name.startswith(charges)} | set(jobs)
        names = sorted(of_jobs | listed)
        ask = partial(admin.list_group_offsets, names)
        groups = retry(ask, NO_COORDINATOR, _COORDINATOR_MS) if names else {}
    for name, offsets in sorted(groups.items()):
        for tp, committed in sorted(offsets.items()):
            if tp.topic == topic:
                trace = _TRACE.fullmatch(committed.metadata or "")
                kind, digest = trace.groups() if trace else ("", "")
                yield GroupOffset(name, tp.partition, committed.offset, kind, digest, name in of_jobs)
