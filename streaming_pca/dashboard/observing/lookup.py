"""Lookup of single releases over one persistent connection."""

from __future__ import annotations

import threading

from kafka.errors import KafkaError

from streaming_pca.client.releases import NotARelease, read_release
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.observing.logs import DENIED, Message, TopicsLost, TopicsReader, in_words
from streaming_pca.data.release import Release
from streaming_pca.service.errors import BrokerUnreachable, TopicError

Found = tuple[Message, Release]

_WAIT_SECONDS = 10.0


class Unknown(LookupError):
    """Request for an object that does not exist; one line names it."""


class UnknownRelease(Unknown):
    """The stream has no such release, or its topic has deleted it."""


class ReleaseLookup:
    """Reader of single releases, one request at a time."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._lock = threading.Lock()
        self._reader: TopicsReader | None = None
        self._closed = False

    def ask(self, topic: str, stream: str, batch: int | None, offsets: range) -> tuple[bytes, Release]:
        """Return the bytes of a batch's release, and the release; by default the first one at the offsets.

        Raises UnknownRelease, BrokerUnreachable or TopicError.
        """
        reason = "has no release yet"
        if batch is not None:
            reason = f"has no release of batch {batch}: it was not published, or its topic no longer holds it"
        unknown = UnknownRelease(f"stream {stream!r} {reason}")
        if not offsets:
            raise unknown
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise BrokerUnreachable("the broker is slow: other releases are being read")
        try:
            if self._closed:
                raise BrokerUnreachable("the dashboard is stopping")
            self._reader = self._reader or TopicsReader(self._kafka)
            found = _search(self._reader, topic, stream, batch, offsets)
        except TopicsLost as lost:
            if lost.denied:
                raise TopicError(DENIED.format(topic)) from None
            found = None
        except (KafkaError, OSError) as error:
            self._discard()
            raise BrokerUnreachable(in_words(error, self._kafka.bootstrap_servers)) from None
        except BrokerUnreachable:
            self._discard()
            raise
        finally:
            self._lock.release()
        if found is None:
            raise unknown
        message, release = found
        return message.value, release

    def close(self) -> None:
        """Close the connection, or leave it open if a request still uses it."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._discard()
            finally:
                self._lock.release()

    def _discard(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _search(reader: TopicsReader, topic: str, stream: str, batch: int | None, offsets: range) -> Found | None:
    """Bisect the offsets: batch numbers increase with them."""
    reader.assign([topic])
    bounds = reader.bounds([topic]).get(topic)
    if bounds is None:
        raise TopicError(f"topic {topic!r} has no leader: try again later")
    low, high = max(bounds[0], offsets.start), min(bounds[1], offsets.stop)
    while low < high:
        middle = (low + high) // 2
        found = _first_release(reader, topic, stream, middle, high)
        if found is None or (batch is not None and found[1].batch > batch):
            high = middle
        elif batch is None or found[1].batch == batch:
            return found
        else:
            low = found[0].offset + 1
    return None


def _first_release(reader: TopicsReader, topic: str, stream: str, start: int, end: int) -> Found | None:
    """Return the first release of the stream in [start, end)."""
    while start < end and (message := reader.message_from(topic, start, end)) is not None:
        release = read_release(topic, message.offset, message.value)
        if not isinstance(release, NotARelease) and release.stream == stream:
            return message, release
        start = message.offset + 1
    return None
