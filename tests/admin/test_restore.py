"""Traces of entries and releases since a backup are found without a broker, and without much memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import OffsetAndMetadata, TopicPartition

from streaming_pca.admin import restore, traces
from streaming_pca.admin.backup import verified_ledger
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import StreamRefused
from tests.admin.test_backup import made_backup

BACKUP, KAFKA = made_backup(), KafkaSettings()
LEDGER = verified_ledger(BACKUP, "the backup")


class Groups(dict[str, tuple[int, str]]):
    """Broker without topics, and the offset and the metadata of each group in one partition."""

    def list_topics(self) -> list[str]:
        return []

    def list_groups(self) -> list[dict[str, str]]:
        return [{"group_id": name} for name in self]

    def list_group_offsets(self, names: list[str]) -> dict[str, Any]:
        tp = TopicPartition("in", 0)
        return {name: {tp: OffsetAndMetadata(*self[name], -1)} for name in names if name in self}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    made = Groups()

    @contextmanager
    def ask(*_: object) -> Iterator[Groups]:
        yield made

    monkeypatch.setattr(traces, "ask_broker", ask)
    return made


@pytest.mark.parametrize(
    ("group", "offset", "kind"),
    [
        ("in.ledger.census", 300, "CHARGED"),
        *[("a", 200, kind) for kind in ("PAUSED", "RESUMED", "RETIRED")],
    ],
)
def test_the_newest_backup_is_accepted_once_the_named_group_is_deleted(
    groups: Groups, group: str, offset: int, kind: str
) -> None:
    """The remedy of docs/how-to/operate-streams.md, for a command that was used after the backup."""
    groups |= {"a": (200, ""), group: (offset, f"{kind} {'0' * 64}")}
    named = rf"has written {kind} to the ledger \(trace: group '{group}'\)"
    with pytest.raises(StreamRefused, match=named):
        restore._check_groups(KAFKA, BACKUP, LEDGER)
    del groups[group]
    restore._check_groups(KAFKA, BACKUP, LEDGER)


def test_a_batch_since_the_backup_is_refused_by_its_offset(groups: Groups) -> None:
    groups["a"] = (300, f"COMMITTED {'0' * 64}")
    with pytest.raises(StreamRefused, match=r"'a' has committed offset 300 .* the backup ends at 200"):
        restore._check_groups(KAFKA, BACKUP, LEDGER)


class Counted(bytes):
    """Message that counts how many are in memory."""

    alive = most = 0

    def __new__(cls, data: bytes) -> Counted:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        return super().__new__(cls, data)

    def __del__(self) -> None:
        Counted.alive -= 1


def test_releases_are_compared_one_at_a_time(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: KafkaSettings, topic: str) -> Iterator[tuple[int, bytes]]:
        return ((offset, Counted(b"{}")) for offset in range(50))

    monkeypatch.setattr(restore, "existing_topics", lambda _, names: {*names} & {"a.releases"})
    monkeypatch.setattr(restore, "read_topic", read)
    assert restore._check_newest(KAFKA, BACKUP, LEDGER, ["a"]) == 0
    assert Counted.most <= 3
