"""Reading of releases and ledgers over one connection."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import DENIED, TopicsLost, TopicsReader
from streaming_pca.dashboard.observing.releases import ReleaseHistory
from streaming_pca.dashboard.observing.watched import Watched

_PROBE_SECONDS = 3.0  # interval between requests for end offsets: polling a dead broker raises no error
_DENIED_SECONDS = 30.0  # until a topic that may not be read is tried again


def read_topics(watched: Watched, kafka: KafkaSettings) -> Generator[bool]:
    """Read over one connection, from where the last one ended; yield after each poll, False without one."""
    with closing(TopicsReader(kafka)) as reader:
        tail = TopicTail(watched, reader)
        while True:
            yield tail.step()


class TopicTail:
    """Reader of the topics over one connection."""

    def __init__(self, watched: Watched, reader: TopicsReader) -> None:
        self._watched, self._reader, self._table = watched, reader, watched.table
        self._table.changed = True
        self._reads: set[str] = set()
        self._waits: set[str] = set()  # topics that exist but have no leader
        self._denied: set[str] = set()
        self._tried: set[str] = set()  # topics that were denied and are read again
        self._retry = 0.0
        self._probed = 0.0

    def step(self) -> bool:
        """Poll once; return False without a topic to read."""
        if (self._denied or self._tried) and time.monotonic() > self._retry:
            # The permission may be back; the problem stays until a fetch has had the time to fail.
            self._denied, self._tried = set(), self._denied
            self._retry = time.monotonic() + _PROBE_SECONDS
            self._table.changed = True
        if self._table.changed or (self._waits and self._is_time()):
            self._table.changed = False
            self._assign()
        if not self._reads:
            if self._table.problems:
                self._watched.report("topics", None)
                if not self._waits:
                    self._watched.load()
            return False
        try:
            messages = self._reader.poll()
        except TopicsLost as lost:
            self._recover(lost)
            return True
        if messages:
            self._watched.take(messages)
        if self._is_time() or not (messages or self._watched.is_loaded):
            self._probe()
        return True

    def _is_time(self) -> bool:
        return time.monotonic() - self._probed > _PROBE_SECONDS

    def _assign(self) -> None:
        """Assign the topics that exist; read new ones from their beginnings."""
        watched, table = self._watched, self._table
        if not table.problems:
            return
        new: set[str] = set()
        reads: set[str] = set()
        with watched.lock:
            for topic, part in watched.topics.items():
                if topic in self._denied:
                    part.problem = DENIED.format(topic)
                    continue
                problem = next(filter(None, map(table.problems.get, (part.input, topic))), None)
                if problem is not None or topic not in self._tried:
                    part.problem = problem
                if None not in (ids := self._ids(part)):
                    reads.add(topic)
                    if part.ids != ids:
                        part.restart()
                        new.add(topic)
        self._reader.assign(reads)
        bounds = self._reader.bounds(reads)
        self._waits = reads - bounds.keys()
        old = self._reads - self._waits
        self._reads = reads - self._waits
        if self._waits:
            self._reader.assign(self._reads)
        with watched.lock:
            for topic, (first, end) in bounds.items():
                part = watched.topics[topic]
                if topic in new:
                    part.begin(self._ids(part), first, end)
                    if isinstance(part, LedgerView):
                        watched.verifications.forget(part.input)
                if topic in new or topic not in old:
                    self._seek(topic, part.next_offset, first, end)
        watched.refresh()

    def _ids(self, part: ReleaseHistory | LedgerView) -> tuple[str | None, ...]:
        return tuple(map(self._table.ids.get, part.sources))

    def _seek(self, topic: str, offset: int, first: int, end: int) -> None:
        # If the topic is shorter than before, it was recreated or has lost its tail.
        if offset > end:
            with self._watched.lock:
                self._watched.topics[topic].restart()
            self._table.changed = True
            offset = first
        self._reader.seek(topic, max(offset, first))

    def _recover(self, lost: TopicsLost) -> None:
        if lost.denied:
            self._denied |= lost.topics
            self._retry = time.monotonic() + _DENIED_SECONDS
        else:
            # Retention has deleted the next message, or the topic was recreated.
            for topic, (first, end) in self._reader.bounds(lost.topics).items():
                if self._watched.topics[topic].next_offset < first:
                    self._reader.seek(topic, first)
                else:
                    self._seek(topic, end + 1, first, end)
            self._table.wanted = True
        self._table.changed = True

    def _probe(self) -> None:
        """Request offset bounds, to check whether the broker answers and everything was read."""
        bounds = self._reader.bounds(self._reads)
        self._probed = time.monotonic()
        with self._watched.lock:
            for topic, (first, _) in bounds.items():
                self._watched.topics[topic].forget_before(first)
        self._watched.report("topics", None)
        if self._watched.is_loaded or self._waits:
            return
        if all(self._reader.position(topic) >= end for topic, (_, end) in bounds.items()):
            self._watched.load()
