"""A copy of a ledger and of the states of all its jobs: `streaming-pca export`.

The ledger is read first, to some offset; then of each job the one state that
the last COMMITTED before that offset names. It is there, though a later one may
be too, for the broker's cleaner does not touch what was just written; where a
job is faster than that, both are read again. So the copy is of one point of the
ledger's log, and nobody stops for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from streaming_pca.privacy.entries import MalformedEntry, decode_entry
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.verify import verify_log
from streaming_pca.service.copy_file import Copy, check_new, write_copy
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.inspection import topic_id_of
from streaming_pca.service.log_reader import LogReader, high_watermark
from streaming_pca.service.topics import describe
from streaming_pca.settings import KafkaSettings
from streaming_pca.wire import MalformedCheckpoint, decode_checkpoint

__all__ = [
    "CopyNotVerified",
    "committed_values",
    "existing_topics",
    "export_copy",
    "find_state",
    "replay",
    "take_copy",
    "verified_ledger",
]

_PATIENCE_SECONDS = 60.0
_ATTEMPTS = 20


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


def replay(entries: Iterable[bytes], ledger: Ledger) -> Ledger:
    """Apply entries to a ledger and return it; what is no entry is the verifier's to report."""
    for data in entries:
        try:
            ledger.apply(decode_entry(data))
        except MalformedEntry:
            continue
    return ledger


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
    committed = {name for name, job in ledger.jobs.items() if job.last_committed}
    problems += [f"job {name!r}: its state is missing" for name in sorted(committed - set(copy.states))]
    for name, data in sorted(copy.states.items()):
        if name not in committed:
            problems.append(f"job {name!r}: a state, but nothing was committed")
            continue
        job = ledger.jobs[name]
        try:
            checkpoint, digest = decode_checkpoint(data)
        except MalformedCheckpoint as error:
            problems.append(f"job {name!r}: {error}")
            continue
        own = (checkpoint.topic_id, checkpoint.stream, checkpoint.batch)
        if digest != job.state_digest or own != (copy.topic_id, name, job.last_committed):
            problems.append(
                f"job {name!r}: the state is not the one that the ledger committed "
                f"with batch {job.last_committed}"
            )
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
        entries: list[bytes] = []
        ledger = Ledger(topic_id)
        states: dict[str, bytes] = {}
        sought: dict[str, str] = {}
        for _ in range(_ATTEMPTS):
            end = high_watermark(kafka, reader.topic)
            new = [m.value or b"" for m in reader.read_to(end, _PATIENCE_SECONDS)]
            end = reader.position
            entries += new
            jobs = replay(new, ledger).jobs
            wanted = {name: job.state_digest for name, job in jobs.items() if job.last_committed}
            changed = {name: digest for name, digest in wanted.items() if sought.get(name) != digest}
            states |= _find_states(kafka, changed)
            sought = wanted
            missing = [name for name, digest in wanted.items() if _digest(states.get(name)) != digest]
            # A state that is gone was followed by a later one, with an entry that we can read by now;
            # where there is none it is lost, and the verifier says so.
            if not any(name in changed for name in missing):
                break
        else:
            raise SessionLost(
                f"streams {', '.join(map(repr, missing))} commit faster than their states can be read: "
                "export again, nearer to the broker"
            )
    finally:
        reader.close()
    copy = Copy(
        topic=topic,
        topic_id=topic_id,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ledger_end=end,
        entries=tuple(entries),
        states={name: states[name] for name in sorted(wanted) if name in states},
    )
    verified_ledger(copy, f"ledger {reader.topic!r}")
    return copy


def _find_states(kafka: KafkaSettings, digests: dict[str, str]) -> dict[str, bytes]:
    topics = existing_topics(kafka, [f"{name}.state" for name in digests])
    found = {
        name: find_state(kafka, f"{name}.state", digest)[0]
        for name, digest in digests.items()
        if f"{name}.state" in topics
    }
    return {name: data for name, data in found.items() if data is not None}


def find_state(kafka: KafkaSettings, topic: str, digest: str) -> tuple[bytes | None, str]:
    """Look for the state with that digest.

    Returns
    -------
    data : bytes or None
        Its bytes, if the state topic holds it whole.
    last : str
        The digest of the last state there; "" if the topic is empty.
    """
    chunks: dict[int, bytes] = {}
    last = ""
    reader = LogReader(kafka, topic)
    try:
        for message in reader.read_to(high_watermark(kafka, topic), _PATIENCE_SECONDS):
            last = dict(message.headers or ()).get("digest", b"?").decode("ascii", "replace")
            if last == digest:
                chunks[int(message.key)] = message.value or b""
    except (TypeError, ValueError):
        return None, "?"  # a key that is no number: another program's message
    finally:
        reader.close()
    data = b"".join(chunks[index] for index in sorted(chunks))
    return (data if _digest(data) == digest else None), last


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def existing_topics(kafka: KafkaSettings, names: list[str]) -> set[str]:
    """Those of the topics that there are."""
    if not names:
        return set()
    return {t["name"] for t in describe(kafka, names, "the topics") if not t["error_code"]}


def committed_values(kafka: KafkaSettings, topic: str) -> tuple[bytes, ...]:
    """The committed messages of a topic; none where there is no such topic."""
    if not existing_topics(kafka, [topic]):
        return ()
    reader = LogReader(kafka, topic)
    try:
        end = high_watermark(kafka, topic)
        return tuple(m.value or b"" for m in reader.read_to(end, _PATIENCE_SECONDS))
    finally:
        reader.close()
