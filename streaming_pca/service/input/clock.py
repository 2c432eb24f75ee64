"""Separate process that reads the partitions' end offsets on a clock's ticks.

A tick decides where a batch ends. In a thread of the worker it would wait for the GIL while a record is
decoded, for a time that depends on that record. So the clock does not share an interpreter with code that
sees records (docs/explanation/batch-boundaries.md).

Run as ``python -m streaming_pca.service.input.clock``. The first line of its standard input contains the
settings. Each later line contains the topics to read from then on, each with its known number of
partitions; the subjects whose schemas their records name; and whether a session waits for these. Each line
of its standard output is a tick's end offsets, the topics' ids, a subject's schemas, or a failure. The
process ends when its input ends, regardless of how the worker ended.

A recreated topic can have the same end offsets, so topic ids are read equally often, in a separate thread:
a slow response must not delay a tick. Another thread lists the schemas.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from pydantic import SecretStr

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.data.features.records import PublicSchema, Schemas, Subject
from streaming_pca.service.errors import BrokerUnreachable, SessionLost, StreamRefused
from streaming_pca.service.kafka.clients import admin_client, offsets_by, reading_consumer
from streaming_pca.service.process_hardening import protect_process, withheld_messages

if TYPE_CHECKING:
    from streaming_pca.config.registry import RegistrySettings

_SINGLE_TOPIC_MS = 2000
_HEARTBEAT_SECONDS = 1.0
_LISTED_AT_ONCE = 8  # subjects listed in parallel; a response can have 32 MiB
_FLUSH_SECONDS = 0.5  # time for the event writer to write its last event

SendEvent = Callable[[dict[str, Any]], None]


def settings_line(
    kafka: KafkaSettings, tick: float, partitions_every: float, registry: RegistrySettings | None = None
) -> bytes:
    """Return the first line for the process; passwords are passed in no other way."""
    first = {"kafka": kafka.model_dump(), "tick": tick, "partitions_every": partitions_every}
    if registry is not None:
        first["registry"] = registry.model_dump()
    return json.dumps(first, default=_in_clear).encode() + b"\n"


def _in_clear(value: SecretStr | Path) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def decode_schemas(subject: Subject, schemas: Mapping[str, str]) -> dict[int, PublicSchema]:
    return {
        int(number): PublicSchema(subject.format, base64.b64decode(data), subject.message)
        for number, data in schemas.items()
    }


class Poller:
    """Reader of the requested topics' last stable offsets at every tick.

    ``tick`` and ``partitions_every``, the pause between searches for new partitions, are in seconds. ``send``
    takes, with times of the monotonic clock, which processes share:

    - ``{"at": time, "by": time, "ends": {topic: [offset, ...]}}`` by partition, requested and received;
    - ``{"at": time, "failed": reason, "topics": [topic, ...]}``, None for all topics, none for a
      tick that was lost;
    - ``{"at": time, "ids": {topic: id}}``, if an id is new;
    - ``{"waited": seconds}``, the duration of a tick's requests;
    - ``{"at": time, "subject": subject, "schemas": {id: octets in base64}}`` with schemas not sent before, or
      ``"failed": reason, "refused": bool`` instead.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        tick: float,
        partitions_every: float,
        send: SendEvent,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._kafka, self._tick, self._partitions_every, self._send = kafka, tick, partitions_every, send
        self._registry = registry
        self._subjects: tuple[Subject, ...] = ()
        self._new_subjects = threading.Event()
        self._partitions: dict[str, int] = {}
        self._answered: set[str] = set()
        self._silent_since: dict[str, float] = {}
        self._ids: dict[str, str] = {}
        self._steps = 0
        self._has_stumbled = False  # since the last tick
        self._lock = threading.Lock()

    def set_topics(
        self, topics: dict[str, int], subjects: Collection[Subject] = (), list_now: bool = False
    ) -> None:
        """Set topics, with their numbers of partitions, and subjects; list new ones now. Thread-safe."""
        with self._lock:
            list_now = list_now or not set(subjects) <= set(self._subjects)
            self._subjects = tuple(subjects)
            self._partitions = {t: max(n, self._partitions.get(t, 0)) for t, n in topics.items()}
            self._silent_since = {t: since for t, since in self._silent_since.items() if t in topics}
            self._ids = {}
        if list_now:
            # Only now, because the woken thread reads the subjects just once.
            self._new_subjects.set()

    def run(self) -> None:
        threading.Thread(target=self._watch_ids, name="ids", daemon=True).start()
        threading.Thread(target=self._watch_ticks, name="ticks", daemon=True).start()
        if self._registry is not None:
            threading.Thread(
                target=self._watch_schemas, args=(self._registry,), name="schemas", daemon=True
            ).start()
        while True:
            try:
                self._serve()
            except BrokerUnreachable as error:
                self._fail(type(error).__name__)
                # The fault may lie in this process (seen once), so end it: the worker starts another one.
                time.sleep(_FLUSH_SECONDS)
                _end()
            except (KafkaError, ConfigurationError) as error:
                # Current readers start again; later ones get a new consumer.
                self._fail(type(error).__name__)
            except Exception as error:
                # As connections closed, the client has raised ValueError once: that costs a tick, no lead.
                self._fail(_bug(error), None if self._has_stumbled else ())
                self._has_stumbled = True
            time.sleep(self._tick)

    def _fail(self, reason: str, topics: Iterable[str] | None = None) -> None:
        with self._lock:
            lost = set(self._partitions if topics is None else topics)
            self._partitions = {t: n for t, n in self._partitions.items() if t not in lost}
        dropped = None if topics is None else sorted(lost)
        self._send({"at": time.monotonic(), "failed": reason, "topics": dropped})

    def _serve(self) -> None:
        consumer: KafkaConsumer | None = None
        due = time.monotonic()
        last_search = due
        try:
            while True:
                self._steps += 1
                with self._lock:
                    partitions = dict(self._partitions)
                at = time.monotonic()
                if partitions:
                    consumer = consumer or reading_consumer(self._kafka, io="control")
                    if not self._timed_read(consumer, at, partitions):
                        # The consumer may have failed.
                        consumer.close(autocommit=False)
                        consumer = None
                    if at - last_search >= self._partitions_every:
                        last_search = at
                        self._find_partitions(set(partitions))
                due = max(due + self._tick, time.monotonic())
                time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
        finally:
            if consumer is not None:
                consumer.close(autocommit=False)

    def _timed_read(self, consumer: KafkaConsumer, at: float, partitions: dict[str, int]) -> bool:
        try:
            return self._read(consumer, at, partitions)
        finally:
            # Failed requests count too: a hanging broker is a slow one.
            self._send({"waited": time.monotonic() - at})

    def _read(self, consumer: KafkaConsumer, at: float, partitions: dict[str, int]) -> bool:
        """Read the end offsets of all topics once; return whether any request succeeded."""
        # Known topics share a request. Each new one gets its own, because the client waits for metadata
        # only if it does not know any leader.
        asked = [topic for topic in partitions if topic in self._answered]
        groups = [asked, *([topic] for topic in partitions if topic not in self._answered)]
        ends: dict[str, list[int]] = {}
        while groups:
            self._steps += 1
            group = groups.pop()
            wanted = [TopicPartition(topic, p) for topic in group for p in range(partitions[topic])]
            timeout = self._kafka.request_timeout_ms
            # An unresponsive topic must not delay the other topics' ticks for long.
            timeout = timeout if len(group) > 1 else min(timeout, _SINGLE_TOPIC_MS)
            try:
                found = offsets_by(consumer.end_offsets, wanted, timeout) if wanted else {}
            except KafkaError as error:
                self._answered -= set(group)
                if len(group) > 1:
                    # A deleted or leaderless topic must not stop the streams of other topics. A dead broker
                    # must stop them: then the search for partitions fails.
                    self._find_partitions(set(group))
                    groups.extend([topic] for topic in group)
                else:
                    self._drop_if_silent(group[0], error)
                continue
            for topic in group:
                self._answered.add(topic)
                with self._lock:
                    self._silent_since.pop(topic, None)
                ends[topic] = [found[TopicPartition(topic, p)] for p in range(partitions[topic])]
        if ends:
            self._has_stumbled = False
            self._send({"at": at, "by": time.monotonic(), "ends": ends})
        return bool(ends)

    def _drop_if_silent(self, topic: str, error: KafkaError) -> None:
        """Skip a topic for this tick; drop it if it stays unresponsive for too long."""
        now = time.monotonic()
        with self._lock:
            since = self._silent_since.setdefault(topic, now)
            lost = (now - since) * 1000 >= self._kafka.request_timeout_ms
            if lost:
                del self._silent_since[topic]
        if lost:
            self._fail(type(error).__name__, {topic})

    def _watch_ticks(self) -> None:
        """End the process if the ticks stop for longer than their requests may take.

        The worker cannot notice that, because another thread writes the signs of life. This counts checks
        instead of time, so that a process continues after it was suspended as a whole.
        """
        # Between two steps the process may connect, make the requests of a partition search or a tick, and
        # sleep until the next tick.
        patience = (self._kafka.bootstrap_timeout_ms + 3 * self._kafka.request_timeout_ms) / 1000 + self._tick
        seen, looks = -1, 0
        while looks * _HEARTBEAT_SECONDS < patience:
            time.sleep(_HEARTBEAT_SECONDS)
            seen, looks = self._steps, looks + 1 if self._steps == seen else 0
        # Not with `_fail`: the other thread may hold its lock.
        self._send({"at": time.monotonic(), "failed": "the clock stopped", "topics": None})
        time.sleep(_FLUSH_SECONDS)
        _end()

    def _watch_ids(self) -> None:
        """Send the topics' ids whenever one is new."""
        admin: KafkaAdminClient | None = None
        while True:
            time.sleep(self._tick)
            with self._lock:
                topics, sent = sorted(self._partitions), self._ids
            if not topics:
                continue
            at = time.monotonic()
            try:
                admin = admin or admin_client(self._kafka)
                there = [t for t in admin.describe_topics(topics) if not t["error_code"]]
                found = {t["name"]: str(t["topic_id"]) for t in there}
            except Exception:
                # The ticks report a lost broker, and ids are checked again before charging records.
                if admin is not None:
                    with contextlib.suppress(Exception):
                        admin.close()
                admin = None
                continue
            if found.items() - sent.items():
                self._send({"at": at, "ids": found})
                # `sent` belongs to the topics of that time; after `set_topics`, ids are sent again.
                sent.update(found)

    def _watch_schemas(self, settings: RegistrySettings) -> None:
        """List the subjects' schemas periodically, and send new ones."""
        # Imported here because most streams have no registry.
        from streaming_pca.service.schema_registry import SchemaRegistry

        registries: dict[Subject, SchemaRegistry] = {}
        known: dict[Subject, Schemas] = {}

        def list_one(subject: Subject) -> None:
            event: dict[str, Any] = {"at": time.monotonic(), "subject": subject}
            try:
                if subject not in registries:
                    registries[subject] = SchemaRegistry(settings, *subject)
                before = known.get(subject, {})
                found = known[subject] = registries[subject].read(before)
                if not found:
                    raise StreamRefused(f"subject {subject.name!r} has no version: register a schema")
                new = {i: schema for i, schema in found.items() if i not in before}
                event["schemas"] = {i: base64.b64encode(s.data).decode() for i, s in new.items()}
            except (SessionLost, StreamRefused) as error:
                event |= {"failed": str(error), "refused": isinstance(error, StreamRefused)}
            except Exception as error:
                event |= {"failed": _bug(error), "refused": False}
            self._send(event)

        # In parallel: if the registry is unresponsive, each subject takes a request's full time limit.
        with ThreadPoolExecutor(_LISTED_AT_ONCE, "schemas") as pool:
            while True:
                self._new_subjects.clear()
                began = time.monotonic()
                list(pool.map(list_one, self._subjects))
                self._new_subjects.wait(max(began + settings.seconds - time.monotonic(), 0))

    def _find_partitions(self, topics: set[str]) -> None:
        """Find new partitions, and drop topics that no longer exist."""
        with contextlib.closing(admin_client(self._kafka)) as admin:
            described = {t["name"]: t for t in admin.describe_topics(sorted(topics))}
        gone = {t for t in topics if t not in described or described[t]["error_code"]}
        with self._lock:
            for topic in topics - gone:
                found = described[topic]["partitions"]
                # A partition without a leader would delay every tick.
                if topic in self._partitions and all(p["leader_id"] >= 0 for p in found):
                    self._partitions[topic] = max(len(found), self._partitions[topic])
        if gone:
            self._fail("the topic is gone", gone)


def _bug(error: Exception) -> str:
    """Return an unexpected error's type and place; its text may quote a setting or a schema."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"a bug in the clock: {type(error).__name__} at {frame.f_globals['__name__']}:{line}"


def event_writer(out: IO[bytes], on_closed: Callable[[], object]) -> SendEvent:
    """Return a function that queues events for a writing thread, one line each.

    A pipe holds 64 KiB, and the worker empties it when its GIL is free, which depends on records: ticks must
    not wait for that. An empty line a second is a sign of life. ``on_closed`` is called at the end.
    """
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def write() -> None:
        try:
            while True:
                try:
                    line = json.dumps(events.get(timeout=_HEARTBEAT_SECONDS)).encode()
                except Empty:
                    line = b""
                out.write(line + b"\n")
                out.flush()
        except (OSError, ValueError):  # a closed pipe
            on_closed()

    threading.Thread(target=write, daemon=True).start()
    return events.put


def _read_topics(poller: Poller, lines: IO[bytes]) -> None:
    for line in lines:
        wanted = json.loads(line)
        subjects = [Subject(*each) for each in wanted["subjects"]]
        poller.set_topics(wanted["topics"], subjects, wanted["list_now"])
    _end()


def _end() -> None:
    # The connections and files do not need a clean end.
    os._exit(0)


def main() -> None:
    # Before reading the password.
    protect_process()
    with withheld_messages():
        _serve()


def _serve() -> None:
    # A whole process group can get these signals; the worker finishes its batch and so ends the clock.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The worker receives the failures and logs them in its own format.
    logging.getLogger().addHandler(logging.NullHandler())
    first = json.loads(sys.stdin.buffer.readline())
    send = event_writer(sys.stdout.buffer, _end)
    registry = None
    if "registry" in first:
        from streaming_pca.config.registry import RegistrySettings

        registry = RegistrySettings(**first["registry"])
    kafka = KafkaSettings(**first["kafka"])
    poller = Poller(kafka, first["tick"], first["partitions_every"], send, registry)
    threading.Thread(target=_read_topics, args=(poller, sys.stdin.buffer), daemon=True).start()
    poller.run()


if __name__ == "__main__":
    main()
