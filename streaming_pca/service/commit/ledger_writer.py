"""Writer of one job's ledger entries: a transactional producer and a replay of the log.

The producer's id consists of the input topic's id and the job's name, so a successor fences its predecessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaProducer
from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.privacy.ledger.entries import LedgerEntry, encode_entry, entry_hash
from streaming_pca.privacy.ledger.ledger import Verdict
from streaming_pca.service.commit.log_reader import LedgerLog
from streaming_pca.service.errors import SessionLost, in_one_line, without_traceback
from streaming_pca.service.kafka.clients import transactional_producer
from streaming_pca.service.kafka.patches import transaction_manager
from streaming_pca.service.kafka.transaction import Transaction, discard

_REASON_LENGTH = 500
_FENCED = ": another process leads this stream (is its worker.group the same?), or has changed its status"

E = TypeVar("E")


def check_reason(reason: str) -> None:
    """Refuse a reason that does not fit on one line of output."""
    if not 1 <= len(reason) <= _REASON_LENGTH or not reason.isprintable():
        raise ConfigurationError(f"--reason must be one line of 1 to {_REASON_LENGTH} printable characters")


def trace_of(entry: LedgerEntry) -> str:
    """Return metadata for group offsets, sent in the entry's transaction: a trace outside the ledger.

    If the ledger is lost, an import (:mod:`streaming_pca.admin.restore`) refuses a backup without the entry.
    """
    return f"{entry.kind} {entry_hash(entry)}"


def group_of_charges(topic: str, job: str) -> str:
    """Return the consumer group for traces of a job's charges; consumers never use such a name."""
    return f"{topic}.ledger.{job}"


class LedgerWriter:
    """Base class of ledger writers: numbered steps, fencing, and reading back."""

    def __init__(self, kafka: KafkaSettings, ledger_topic: str, topic_id: str, job: str) -> None:
        self._kafka, self._ledger_topic = kafka, ledger_topic
        self._topic_id, self._job = topic_id, job
        self._producer: KafkaProducer | None = None
        self._open: Transaction | None = None
        self._head = ""  # hash of the job's last entry that this writer knows
        self._log: LedgerLog | None = None
        self.step = ""  # current step, reported on timeout

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Run a numbered step; crash tests kill the process before or after it."""
        self.step = name
        try:
            yield
        except KafkaError as error:
            # After a transaction's first error, further calls only report that one has occurred.
            cause = next((each for each in error.args if isinstance(each, KafkaError)), error)
            is_fenced = isinstance(cause, (ProducerFencedError, InvalidProducerEpochError))
            text = in_one_line(cause, "Write") + _FENCED * is_fenced
            raise SessionLost(f"{name}: {text}") from without_traceback(error)

    def _begin(self) -> None:
        """Begin a transaction; only one may be open."""
        assert self._producer is not None, "fence first"
        self._open = Transaction(self._producer, self._kafka)

    @property
    def _transaction(self) -> Transaction:
        assert self._open is not None, "begin first"
        return self._open

    @property
    def log(self) -> LedgerLog:
        if self._log is None:
            self._log = LedgerLog(self._kafka, self._ledger_topic, self._topic_id)
        return self._log

    @property
    def epoch(self) -> int:
        """Epoch that distinguishes this writer from its predecessors; -1 before the fence."""
        if self._producer is None:
            return -1
        return int(transaction_manager(self._producer).producer_id_and_epoch.epoch)

    def close(self) -> None:
        if self._producer is not None:
            # Drop unsent messages: waiting for them would end in an error that hides the first one.
            discard(self._producer)
        if self._log is not None:
            self._log.close()

    def _fence(self) -> None:
        """Fence the job's previous writer and abort its open transaction."""
        self._producer = transactional_producer(self._kafka, f"streaming-pca.{self._topic_id}.{self._job}")
        self._producer.init_transactions()

    def _next(self, kind: Callable[..., E], **facts: Any) -> E:
        """Return the job's next entry, of a kind, after the last one of the log."""
        head = self.log.ledger.job(self._job).head
        return kind(topic_id=self._topic_id, job=self._job, previous=head, **facts)

    def _send_entry(self, entry: LedgerEntry) -> Any:
        return self._transaction.send(self._ledger_topic, encode_entry(entry), self._job.encode())

    def _read_back(self, offset: int, entry: LedgerEntry) -> Verdict:
        """Replay to the entry just written; return the ledger's verdict on it."""
        own = [r for r in self.log.new_entries(offset + 1) if r.offset == offset]
        if not own or own[0].entry != entry:
            raise SessionLost(f"{self.step}: the entry is not in the log where it was written")
        self._head = entry_hash(entry)
        return own[0].verdict

    def _expect(self, offset: int, entry: LedgerEntry) -> None:
        """Replay to the entry just written; raise SessionLost if the ledger rejects it."""
        verdict = self._read_back(offset, entry)
        if not verdict.accepted:
            raise SessionLost(f"{self.step}: the ledger did not accept the entry: {verdict.reason}")
