"""Disk use of a stream's topics, as docs/how-to/size-memory.md states it."""

from __future__ import annotations

import math

from streaming_pca.config.settings import StreamSettings
from streaming_pca.privacy.users import SHARDS
from streaming_pca.service.topics.sizes import _PART_OVERHEAD, _delta_bytes, state_topic_config

_MARKER_BYTES = 78
_USER_BYTES = 18  # size of a user in the table: a hash and a count

LEDGER_BYTES_A_BATCH = 2200
"""Disk use of one batch in the ledger: RESERVED, COMMITTED, RELEASED and their markers."""


def table_bytes(stream: StreamSettings, users: int) -> int:
    """Return the upper bound of a compacted table of ``users`` users: T of the page."""
    if stream.privacy_unit != "user":
        return 0
    return SHARDS * (_delta_bytes(stream) + _PART_OVERHEAD) + _USER_BYTES * users


def state_bound(commit: int, commits_an_hour: float = 3600, table: int = 0) -> int:
    """Bound a state topic's log in bytes, without data written while its cleaner works.

    ``commit``: commit_bytes of the stream. ``table``: :func:`table_bytes`, if the privacy unit is the user.
    """
    config = state_topic_config(commit)
    segment, dirty = int(config["segment.bytes"]), float(config["min.cleanable.dirty.ratio"])
    markers = _MARKER_BYTES * math.ceil(commits_an_hour + 2 * (commit + table + segment) / commit)
    return math.ceil((commit + table + markers) / (1 - dirty)) + 2 * segment
