"""A copy of a ledger and of the states of all its jobs, their users too: `streaming-pca export`.

The ledger is read first, to some offset; then of each job the one state that
the last COMMITTED before that offset names. It is there, though a later one may
be too, for the broker's cleaner does not touch what was just written; where a
job is faster than that, both are read again. So the copy is of one point of the
ledger's log, and nobody stops for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from streaming_pca.privacy.entries import MalformedEntry, decode_entry
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.verify import verify_log
from streaming_pca.service.copy_file import Copy, check_new, write_copy
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.inspection import topic_id_of
from streaming_pca.service.log_reader import LogReader, high_watermark
from streaming_pca.service.state_topic import PartChunks, is_part
from streaming_pca.service.topics import describe
from streaming_pca.service.user_log import MalformedUserLog, check_parts
from streaming_pca.settings import KafkaSettings
from streaming_pca.user_index import UserIndex
from streaming_pca.wire import Checkpoint, MalformedCheckpoint, decode_checkpoint

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
            continue
        problems += [f"job {name!r}: {problem}" for problem in _problems_of_users(checkpoint, copy, name)]
    if problems:
        raise CopyNotVerified(what, problems)
    return ledger


def _problems_of_users(checkpoint: Checkpoint, copy: Copy, name: str) -> list[str]:
    """Without its table a stream would let users count anew; with another one, too."""
    index, data = checkpoint.users, copy.users.get(name)
    if index is None:
        return [] if data is None else ["a table of users that its state does not name"]
    if data is None:
        return ["its table of users is missing"]
    try:
        check_parts(index, index.split(data))
    except ValueError as error:
        return [str(error)]
    return []


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
        states: dict[str, FoundState] = {}
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
            missing = [
                name
                for name, digest in wanted.items()
                if name not in states or not states[name].is_whole(digest)
            ]
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

    def found(name: str) -> FoundState:
        return states.get(name, FoundState())

    copy = Copy(
        topic=topic,
        topic_id=topic_id,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ledger_end=end,
        entries=tuple(entries),
        states={name: data for name in sorted(wanted) if (data := found(name).data) is not None},
        users={name: users for name in sorted(wanted) if (users := found(name).users) is not None},
    )
    verified_ledger(copy, f"ledger {reader.topic!r}")
    return copy


@dataclass(frozen=True)
class FoundState:
    """A state as a topic holds it.

    Attributes
    ----------
    data : bytes or None
        The state, if the topic holds it whole.
    users : bytes or None
        The table of users that the state names, if it names one and that is whole.
    last : str
        The digest of the last state there; "" if the topic is empty.
    """

    data: bytes | None = None
    users: bytes | None = None
    last: str = ""

    def is_whole(self, digest: str) -> bool:
        """Whether this is the state with that digest, and all that it names."""
        if _digest(self.data) != digest:
            return False
        return self.users is not None or _users_of(self.data) is None


def _find_states(kafka: KafkaSettings, digests: dict[str, str]) -> dict[str, FoundState]:
    topics = existing_topics(kafka, [f"{name}.state" for name in digests])
    return {
        name: find_state(kafka, f"{name}.state", digest)
        for name, digest in digests.items()
        if f"{name}.state" in topics
    }


def find_state(kafka: KafkaSettings, topic: str, digest: str) -> FoundState:
    """Look for the state with that digest."""
    chunks: dict[int, bytes] = {}
    parts, complete = PartChunks(), False
    last = ""
    reader = LogReader(kafka, topic)
    try:
        for message in reader.read_to(high_watermark(kafka, topic), _PATIENCE_SECONDS):
            if is_part(message):
                # What follows the state is of later ones.
                if not complete:
                    parts.take(message)
                continue
            headers = dict(message.headers or ())
            last = headers.get("digest", b"?").decode("ascii", "replace")
            if last == digest:
                chunks[int(message.key)] = message.value or b""
                complete = len(chunks) == int(headers.get("chunks", b"0"))
    except (TypeError, ValueError):
        return FoundState(last="?")  # a key that is no number: another program's message
    finally:
        reader.close()
    data = b"".join(chunks[index] for index in sorted(chunks))
    if _digest(data) != digest:
        return FoundState(last=last)
    index, users = _users_of(data), None
    if index is not None:
        joined = parts.joined(index)
        with suppress(MalformedUserLog):
            check_parts(index, joined)
            users = index.join(joined)
    return FoundState(data, users, last)


def _users_of(data: bytes | None) -> UserIndex | None:
    """The index in a state; None where there is none, or the state cannot be read."""
    with suppress(MalformedCheckpoint):
        return None if data is None else decode_checkpoint(data)[0].users
    return None


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
