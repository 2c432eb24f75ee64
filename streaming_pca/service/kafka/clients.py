"""Kafka clients of the service, with its timeouts, limits and security settings.

Consumers share three socket threads, because a process of fifty streams would otherwise have hundreds: one
for megabytes of records; one for ledgers, states and releases, which delay a batch; one for control (the
election, the clock), which must not wait for either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import (
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    RetriableError,
    UnknownBrokerIdError,
)

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable, NotPermitted, missing_permission
from streaming_pca.service.kafka import credentials, patches
from streaming_pca.service.kafka.diagnosis import diagnose
from streaming_pca.service.kafka.patches import InflatingReader, Io, RecordReader
from streaming_pca.service.kafka.transaction import delivery_timeout_ms
from streaming_pca.text import first_line

credentials.install()
patches.install()

C = TypeVar("C")
MAX_MESSAGE_BYTES = 32 * 2**20
MAX_ANSWER_BYTES = 2**30
"""Largest response of a broker that a reader accepts.

kafka-python's own limit is 100 MB: a larger message would be requested forever. This limit is still below
the first bytes of HTTP and SSH, read as a length.
"""
MOST_MESSAGE_BYTES = MAX_ANSWER_BYTES - 2**20
"""Largest message of an input topic: a response contains a little more."""
_FETCH_BYTES = 8 * 2**20
# kafka-python 3.0.12 does not mark the second as retriable. It means that a response names a broker that the
# client's own list, of another moment, does not contain: while brokers start, and under load.
_PASSING = (RetriableError, UnknownBrokerIdError)

TpOffsets = dict[TopicPartition, int]
_LEAST_BOOTSTRAP_MS = 1500
_NEVER_MS = 2**31 - 1
_answered: dict[str, str] = {}  # bootstrap server that responded last, by list of servers


def _connect(settings: KafkaSettings, make: Callable[..., C], **options: Any) -> C:
    """Make a client with the first bootstrap server that responds, or raise BrokerUnreachable.

    Raises ConfigurationError for settings or files that no server could accept.

    The server that responded last is tried first. kafka-python 3.0.12 picks one at random and gives it all of
    the time: one hanging broker of three could prevent a worker from ever making the clients of a take-over.
    """
    servers = settings.bootstrap_servers.split(",")
    servers.sort(key=lambda server: server != _answered.get(settings.bootstrap_servers))
    each = max(settings.bootstrap_timeout_ms // len(servers), _LEAST_BOOTSTRAP_MS)
    each = min(each, settings.bootstrap_timeout_ms)
    reason = ""
    if settings.bootstrap_servers not in _answered:
        # Before the first response unusable files are a mistake, later they are perhaps being replaced.
        settings.check_files()
    for server in servers:
        by_one = {"bootstrap_servers": [server], "bootstrap_timeout_ms": each}
        try:
            made = make(**(options | _common_options(settings) | by_one))
        except (credentials.TokenRefused, ConfigurationError) as error:
            raise BrokerUnreachable(str(error)) from None
        except KafkaConfigurationError as error:
            raise ConfigurationError(
                f"kafka-python refuses settings of [kafka]: {first_line(error)}"
            ) from None
        except (KafkaError, OSError, ValueError) as error:
            reason = first_line(error)
            continue
        _answered[settings.bootstrap_servers] = server
        return made
    diagnosis = diagnose(settings, servers)
    if diagnosis is not None and diagnosis.answers:
        # An option names an address only.
        is_option = settings.argument.startswith("--") and "set kafka." in diagnosis.text
        raise BrokerUnreachable(diagnosis.text + " in a file, and name it by --config" * is_option)
    raise BrokerUnreachable(
        f"no broker answers at {settings.given_servers} "
        f"within {settings.bootstrap_timeout_ms} ms ({diagnosis.text if diagnosis else reason[:160]})",
        # A diagnosis follows the client's steps: where it finds no fault, the broker was only slow.
        may_pass=diagnosis is None,
    )


def broker_failed(
    settings: KafkaSettings, failure: str, error: Exception, operation: str = "Describe"
) -> BrokerUnreachable | NotPermitted:
    """Return the error for a request that failed after a client was made.

    The cause may be a missing permission for ``operation``, or the broker's unreachable advertised address.
    """
    missing = missing_permission(error, operation)
    if missing is not None:
        return missing
    diagnosis = diagnose(settings, settings.bootstrap_servers.split(","), advertised=True)
    return BrokerUnreachable(
        f"{failure}: {diagnosis.text if diagnosis else first_line(error)}",
        may_pass=isinstance(error, _PASSING) and not (diagnosis is not None and diagnosis.answers),
    )


def _consumer(
    *,
    io: Io,
    topics: Collection[str] = (),
    reader: Callable[..., RecordReader] | None = None,
    **configs: Any,
) -> KafkaConsumer:
    """Make a consumer on a shared selector; clean up after a failure."""
    made: list[patches.SharedClient] = []

    def client(**more: Any) -> patches.SharedClient:
        made.append(patches.SharedClient(io, topics, **more))
        return made[0]

    try:
        consumer = KafkaConsumer(**configs, enable_auto_commit=False, kafka_client=client)
        patches.use_reader(consumer, reader or (RecordReader if io == "records" else InflatingReader))
        patches.shrink_on_timeout(consumer, configs["request_timeout_ms"])
        return consumer
    except BaseException:
        for each in made:
            each.close()
        raise


def _common_options(settings: KafkaSettings) -> dict[str, Any]:
    common: dict[str, Any] = {
        "request_timeout_ms": settings.request_timeout_ms,
        # The client's default is 30 s: a lead would be lost although the broker or its password is back.
        "reconnect_backoff_max_ms": settings.session_timeout_ms // 3,
        "metrics_enabled": False,
        "allow_auto_create_topics": False,
        "security_protocol": settings.security_protocol,
        "selector": patches.KeySelector,
    }
    if settings.security_protocol.startswith("SASL"):
        common |= credentials.sasl_options(settings)
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(settings, name)
        if path is not None:
            common[name] = str(path)
    return common


def retry(
    ask: Callable[[], C], passing: tuple[type[KafkaError], ...], timeout_ms: float, pause_ms: float = 50
) -> C:
    """Repeat a request as long as it fails with a passing error, until the timeout."""
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            return ask()
        except passing:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause_ms / 1000)


class _AdminClient(KafkaAdminClient):  # type: ignore[misc]
    """Client that retries when a connection ends before the response.

    kafka-python's own client raises immediately: a broker that closes one connection would end a lead.
    """

    def describe_topics(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask(super().describe_topics, *args, **kwargs)

    def describe_cluster(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask(super().describe_cluster, *args, **kwargs)

    def describe_configs(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask(super().describe_configs, *args, **kwargs)

    def _ask(self, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        times = (self.config["request_timeout_ms"], self.config["retry_backoff_ms"])
        lost = (KafkaConnectionError, NodeNotReadyError)
        return retry(lambda: question(*args, **kwargs), lost, *times)


def admin_client(settings: KafkaSettings) -> KafkaAdminClient:
    """Make a client for topics and their configuration, which retries after a lost connection."""

    def make(**common: Any) -> KafkaAdminClient:
        known = {name: value for name, value in common.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
        return _AdminClient(**known)

    return _connect(settings, make)


@contextmanager
def ask_broker(
    settings: KafkaSettings, failure: str, operation: str = "Describe"
) -> Iterator[KafkaAdminClient]:
    """Give an admin client to a block whose KafkaError becomes :func:`broker_failed`."""
    with closing(admin_client(settings)) as admin:
        try:
            yield admin
        except KafkaError as error:
            raise broker_failed(settings, failure, error, operation) from None


def reading_consumer(
    settings: KafkaSettings,
    *,
    committed: bool = True,
    max_poll_records: int = 2000,
    fetch_bytes: int = _FETCH_BYTES,
    io: Io = "logs",
    topics: Collection[str] = (),
    reader: Callable[..., RecordReader] | None = None,
) -> KafkaConsumer:
    """Make a consumer without a group; the caller assigns partitions and positions.

    ``io`` is the thread of its socket: "records" for an input, "control" for a consumer that does not fetch
    and must not wait for fetches, "logs" otherwise. The leaders of ``topics`` are requested immediately;
    others a tenth of a second later. ``reader`` reads the broker's responses, of an input by default with
    :class:`RecordReader`.
    """
    return _connect(
        settings,
        _consumer,
        io=io,
        topics=topics,
        reader=reader,
        isolation_level="read_committed" if committed else "read_uncommitted",
        auto_offset_reset="none",
        fetch_max_bytes=fetch_bytes,
        max_partition_fetch_bytes=fetch_bytes,
        receive_message_max_bytes=MAX_ANSWER_BYTES,
        fetch_max_wait_ms=100,
        max_poll_records=max_poll_records,
    )


class _Assignor(StickyPartitionAssignor):  # type: ignore[misc]
    """Sticky assignment of known partitions of each topic, without waiting for metadata.

    kafka-python may assign before metadata arrives, and then assigns them to no member
    (docs/explanation/kafka-client.md). With its default assignor, a joining member takes partitions over.
    """

    def __init__(self, known: Iterable[int]) -> None:
        super().__init__()
        self._known = set(known)

    def assign(self, cluster: Any, members: Any) -> Any:
        topics = {topic for member in members for topic in member.metadata.topics}
        partitions = {topic: self._known | (cluster.partitions_for_topic(topic) or set()) for topic in topics}
        known = SimpleNamespace(topics=lambda: topics, partitions_for_topic=partitions.get)
        return super().assign(known, members)


def group_consumer(settings: KafkaSettings, group: str, partitions: Iterable[int]) -> KafkaConsumer:
    """Make a member of a group that shares its topics' partitions.

    It shares ``partitions``, and further ones as soon as the metadata has them. It sees positions only after
    the end of the transactions that wrote them.
    """
    return _connect(
        settings,
        _consumer,
        io="control",
        group_id=group,
        isolation_level="read_committed",
        partition_assignment_strategy=[_Assignor(partitions)],
        session_timeout_ms=settings.session_timeout_ms,
        # After a heartbeat is lost with its connection, the next one follows only after this interval.
        heartbeat_interval_ms=settings.session_timeout_ms // 5,
        auto_offset_reset="latest",
    )


def transactional_producer(settings: KafkaSettings, transactional_id: str) -> KafkaProducer:
    """Make a stream's only writer; ``init_transactions`` fences its predecessors."""
    return _connect(
        settings,
        KafkaProducer,
        kafka_client=patches.TransactionalClient,
        transactional_id=transactional_id,
        transaction_timeout_ms=settings.transaction_timeout_ms,
        # While a broker completes the previous transaction, it refuses the next one for some milliseconds.
        retry_backoff_ms=20,
        delivery_timeout_ms=delivery_timeout_ms(settings),
        max_block_ms=settings.request_timeout_ms,
        max_request_size=MAX_MESSAGE_BYTES,
    )


def plain_producer(settings: KafkaSettings) -> KafkaProducer:
    """Make a producer of records: idempotent, batched, not compressed, as floats hardly shrink."""
    return _connect(
        settings,
        KafkaProducer,
        # Both are the client's defaults, but some other settings disable them silently.
        acks="all",
        enable_idempotence=True,
        batch_size=256 * 1024,
        linger_ms=20,
        # A batch waits for earlier ones, on a slow link for longer than any limit: the caller limits silence.
        delivery_timeout_ms=_NEVER_MS,
        max_block_ms=60_000,
        max_request_size=MAX_MESSAGE_BYTES,
    )


def offsets_by(ask: Callable[..., TpOffsets], tps: Iterable[TopicPartition], timeout_ms: int) -> TpOffsets:
    """Return a consumer's ``beginning_offsets`` or ``end_offsets``; raise KafkaError unless all are known."""
    try:
        return {tp: int(offset) for tp, offset in ask(list(tps), timeout_ms=timeout_ms).items()}
    except KeyError as error:
        # kafka-python 3.0.12 queries the known leaders and omits the other partitions.
        raise LeaderNotAvailableError(f"{error.args[0]} has no known leader") from None
