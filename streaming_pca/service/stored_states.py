"""Reading of a ledger together with the state that each job's last COMMITTED names.

The ledger is read first, to some offset; then of each job the one state that
the last COMMITTED before that offset names. It is there, though a later one may
be too, for the broker's cleaner does not touch what was just written; where a
job is faster than that, both are read again. So what was read is of one point of
the ledger's log, and no worker stops for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from streaming_pca.privacy.entries import MalformedEntry, decode_entry
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.verify_states import StoredState
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.log_reader import LogReader, high_watermark
from streaming_pca.service.state_topic import PartChunks, is_part
from streaming_pca.service.topics import describe
from streaming_pca.service.user_log import MalformedUserLog, check_parts
from streaming_pca.settings import KafkaSettings
from streaming_pca.user_index import UserIndex
from streaming_pca.wire import MalformedCheckpoint, decode_checkpoint

__all__ = [
    "FoundState",
    "LedgerAndStates",
    "existing_topics",
    "find_state",
    "read_messages",
    "read_with_states",
    "replay",
    "summarise",
]

_PATIENCE_SECONDS = 60.0
_ATTEMPTS = 20

T = TypeVar("T")


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
        """Return whether this is the state with that digest, with all that it names."""
        if _digest(self.data) != digest:
            return False
        return self.users is not None or _users_of(self.data) is None


@dataclass(frozen=True)
class LedgerAndStates(Generic[T]):
    """A ledger up to some offset, and what was found of its jobs' states.

    Attributes
    ----------
    entries : tuple of (offset, bytes)
    end : int
        Where the ledger was read to.
    states : dict of job to T
        Of each job with a committed batch.
    """

    entries: tuple[tuple[int, bytes], ...]
    end: int
    states: dict[str, T]


def replay(entries: Iterable[bytes], ledger: Ledger) -> Ledger:
    """Apply entries to a ledger and return it; what is no entry is the verifier's to report."""
    for data in entries:
        try:
            ledger.apply(decode_entry(data))
        except MalformedEntry:
            continue
    return ledger


def read_with_states(
    kafka: KafkaSettings, reader: LogReader, topic_id: str, keep: Callable[[FoundState, str], T]
) -> LedgerAndStates[T]:
    """Read a ledger to its end, and its jobs' states, beside running workers.

    Parameters
    ----------
    kafka : KafkaSettings
    reader : LogReader
        Of the ledger topic, at its start.
    topic_id : str
        Of the input topic's life whose jobs are meant.
    keep : callable
        What to remember of a state that was sought by its digest: it may be large.

    Raises
    ------
    SessionLost
        If the broker fails, or jobs commit faster than their states can be read.
    """
    entries: list[tuple[int, bytes]] = []
    ledger = Ledger(topic_id)
    states: dict[str, T] = {}
    sought: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        new = read_messages(kafka, reader)
        entries += new
        jobs = replay((data for _, data in new), ledger).jobs
        wanted = {name: job.state_digest for name, job in jobs.items() if job.last_committed}
        changed = {name: digest for name, digest in wanted.items() if sought.get(name) != digest}
        topics = existing_topics(kafka, [f"{name}.state" for name in changed])
        behind = []
        for name, digest in changed.items():
            topic = f"{name}.state"
            found = find_state(kafka, topic, digest) if topic in topics else FoundState()
            states[name] = keep(found, digest)
            if not found.is_whole(digest):
                behind.append(name)
        sought = wanted
        # A state that is gone was followed by a later one, with an entry that we can read by now;
        # where there is none it is lost, and the verifier says so.
        if not behind:
            return LedgerAndStates(tuple(entries), reader.position, states)
    raise SessionLost(
        f"streams {', '.join(map(repr, behind))} commit faster than their states can be read: "
        "try again, nearer to the broker"
    )


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


def summarise(data: bytes, users: bytes | None) -> StoredState:
    """Say what a state is, and whether it and its table of users are whole.

    Without its table a stream would let users count anew; with another one, too.
    """
    try:
        checkpoint, digest = decode_checkpoint(data)
    except MalformedCheckpoint as error:
        return StoredState(_digest(data), problem=str(error))
    index, problem = checkpoint.users, ""
    if index is None:
        problem = "" if users is None else "a table of users that its state does not name"
    elif users is None:
        problem = "its table of users is missing"
    else:
        try:
            check_parts(index, index.split(users))
        except ValueError as error:
            problem = str(error)
    return StoredState(digest, checkpoint.topic_id, checkpoint.stream, checkpoint.batch, problem)


def _users_of(data: bytes | None) -> UserIndex | None:
    """Return the index in a state; None where there is none, or the state cannot be read."""
    with suppress(MalformedCheckpoint):
        return None if data is None else decode_checkpoint(data)[0].users
    return None


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def existing_topics(kafka: KafkaSettings, names: Iterable[str]) -> set[str]:
    """Return those of the topics that exist."""
    if not (names := list(names)):
        return set()
    return {t["name"] for t in describe(kafka, names, "the topics") if not t["error_code"]}


def read_messages(kafka: KafkaSettings, reader: LogReader) -> list[tuple[int, bytes]]:
    """Read the committed messages from where the reader stands to the present end."""
    end = high_watermark(kafka, reader.topic)
    return [(m.offset, m.value or b"") for m in reader.read_to(end, _PATIENCE_SECONDS)]
