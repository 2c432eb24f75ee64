"""The ends of all partitions, read on the ticks of a clock."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable

from kafka import TopicPartition

from streaming_pca.service.clients import reading_consumer
from streaming_pca.service.errors import SessionLost
from streaming_pca.settings import KafkaSettings

__all__ = ["Ends", "SnapshotClock"]

Ends = dict[int, int]
"""An offset by partition."""

_FREE_AFTER = 2**16


class SnapshotClock:
    """Reads the last stable offsets of all partitions on the ticks of a clock.

    No snapshot is ever dropped: how many wait depends on how fast the reader is,
    and that on contents. They are kept as 8 bytes a partition, and equal
    neighbours are one: three partitions and five ticks a second are 10 MB for
    every day that the reader lags.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, partitions: Iterable[int], tick: float) -> None:
        self._partitions = [TopicPartition(topic, p) for p in partitions]
        self._consumer = reading_consumer(kafka)
        self._timeout = kafka.request_timeout_ms
        self._tick = tick
        self._order = sorted(tp.partition for tp in self._partitions)
        self._queue = array("q")
        self._taken = 0
        self._last: Ends = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stopped.is_set():
                ends = self._consumer.end_offsets(self._partitions, timeout_ms=self._timeout)
                self._add({tp.partition: offset for tp, offset in ends.items()})
                due = max(due + self._tick, time.monotonic())
                self._stopped.wait(due - time.monotonic())
        except BaseException as error:  # handed to the reader, who decides
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._consumer.close(autocommit=False)

    def _add(self, ends: Ends) -> None:
        with self._changed:
            if ends == self._last:
                return
            self._last = ends
            self._queue.extend(ends[p] for p in self._order)
            self._changed.notify_all()

    def next(self, timeout: float) -> Ends | None:
        """The oldest snapshot not taken yet; None if none comes within ``timeout`` seconds."""
        with self._changed:
            if self._taken == len(self._queue) and self._error is None:
                self._changed.wait(timeout)
            if self._taken == len(self._queue):
                self.check()
                return None
            end = self._taken + len(self._order)
            offsets = self._queue[self._taken : end]
            self._taken = end
            if self._taken >= _FREE_AFTER:
                del self._queue[: self._taken]
                self._taken = 0
            return dict(zip(self._order, offsets, strict=True))

    def check(self) -> None:
        """Raise SessionLost if the thread has failed: the broker does not answer."""
        if self._error is not None:
            raise SessionLost(f"reading partition ends failed: {type(self._error).__name__}") from self._error

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._thread.join(timeout=self._timeout / 1000 + 1)
