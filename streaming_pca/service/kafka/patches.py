"""Workarounds for faults of kafka-python 3.0.12, with every use of its private names.

No other module may use such names (``tests/service/kafka/test_patches.py``, which also shows that each
fault still exists). :func:`install` replaces methods for the whole process; the rest is called by clients
of this package. The faults and their consequences: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaConnectionError, KafkaError, RequestTimedOutError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.producer.transaction_manager import EndTxnHandler
from kafka.protocol.frame import KafkaBytes
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.service.errors import without_traceback
from streaming_pca.service.kafka import record_batches
from streaming_pca.service.kafka.credentials import TokenRefused
from streaming_pca.service.kafka.inflating import MOST_RECORD_BYTES, inflate
from streaming_pca.service.kafka.record_batches import RecordBatch, UnreadableBatch, parse_batch

log = logging.getLogger(__name__)

Io = Literal["records", "logs", "control"]

# -- sockets ---------------------------------------------------------------

PIECE_BYTES = 2**18
_LEAST_SHARED_BYTES = 2**16


async def _connect(
    self: Any, net: Any, address: Sequence[Any], socket_options: Sequence[Any] = (), timeout_at: Any = None
) -> socket.socket:
    """Connect a socket, and close it on failure.

    kafka-python leaves it to the garbage collector; a process without its broker opens several a second.
    """
    family, kind, protocol, _, place = address
    made: socket.socket = self.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        for option in socket_options:
            made.setsockopt(*option)
        connected: socket.socket = await self.sock_connect(net, made, place, timeout_at=timeout_at)
        return connected
    except BaseException:  # also if its client is closed, which ends the coroutine
        made.close()
        raise


def _read_piece(self: Any) -> tuple[bytes, Exception | None]:
    """Read up to a piece; the caller is called again when more data is available.

    kafka-python reads 4 KiB a call, and each call releases the GIL. A large response's rest goes directly
    into its buffer; then the result is empty and nothing is copied.
    """
    parser = getattr(self._protocol, "parser", None)
    answer = parser._rbuffer if parser is not None and parser._receiving else None
    data = b""
    try:
        if answer is not None and len(answer) - answer._idx > _LEAST_SHARED_BYTES:
            # Leave the last byte to the client's own code, which then notices that the response is complete.
            count: int = self._sock.recv_into(memoryview(answer)[answer._idx : -1])
            answer._idx += count
        else:
            data = self._sock.recv(PIECE_BYTES)
            count = len(data)
    except (BlockingIOError, InterruptedError):
        return b"", None
    except OSError as error:
        return b"", KafkaConnectionError(error)
    # A readable socket without data was closed by the peer.
    return data, None if count else KafkaConnectionError("socket disconnected")


def _read_rest(self: Any, nbytes: int | None = None) -> bytes | memoryview:
    """Return a response's bytes; kafka-python copies the rest of a large one twice.

    The decoder accepts bytes and memoryviews, and a complete response never changes.
    """
    if nbytes is not None or len(self) - self._idx < _LEAST_SHARED_BYTES:
        few: bytes = ORIGINALS[_read_rest](self, nbytes)
        return few
    rest = memoryview(self)[self._idx :]
    self._idx = len(self)
    return rest


class KeySelector(selectors.DefaultSelector):
    """Selector without a log message, of four system calls, for an unregistered file."""

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        # The standard library's table corrects itself when a closed file's number is reused.
        me: Any = self
        key: selectors.SelectorKey | None = me._fd_to_key.get(me._fileobj_lookup(fileobj))
        if key is None:
            raise KeyError(fileobj)
        return key


def _make_transport(self: Any, net: Any, sock: socket.socket, **configs: Any) -> None:
    """Make a TLS transport; raise KafkaConnectionError for unusable files.

    kafka-python passes the file's own error to a request that does not expect it, and keeps the socket.
    """
    try:
        ORIGINALS[_make_transport](self, net, sock, **configs)
    except OSError as error:
        sock.close()
        raise KafkaConnectionError(f"the files of kafka.ssl_* cannot be used: {error}") from None


async def _shake_hands(self: Any, timeout_at: float | None = None) -> None:
    """Shake hands before a time (kafka-python waits without a limit); close a failed socket."""
    try:
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
    except BaseException:  # also if its client is closed, which ends the coroutine
        self._sock.close()
        raise


async def _build_transport(self: Any, node: Any, timeout_at: float | None = None) -> KafkaTCPTransport:
    """Connect as kafka-python does, with the handshake in the same time, which grows after failures."""
    where = (self._net, node.host, node.port, self.config["socket_options"])
    sock = await create_connection(*where, proxy_url=self.config["proxy_url"], timeout_at=timeout_at)
    if not self.ssl_enabled:
        return KafkaTCPTransport(self._net, sock, host=node.host)
    how = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
    transport = KafkaSSLTransport(self._net, sock, host=node.host, **how)
    try:
        await transport.handshake(timeout_at)
    except Exception as error:
        raise KafkaConnectionError(f"Handshake failed: {error}") from None
    return transport


# -- authentication --------------------------------------------------------


async def _authenticate(self: Any, timeout_at: float | None = None) -> None:
    """Authenticate; treat a refusal as a lost connection, which clients retry.

    A password or token does not change at the broker and in its file at the same moment. In between,
    kafka-python would permanently abandon a transactional producer.
    """
    try:
        await ORIGINALS[_authenticate](self, timeout_at)
    except KafkaConnectionError:
        raise
    except (KafkaError, ConfigurationError, TokenRefused, ValueError) as error:
        raise KafkaConnectionError(f"authentication failed: {error}") from None


async def _initialize(self: Any, timeout_at: float | None = None) -> None:
    """Initialise a connection; raise its failure, so that attempts back off.

    kafka-python resets the pause after a refused connection, and retries immediately.
    """
    await ORIGINALS[_initialize](self, timeout_at)
    if self._init_future.failed():
        raise self._init_future.exception


def _end_transaction(self: Any, correlation_id: int, response: Any) -> None:
    """Handle the response to EndTxn; after a lost connection the outcome is unknown.

    kafka-python repeats the request. The first one may come late, and end the next transaction.
    """
    if isinstance(response, KafkaConnectionError):
        self.transaction_manager.clear_in_flight_transactional_request_correlation_id()
        self.fatal_error(response)
    else:
        ORIGINALS[_end_transaction](self, correlation_id, response)


# TLS keeps its own reads: decrypted data is not visible at the socket, so it must be read completely.
_REPLACED: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (KafkaNetSocket, "connect", _connect),
    (KafkaTCPTransport, "_sock_recv", _read_piece),
    (KafkaBytes, "read", _read_rest),
    (KafkaSSLTransport, "__init__", _make_transport),
    (KafkaSSLTransport, "handshake", _shake_hands),
    (KafkaConnectionManager, "_build_transport", _build_transport),
    (KafkaConnection, "_sasl_authenticate", _authenticate),
    (KafkaConnection, "initialize", _initialize),
    (EndTxnHandler, "on_complete", _end_transaction),
)
ORIGINALS: dict[Callable[..., Any], Callable[..., Any]] = {
    replacement: getattr(owner, name) for owner, name, replacement in _REPLACED
}
"""kafka-python's own method by its replacement."""


def install() -> None:
    for owner, name, replacement in _REPLACED:
        setattr(owner, name, replacement)


# -- connections of clients ------------------------------------------------


class _Selector(NetworkSelector):  # type: ignore[misc]
    def run(self, coro: Any, *args: Any) -> Any:
        try:
            return super().run(coro, *args)
        except KafkaError as error:
            raise without_traceback(error) from error.__cause__


_selectors_lock = threading.Lock()
_selectors: dict[Io, NetworkSelector] = {}
_parents_selectors: list[NetworkSelector] = []


def shared_selector(name: Io) -> NetworkSelector:
    """Return the selector that serves consumers' sockets; replace a failed one."""
    with _selectors_lock:
        found = _selectors.get(name)
        if found is None or found._exception is not None:
            found = _selectors[name] = _Selector(client_id=name, selector=KeySelector)
            found.start()
        return found


def _leave_selectors_behind() -> None:
    """Give a forked child new selectors, because its parent's threads do not exist in it."""
    global _selectors_lock
    # A thread of the parent may have held the lock. The selectors stay referenced: deleting them would
    # remove the parent's sockets from an epoll that both processes share.
    _selectors_lock = threading.Lock()
    _parents_selectors.extend(_selectors.values())
    _selectors.clear()


os.register_at_fork(after_in_child=_leave_selectors_behind)


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    def close_idle_connections(self) -> None:
        """Do nothing: the brokers close idle connections too.

        kafka-python's own method reschedules itself forever: on a shared selector a closed manager would
        stay alive, with its sockets.
        """


class SharedClient(KafkaNetClient):  # type: ignore[misc]
    """Consumer's client that closes its own connections but leaves the selector running.

    The leaders of ``topics`` are part of the first metadata request: `set_topics` has no time limit.
    """

    def __init__(self, io: Io, topics: Collection[str], **configs: Any) -> None:
        net = shared_selector(io)
        super().__init__(net=net, manager=_Manager(net, **configs), **configs)
        self.cluster._topics.update(topics)

    def close(self, node_id: Any = None) -> None:
        # Closed in the selector's thread, which uses the connections.
        self._net.run(lambda: self._manager.close(node_id=node_id))


class TransactionalClient(KafkaNetClient):  # type: ignore[misc]
    """Connections of a transactional producer.

    The producer loses a transaction's request if the coordinator's connection fails before sending:
    kafka-python raises here although its producer expects False.
    """

    def await_ready(self, node_id: Any, timeout_ms: int = 30_000) -> bool:
        """Return whether the node is connected, or becomes so within the time."""
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except KafkaError:
            return False


# -- records ---------------------------------------------------------------

_POLL_BYTES = 2**23  # inflated bytes after which a poll ends: a fetch of 4 MiB can inflate to gigabytes
_LEAST_VIEW_BYTES = 2**12


def to_batch(batch: DefaultRecordBatch) -> RecordBatch:
    """Return a batch of kafka-python, with unread records, in this package's form."""
    head = (batch.base_offset, batch.records_count, batch.last_offset_delta, batch.leader_epoch)
    return RecordBatch(batch._buffer, *head, batch._pos, batch.compression_type)


class _View(DefaultRecordBatch):  # type: ignore[misc]
    """Batch that shares its bytes, while kafka-python would copy them."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._header_data = self.HEADER_STRUCT.unpack_from(buffer)
        self._pos = self.HEADER_STRUCT.size
        self._num_records = self._header_data[12]
        self._next_record_index = 0
        self._decompressed = False


class _Views(MemoryRecords):  # type: ignore[misc]
    def next_batch(self) -> Any:
        """Return the next batch, or None; do not copy a large one in format 2."""
        part = self._next_slice
        if part is None or len(part) < _LEAST_VIEW_BYTES or part[self.MAGIC_OFFSET] != 2:
            return super().next_batch()
        view = _View(part)
        if view.is_control_batch:
            # kafka-python's own methods read its record; they need a copy.
            return super().next_batch()
        self._cache_next()
        return view


class RecordReader(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Reader of one partition's records in one response, replacing `Fetcher.PartitionRecords`.

    kafka-python trusts the offset in a record, raises from `poll`, at every attempt, for a record that it
    cannot read, and inflates whole batches. ``most_bytes``: longest record kept from a compressed batch.
    """

    shares_bytes = False  # True if batches are views of the response

    def __init__(self, *args: Any, most_bytes: int = MOST_RECORD_BYTES, **kwargs: Any) -> None:
        self._most_bytes = most_bytes
        self.inflated = 0  # bytes inflated for the last take
        self._aborted: dict[int, bool] = {}  # by first offset, batches of ended transactions
        super().__init__(*args, **kwargs)

    def take(self, n: int | None = None) -> list[Any]:
        """Return up to ``n`` records, or fewer if many bytes were inflated for them."""
        self._maybe_raise_next_inline_exception()
        self.inflated = 0
        records: list[Any] = []
        try:
            for record in self.record_iterator:
                if record is not None:
                    records.append(record)
                    if len(records) == n:
                        break
                elif self.inflated >= _POLL_BYTES:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error
        return records

    def _maybe_skip_record(self, record: Any) -> bool:
        """Leave skipping to `_unpack_records`, which can pause."""
        return False

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        """Yield the records of all batches that were not aborted.

        A None between records is a place where a poll may end. As in the overridden method,
        `next_fetch_offset` is the offset to continue from after each record, and after the last batch.
        """
        stop = None
        if self.isolation_level:
            self._aborted, stop = record_batches.ended_transactions(records._buffer)
        if self.shares_bytes:
            records = _Views(records._buffer)
        while (batch := records.next_batch()) is not None:
            if batch.base_offset == stop:
                self.next_fetch_offset = stop
                break
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{tp}: the batch at offset {batch.base_offset} fails its checksum")
            if batch.magic != 2:
                what = f"are of message format {batch.magic}, of Kafka before 0.11"
                raise UnreadableBatch(what, batch.base_offset, batch.base_offset + 1)
            self.leader_epoch = batch.leader_epoch
            if not self._is_hidden(batch):
                for record in self.parse(batch):
                    if record is None:
                        yield None
                    elif record.offset >= self.fetch_offset:
                        self.records_read += 1
                        self.next_fetch_offset = record.offset + 1
                        yield record
            # A batch keeps its offset range even if its last records were compacted away.
            self.next_fetch_offset = max(batch.next_offset, self.fetch_offset)
        # A number above 0 makes the fetcher serve the partitions in turn.
        self.bytes_read = self.records_read
        self.drain()

    def _is_hidden(self, batch: Any) -> bool:
        """Return whether a batch is a marker or, under read_committed, aborted.

        A broker's list of aborted transactions may lack some: markers decide where the response has them.
        """
        if (is_aborted := self._aborted.get(batch.base_offset)) is not None:
            return is_aborted
        if self.isolation_level and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    def parse(self, batch: DefaultRecordBatch) -> Iterator[Any]:
        """Yield a batch's records, and None after each piece of a compressed batch."""
        stored = to_batch(batch)
        if not stored.compression_type:
            yield from self.records(stored)
            return
        for piece in inflate(stored, self._most_bytes):
            self.inflated += piece.inflated
            yield from self.records(piece)
            yield None

    def records(self, batch: RecordBatch) -> Iterator[Any]:
        """Yield the records of an uncompressed batch or piece."""
        return parse_batch(batch)


class InflatingReader(RecordReader):
    """Reader of the service's own topics, where a broken batch is an error.

    A broker may compress these topics.
    """

    def parse(self, batch: DefaultRecordBatch) -> Iterator[Any]:
        batch._maybe_uncompress()
        return parse_batch(to_batch(batch))


def use_reader(consumer: KafkaConsumer, reader: Callable[..., RecordReader]) -> None:
    """Make a consumer use a reader, and end polls that inflate bytes.

    kafka-python would otherwise continue with a partition until the poll has its maximum number of records.
    """
    fetcher = consumer._fetcher
    append = fetcher._append

    def append_and_end(drained: Any, part: Any, most: int, *how: Any) -> int:
        count: int = append(drained, part, most, *how)
        return max(count, most) if part.inflated else count

    fetcher.PartitionRecords = reader
    fetcher._append = append_and_end


# -- slow links ------------------------------------------------------------

LEAST_FETCH_BYTES = 64 * 1024
_SHRINKING = 4
_SIZES = ("fetch_max_bytes", "max_partition_fetch_bytes")
_REMEMBERED_SECONDS = 600.0  # time that new consumers of the process start with the reduced size

_limit = (sys.maxsize, 0.0)  # fetch size of the process that a slow link has allowed, and until when


def _limit_now() -> int:
    size, until = _limit
    return size if time.monotonic() < until else sys.maxsize


def shrink_on_timeout(consumer: KafkaConsumer, request_timeout_ms: int) -> None:
    """Quarter a consumer's fetch size after each timed-out fetch.

    kafka-python discards such a fetch and repeats it with the same size, forever.
    """
    fetcher = consumer._fetcher
    handle = fetcher._handle_fetch_error

    def limit(size: int) -> None:
        for name in _SIZES:
            fetcher.config[name] = min(fetcher.config[name], size)

    def handle_and_shrink(node: Any, error: Exception) -> None:
        global _limit
        handle(node, error)
        size = fetcher.config[_SIZES[0]]
        if not isinstance(error, RequestTimedOutError) or size <= LEAST_FETCH_BYTES:
            return
        smaller = max(size // _SHRINKING, LEAST_FETCH_BYTES)
        limit(smaller)
        if smaller < _limit_now():
            _limit = (smaller, time.monotonic() + _REMEMBERED_SECONDS)
            numbers = (size // 1024, request_timeout_ms, smaller // 1024)
            log.warning(
                "the link to the broker is slow, or the broker: a fetch of up to %d KiB was not answered "
                "within %d ms; fetches are of %d KiB now",
                *numbers,
            )

    limit(_limit_now())
    fetcher._handle_fetch_error = handle_and_shrink


# -- consumers, producers and groups ---------------------------------------


def close_reader(consumer: KafkaConsumer) -> None:
    """Close a consumer without a commit, and drop its fetched records.

    kafka-python's objects form reference cycles: their records would stay until the next garbage collection.
    """
    try:
        consumer.close(autocommit=False)
    finally:
        fetcher = consumer._fetcher
        fetcher.close()
        fetcher._completed_fetches.clear()
        fetcher._fetch_futures.clear()
        fetcher._next_partition_records = None


def seek(consumer: KafkaConsumer, partition: TopicPartition, offset: int, epoch: int) -> None:
    """Continue from an offset, and detect a lost tail.

    Reading raises LogTruncationError if the record before the offset was accepted by a leader of an epoch
    other than ``epoch`` (-1: unknown). The consumer's own method does not accept an epoch.
    """
    consumer.seek(partition, offset)
    consumer._subscription.seek(partition, OffsetAndMetadata(offset, "", epoch))


def rejoin_if_unstable(consumer: KafkaConsumer) -> bool:
    """Request a join again that kafka-python has abandoned; return whether the membership is stable.

    A join that outlasts one poll is forgotten: the member would stop its heartbeats and keep its former
    assignment while its successor holds it too.
    """
    coordinator = consumer._coordinator
    if not coordinator.stable():
        coordinator.request_rejoin()
    return bool(coordinator.stable() and not coordinator.coordinator_unknown())


def group_positions(
    consumer: KafkaConsumer, partitions: Sequence[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's known positions, from a new request.

    kafka-python would accept a late response to an earlier call as the response to this one.
    """
    coordinator = consumer._coordinator
    coordinator._offset_fetch_futures.clear()
    found: dict[TopicPartition, OffsetAndMetadata] = coordinator.fetch_committed_offsets(
        partitions, timeout_ms=timeout_ms
    )
    return found


def transaction_manager(producer: KafkaProducer) -> Any:
    """Return the manager, whose results accept a time limit; the producer's methods do not."""
    return producer._transaction_manager


def wake(producer: KafkaProducer) -> None:
    """Make a producer send now: a request to its transaction manager does not wake its thread."""
    producer._sender.wakeup()


def is_served_here(producer: KafkaProducer) -> bool:
    """Return whether this thread sends the producer's messages: it must not wait for them."""
    return producer._sender is threading.current_thread()


def drop_unsent(producer: KafkaProducer) -> None:
    """Drop a producer's unsent messages, which `close` would wait for, and then raise without closing."""
    producer._sender.force_close()
