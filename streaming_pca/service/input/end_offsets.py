"""End offsets of the input's partitions, from the clock process to the sessions."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.records import Schemas, Subject
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.input.clock import decode_schemas, settings_line
from streaming_pca.service.process_hardening import environment_without_settings

log = logging.getLogger(__name__)

Offsets = dict[int, int]  # offset of each partition

_FREE_AFTER = 2**16
_SILENCE_SECONDS = 30  # longest silence of a living clock process, which writes a line each second


@dataclass(frozen=True)
class EndOffsets:
    """Last stable offsets of a topic's partitions at one tick.

    ``time`` is in seconds of the monotonic clock. ``schemas`` is a registry's listing after the tick; the
    same object until a schema is new.
    """

    time: float
    ends: Offsets
    schemas: Schemas | None = None


class OffsetFeed:
    """Queue of a topic's end offsets for one reader, in the order of the ticks.

    Entries are never dropped: the reader's pace depends on contents, and must not change the end offsets
    that it sees. Equal neighbours are merged, and each entry takes 8 bytes per partition: with three
    partitions and five ticks a second, 14 MB per day of lag. Ticks that are held back are not merged, and
    take 200 bytes more: 4 MB for an hour of three partitions.

    If records name schemas of a registry's ``subject``, a tick is held back until a listing that began after
    it: a producer registers a schema before it writes the first record, so each record below the tick's ends
    names a schema of that listing.

    The poller's thread calls ``notify`` when new data may be available. The feed fails if the topic gets
    another id than ``topic_id``.
    """

    def __init__(
        self,
        topic: str,
        notify: Callable[[], None],
        topic_id: str | None = None,
        subject: Subject | None = None,
    ) -> None:
        self.topic, self.topic_id, self.subject = topic, topic_id, subject
        self._notify = notify
        self._lock = threading.Lock()
        self._offsets = array("q")
        self._times = array("d")
        self._widths = array("q")
        self._versions = array("q")
        self._listed: list[Schemas | None] = [None]
        self._held: deque[tuple[float, float, array[int]]] = deque()
        self._listings: deque[tuple[float, int]] = deque()
        self._offsets_read = 0
        self._entries_read = 0
        self._last = array("q")
        self._last_version = 0
        self.last: Offsets = {}  # the newest ends, including unread and held ones
        self._wake_at = float("inf")
        self._error: BaseException | None = None
        self.started = time.monotonic()  # time when the feed was opened
        self.ticked = self.started  # time of the last appended tick; at first, of the opening
        self.unlisted: BaseException | None = None  # reason why schemas are not known yet
        self.listed_at = 0.0  # time of the registry's last listing, in seconds since 1970

    @property
    def schemas(self) -> Schemas | None:
        """The newest schemas that a registry has listed; None before the first listing."""
        return self._listed[-1]

    def add(self, at: float, ends: Offsets, by: float = math.inf) -> None:
        """Append the ends of a tick, received by a time; from the poller's thread."""
        with self._lock:
            self.last = ends
            # Partitions are numbered from 0 and never removed.
            row = array("q", (ends[p] for p in sorted(ends)))
            if self.subject is None:
                wanted = self._append(at, row, 0)
            else:
                # Later ticks do not need listings that began before this one.
                while self._listings and self._listings[0][0] < by:
                    self._listings.popleft()
                self._held.append((at, by, row))
                wanted = self._release()
        if wanted:
            self._notify()

    def add_listing(self, began: float, schemas: Schemas) -> None:
        """Record a registry's listing and the time of its request; from the poller's thread."""
        with self._lock:
            first, self.unlisted = self._listed[-1] is None, None
            if schemas is not self._listed[-1]:
                self._listed.append(schemas)
            version = len(self._listed) - 1
            if self._listings and self._listings[-1][1] == version:
                self._listings.pop()
            self._listings.append((began, version))
            wanted = self._release() or first
        if wanted:
            self._notify()

    def _release(self) -> bool:
        """Append the held ticks that a listing covers; return whether to notify the reader.

        Each tick gets the first listing that began after it, so delays on either side do not matter.
        """
        wanted = False
        while self._held and self._listings:
            at, by, ends = self._held[0]
            version = next((version for began, version in self._listings if began >= by), None)
            if version is None:
                break
            self._held.popleft()
            wanted |= self._append(at, ends, version)
        return wanted

    def _append(self, at: float, ends: array[int], version: int) -> bool:
        changed = ends != self._last or version != self._last_version
        if changed:
            self._offsets.extend(ends)
            self._widths.append(len(ends))
            self._times.append(at)
            self._versions.append(version)
            self._last, self._last_version = ends, version
        self.ticked = at
        return changed or at >= self._wake_at

    def miss_listing(self, error: BaseException) -> None:
        """Record why schemas are not known yet; from the poller's thread."""
        self.unlisted = error
        self._notify()

    def fail(self, error: BaseException) -> None:
        """End the feed with an error; from the poller's thread."""
        self._error = error
        self._notify()

    def peek(self) -> float | None:
        """Return the time of the oldest unread end offsets; None if all are read."""
        with self._lock:
            return self._times[self._entries_read] if self._entries_read < len(self._times) else None

    def next(self) -> EndOffsets | None:
        """Return the oldest unread end offsets, or None; raise SessionLost then if the feed has failed."""
        with self._lock:
            if self._entries_read == len(self._times):
                self.check()
                return None
            i = self._entries_read
            start, width = self._offsets_read, self._widths[i]
            offsets = self._offsets[start : start + width]
            schemas = self._listed[self._versions[i]]
            end_offsets = EndOffsets(self._times[i], dict(enumerate(offsets)), schemas)
            self._offsets_read, self._entries_read = start + width, i + 1
            if self._offsets_read >= _FREE_AFTER:
                del self._offsets[: self._offsets_read], self._times[: i + 1], self._widths[: i + 1]
                del self._versions[: i + 1]
                self._offsets_read = self._entries_read = 0
            return end_offsets

    def wake_at(self, at: float) -> None:
        """Notify on every tick from this time on, even without a change."""
        self._wake_at = at

    def check(self) -> None:
        if self._error is not None:
            raise SessionLost(f"following {self.topic} failed: {self._error}") from self._error


class EndOffsetPoller:
    """Worker's side of the clock process, which delivers the ticks to the open feeds.

    Only the process (:mod:`~streaming_pca.service.input.clock`) decides the time of a tick and its end
    offsets. A delay on this side changes neither. A thread calls ``on_answer`` with the duration of a tick's
    requests to the broker, in seconds.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        tick: float,
        partitions_every: float,
        on_answer: Callable[[float], None] = lambda seconds: None,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._on_answer = on_answer
        self._settings_line = settings_line(kafka, tick, partitions_every, registry)
        self._feeds: list[OffsetFeed] = []
        self._partitions: dict[str, int] = {}
        self._schemas: dict[Subject, Schemas] = {}
        self._unanswered: set[Subject] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process early, so that the first feed does not wait for it."""
        with self._lock:
            self._start()

    def open_feed(
        self,
        topic: str,
        partitions: Iterable[int],
        notify: Callable[[], None],
        topic_id: str | None = None,
        subject: Subject | None = None,
    ) -> OffsetFeed:
        """Open a feed of a topic with its known partitions; new partitions are detected."""
        with self._lock:
            self._start()
            feed = OffsetFeed(topic, notify, topic_id, subject)
            self._feeds.append(feed)
            # Partitions are numbered from 0.
            known = max(partitions, default=-1) + 1
            self._partitions[topic] = max(self._partitions.get(topic, 0), known)
            # Otherwise its ticks would wait for the next periodic listing if another feed has the subject.
            self._send_topics(list_now=subject is not None)
        return feed

    def close_feed(self, feed: OffsetFeed) -> None:
        with self._lock:
            self._remove([feed])
            self._send_topics()

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            return
        self._process = subprocess.Popen(  # nosec B603  # this Python, and our module
            # -P: import nothing from the worker's working directory.
            [sys.executable, "-P", "-m", "streaming_pca.service.input.clock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_without_settings(),
            process_group=0,  # keep a terminal's Ctrl-C from this process
        )
        self._write(self._settings_line)
        threading.Thread(target=self._read, args=(self._process,), name="end-offsets", daemon=True).start()

    def _send_topics(self, list_now: bool = False) -> None:
        subjects = sorted({f.subject for f in self._feeds if f.subject is not None}, key=str)
        wanted = {"topics": self._partitions, "subjects": subjects, "list_now": list_now}
        self._write(json.dumps(wanted).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        # An error means that the process has ended; the reading thread notices that and fails the feeds.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _remove(self, feeds: list[OffsetFeed]) -> None:
        self._feeds = [f for f in self._feeds if f not in feeds]
        read = {f.topic for f in self._feeds}
        self._partitions = {topic: n for topic, n in self._partitions.items() if topic in read}

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as out:
            for line in _lines(out):
                event = json.loads(line)
                if "ends" in event:
                    self._deliver(event["at"], event["by"], event["ends"])
                elif "subject" in event:
                    self._list_schemas(event)
                elif "ids" in event:
                    self._check_ids(event["at"], event["ids"])
                elif "waited" in event:
                    self._on_answer(event["waited"])
                else:
                    self._fail(event)
        process.kill()  # it may still run without output
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            # All existing feeds belonged to the dead process; the next feed starts a new one.
            lost, self._feeds, self._partitions = self._feeds, [], {}
        for feed in lost:
            feed.fail(SessionLost("the clock's process ended"))

    def _deliver(self, at: float, by: float, ends: dict[str, list[int]]) -> None:
        with self._lock:
            # Do not deliver ticks that began before a feed was opened.
            feeds = [f for f in self._feeds if f.topic in ends and at >= f.started]
        for topic in sorted({f.topic for f in feeds if 0 < len(f.last) < len(ends[f.topic])}):
            log.info("topic %s has %d partitions now", topic, len(ends[topic]))
        for feed in feeds:
            feed.add(at, dict(enumerate(ends[feed.topic])), by)

    def _list_schemas(self, event: dict[str, Any]) -> None:
        """Deliver the registry's listing, or, after a failure, its previous one.

        An unavailable registry does not stop streams, since it cannot register new schemas either.
        """
        subject, at = Subject(*event["subject"]), event["at"]
        known = self._schemas.get(subject, {})
        if "failed" not in event:
            found = {i: s for i, s in decode_schemas(subject, event["schemas"]).items() if i not in known}
            if found:
                known = self._schemas[subject] = {**known, **found}
                ids = ", ".join(str(each) for each in sorted(found))
                log.info("subject %r has new schemas: ids %s", subject.name, ids)
            if subject in self._unanswered:
                self._unanswered.remove(subject)
                log.info("the schema registry answers again for subject %r", subject.name)
        elif known and subject not in self._unanswered:
            self._unanswered.add(subject)
            line = "%s: continuing with the known schemas of subject %r (%d)"
            log.warning(line, event["failed"], subject.name, len(known))
        with self._lock:
            feeds = [f for f in self._feeds if f.subject == subject]
        for feed in feeds:
            if "failed" not in event:
                feed.listed_at = time.time()
            if known:
                feed.add_listing(at, known)
            else:
                kind = StreamRefused if event["refused"] else SessionLost
                feed.miss_listing(kind(event["failed"]))

    def _check_ids(self, at: float, ids: dict[str, str]) -> None:
        """Fail the feeds of recreated topics."""
        with self._lock:
            lost = [f for f in self._feeds if f.topic_id is not None and at >= f.started]
            lost = [f for f in lost if ids.get(f.topic, f.topic_id) != f.topic_id]
            self._remove(lost)
        for feed in lost:
            feed.fail(SessionLost(f"topic {feed.topic!r} was deleted and created again"))

    def _fail(self, event: dict[str, Any]) -> None:
        topics = event["topics"]
        if topics == []:
            log.warning("a tick was lost: %s", event["failed"])
        with self._lock:
            lost = [f for f in self._feeds if topics is None or f.topic in topics]
            lost = [f for f in lost if f.started <= event["at"]]
            self._remove(lost)
            # The process has dropped these topics, also for feeds opened since, so send them again.
            self._send_topics()
        for feed in lost:
            feed.fail(SessionLost(event["failed"]))


def _lines(out: IO[bytes]) -> Iterator[bytes]:
    """Yield complete lines as they arrive, until the pipe ends or stays silent."""
    poll = select.poll()
    poll.register(out, select.POLLIN)
    # Joined from parts: a line with a registry's schemas can have many MiB.
    parts: list[bytes] = []
    # Polled twice: after a suspension of this process, the pipe has data by now.
    while poll.poll(_SILENCE_SECONDS * 1000) or poll.poll(1000):
        data = os.read(out.fileno(), 2**16)
        if not data:
            return  # the process ended in the middle of a line
        *ends, rest = data.split(b"\n")
        for end in ends:
            line, parts = b"".join([*parts, end]), []
            if line:
                yield line
        parts.append(rest)
