"""Interface between reader and source: decoded records of partitions, counted by offset.

The service's :class:`~streaming_pca.service.input.partition_reader.PartitionReader` keeps the records in this
process; others may store them elsewhere, because a source needs only counts and offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.batch import Batch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input.end_offsets import Offsets
from streaming_pca.text import offsets_text

_STALL_SECONDS = 60.0  # time limit for reading records that are known to exist


class Buffered(Protocol):
    """Records of one partition that were read but not taken yet."""

    @property
    def position(self) -> int:
        """Offset after the last record taken."""

    @property
    def epoch(self) -> int:
        """Epoch of the leader that accepted the last record before ``position``; -1 if unknown."""

    @property
    def count(self) -> int:
        """Number of records."""

    def count_before(self, end: int) -> int:
        """Return the number of records before an offset."""


class Reader(Protocol):
    """Reader of one topic's partitions, each from a starting offset.

    Thread-safe are only :meth:`stop`, and reading :attr:`buffers` with their positions, epochs and counts.
    """

    @property
    def buffers(self) -> Mapping[int, Buffered]:
        """Buffers of the added partitions; always the same dictionary."""

    @property
    def ahead(self) -> bool:
        """True if records may be read before a batch needs them.

        If false, :meth:`fetch` is first called when the end offsets alone could cover a batch.
        """

    @property
    def bytes(self) -> int:
        """Lower bound of the buffered bytes; every record counts as at least one row."""

    def first_offsets(self, partitions: Sequence[int]) -> Offsets:
        """Return the first offsets of partitions; raise SessionLost unless all are known."""

    def last_offsets(self, partitions: Sequence[int]) -> Offsets:
        """Return the ends of partitions, with open transactions; raise SessionLost unless all are known."""

    def add(self, starts: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Start reading partitions at offsets.

        ``epochs``, if known, of the records before them: reading fails if the partition has lost that record.
        """

    def restart(self, codec: PayloadCodec) -> None:
        """Drop the records not taken yet, and read them again with another codec."""

    def position(self, partition: int) -> int:
        """Return the next offset to read in a partition."""

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Continue reading some partitions, until about ``wanted`` records before ``ends`` are buffered.

        It may read fewer records, none if none have arrived, or more: batches do not depend on it. It returns
        soon after :meth:`stop`. Raises RecordsLost if records between the position and an end were lost (with
        ``skip_lost`` SessionLost), and SessionLost if reading failed but may succeed in another session.
        """

    def take(self, counts: Sequence[int], granularity: int) -> tuple[Batch, NDArray[np.uint64] | None]:
        """Remove the first records of each partition, in order; return their batch and its users.

        Records are taken in turn, ``granularity`` from a partition at a time. The batch is valid until
        :meth:`release_memory`, even after :meth:`stop` and :meth:`close`.
        """

    def release_memory(self) -> None:
        """Release the last batch's memory for reuse; the batch must not be in use."""

    def stop(self) -> None:
        """Make current and later fetches return soon, without affecting batches; thread-safe."""

    def close(self) -> None:
        """Close all connections and drop buffered records."""


ReaderFactory = Callable[[KafkaSettings, StreamSettings, PayloadCodec, int, bool, Callable[[], None]], Reader]
"""Factory of readers without partitions, called each time a session opens its input.

The number is of partitions that share the bytes fetched ahead, about. The flag: whether the stream continues
after lost records. The last argument raises SessionLost if the clock has failed; each wait for records calls
it, or would not notice a dead broker.
"""


def read_to(reader: Reader, topic: str, ends: Mapping[int, int], stopped: Callable[[], bool]) -> bool:
    """Read partitions up to ``ends``; False if stopped. Raises SessionLost if all stand still a minute."""
    positions: Offsets = {}
    moved = time.monotonic()
    while not stopped():
        found = {p: reader.position(p) for p in ends}
        short = [p for p, position in found.items() if position < ends[p]]
        if not short:
            return True
        if found != positions:
            positions, moved = found, time.monotonic()
        elif time.monotonic() - moved > _STALL_SECONDS:
            p = short[0]
            raise SessionLost(f"{topic}-{p} cannot be read to {ends[p]}: it stops at {found[p]}")
        # The most records that can exist.
        reader.fetch({p: reader.buffers[p].count + ends[p] - found[p] for p in short}, ends)
    return False


def deleted(topic: str, partition: int, position: int, first: int) -> RecordsLost:
    """Return the error for records that retention deleted before they were read."""
    return RecordsLost(
        f"topic {topic!r}, partition {partition}: the records at {offsets_text(position, first)} were "
        "deleted by retention before they were read; nothing was charged. Raise the topic's retention, or "
        'set stream.lost_records = "skip" to continue without them'
    )


def tail_lost(topic: str, partition: int, position: int, end: int) -> RecordsLost:
    """Return the error for a partition that ends before a position."""
    return RecordsLost(
        f"topic {topic!r}, partition {partition}: the records at {offsets_text(end, position)}, which the "
        "stream has passed, are lost (an unclean election, or a replaced disk). It does not learn from "
        'records at the same offsets. Read a new topic, or set stream.lost_records = "skip" to continue '
        "without those"
    )
