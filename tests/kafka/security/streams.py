"""Streams on a broker that demands credentials, used by users with their own settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming_pca.admin.access import apply_permissions, permissions, topic_ids
from streaming_pca.admin.topics import create_with_cap
from streaming_pca.client.sending import Outgoing, Sending, send_messages
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.privacy.ledger.entries import Cap
from tests.kafka.security.secured import Secured
from tests.kafka.stream import OCTETS, Stream

BATCH = 100
"""Records per batch."""


def described(secured: Secured, name: str, directory: Path, batches: int = 2, **worker: Any) -> Stream:
    """Describe a stream as the super user sees it, without creating anything."""
    options = {"growth": 1.0, "n_records": BATCH * batches, "n_batches": batches}
    how: dict[str, Any] = {"partitions": 2, "cap": None, "create": False, "worker": worker}
    server = secured.open_settings.bootstrap_servers
    return Stream.make(server, name, directory, options=options, **how)


def as_user(stream: Stream, kafka: KafkaSettings) -> Settings:
    """Return the stream's settings with a user's connection."""
    session = {"session_timeout_ms": stream.settings.kafka.session_timeout_ms}
    return stream.settings.model_copy(update={"kafka": kafka.model_copy(update=session)})


def grant(secured: Secured, stream: Stream, users: Sequence[str], output: str | None = None) -> None:
    """Give each user the permissions of the role with the same name."""
    for user in users:
        ids = topic_ids(user, [as_user(stream, secured.open_settings)])
        wanted = permissions(user, [stream.settings], output if user == "projector" else None, ids)
        apply_permissions(secured.open_settings, wanted, f"User:{user}")


def create(stream: Stream, kafka: KafkaSettings) -> None:
    """Create the topics as a user does."""
    create_with_cap([as_user(stream, kafka)], Cap(epsilon="1", delta="1e-6"), "basic", stream.partitions, 1)
    stream.find()


def feed(stream: Stream, kafka: KafkaSettings, count: int, seed: int = 0) -> None:
    """Send records as a user does."""
    messages = [Outgoing(row.tobytes()) for row in stream.vectors(count, seed)]
    send_messages(Sending(kafka, stream.settings.stream.input), messages, count, list(OCTETS))
