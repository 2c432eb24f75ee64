"""Thread that reads releases and ledgers over one connection."""

from __future__ import annotations

import threading
import time
from contextlib import closing

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.observing.logs import TopicsLost, TopicsReader
from streaming_pca.dashboard.observing.watched import Watched

_IDLE_SECONDS = 0.2
_PROBE_SECONDS = 3.0
"""Interval between requests for end offsets: polling a dead broker raises no error."""


def follow_topics(watched: Watched, kafka: KafkaSettings, stop: threading.Event) -> None:
    """Read over one connection until stopped, from where the last connection ended."""
    with closing(TopicsReader(kafka)) as reader:
        _Follower(watched, reader, stop).run()


class _Follower:
    """Reader of the topics over one connection."""

    def __init__(self, watched: Watched, reader: TopicsReader, stop: threading.Event) -> None:
        self._watched, self._reader, self._table, self._stop = watched, reader, watched.table, stop
        self._reads: set[str] = set()
        self._waits: set[str] = set()
        """Topics that exist but have no leader."""
        self._denied: set[str] = set()
        self._probed = 0.0

    def run(self) -> None:
        self._table.changed.set()
        while not self._stop.is_set():
            if self._table.changed.is_set() or (self._waits and self._is_time()):
                self._table.changed.clear()
                self._assign()
            if not self._reads:
                if self._table.is_known:
                    self._finish()
                self._table.changed.wait(_IDLE_SECONDS)
                continue
            try:
                messages = self._reader.poll()
            except TopicsLost as lost:
                self._recover(lost)
                continue
            if messages:
                self._watched.take(messages)
            if self._is_time() or not (messages or self._watched.is_loaded):
                self._probe()

    def _is_time(self) -> bool:
        return time.monotonic() - self._probed > _PROBE_SECONDS

    def _finish(self) -> None:
        self._watched.report("topics", None)
        if not self._waits:
            self._watched.load()

    def _assign(self) -> None:
        """Assign the topics that exist; read new ones from their beginnings."""
        watched, table = self._watched, self._table
        if not table.is_known:
            return
        new: set[str] = set()
        reads: set[str] = set()
        with watched.lock:
            for state in watched.streams.values():
                own = state.releases
                topic_id = table.id(own.topic)
                state.problem = next(filter(None, map(table.problem, (state.input, own.topic))), None)
                if own.topic in self._denied:
                    state.problem = f"topic {own.topic!r} may not be read by this user"
                if topic_id is not None and own.topic not in self._denied:
                    reads.add(own.topic)
                    if own.topic_id != topic_id:
                        own.restart(None)
                        new.add(own.topic)
            for view in watched.views.values():
                ids = (table.id(view.input), table.id(view.topic))
                view.problem = next(filter(None, map(table.problem, (view.input, view.topic))), None)
                if view.topic in self._denied:
                    view.problem = f"topic {view.topic!r} may not be read by this user"
                if None not in ids and view.topic not in self._denied:
                    reads.add(view.topic)
                    if (view.topic_id, view.ledger_id) != ids:
                        view.restart(None, None)
                        new.add(view.topic)
        self._reader.assign(reads)
        bounds = self._reader.bounds(reads)
        self._waits = reads - bounds.keys()
        old = self._reads - self._waits
        self._reads = reads - self._waits
        if self._waits:
            self._reader.assign(self._reads)
        self._begin(bounds, new, old)
        watched.refresh()

    def _begin(self, bounds: dict[str, tuple[int, int]], new: set[str], old: set[str]) -> None:
        """Set the positions of topics that this connection has not read yet."""
        watched, table = self._watched, self._table
        with watched.lock:
            for state in watched.streams.values():
                own = state.releases
                if own.topic in bounds and (own.topic in new or own.topic not in old):
                    first, end = bounds[own.topic]
                    if own.topic in new:
                        own.begin(first, end)
                        own.topic_id = table.id(own.topic)
                    self._seek(own.topic, own.next_offset, first, end)
            for view in watched.views.values():
                if view.topic in bounds and (view.topic in new or view.topic not in old):
                    first, end = bounds[view.topic]
                    if view.topic in new:
                        view.restart(table.id(view.input), table.id(view.topic))
                        view.begin(first)
                        watched.verifications.forget(view.input)
                    self._seek(view.topic, view.next_offset, first, end)

    def _seek(self, topic: str, offset: int, first: int, end: int) -> None:
        # If the topic is shorter than before, it was recreated or has lost its tail.
        if offset > end:
            self._restart(topic)
            offset = first
        self._reader.seek(topic, max(offset, first))

    def _restart(self, topic: str) -> None:
        """Discard the state of a topic, so that it is read from its beginning."""
        with self._watched.lock:
            for state in self._watched.streams.values():
                if state.releases.topic == topic:
                    state.releases.restart(None)
            for view in self._watched.views.values():
                if view.topic == topic:
                    view.restart(None, None)
        self._table.changed.set()

    def _recover(self, lost: TopicsLost) -> None:
        if lost.denied:
            self._denied |= lost.topics
        else:
            # Retention has deleted the next message, or the topic was recreated.
            bounds = self._reader.bounds(lost.topics)
            with self._watched.lock:
                for topic, (first, end) in bounds.items():
                    part = self._next_of(topic)
                    if part < first:
                        self._reader.seek(topic, first)
                    else:
                        self._seek(topic, end + 1, first, end)
            self._table.wanted.set()
        self._table.changed.set()

    def _next_of(self, topic: str) -> int:
        for state in self._watched.streams.values():
            if state.releases.topic == topic:
                return state.releases.next_offset
        view = next(v for v in self._watched.views.values() if v.topic == topic)
        return view.next_offset

    def _probe(self) -> None:
        """Request offset bounds, to check whether the broker answers and everything was read."""
        bounds = self._reader.bounds(self._reads)
        self._probed = time.monotonic()
        with self._watched.lock:
            for state in self._watched.streams.values():
                if state.releases.topic in bounds:
                    state.releases.forget_before(bounds[state.releases.topic][0])
            for view in self._watched.views.values():
                if view.topic in bounds and view.failed is None:
                    view.begin(bounds[view.topic][0])
        self._watched.report("topics", None)
        if self._watched.is_loaded or self._waits:
            return
        if all(self._reader.position(topic) >= end for topic, (_, end) in bounds.items()):
            self._watched.load()
