"""Topics of streams: creation with a cap, and the checks of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from streaming_pca.admin.ledger import read_ledger
from streaming_pca.admin.traces import group_offsets
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import Settings
from streaming_pca.privacy.ledger.cap import within_cap
from streaming_pca.privacy.ledger.entries import Cap, Opened
from streaming_pca.privacy.parameters import Charge, format_number
from streaming_pca.service.commit.admission import check_admission, check_room
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.commit.recovery import OTHERWISE
from streaming_pca.service.commit.state_topic import check_input
from streaming_pca.service.topics.find import create_topics, existing_topics, find_topics


def create_with_cap(
    streams: Sequence[Settings], cap: Cap, rule: Literal["basic", "zcdp"], partitions: int, replication: int
) -> tuple[list[str], Opened, list[str]]:
    """Create streams' missing topics, and open their ledgers; return names, the last cap and warnings.

    Nothing is created if the cap allows a stream no batch or is not the stream's own, if its state belongs to
    another input topic or is lost, or if the input's ledger is lost.
    """
    together: dict[str, Charge] = {}
    for settings in streams:
        # A cap can never change, so check it before creating topics.
        if settings.stream.cap not in (None, cap):
            raise ConfigurationError(
                f"--cap differs from stream.cap of stream {settings.stream.name!r}: use one cap for both"
            )
        name, charge = settings.stream.input, check_room(settings.stream, cap, rule)
        together[name] = together.get(name, Charge.nothing()) + charge
        _check_past(settings)
    created: list[str] = []
    for settings in streams:
        stream = settings.stream
        created += create_topics(settings.kafka, stream, partitions, replication)
        found = find_topics(settings.kafka, stream)
        entry = Opened(topic_id=found.topic_id, topic=stream.input, cap=cap, filter=rule)
        opened = open_ledger(settings.kafka, entry, stream.ledger_topic)
        if opened.cap != cap or opened.filter != rule:
            raise ConfigurationError(
                f"--cap: ledger {stream.ledger_topic!r} was opened with "
                f"{format_number(opened.cap.epsilon)},{format_number(opened.cap.delta)} "
                f"({opened.filter}), which can never change: use that cap, or another input topic"
            )
    warnings = [
        f"the cap does not let all streams of {name!r} read the same records: the last ones are refused, or "
        'begin after these records with stream.start = "latest"'
        for name, charge in together.items()
        if not within_cap(charge, cap, rule)
    ]
    return created, opened, warnings


def _check_past(settings: Settings) -> None:
    """Refuse a stream with another input or a lost state, or with a lost ledger.

    A lost ledger leaves batches in the state, or traces of any job that has charged these records.
    """
    kafka, stream = settings.kafka, settings.stream
    found = existing_topics(kafka, [stream.input, stream.state_topic, stream.ledger_topic])
    batch = 0
    if stream.state_topic in found:
        topic_id = str(found[stream.input]["topic_id"]) if stream.input in found else ""
        batch = check_input(kafka, stream, topic_id)
    if stream.input not in found:
        return
    ledger = read_ledger(kafka, stream.input).ledger if stream.ledger_topic in found else None
    if ledger is not None and ledger.opened:
        committed = ledger.job(stream.name).committed
        if committed and stream.state_topic not in found:
            raise ConfigurationError(
                f"topic {stream.state_topic!r} is missing, and its ledger has {committed} batches: restore "
                "the newest backup (`streaming-pca import`), or choose a new stream.name"
            )
        return
    lost = f"ledger {stream.ledger_topic!r} is missing or empty, and"
    restore = f"restore the newest backup (`streaming-pca import`), {OTHERWISE}"
    if batch:
        raise ConfigurationError(f"{lost} the state has its batch {batch}: {restore}")
    for each in group_offsets(kafka, stream.input):
        if each.kind:
            raise ConfigurationError(
                f"{lost} had an entry {each.kind} (trace: group {each.group!r}): {restore}"
            )


def check_streams(streams: Sequence[Settings]) -> list[str]:
    """Check streams like a worker; return those begun, which ``start = "latest"`` does not affect."""
    begun = []
    for settings in streams:
        find_topics(settings.kafka, settings.stream)
        ledger = read_ledger(settings.kafka, settings.stream.input).ledger
        check_admission(settings.stream, ledger)
        if settings.stream.start == "latest" and ledger.job(settings.stream.name).has_begun:
            begun.append(settings.stream.name)
    return begun
