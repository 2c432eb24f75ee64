"""Follower of a stream's releases, limited to post-processing of published values."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.client.releases import NotARelease, ReleaseReader
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.projection import is_orthonormal
from streaming_pca.data.records import RecordKind
from streaming_pca.data.release import Release
from streaming_pca.estimators.remedies import Advice, advise_on_release
from streaming_pca.estimators.warnings import resolved_components
from streaming_pca.linalg.subspace import Matrix, orthonormalise, principal_angles


@dataclass(frozen=True)
class FollowedRelease:
    """Release with its largest angle, in radians, to a predecessor of equal dimensions, if any."""

    release: Release
    principal_angle: float | None


def advice_on(release: Release, stream: StreamSettings | None) -> Advice | None:
    """Explain a release's doubts and what helps; None without doubts.

    Kind of records and options are unknown without the stream's settings, or with another estimator's.
    """
    if stream is None or stream.estimator != release.estimator:
        return advise_on_release(release)
    known = {"options": stream.options, "features": stream.features or ()}
    return advise_on_release(release, kind=RecordKind(stream.record_kind), **known)


def describe_release(release: Release, advice: Advice | None) -> dict[str, Any]:
    return {
        "created": release.created,
        "outcome": release.outcome,
        "doubts": list(release.doubts),
        "advice": None if advice is None else asdict(advice),
        "resolved_components": resolved_components(release),
        "dominant_feature": release.dominant_name,
    }


def follow_releases(
    kafka: KafkaSettings, topic: str, *, from_beginning: bool, stopped: Callable[[], bool]
) -> Generator[FollowedRelease | NotARelease | None, None, None]:
    """Yield the latest release, or all, then new ones, None after idle polls, until ``stopped()``."""
    with closing(ReleaseReader(kafka, topic)) as reader:
        before: Release | None = None
        if from_beginning:
            reader.seek(reader.first)
        else:
            two, unreadable = reader.last(2)
            if two:
                before = two[-1]
                yield FollowedRelease(before, _angle(two[0] if len(two) == 2 else None, before))
            if unreadable is not None:
                yield unreadable
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


def orthonormal_basis(release: Release) -> Matrix | None:
    """Return orthonormal rows with the span of a release's components; None without."""
    rows = np.array(release.components, dtype=np.float64)
    # Components of a tensor need not be orthogonal.
    rows = orthonormalise(rows.T).T if release.kind == "tensor" and release.rank <= release.dim else rows
    return rows if is_orthonormal(rows) else None


def angles_between(before: Matrix | None, after: Matrix | None) -> NDArray[np.float64] | None:
    """Return the principal angles, decreasing, between two bases of equal dimension; None without."""
    if before is None or after is None or before.shape[1] != after.shape[1]:
        return None
    return principal_angles(before, after)


def _angle(before: Release | None, release: Release) -> float | None:
    angles = angles_between(None if before is None else orthonormal_basis(before), orthonormal_basis(release))
    return None if angles is None else float(angles[0])
