"""State of the watched streams and ledgers, shared by the observer and its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import Event
from streaming_pca.dashboard.observing.events import ConnectionState, Listeners
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import Message
from streaming_pca.dashboard.observing.streams import StreamState
from streaming_pca.dashboard.observing.topic_table import TopicTable
from streaming_pca.dashboard.observing.verification import Verifications

MOST_ENTRIES = 10_000
"""Entries to hold of one ledger."""
MOST_ENTRIES_OF_ALL = 100_000
"""Entries to hold of all ledgers together, but at least 1,000 of each."""


class Watched:
    """Streams and ledgers, as far as their topics have been read.

    Parameters
    ----------
    kafka : KafkaSettings
        Connection of verifications.
    settings : sequence of Settings
        One per stream.
    history : int
        Releases of each stream to hold.

    Attributes
    ----------
    streams : dict of str to StreamState
    views : dict of input topic to LedgerView
    lock : threading.RLock
        Lock that protects the contents of streams and ledgers.
    """

    def __init__(self, kafka: KafkaSettings, settings: Sequence[Settings], history: int) -> None:
        ordered = sorted(settings, key=lambda s: s.stream.name)
        inputs = sorted({s.stream.input for s in ordered})
        rows = min(MOST_ENTRIES, max(1000, MOST_ENTRIES_OF_ALL // len(inputs)))
        self.streams = {s.stream.name: StreamState(s, history) for s in ordered}
        self.views = {name: LedgerView(name, rows) for name in inputs}
        self._by_topic: dict[str, StreamState | LedgerView] = {
            **{s.releases.topic: s for s in self.streams.values()},
            **{v.topic: v for v in self.views.values()},
        }
        self.lock = threading.RLock()
        self.listeners = Listeners()
        self.connection = ConnectionState()
        self.table = TopicTable()
        self.verifications = Verifications(kafka, lambda name: self.listeners.publish([_ledger_event(name)]))

    @property
    def is_loaded(self) -> bool:
        """True once all topics have been read to their ends."""
        return self.connection.loaded

    def take(self, messages: Iterable[Message]) -> None:
        """Process messages of the topics in order, then publish events."""
        events: list[Event] = []
        with self.lock:
            changed: set[str] = set()
            for message in messages:
                part = self._by_topic.get(message.topic)
                if isinstance(part, StreamState):
                    point = part.releases.add(message.offset, message.value)
                    if point is not None:
                        events.append(Event(kind="release", stream=part.name, batch=point.batch, revision=0))
                elif part is not None:
                    part.add(message.offset, message.value)
                    changed.add(part.input)
            events += [_ledger_event(name) for name in sorted(changed)]
            events += self._refresh()
        # No events during the initial read, where each old release would look new.
        self.listeners.publish(events if self.is_loaded else [])

    def refresh(self) -> None:
        """Rebuild the cached answers and publish an event for each change."""
        with self.lock:
            events = self._refresh()
        self.listeners.publish(events)

    def report(self, part: str, problem: str | None) -> None:
        """Record a thread's problem with the broker, or None; publish a change."""
        if self.connection.report(part, problem):
            self._publish_connection()

    def load(self) -> None:
        """Record that all topics were read to their ends."""
        if self.connection.load():
            # Lags can be computed only now, so request them immediately.
            self.table.wanted.set()
            self._publish_connection()

    def _publish_connection(self) -> None:
        self.refresh()
        self.listeners.publish([Event(kind="connection", revision=0)])

    def _refresh(self) -> list[Event]:
        problem, loaded = self.connection.problem, self.connection.loaded
        return [
            Event(kind="standing", stream=state.name, revision=0)
            for state in self.streams.values()
            if state.update(self.views[state.input], problem, loaded)
        ]


def _ledger_event(input: str) -> Event:
    return Event(kind="ledger", input=input, revision=0)
