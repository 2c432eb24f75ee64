"""Lookup of single releases over one persistent connection."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from kafka.errors import KafkaError

from streaming_pca.client.releases import NotARelease, read_release
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.observing.errors import UnknownRelease
from streaming_pca.dashboard.observing.logs import Message, TopicsLost, TopicsReader, in_words
from streaming_pca.dashboard.observing.releases import Point, ReleaseHistory
from streaming_pca.data.release import Release
from streaming_pca.service.errors import TopicError
from streaming_pca.service.kafka.clients import BrokerUnreachable

_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class _Question:
    """Release to look up.

    Attributes
    ----------
    offset, digest : int or None, str or None
        Offset, and SHA-256 of its bytes; None for a release older than all releases in memory.
    before : int or None
        End (exclusive) of the offsets to search for an older release; None if no search can succeed.
    """

    topic: str
    stream: str
    batch: int | None
    offset: int | None
    digest: str | None
    before: int | None


class ReleaseLookup:
    """Reader of single releases, one request at a time."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._lock = threading.Lock()
        self._reader: TopicsReader | None = None
        self._closed = False

    @staticmethod
    def question(releases: ReleaseHistory, point: Point | None, batch: int | None) -> _Question:
        """Prepare the lookup of a batch's release, or the latest, from the history."""
        offset, digest = (None, None) if point is None else (point.offset, point.digest)
        oldest = releases.oldest
        is_older = batch is not None and oldest is not None and batch < oldest.batch
        before = oldest.offset if is_older and oldest is not None else None
        return _Question(releases.topic, releases.stream, batch, offset, digest, before)

    def ask(self, question: _Question) -> tuple[bytes, Release]:
        """Return the bytes of a release, and the release.

        Raises
        ------
        UnknownRelease, BrokerUnreachable, TopicError
        """
        if question.offset is None and question.before is None:
            raise _unknown(question)
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise BrokerUnreachable("the broker is slow: other releases are being read")
        try:
            if self._closed:
                raise BrokerUnreachable("the dashboard is stopping")
            self._reader = self._reader or TopicsReader(self._kafka)
            return self._ask(self._reader, question)
        except TopicsLost:
            raise _unknown(question) from None
        except (KafkaError, OSError) as error:
            self._discard()
            raise BrokerUnreachable(in_words(error, self._kafka.bootstrap_servers)) from None
        except BrokerUnreachable:
            self._discard()
            raise
        finally:
            self._lock.release()

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

    def _ask(self, reader: TopicsReader, question: _Question) -> tuple[bytes, Release]:
        reader.assign([question.topic])
        bounds = reader.bounds([question.topic]).get(question.topic)
        if bounds is None:
            raise TopicError(f"topic {question.topic!r} has no leader: try again later")
        first, end = bounds
        if question.offset is None:
            assert question.before is not None
            return self._search(reader, question, first, min(question.before, end))
        if first <= question.offset < end:
            message = reader.message_from(question.topic, question.offset, end)
            if message is not None and hashlib.sha256(message.value).hexdigest() == question.digest:
                return message.value, Release.from_bytes(message.value)
        raise _unknown(question)

    def _search(
        self, reader: TopicsReader, question: _Question, first: int, end: int
    ) -> tuple[bytes, Release]:
        """Bisect the offsets [first, end): batch numbers increase with offsets."""
        assert question.batch is not None
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            message, release = self._first_release(reader, question, middle, high)
            if message is None or release is None or release.batch > question.batch:
                high = middle
            elif release.batch < question.batch:
                low = message.offset + 1
            else:
                return message.value, release
        raise _unknown(question)

    def _first_release(
        self, reader: TopicsReader, question: _Question, start: int, end: int
    ) -> tuple[Message, Release] | tuple[None, None]:
        """Return the first release of the stream in [start, end)."""
        while start < end and (message := reader.message_from(question.topic, start, end)) is not None:
            release = read_release(question.topic, message.offset, message.value)
            if not isinstance(release, NotARelease) and release.stream == question.stream:
                return message, release
            start = message.offset + 1
        return None, None


def _unknown(question: _Question) -> UnknownRelease:
    if question.batch is None:
        return UnknownRelease(f"stream {question.stream!r} has no release yet")
    return UnknownRelease(
        f"stream {question.stream!r} has no release of batch {question.batch}: it was not published, "
        "or its topic no longer holds it"
    )
