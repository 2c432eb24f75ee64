"""`streaming-pca status` reports the state of streams from the topics alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from streaming_pca.admin.broker_status import describe_status
from streaming_pca.cli import status
from streaming_pca.cli.common import out
from streaming_pca.config.loading import load_streams
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import ACCURACY
from streaming_pca.privacy.ledger import entries
from streaming_pca.privacy.ledger.entries import encode_entry, entry_hash
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.kafka.clients import group_consumer, transactional_producer
from streaming_pca.service.topics.find import create_topics, find_topics
from tests.cli.command import call
from tests.cli.test_app import closed_port, one_line
from tests.cli.test_watch import DOUBTFUL, EXACT, REASONS, release
from tests.data.test_release import COUNTED
from tests.waiting import LIMIT, wait_for

Capture = pytest.CaptureFixture[str]
Name = Callable[[str], str]

FILE = """
[kafka]
bootstrap_servers = "{bootstrap}"
unchecked_topics = true  # where Apache Kafka cannot be had, these run on the embedded broker
[worker]
group = "{name}-workers"
[stream]
input = "{name}-in"
dim = 2
rank = 1
epsilon = 0.5
delta = 1e-6
[[streams]]
name = "{name}-a"
[[streams]]
name = "{name}-b"
"""
NOTHING = {"committed": 0, "abandoned": 0, "released": 0}
NOBODY = {"present": False, "host": None, "candidates": 0}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a terminal width that wraps no line; tests/cli/test_tables.py has narrow ones."""
    monkeypatch.setattr(out, "_width", 200)


class Written:
    """Two streams of one input of two partitions, with topics written here, without a worker."""

    def __init__(self, bootstrap: str, name: str, directory: Path, budget_filter: str = "basic") -> None:
        self.name = name
        self.config = directory / f"{name}.toml"
        self.config.write_text(FILE.format(bootstrap=bootstrap, name=name))
        self.settings = load_streams(self.config)
        for settings in self.settings:
            create_topics(settings.kafka, settings.stream, 2, 1)
        kafka, stream = self.settings[0].kafka, self.settings[0].stream
        self.topic_id = find_topics(kafka, stream).topic_id
        cap = entries.Cap(epsilon=3, delta="1e-5")
        opened = entries.Opened(topic_id=self.topic_id, topic=stream.input, cap=cap, filter=budget_filter)
        open_ledger(kafka, opened, stream.ledger_topic)
        self._heads = {s.stream.name: entry_hash(opened) for s in self.settings}
        self.ledger_bytes = len(encode_entry(opened))
        self._producer = KafkaProducer(bootstrap_servers=bootstrap)

    def job(self, letter: str) -> str:
        return f"{self.name}-{letter}"

    def enter(self, letter: str, kind: type[Any], **fields: Any) -> None:
        """Write the job's next entry."""
        job = self.job(letter)
        entry: entries.LedgerEntry = kind(
            topic_id=self.topic_id, job=job, previous=self._heads[job], **fields
        )
        self._heads[job] = entry_hash(entry)
        self.ledger_bytes += len(encode_entry(entry))
        self.send(f"{self.name}-in.ledger", encode_entry(entry))

    def reserve(self, letter: str, batch: int, *ranges: Sequence[int], epsilon: str = "1") -> None:
        found = tuple(entries.OffsetRange(partition=p, start=a, end=b, count=b - a) for p, a, b in ranges)
        charge = Charge(epsilon=epsilon, delta="1e-6", rho="1/2")
        promise = next(s.stream for s in self.settings if s.stream.name == self.job(letter)).privacy_contract
        how = {"promise": promise, "parameters": {"mechanism": "private-oja", "sigma_over_sensitivity": 9.0}}
        self.enter(letter, entries.Reserved, batch=batch, ranges=found, charge=charge, **how)

    def answer(self, letter: str, batch: int, **reported: Any) -> None:
        self.enter(letter, entries.Committed, batch=batch, state_digest="0")
        published = release(batch, stream=self.job(letter), **reported)
        self.send(f"{published.stream}.releases", published.to_bytes())
        self.enter(letter, entries.Released, batch=batch, release_digest="0")

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.send(topic, value, partition=partition).get(LIMIT)

    def records(self, *counts: int) -> None:
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.send(f"{self.name}-in", b"x", partition)

    def commit(self, letter: str, **offsets: int) -> None:
        """Commit offsets as a worker does for lag tools."""
        servers, topic = self.settings[0].kafka.bootstrap_servers, f"{self.name}-in"
        with KafkaConsumer(bootstrap_servers=servers, group_id=self.job(letter)) as consumer:
            found = {
                TopicPartition(topic, int(p[1:])): OffsetAndMetadata(o, "", -1) for p, o in offsets.items()
            }
            consumer.commit(found)

    def status(self) -> tuple[dict[str, Any], dict[str, Any]]:
        a, b = describe_status(self.settings)
        return a, b

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def written(broker_bootstrap: str, unique_name: Name, tmp_path: Path) -> Iterator[Written]:
    with closing(Written(broker_bootstrap, unique_name("st"), tmp_path)) as made:
        yield made


def test_records_behind_an_open_transaction_are_told_apart(written: Written) -> None:
    """They are unreadable until it ends: a lag of 0 alone would hide them."""
    written.records(3, 4)
    kafka = written.settings[0].kafka
    with closing(transactional_producer(kafka, f"open-{written.name}")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(30):
            producer.send(written.settings[0].stream.input, bytes(16), partition=1).get(LIMIT)
        lag = written.status()[0]["lag"]
        producer.abort_transaction()
    assert lag == {"total": 7, "partitions": {"0": 3, "1": 4}, "in_transactions": 30}


def test_a_new_stream_has_done_nothing_and_has_all_to_read(written: Written) -> None:
    written.records(3, 4)
    a, b = written.status()
    assert a | {"stream": "", "leader": None} == b | {"stream": "", "leader": None}
    assert a["stream"] == written.job("a")
    assert (a["standing"], a["batches"], a["records"]) == ("active", NOTHING, 0)
    assert [a[name] for name in ("problem", "last_release", "accuracy")] == [None] * 3
    assert a["lag"] == {"total": 7, "partitions": {"0": 3, "1": 4}, "in_transactions": 0}
    assert a["charged"]["by_all"] == {"epsilon": "0", "delta": "0"}
    assert a["left"] == a["cap"] == {"epsilon": "3", "delta": "1/100000"}
    assert a["ledger"] == {"entries": 1, "bytes": written.ledger_bytes}


def test_batches_releases_and_charges_are_those_of_the_ledger(written: Written) -> None:
    written.records(20, 20)
    written.reserve("a", 1, (0, 0, 5), (1, 0, 5))
    written.answer("a", 1)
    written.reserve("a", 2, (0, 5, 8), epsilon="1/2")
    written.enter("a", entries.Abandoned, batch=2, reason="test")
    written.reserve("a", 3, (0, 8, 12))
    written.answer("a", 3)
    written.reserve("b", 1, (0, 4, 6))
    written.enter("b", entries.Paused, reason="test")
    a, b = written.status()
    assert a["batches"] == {"committed": 2, "abandoned": 1, "released": 2}
    assert a["records"] == 14
    unknown = dict.fromkeys(("outcome", "advice", "resolved_components", "dominant_feature"))
    created = "2026-01-03T00:00:00.000+00:00"
    assert a["last_release"] == unknown | {"batch": 3, "created": created, "doubts": []}
    assert a["accuracy"] == {"explained_variance": [2.5], **dict.fromkeys(ACCURACY)}
    assert a["charged"] == {
        "by_stream": {"epsilon": "1", "delta": "1/1000000"},
        # The record at partition 0, offset 4: both jobs have read it.
        "by_all": {"epsilon": "2", "delta": "1/500000"},
    }
    assert a["left"] == b["left"] == {"epsilon": "1", "delta": "1/125000"}
    assert a["left_of_new"] == a["cap"]
    assert (a["standing"], b["standing"]) == ("active", "paused")
    assert (a["reason"], a["refused"], b["reason"], b["refused"]) == (None, None, "test", None)
    assert (b["batches"], b["last_release"]) == (NOTHING, None)
    assert a["ledger"] == b["ledger"] == {"entries": 11, "bytes": written.ledger_bytes}


def test_a_retired_stream_says_so(written: Written) -> None:
    written.enter("b", entries.Retired, reason="test")
    assert [facts["standing"] for facts in written.status()] == ["active", "retired"]


def test_without_committed_offsets_the_ledger_tells_the_lag(written: Written) -> None:
    written.records(20, 10)
    written.reserve("a", 1, (0, 0, 5))
    written.answer("a", 1)
    assert written.status()[0]["lag"] == {"total": 25, "partitions": {"0": 15, "1": 10}, "in_transactions": 0}


def test_under_zcdp_what_is_left_is_a_rho(broker_bootstrap: str, unique_name: Name, tmp_path: Path) -> None:
    with closing(Written(broker_bootstrap, unique_name("st"), tmp_path, "zcdp")) as written:
        before, _ = written.status()
        written.reserve("a", 1, (0, 0, 5))
        written.enter("a", entries.Abandoned, batch=1, reason="test")
        after, _ = written.status()
    assert after["filter"] == "zcdp"
    # rho + 2 sqrt(rho ln(1e5)) <= 3 up to rho = 0.1739, and the reservation's 1/2 is void.
    assert after["charged"]["by_all"]["rho"] == "0"
    # ABANDONED is the last entry, of a batch that was never reserved.
    assert "not the job's last batch" in after["refused"]
    assert set(before["left"]) == {"rho"}
    assert before["left"] == after["left"] == after["left_of_new"]


@pytest.mark.kafka
def test_the_lag_is_behind_the_offsets_of_the_group(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path
) -> None:
    with closing(Written(kafka_bootstrap, unique_name("st"), tmp_path)) as written:
        written.records(20, 10)
        written.commit("a", p0=12, p1=10)
        a, b = written.status()
    assert a["lag"] == {"total": 8, "partitions": {"0": 8, "1": 0}, "in_transactions": 0}
    assert b["lag"] == {"total": 30, "partitions": {"0": 20, "1": 10}, "in_transactions": 0}


@contextmanager
def candidate(settings: Settings, topics: list[str]) -> Iterator[KafkaConsumer]:
    """Join the election's group as a member, without a worker's other functions."""
    consumer = group_consumer(settings.kafka, settings.worker.group, [0])
    try:
        consumer.subscribe(topics)
        yield consumer
    finally:
        consumer.close()


@pytest.mark.kafka
def test_the_leader_is_the_group_s_member_that_holds_the_state_topic(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path
) -> None:
    with closing(Written(kafka_bootstrap, unique_name("st"), tmp_path)) as written:
        # A new broker lacks a coordinator for some moments.
        wait_for("an answer about the group", lambda: written.status()[0]["leader"] == NOBODY)
        settings = written.settings[0]
        with candidate(settings, [settings.stream.state_topic]) as consumer:

            def led() -> bool:
                consumer.poll(timeout_ms=200)
                return written.status()[0]["leader"]["present"]

            wait_for("a leader", led)
            a, b = written.status()
            assert a["leader"] == {"present": True, "host": "127.0.0.1", "candidates": 1}
            assert b["leader"] == NOBODY
        wait_for("its end", lambda: written.status()[0]["leader"] == NOBODY)


def test_the_command_shows_each_stream_or_one(written: Written, capfd: Capture) -> None:
    written.records(5, 5)
    written.reserve("a", 1, (0, 0, 5))
    written.answer("a", 1)
    printed = call(capfd, "status", "--config", written.config, "--json")
    assert printed.returncode == 0, printed.stderr
    assert [facts["stream"] for facts in json.loads(printed.stdout)] == [written.job("a"), written.job("b")]
    text = call(capfd, "status", "--config", written.config, "--stream", written.job("a"))
    assert text.returncode == 0, text.stderr
    name, *lines = text.stdout.splitlines()
    found = {line[2:15].strip(): line[16:] for line in lines}
    assert name == written.job("a")
    assert found.pop("standing").startswith("active, ")
    assert found == {
        "batches": "1 committed, 0 abandoned, 1 released",
        "records": "5",
        "last release": "batch 1, 2026-01-01T00:00:00.000+00:00",
        "explained": "2.5",
        "next batch": "5 of 6552 offsets",
        "lag": f"5 offsets in 2 partitions of {written.name}-in",
        "charged": "epsilon 1, delta 1e-06 a record at most",
        "left": "epsilon 2, delta 9e-06 of epsilon 3, delta 1e-05 (basic) for the most charged record, "
        "epsilon 3, delta 1e-05 for new records",
        "ledger": f"4 entries, {written.ledger_bytes} bytes",
    }


@pytest.mark.parametrize(("candidates", "text"), [(0, "and no worker standing by"), (2, "2 standing by")])
def test_a_stream_without_a_leader_shows_whether_a_worker_runs(candidates: int, text: str) -> None:
    assert status._leader(NOBODY | {"candidates": candidates}) == f"no leader, {text}"


ACCURATE, CREATED = {"explained_variance": [2.5]}, "2026-01-01T00:00:00.000+00:00"


@pytest.mark.parametrize(
    ("changes", "expected", "line"),
    [
        ({}, {"accuracy": ACCURATE | dict.fromkeys(ACCURACY), "counts": None}, "explained     2.5"),
        (
            EXACT,
            {"accuracy": ACCURATE | {name: EXACT[name] for name in ACCURACY}},
            "explained     2.5 ± 0.12; of 10 ± 0.4 (25%); angle ≤ 3.2° (95%)",
        ),
        (
            {"version": 3, "outcome": "no-scale"},
            {"outcome": "no-scale"},
            f"last release  batch 1, {CREATED}, no-scale",
        ),
        (
            {"version": 6, "centering": "none", **COUNTED},
            {"counts": COUNTED | {"clipped_of": 2200}},
            "last batch    null 12.3% ± 0.45%, clipped 0.0% ± 0.45%",
        ),
        (
            DOUBTFUL,
            {"doubts": [*DOUBTFUL["doubts"]], "resolved_components": 1},
            f"doubts        {REASONS[0]}",
        ),
    ],
    ids=["variance", "accuracy", "outcome", "counts", "doubts"],
)
def test_the_last_release_and_its_batch_are_described(
    changes: dict[str, Any], expected: dict[str, Any], line: str, written: Written, capfd: Capture
) -> None:
    written.records(10, 0)
    written.reserve("a", 1, (0, 0, 5))
    written.answer("a", 1, **changes)
    a, b = written.status()
    assert (b["last_release"], b["counts"]) == (None, None)
    assert (a | a["last_release"]).items() >= expected.items()
    text = call(capfd, "status", "--config", written.config).stdout
    assert f"  {line}" in text.splitlines()


def test_a_stream_without_topics_is_a_problem_and_the_others_are_shown(
    written: Written, capfd: Capture
) -> None:
    config = written.config
    config.write_text(config.read_text() + f'\n[[streams]]\nname = "z"\ninput = "{written.name}-nowhere"\n')
    result = call(capfd, "status", "--config", config, "--json")
    one_line(result, 1, "problem: stream z: ", f"{written.name}-nowhere", "is missing: correct its name")
    assert [facts["problem"] is None for facts in json.loads(result.stdout)] == [True, True, False]


def test_settings_of_another_stream_than_the_ledgers_are_a_problem(written: Written, capfd: Capture) -> None:
    """It showed the ledger's numbers as if the settings were its own."""
    written.reserve("a", 1, (0, 0, 1))
    other = written.config.with_name("other.toml")
    other.write_text(written.config.read_text().replace("dim = 2", "dim = 3"))
    result = call(capfd, "status", "--config", other, "--json")
    one_line(result, 1, f"problem: stream {written.job('a')}: stream.dim is 3, but the ledger has 2")
    assert [facts["problem"] is None for facts in json.loads(result.stdout)] == [False, True]


def test_what_is_wrong_is_one_line(tmp_path: Path, capfd: Capture) -> None:
    config = tmp_path / "s.toml"
    text = FILE.format(bootstrap=f"127.0.0.1:{closed_port()}", name="n")
    config.write_text(text.replace("[worker]", "bootstrap_timeout_ms = 100\n[worker]"))
    one_line(call(capfd, "status", "--config", config, "--stream", "x"), 2, "no stream 'x'; it has n-a, n-b")
    one_line(call(capfd, "status", "--config", config), 4, "no broker answers")


def test_what_is_left_names_new_records_or_one_charge_of_a_user() -> None:
    none = {key: {"epsilon": "0", "delta": "0"} for key in ("charged", "left", "cap")}
    facts = {**none, "charged": dict.fromkeys(("by_stream", "by_all"), none["left"]), "filter": "basic"}
    facts |= {"left_of_new": none["left"]}
    ends = {"user": "one charge covers all batches", "message": "epsilon 0, delta 0 for new records"}
    for unit, end in ends.items():
        left = status._charges({**facts, "unit": unit})["left"]
        assert left == f"epsilon 0, delta 0 of epsilon 0, delta 0 (basic) for the most charged record, {end}"
