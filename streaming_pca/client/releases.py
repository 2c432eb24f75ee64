"""Readers of a stream's releases."""

from __future__ import annotations

import difflib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self

from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from pydantic import ValidationError

from streaming_pca.config.kafka import KafkaSettings, check_topic_name
from streaming_pca.data.release import Release, stated_version, unreadable_text
from streaming_pca.errors import UserError
from streaming_pca.service.errors import BrokerUnreachable, NotPermitted, TopicError
from streaming_pca.service.kafka.clients import ask_broker, broker_failed, reading_consumer

if TYPE_CHECKING:
    from streaming_pca.config.settings import Settings

_POLL_MS = 200
_SILENCE_SECONDS = 10.0  # without messages before the broker is probed: polling a dead one does not fail
_FIRST_SPAN = 4  # last offsets to read first: two releases, each with its transaction marker
_LONGEST_TIME = 64  # characters of a release's creation time
_RELEASES = ".releases"
_MOST_NAMES = 10  # streams named for a topic that does not exist
_log = logging.getLogger(__name__)


class UnreadableRelease(UserError):
    """Release that this program cannot read, perhaps of a later version; the message is one line."""


@dataclass(frozen=True)
class NotARelease:
    """Message that is not a release; ``version`` is 0 unless it looks like one."""

    topic: str
    offset: int
    reason: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.topic}, offset {self.offset}: {self.reason}"

    def unreadable(self) -> UnreadableRelease:
        """Return the error for readers that must not miss a release."""
        text = unreadable_text(self.version, self.reason)
        return UnreadableRelease(f"{self.topic}, offset {self.offset}: {text}")


class ReleaseReader:
    """Read_committed reader of the releases topic: aborted releases were never published."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._kafka, self._topic, self._tp = kafka, topic, TopicPartition(topic, 0)
        self._timeout_ms = kafka.request_timeout_ms
        self._heard = time.monotonic()
        self._consumer = reading_consumer(kafka, topics=[topic])
        try:
            if 0 not in (self._consumer.partitions_for_topic(topic) or ()):
                with ask_broker(kafka, f"reading {topic} failed", "Read") as admin:
                    NotPermitted.check(admin.describe_topics([topic]))
                    # Only topics that this user may describe.
                    raise missing_releases(kafka, topic, admin.list_topics())
            self._consumer.assign([self._tp])
            self.first = self._offset(self._consumer.beginning_offsets)
        except BaseException as error:
            self.close()
            if isinstance(error, KafkaError):
                raise self._failed(error) from None
            raise

    def _offset(self, of: Callable[..., dict[TopicPartition, int]]) -> int:
        return int(of([self._tp], timeout_ms=self._timeout_ms)[self._tp])

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._tp, offset)

    def last(self, wanted: int) -> tuple[list[Release], NotARelease | None]:
        """Return up to ``wanted`` last releases, in order, and an unreadable one after them.

        Without releases, the last other message. :meth:`poll` continues at the end.
        """
        try:
            # For a read_committed consumer this is the last stable offset, before any open transaction.
            end = self._offset(self._consumer.end_offsets)
            span = _FIRST_SPAN
            while True:
                start = max(self.first, end - span)
                found = list(self._between(start, end))
                releases = [item for item in found if isinstance(item, Release)]
                if len(releases) >= wanted or start == self.first:
                    self.seek(end)
                    after = takewhile(lambda item: isinstance(item, NotARelease), reversed(found))
                    others = [item for item in after if isinstance(item, NotARelease)]
                    unreadable = [item for item in others if item.version] or ([] if releases else others)
                    return releases[-wanted:], next(iter(unreadable), None)
                span *= 4
        except KafkaError as error:
            raise self._failed(error) from None

    def newest(self) -> Release | None:
        """Return the last release; raise UnreadableRelease if an unreadable one follows."""
        releases, unreadable = self.last(1)
        if unreadable is not None and unreadable.version:
            raise unreadable.unreadable()
        return releases[0] if releases else None

    def _failed(self, error: KafkaError) -> Exception:
        return broker_failed(self._kafka, f"reading {self._topic} failed", error, "Read")

    def _between(self, start: int, end: int) -> Iterator[Release | NotARelease]:
        self.seek(start)
        deadline = time.monotonic() + 3 * self._timeout_ms / 1000
        while int(self._consumer.position(self._tp, timeout_ms=self._timeout_ms) or 0) < end:
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"reading {self._topic} to offset {end} takes too long")
            for message in self._messages():
                if message.offset < end:
                    yield read_release(self._topic, message.offset, message.value)

    def poll(self) -> list[Release | NotARelease]:
        """Wait briefly for new messages and return them."""
        try:
            return [read_release(self._topic, message.offset, message.value) for message in self._messages()]
        except OffsetOutOfRangeError:
            raise TopicError(
                f"the next offset of topic {self._topic!r} no longer exists: records were deleted, or the "
                "topic was created again"
            ) from None
        except KafkaError as error:
            raise self._failed(error) from None

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


def missing_releases(kafka: KafkaSettings, topic: str, others: Iterable[str]) -> TopicError:
    """Return the error for a missing topic, with the most similar streams of ``others``.

    A reader can correct the name or the address, but may not create topics.
    """
    place = f"no topic {topic!r} exists on the broker at {kafka.bootstrap_servers}"
    others = list(others)
    stream = topic.removesuffix(_RELEASES)
    if stream.endswith(_RELEASES):
        of = stream.removesuffix(_RELEASES)
        return TopicError(f"{place}: name the stream, {of!r}, not its topic {stream!r}")
    if stream == topic and f"{topic}{_RELEASES}" in others:
        return TopicError(f"{place}: {topic!r} is a stream, whose topic is {topic + _RELEASES!r}")
    streams = [name.removesuffix(_RELEASES) for name in sorted(others) if name.endswith(_RELEASES)]
    similar = difflib.get_close_matches(topic.removesuffix(_RELEASES), streams, _MOST_NAMES, cutoff=0.0)
    if not similar:
        where = "correct the address or the name, unless the stream is not set up yet"
        return TopicError(f"{place}, nor any releases that you may read: {where}")
    more = f", and {len(streams) - len(similar)} more" if len(streams) > len(similar) else ""
    return TopicError(f"{place}: correct the stream's name; streams there: {', '.join(similar)}{more}")


def read_release(topic: str, offset: int, value: bytes | None) -> Release | NotARelease:
    """Read a message of a releases topic, whose writer is unknown."""
    try:
        release = Release.from_bytes(value or b"")
        _check(release)
    except ValueError as error:
        return NotARelease(topic, offset, str(error), stated_version(value or b""))
    # MirrorMaker puts a prefix before the name of a copied topic.
    if topic.endswith(_RELEASES) and not f".{topic}".endswith(f".{release.stream}{_RELEASES}"):
        return NotARelease(topic, offset, f"a release of stream {release.stream!r}")
    return release


def _check(release: Release) -> None:
    """Raise ValueError if a release's time, which dashboards store, cannot be read."""
    try:
        # A time may have any number of digits.
        if len(release.created) > _LONGEST_TIME:
            raise ValueError
        datetime.fromisoformat(release.created)
    except ValueError:
        raise ValueError("not a release: created is not a time") from None


def latest(stream: str | Settings, kafka: KafkaSettings | str | None = None) -> Release | None:
    """Return the last release of a stream; None before the first.

    Parameters
    ----------
    stream : str or Settings
        Name of the stream, or its settings, which include the broker.
    kafka : KafkaSettings or str, optional
        Broker as HOST:PORT, or all connection settings; by default localhost:9092.

    Raises
    ------
    TopicError
        If the stream's topics are missing.
    BrokerUnreachable
    UnreadableRelease
        If the last release cannot be read, for example because of a value that only later versions know.
        Messages that are not releases, or are of another stream, are skipped.
    ValueError, TypeError
        If ``stream`` is a file, cannot be a name, or is of another type.
    """
    with closing(ReleaseReader(*_place_of(stream, kafka))) as reader:
        return reader.newest()


def follow(
    stream: str | Settings,
    kafka: KafkaSettings | str | None = None,
    *,
    start: Literal["last", "first", "next"] = "last",
    timeout: float | None = None,
) -> Releases:
    """Return an iterator over a stream's releases that waits for new ones.

    Parameters
    ----------
    stream, kafka
        As for :func:`latest`.
    start : {"last", "first", "next"}
        First release of the iterator: the last existing one, the first existing one, or the next one
        published after this call.
    timeout : float, optional
        Seconds without a release before the iterator ends; by default it does not end.

    Returns
    -------
    Releases
        Iterator; as a context manager it closes its connection.

    Raises
    ------
    TopicError
        If the stream's topics are missing; from the iterator, if the topic was deleted.
    BrokerUnreachable
        Also from the iterator: the next call of ``next``, or another loop over the same iterator, tries
        again, and continues with the first release not returned yet.
    RuntimeError
        From the iterator, in a process forked after this call.
    UnreadableRelease
        Also from the iterator, at an unreadable release, which the next call skips. Messages that are not
        releases are logged as warnings and skipped.
    ValueError, TypeError
        As for :func:`latest`.
    UserError
        If ``start`` is another word, or ``timeout`` is not a number of at least 0.
    """
    if start not in ("first", "last", "next"):
        raise UserError(f'start must be "first", "last" or "next", not {start!r}')
    _check_timeout(timeout)
    reader = ReleaseReader(*_place_of(stream, kafka))
    try:
        first = None
        if start == "first":
            reader.seek(reader.first)
        elif start == "last":
            first = reader.newest()
        else:
            reader.last(1)
        return Releases(reader, [] if first is None else [first], timeout)
    except BaseException:
        reader.close()
        raise


class Releases(Iterator[Release]):
    """Iterator over releases, returned by :func:`follow`."""

    def __init__(self, reader: ReleaseReader, first: list[Release], timeout: float | None) -> None:
        self._reader: ReleaseReader | None = reader
        self._process = os.getpid()
        self._waiting: deque[Release | NotARelease] = deque(first)
        self._timeout = timeout

    def __next__(self) -> Release:
        if self._reader is not None and self._process != os.getpid():
            # The client's thread does not exist in a fork.
            raise RuntimeError(
                "the iterator over releases was opened in another process: open one in each, after the fork"
            )
        since = time.monotonic()
        while self._reader is not None:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, Release):
                    return item
                if item.version:
                    raise item.unreadable()
                _log.warning("%s: skipped", item)
            if self._timeout is not None and time.monotonic() - since > self._timeout:
                self.close()
                break
            self._waiting.extend(self._reader.poll())
        raise StopIteration

    def close(self) -> None:
        """Close the connection, which ends the iterator; in a fork, leave the connection to the parent."""
        reader, self._reader = self._reader, None
        if reader is not None and self._process == os.getpid():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_timeout(timeout: Any) -> None:
    if timeout is None:
        return
    # NaN would wait forever.
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) >= 0:
        given = repr(timeout) if isinstance(timeout, str | Real) else f"of type {type(timeout).__name__}"
        raise UserError(f"timeout must be seconds of at least 0, or None to wait forever, not {given}")


def _place_of(stream: str | Settings, kafka: KafkaSettings | str | None) -> tuple[KafkaSettings, str]:
    if isinstance(stream, os.PathLike) or (isinstance(stream, str) and stream.lower().endswith(".toml")):
        file = os.fspath(stream)
        raise ValueError(
            f"stream = {file!r} is a file: load its settings first, stream = load_settings(Path({file!r})) "
            "with load_settings of streaming_pca.config.loading"
        )
    if isinstance(stream, str):
        check_topic_name("stream", stream)
        return connection(kafka), f"{stream}{_RELEASES}"
    # Slow to load, and loaded already if there are any.
    from streaming_pca.config.settings import Settings

    if not isinstance(stream, Settings):
        raise TypeError(f"stream must be the name of a stream, or its Settings, not {type(stream).__name__}")
    return stream.kafka if kafka is None else connection(kafka), stream.stream.releases_topic


def connection(kafka: KafkaSettings | str | None) -> KafkaSettings:
    if isinstance(kafka, KafkaSettings):
        return kafka
    try:
        return KafkaSettings.of_argument("kafka", kafka)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        if not isinstance(kafka, str):
            message = "expected KafkaSettings, or HOST:PORT, or several of them with commas between"
        raise ValueError(f"kafka = {kafka!r}: {message}") from None
