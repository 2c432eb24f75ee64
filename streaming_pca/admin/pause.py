"""Pause, resume and retire a stream: `streaming-pca stream`.

Each is an entry in the stream's own chain, written with the stream's own transactional id. So the running
leader is fenced, recovers from the topics, and finds the entry there. A committed release is published
first. An open reservation is left to the next leader, which may finish it while the stream is paused. A
retired stream does not have a next leader, so its reservation is abandoned.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import cast

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.privacy.ledger.entries import Paused, Resumed, Retired
from streaming_pca.privacy.ledger.protocol import JobStatus
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.commit.ledger_writer import check_reason, trace_of
from streaming_pca.service.commit.recovery import Action
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.topics.find import find_topics

log = logging.getLogger(__name__)

Kind = Paused | Resumed | Retired
_ATTEMPTS = 6
_WANTED = {Paused: JobStatus.PAUSED, Resumed: JobStatus.ACTIVE, Retired: JobStatus.RETIRED}


@dataclass(frozen=True)
class Change:
    """Status of a stream, perhaps not ``changed``; number (0: none) and phase of its last batch."""

    stream: str
    standing: JobStatus
    changed: bool
    batch: int
    phase: str


def _change(kind: type[Kind], kafka: KafkaSettings, stream: StreamSettings, reason: str) -> Change:
    check_reason(reason)
    topic_id = find_topics(kafka, stream).topic_id
    attempt = 1
    while True:
        try:
            with closing(LifecycleWriter(kafka, stream, topic_id)) as writer:
                return writer.change(kind, reason)
        except SessionLost as error:
            # The fenced leader takes over again, and may fence this writer in turn.
            if attempt == _ATTEMPTS:
                raise
            attempt += 1
            log.warning("trying again: %s", error)


pause = partial(_change, Paused)  # the stream reserves no batches until a resume
resume = partial(_change, Resumed)
retire = partial(_change, Retired)  # permanently; its charges remain


class LifecycleWriter(CheckpointWriter):
    """Writer that changes the status of a stream for its operator."""

    def change(self, kind: type[Kind], reason: str) -> Change:
        name = self._stream.name
        with self._step("standing.1 read ahead"):
            self.read_ahead()
            self._states.last()  # refuses an input that is not the stream's
        status = self.log.ledger.job(name).status
        if status is _WANTED[kind]:
            return self._result(changed=False)
        if status is JobStatus.RETIRED:
            raise StreamRefused(f"stream {name!r} is retired, which is final: choose a new stream.name")
        found = self.take_over(to_change_status=True)
        if self.log.ledger.job(name).status is _WANTED[kind]:
            return self._result(changed=False)  # another operator was first
        if found.recovery.action is Action.PUBLISH:
            self.publish()
        elif found.recovery.action is Action.RESUME and kind is Retired:
            assert found.reservation is not None
            self.abandon(found.reservation, "the stream is retired")
        self._write(kind, reason)
        return self._result(changed=True)

    def _write(self, kind: type[Kind], reason: str) -> None:
        with self._step("standing.2 dry run"):
            entry = cast(Kind, self._next(kind, reason=reason))
            verdict = self.log.ledger.check(entry)
            if not verdict.accepted:
                raise StreamRefused(f"the ledger refuses {entry.kind}: {verdict.reason}")
        with self._step("standing.3 begin"):
            self._begin()
        with self._step("standing.4 entry"):
            sent = self._send_entry(entry)
            # Unchanged offsets, or the beginning: only their metadata, the trace, is new.
            positions = self._checkpoint.positions if self._checkpoint else {0: 0}
            self._transaction.send_offsets(self._stream.input, positions, self._stream.name, trace_of(entry))
        with self._step("standing.5 commit"):
            self._transaction.commit()
        with self._step("standing.6 read back"):
            self._expect(sent.value.offset, entry)

    def _result(self, changed: bool) -> Change:
        job = self.log.ledger.job(self._stream.name)
        return Change(self._stream.name, job.status, changed, job.batch, str(job.phase))
