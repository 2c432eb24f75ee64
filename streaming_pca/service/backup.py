"""A copy of a ledger and of the states of all its jobs, their users too: `streaming-pca export`.

How both are read beside running workers: :mod:`.stored_states`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.verify import verify_log
from streaming_pca.privacy.verify_states import check_states
from streaming_pca.service.copy_file import Copy, check_new, write_copy
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.inspection import topic_id_of
from streaming_pca.service.log_reader import LogReader
from streaming_pca.service.stored_states import (
    FoundState,
    existing_topics,
    find_state,
    read_messages,
    read_with_states,
    replay,
    summarise,
)
from streaming_pca.settings import KafkaSettings

__all__ = [
    "CopyNotVerified",
    "FoundState",
    "committed_values",
    "existing_topics",
    "export_copy",
    "find_state",
    "replay",
    "take_copy",
    "verified_ledger",
]


class CopyNotVerified(Exception):
    """The copy does not hold together.

    Attributes
    ----------
    problems : tuple of str
        One line each.
    """

    def __init__(self, what: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{what} is not verified: {len(self.problems)} problem(s)")


# -- what is in a copy -----------------------------------------------------


def verified_ledger(copy: Copy, what: str = "the copy") -> Ledger:
    """The ledger of a copy, once the verifier has passed it and each state is its job's last.

    Raises
    ------
    CopyNotVerified
        With everything that is wrong.
    """
    report = verify_log(enumerate(copy.entries), topic_id=copy.topic_id)
    problems = list(report.problems)
    ledger = replay(copy.entries, Ledger(copy.topic_id))
    states = {name: summarise(data, copy.users.get(name)) for name, data in copy.states.items()}
    problems += [
        f"job {name!r}: {wrong}" for name, wrong in check_states(states, ledger.jobs, copy.topic_id).items()
    ]
    if problems:
        raise CopyNotVerified(what, problems)
    return ledger


# -- from the topics -------------------------------------------------------


def export_copy(kafka: KafkaSettings, topic: str, path: Path) -> Copy:
    """Take a copy and write it; see :func:`take_copy` and :func:`write_copy`."""
    check_new(path)
    copy = take_copy(kafka, topic)
    write_copy(copy, path)
    return copy


def take_copy(kafka: KafkaSettings, topic: str) -> Copy:
    """Copy the ledger of an input topic and the states of its jobs, beside running workers.

    Raises
    ------
    TopicError
        If the input topic or its ledger is missing.
    StreamRefused
        If the ledger topic has lost its beginning.
    CopyNotVerified
        If what the topics hold does not hold together.
    SessionLost
        If the broker fails, or jobs commit faster than their states can be read.
    """
    topic_id = topic_id_of(kafka, topic)
    reader = LogReader(kafka, f"{topic}.ledger")
    try:
        if reader.first != 0:
            raise StreamRefused(
                f"ledger topic {reader.topic!r} starts at offset {reader.first}: entries were deleted, "
                "so a copy of it would be worth nothing"
            )
        read = read_with_states(kafka, reader, topic_id, lambda found, _: found)
    finally:
        reader.close()

    copy = Copy(
        topic=topic,
        topic_id=topic_id,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ledger_end=read.end,
        entries=tuple(data for _, data in read.entries),
        states={name: s.data for name, s in sorted(read.states.items()) if s.data is not None},
        users={name: s.users for name, s in sorted(read.states.items()) if s.users is not None},
    )
    verified_ledger(copy, f"ledger {reader.topic!r}")
    return copy


def committed_values(kafka: KafkaSettings, topic: str) -> tuple[bytes, ...]:
    """The committed messages of a topic; none where there is no such topic."""
    if not existing_topics(kafka, [topic]):
        return ()
    reader = LogReader(kafka, topic)
    try:
        return tuple(data for _, data in read_messages(kafka, reader))
    finally:
        reader.close()
