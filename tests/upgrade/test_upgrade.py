"""A new worker continues streams of the previous version, or refuses them in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from streaming_pca.admin.ledger import describe_spent
from streaming_pca.config.loading import load_settings
from streaming_pca.privacy.ledger.entries import Abandoned, Reserved
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.topics.find import find_topics
from tests.kafka.stream import Stream, check_books
from tests.upgrade.program import Program, end, messages_of, produce, status_of, until
from tests.upgrade.streams import BATCH, CAPS, ESTIMATORS, OTHERS, write_config

ROOT = Path(__file__).parents[2]

REFUSED = {
    "adaptive": "was written by another version or with other stream.options",
    "analyze-gauss": "was written by another version or with other stream.options",
    "user-often": "whose noise was discrete",
    "retired": "is retired, which is final",
}
"""Streams that the new version refuses, with the reason."""

WAITING = {"paused"}
GOING_ON = {*ESTIMATORS, *OTHERS} - REFUSED.keys() - WAITING


@dataclass
class Upgraded:
    """Streams after the new program has run on them.

    Attributes
    ----------
    bootstrap : str
    before, refused : dict of topic to values
        Messages before the new program ran, and after it had refused streams.
    configs : dict of stream to file
    log, refusals : str
        Logs of the accepted worker, and of the refused one.
    """

    bootstrap: str
    configs: dict[str, Path]
    folder: Path
    before: dict[str, list[bytes]] = field(default_factory=dict)
    refused: dict[str, list[bytes]] = field(default_factory=dict)
    log: str = ""
    refusals: str = ""

    def values(self) -> dict[str, list[bytes]]:
        topics = [f"{name}.{kind}" for name in self.configs for kind in ("releases", "state")]
        topics += [f"{topic}.ledger" for topic in CAPS]
        return {topic: [m.value for m in messages_of(self.bootstrap, topic)] for topic in topics}

    def stream(self, name: str) -> Stream:
        settings = load_settings(self.configs[name], None)
        topic_id = find_topics(settings.kafka, settings.stream).topic_id
        return Stream(settings, topic_id, 2, self.folder / name)


@pytest.fixture(scope="module")
def upgraded(
    restore: Callable[[], str], fixtures: Path, tmp_path_factory: pytest.TempPathFactory
) -> Upgraded:
    """Restore a backup, refuse some streams, and continue the others."""
    folder = tmp_path_factory.mktemp("upgraded")
    bootstrap = restore()
    configs = {name: write_config(folder, bootstrap, name) for name in (*ESTIMATORS, *OTHERS)}
    found = Upgraded(bootstrap, configs, folder)
    found.before = found.values()
    with closing(Program(ROOT)) as program:
        upgrade(found, program, fixtures)
    return found


def upgrade(found: Upgraded, program: Program, fixtures: Path) -> None:
    """Run the commands of an upgrade."""
    bootstrap, folder, configs = found.bootstrap, found.folder, found.configs
    lost = ["old-users.ledger", "user-once.state", "user-often.state"]
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.delete_topics(lost)
    program.run("import", fixtures / "backup.zip", "--config", configs["user-once"])

    for topic in CAPS:
        produce(bootstrap, topic, BATCH, seed=1, keyed=topic == "old-users")
    log = folder / "refused.log"
    worker = program.start_worker([configs[name] for name in REFUSED], log)
    assert status_of(worker) == 2, log.read_text()
    found.refusals, found.refused = log.read_text(), found.values()

    log = folder / "worker.log"
    worker = program.start_worker([configs[name] for name in sorted(GOING_ON | WAITING)], log)
    wanted = {name: 2 if name == "reserved" else 3 for name in GOING_ON}
    until(
        "a release of each",
        lambda: all(
            len(messages_of(bootstrap, f"{name}.releases")) == count for name, count in wanted.items()
        ),
        worker,
        log,
    )
    assert end(worker) == 0, log.read_text()
    found.log = log.read_text()


def test_lost_topics_come_back_from_a_backup_of_the_version_before(upgraded: Upgraded) -> None:
    for topic in ("old-users.ledger", "user-once.state", "user-often.state"):
        assert set(upgraded.before[topic]) >= set(upgraded.refused[topic]), topic
        assert upgraded.refused[topic], topic


def test_streams_that_cannot_go_on_are_refused_in_a_line_each(upgraded: Upgraded) -> None:
    assert "Traceback" not in upgraded.refusals
    for name, reason in REFUSED.items():
        (line,) = [line for line in upgraded.refusals.splitlines() if reason in line and f"'{name}'" in line]
        assert " ERROR " in line
        for topic in (f"{name}.releases", f"{name}.state"):
            assert upgraded.refused[topic][-1:] == upgraded.before[topic][-1:], topic
    for topic in ("old.ledger", "old-life.ledger"):
        assert upgraded.refused[topic] == upgraded.before[topic]


def test_the_others_go_on(upgraded: Upgraded) -> None:
    assert "Traceback" not in upgraded.log
    after = upgraded.values()
    for name in GOING_ON:
        before = upgraded.before[f"{name}.releases"]
        assert after[f"{name}.releases"][: len(before)] == before, name
    for topic in ("old", "old-life", "old-open"):
        before = upgraded.before[f"{topic}.ledger"]
        assert after[f"{topic}.ledger"][: len(before)] == before
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_books, [upgraded.stream(name) for name in sorted(GOING_ON)]))


def test_a_reserved_batch_is_abandoned_and_stays_charged(upgraded: Upgraded) -> None:
    stream = upgraded.stream("reserved")
    (abandoned,) = stream.own(Abandoned)
    assert abandoned.batch == 2
    assert [entry.batch for entry in stream.own(Reserved)] == [1, 2, 3]
    assert [release.batch for release in stream.releases()] == [1, 3]


def test_a_committed_release_is_published_as_it_was(upgraded: Upgraded) -> None:
    releases = upgraded.stream("committed").releases()
    assert [release.batch for release in releases] == [1, 2, 3]
    # The previous version computed it, this one published it.
    assert [release.version for release in releases] == [1, 1, 6]


def test_a_paused_stream_stays_paused(upgraded: Upgraded) -> None:
    assert len(upgraded.stream("paused").release_values()) == 2
    assert not upgraded.stream("paused").own(Abandoned)


def test_ledgers_verify_and_charges_are_as_the_version_before_said(
    upgraded: Upgraded, facts: dict[str, Any]
) -> None:
    kafka = upgraded.stream("open").settings.kafka
    for topic in CAPS:
        report = verify_ledger(kafka, topic)
        assert report.ok, report.problems
    for topic, message in facts["inputs"].items():
        spent = json.loads(json.dumps(describe_spent(kafka, topic, 0, 7)))
        assert spent["spent"] == message["spent"]["spent"], topic
        assert spent["left"] == message["spent"]["left"], topic
        assert spent["jobs"] == message["spent"]["jobs"], topic
