"""The one place that writes: take over, reserve, commit, publish, abandon.

Every write is a transaction of the stream's one transactional producer. Its
id is made of the input topic's id and the stream's name, so a successor's
``init_transactions`` fences whoever led before, wherever it sleeps. Steps are
numbered; a crash before or after any of them is tested by kill -9.

After any error in here the caller drops everything in memory and takes over
anew: an exception of a commit does not tell whether it happened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

from streaming_pca.privacy.entries import (
    Abandoned,
    Committed,
    OffsetRange,
    Opened,
    Released,
    Reserved,
    decode_entry,
    encode_entry,
)
from streaming_pca.privacy.parameters import Charge, format_rational
from streaming_pca.privacy.randomness import secret_salt
from streaming_pca.service.clients import transactional_producer
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.log_reader import LedgerLog, LogReader, high_watermark
from streaming_pca.service.recovery import LedgerMismatch, Recovery, recover
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import (
    Checkpoint,
    MalformedCheckpoint,
    Release,
    decode_checkpoint,
    encode_checkpoint,
)

__all__ = ["BudgetExceededByAnother", "CheckpointWriter", "TakenOver", "open_ledger"]

_CHUNK_BYTES = 512 * 1024
_RELEASES_TAIL = 32
"""Offsets from the end in which the last release is looked for; a publication takes two."""


@dataclass(frozen=True)
class TakenOver:
    """What a take-over found."""

    recovery: Recovery
    checkpoint: Checkpoint | None
    reservation: Reserved | None
    """The open batch, if there is one."""


class CheckpointWriter:
    """The leader's hold on ledger, state and releases.

    Parameters
    ----------
    kafka, stream : settings
    topic_id : str
        The input topic's id.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> None:
        self._kafka, self._stream, self._topic_id = kafka, stream, topic_id
        self._producer: KafkaProducer | None = None
        self._log: LedgerLog | None = None
        self._checkpoint: Checkpoint | None = None
        self.step = ""
        """What is being done, for whoever finds this hanging."""

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A numbered step; the seam where the crash tests kill the process."""
        self.step = name
        try:
            yield
        except KafkaError as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise SessionLost(f"{name}: {type(error).__name__} {reason}") from error

    @property
    def _transactions(self) -> KafkaProducer:
        assert self._producer is not None, "take_over first"
        return self._producer

    @property
    def log(self) -> LedgerLog:
        """The ledger's replay."""
        assert self._log is not None, "take_over first"
        return self._log

    def close(self) -> None:
        """Release producer and consumer."""
        if self._producer is not None:
            self._producer.close(timeout=2)
        if self._log is not None:
            self._log.close()

    # -- take over ---------------------------------------------------------

    def take_over(self) -> TakenOver:
        """Fence the predecessor, read to an end that it cannot move, cross-check, decide."""
        with self._step("take_over.1 fence"):
            self._producer = transactional_producer(
                self._kafka, f"streaming-pca.{self._topic_id}.{self._stream.name}"
            )
            self._producer.init_transactions()
        with self._step("take_over.2 ends"):
            ledger_end = high_watermark(self._kafka, self._stream.ledger_topic)
            state_end = high_watermark(self._kafka, self._stream.state_topic)
        with self._step("take_over.3 replay"):
            self._log = LedgerLog(self._kafka, self._stream.ledger_topic, self._topic_id)
            self._log.catch_up(ledger_end)
            self._checkpoint, digest = self._read_state(state_end)
        with self._step("take_over.4 cross-check"):
            self._check_opened()
            self._check_promise()
            job = self._log.ledger.job(self._stream.name)
            checkpoint = self._checkpoint
            try:
                recovery = recover(
                    job,
                    checkpoint.batch if checkpoint else 0,
                    digest,
                    checkpoint.positions if checkpoint else {},
                )
            except LedgerMismatch as error:
                raise StreamRefused(str(error)) from None
            self._check_releases(job.batch)
        return TakenOver(recovery, checkpoint, job.reservation)

    def _read_state(self, end: int) -> tuple[Checkpoint | None, str]:
        """The last state whose chunks are all there."""
        reader = LogReader(self._kafka, self._stream.state_topic)
        chunks: dict[int, Any] = {}
        try:
            for message in reader.read_to(end, self._kafka.transaction_timeout_ms / 1000 + 60):
                chunks[int(message.key)] = message
        finally:
            reader.close()
        if not chunks:
            return None, ""
        # The latest commit's chunk 0 is the latest chunk 0; what compaction or a
        # shorter commit left at higher keys carries another digest.
        try:
            first = dict(chunks[0].headers)
            parts = []
            for index in range(int(first["chunks"])):
                headers = dict(chunks[index].headers)
                if headers["digest"] != first["digest"]:
                    raise MalformedCheckpoint(f"chunk {index} belongs to another commit")
                parts.append(chunks[index].value)
            data = b"".join(parts)
            if hashlib.sha256(data).hexdigest() != first["digest"].decode():
                raise MalformedCheckpoint("digest does not match")
            checkpoint, digest = decode_checkpoint(data)
        except (KeyError, ValueError) as error:
            raise StreamRefused(
                f"state topic {self._stream.state_topic!r} cannot be read: {error}. Restore it, or start "
                "the stream under a new name"
            ) from None
        if checkpoint.topic_id != self._topic_id:
            raise StreamRefused(
                f"topic {self._stream.input!r} was deleted and created again since the last batch: "
                "its records are other data. Start under a new stream.name"
            )
        return checkpoint, digest

    def _check_opened(self) -> None:
        opened = self.log.ledger.opened
        if opened is None:
            raise StreamRefused(
                f"ledger {self._stream.ledger_topic!r} is not open: set a cap with "
                "`streaming-pca topics create --config FILE --cap EPSILON,DELTA`"
            )
        cap = self._stream.cap
        if cap is not None and cap != opened.cap:
            raise StreamRefused(
                f"stream.cap is ({format_rational(cap.epsilon)}, {format_rational(cap.delta)}), "
                f"the ledger was opened with ({format_rational(opened.cap.epsilon)}, "
                f"{format_rational(opened.cap.delta)}): set stream.cap to that, or remove it"
            )

    def _check_promise(self) -> None:
        promised = self.log.ledger.job(self._stream.name).promise
        if promised is None:
            return
        for key, value in self._stream.promise.items():
            if promised.get(key) != value:
                raise StreamRefused(
                    f"stream.{key} is {_short(value)}, but the ledger has promised "
                    f"{_short(promised.get(key))} for stream {self._stream.name!r}: "
                    "set it back, or choose a new stream.name"
                )

    def _check_releases(self, batch: int) -> None:
        """Refuse a ledger and a state that were both rolled back: their batches would be answered again."""
        topic = self._stream.releases_topic
        end = high_watermark(self._kafka, topic)
        reader = LogReader(self._kafka, topic, start=end - _RELEASES_TAIL)
        try:
            for message in reader.read_to(end, self._kafka.transaction_timeout_ms / 1000 + 15):
                release = Release.from_bytes(message.value or b"")
                if release.stream == self._stream.name and release.batch > batch:
                    raise StreamRefused(
                        f"batch {release.batch} was released, but the ledger ends at batch {batch}: "
                        "ledger and state are an older copy. Start the stream under a new name"
                    )
        except ValueError as error:
            raise StreamRefused(f"releases topic {topic!r}: {error}: another program writes to it") from None
        finally:
            reader.close()

    # -- reserve -----------------------------------------------------------

    def reserve(self, ranges: Sequence[OffsetRange], parameters: dict[str, Any], charge: Charge) -> Reserved:
        """Charge a batch, before any estimator sees it.

        Raises
        ------
        BudgetExceeded
            If a record would pass the cap, now or because another job was faster.
        """
        ledger = self.log.ledger
        with self._step("reserve.1 dry run"):
            self.log.catch_up()
            entry = Reserved(
                topic_id=self._topic_id,
                job=self._stream.name,
                batch=ledger.job(self._stream.name).batch + 1,
                previous=ledger.head(self._stream.name),
                ranges=tuple(ranges),
                promise=self._stream.promise,
                parameters=parameters,
                charge=charge,
            )
            # As every reader will see it: tuples are lists on the wire.
            entry = cast(Reserved, decode_entry(encode_entry(entry)))
            ledger.check_budget(entry)
            verdict = ledger.judge(entry)
            if not verdict.accepted:
                raise StreamRefused(f"the ledger refuses batch {entry.batch}: {verdict.reason}")
        with self._step("reserve.2 begin"):
            self._transactions.begin_transaction()
        with self._step("reserve.3 RESERVED"):
            sent = self._send(self._stream.ledger_topic, encode_entry(entry))
        with self._step("reserve.4 commit"):
            self._transactions.commit_transaction()
            offset = self._offset(sent)
        with self._step("reserve.5 read back"):
            # The log's order decides between jobs: ours counts only if replay says so.
            own = next((r for r in self.log.catch_up(offset + 1) if r.offset == offset), None)
            if own is None or own.entry != entry:
                raise SessionLost(
                    "reserve.5 read back: the reservation is not in the log where it was written"
                )
            if not own.verdict.accepted:
                raise BudgetExceededByAnother(own.verdict.reason)
        return entry

    # -- commit ------------------------------------------------------------

    def commit(
        self, reserved: Reserved, positions: dict[int, int], state: bytes, release: bytes
    ) -> Checkpoint:
        """State, COMMITTED and offsets, all or nothing. The only way out for what ``update`` computed."""
        checkpoint = Checkpoint(
            topic_id=self._topic_id,
            stream=self._stream.name,
            batch=reserved.batch,
            positions=positions,
            salt=secret_salt(),
            state=state,
            release=release,
        )
        data, digest = encode_checkpoint(checkpoint)
        entry = Committed(
            topic_id=self._topic_id,
            job=self._stream.name,
            batch=reserved.batch,
            previous=self.log.ledger.head(self._stream.name),
            state_digest=digest,
        )
        with self._step("commit.1 begin"):
            self._transactions.begin_transaction()
        with self._step("commit.2 state"):
            self._send_state(data, digest, reserved.batch)
        with self._step("commit.3 COMMITTED"):
            sent = self._send(self._stream.ledger_topic, encode_entry(entry))
        with self._step("commit.4 offsets"):
            # For lag tools only; positions live in the state.
            self._transactions.send_offsets_to_transaction(
                {
                    TopicPartition(self._stream.input, p): OffsetAndMetadata(offset, "", -1)
                    for p, offset in positions.items()
                },
                self._stream.name,
            )
        with self._step("commit.5 commit"):
            self._transactions.commit_transaction()
        with self._step("commit.6 read back"):
            self._expect(self._offset(sent))
        self._checkpoint = checkpoint
        return checkpoint

    def _send_state(self, data: bytes, digest: str, batch: int) -> None:
        count = math.ceil(len(data) / _CHUNK_BYTES)
        for index in range(count):
            self._transactions.send(
                self._stream.state_topic,
                value=data[index * _CHUNK_BYTES : (index + 1) * _CHUNK_BYTES],
                key=str(index).encode(),
                partition=0,
                headers=[
                    ("batch", str(batch).encode()),
                    ("chunks", str(count).encode()),
                    ("digest", digest.encode()),
                ],
            )

    # -- publish -----------------------------------------------------------

    def publish(self) -> bytes:
        """Copy the committed release to its topic, with RELEASED, in a transaction of its own.

        A consumer that reads uncommitted sees aborted transactions: so the
        release never rides in the one that commits the state.
        """
        checkpoint = self._checkpoint
        assert checkpoint is not None, "nothing was committed"
        entry = Released(
            topic_id=self._topic_id,
            job=self._stream.name,
            batch=checkpoint.batch,
            previous=self.log.ledger.head(self._stream.name),
            release_digest=hashlib.sha256(checkpoint.release).hexdigest(),
        )
        with self._step("publish.1 begin"):
            self._transactions.begin_transaction()
        with self._step("publish.2 release"):
            self._transactions.send(
                self._stream.releases_topic,
                value=checkpoint.release,
                key=self._stream.name.encode(),
                partition=0,
                headers=[("content-type", b"application/json")],
            )
        with self._step("publish.3 RELEASED"):
            sent = self._send(self._stream.ledger_topic, encode_entry(entry))
        with self._step("publish.4 commit"):
            self._transactions.commit_transaction()
        with self._step("publish.5 read back"):
            self._expect(self._offset(sent))
        return checkpoint.release

    # -- abandon -----------------------------------------------------------

    def abandon(self, reserved: Reserved, reason: str) -> None:
        """Close a reserved batch without an answer; its charge stays."""
        entry = Abandoned(
            topic_id=self._topic_id,
            job=self._stream.name,
            batch=reserved.batch,
            previous=self.log.ledger.head(self._stream.name),
            reason=reason,
        )
        with self._step("abandon.1 begin"):
            self._transactions.begin_transaction()
        with self._step("abandon.2 ABANDONED"):
            sent = self._send(self._stream.ledger_topic, encode_entry(entry))
        with self._step("abandon.3 commit"):
            self._transactions.commit_transaction()
        with self._step("abandon.4 read back"):
            self._expect(self._offset(sent))

    # -- helpers -----------------------------------------------------------

    def _send(self, topic: str, value: bytes) -> Any:
        return self._transactions.send(topic, value=value, key=self._stream.name.encode(), partition=0)

    def _offset(self, sent: Any) -> int:
        return int(sent.get(timeout=self._kafka.request_timeout_ms / 1000).offset)

    def _expect(self, offset: int) -> None:
        """Replay to our own entry; it must have counted."""
        own = next((r for r in self.log.catch_up(offset + 1) if r.offset == offset), None)
        if own is None or not own.verdict.accepted:
            reason = own.verdict.reason if own else "it is not in the log"
            raise SessionLost(f"{self.step}: the ledger did not take the entry: {reason}")


class BudgetExceededByAnother(StreamRefused):
    """Another job reserved the last of the records' budget first; ours is void."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the cap was reached by another job first: {reason}")


def open_ledger(kafka: KafkaSettings, entry: Opened, topic: str) -> Opened:
    """Write OPENED unless the ledger is open; returns the entry that counts."""
    log = LedgerLog(kafka, topic, entry.topic_id)
    try:
        log.catch_up()
        if log.ledger.opened is None:
            producer = transactional_producer(kafka, f"streaming-pca.{entry.topic_id}")
            try:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send(topic, value=encode_entry(entry), partition=0)
                producer.commit_transaction()
            except KafkaError as error:
                raise SessionLost(f"opening the ledger failed: {error}") from error
            finally:
                producer.close(timeout=2)
            log.catch_up()
        assert log.ledger.opened is not None
        return log.ledger.opened
    finally:
        log.close()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
