"""Message sizes of a stream, and the settings that bound its topics' disk use.

The state topic stays below ``2 (C + M) + 2 S`` bytes plus the data written while its cleaner works, for
commits of C bytes, segments of S and transaction markers of M. For the proof and the growth of the other
topics, see docs/how-to/size-memory.md.
"""

from __future__ import annotations

import math

import numpy as np

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.records import RecordKind
from streaming_pca.data.release import COUNTS
from streaming_pca.estimators.base import Outcome, Subspace
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.estimators.warnings import ReleaseWarning
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.batch_result import make_release

_MIB = 2**20
_LARGEST_SEGMENT = 2**30
_NUMBER_BYTES = 25  # length of the longest float64 in JSON, -2.2250738585072014e-308, and a comma

_DELTA_BYTES = 16  # size of a record in a commit's delta: the user's hash
_PART_OVERHEAD = 512  # upper bound of a shard's header and of Kafka's overhead around two chunks

MESSAGE_OVERHEAD = 4096  # upper bound of one message's key, headers and batch overhead

MOST_KEY_BYTES = 2**15
"""Longest record key that a projection copies, so that every projection fits into a message."""


def release_bytes(stream: StreamSettings) -> int:
    """Return the upper bound of a batch's size on the releases topic."""
    d, k = stream.dim, stream.rank
    if d * k * _NUMBER_BYTES > _LARGEST_SEGMENT:
        return d * k * _NUMBER_BYTES  # too large for any broker: no need to encode it
    longest = -np.finfo(np.float64).tiny
    largest = Subspace(
        np.full((k, d), longest),
        np.full(k, longest),
        np.full(d, longest),
        explained_variance_error=np.full(k, -longest),
        total_variance=longest,
        total_variance_error=-longest,
        angle_bound=-longest,
        outcome=max(Outcome, key=len),
        weights=np.full(k, longest) if stream.build_estimator().info.releases == "tensor" else None,
        support=tuple(range(d)) if stream.build_estimator().info.local else None,
    )
    # A float's length as text depends on its value, so allow for the longest.
    diagnostics = stream.build_estimator().diagnostics
    counts = {} if diagnostics is None else dict.fromkeys(COUNTS, -longest) | {"batch_records": 2**63}
    # The numbers decide which doubts apply, so allow for all, with quotes, commas and the key.
    doubts = len('"doubts":[],"dominant_feature":,') + _NUMBER_BYTES + sum(len(w) + 3 for w in ReleaseWarning)
    return len(make_release(stream, largest, 2**63, 2**63, counts)) + doubts


def record_bytes(stream: StreamSettings) -> int:
    """Return the bytes of a fixed-size record (a report, a matrix as octets), else 0."""
    if stream.record_kind is RecordKind.LOCAL:
        return 4 * stream.record_kind.width(stream.dim)
    if stream.record_kind is RecordKind.MATRIX:
        return stream.dim**2 * np.dtype(stream.dtype).itemsize
    return 0


def projection_bytes(stream: StreamSettings) -> int:
    """Return the upper bound of a projected message's size, including its key."""
    return stream.max_rows * (stream.rank * (_NUMBER_BYTES + 1) + 4) + MOST_KEY_BYTES


def commit_bytes(stream: StreamSettings) -> int:
    """Bound a batch's bytes on the state topic, without its part of the users' table."""
    estimator = stream.build_estimator()
    state = len(encode_state(estimator.init(utility_generator(0))))
    # The initial state lacks these: a release's rows or a basis of the transformed features, and a mean.
    later = 2 * 8 * (estimator.preprocessing.dim * stream.rank + 64)
    # Positions of thousands of partitions, salt, names, and numbers that grow longer.
    header = 2**16
    return header + state + later + release_bytes(stream) + _delta_bytes(stream)


def _delta_bytes(stream: StreamSettings) -> int:
    """Return the upper bound of a batch's delta of the table of users, in bytes."""
    if stream.privacy_unit != "user":
        return 0
    return _DELTA_BYTES * stream.build_estimator().largest_batch + _PART_OVERHEAD


def whole_mib(size: int) -> int:
    return math.ceil(size / _MIB) * _MIB


def state_topic_config(commit: int) -> dict[str, str]:
    return {
        # Twice the size of a chunk with its headers.
        "max.message.bytes": str(_MIB),
        "segment.bytes": str(min(whole_mib(commit), _LARGEST_SEGMENT)),
        "segment.ms": str(24 * 3600 * 1000),
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": str(24 * 3600 * 1000),
        "delete.retention.ms": str(3600 * 1000),
        "file.delete.delay.ms": str(60 * 1000),
    }
