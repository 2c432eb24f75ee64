"""Events for listeners, and the state of the connection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from streaming_pca.dashboard.models import Connection, Event

Listener = Callable[[Event], None]
_log = logging.getLogger(__name__)


def now_in_words() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Listeners:
    """Callbacks, and the revision of the last event.

    Every listener receives all events, one after another, in the order of their revisions.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._listeners: dict[int, Listener] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._publishing = threading.Lock()

    def listen(self, callback: Listener) -> Callable[[], None]:
        """Register a callback for each event; return a function that unregisters it."""
        with self._lock:
            key = self._next
            self._next += 1
            self._listeners[key] = callback

        def unlisten() -> None:
            with self._lock:
                self._listeners.pop(key, None)

        return unlisten

    def publish(self, events: Iterable[Event]) -> None:
        """Assign revisions and publish; call this without the lock, after updating the state."""
        with self._publishing:
            for event in events:
                with self._lock:
                    self.revision += 1
                    listeners = list(self._listeners.values())
                numbered = event.model_copy(update={"revision": self.revision})
                for listener in listeners:
                    try:
                        listener(numbered)
                    except Exception:
                        # A failing listener must not end this thread, or deprive other listeners of events.
                        _log.exception("a listener of the dashboard failed")


class ConnectionState:
    """Connection to the broker, as reported by several threads.

    It is ok while no thread reports a problem.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}
        self._since = now_in_words()
        self._loaded = False

    def report(self, part: str, problem: str | None) -> bool:
        """Record the problem of one thread, or None; return whether the overall state changed."""
        with self._lock:
            before = bool(self._problems), next(iter(self._problems.values()), None)
            if problem is None:
                self._problems.pop(part, None)
            else:
                self._problems[part] = problem
            if bool(self._problems) != before[0]:
                self._since = now_in_words()
            return (bool(self._problems), next(iter(self._problems.values()), None)) != before

    def load(self) -> bool:
        """Record that all topics were read to their ends; return whether this is new."""
        with self._lock:
            before, self._loaded = self._loaded, True
            return not before

    @property
    def loaded(self) -> bool:
        """True once all topics have been read to their ends."""
        return self._loaded

    @property
    def problem(self) -> str | None:
        """Problem in one line; None while the connection is ok."""
        with self._lock:
            return next(iter(self._problems.values()), None)

    def answer(self) -> Connection:
        """Return the API's model of the connection."""
        with self._lock:
            problem = next(iter(self._problems.values()), None)
            return Connection(ok=problem is None, problem=problem, since=self._since, loaded=self._loaded)
