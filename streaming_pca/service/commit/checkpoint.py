"""Writer of ledger, state and releases: take over, start, reserve, commit, publish, abandon.

Every write is a transaction of the stream's only transactional producer. Its id consists of the input
topic's id and the stream's name, so a successor's ``init_transactions`` fences the previous leader, even a
suspended one. Steps are numbered; the tests kill the process before and after each.

After any error in this module the caller drops everything in memory and takes over again, because an
exception from a commit leaves its outcome open.

Why nothing is lost or charged twice: docs/explanation/exactly-once.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import Release, stated_version, unreadable_text
from streaming_pca.privacy.ledger.cap import BudgetExceeded
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Committed,
    OffsetPosition,
    OffsetRange,
    Opened,
    Released,
    Reserved,
    Started,
    decode_entry,
    encode_entry,
)
from streaming_pca.privacy.ledger.protocol import JobStatus
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import secret_salt
from streaming_pca.service.commit.admission import check_admission, check_opened
from streaming_pca.service.commit.batch_result import BatchResult
from streaming_pca.service.commit.ledger_writer import E, LedgerWriter, trace_of
from streaming_pca.service.commit.log_reader import LedgerLog, LogReader, high_watermark
from streaming_pca.service.commit.recovery import OTHERWISE, LedgerMismatch, Recovery, recover
from streaming_pca.service.commit.state_topic import Checkpoint, StateReader, encode_checkpoint, send_state
from streaming_pca.service.commit.user_log import UserLog
from streaming_pca.service.errors import BudgetExceededByAnother, SessionLost, StreamRefused, session_lost_by
from streaming_pca.service.kafka.clients import transactional_producer
from streaming_pca.service.kafka.transaction import Transaction, discard

log = logging.getLogger(__name__)
_FIRST_SPAN = 32  # number of last offsets that are searched first for a release; each publication takes two


@dataclass(frozen=True)
class TakenOver:
    recovery: Recovery
    checkpoint: Checkpoint | None
    reservation: Reserved | None  # the open batch, if any
    standing: JobStatus
    """Status; only an active stream may reserve, but a paused one may finish its open batch."""
    has_begun: bool  # True if the ledger fixes where the stream begins to read


class CheckpointWriter(LedgerWriter):
    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> None:
        super().__init__(kafka, stream.ledger_topic, topic_id, stream.name)
        self._stream = stream
        self._state: StateReader | None = None
        self._checkpoint: Checkpoint | None = None
        self.users: UserLog | None = None
        """Table of users after :meth:`take_over`, if the user is the unit of privacy."""

    def close(self) -> None:
        super().close()
        self._close_states()

    def read_ahead(self) -> None:
        """Read ledger and state before fencing: then little is left to read in :meth:`take_over`."""
        self.log.catch_up()
        # To the end of a commit: a leader may be writing another one.
        self._states.read_committed()

    def take_over(self, *, to_change_status: bool = False) -> TakenOver:
        """Fence the predecessor, read to the final end, cross-check, and decide.

        With ``to_change_status``, to only pause, resume or retire, neither a changed privacy contract nor the
        stream's status causes a refusal.
        """
        with self._step("take_over.1 fence"):
            self._fence()
        with self._step("take_over.2 ends"):
            ledger_end = high_watermark(self._kafka, self._stream.ledger_topic)
            state_end = high_watermark(self._kafka, self._stream.state_topic)
        with self._step("take_over.3 replay"):
            self.log.catch_up(ledger_end)
            self._states.read_to(state_end)
            try:
                self._checkpoint, digest = self._states.last()
            except StreamRefused as error:
                # The end may be within a successor's commit.
                self._refuse(str(error), ledger_end)
        with self._step("take_over.4 cross-check"):
            (check_opened if to_change_status else check_admission)(self._stream, self.log.ledger)
            job = self.log.ledger.job(self._stream.name)
            checkpoint = self._checkpoint
            batch, positions = (checkpoint.batch, checkpoint.positions) if checkpoint else (0, {})
            try:
                recovery = recover(job, batch, digest, positions)
            except LedgerMismatch as error:
                self._refuse(str(error), ledger_end)
            self._check_releases(job.batch, ledger_end)
            self._head = self.log.ledger.job(self._stream.name).head
            self.users = None if to_change_status else self._states.users(checkpoint)
            self._close_states()
        return TakenOver(recovery, checkpoint, job.reservation, job.status, job.has_begun)

    @property
    def _states(self) -> StateReader:
        if self._state is None:
            self._state = StateReader(self._kafka, self._stream, self._topic_id)
        return self._state

    def _close_states(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None  # frees the reader's chunks: a state can be large

    def read_status(self) -> JobStatus:
        """Read the status for a leader that waits while it is paused; resuming fences that leader."""
        self.log.catch_up()
        return self.log.ledger.job(self._stream.name).status

    def _refuse(self, reason: str, ledger_end: int) -> NoReturn:
        """Refuse the stream, or raise SessionLost if the ledger has grown since it was read.

        A leader that was suspended after reading the ledger's end may have been fenced, and its successor
        may have continued. Then ledger and state were read at different moments.
        """
        if high_watermark(self._kafka, self._stream.ledger_topic) != ledger_end:
            raise SessionLost(f"the ledger grew during the take-over ({reason})")
        raise StreamRefused(reason)

    def _check_releases(self, batch: int, ledger_end: int) -> None:
        """Refuse a ledger and state that were both rolled back.

        Batches released since the backup would get a second result.
        """
        topic, patience = self._stream.releases_topic, self._kafka.transaction_timeout_ms / 1000 + 15
        end, last, found = high_watermark(self._kafka, topic), 0, False
        with closing(LogReader(self._kafka, topic)) as reader:
            for messages in reader.backwards(end, patience, _FIRST_SPAN):
                for message in messages:  # one at a time: a release can be large
                    where = f"topic {topic!r}, offset {message.offset}"
                    number = published(where, message.value or b"", self._stream.name)
                    found, last = found or number > 0, max(last, number)
                if found:
                    break
        if last > batch:
            self._refuse(
                f"batch {last} was released, but the ledger ends at batch {batch}: ledger and state are from "
                f"an older backup. Restore the newest one, {OTHERWISE}",
                ledger_end,
            )

    def start(self, positions: Mapping[int, int]) -> None:
        """Record the stream's starting offsets before its first batch.

        They are written to the ledger, because a crash before the first commit leaves no other trace: the
        successor would start elsewhere and skip the records that arrived in between.
        """
        with self._step("start.1 begin"):
            starts = (OffsetPosition(partition=p, offset=o) for p, o in sorted(positions.items()))
            entry = self._next(Started, positions=tuple(starts))
            self._begin()
        with self._step("start.2 STARTED"):
            sent = self._send_entry(entry)
        with self._step("start.3 commit"):
            self._transaction.commit()
        with self._step("start.4 read back"):
            self._expect(sent.value.offset, entry)

    def _next(self, kind: Callable[..., E], **facts: Any) -> E:
        """Return the job's next entry; raise SessionLost if another writer has continued its chain.

        The fence excludes others, but the end of the log may have come from a broker that was cut off.
        """
        self.log.catch_up()
        job = self.log.ledger.job(self._stream.name)
        if job.head != self._head:
            raise SessionLost(
                "another leader (is its worker.group the same?), an import, or a change of the stream's "
                "status has written entries since then"
            )
        return super()._next(kind, **facts)

    def reserve(self, ranges: Sequence[OffsetRange], parameters: dict[str, Any], charge: Charge) -> Reserved:
        """Charge a batch before any estimator sees it.

        Raises BudgetExceeded if a record would exceed the cap, perhaps because another job was faster.
        """
        ledger = self.log.ledger
        with self._step("reserve.1 dry run"):
            batch, promise = ledger.job(self._stream.name).batch + 1, self._stream.privacy_contract
            facts = {"batch": batch, "ranges": tuple(ranges), "promise": promise, "charge": charge}
            # A plan older than another writer's entries must not be checked against them.
            entry = self._next(Reserved, parameters=parameters, **facts)
            if (status := ledger.job(self._stream.name).status) is not JobStatus.ACTIVE:
                raise SessionLost(f"the stream is {status}")
            # Use the entry as every reader will see it: tuples are lists on the wire.
            entry = cast(Reserved, decode_entry(encode_entry(entry)))
            try:
                ledger.check_budget(entry)
            except BudgetExceeded as error:
                remedy = self._remedy(entry)
                raise (error.with_remedy(remedy) if remedy else error) from None
            verdict = ledger.check(entry)
            if not verdict.accepted:
                raise StreamRefused(f"the ledger refuses batch {entry.batch}: {verdict.reason}")
        with self._step("reserve.2 begin"):
            self._begin()
        with self._step("reserve.3 RESERVED"):
            sent = self._send_entry(entry)
        with self._step("reserve.4 commit"):
            self._transaction.commit()
        with self._step("reserve.5 read back"):
            # The log's order decides between competing jobs, so the entry counts only if replay accepts it.
            verdict = self._read_back(sent.value.offset, entry)
            if not verdict.accepted:
                raise BudgetExceededByAnother("; ".join(filter(None, (verdict.reason, self._remedy(entry)))))
        return entry

    def _remedy(self, refused: Reserved) -> str:
        """Name what helps a stream whose first batch the cap refuses; otherwise only new records help."""
        job, name = self.log.ledger.job(refused.job), refused.job
        if job.batch or refused.of_users:
            return ""
        if job.started:
            return (
                f"another stream has spent the first records of stream {name!r} since it began: once "
                "that stream has ended, choose a new stream.name"
            )
        latest = 'stream.start = "latest" starts it after the records that exist now'
        return f"stream {name!r} has not started: {latest}"

    def commit(
        self, reserved: Reserved, positions: dict[int, int], epochs: dict[int, int], result: BatchResult
    ) -> Checkpoint:
        """Write state, COMMITTED and offsets in one transaction, the only way out for ``update``'s result."""
        users = result.users
        checkpoint = Checkpoint(
            topic_id=self._topic_id,
            stream=self._stream.name,
            batch=reserved.batch,
            positions=positions,
            epochs=epochs,
            salt=secret_salt(),
            state=result.data,
            release=result.release,
            users=None if users is None else users.index,
        )
        data, digest = encode_checkpoint(checkpoint)
        with self._step("commit.1 begin"):
            entry = self._next(Committed, batch=reserved.batch, state_digest=digest)
            self._begin()
        with self._step("commit.2 state"):
            parts = {} if users is None else users.parts
            send_state(self._transaction, self._stream.state_topic, data, digest, reserved.batch, parts)
        with self._step("commit.3 COMMITTED"):
            sent = self._send_entry(entry)
        with self._step("commit.4 offsets"):
            # For lag tools, and as a trace outside the ledger; the state has the authoritative positions.
            self._transaction.send_offsets(self._stream.input, positions, self._stream.name, trace_of(entry))
        with self._step("commit.5 commit"):
            self._transaction.commit()
        with self._step("commit.6 read back"):
            self._expect(sent.value.offset, entry)
        self._checkpoint = checkpoint
        if users is not None:
            assert self.users is not None
            self.users.follow(users)
        return checkpoint

    def publish(self) -> bytes:
        """Publish the committed release, with RELEASED, in a separate transaction.

        A consumer that reads uncommitted messages sees aborted transactions too. So the
        release is never sent in the transaction that commits the state.
        """
        checkpoint = self._checkpoint
        assert checkpoint is not None, "nothing was committed"
        release_digest = hashlib.sha256(checkpoint.release).hexdigest()
        with self._step("publish.1 begin"):
            entry = self._next(Released, batch=checkpoint.batch, release_digest=release_digest)
            self._begin()
        with self._step("publish.2 release"):
            headers = [("content-type", b"application/json")]
            topic, key = self._stream.releases_topic, self._stream.name.encode()
            self._transaction.send(topic, checkpoint.release, key, headers)
        with self._step("publish.3 RELEASED"):
            sent = self._send_entry(entry)
        with self._step("publish.4 commit"):
            self._transaction.commit()
        with self._step("publish.5 read back"):
            self._expect(sent.value.offset, entry)
        return checkpoint.release

    def abandon(self, reserved: Reserved, reason: str) -> None:
        """Close a reserved batch without a result; its charge remains."""
        with self._step("abandon.1 begin"):
            entry = self._next(Abandoned, batch=reserved.batch, reason=reason)
            self._begin()
        with self._step("abandon.2 ABANDONED"):
            sent = self._send_entry(entry)
        with self._step("abandon.3 commit"):
            self._transaction.commit()
        with self._step("abandon.4 read back"):
            self._expect(sent.value.offset, entry)


def published(where: str, data: bytes, stream: str) -> int:
    """Return the batch of a stream's release, or 0 for another message, which is logged.

    Raises StreamRefused for a release that cannot be read: it may be of any batch.
    """
    try:
        release = Release.from_bytes(data)
    except ValueError as error:
        if version := stated_version(data):
            raise StreamRefused(f"{where}: {unreadable_text(version, str(error))}") from None
        log.warning("%s: %s: skipped. Which program wrote it?", where, error)
        return 0
    return release.batch if release.stream == stream else 0


def open_ledger(kafka: KafkaSettings, entry: Opened, topic: str) -> Opened:
    """Write OPENED unless the ledger is open; return the valid entry."""
    with closing(LedgerLog(kafka, topic, entry.topic_id)) as log:
        log.catch_up()
        if log.ledger.opened is None:
            producer = transactional_producer(kafka, f"streaming-pca.{entry.topic_id}")
            try:
                with session_lost_by("opening the ledger", "Write"):
                    producer.init_transactions()
                    transaction = Transaction(producer, kafka)
                    transaction.send(topic, encode_entry(entry), None)
                    transaction.commit()
            finally:
                discard(producer)
            log.catch_up()
        assert log.ledger.opened is not None
        return log.ledger.opened
