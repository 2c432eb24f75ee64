"""Follower of a stream's releases: everything shown is post-processing of published values."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from streaming_pca.config.settings import KafkaSettings
from streaming_pca.data.release import Release
from streaming_pca.linalg.subspace import orthonormalise, principal_angle
from streaming_pca.service.errors import TopicError
from streaming_pca.service.kafka.clients import BrokerUnreachable, reading_consumer

__all__ = ["FollowedRelease", "NotARelease", "follow_releases", "last_release"]

_POLL_MS = 200
_SILENCE_SECONDS = 10.0
"""Time without messages after which the broker is probed: polling a dead one is silent."""
_FIRST_SPAN = 4
"""Offsets read first from the end: two releases, each with the marker of its transaction."""


@dataclass(frozen=True)
class FollowedRelease:
    """Release as it was met on its topic.

    Attributes
    ----------
    release : Release
    principal_angle : float or None
        Largest principal angle to the previous release, in radians; None for the first
        release of the topic, and where the two have different dimensions.
    """

    release: Release
    principal_angle: float | None


@dataclass(frozen=True)
class NotARelease:
    """Message on the releases topic that is not a release."""

    topic: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}, offset {self.offset}: {self.reason}"


def follow_releases(
    kafka: KafkaSettings, topic: str, *, from_beginning: bool, stopped: Callable[[], bool]
) -> Generator[FollowedRelease | NotARelease | None, None, None]:
    """Yield the latest release, then each that follows; None after each idle poll.

    Parameters
    ----------
    kafka : KafkaSettings
    topic : str
        The releases topic.
    from_beginning : bool
        Yield all releases of the topic instead.
    stopped : callable
        Called between messages: True ends the iteration.

    Raises
    ------
    TopicError
        If the topic is missing, or was replaced by another since.
    BrokerUnreachable
    """
    reader = _Reader(kafka, topic)
    try:
        before: Release | None = None
        if from_beginning:
            reader.seek(reader.first)
        else:
            for latest in (two := reader.last(2))[-1:]:
                before = two[0] if len(two) == 2 else None
                yield FollowedRelease(latest, _angle(before, latest))
                before = latest
        while not stopped():
            found = reader.poll()
            if not found:
                yield None
            for item in found:
                if stopped():
                    return
                if isinstance(item, NotARelease):
                    yield item
                    continue
                yield FollowedRelease(item, _angle(before, item))
                before = item
    finally:
        reader.close()


def last_release(kafka: KafkaSettings, topic: str) -> Release | None:
    """Return the latest release of an existing topic; None before the first."""
    reader = _Reader(kafka, topic)
    try:
        return next(iter(reader.last(1)), None)
    finally:
        reader.close()


class _Reader:
    """Reader of the releases topic, read_committed: aborted releases were never published."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic, self._tp = topic, TopicPartition(topic, 0)
        self._timeout_ms = kafka.request_timeout_ms
        self._heard = time.monotonic()
        self._consumer = reading_consumer(kafka)
        try:
            if 0 not in (self._consumer.partitions_for_topic(topic) or ()):
                raise TopicError(f"topic {topic!r} is missing")
            self._consumer.assign([self._tp])
            self.first = self._offset(self._consumer.beginning_offsets)
        except KafkaError as error:
            self.close()
            raise BrokerUnreachable(f"reading {topic} failed: {_name(error)}") from None
        except BaseException:
            self.close()
            raise

    def _offset(self, of: Callable[..., dict[TopicPartition, int]]) -> int:
        return int(of([self._tp], timeout_ms=self._timeout_ms)[self._tp])

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._tp, offset)

    def last(self, wanted: int) -> list[Release]:
        """Return up to ``wanted`` last releases, in order; :meth:`poll` goes on behind them."""
        try:
            # On a read_committed consumer this is the last stable offset: no open transaction is before it.
            end = self._offset(self._consumer.end_offsets)
            span = _FIRST_SPAN
            while True:
                start = max(self.first, end - span)
                releases = [r for r in self._between(start, end) if isinstance(r, Release)]
                if len(releases) >= wanted or start == self.first:
                    self.seek(end)
                    return releases[-wanted:]
                span *= 4
        except KafkaError as error:
            raise BrokerUnreachable(f"reading {self._topic} failed: {_name(error)}") from None

    def _between(self, start: int, end: int) -> Iterator[Release | NotARelease]:
        self.seek(start)
        deadline = time.monotonic() + 3 * self._timeout_ms / 1000
        while int(self._consumer.position(self._tp, timeout_ms=self._timeout_ms) or 0) < end:
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"reading {self._topic} to offset {end} takes too long")
            for message in self._messages():
                if message.offset < end:
                    yield _read(self._topic, message)

    def poll(self) -> list[Release | NotARelease]:
        """Wait briefly for new messages, and return them."""
        try:
            return [_read(self._topic, message) for message in self._messages()]
        except OffsetOutOfRangeError:
            raise TopicError(
                f"topic {self._topic!r} has lost what was to be read next: it was deleted, or made anew"
            ) from None
        except KafkaError as error:
            raise BrokerUnreachable(f"reading {self._topic} failed: {_name(error)}") from None

    def _messages(self) -> list[Any]:
        polled = self._consumer.poll(timeout_ms=_POLL_MS)
        silent = not polled and time.monotonic() - self._heard > _SILENCE_SECONDS
        if silent:
            self._offset(self._consumer.end_offsets)
        if polled or silent:
            self._heard = time.monotonic()
        return [message for messages in polled.values() for message in messages]

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def _read(topic: str, message: Any) -> Release | NotARelease:
    try:
        release = Release.from_bytes(message.value or b"")
        _check(release)
    except ValueError as error:
        return NotARelease(topic, message.offset, str(error))
    return release


def _check(release: Release) -> None:
    """Raise ValueError if a release's numbers are inconsistent, for they are computed with."""
    shape = (release.rank, release.dim)
    try:
        components = np.array(release.components, dtype=np.float64)
    except ValueError:
        components = np.empty(0)
    if components.shape != shape or not np.isfinite(components).all():
        raise ValueError(f"not a release: components are not {shape[0]} x {shape[1]} finite numbers")
    if not np.isfinite(release.explained_variance).all():
        raise ValueError("not a release: explained_variance is not finite")
    try:
        datetime.fromisoformat(release.created)
    except ValueError:
        raise ValueError("not a release: created is no time of day") from None


def _angle(before: Release | None, release: Release) -> float | None:
    if before is None or before.dim != release.dim:
        return None
    if "tensor" in (before.kind, release.kind):
        # Components of a tensor need not be orthogonal: compare their spans.
        first, second = (orthonormalise(np.array(r.components).T).T for r in (before, release))
        return principal_angle(first, second)
    return principal_angle(np.array(before.components), np.array(release.components))


def _name(error: KafkaError) -> str:
    return type(error).__name__
