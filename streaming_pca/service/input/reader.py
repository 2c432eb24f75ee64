"""Interface of a reader to a source: decoded records of partitions, counted by offset.

The service's reader is :class:`~streaming_pca.service.input.partition_reader.PartitionReader`, which
keeps the records in this process. Another may keep them elsewhere: a source asks for counts and
offsets alone, and hands on the batches that the reader makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import Batch
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input.end_offsets import Offsets

_STALL_SECONDS = 60.0
"""Time limit for the arrival of records that existed once."""


class Buffered(Protocol):
    """Records of one partition that were read and not taken yet."""

    @property
    def position(self) -> int:
        """Start of what is not taken yet: one behind the last record taken."""

    @property
    def epoch(self) -> int:
        """Epoch of the leader that took the last record before ``position``; -1 where it is not known."""

    @property
    def count(self) -> int:
        """Number of records."""

    def count_before(self, end: int) -> int:
        """Return the number of records before an offset."""


class Reader(Protocol):
    """Reader of one topic's partitions, each from an offset on.

    One thread at a time calls it, but for :meth:`stop`, and for :attr:`buffers` with their positions,
    epochs and counts, which any thread may look at.
    """

    @property
    def buffers(self) -> Mapping[int, Buffered]:
        """Buffers of the partitions that were added; one dictionary for good."""

    @property
    def ahead(self) -> bool:
        """True where records may be read before a batch needs them.

        If false, :meth:`fetch` is first called when the end offsets alone could cover a batch.
        """

    @property
    def bytes(self) -> int:
        """Lower bound of the bytes held; every record counts as one row at least."""

    def first_offsets(self, partitions: Sequence[int]) -> Offsets:
        """Return the first offsets of partitions; SessionLost unless all are known."""

    def last_offsets(self, partitions: Sequence[int]) -> Offsets:
        """Return the ends of partitions, open transactions included; SessionLost unless all are known."""

    def add(self, starts: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Start to read partitions at offsets.

        Parameters
        ----------
        starts : mapping of partition to offset
        epochs : mapping of partition to leader epoch
            Epoch of the last record before the offset, where known: reading fails where the partition
            has lost that record.
        """

    def restart(self, codec: PayloadCodec) -> None:
        """Drop what was read and not taken, and read it again with another codec."""

    def position(self, partition: int) -> int:
        """Return the offset up to which a partition was read."""

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Read on in some partitions.

        It may read less than is wanted, nothing at all where nothing has come, and more: batches do
        not depend on it. It returns soon after :meth:`stop`.

        Parameters
        ----------
        wanted : mapping of partition to int
            Number of buffered records, of those before the ends, that a batch needs at least.
        ends : mapping of partition to offset
            No record from there on is needed now.

        Raises
        ------
        RecordsLost
            Records between the position and an end are gone; with ``skip_lost`` SessionLost.
        SessionLost
            Reading failed, and may succeed in another session.
        """

    def take(self, counts: Sequence[int], granularity: int) -> tuple[Batch, NDArray[np.uint64] | None]:
        """Remove the first records of each partition, in their order; return their batch and its users.

        Records are taken in turn, ``granularity`` of a partition at a time. The batch is good until
        :meth:`release_memory`, also after :meth:`stop` and :meth:`close`.
        """

    def release_memory(self) -> None:
        """Release the last batch's memory for reuse; the batch must have no reader."""

    def stop(self) -> None:
        """Make present and later fetches return soon; from any thread, and harmless to batches."""

    def close(self) -> None:
        """Close all connections; buffered records are dropped."""


class ReaderFactory(Protocol):
    """Maker of a reader for each time that a session opens its input."""

    def __call__(
        self,
        kafka: KafkaSettings,
        stream: StreamSettings,
        codec: PayloadCodec,
        partitions: int,
        skip_lost: bool,
        check: Callable[[], None],
    ) -> Reader:
        """Return a reader without partitions.

        Parameters
        ----------
        partitions : int
            Number of partitions that it will read, or about that: they share the bytes fetched ahead.
        skip_lost : bool
            Whether lost records are no reason to end the stream.
        check : callable
            Raises SessionLost if the clock has failed; called before each wait for records, which would
            otherwise not notice a dead broker.
        """


def read_to(reader: Reader, topic: str, ends: Mapping[int, int], stopped: Callable[[], bool]) -> bool:
    """Read partitions until their positions reach offsets; False when stopped before.

    Raises
    ------
    SessionLost
        None of them has moved for a minute.
    """
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
        # As many records as there can be.
        reader.fetch({p: reader.buffers[p].count + ends[p] - found[p] for p in short}, ends)
    return False


def deleted(topic: str, partition: int, position: int, first: int) -> RecordsLost:
    """Return the error of records that retention deleted before they were read."""
    return RecordsLost(
        f"topic {topic!r}, partition {partition}: records {position} to {first - 1} were deleted by "
        "retention before they were read; nothing was charged. Raise the topic's retention, or set "
        'stream.lost_records = "skip" to go on without them'
    )


def tail_lost(topic: str, partition: int, position: int, end: int) -> RecordsLost:
    """Return the error of a partition that ends before a position."""
    return RecordsLost(
        f"topic {topic!r}, partition {partition}: records {end} to {position - 1}, which the stream has "
        "passed, are lost (an unclean election, or a replaced disk). It learns from no records that come "
        'in their places. Read a new topic, or set stream.lost_records = "skip" to go on without those'
    )
