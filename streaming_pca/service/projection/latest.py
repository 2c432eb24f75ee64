"""Release for the projection: the stream's newest or a chosen one."""

from __future__ import annotations

import logging
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.projection import Projection
from streaming_pca.data.release import ArrayDigest, Release, published_setting
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.kafka.clients import first_offsets, last_offsets, reading_consumer

log = logging.getLogger(__name__)

_POLL_MS = 10
_FIRST_SPAN = 4
"""Number of last offsets to read first: two releases, each with its transaction marker."""


class LatestRelease:
    """Reader of a releases topic that keeps its newest release.

    Parameters
    ----------
    batch : int, optional
        Batch of the release to use instead of the newest.

    Raises
    ------
    StreamRefused
        If that batch has no release, or the release has other settings.
    SessionLost
        If the broker fails.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, batch: int | None = None) -> None:
        self._kafka, self._stream, self._batch = kafka, stream, batch
        self._tp = TopicPartition(stream.releases_topic, 0)
        self.release: Release | None = None
        """Release in use; None before the first one."""
        self._consumer = reading_consumer(kafka, topics=[self._tp.topic])
        try:
            self._consumer.assign([self._tp])
            self._find()
        except KafkaError as error:
            self.close()
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        """Read backwards from the end until a usable release is found."""
        timeout = self._kafka.request_timeout_ms
        first = first_offsets(self._consumer, [self._tp], timeout)[self._tp]
        # A read_committed consumer's end offset lies before any open transaction.
        end, span = last_offsets(self._consumer, [self._tp], timeout)[self._tp], _FIRST_SPAN
        newest: Release | None = None
        while True:
            start = max(first, end - span)
            for release in self._between(start, end):
                newest = release
                if self._batch in (None, release.batch):
                    self.release = release
            older = newest is None or (self._batch is not None and newest.batch > self._batch)
            if self.release is not None or start == first or not older:
                break
            span *= 4
        if self._batch is not None and self.release is None:
            there = "it has none yet" if newest is None else f"the newest is of batch {newest.batch}"
            raise StreamRefused(
                f"--release-batch {self._batch}: stream {self._stream.name!r} has no release of that batch "
                f"({there}); `streaming-pca watch` lists releases"
            )

    def _between(self, start: int, end: int) -> list[Release]:
        self._consumer.seek(self._tp, start)
        found: list[Release] = []
        still = 3 * self._kafka.request_timeout_ms // _POLL_MS
        before = -1
        while (position := self._position()) < end:
            still = still - 1 if position == before else 3 * self._kafka.request_timeout_ms // _POLL_MS
            before = position
            if still <= 0:
                raise SessionLost(
                    f"{self._tp.topic} could not be read to offset {end}: it stops at {position}"
                )
            # Includes messages written after ``end``, which are read only once.
            found += self._messages()
        return found

    def _position(self) -> int:
        return int(self._consumer.position(self._tp, timeout_ms=self._kafka.request_timeout_ms) or 0)

    def poll(self) -> bool:
        """Adopt a newer release; return whether there was one."""
        if self._batch is not None:
            return False
        try:
            found = self._messages(0)
        except OffsetOutOfRangeError:
            raise StreamRefused(
                f"the next offset of topic {self._tp.topic!r} no longer exists: records were deleted, or the "
                "topic was created again"
            ) from None
        except KafkaError as error:
            raise self._lost(error) from None
        if found:
            self.release = found[-1]
        return bool(found)

    def _messages(self, timeout_ms: int = _POLL_MS) -> list[Release]:
        polled: dict[Any, list[Any]] = self._consumer.poll(timeout_ms=timeout_ms)
        found: list[Release] = []
        for messages in polled.values():
            for message in messages:
                try:
                    found.append(Release.from_bytes(message.value or b""))
                except ValueError as error:
                    log.warning("%s, offset %d, is skipped: %s", self._tp.topic, message.offset, error)
        return found

    def _lost(self, error: KafkaError) -> SessionLost:
        return SessionLost(f"reading {self._tp.topic} failed: {type(error).__name__}")

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close(autocommit=False)


def projection_of(release: Release, stream: StreamSettings) -> Projection:
    """Return the projection of the stream's records onto the release's subspace.

    Raises
    ------
    StreamRefused
        If the release was computed with other settings; the message is one line.
    """
    if release.kind != "subspace":
        raise StreamRefused(f'stream {stream.name!r} releases a "{release.kind}", which spans no subspace')
    pairs: list[tuple[str, Any, Any]] = [
        ("name", stream.name, release.stream),
        ("dim", stream.dim, release.dim),
        ("rank", stream.rank, release.rank),
    ]
    # Releases before version 6 do not contain it.
    if release.centering is not None:
        bounds = None if stream.bounds is None else tuple(map(published_setting, stream.bounds))
        pairs += [
            ("centering", published_setting(stream.centering), release.centering),
            ("scale", published_setting(stream.scale), release.scale),
            ("bounds", bounds, release.bounds),
        ]
    for name, ours, theirs in pairs:
        if _plain(ours) != _plain(theirs):
            raise StreamRefused(
                f"stream.{name} = {_short(ours)}, but the release of batch {release.batch} was made with "
                f"{_short(theirs)}: project with the settings of the stream's worker"
            )
    settings = {name: _plain(getattr(stream, name)) for name in ("centering", "scale", "bounds")}
    try:
        return release.model_copy(update=settings).projection()
    except ValueError as error:
        raise StreamRefused(
            f"{stream.releases_topic}, the release of batch {release.batch}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    """Return a setting in its JSON form, where lists and tuples are equal."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _short(value: Any) -> str:
    if isinstance(value, ArrayDigest):
        return f"{value.size} numbers ({value.digest[:19]}...)"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
