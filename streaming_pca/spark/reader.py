"""Reader of partitions on the executors of a cluster, for the driver's source.

Like the service, the driver cuts batches by counts and offsets. It does not read records itself, except
for algorithms that process records sequentially.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.spark.batch import SparkBatch
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.segments import Layout, Range, Strip

MakeCluster = Callable[[KafkaSettings, StreamSettings, PayloadCodec], Cluster]

_FEWEST = 256  # smallest number of offsets worth a separate task
_MOST_TASKS = 16  # largest number of tasks of a load job per task slot
_SPARE = 1.05  # factor on the offsets to read if some offsets of a partition contain no message


@dataclass
class _Buffer:
    """Messages of one partition that executors have read and no batch has taken."""

    position: int
    epoch: int
    read_to: int
    strips: deque[Strip] = field(default_factory=deque)
    messages: int = 0
    offsets: int = 0  # number of messages read so far, and of the offsets that were read for them

    @property
    def count(self) -> int:
        return sum(strip.last - strip.first for strip in self.strips)

    def count_before(self, end: int) -> int:
        return sum(max(min(s.segment.count_before(end), s.last) - s.first, 0) for s in list(self.strips))

    def take(self, count: int) -> list[Strip]:
        taken: list[Strip] = []
        while count:
            strip = self.strips.popleft()
            if strip.last - strip.first > count:
                self.strips.appendleft(replace(strip, first=strip.first + count))
                strip = replace(strip, last=strip.first + count)
            taken.append(strip)
            count -= strip.last - strip.first
        if taken:
            last = taken[-1]
            self.position = last.segment.offset(last.last - 1) + 1
            self.epoch = last.segment.epoch(last.last - 1)
        return taken


class ClusterReader:
    """Reader whose records stay on executors, in a cluster for this reader only."""

    ahead = False
    bytes = 0  # the driver holds none

    def __init__(
        self,
        make_cluster: MakeCluster,
        kafka: KafkaSettings,
        stream: StreamSettings,
        codec: PayloadCodec,
        partitions: int,
        skip_lost: bool,
        check: Callable[[], None],
    ) -> None:
        self.buffers: dict[int, _Buffer] = {}
        self._make_cluster = partial(make_cluster, kafka, stream)
        self._cluster = self._make_cluster(codec)
        self._codec, self._skip_lost, self._check = codec, skip_lost, check
        # Used only to request offsets.
        self._offsets = PartitionReader(kafka, stream, codec, partitions, skip_lost, check)
        self.first_offsets, self.last_offsets = self._offsets.first_offsets, self._offsets.last_offsets
        self._stopped = threading.Event()
        self._loading = False
        self._taken: set[int] = set()  # segments of the last batch that no later batch needs
        self._held: set[int] = set()  # all segments of the last batch
        # Spark's web page shows the tasks, so their number depends on public numbers only: a factor counts as
        # one row, and numbers of another type as of the stream's.
        rows = codec.dim if codec.kind is RecordKind.MATRIX else 1
        self._bytes_of_records = rows * codec.kind.width(codec.dim) * np.dtype(stream.dtype).itemsize
        self._records_of_messages: float = stream.max_rows if stream.privacy_unit == "row" else 1

    def add(self, starts: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        for p, start in sorted(starts.items()):
            self.buffers[p] = _Buffer(start, epochs.get(p, -1), start)

    def restart(self, codec: PayloadCodec) -> None:
        # A session has one codec, so start a new one; the factory closes the previous session.
        self._cluster, self._codec = self._make_cluster(codec), codec
        self._taken, self._held = set(), set()
        for p, buffer in self.buffers.items():
            self.buffers[p] = _Buffer(buffer.position, buffer.epoch, buffer.position)

    def position(self, partition: int) -> int:
        return self.buffers[partition].read_to

    @property
    def _group(self) -> str:
        return f"reading {self._cluster.feed.session}"

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Read further in some partitions, by one job on the executors."""
        self._check()
        ranges = self._ranges(wanted, ends)
        if not ranges or self._stopped.is_set():
            return
        self._loading = True
        try:
            loaded = self._cluster.load(ranges, self._group)
        except RecordsLost as error:
            if self._skip_lost:
                raise SessionLost(f"{error}: skipping") from None
            raise
        except SessionLost:
            if self._stopped.is_set():
                return
            raise
        finally:
            self._loading = False
        for each in loaded:
            segment, buffer = each.segment, self.buffers[each.segment.range.partition]
            buffer.read_to = segment.range.end
            buffer.offsets += segment.range.end - segment.range.start
            buffer.messages += segment.count
            if segment.count:
                buffer.strips.append(Strip(segment, 0, segment.count))
            else:
                self._cluster.release([segment.range.id])
        messages = sum(each.segment.count for each in loaded)
        if messages:
            records = sum(each.segment.records_before(each.segment.count) for each in loaded)
            self._records_of_messages = max(records / messages, 1)

    def _ranges(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> list[Range]:
        """Divide the offsets to read into ranges of about equal lengths."""
        spans: dict[int, int] = {}
        for p, count in sorted(wanted.items()):
            buffer = self.buffers[p]
            short = count - buffer.count_before(ends[p])
            if buffer.messages < buffer.offsets:
                short = math.ceil(short * _SPARE * buffer.offsets / max(buffer.messages, 1))
            span = min(short, ends[p] - buffer.read_to)
            if span > 0:
                spans[p] = span
        each = self._offsets_of_a_task(sum(spans.values()))
        ranges = []
        for p, span in spans.items():
            first = self.buffers[p].read_to
            tasks = -(-span // each)
            # Even lengths keep pairs of messages in one range, if every offset contains a message.
            length = -(-span // (2 * tasks)) * 2
            for start in range(first, first + span, length):
                epoch = self.buffers[p].epoch if start == self.buffers[p].position else -1
                ranges.append(self._cluster.range(p, start, min(start + length, first + span), epoch))
        return ranges

    def _offsets_of_a_task(self, offsets: int) -> int:
        slots = self._cluster.slots
        of_messages = self._bytes_of_records * self._records_of_messages
        size = int(self._cluster.settings.segment_bytes / of_messages)
        # Give every slot work, but do not give the driver too many tasks.
        size = min(size, -(-offsets // slots))
        return max(size, -(-offsets // (_MOST_TASKS * slots)), _FEWEST)

    def take(self, counts: Sequence[int], granularity: int) -> tuple[SparkBatch, NDArray[np.uint64] | None]:
        partitions = sorted(self.buffers)
        strips = [self.buffers[p].take(count) for p, count in zip(partitions, counts, strict=True)]
        self._taken |= {strip.segment.range.id for some in strips for strip in some}
        if granularity > 1:
            strips = self._with_whole_pairs(strips)
        still = {strip.segment.range.id for buffer in self.buffers.values() for strip in buffer.strips}
        self._taken |= {strip.segment.range.id for some in strips for strip in some}
        self._held, self._taken = self._taken, self._taken - still
        layout = Layout(strips, granularity)
        batch = SparkBatch(self._cluster, layout, 0, layout.records)
        return batch, None if self._codec.user_key is None else batch.users()

    def _with_whole_pairs(self, strips: Sequence[Sequence[Strip]]) -> list[list[Strip]]:
        """Read pairs that span two segments again, each as one segment."""
        bridges: list[Range] = []
        epochs: list[tuple[int, int]] = []
        found: list[list[Strip | int]] = []  # strips, and the indices of bridges between them
        for some in strips:
            kept: list[Strip | int] = []
            odd: Strip | None = None
            for strip in some:
                if odd is not None:
                    start = odd.segment.offset(odd.last - 1)
                    end = strip.segment.offset(strip.first) + 1
                    kept.append(len(bridges))
                    bridges.append(self._cluster.range(strip.segment.range.partition, start, end))
                    epochs.append((odd.segment.epoch(odd.last - 1), strip.segment.epoch(strip.first)))
                    strip = replace(strip, first=strip.first + 1)
                whole = (strip.last - strip.first) // 2 * 2
                odd = strip if whole < strip.last - strip.first else None
                if whole:
                    kept.append(replace(strip, last=strip.first + whole))
            found.append(kept)
        read = [each.segment for each in self._cluster.load(bridges, self._group)] if bridges else []
        for expected, segment in zip(epochs, read, strict=True):
            if segment.count != 2 or (segment.epoch(0), segment.epoch(1)) != expected:
                raise SessionLost("a pair of messages has changed since it was counted")
        return [[Strip(read[s], 0, 2) if isinstance(s, int) else s for s in kept] for kept in found]

    def release_memory(self) -> None:
        taken, self._taken, self._held = self._taken, set(), set()
        self._cluster.release(taken)

    def stop(self) -> None:
        self._stopped.set()
        if self._loading:
            self._cluster.cancel(self._group)

    def close(self) -> None:
        """Close connections; free records, except those of the last batch."""
        self._offsets.close()
        self._cluster.close(but=self._held)
