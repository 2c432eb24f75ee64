"""Comparison of a standby's settings with the ledger's privacy contract and the stream's state.

Otherwise a standby whose settings differ from the leader's would be refused only at fail-over, when it is
needed.
"""

from __future__ import annotations

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.commit.admission import check_admission, decode_admitted_state
from streaming_pca.service.commit.checkpoint_format import MalformedCheckpoint, decode_checkpoint
from streaming_pca.service.commit.log_reader import LedgerLog
from streaming_pca.service.commit.state_topic import check_input, find_state
from streaming_pca.service.errors import StreamRefused

_SLICE = 5000
"""Offsets read per step: about one second, which may delay a take-over."""
_POLL_SECONDS = 10.0
"""Polling interval of the ledger until it contains something to compare."""


class StandbyCheck:
    """Repeated comparison of a stream's settings with its ledger and state, until they agree.

    It reads only committed entries and does not wait for open transactions. A stream's first reservation
    binds all later ones to its contract, and states keep their shapes, so settings that agree once agree
    permanently.

    Parameters
    ----------
    topic_id : str
        The input topic's id.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> None:
        self._kafka, self._stream, self._topic_id = kafka, stream, topic_id
        self._log: LedgerLog | None = None

    def run(self) -> float | None:
        """Continue reading and compare; return the seconds until the next call, or None when done.

        0 means that more entries can be read. A stream that has not begun does not have a contract yet, and
        a stream in its first batch does not have a state.

        Raises
        ------
        StreamRefused
            If a take-over by this standby would be refused.
        SessionLost, BrokerUnreachable, KafkaError
            If the broker fails; the next call starts over.
        """
        try:
            wait = self._compare()
        except BaseException:
            self.close()
            raise
        if wait is None:
            self.close()
        return wait

    def _compare(self) -> float | None:
        if self._log is None:
            self._log = LedgerLog(self._kafka, self._stream.ledger_topic, self._topic_id)
        if not self._log.read_committed(_SLICE):
            return 0.0
        job = self._log.ledger.job(self._stream.name)
        if job.contract is None:
            # The stream may have begun on another input, whose ledger has the contract.
            check_input(self._kafka, self._stream, self._topic_id)
            return _POLL_SECONDS
        check_admission(self._stream, self._log.ledger)
        found = (
            find_state(self._kafka, self._stream.state_topic, job.state_digest) if job.state_digest else None
        )
        if found is None or found.data is None:
            return _POLL_SECONDS  # the leader has just committed its first or next state
        try:
            checkpoint, _ = decode_checkpoint(found.data)
        except MalformedCheckpoint as error:
            raise StreamRefused(f"state topic {self._stream.state_topic!r} cannot be read: {error}") from None
        decode_admitted_state(self._stream, self._stream.build_estimator(), checkpoint.state)
        return None

    def close(self) -> None:
        """Release the consumer; idempotent."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
