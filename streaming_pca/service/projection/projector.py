"""Exactly-once loop of a projecting worker: read, project, and write in one transaction.

A transaction contains the projections of some records and the group's positions after these records. The
broker accepts positions only from a member of the current generation, and returns them only when no
transaction on them is open. So the holder of a partition projects its records, starting where the last
committed transaction ended. After any error the producer and the reader are dropped; the group's positions
show what was committed.

Why nothing is lost or written twice: docs/explanation/exactly-once.md.
"""

from __future__ import annotations

import logging
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.projection import Projection
from streaming_pca.service.errors import RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.kafka.clients import (
    admin_client,
    offsets_by,
    reading_consumer,
    transactional_producer,
)
from streaming_pca.service.kafka.inflating import most_record_bytes
from streaming_pca.service.kafka.patches import RecordReader, close_reader
from streaming_pca.service.kafka.record_batches import UnreadableBatch
from streaming_pca.service.kafka.transaction import Transaction, delivery_timeout_ms, discard
from streaming_pca.service.projection.encoding import Encoder, FollowingCodec, headers_of, project
from streaming_pca.service.projection.latest import LatestRelease, projection_of
from streaming_pca.service.projection.membership import Assignment, Membership
from streaming_pca.service.topics.output import Output
from streaming_pca.service.topics.sizes import MOST_KEY_BYTES
from streaming_pca.text import offsets_text

log = logging.getLogger(__name__)

_BATCH_RECORDS = 2000  # most records of a transaction: larger ones are not faster and take more memory
_FETCH_BYTES = 4 * 2**20
_IDLE_MS = 100
_JOINING = "joining the group"
_POSITIONS_MS = 1000  # longest wait in one step for another worker's open transaction
_SILENCE_SECONDS = 10.0  # without messages before the broker is asked: polling a dead one does not fail
_SHORT_ENDS = 5  # ends below a position before records count as lost: a new leader may return some


class Projector:
    """Worker's share of one stream's projections; not thread-safe.

    It uses the newest release, or the one of ``release_batch``, and calls ``on_commit`` with the number of
    messages of each committed transaction.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        stream: StreamSettings,
        output: Output,
        encoder: Encoder,
        release_batch: int | None = None,
        on_commit: Callable[[int], None] = lambda messages: None,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._kafka, self._stream, self._output, self._encoder = kafka, stream, output, encoder
        self._schemas = FollowingCodec(stream, registry)
        self._release_batch, self._on_commit = release_batch, on_commit
        self._transactional_id = f"streaming-pca.{output.group}.{uuid.uuid4()}"
        self._members: Membership | None = None
        self._releases: LatestRelease | None = None
        self._assignment: Assignment | None = None
        self._joined = False  # True after the first assignment
        self._reader: KafkaConsumer | None = None
        self._positions: dict[int, int] = {}  # committed positions of this reader's partitions
        self._producer: KafkaProducer | None = None
        self._admin: KafkaAdminClient | None = None
        self._using: tuple[int, Projection, list[tuple[str, bytes]]] | None = None
        """Batch of the release in use, its projection and its headers."""
        self.step = ""
        self.lag = 0  # offsets between the committed positions and the last fetched ends
        self._waits_said = ""
        self._short_ends = 0
        self._heard = time.monotonic()
        self._waiting_since = 0.0
        """Time since the group's positions have been unavailable; 0 if they are available."""

    @property
    def role(self) -> str:
        """Role of this process: "starting", "waiting" for a release, "projecting" or "standby"."""
        if not self._joined:
            return "starting"
        if self._using is None:
            return "waiting"
        return "projecting" if self.partitions else "standby"

    @property
    def release_batch(self) -> int | None:
        return None if self._using is None else self._using[0]

    @property
    def partitions(self) -> tuple[int, ...]:
        assignment = self._assignment  # another thread may change it
        return () if assignment is None else assignment.partitions

    def work(self) -> int:
        """Do one step of work; return the number of projected messages.

        After SessionLost call :meth:`recover`, then continue.
        """
        count, now = self._step(), time.monotonic()
        if not count and now - self._heard > _SILENCE_SECONDS and self._releases is not None:
            with self._named("asking the broker"):
                self._releases.committed_end()
            self._heard = now
        elif count:
            self._heard = now
        return count

    def _step(self) -> int:
        with self._named(_JOINING):
            group, topic, partitions = self._output.group, self._stream.input, self._output.input_partitions
            members = self._members = self._members or Membership(self._kafka, group, topic, partitions)
            members.poll()
        if members.assignment is not self._assignment:
            self._drop_reader()
            self._assignment = members.assignment
            if self._assignment is not None:
                self._joined = True
                held = ", ".join(map(str, self._assignment.partitions)) or "none"
                log.info("partitions of %s that are projected here: %s", self._stream.input, held)
        self._follow_release()
        if self._assignment is None or not self._assignment.partitions or self._using is None:
            time.sleep(_IDLE_MS / 1000)
            return 0
        if self._reader is None and not self._open_reader(members, self._assignment):
            return 0
        return self._project_some(self._assignment)

    def recover(self) -> None:
        """Drop everything that a failed exchange may have left in an unknown state."""
        # kafka-python carries positions of an aborted transaction into the next one, so never reuse a
        # producer.
        producer, self._producer = self._producer, None
        releases, self._releases = self._releases, None
        admin, self._admin = self._admin, None
        members = None
        if self.step == _JOINING:
            members, self._members, self._assignment = self._members, None, None
        for close in (
            self._drop_reader,
            None if producer is None else partial(discard, producer),
            None if releases is None else releases.close,
            None if admin is None else admin.close,
            None if members is None else members.close,
        ):
            if close is not None:
                with suppress(KafkaError):
                    close()

    def close(self) -> None:
        self.step = _JOINING
        self.recover()

    @contextmanager
    def _named(self, step: str) -> Iterator[None]:
        """Name the current step; a test may kill the process before or after it."""
        self.step = step
        try:
            yield
        except KafkaError as error:
            # kafka-python keeps this exception; drop the traceback, or it keeps records in our callers'
            # frames alive.
            error.with_traceback(None)
            # The error's text may contain bytes of a record.
            raise SessionLost(f"{step}: {type(error).__name__}") from None

    def _follow_release(self) -> None:
        if self._releases is None:
            with self._named("finding the release"):
                self._releases = LatestRelease(self._kafka, self._stream, self._release_batch)
        else:
            self._releases.poll()
        release = self._releases.release
        if release is None:
            self._say_once(f"waiting for the first release on {self._stream.releases_topic}")
        elif self._using is None or self._using[0] != release.batch:
            projection = projection_of(release, self._stream)
            headers = headers_of(release.batch, release.doubts, self._encoder)
            self._using = (release.batch, projection, headers)
            log.info("projecting with the release of batch %d", release.batch)
            if release.doubts:
                log.warning("doubts about that release: %s (docs: releases)", ", ".join(release.doubts))

    def _say_once(self, line: str) -> None:
        if line != self._waits_said:
            log.info("%s", line)
        self._waits_said = line

    def _open_reader(self, members: Membership, assignment: Assignment) -> bool:
        """Start reading at the end of the group's committed transactions; False while one is open."""
        with self._named("beginning to write"):
            if self._producer is None:
                self._producer = transactional_producer(self._kafka, self._transactional_id)
                # Ends a transaction that this process may have left open, and with it the wait for
                # positions.
                self._producer.init_transactions()
        with self._named("reading the positions"):
            # Before the positions: if a transaction wrote to the output, its positions are visible below.
            ends = self._output_ends()
            # For all partitions, because another worker may have started.
            known = self._group_positions(members, {*self._output.input_partitions, *assignment.partitions})
        if known is None:
            self._say_once("waiting for the open transaction of another worker, or of an earlier one")
            return False
        group = self._output.group
        # Read again: another worker's first transaction may have ended in between.
        if any(known.values()) and not any(ends.values()) and not any(self._output_ends().values()):
            log.warning(
                "topic %r is empty, but group %r has positions: the records before them are not projected "
                "again. If the topic was created again, name a new --output, or move the group",
                self._output.topic,
                group,
            )
        if not known and self._has_projections(ends):
            servers = shlex.quote(self._kafka.bootstrap_servers)
            raise StreamRefused(
                f"topic {self._output.topic!r} has messages, but group {group!r} has no positions: they "
                "expire some time after the last worker has stopped (offsets.retention.minutes), and "
                "starting over would write projections twice. Name a new --output, or set each partition's "
                f"position with `kafka-consumer-groups --bootstrap-server {servers} --reset-offsets --group "
                f"{group} --topic {self._stream.input}:PARTITION --to-offset OFFSET --execute`: one above "
                "the header input-offset of its last projection"
            )
        with self._named("opening the input"):
            reader = self._reader = reading_consumer(
                self._kafka,
                max_poll_records=_BATCH_RECORDS,
                fetch_bytes=_FETCH_BYTES,
                io="records",
                reader=partial(RecordReader, most_bytes=most_record_bytes(self._schemas.codec.most_bytes)),
            )
            tps = [self._tp(p) for p in assignment.partitions]
            timeout = self._kafka.request_timeout_ms
            first = offsets_by(reader.beginning_offsets, tps, timeout)
            ends = offsets_by(reader.end_offsets, tps, timeout)
            reader.assign(tps)
            for tp in tps:
                position = known.get(tp.partition, first[tp])
                position = self._without_lost(tp.partition, position, first[tp], ends[tp])
                reader.seek(tp, position)
                self._positions[tp.partition] = position
        return True

    def _group_positions(self, members: Membership, partitions: Iterable[int]) -> dict[int, int] | None:
        """Return the group's positions by partition; None while a transaction on them is open."""
        try:
            found = members.positions(partitions, _POSITIONS_MS)
        except KafkaTimeoutError:
            now = time.monotonic()
            self._waiting_since = self._waiting_since or now
            if now - self._waiting_since > 2 * delivery_timeout_ms(self._kafka) / 1000:
                self._waiting_since = 0.0
                raise SessionLost("the broker does not return the group's positions: it hangs") from None
            return None
        self._waiting_since = 0.0
        # Positions of a deleted topic of the same name refer to other records.
        return {p: o.offset for p, o in found.items() if o.metadata in ("", None, self._output.input_id)}

    def _without_lost(self, partition: int, position: int, first: int, end: int) -> int:
        """Return the position to continue from; raise RecordsLost if records were lost."""
        where = f"topic {self._stream.input!r}, partition {partition}"
        if position < first:
            gone = f"the records at {offsets_text(position, first)} were deleted before they were projected"
            wanted = first
        elif position > end:
            self._short_ends += 1
            if self._short_ends < _SHORT_ENDS:
                raise SessionLost(f"{where} ends at {end}, before position {position}")
            gone = f"the records at {offsets_text(end, position)}, which were projected, are lost"
            wanted = end
        else:
            self._short_ends = 0
            return position
        if self._stream.lost_records == "skip":
            log.warning("%s: %s: continuing at %d", where, gone, wanted)
            return wanted
        raise RecordsLost(f'{where}: {gone}. Set stream.lost_records = "skip" to continue at {wanted}')

    def _output_ends(self) -> dict[TopicPartition, int]:
        tps = [TopicPartition(self._output.topic, p) for p in range(self._output.partitions)]
        with closing(reading_consumer(self._kafka)) as consumer:
            return offsets_by(consumer.end_offsets, tps, self._kafka.request_timeout_ms)

    def _has_projections(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether the output ever had a committed message before these ends."""
        timeout = self._kafka.request_timeout_ms
        with self._named("reading the output"), closing(reading_consumer(self._kafka)) as consumer:
            if any(offsets_by(consumer.beginning_offsets, ends, timeout).values()):
                return True  # retention has deleted messages
            left = [tp for tp, end in ends.items() if end > 0]
            consumer.assign(left)
            for tp in left:
                consumer.seek(tp, 0)
            deadline = time.monotonic() + 3 * timeout / 1000
            while left:
                if consumer.poll(timeout_ms=_IDLE_MS):
                    return True
                if time.monotonic() > deadline:
                    raise SessionLost(f"{self._output.topic} could not be read to its end")
                left = [tp for tp in left if (consumer.position(tp, timeout_ms=timeout) or 0) < ends[tp]]
            return False

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        self._positions = {}
        if reader is not None:
            close_reader(reader)

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._stream.input, partition)

    def _project_some(self, assignment: Assignment) -> int:
        """Project the messages of one poll; return their number."""
        reader = self._reader
        assert reader is not None, "open it first"
        with self._named("reading records"):
            try:
                polled: Mapping[Any, list[Any]] = reader.poll(timeout_ms=_IDLE_MS)
            except UnreadableBatch as error:
                raise RecordsLost(
                    f"topic {self._stream.input!r}: {error}: they are not read. "
                    "Produce them again into a new topic, or delete them "
                    f'(`kafka-delete-records` with offset {error.end}) and set stream.lost_records = "skip"'
                ) from None
            except OffsetOutOfRangeError:
                # Reopening finds out which records were lost.
                self._drop_reader()
                return 0
            # Positions, because they also advance past transaction markers.
            reached = {p: self._position(reader, p) for p in assignment.partitions}
        moved = {p: offset for p, offset in reached.items() if offset > self._positions[p]}
        count = 0
        if moved:
            self._check_input()
            count = self._write(polled, moved, assignment)
            self._positions |= moved
            self._on_commit(count)
        highest = {p: reader.highwater(self._tp(p)) or 0 for p in self._positions}
        self.lag = sum(max(highest[p] - position, 0) for p, position in self._positions.items())
        return count

    def _check_input(self) -> None:
        """Check that the records just read belong to the same topic as the positions.

        Checking after the read suffices, because a topic's id is never reused.
        """
        with self._named("looking at the input"):
            self._admin = self._admin or admin_client(self._kafka)
            (topic,) = self._admin.describe_topics([self._stream.input])
        if not topic["error_code"] and str(topic["topic_id"]) != self._output.input_id:
            raise StreamRefused(
                f"topic {self._stream.input!r} was deleted and created again: its records are not "
                f"those projected to {self._output.topic!r}. Name a new --output"
            )

    def _position(self, reader: KafkaConsumer, partition: int) -> int:
        position = reader.position(self._tp(partition), timeout_ms=self._kafka.request_timeout_ms)
        return self._positions[partition] if position is None else int(position)

    def _write(
        self, polled: Mapping[Any, list[Any]], positions: dict[int, int], assignment: Assignment
    ) -> int:
        assert self._using is not None, "there is a release"
        _, projection, headers = self._using
        # Before the transaction, which must not stay open for long.
        self._schemas.follow(polled)
        projected = [(tp, messages, self._values(projection, messages)) for tp, messages in polled.items()]
        assert self._producer is not None, "it is created with the reader"
        with self._named("beginning the transaction"):
            transaction = Transaction(self._producer, self._kafka)
        with self._named("sending the projections"):
            for tp, messages, values in projected:
                source = ("input-partition", str(tp.partition).encode())
                target = tp.partition % self._output.partitions
                for message, value in zip(messages, values, strict=True):
                    place = [source, ("input-offset", str(message.offset).encode())]
                    key = message.key if len(message.key or b"") <= MOST_KEY_BYTES else None
                    transaction.send(self._output.topic, value, key, [*headers, *place], target)
        with self._named("sending the positions"):
            transaction.send_offsets(self._stream.input, positions, assignment.member, self._output.input_id)
        with self._named("committing the transaction"):
            transaction.commit()
        return sum(map(len, polled.values()))

    def _values(self, projection: Projection, messages: Sequence[Any]) -> list[bytes]:
        try:
            return project(self._schemas.codec, projection, self._encoder, messages)
        except Exception:
            # For example, the shape in an allocation error contains the number of rows.
            raise StreamRefused(
                "projecting failed; the reason is withheld because it could reveal records"
            ) from None

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the first and end offset of each input partition, before open transactions."""
        tps, timeout = [self._tp(p) for p in self._output.input_partitions], self._kafka.request_timeout_ms
        with self._named("reading the input's ends"), closing(reading_consumer(self._kafka)) as consumer:
            first = offsets_by(consumer.beginning_offsets, tps, timeout)
            last = offsets_by(consumer.end_offsets, tps, timeout)
            return {tp.partition: (first[tp], last[tp]) for tp in tps}

    def has_reached(self, ends: Mapping[int, tuple[int, int]]) -> bool:
        """Return whether the workers of the group have projected all records before the ends."""
        if self._members is None:
            return False
        with self._named("reading the positions"):
            known = self._group_positions(self._members, ends)
        return known is not None and all(known.get(p, first) >= end for p, (first, end) in ends.items())
