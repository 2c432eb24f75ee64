"""Kafka clients with the settings that facts.md asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from streaming_pca.service import lenient_headers
from streaming_pca.settings import KafkaSettings

__all__ = [
    "BrokerUnreachable",
    "admin_client",
    "group_consumer",
    "plain_producer",
    "reading_consumer",
    "transactional_producer",
]

lenient_headers.install()

MAX_MESSAGE_BYTES = 32 * 2**20
_FETCH_BYTES = 8 * 2**20


class BrokerUnreachable(Exception):
    """No broker answered."""


@contextmanager
def _unreachable(settings: KafkaSettings) -> Iterator[None]:
    try:
        yield
    except (KafkaError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BrokerUnreachable(
            f"no broker answers at kafka.bootstrap_servers = {settings.bootstrap_servers!r} "
            f"within {settings.bootstrap_timeout_ms} ms ({reason[:160]})"
        ) from None


def _common(settings: KafkaSettings) -> dict[str, Any]:
    return {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "bootstrap_timeout_ms": settings.bootstrap_timeout_ms,
        "request_timeout_ms": settings.request_timeout_ms,
        "metrics_enabled": False,
    }


def admin_client(settings: KafkaSettings) -> KafkaAdminClient:
    """For topics and their configuration."""
    common = _common(settings)
    del common["metrics_enabled"]
    with _unreachable(settings):
        return KafkaAdminClient(**common)


def reading_consumer(
    settings: KafkaSettings,
    *,
    committed: bool = True,
    max_poll_records: int = 2000,
    fetch_bytes: int = _FETCH_BYTES,
) -> KafkaConsumer:
    """A consumer without a group: partitions and positions are assigned by hand."""
    with _unreachable(settings):
        return KafkaConsumer(
            **_common(settings),
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="none",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_bytes=fetch_bytes,
            max_partition_fetch_bytes=fetch_bytes,
            fetch_max_wait_ms=100,
            max_poll_records=max_poll_records,
        )


def group_consumer(settings: KafkaSettings, group: str, assignor: type[Any]) -> KafkaConsumer:
    """Member of a group that shares partitions by ``assignor``."""
    with _unreachable(settings):
        return KafkaConsumer(
            **_common(settings),
            group_id=group,
            partition_assignment_strategy=[assignor],
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.session_timeout_ms // 3,
            auto_offset_reset="latest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
        )


def transactional_producer(settings: KafkaSettings, transactional_id: str) -> KafkaProducer:
    """The one writer of a stream; ``init_transactions`` fences its predecessors."""
    with _unreachable(settings):
        return KafkaProducer(
            **_common(settings),
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            delivery_timeout_ms=settings.request_timeout_ms * 2,
            max_block_ms=settings.request_timeout_ms,
            max_request_size=MAX_MESSAGE_BYTES,
            allow_auto_create_topics=False,
        )


def plain_producer(settings: KafkaSettings) -> KafkaProducer:
    """For records: idempotent, batched, never compressed (a consumer has no bound on inflating)."""
    with _unreachable(settings):
        return KafkaProducer(
            **_common(settings),
            batch_size=256 * 1024,
            linger_ms=20,
            max_block_ms=60_000,
            max_request_size=MAX_MESSAGE_BYTES,
            allow_auto_create_topics=False,
        )
