"""Whether a copy of a ledger is the newest, as far as anything that is left can tell.

What tells of later entries: the releases topics, and what groups have committed:
how far streams have read, and which entry of the ledger they wrote with it (batches,
PAUSED, RESUMED, RETIRED, CHARGED). All of them can be lost together with the
ledger, and brokers forget a group's offsets (`offsets.retention.minutes`, a week
unless set otherwise); then nothing tells. A reservation leaves no trace before
its batch is committed, and none is needed: its answer was never seen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from kafka.errors import KafkaError

from streaming_pca.privacy.entries import Released, decode_entry
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.release import Release
from streaming_pca.service.backup import committed_values
from streaming_pca.service.clients import BrokerUnreachable, admin_client
from streaming_pca.service.copy_file import Copy
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.ledger_writer import group_of_charges
from streaming_pca.settings import KafkaSettings
from streaming_pca.wire import decode_checkpoint

__all__ = ["check_newest"]

_TRACE = re.compile(r"([A-Z]+) ([0-9a-f]{64})")
_OLD = (
    "the copy is old, and with it records would be charged and answered a second time. Import the newest copy"
)


def check_newest(kafka: KafkaSettings, copy: Copy, ledger: Ledger, streams: Iterable[str] = ()) -> int:
    """Refuse a copy that something later is known of; returns how many of its releases are gone.

    ``streams`` are those configured to read the input: the copy may not know them yet.
    """
    if len(committed_values(kafka, f"{copy.topic}.ledger")) > len(copy.entries):
        return 0  # nothing is later than the ledger itself, if it is the copy's: that is compared
    released = [e for e in map(decode_entry, copy.entries) if isinstance(e, Released)]
    names = sorted({*ledger.jobs, *streams})
    seen = set()
    for name in names:
        known = {e.release_digest for e in released if e.job == name}
        for value in committed_values(kafka, f"{name}.releases"):
            digest = hashlib.sha256(value).hexdigest()
            if digest not in known:
                _refuse_release(f"{name}.releases", value)
            seen.add(digest)
    _check_groups(kafka, copy, ledger)
    return sum(e.topic_id == copy.topic_id and e.release_digest not in seen for e in released)


def _refuse_release(topic: str, value: bytes) -> None:
    try:
        release = Release.from_bytes(value)
    except ValueError as error:
        raise StreamRefused(f"releases topic {topic!r}: {error}: another program writes to it") from None
    raise StreamRefused(
        f"topic {topic!r} has a release of batch {release.batch} that the copy does not know: {_OLD}"
    )


def _check_groups(kafka: KafkaSettings, copy: Copy, ledger: Ledger) -> None:
    """Compare with what the groups of streams and of charges say of the ledger."""
    admin = admin_client(kafka)
    try:
        # Either topic tells of a stream: state topics are lost together with the ledger.
        found = (t.rpartition(".") for t in admin.list_topics())
        others = {name for name, _, role in found if name and role in ("state", "releases")}
        charges = group_of_charges(copy.topic, "")
        named = (group["group_id"] for group in admin.list_groups())
        others |= {name for name in named if name.startswith(charges)}
        groups = admin.list_group_offsets(sorted({*ledger.jobs, *others}))
    except KafkaError as error:
        raise BrokerUnreachable(f"the broker would not tell the offsets of groups: {error}") from None
    finally:
        admin.close()
    known = {hashlib.sha256(entry).hexdigest() for entry in copy.entries}
    for name, offsets in sorted(groups.items()):
        state = copy.states.get(name)
        positions = decode_checkpoint(state)[0].positions if state else {}
        for tp, committed in sorted(offsets.items()):
            if tp.topic != copy.topic:
                continue
            trace = _TRACE.fullmatch(committed.metadata or "")
            if not name.startswith(charges) and committed.offset > positions.get(tp.partition, 0):
                foreign = f". Or did another consumer use {name!r} as its group? Delete its offsets"
                raise StreamRefused(
                    f"stream {name!r} has committed offset {committed.offset} of partition {tp.partition}, "
                    f"the copy ends at {positions.get(tp.partition, 0)}: {_OLD}{'' if trace else foreign}"
                )
            if trace and trace[2] not in known:
                raise StreamRefused(
                    f"job {name.removeprefix(charges)!r} has written {trace[1]} to the ledger, "
                    f"an entry that the copy does not know: {_OLD}"
                )
