"""Watched streams and ledgers: the observer's thread updates them, and the API reads them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.errors import for_code

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import Connection, Event
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import Message
from streaming_pca.dashboard.observing.releases import ReleaseHistory
from streaming_pca.dashboard.observing.streams import StreamState
from streaming_pca.dashboard.observing.verification import Verifications, now_in_words
from streaming_pca.service.errors import NotPermitted, TopicError

Listener = Callable[[Event], None]
_log = logging.getLogger(__name__)

MOST_ENTRIES = 10_000  # entries to hold of one ledger
MOST_ENTRIES_OF_ALL = 100_000  # entries to hold of all ledgers together, but at least 1,000 of each
_MISSING = 3  # kafka's error code for a missing topic


class Listeners:
    """Callbacks, which receive all events in the order of revisions, and the last revision."""

    def __init__(self) -> None:
        self.revision = 0
        self._listeners: dict[object, Listener] = {}
        self._publishing = threading.Lock()

    def listen(self, callback: Listener) -> Callable[[], None]:
        key = object()
        self._listeners[key] = callback

        def unlisten() -> None:
            self._listeners.pop(key, None)

        return unlisten

    def publish(self, events: Iterable[Event]) -> None:
        """Assign revisions and publish; call this without the lock, after updating the state."""
        with self._publishing:
            for event in events:
                self.revision += 1
                numbered = event.model_copy(update={"revision": self.revision})
                for listener in list(self._listeners.values()):
                    try:
                        listener(numbered)
                    except Exception:
                        # A failing listener must not end this thread, or deprive other listeners of events.
                        _log.exception("a listener of the dashboard failed")


class TopicTable:
    """The broker's descriptions of topics: ids of readable ones, and problems of the others.

    A problem is one line, None for a readable topic. Both are empty until the broker has answered.
    ``changed`` is set when a description has changed; set ``wanted`` to request new ones immediately.
    """

    def __init__(self) -> None:
        self.changed = self.wanted = False
        self.ids: dict[str, str] = {}
        self.problems: dict[str, str | None] = {}

    def set(self, described: Sequence[Mapping[str, Any]]) -> None:
        problems = {topic["name"]: _problem(topic) for topic in described}
        ids = {t["name"]: str(t["topic_id"]) for t in described if problems[t["name"]] is None}
        self.changed = self.changed or (ids, problems) != (self.ids, self.problems)
        self.ids, self.problems = ids, problems


def _problem(topic: Mapping[str, Any]) -> str | None:
    code = topic["error_code"]
    if code == _MISSING:
        return str(TopicError.missing(topic["name"]))
    try:
        NotPermitted.check([topic])
    except NotPermitted as error:
        return str(error)
    return f"topic {topic['name']!r} cannot be read: {for_code(code).__name__}" if code else None


class Watched:
    """Streams and ledgers, as far as their topics have been read.

    ``views`` has the ledgers by input topic, and ``topics`` the contents of each topic to read. ``lock``
    protects the contents. ``is_loaded`` is True once all topics have been read to their ends.
    """

    def __init__(self, kafka: KafkaSettings, settings: Sequence[Settings], history: int) -> None:
        ordered = sorted(settings, key=lambda s: s.stream.name)
        inputs = sorted({s.stream.input for s in ordered})
        rows = min(MOST_ENTRIES, max(1000, MOST_ENTRIES_OF_ALL // len(inputs)))
        self.streams = {s.stream.name: StreamState(s, history) for s in ordered}
        self.views = {name: LedgerView(name, rows) for name in inputs}
        self.topics: dict[str, ReleaseHistory | LedgerView] = {
            **{state.releases.topic: state.releases for state in self.streams.values()},
            **{view.topic: view for view in self.views.values()},
        }
        self.lock = threading.RLock()
        self.listeners = Listeners()
        self.table = TopicTable()
        self.verifications = Verifications(kafka, lambda name: self.listeners.publish([_ledger_event(name)]))
        self.is_loaded = False
        self._problems: dict[str, str] = {}
        self._since = now_in_words()

    @property
    def problem(self) -> str | None:
        """Problem of the connection in one line; None while it is ok."""
        with self.lock:
            return next(iter(self._problems.values()), None)

    def connection(self) -> Connection:
        with self.lock:
            problem = self.problem
            return Connection(ok=problem is None, problem=problem, since=self._since, loaded=self.is_loaded)

    def take(self, messages: Iterable[Message]) -> None:
        """Process messages of the topics in order, then publish events."""
        events: list[Event] = []
        with self.lock:
            changed: set[str] = set()
            for message in messages:
                part = self.topics[message.topic]
                if isinstance(part, LedgerView):
                    part.add(message.offset, message.value)
                    changed.add(part.input)
                elif (point := part.add(message.offset, message.value)) is not None:
                    events.append(Event(kind="release", stream=part.stream, batch=point.batch, revision=0))
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
        """Record one part's problem with the broker, or None; publish a change."""
        with self.lock:
            before = self.problem
            if problem is None:
                self._problems.pop(part, None)
            else:
                self._problems[part] = problem
            after = self.problem
            if (before is None) != (after is None):
                self._since = now_in_words()
        if after != before:
            if after is None:
                _log.info("the numbers are current again")
            elif before is None:
                _log.warning("the numbers are not updated until this is over: %s", after)
            self._publish_connection()

    def load(self) -> None:
        """Record that all topics were read to their ends."""
        if not self.is_loaded:
            self.is_loaded = True
            # Lags can be computed only now, so request them immediately.
            self.table.wanted = True
            self._publish_connection()

    def _publish_connection(self) -> None:
        self.refresh()
        self.listeners.publish([Event(kind="connection", revision=0)])

    def _refresh(self) -> list[Event]:
        return [
            Event(kind="standing", stream=state.name, revision=0)
            for state in self.streams.values()
            if state.update(self.views[state.input], self.problem is not None, self.is_loaded)
        ]


def _ledger_event(input: str) -> Event:
    return Event(kind="ledger", input=input, revision=0)
