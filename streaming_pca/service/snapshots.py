"""The ends of all partitions, read on the ticks of one clock for all streams of a worker."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from streaming_pca.kafka_settings import KafkaSettings
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.ticks import first_line

__all__ = ["Ends", "Feed", "Snapshot", "SnapshotClock"]

log = logging.getLogger(__name__)

Ends = dict[int, int]
"""An offset by partition."""

_FREE_AFTER = 2**16
_SILENCE_SECONDS = 30
"""A clock that says nothing for so long has stopped: it says something every second."""


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
    topic_id : str, optional
        The life of the topic that is meant: the feed fails when the topic has another.
    """

    def __init__(self, topic: str, notify: Callable[[], None], topic_id: str | None = None) -> None:
        self.topic, self.topic_id = topic, topic_id
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
            raise SessionLost(f"following {self.topic} failed: {self._error}") from self._error


class SnapshotClock:
    """Hands the ticks of the clock's process (:mod:`~streaming_pca.service.ticks`) to the open feeds.

    When a tick is, and what it sees, is settled in that process. How late this
    one gets to it changes nothing.

    Parameters
    ----------
    kafka : KafkaSettings
    tick, partitions_every : float
        Seconds between ticks, and between looks for new partitions.
    """

    def __init__(self, kafka: KafkaSettings, tick: float, partitions_every: float) -> None:
        self._first = first_line(kafka, tick, partitions_every)
        self._feeds: list[Feed] = []
        self._partitions: dict[str, int] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, so that the first feed need not wait for it; it waits for nobody itself."""
        with self._lock:
            self._start()

    def open(
        self,
        topic: str,
        partitions: Iterable[int],
        notify: Callable[[], None],
        topic_id: str | None = None,
    ) -> Feed:
        """Start a feed of a topic, whose partitions are known now; new ones are found."""
        with self._lock:
            self._start()
            feed = Feed(topic, notify, topic_id)
            self._feeds.append(feed)
            # Partitions are numbered from 0.
            known = max(partitions, default=-1) + 1
            self._partitions[topic] = max(self._partitions.get(topic, 0), known)
            self._tell()
        return feed

    def close_feed(self, feed: Feed) -> None:
        """Stop reading for a feed."""
        with self._lock:
            self._drop([feed])
            self._tell()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            # -P: nothing is imported from whatever folder the worker was started in.
            [sys.executable, "-P", "-m", "streaming_pca.service.ticks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C is for the worker
        )
        self._write(self._first)
        threading.Thread(target=self._read, args=(self._process,), name="snapshots", daemon=True).start()

    def _tell(self) -> None:
        self._write(json.dumps(self._partitions).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # An error says that it has ended: the reader notices, and fails the feeds.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _drop(self, feeds: list[Feed]) -> None:
        self._feeds = [f for f in self._feeds if f not in feeds]
        read = {f.topic for f in self._feeds}
        self._partitions = {topic: n for topic, n in self._partitions.items() if topic in read}

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as out:
            for line in _lines(out):
                event = json.loads(line)
                if "ends" in event:
                    self._add(event["at"], event["ends"])
                elif "ids" in event:
                    self._identify(event["at"], event["ids"])
                else:
                    self._fail(event)
        process.kill()  # if it is there still, it has been silent
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            # All of them were its own: one that is opened from here on has the next process.
            lost, self._feeds, self._partitions = self._feeds, [], {}
        for feed in lost:
            feed.fail(SessionLost("the clock's process ended"))

    def _add(self, at: float, ends: dict[str, list[int]]) -> None:
        with self._lock:
            # A tick that was on its way when a feed was opened is not one of its own.
            feeds = [f for f in self._feeds if f.topic in ends and at >= f.started]
        grown = {f.topic for f in feeds if 0 < len(f.last) < len(ends[f.topic])}
        for topic in sorted(grown):
            log.info("topic %s has %d partitions now", topic, len(ends[topic]))
        for feed in feeds:
            feed.add(at, dict(enumerate(ends[feed.topic])))

    def _identify(self, at: float, ids: dict[str, str]) -> None:
        """Fail the feeds of topics that were created again."""
        with self._lock:
            lost = [f for f in self._feeds if f.topic_id is not None and at >= f.started]
            lost = [f for f in lost if ids.get(f.topic, f.topic_id) != f.topic_id]
            self._drop(lost)
        for feed in lost:
            feed.fail(SessionLost(f"topic {feed.topic!r} was deleted and created again"))

    def _fail(self, event: dict[str, Any]) -> None:
        topics = event["topics"]
        with self._lock:
            lost = [f for f in self._feeds if topics is None or f.topic in topics]
            lost = [f for f in lost if f.started <= event["at"]]
            self._drop(lost)
            # The process has forgotten its topics: those of feeds that were opened meanwhile, too.
            self._tell()
        for feed in lost:
            feed.fail(SessionLost(event["failed"]))


def _lines(out: IO[bytes]) -> Iterator[bytes]:
    """Whole lines as they come, until the pipe ends or nothing has come for long."""
    poll = select.poll()
    poll.register(out, select.POLLIN)
    rest = b""
    # Twice: if it is this process that stood still, there is something to read now.
    while poll.poll(_SILENCE_SECONDS * 1000) or poll.poll(1000):
        data = os.read(out.fileno(), 2**16)
        if not data:
            return  # what is left of a line was cut off with the process
        *lines, rest = (rest + data).split(b"\n")
        yield from filter(None, lines)
