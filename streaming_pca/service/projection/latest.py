"""Release for the projection: the stream's newest or a chosen one."""

from __future__ import annotations

import logging
from typing import Any

from kafka.errors import KafkaError, OffsetOutOfRangeError

from streaming_pca.config.features import as_lists
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.projection import Projection
from streaming_pca.data.release import (
    ArrayDigest,
    Release,
    published_setting,
    stated_version,
    unreadable_text,
)
from streaming_pca.service.commit.log_reader import LogReader
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.text import shown

log = logging.getLogger(__name__)


class LatestRelease(LogReader):
    """Reader of a releases topic that keeps its newest release, or the one of ``batch``.

    Raises StreamRefused if that batch has no release.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, batch: int | None = None) -> None:
        super().__init__(kafka, stream.releases_topic)
        self._stream, self._batch = stream, batch
        self.release: Release | None = None  # release in use; None before the first one
        self._unreadable = ""
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        """Read backwards, first two releases with their markers, until a usable release is found."""
        newest: Release | None = None
        for messages in self.backwards(self.committed_end(), 3 * self._kafka.request_timeout_ms / 1000, 4):
            for message in messages:
                newest = self._release_in(message) or newest
                if newest is not None and self._batch in (None, newest.batch):
                    self.release = newest
            older = newest is None or (self._batch is not None and newest.batch > self._batch)
            if self.release is not None or not older:
                break
        if newest is None and self._unreadable:
            raise StreamRefused(self._unreadable)
        if self._batch is not None and self.release is None:
            there = "it has none yet" if newest is None else f"the newest is of batch {newest.batch}"
            raise StreamRefused(
                f"--release-batch {self._batch}: stream {self._stream.name!r} has no release of that batch "
                f"({there}); `streaming-pca watch --from-beginning` lists releases"
            )

    def poll(self) -> None:
        """Adopt a newer release, if there is one."""
        if self._batch is not None:
            return
        try:
            self._held.extend(self._consumer.poll(timeout_ms=0).get(self._tp, ()))
        except OffsetOutOfRangeError:
            raise StreamRefused(
                f"the next offset of topic {self.topic!r} no longer exists: records were deleted, or the "
                "topic was created again"
            ) from None
        except KafkaError as error:
            raise SessionLost(f"reading {self.topic} failed: {type(error).__name__}") from None
        while self._held:
            self.release = self._release_in(self._held.popleft()) or self.release

    def _release_in(self, message: Any) -> Release | None:
        value = message.value or b""
        try:
            return Release.from_bytes(value)
        except ValueError as error:
            version = stated_version(value)
            why = unreadable_text(version, str(error)) if version else str(error)
            line = f"{self.topic}, offset {message.offset}: {why}"
            self._unreadable = line if version else self._unreadable
            log.warning("%s: skipped", line)
            return None


def projection_of(release: Release, stream: StreamSettings) -> Projection:
    """Return the projection of the stream's records onto the release's subspace.

    Raises StreamRefused, with one line, if the release was computed with other settings.
    """
    if release.kind != "subspace":
        raise StreamRefused(f'stream {stream.name!r} releases a "{release.kind}", which spans no subspace')
    settings = {name: as_lists(getattr(stream, name)) for name in ("centering", "scale", "bounds")}
    if (
        (stream.centering, release.centering) == ("pairs", "auto")
        and release.mean is not None
        and "auto" not in stream.build_estimator().centerings
    ):
        # An earlier version estimated the mean where "auto" is "pairs" now; the release contains its centre.
        settings["centering"] = "auto"
    pairs: list[tuple[str, Any, Any]] = [
        ("name", stream.name, release.stream),
        ("dim", stream.dim, release.dim),
        ("rank", stream.rank, release.rank),
    ]
    # Releases before version 6 do not contain it.
    if release.centering is not None:
        bounds = None if stream.bounds is None else tuple(map(published_setting, stream.bounds))
        pairs += [
            ("centering", published_setting(settings["centering"]), release.centering),
            ("scale", published_setting(stream.scale), release.scale),
            ("bounds", bounds, release.bounds),
        ]
    if stream.feature_names and release.feature_names:
        pairs.append(("feature_names", list(stream.feature_names), release.feature_names))
    for name, ours, theirs in pairs:
        if as_lists(ours) != as_lists(theirs):
            raise StreamRefused(
                f"stream.{name} = {_in_words(ours)}, but the release of batch {release.batch} was made with "
                f"{_in_words(theirs)}: project with the settings of the stream's worker"
            )
    try:
        return release.model_copy(update=settings).projection()
    except ValueError as error:
        why = unreadable_text(release.version, str(error))
        raise StreamRefused(f"{stream.releases_topic}, batch {release.batch}: {why}") from None


def _in_words(value: Any) -> str:
    if isinstance(value, ArrayDigest):
        return f"{value.size} numbers ({value.digest[:19]}...)"
    return f'"{value}"' if isinstance(value, str) else shown(value)
