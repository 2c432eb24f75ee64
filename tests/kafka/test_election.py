"""A stream keeps one leader in a group when members become candidates for more streams.

kafka-python 3.0.12 knows that it must rejoin as long as its subscription differs from the last one it
sent. After sending, if the answer takes longer than one poll, it forgets the answer. Such a member
stops sending heartbeats, keeps its old assignment, and polls without a pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kafka import KafkaAdminClient

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.election import Election
from tests.kafka.conftest import Name
from tests.waiting import LIMIT, wait_for

SESSION_MS = 2000


class Member:
    """Candidate with a polling thread of its own, as in a worker."""

    def __init__(self, bootstrap: str, group: str, topics: list[str]) -> None:
        self.won: frozenset[str] = frozenset()
        self._topics, self._over = topics, threading.Event()
        kafka = KafkaSettings(bootstrap_servers=bootstrap, session_timeout_ms=SESSION_MS)
        self._election = Election(kafka, group, lambda: None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stand_for(self, topics: list[str]) -> None:
        self._topics = topics

    def _run(self) -> None:
        while not self._over.is_set():
            self.won = self._election.poll(self._topics)

    def close(self) -> None:
        self._over.set()
        self._thread.join(LIMIT)
        self._election.close()


def test_two_members_never_lead_one_stream_for_long(kafka_bootstrap: str, unique_name: Name) -> None:
    topics = [f"{unique_name('election')}.state" for _ in range(2)]
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        admin.create_topics({t: {"num_partitions": 1, "replication_factor": 1} for t in topics})
    group = unique_name("group")
    first = Member(kafka_bootstrap, group, topics)
    second = None
    try:
        wait_for("the first to lead", steadily(lambda: first.won == set(topics)), seen=lambda: str(first.won))
        # Like a worker that discovers its streams' topics one by one.
        second = Member(kafka_bootstrap, group, topics[:1])
        wait_for("the second to lead", steadily(lambda: bool(second.won)), seen=lambda: str(second.won))
        second.stand_for(topics)
        # Long enough to replace a silent member, and for the others to settle.
        time.sleep(3 * SESSION_MS / 1000)
        # A member that polls without heartbeats never recovers, however long the test waits.
        wait_for(
            "one leader of each",
            steadily(lambda: sorted([*first.won, *second.won]) == sorted(topics)),
            seen=lambda: f"they lead {set(first.won)} and {set(second.won)}",
        )
    finally:
        first.close()
        if second is not None:
            second.close()


def steadily(holds: Callable[[], bool]) -> Callable[[], bool]:
    """Return a probe that is true once ``holds`` has been true for a second."""
    since: float | None = None

    def probe() -> bool:
        nonlocal since
        now = time.monotonic()
        since = (since or now) if holds() else None
        return since is not None and now - since >= 1

    return probe


def test_a_process_without_a_candidate_neither_fails_nor_polls_without_a_pause(kafka_bootstrap: str) -> None:
    election = Election(KafkaSettings(bootstrap_servers=kafka_bootstrap), "nobody", lambda: None)
    began = time.monotonic()
    try:
        assert not any(election.poll([]) for _ in range(3))
    finally:
        election.close()
    assert time.monotonic() - began > 0.5
