"""One job's hold on the ledger: a transactional producer, and the replay that it writes behind.

The producer's transactional id is made of the input topic's id and the job's
name, so a successor's ``init_transactions`` fences whoever wrote before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaProducer
from kafka.errors import KafkaError

from streaming_pca.privacy.entries import LedgerEntry, encode_entry, entry_hash
from streaming_pca.privacy.ledger import Verdict
from streaming_pca.service.clients import transactional_producer
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.kafka.transaction import Sent, Transaction
from streaming_pca.service.log_reader import LedgerLog
from streaming_pca.settings import ConfigurationError, KafkaSettings

__all__ = ["LedgerWriter", "check_reason", "group_of_charges", "trace_of"]

_REASON_LENGTH = 500


def check_reason(reason: str) -> None:
    """Refuse what would spoil the one line on which the ledger shows it."""
    if not 1 <= len(reason) <= _REASON_LENGTH or not reason.isprintable():
        raise ConfigurationError(f"--reason must be one line of 1 to {_REASON_LENGTH} printable characters")


def trace_of(entry: LedgerEntry) -> str:
    """Return the metadata of group offsets that tell of an entry, should the ledger be lost.

    They go into the entry's transaction. :mod:`.copy_age` refuses a copy that does not hold the entry.
    """
    return f"{entry.kind} {entry_hash(entry)}"


def group_of_charges(topic: str, job: str) -> str:
    """Return the consumer group that tells of a job's charges: no name that a consumer would have."""
    return f"{topic}.ledger.{job}"


class LedgerWriter:
    """What every writer of a ledger has: numbered steps, a fence, and reading back.

    Parameters
    ----------
    kafka : KafkaSettings
    ledger_topic : str
    topic_id : str
        The input topic's id.
    job : str
    """

    def __init__(self, kafka: KafkaSettings, ledger_topic: str, topic_id: str, job: str) -> None:
        self._kafka, self._ledger_topic = kafka, ledger_topic
        self._topic_id, self._job = topic_id, job
        self._producer: KafkaProducer | None = None
        self._open: Transaction | None = None
        self._head = ""
        """Hash of the job's last entry as far as this writer knows it."""
        self._log: LedgerLog | None = None
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

    def _begin(self) -> None:
        """Begin a transaction; one at a time."""
        assert self._producer is not None, "fence first"
        self._open = Transaction(self._producer, self._kafka)

    @property
    def _transaction(self) -> Transaction:
        assert self._open is not None, "begin first"
        return self._open

    @property
    def log(self) -> LedgerLog:
        """The ledger's replay."""
        if self._log is None:
            self._log = LedgerLog(self._kafka, self._ledger_topic, self._topic_id)
        return self._log

    def close(self) -> None:
        """Release producer and consumer."""
        if self._producer is not None:
            self._producer.close(timeout=2)
        if self._log is not None:
            self._log.close()

    def _fence(self) -> None:
        """Shut out whoever wrote for the job before, and resolve what it left open."""
        self._producer = transactional_producer(self._kafka, f"streaming-pca.{self._topic_id}.{self._job}")
        self._producer.init_transactions()

    def _send_entry(self, entry: LedgerEntry) -> Sent:
        return self._transaction.send(self._ledger_topic, encode_entry(entry), self._job.encode())

    def _read_back(self, offset: int, entry: LedgerEntry) -> Verdict:
        """Replay to our own entry; what the ledger made of it."""
        own = next((r for r in self.log.catch_up(offset + 1) if r.offset == offset), None)
        if own is None or own.entry != entry:
            raise SessionLost(f"{self.step}: the entry is not in the log where it was written")
        self._head = entry_hash(entry)
        return own.verdict

    def _expect(self, offset: int, entry: LedgerEntry) -> None:
        """Replay to our own entry; it must have counted."""
        verdict = self._read_back(offset, entry)
        if not verdict.accepted:
            raise SessionLost(f"{self.step}: the ledger did not take the entry: {verdict.reason}")
