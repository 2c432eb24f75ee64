"""The ends of all partitions, read on the ticks of one clock for all streams of a process."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming_pca.service.clients import BrokerUnreachable, admin_client, last_offsets, reading_consumer
from streaming_pca.service.errors import SessionLost
from streaming_pca.settings import KafkaSettings

__all__ = ["Ends", "Feed", "Snapshot", "SnapshotClock"]

log = logging.getLogger(__name__)

Ends = dict[int, int]
"""An offset by partition."""

_FREE_AFTER = 2**16
_ALONE_MS = 2000


@dataclass(frozen=True)
class Snapshot:
    """Where the partitions of a topic ended at a tick.

    Attributes
    ----------
    time : float
        The tick, in seconds of the monotonic clock.
    ends : dict of partition to offset
        Last stable offsets.
    """

    time: float
    ends: Ends


class Feed:
    """The snapshots of one topic since the feed was opened, for one reader.

    None is ever dropped: how many wait depends on how fast the reader is, and
    that on contents. They are kept as 8 bytes a partition, and equal neighbours
    are one: three partitions and five ticks a second are 14 MB for every day
    that the reader lags.

    Parameters
    ----------
    topic : str
    notify : callable
        Called from the clock's thread when there may be something new.
    """

    def __init__(self, topic: str, notify: Callable[[], None]) -> None:
        self.topic = topic
        self._notify = notify
        self._lock = threading.Lock()
        self._queue = array("q")
        self._times = array("d")
        self._width = array("q")
        self._taken = 0
        self._entries_taken = 0
        self._last: Ends = {}
        self._wake_at = float("inf")
        self._error: BaseException | None = None
        self.started = time.monotonic()
        """When it was opened."""
        self.ticked = self.started
        """All ticks up to this time are in the queue."""

    @property
    def last(self) -> Ends:
        """The newest ends, taken or not."""
        return self._last

    def add(self, at: float, ends: Ends) -> None:
        """Take in a tick; from the clock's thread."""
        with self._lock:
            changed = ends != self._last
            if changed:
                # Partitions are numbered from 0 and only ever added.
                self._queue.extend(ends[p] for p in sorted(ends))
                self._width.append(len(ends))
                self._times.append(at)
                self._last = ends
            self.ticked = at
            wanted = changed or at >= self._wake_at
        if wanted:
            self._notify()

    def fail(self, error: BaseException) -> None:
        """No more will come; from the clock's thread."""
        self._error = error
        self._notify()

    def peek(self) -> float | None:
        """When the oldest snapshot not taken yet was made; None if there is none."""
        with self._lock:
            if self._entries_taken == len(self._times):
                return None
            return self._times[self._entries_taken]

    def next(self) -> Snapshot | None:
        """Take the oldest snapshot; None if all are taken. SessionLost if the clock has stopped."""
        with self._lock:
            if self._entries_taken == len(self._times):
                self.check()
                return None
            i = self._entries_taken
            start, width = self._taken, self._width[i]
            offsets = self._queue[start : start + width]
            snapshot = Snapshot(self._times[i], dict(enumerate(offsets)))
            self._taken, self._entries_taken = start + width, i + 1
            if self._taken >= _FREE_AFTER:
                del self._queue[: self._taken], self._times[: i + 1], self._width[: i + 1]
                self._taken = self._entries_taken = 0
            return snapshot

    def wake_at(self, at: float) -> None:
        """Notify on every tick from this time on, changes or not."""
        self._wake_at = at

    def check(self) -> None:
        """Raise SessionLost if the clock has stopped: the broker does not answer."""
        if self._error is not None:
            raise SessionLost(f"reading the ends of {self.topic} failed: {self._error}") from self._error


class SnapshotClock:
    """Reads the last stable offsets of the topics of all open feeds, tick after tick.

    Parameters
    ----------
    kafka : KafkaSettings
    tick, partitions_every : float
        Seconds between ticks, and between looks for new partitions.
    """

    def __init__(self, kafka: KafkaSettings, tick: float, partitions_every: float) -> None:
        self._kafka, self._tick, self._partitions_every = kafka, tick, partitions_every
        self._feeds: list[Feed] = []
        self._partitions: dict[str, tuple[TopicPartition, ...]] = {}
        self._answered: set[str] = set()
        self._silent: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, topic: str, partitions: Iterable[int], notify: Callable[[], None]) -> Feed:
        """Start a feed of a topic, whose partitions are known now; new ones are found."""
        feed = Feed(topic, notify)
        with self._lock:
            known = self._partitions.get(topic, ())
            found = tuple(TopicPartition(topic, p) for p in sorted(partitions))
            self._partitions[topic] = max(known, found, key=len)
            self._feeds.append(feed)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
                self._thread.start()
        return feed

    def close_feed(self, feed: Feed) -> None:
        """Stop reading for a feed."""
        with self._lock:
            self._feeds = [f for f in self._feeds if f is not feed]
            if not any(f.topic == feed.topic for f in self._feeds):
                self._partitions.pop(feed.topic, None)
                self._silent.pop(feed.topic, None)

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=self._kafka.request_timeout_ms / 1000 + 1)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._serve()
            except (KafkaError, BrokerUnreachable, OSError) as error:
                # Those who read now start anew; those who come later get a new consumer.
                self._fail(type(error).__name__)
            except BaseException as error:
                self._fail(f"a bug in the clock: {type(error).__name__}")
                log.exception("the clock failed")
            self._stopped.wait(self._tick)

    def _fail(self, reason: str, topics: Iterable[str] | None = None) -> None:
        with self._lock:
            lost = [f for f in self._feeds if topics is None or f.topic in topics]
            self._feeds = [f for f in self._feeds if f not in lost]
            for topic in {f.topic for f in lost}:
                self._partitions.pop(topic, None)
        for feed in lost:
            feed.fail(SessionLost(reason))

    def _serve(self) -> None:
        consumer: KafkaConsumer | None = None
        due = time.monotonic()
        looked = due
        try:
            while not self._stopped.is_set():
                with self._lock:
                    feeds, partitions = list(self._feeds), dict(self._partitions)
                at = time.monotonic()
                if feeds:
                    consumer = consumer or reading_consumer(self._kafka, control=True)
                    if not self._read(consumer, at, feeds, partitions):
                        # Perhaps it is the consumer that has failed.
                        consumer.close(autocommit=False)
                        consumer = None
                    if at - looked >= self._partitions_every:
                        looked = at
                        self._look(set(partitions))
                due = max(due + self._tick, time.monotonic())
                self._stopped.wait(due - time.monotonic())
        finally:
            if consumer is not None:
                consumer.close(autocommit=False)

    def _read(
        self,
        consumer: KafkaConsumer,
        at: float,
        feeds: list[Feed],
        partitions: dict[str, tuple[TopicPartition, ...]],
    ) -> bool:
        """One tick for all feeds; whether any topic answered."""
        # All that were answered before in one request; a new topic alone, because the client
        # waits for metadata only where it knows no leader at all.
        asked = [topic for topic in partitions if topic in self._answered]
        groups = [asked, *([topic] for topic in partitions if topic not in self._answered)]
        ends: dict[str, Ends] = {}
        while groups:
            group = groups.pop()
            wanted = [tp for topic in group for tp in partitions[topic]]
            timeout = self._kafka.request_timeout_ms
            # One that does not answer may not hold up the others' ticks for long.
            timeout = timeout if len(group) > 1 else min(timeout, _ALONE_MS)
            try:
                found = last_offsets(consumer, wanted, timeout) if wanted else {}
            except KafkaError as error:
                self._answered -= set(group)
                if len(group) > 1:
                    # One topic that was deleted, or has no leader, must not stop the others' streams.
                    # A broker that is dead must: then looking fails.
                    self._look(set(group))
                    groups.extend([topic] for topic in group)
                else:
                    self._bear(group[0], error)
                continue
            for topic in group:
                self._answered.add(topic)
                self._silent.pop(topic, None)
                ends[topic] = {tp.partition: found[tp] for tp in partitions[topic]}
        for feed in feeds:
            if feed.topic in ends:
                feed.add(at, ends[feed.topic])
        return bool(ends)

    def _bear(self, topic: str, error: KafkaError) -> None:
        """Skip a topic for this tick, or give its feeds up if it has been silent for too long."""
        since = self._silent.setdefault(topic, time.monotonic())
        if (time.monotonic() - since) * 1000 >= self._kafka.request_timeout_ms:
            self._silent.pop(topic)
            self._fail(type(error).__name__, {topic})

    def _look(self, topics: set[str]) -> None:
        """Find new partitions, and give up the feeds of topics that are gone."""
        admin = admin_client(self._kafka)
        try:
            described = {t["name"]: t for t in admin.describe_topics(sorted(topics))}
        finally:
            admin.close()
        gone = {t for t in topics if t not in described or described[t]["error_code"]}
        with self._lock:
            for topic in topics - gone:
                found = sorted(p["partition_index"] for p in described[topic]["partitions"])
                # A partition without a leader yet would hold up every tick.
                ready = all(p["leader_id"] >= 0 for p in described[topic]["partitions"])
                known = self._partitions.get(topic)
                if known is not None and ready and len(found) > len(known):
                    log.info("topic %s has %d partitions now", topic, len(found))
                    self._partitions[topic] = tuple(TopicPartition(topic, p) for p in found)
        if gone:
            self._fail("the topic is gone", gone)
