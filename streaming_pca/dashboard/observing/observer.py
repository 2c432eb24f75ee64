"""Observer of streams and ledgers: the data source of the API and the pages.

Two parts with separate connections take turns in one thread: one reads releases and ledgers; the other
requests leaders, lags, and whether topics were recreated. If one fails, the other continues. A further
connection serves lookups of single releases. It is a thread and not a task of the event loop, because
replaying ledgers would block that. :mod:`.releases`, :mod:`.traffic` and :mod:`.ledgers` bound its memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress

from kafka.errors import KafkaError

from streaming_pca.admin.broker_status import fetch_broker_snapshot, topic_partitions
from streaming_pca.admin.ledger import require_record
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard import models
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import in_words
from streaming_pca.dashboard.observing.lookup import ReleaseLookup, Unknown
from streaming_pca.dashboard.observing.releases import ReleaseHistory
from streaming_pca.dashboard.observing.streams import StreamState
from streaming_pca.dashboard.observing.topic_tail import read_topics
from streaming_pca.dashboard.observing.watched import Watched
from streaming_pca.data.release import Release
from streaming_pca.service.errors import BrokerUnreachable, SessionLost, TopicError
from streaming_pca.service.kafka.clients import admin_client, reading_consumer

_log = logging.getLogger(__name__)

_STATUS_SECONDS = 2.0
_AGAIN_SECONDS = 1.0
_IDLE_SECONDS = 0.2
_REQUEST_MS = 5000
_BOOTSTRAP_MS = 3000
_STOP_SECONDS = 1.5


def request_status(watched: Watched, kafka: KafkaSettings) -> Generator[bool]:
    """Request leaders, lags and topics every two seconds over one connection; always yield False."""
    states = list(watched.streams.values())
    names = sorted({*watched.topics, *watched.views})
    with closing(admin_client(kafka)) as admin, closing(reading_consumer(kafka)) as consumer:
        while True:
            described = list(admin.describe_topics(names))
            watched.table.set(described)
            # Without the leaders of all partitions the lag is unavailable.
            led = [t for t in described if all(p["leader_id"] >= 0 for p in t["partitions"])]
            inputs = topic_partitions(t for t in led if t["name"] in watched.views)
            snapshot = fetch_broker_snapshot(kafka, admin, consumer, [s.settings for s in states], inputs)
            now = time.monotonic()
            with watched.lock:
                for state in states:
                    state.stand(snapshot, watched.views[state.input], now, loaded=watched.is_loaded)
            watched.report("status", None)
            watched.refresh()
            while time.monotonic() - now < _STATUS_SECONDS and not watched.table.wanted:
                yield False
            watched.table.wanted = False


_PARTS = {"status": request_status, "topics": read_topics}


class Observer:
    """Observer of the streams of one broker, and of the last ``history`` releases of each."""

    def __init__(self, settings: Sequence[Settings], *, history: int = 1000) -> None:
        kafka = settings[0].kafka
        # A worker's timeouts are too long for interactive use.
        limits = {
            "request_timeout_ms": min(kafka.request_timeout_ms, _REQUEST_MS),
            "bootstrap_timeout_ms": min(kafka.bootstrap_timeout_ms, _BOOTSTRAP_MS),
        }
        self._kafka = kafka.model_copy(update=limits)
        self._watched = Watched(self._kafka, settings, history)
        self._lookup = ReleaseLookup(self._kafka)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard-observer", daemon=True)

    def start(self) -> None:
        """Start the thread, which retries until the broker answers."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread in two seconds; a hanging broker holds it until its request times out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        self._lookup.close()

    def _run(self) -> None:
        """Let the parts take turns until stopped; report each failure and restart the part after a pause."""
        parts: dict[str, Generator[bool]] = {}
        due = dict.fromkeys(_PARTS, 0.0)
        logged: dict[str, str] = {}
        while not self._stop.is_set():
            has_polled = False
            for name, make in _PARTS.items():
                if time.monotonic() < due[name] or self._stop.is_set():
                    continue
                try:
                    if name not in parts:
                        parts[name] = make(self._watched, self._kafka)
                    has_polled = next(parts[name]) or has_polled
                    continue
                except (BrokerUnreachable, ConfigurationError, KafkaError, OSError, TopicError) as error:
                    problem = in_words(error, self._kafka.bootstrap_servers)
                except Exception as error:
                    # If the thread ended, old numbers would look current.
                    problem = f"the dashboard failed ({type(error).__name__}): see its log"
                    if logged.get(name) != problem:
                        _log.exception("the dashboard failed at its %s", name)
                    logged[name] = problem
                # The failure has ended this iterator and closed its connection.
                del parts[name]
                self._watched.report(name, problem)
                due[name] = time.monotonic() + _AGAIN_SECONDS
            if not has_polled:
                self._stop.wait(_IDLE_SECONDS)
        for part in parts.values():
            with suppress(Exception):
                part.close()

    def overview(self) -> models.Overview:
        """Return all streams at the same moment."""
        with self._watched.lock:
            return models.Overview(
                streams=[state.summary for state in self._watched.streams.values()],
                connection=self._watched.connection(),
                revision=self._watched.listeners.revision,
            )

    def stream(self, name: str) -> models.StreamDetail:
        """Return a stream, with an empty ``guarantee``."""
        with self._watched.lock:
            return self._state(name).detail

    def history(self, name: str) -> models.History:
        with self._watched.lock:
            return self._releases(name).history()

    def traffic(self, name: str) -> models.Traffic:
        with self._watched.lock:
            return self._state(name).traffic.answer(name)

    def releases(self, name: str, limit: int, before: int | None = None) -> models.ReleasePage:
        with self._watched.lock:
            return self._releases(name).page(limit, before)

    def ledgers(self) -> list[models.LedgerSummary]:
        """Return all ledgers, ordered by input topic."""
        with self._watched.lock:
            return [view.summary() for view in self._watched.views.values()]

    def ledger(self, input: str) -> models.LedgerSummary:
        with self._watched.lock:
            return self._view(input).summary()

    def entries(
        self, input: str, limit: int, before: int | None = None, job: str | None = None
    ) -> models.EntryPage:
        with self._watched.lock:
            view = self._view(input)
            if view.problem is not None:
                raise TopicError(view.problem)
            return view.page(limit, before, job)

    def verification(self, input: str) -> models.Verification:
        self._view(input)
        return self._watched.verifications.last(input)

    def listen(self, callback: Callable[[models.Event], None]) -> Callable[[], None]:
        """Call back in another thread after each change; return a function that unregisters."""
        return self._watched.listeners.listen(callback)

    def release(self, name: str, batch: int | None = None) -> tuple[bytes, Release]:
        """Return the bytes of a release as published, and the release; by default the latest.

        Raises Unknown, BrokerUnreachable or TopicError.
        """
        with self._watched.lock:
            releases = self._releases(name)
            last, offsets = releases.last, releases.offsets(batch)
            latest = releases.latest if last is not None and last.offset in offsets else None
        if latest is not None:
            return latest, Release.from_bytes(latest)
        self._require_broker()
        return self._lookup.ask(releases.topic, name, batch, offsets)

    def record_charge(self, input: str, partition: int, offset: int) -> models.RecordCharge:
        """Return the charges of one record.

        Raises Unknown (also if the ledger is not open), BrokerUnreachable or TopicError.
        """
        with self._watched.lock:
            view = self._view(input)
            if view.trouble is not None:
                raise TopicError(view.trouble)
            if view.ledger.opened is None:
                raise Unknown(f"the ledger of topic {input!r} is not open")
            charge = view.record(partition, offset)
            named = view.ledger.spent(partition, offset) != view.ledger.everywhere
        if not named:
            # The record is in no range of the ledger, so it may never have existed.
            self._require_broker()
            try:
                require_record(self._kafka, input, partition, offset)
            except ConfigurationError as error:
                raise Unknown(str(error).replace("--", "", 1)) from None
            except SessionLost as error:
                raise BrokerUnreachable(str(error).splitlines()[0]) from None
        return charge

    def verify(self, input: str) -> models.Verification:
        """Start a verification unless one is running; return the ledger's last one."""
        self._view(input)
        return self._watched.verifications.start(input)

    def _require_broker(self) -> None:
        if (problem := self._watched.problem) is not None:
            raise BrokerUnreachable(problem)

    def _state(self, name: str) -> StreamState:
        streams = self._watched.streams
        if name not in streams:
            known = ", ".join(sorted(streams)[:10])
            raise Unknown(f"stream {name!r} is not in the settings: these have {known}")
        return streams[name]

    def _releases(self, name: str) -> ReleaseHistory:
        releases = self._state(name).releases
        if releases.problem is not None:
            raise TopicError(releases.problem)
        return releases

    def _view(self, input: str) -> LedgerView:
        if input not in self._watched.views:
            raise Unknown(f"no stream of the settings reads topic {input!r}")
        return self._watched.views[input]
