"""Last releases of one stream: some numbers of each, and the complete latest release."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.admin.watch import advice_on, angles_between, orthonormal_basis
from streaming_pca.client.releases import NotARelease, read_release
from streaming_pca.config.settings import StreamSettings
from streaming_pca.dashboard.models import History, ReleasePage, ReleaseSummary
from streaming_pca.data.release import Release
from streaming_pca.estimators.common.error_bounds import explained_ratio
from streaming_pca.estimators.remedies import Advice
from streaming_pca.estimators.warnings import resolved_components

Vector = NDArray[np.float64]

MOST_NUMBERS = 2**20
"""Largest count of numbers in a stream's history, 8 bytes each; the rank decides how many releases fit."""
_READ_NUMBERS = 5 * 2**20  # largest count of components' numbers to read at the start, about 100 MB
LATEST_BYTES = 4 * 2**20
"""Largest size in bytes of a release held in memory; a larger one is read again on request."""
_MOST_DOUBTS = 16
_MOST_NUMBER = 2**63
_ANGLE = math.pi / 2
_COLUMNS = (
    *("batch", "created", "records", "angles", "angle_bound", "noise_bound"),
    *("explained_variance", "explained_variance_error", "total_variance"),
)
_UNCHANGED = ("batch", "created", "records", "outcome", "angle_bound", "total_variance", "least_null_share")
_STANDARD_ERRORS = 2.0  # standard errors above 0 that distinguish a total from noise, as with doubts


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of a release, as held in the history."""

    offset: int
    batch: int
    created: str
    records: int
    outcome: str | None
    doubts: tuple[str, ...]
    resolved_components: int | None
    dominant_feature: str | None
    angles: Vector | None
    angle_bound: float | None
    noise_bound: float | None
    explained_variance: Vector
    explained_variance_error: Vector | None
    total_variance: float | None
    explained_share: float | None
    null_share: tuple[float, float] | None
    clipped_share: tuple[float, float] | None
    least_null_share: float
    digest: str

    @property
    def angle(self) -> float | None:
        return None if self.angles is None else float(self.angles[0])

    def summary(self) -> ReleaseSummary:
        return ReleaseSummary(**{name: getattr(self, name) for name in ReleaseSummary.model_fields})


class ReleaseHistory:
    """Last releases of a stream, read message by message.

    It holds at most ``most``, fewer if their numbers would exceed ``MOST_NUMBERS``. ``ids`` has the ids of
    the topics in ``sources`` when they were read, and is empty before that; ``problem`` is the reason why
    the topic cannot be read. ``unreadable`` counts messages that are not releases of this stream. ``latest``
    is None for a release above ``LATEST_BYTES``; ``advice`` explains its doubts, and is None without.
    """

    def __init__(self, stream: StreamSettings, most: int) -> None:
        self.topic, self.stream, self.input = stream.releases_topic, stream.name, stream.input
        self.sources = (self.topic,)
        self.problem: str | None = None
        self._stream = stream
        self._most = max(2, min(most, MOST_NUMBERS // (3 * stream.rank)))
        self.restart()

    def restart(self) -> None:
        """Discard all state: the next messages come from another topic of this name."""
        self.ids: tuple[str | None, ...] = ()
        self.next_offset = 0
        self.unreadable = 0
        self.latest: bytes | None = None
        self.advice: Advice | None = None
        self.feature_names: list[str] | None = None
        self._points: deque[Point] = deque(maxlen=self._most)
        self._by_batch: dict[int, Point] = {}
        self._complete = True
        self._basis: Vector | None = None

    def begin(self, ids: tuple[str | None, ...], first: int, end: int) -> None:
        """Start at an offset followed by about as many releases as fit in memory."""
        self.ids = ids
        # Each release is followed by the marker of its transaction.
        numbers = self._stream.dim * self._stream.rank
        span = 2 * min(self._most, max(2, _READ_NUMBERS // numbers))
        self.next_offset = max(first, end - span)
        self._complete = self.next_offset == first

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def offsets(self, batch: int | None) -> range:
        """Return where the topic may hold a batch's release, by default the latest."""
        point = self.last if batch is None else self._by_batch.get(batch)
        if point is not None:
            return range(point.offset, point.offset + 1)
        is_older = batch is not None and self._points and batch < self._points[0].batch
        return range(self._points[0].offset if is_older else 0)

    def recent(self, count: int) -> list[Point]:
        """Return the last releases, oldest first."""
        return [self._points[i] for i in range(max(0, len(self._points) - count), len(self._points))]

    def add(self, offset: int, value: bytes) -> Point | None:
        """Add the topic's next message; return None unless it is a release of this stream."""
        self.next_offset = offset + 1
        release = read_release(self.topic, offset, value)
        if isinstance(release, NotARelease) or not self._is_own(release):
            self.unreadable += 1
            return None
        point = self._point(offset, value, release)
        if len(self._points) == self._most:
            self._drop_first()
            self._complete = False
        self._points.append(point)
        self._by_batch[point.batch] = point
        self.latest = value if len(value) <= LATEST_BYTES else None
        self.feature_names = release.feature_names
        self.advice = advice_on(release, self._stream)
        return point

    def forget_before(self, first: int) -> None:
        """Drop releases that the topic has deleted, except the last."""
        if first >= self.next_offset:
            self._complete = True
        while len(self._points) > 1 and self._points[0].offset < first:
            self._drop_first()
        if self._points and first > self._points[0].offset:
            self._complete = True

    def _drop_first(self) -> None:
        point = self._points.popleft()
        if self._by_batch.get(point.batch) is point:
            del self._by_batch[point.batch]

    def _is_own(self, release: Release) -> bool:
        stream = self._stream
        counts = (release.batch, release.records, release.batch_records or 0)
        return (
            (release.stream, release.dim, release.rank) == (stream.name, stream.dim, stream.rank)
            and len(release.explained_variance) == release.rank
            and all(0 <= number < _MOST_NUMBER for number in counts)
            and (release.feature_names is None or len(release.feature_names) == release.dim)
        )

    def _point(self, offset: int, value: bytes, release: Release) -> Point:
        before, basis = self.last, orthonormal_basis(release)
        angles, self._basis = angles_between(self._basis, basis), basis
        bounds = (before.angle_bound if before is not None else None, release.angle_bound)
        both = None if bounds[0] is None or bounds[1] is None else min(bounds[0] + bounds[1], _ANGLE)
        errors = release.explained_variance_error
        counts = release.counts
        return Point(
            **{name: getattr(release, name) for name in _UNCHANGED},
            offset=offset,
            doubts=release.doubts[:_MOST_DOUBTS],
            resolved_components=resolved_components(release),
            dominant_feature=release.dominant_name,
            angles=angles,
            noise_bound=both,
            explained_variance=np.array(release.explained_variance, dtype=np.float64),
            explained_variance_error=None if errors is None else np.array(errors, dtype=np.float64),
            explained_share=_explained_share(release),
            null_share=_share(counts, "null", counts.get("batch_records")),
            clipped_share=_share(counts, "clipped", counts.get("clipped_of")),
            digest=hashlib.sha256(value).hexdigest(),
        )

    def history(self) -> History:
        columns = {name: [_plain(getattr(p, name)) for p in self._points] for name in _COLUMNS}
        for name in ("null_share", "clipped_share"):
            shares = [getattr(p, name) or (None, None) for p in self._points]
            columns[name], columns[f"{name}_error"] = [s[0] for s in shares], [s[1] for s in shares]
        return History(stream=self.stream, complete=self._complete, **columns)

    def page(self, limit: int, before: int | None) -> ReleasePage:
        """Return releases of batches below ``before``, newest first."""
        chosen = [p for p in reversed(self._points) if before is None or p.batch < before]
        more = len(chosen) > limit
        items = [p.summary() for p in chosen[:limit]]
        return ReleasePage(items=items, next=items[-1].batch if more and items else None)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _explained_share(release: Release) -> float | None:
    if release.total_variance is None or release.kind == "tensor":
        return None
    # If the total is indistinguishable from noise, the share is meaningless and would be shown as 100%.
    if release.total_variance <= _STANDARD_ERRORS * (release.total_variance_error or 0.0):
        return None
    variances = np.maximum(np.array(release.explained_variance, dtype=np.float64), 0.0)
    ratios = explained_ratio(variances, release.total_variance)
    return None if ratios is None else min(float(ratios.sum()), 1.0)


def _share(counts: dict[str, float], of: str, whole: float | None) -> tuple[float, float] | None:
    """Return a noisy count's share of a batch, clamped, and its standard error."""
    if not whole:
        return None
    share, error = counts[f"{of}_records"] / whole, counts[f"{of}_records_error"] / whole
    return min(max(share, 0.0), 1.0), min(error, float(np.finfo(np.float64).max))
