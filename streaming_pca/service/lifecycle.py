"""Pausing, resuming and retiring a stream: `streaming-pca stream`.

Each is an entry of the stream's own chain, written with its own transactional
id: so the running leader is fenced, recovers from the topics, and finds the
entry there. A committed release is published on the way. An open reservation is
left to the next leader, who may finish it while the stream is paused; a stream
that is retired has no next leader, so the reservation is abandoned.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import cast

from streaming_pca.privacy.entries import Paused, Resumed, Retired, decode_entry, encode_entry
from streaming_pca.privacy.ledger import Standing
from streaming_pca.service.checkpoint import CheckpointWriter
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.ledger_writer import check_reason, trace_of
from streaming_pca.service.recovery import Action
from streaming_pca.service.topics import find_topics
from streaming_pca.settings import KafkaSettings, StreamSettings

__all__ = ["Change", "LifecycleWriter", "pause", "resume", "retire"]

log = logging.getLogger(__name__)

_ATTEMPTS = 6
_WANTED = {Paused: Standing.PAUSED, Resumed: Standing.ACTIVE, Retired: Standing.RETIRED}


@dataclass(frozen=True)
class Change:
    """How a stream stands now.

    Attributes
    ----------
    stream : str
    standing : Standing
    changed : bool
        False where it stood so already.
    batch : int
        The last batch that was reserved, 0 before the first.
    phase : str
        Where that batch stands.
    """

    stream: str
    standing: Standing
    changed: bool
    batch: int
    phase: str


def pause(kafka: KafkaSettings, stream: StreamSettings, reason: str) -> Change:
    """Let the stream reserve no further batch until it is resumed."""
    return _change(kafka, stream, Paused, reason)


def resume(kafka: KafkaSettings, stream: StreamSettings, reason: str) -> Change:
    """Let a paused stream go on."""
    return _change(kafka, stream, Resumed, reason)


def retire(kafka: KafkaSettings, stream: StreamSettings, reason: str) -> Change:
    """End the stream for ever; its charges stay."""
    return _change(kafka, stream, Retired, reason)


def _change(
    kafka: KafkaSettings, stream: StreamSettings, kind: type[Paused | Resumed | Retired], reason: str
) -> Change:
    check_reason(reason)
    topic_id = find_topics(kafka, stream).topic_id
    attempt = 1
    while True:
        writer = LifecycleWriter(kafka, stream, topic_id)
        try:
            return writer.change(kind, reason)
        except SessionLost as error:
            # The leader that was fenced takes over anew, and may fence us in turn.
            if attempt == _ATTEMPTS:
                raise
            attempt += 1
            log.warning("trying again: %s", error)
        finally:
            writer.close()


class LifecycleWriter(CheckpointWriter):
    """The operator's hold on a stream, for as long as its standing changes."""

    def change(self, kind: type[Paused | Resumed | Retired], reason: str) -> Change:
        """Bring the stream to the standing that an entry of this kind gives it."""
        name = self._stream.name
        with self._step("standing.1 read ahead"):
            self.read_ahead()
        standing = self.log.ledger.job(name).standing
        if standing is _WANTED[kind]:
            return self._stands(changed=False)
        if standing is Standing.RETIRED:
            raise StreamRefused(f"stream {name!r} is retired, which is final: choose a new stream.name")
        found = self.take_over(to_change_standing=True)
        if found.recovery.action is Action.PUBLISH:
            self.publish()
        elif found.recovery.action is Action.RESUME and kind is Retired:
            assert found.reservation is not None
            self.abandon(found.reservation, "the stream is retired")
        self._write(kind, reason)
        return self._stands(changed=True)

    def _write(self, kind: type[Paused | Resumed | Retired], reason: str) -> None:
        with self._step("standing.2 dry run"):
            entry = kind(
                topic_id=self._topic_id,
                job=self._stream.name,
                previous=self.log.ledger.head(self._stream.name),
                reason=reason,
            )
            entry = cast(Paused | Resumed | Retired, decode_entry(encode_entry(entry)))
            verdict = self.log.ledger.judge(entry)
            if not verdict.accepted:
                raise StreamRefused(f"the ledger refuses {entry.kind}: {verdict.reason}")
        with self._step("standing.3 begin"):
            self._begin()
        with self._step("standing.4 entry"):
            sent = self._send_entry(entry)
            # The offsets are as they were, or the beginning.
            positions = self._checkpoint.positions if self._checkpoint else {0: 0}
            self._transaction.send_offsets(self._stream.input, positions, self._stream.name, trace_of(entry))
        with self._step("standing.5 commit"):
            self._transaction.commit()
        with self._step("standing.6 read back"):
            self._expect(sent.offset, entry)

    def _stands(self, changed: bool) -> Change:
        job = self.log.ledger.job(self._stream.name)
        return Change(self._stream.name, job.standing, changed, job.batch, str(job.phase))
