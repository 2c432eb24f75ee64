"""Observer of streams and ledgers: the data source of the API and the pages.

Two threads use the broker. One reads releases and ledgers over one connection; the other polls leaders,
lags, and whether topics were recreated. A third connection serves lookups of single releases.

Memory is bounded. For each stream, the observer holds the numbers of its last releases and the latest
release (:mod:`.releases`); for each ledger, its replay and its last entries (:mod:`.ledgers`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from kafka.errors import KafkaError

from streaming_pca.admin.ledger import require_record
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import (
    EntryPage,
    Event,
    History,
    LedgerSummary,
    Overview,
    RecordCharge,
    ReleasePage,
    StreamDetail,
    Verification,
)
from streaming_pca.dashboard.observing.errors import UnknownLedger, UnknownRecord, UnknownStream
from streaming_pca.dashboard.observing.following import follow_topics
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import in_words
from streaming_pca.dashboard.observing.lookup import ReleaseLookup
from streaming_pca.dashboard.observing.standing import ask_for_standings
from streaming_pca.dashboard.observing.streams import StreamState
from streaming_pca.dashboard.observing.watched import Watched
from streaming_pca.data.release import Release
from streaming_pca.service.errors import SessionLost, TopicError
from streaming_pca.service.kafka.clients import BrokerUnreachable

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
_REQUEST_MS = 5000
_BOOTSTRAP_MS = 3000
_STOP_SECONDS = 1.5


def _quick(kafka: KafkaSettings) -> KafkaSettings:
    """Shorten the timeouts of a worker's connection for interactive use."""
    limits = {
        "request_timeout_ms": min(kafka.request_timeout_ms, _REQUEST_MS),
        "bootstrap_timeout_ms": min(kafka.bootstrap_timeout_ms, _BOOTSTRAP_MS),
    }
    return kafka.model_copy(update=limits)


class Observer:
    """Observer of the streams of one broker.

    Parameters
    ----------
    settings : sequence of Settings
        One per stream, all with the same broker.
    history : int
        Releases of each stream to hold.
    """

    def __init__(self, settings: Sequence[Settings], *, history: int = 1000) -> None:
        self._kafka = _quick(settings[0].kafka)
        self._watched = Watched(self._kafka, settings, history)
        self._lookup = ReleaseLookup(self._kafka)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- start and stop ------------------------------------------------------

    def start(self) -> None:
        """Start the threads, which retry until the broker answers."""
        for part, run in (("topics", follow_topics), ("standing", ask_for_standings)):
            thread = threading.Thread(
                target=self._keep, args=(part, run), name=f"dashboard-{part}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the threads, within two seconds.

        A thread that waits for a hanging broker ends later, when its request times out.
        """
        self._stop.set()
        self._watched.table.changed.set()
        self._watched.table.wanted.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._lookup.close()

    def _keep(self, part: str, run: Callable[[Watched, KafkaSettings, threading.Event], None]) -> None:
        """Run one part until stopped; report each failure and restart the part."""
        logged = None
        while not self._stop.is_set():
            try:
                run(self._watched, self._kafka, self._stop)
                continue
            except (BrokerUnreachable, ConfigurationError, KafkaError, OSError, TopicError) as error:
                problem = in_words(error, self._kafka.bootstrap_servers)
            except Exception as error:
                # If the thread ended, old numbers would look current.
                problem = f"the dashboard failed ({type(error).__name__}): see its log"
                if logged != problem:
                    _log.exception("the dashboard failed at its %s", part)
                logged = problem
            self._watched.report(part, problem)
            self._stop.wait(_AGAIN_SECONDS)

    # -- answers from memory --------------------------------------------------

    def overview(self) -> Overview:
        """Return all streams at the same moment."""
        with self._watched.lock:
            return Overview(
                streams=[state.summary for state in self._watched.streams.values()],
                connection=self._watched.connection.answer(),
                revision=self._watched.listeners.revision,
            )

    def stream(self, name: str) -> StreamDetail:
        """Return a stream, with an empty ``guarantee``."""
        with self._watched.lock:
            return self._state(name).detail

    def history(self, name: str) -> History:
        """Return the columns of a stream's last releases."""
        with self._watched.lock:
            return self._state(name).releases.history()

    def releases(self, name: str, limit: int, before: int | None = None) -> ReleasePage:
        """Return releases of batches below ``before``, newest first."""
        with self._watched.lock:
            return self._state(name).releases.page(limit, before)

    def ledgers(self) -> list[LedgerSummary]:
        """Return all ledgers, ordered by input topic."""
        with self._watched.lock:
            return [view.summary() for view in self._watched.views.values()]

    def ledger(self, input: str) -> LedgerSummary:
        """Return the ledger of an input topic."""
        with self._watched.lock:
            return self._view(input).summary()

    def entries(self, input: str, limit: int, before: int | None = None, job: str | None = None) -> EntryPage:
        """Return entries at offsets below ``before``, newest first."""
        with self._watched.lock:
            return self._view(input).page(limit, before, job)

    def verification(self, input: str) -> Verification:
        """Return the last verification of a ledger."""
        self._view(input)
        return self._watched.verifications.last(input)

    def listen(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Register a callback for events; return a function that unregisters it.

        The callback runs in a thread of this object, when the answers already include the change.
        """
        return self._watched.listeners.listen(callback)

    # -- answers that may ask the broker ---------------------------------------

    def release(self, name: str, batch: int | None = None) -> tuple[bytes, Release]:
        """Return the bytes of a release as published, and the release; by default the latest.

        Raises
        ------
        UnknownStream, UnknownRelease
        BrokerUnreachable, TopicError
        """
        with self._watched.lock:
            releases = self._state(name).releases
            point = releases.last if batch is None else releases.find(batch)
            latest = releases.latest if point is not None and point is releases.last else None
            wanted = self._lookup.question(releases, point, batch)
        if latest is not None:
            return latest, Release.from_bytes(latest)
        self._require_broker()
        return self._lookup.ask(wanted)

    def record_charge(self, input: str, partition: int, offset: int) -> RecordCharge:
        """Return the charges of one record.

        Raises
        ------
        UnknownLedger, UnknownRecord
        TopicError
            If the ledger is not open or cannot be read.
        BrokerUnreachable
        """
        with self._watched.lock:
            view = self._view(input)
            view.require_readable()
            charge = view.record(partition, offset)
            named = view.is_named(partition, offset)
        if not named:
            # The record is in no range of the ledger, so it may never have existed.
            self._require_broker()
            try:
                require_record(self._kafka, input, partition, offset)
            except ConfigurationError as error:
                raise UnknownRecord(str(error).replace("--", "", 1)) from None
            except SessionLost as error:
                raise BrokerUnreachable(str(error).splitlines()[0]) from None
        return charge

    def verify(self, input: str) -> Verification:
        """Start a verification unless one is running; return the ledger's last one."""
        self._view(input)
        return self._watched.verifications.start(input)

    def _require_broker(self) -> None:
        problem = self._watched.connection.problem
        if problem is not None:
            raise BrokerUnreachable(problem)

    def _state(self, name: str) -> StreamState:
        try:
            return self._watched.streams[name]
        except KeyError:
            raise UnknownStream(f"stream {name!r} is not in the settings") from None

    def _view(self, input: str) -> LedgerView:
        try:
            return self._watched.views[input]
        except KeyError:
            raise UnknownLedger(f"no stream of the settings reads topic {input!r}") from None
