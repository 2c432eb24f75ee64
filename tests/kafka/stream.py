"""A stream on a real broker for the tests: topics, records, workers and output."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from numpy.typing import NDArray

from streaming_pca.api import DEFAULT_ESTIMATOR
from streaming_pca.config.http import HttpSettings
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings, WorkerSettings
from streaming_pca.data.release import Release
from streaming_pca.estimators.registry import find
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Cap,
    Committed,
    LedgerEntry,
    OffsetRange,
    Opened,
    Released,
    Reserved,
    Started,
    decode_entry,
)
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.protocol import BatchStatus
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.commit.state_topic import Checkpoint, decode_checkpoint, is_part
from streaming_pca.service.kafka.clients import MAX_ANSWER_BYTES, plain_producer
from streaming_pca.service.topics.find import create_topics, find_topics
from tests.compiled import wait_until_compiled
from tests.kafka import child
from tests.kafka.child import Strike
from tests.security.needles import ROW
from tests.service.contract import check_messages
from tests.waiting import LIMIT, wait_for

T = TypeVar("T")
Vectors = NDArray[np.floating]

OCTETS = [("content-type", b"application/octet-stream")]
ENDLESS: dict[str, Any] = {
    **{"partitions": 2, "estimator": "private-oja", "centering": "none"},
    "options": {"clip_radius": 20.0, "batch_size": 40},
}
"""Settings of a stream without an end, in batches of 40 records."""
STEADY_MS = 30_000
"""Session timeout where one lead is to last: a busy machine can stall a worker longer than the shortest."""

# Processes poll one another's exit status, which can be read only once: threads must not race for it.
_one_at_a_time = threading.Lock()
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.kafka.warm_child"])


def start_fork_server() -> None:
    """Start the server that children are forked from, and wait until all kernels are compiled."""
    process = _context.Process(target=int)
    wait_until_compiled()
    with _one_at_a_time:
        process.start()
        process.join()
    assert process.exitcode == 0


def killed(target: Callable[..., None], settings: Settings, log: Path, *arguments: str) -> None:
    """Run a command of :mod:`tests.kafka.admin.killed` in a child, which must die by SIGKILL."""
    process = _context.Process(target=target, args=(settings.model_dump(mode="json"), str(log), *arguments))
    with _one_at_a_time:
        process.start()
    process.join(2 * LIMIT)
    assert process.exitcode == -signal.SIGKILL, log.read_text()


def all_at_once(function: Callable[..., None], cases: Iterable[tuple[Any, ...]]) -> None:
    """Run all cases at the same time, since they mostly wait; a case is a stream and other arguments."""
    cases = list(cases)
    with ThreadPoolExecutor(len(cases)) as pool:
        futures = [pool.submit(function, *case) for case in cases]
    failed = [(case, f.exception()) for case, f in zip(cases, futures, strict=True) if f.exception()]
    if failed:
        case, error = failed[0]
        raise AssertionError(f"{case[1:]}, one of {len(failed)} failed cases: {error}") from error


def session_timeout_ms(bootstrap: str) -> int:
    """Return the shortest session timeout that the broker allows, but at least 2 s."""
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        resource = ConfigResource("broker", "1")
        try:
            found = admin.describe_configs([resource], config_filter="all")["broker"]["1"]
            least = int(found["group.min.session.timeout.ms"]["value"])
        except (KeyError, TypeError):
            least = 6000
    return max(least, 2000)


def start_together(*streams: Stream, **how: Any) -> Child:
    """Start one worker on all streams; it belongs to the first."""
    first = streams[0]
    worker = {"worker": first.settings.worker}
    settings = [each.settings.model_copy(update=worker) for each in streams]
    made = Child(settings, first.directory / str(len(first.children)), **how)
    first.children.append(made)
    return made


def run_together(*streams: Stream, **how: Any) -> None:
    """Run one worker on all streams until it ends successfully."""
    start_together(*streams, **how).ends_well()


def run_each(*streams: Stream, **how: Any) -> None:
    """Run a worker of each stream, concurrently, until they end successfully."""
    for worker in [stream.start(**how) for stream in streams]:
        worker.ends_well()


def have_released(streams: Iterable[Stream], batches: int = 1) -> bool:
    """Return whether each stream has released at least ``batches`` batches.

    Read the topics: a session that is lost after the commit of a release leaves no line in the log.
    """
    return all(len(stream.release_values()) >= batches for stream in streams)


def unread_bytes() -> str:
    """Return the connections whose sent bytes were not read yet, with ports and sizes in hexadecimal."""
    head, *rows = Path("/proc/net/tcp").read_text().splitlines()
    full = [row for row in rows if row.split()[3] == "01" and row.split()[4] != "00000000:00000000"]
    return "\n".join(["connections with unread bytes:", head, *full])


class Child:
    """Worker process, with its log and its mark files in its own directory."""

    def __init__(
        self,
        settings: Sequence[Settings],
        directory: Path,
        target: Callable[..., None] = child.main,
        **how: Any,
    ) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._process = _context.Process(
            target=target,
            args=([each.model_dump(mode="json") for each in settings], str(directory)),
            kwargs=how,
        )
        with _one_at_a_time:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    @property
    def peak(self) -> int:
        """Return its largest resident size in bytes, once it has ended."""
        return int((self.directory / "peak").read_text())

    def has(self, mark: str) -> bool:
        return (self.directory / mark).exists()

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def log_and_stacks(self) -> str:
        """Return the log and, while it runs, unread bytes and each thread's current stack."""
        if self.status() is not None:
            return self.log
        self.signal(signal.SIGUSR1)
        time.sleep(1)
        return f"{unread_bytes()}\n{self.log}"

    def ends(self, seconds: float = LIMIT) -> int:
        """Wait for the end, and return the exit status; a signal's number is negative."""
        wait_for("the worker's end", lambda: self.status() is not None, seconds, self.log_and_stacks)
        status = self.status()
        assert status is not None
        return status

    def status(self) -> int | None:
        with _one_at_a_time:
            return self._process.exitcode

    def ends_well(self, seconds: float = LIMIT) -> None:
        """Wait for the end, which must be a success without a traceback."""
        assert self.ends(seconds) == 0, self.log
        assert "Traceback" not in self.log, self.log

    def stop(self) -> None:
        """Stop it by SIGTERM, and wait for its successful end."""
        self.signal(signal.SIGTERM)
        self.ends_well()

    def refusal(self, status: int = 2) -> str:
        """Wait for the end with a status, and return the only line of an error."""
        assert self.ends() == status, self.log
        assert "Traceback" not in self.log, self.log
        errors = [line for line in self.log.splitlines() if " ERROR " in line or " CRITICAL " in line]
        assert len(errors) == 1, self.log
        return errors[0]

    def has_led_on(self) -> None:
        """Check that it has lost neither the lead nor its session."""
        assert "no longer leading" not in self.log, self.log
        assert "session lost" not in self.log, self.log

    def until(
        self, what: str, probe: Callable[[], object], seconds: float = LIMIT, pause: float = 0.2
    ) -> None:
        """Wait for a condition, often of topics, which must come before the worker's end."""
        wait_for(what, lambda: probe() or self.status() is not None, seconds, self.log_and_stacks, pause)
        assert probe(), f"{what}: {self.log}"

    def strikes(self, seconds: float = LIMIT) -> None:
        """Wait until it strikes itself."""
        wait_for("the strike", lambda: self.has("struck"), seconds, self.log_and_stacks)

    def logs(self, text: str, seconds: float = LIMIT) -> None:
        """Wait until the log contains a text."""
        wait_for(
            f"{text!r} in the log",
            lambda: text in self.log or self.status() is not None,
            seconds,
            lambda: self.log,
        )
        assert text in self.log, self.log

    def destroy(self) -> None:
        if self.status() is None:
            self.signal(signal.SIGKILL)
            self.ends()


@dataclass
class Stream:
    """Stream of the tests."""

    settings: Settings
    topic_id: str
    partitions: int
    directory: Path
    """Parent of its children's directories."""
    children: list[Child] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        bootstrap: str,
        name: str,
        directory: Path,
        *,
        partitions: int = 3,
        cap: tuple[str, str] | None = ("1", "1e-6"),
        create: bool = True,
        input: str | None = None,
        session_ms: int = 6000,
        worker: Mapping[str, Any] | None = None,
        **stream: Any,
    ) -> Stream:
        """Create its topics (not with ``create=False``) and open its ledger (not with ``cap=None``)."""
        base: dict[str, Any] = {"name": name, "input": input or f"in-{name}", "dim": 5, "rank": 2}
        base |= {"epsilon": 1.0, "delta": 1e-6, "options": {"n_records": 300, "n_batches": 3}} | stream
        if "growth" in find(base.get("estimator", DEFAULT_ESTIMATOR)).options_type.model_fields:
            base["options"] = {"growth": 1.0, **base["options"]}
        # Its own group: a killed worker of another test must not delay this election. The clock keeps its
        # usual ticks: each makes three processes work, and many workers run.
        manners = {"group": f"workers-{name}", "stop_when_done": True}
        # `Settings(...)` reads the environment, which pytest may change while threads make streams.
        settings = Settings.model_construct(
            kafka=KafkaSettings(
                bootstrap_servers=bootstrap,
                session_timeout_ms=session_ms,
                # A single broker is there, however busy; of several, the first may have been struck.
                bootstrap_timeout_ms=5000 if "," in bootstrap else int(LIMIT * 1000),
                request_timeout_ms=10_000 if "," in bootstrap else 30_000,
            ),
            stream=StreamSettings(**base),
            worker=WorkerSettings(**(manners | dict(worker or {}))),
            http=HttpSettings(enabled=False),
        )
        made = cls(settings, "", partitions, directory / name)
        if create:
            create_topics(settings.kafka, settings.stream, partitions, 1)
            made.find()
        if cap is not None:
            made.open(cap)
        return made

    def find(self) -> None:
        """Look up the id of the input topic."""
        self.topic_id = find_topics(self.settings.kafka, self.settings.stream).topic_id

    def open(self, cap: tuple[str, str], **how: Any) -> None:
        of = Cap(epsilon=cap[0], delta=cap[1])
        entry = Opened(topic_id=self.topic_id, topic=self.settings.stream.input, cap=of, **how)
        # A busy cluster may need longer than the time after which a worker asks another broker.
        patient = self.settings.kafka.model_copy(update={"request_timeout_ms": int(LIMIT * 1000)})
        open_ledger(patient, entry, self.settings.stream.ledger_topic)

    def changed(self, section: str = "stream", **changes: Any) -> Settings:
        """Return these settings with changes in one section."""
        before = getattr(self.settings, section)
        after = type(before)(**(before.model_dump(mode="json") | changes))
        return self.settings.model_copy(update={section: after})

    # -- records -----------------------------------------------------------

    def vectors(self, count: int, seed: int = 0) -> Vectors:
        """Return records with a few strong directions."""
        d = self.settings.stream.dim
        x = np.random.default_rng(seed).standard_normal((count, d))
        x *= np.geomspace(4, 0.5, d)
        # A record that the search of the whole run recognises.
        x[:1, : len(ROW)] = ROW[:d]
        return x.astype("<f4")

    def produce(
        self,
        values: Iterable[bytes],
        to: Callable[[int], int] | None = None,
        headers: Sequence[tuple[str, bytes]] = OCTETS,
    ) -> None:
        """Write records, in order, to the partitions that ``to`` returns (round-robin by default)."""
        self.send(((value, headers) for value in values), to)

    def send(
        self,
        records: Iterable[tuple[bytes, Sequence[tuple[str, bytes]]]],
        to: Callable[[int], int] | None = None,
    ) -> None:
        """Write records with individual headers, in order."""
        self._send(((None, value, headers) for value, headers in records), to)

    def _send(
        self,
        records: Iterable[tuple[bytes | None, bytes, Sequence[tuple[str, bytes]]]],
        to: Callable[[int], int] | None,
    ) -> None:
        with closing(plain_producer(self.settings.kafka)) as producer:
            sent = [
                producer.send(
                    self.settings.stream.input,
                    value,
                    key=key,
                    partition=to(i) if to else i % self.partitions,
                    headers=list(headers),
                )
                for i, (key, value, headers) in enumerate(records)
            ]
            producer.flush(LIMIT)
            for future in sent:
                future.get(LIMIT)

    def produce_keyed(
        self, records: Iterable[tuple[bytes | None, bytes]], to: Callable[[int], int] | None = None
    ) -> None:
        """Write records of (key, value), in order."""
        self._send(((key, value, OCTETS) for key, value in records), to)

    def produce_vectors(self, x: Vectors, to: Callable[[int], int] | None = None) -> None:
        self.produce((row.tobytes() for row in x), to)

    def transactional(self) -> KafkaProducer:
        """Return a producer of records in transactions."""
        producer = KafkaProducer(
            bootstrap_servers=self.settings.kafka.bootstrap_servers,
            transactional_id=f"records-{self.settings.stream.name}",
        )
        producer.init_transactions()
        return producer

    # -- workers -----------------------------------------------------------

    def start(self, settings: Settings | None = None, **how: Any) -> Child:
        """Start a worker: ``strike=Strike(...)``, ``noise=False``, ``fetch_bytes=N``, ``poll_seconds=S``."""
        directory = self.directory / str(len(self.children))
        made = Child([settings or self.settings], directory, **how)
        self.children.append(made)
        return made

    def run(self, settings: Settings | None = None, seconds: float = LIMIT, **how: Any) -> Child:
        """Run a worker until it ends successfully."""
        made = self.start(settings, **how)
        made.ends_well(seconds)
        return made

    def run_until(self, text: str, settings: Settings | None = None, **how: Any) -> Child:
        """Run a worker until its log contains a text, and stop it."""
        made = self.start(settings, **how)
        made.logs(text)
        made.stop()
        return made

    def crash(self, strike: Strike, settings: Settings | None = None, **how: Any) -> Child:
        """Run a worker that kills itself."""
        made = self.start(settings, strike=strike, **how)
        assert made.ends() == -signal.SIGKILL, made.log
        return made

    def destroy(self) -> None:
        for each in self.children:
            each.destroy()

    # -- output ------------------------------------------------------------

    def messages(self, topic: str) -> list[Any]:
        return read_all(self.settings.kafka, topic)

    def entries(self) -> list[LedgerEntry]:
        """Return the ledger's entries, as its readers see them."""
        return [decode_entry(m.value) for m in self.messages(self.settings.stream.ledger_topic)]

    def own(self, kind: type[T], entries: Iterable[LedgerEntry] | None = None) -> list[T]:
        """Return this stream's entries of a kind."""
        entries, name = self.entries() if entries is None else entries, self.settings.stream.name
        return [e for e in entries if isinstance(e, kind) and getattr(e, "job", None) == name]

    def replay(self, entries: Iterable[LedgerEntry] | None = None, *, void: bool = False) -> Ledger:
        """Replay the ledger, and require that no entry is void, unless ``void``."""
        ledger = Ledger(self.topic_id)
        for entry in self.entries() if entries is None else entries:
            verdict = ledger.apply(entry)
            assert verdict.accepted or void, (verdict, entry)
        return ledger

    def release_values(self) -> list[bytes]:
        return [m.value for m in self.messages(self.settings.stream.releases_topic)]

    def releases(self) -> list[Release]:
        return [Release.from_bytes(value) for value in self.release_values()]

    def results(self) -> list[Any]:
        """Return the numbers of all releases."""
        return [(r.components, r.explained_variance, r.mean) for r in self.releases()]

    def checkpoints(self, messages: Iterable[Any] | None = None) -> list[tuple[Checkpoint, str]]:
        """Return the committed states whose chunks all remain, with their digests."""
        chunks: dict[bytes, list[bytes]] = {}
        found = []
        for m in self.messages(self.settings.stream.state_topic) if messages is None else messages:
            if is_part(m):
                continue
            headers = dict(m.headers)
            parts = chunks.setdefault(headers["digest"], [])
            parts.append(m.value)
            if len(parts) == int(headers["chunks"]):
                found.append(decode_checkpoint(b"".join(parts)))
        return found

    def group_offsets(self) -> dict[int, int]:
        with self.admin() as admin:
            name = self.settings.stream.name
            found = admin.list_group_offsets({name: None})
        of_group = found.get(name, found)
        return {
            tp.partition: o.offset for tp, o in of_group.items() if tp.topic == self.settings.stream.input
        }

    def write_config(self, **more: Mapping[str, Any]) -> Path:
        """Write a configuration file for the command line, with further sections; return its path."""
        return write_config(self.directory.with_suffix(".toml"), self.settings, **more)

    # -- topics ------------------------------------------------------------

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap_servers)

    def topic(self, role: str) -> str:
        """Return the name of a topic: the input, or that of ledger, state or releases."""
        return str(getattr(self.settings.stream, role if role == "input" else f"{role}_topic"))

    def delete(self, *roles: str) -> None:
        self.delete_topics(*map(self.topic, roles))

    def delete_topics(self, *names: str) -> None:
        """Delete any topics, and wait until they are gone."""
        with self.admin() as admin:
            admin.delete_topics(list(names))
            wait_for("the topics to go", lambda: not {*names} & {*admin.list_topics()})

    def set_configs(self, topic: str, **configs: object) -> None:
        """Change settings of a topic; underscores become points."""
        changes = {name.replace("_", "."): str(value) for name, value in configs.items()}
        with self.admin() as admin:
            admin.alter_configs([ConfigResource("topic", topic, changes)])

    def write(self, topic: str, value: bytes, **how: Any) -> None:
        """Write a message to the first partition of any topic."""
        with closing(plain_producer(self.settings.kafka)) as producer:
            producer.send(topic, value, partition=0, **how).get(LIMIT)

    def input_offsets(self) -> dict[int, list[int]]:
        """Return the offsets of the committed records, by partition."""
        found: dict[int, list[int]] = {p: [] for p in range(self.partitions)}
        for m in read_all(self.settings.kafka, self.settings.stream.input, range(self.partitions)):
            found[m.partition].append(m.offset)
        return found

    def delete_before(self, offsets: Mapping[int, int], role: str = "input") -> None:
        """Delete records, as retention does."""
        with self.admin() as admin:
            admin.delete_records({TopicPartition(self.topic(role), p): o for p, o in offsets.items()})


def write_config(path: Path, *settings: Settings, **more: Mapping[str, Any]) -> Path:
    """Write a configuration file of streams on one broker, with further sections; return its path."""

    def toml(value: Any) -> str:
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{name} = {toml(each)}' for name, each in value.items())}}}"
        return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)

    names = ("bootstrap_servers", "bootstrap_timeout_ms", "session_timeout_ms")
    sections: dict[str, Any] = {"kafka": {name: getattr(settings[0].kafka, name) for name in names}} | more
    streams = [
        each.stream.model_dump(mode="json", exclude_unset=True, exclude_none=True) for each in settings
    ]
    path.write_text(
        "\n".join(f"{name} = {toml(value)}" for name, value in (sections | {"streams": streams}).items())
    )
    return path


def read_all(kafka: KafkaSettings, topic: str, partitions: Iterable[int] = (0,)) -> list[Any]:
    """Return all messages of a topic, read_committed, in offset order by partition."""
    tps = [TopicPartition(topic, p) for p in partitions]
    found: list[Any] = []
    with KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=32 * 2**20,
        receive_message_max_bytes=MAX_ANSWER_BYTES,
    ) as consumer:
        for tp in tps:
            consumer.assign([tp])
            consumer.seek_to_beginning(tp)
            end = consumer.end_offsets([tp])[tp]
            wait_for(f"{tp} to be read to {end}", partial(_is_read, consumer, tp, end, found), pause=0)
    return found


def _is_read(consumer: KafkaConsumer, tp: TopicPartition, end: int, found: list[Any]) -> bool:
    """Read one poll's messages, and return whether the end is reached."""
    if consumer.position(tp) < end:
        for messages in consumer.poll(200).values():
            found += messages
    return bool(consumer.position(tp) >= end)


def check_books(stream: Stream) -> None:
    """Check the claims that must always hold once no batch is open.

    Every record from the stream's start to the committed position is in exactly one committed or
    abandoned batch and charged once; the releases topic holds exactly one release for each committed
    batch, the release in its state; ledger, state and group offsets agree. All messages conform to the
    AsyncAPI document and the JSON schemas.
    """
    settings = stream.settings.stream
    messages = stream.messages(settings.ledger_topic)
    states_written, releases_written = map(stream.messages, (settings.state_topic, settings.releases_topic))
    check_messages(settings, {"ledger": messages, "state": states_written, "releases": releases_written})
    entries = [decode_entry(m.value) for m in messages]
    job = stream.replay(entries).job(stream.settings.stream.name)
    assert job.phase in (BatchStatus.RELEASED, BatchStatus.ABANDONED), job.phase

    reserved = {e.batch: e for e in stream.own(Reserved, entries)}
    committed = {e.batch: e for e in stream.own(Committed, entries)}
    abandoned = {e.batch: e for e in stream.own(Abandoned, entries)}
    released = stream.own(Released, entries)
    # Besides the opening entry, the ledger has two entries a batch, and three for a committed batch.
    of_batches = [e for e in stream.own(object, entries) if hasattr(e, "batch")]
    assert len(of_batches) == len(reserved) * 2 + len(committed)
    assert sorted(e.batch for e in released) == sorted(committed)
    assert set(committed) | set(abandoned) == set(reserved)
    assert not set(committed) & set(abandoned)

    states = {c.batch: (c, digest) for c, digest in stream.checkpoints(states_written)}
    positions = states[max(states)][0].positions if states else {}
    if states:
        assert max(states) == max(committed)
    for batch, (_, digest) in states.items():  # compaction may have deleted older states
        assert committed[batch].state_digest == digest

    in_batches: dict[int, dict[tuple[int, int], Charge]] = {}
    for entry in reserved.values():
        for r in entry.ranges:
            in_batches.setdefault(r.partition, {})[r.start, r.end] = entry.charge
    offsets = stream.input_offsets()
    begins = {at.partition: at.offset for e in stream.own(Started, entries) for at in e.positions}
    for p, ranges in in_batches.items():
        assert all(a_end <= b_start for (_, a_end), (b_start, _) in pairwise(ranges))
        below = max([positions.get(p, 0), *(end for _, end in ranges)])
        for offset in offsets[p]:
            charges = [charge for (start, end), charge in ranges.items() if start <= offset < end]
            assert len(charges) == (begins.get(p, 0) <= offset < below), (p, offset)
            if stream.settings.stream.privacy_unit == "user":
                # Users' records can be anywhere: every record bears the charge.
                charges = [next(iter(reserved.values())).charge]
            spent = job.spent(p, offset)
            assert spent == charges[0] if charges else spent.epsilon == 0

    values = [m.value for m in releases_written]
    others = {e.job for e in entries if not isinstance(e, Opened)} - {stream.settings.stream.name}
    all_values = values + [m.value for other in others for m in stream.messages(f"{other}.releases")]
    report = verify_log([(m.offset, m.value) for m in messages], all_values, topic_id=stream.topic_id)
    assert report.ok, report.problems
    releases = [Release.from_bytes(value) for value in values]
    assert [r.batch for r in releases] == sorted(committed)
    by_batch = dict(zip([r.batch for r in releases], values, strict=True))
    assert {e.batch: e.release_digest for e in released} == {
        batch: sha256(value).hexdigest() for batch, value in by_batch.items()
    }
    for batch, (checkpoint, _) in states.items():
        assert by_batch[batch] == checkpoint.release
    counts = np.cumsum([reserved[b].count for b in sorted(committed)])
    assert [r.records for r in releases] == counts.tolist()
    for release in releases:
        c = np.array(release.components)
        assert c.shape == (stream.settings.stream.rank, stream.settings.stream.dim)
        gram = c @ c.T
        if release.kind == "tensor":
            gram = np.diag(np.diagonal(gram))
        np.testing.assert_allclose(gram, np.eye(len(c)), atol=1e-9)
    if states and max(committed) == max(reserved):
        assert stream.group_offsets() == positions


def check_alike(found: Iterable[Release], expected: Iterable[Release], atol: float = 1e-6) -> None:
    """Check that the components of releases agree."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.components, other.components, atol=atol)


def ranges_of(stream: Stream) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of all batches, in order."""
    return [e.ranges for e in stream.own(Reserved)]
