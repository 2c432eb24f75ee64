"""The clock's own process: it reads the ends of partitions on its ticks, and nothing else.

In a thread of the worker a tick would wait for the interpreter's lock while a
record is decoded, for as long as that record takes; and the tick decides where
a batch ends. So the clock shares no interpreter with whatever sees a record.

It is run as ``python -m streaming_pca.service.ticks``. The first line on its
standard input holds the settings, every other one the topics that are wanted
now, each with the number of its partitions as far as it is known. On its
standard output each line is a tick's ends, the topics' ids, or what has failed.
It ends when its input does, however the worker ended.

A topic that is deleted and created again can have the same ends, so the ids are
read as often as the ends; by a thread of its own, for whichever broker answers
that must not hold up a tick.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import IO, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming_pca.kafka_settings import ConfigurationError, KafkaSettings
from streaming_pca.service.clients import BrokerUnreachable, admin_client, last_offsets, reading_consumer

__all__ = ["Ticker", "first_line", "teller"]

_ALONE_MS = 2000
_BEAT_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5
"""For what was told to be written."""

Tell = Callable[[dict[str, Any]], None]


def first_line(kafka: KafkaSettings, tick: float, partitions_every: float) -> bytes:
    """What the process reads first; the password goes no other way."""
    plain = kafka.model_dump(mode="json")
    if kafka.sasl_password is not None:
        plain["sasl_password"] = kafka.sasl_password.get_secret_value()
    return json.dumps({"kafka": plain, "tick": tick, "partitions_every": partitions_every}).encode() + b"\n"


class Ticker:
    """Reads the last stable offsets of the wanted topics, tick after tick.

    Parameters
    ----------
    kafka : KafkaSettings
    tick, partitions_every : float
        Seconds between ticks, and between looks for new partitions.
    tell : callable
        Takes ``{"at": time, "ends": {topic: [offset, ...]}}``, the offsets by
        partition, or ``{"at": time, "failed": reason, "topics": [topic, ...]}``,
        None for all topics, or ``{"at": time, "ids": {topic: id}}`` where an id is new. Times are of the
        monotonic clock, which processes share.
    """

    def __init__(self, kafka: KafkaSettings, tick: float, partitions_every: float, tell: Tell) -> None:
        self._kafka, self._tick, self._partitions_every, self._tell = kafka, tick, partitions_every, tell
        self._partitions: dict[str, int] = {}
        self._answered: set[str] = set()
        self._silent: dict[str, float] = {}
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def want(self, topics: dict[str, int]) -> None:
        """Read these topics from now on, each with at least so many partitions; from any thread."""
        with self._lock:
            self._partitions = {t: max(n, self._partitions.get(t, 0)) for t, n in topics.items()}
            self._silent = {t: since for t, since in self._silent.items() if t in topics}
            self._ids = {}

    def run(self) -> None:
        """Tick for ever."""
        threading.Thread(target=self._watch, name="ids", daemon=True).start()
        while True:
            try:
                self._serve()
            except BrokerUnreachable as error:
                self._fail(type(error).__name__)
                # It may be this process that fails, not the broker (seen once: no client could be made for a
                # minute, beside others that could): the worker starts another one.
                time.sleep(_LAST_WORDS_SECONDS)
                _end()
            except (KafkaError, ConfigurationError) as error:
                # Those who read now start anew; those who come later get a new consumer.
                self._fail(type(error).__name__)
            except Exception as error:
                self._fail(f"a bug in the clock: {type(error).__name__}")
            time.sleep(self._tick)

    def _fail(self, reason: str, topics: Iterable[str] | None = None) -> None:
        with self._lock:
            lost = set(self._partitions if topics is None else topics)
            self._partitions = {t: n for t, n in self._partitions.items() if t not in lost}
        self._tell(
            {"at": time.monotonic(), "failed": reason, "topics": None if topics is None else sorted(lost)}
        )

    def _serve(self) -> None:
        consumer: KafkaConsumer | None = None
        due = time.monotonic()
        looked = due
        try:
            while True:
                with self._lock:
                    partitions = dict(self._partitions)
                at = time.monotonic()
                if partitions:
                    consumer = consumer or reading_consumer(self._kafka, io="control")
                    if not self._read(consumer, at, partitions):
                        # Perhaps it is the consumer that has failed.
                        consumer.close(autocommit=False)
                        consumer = None
                    if at - looked >= self._partitions_every:
                        looked = at
                        self._look(set(partitions))
                due = max(due + self._tick, time.monotonic())
                time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
        finally:
            if consumer is not None:
                consumer.close(autocommit=False)

    def _read(self, consumer: KafkaConsumer, at: float, partitions: dict[str, int]) -> bool:
        """One tick for all topics; whether any answered."""
        # All that were answered before in one request; a new topic alone, because the client
        # waits for metadata only where it knows no leader at all.
        asked = [topic for topic in partitions if topic in self._answered]
        groups = [asked, *([topic] for topic in partitions if topic not in self._answered)]
        ends: dict[str, list[int]] = {}
        while groups:
            group = groups.pop()
            wanted = [TopicPartition(topic, p) for topic in group for p in range(partitions[topic])]
            timeout = self._kafka.request_timeout_ms
            # One that does not answer may not hold up the others' ticks for long.
            timeout = timeout if len(group) > 1 else min(timeout, _ALONE_MS)
            try:
                found = last_offsets(consumer, wanted, timeout) if wanted else {}
            except KafkaError as error:
                self._answered -= set(group)
                if len(group) > 1:
                    # One topic that was deleted, or has no leader, must not stop the others' streams.
                    # A broker that is dead must: then looking fails.
                    self._look(set(group))
                    groups.extend([topic] for topic in group)
                else:
                    self._bear(group[0], error)
                continue
            for topic in group:
                self._answered.add(topic)
                with self._lock:
                    self._silent.pop(topic, None)
                ends[topic] = [found[TopicPartition(topic, p)] for p in range(partitions[topic])]
        if ends:
            self._tell({"at": at, "ends": ends})
        return bool(ends)

    def _bear(self, topic: str, error: KafkaError) -> None:
        """Skip a topic for this tick, or give it up if it has been silent for too long."""
        now = time.monotonic()
        with self._lock:
            since = self._silent.setdefault(topic, now)
            lost = (now - since) * 1000 >= self._kafka.request_timeout_ms
            if lost:
                del self._silent[topic]
        if lost:
            self._fail(type(error).__name__, {topic})

    def _watch(self) -> None:
        """Tell the ids of the wanted topics, whenever one is new."""
        admin: KafkaAdminClient | None = None
        while True:
            time.sleep(self._tick)
            with self._lock:
                topics, told = sorted(self._partitions), self._ids
            if not topics:
                continue
            at = time.monotonic()
            try:
                admin = admin or admin_client(self._kafka)
                found = {
                    t["name"]: str(t["topic_id"])
                    for t in admin.describe_topics(topics)
                    if not t["error_code"]
                }
            except Exception:
                # Whether the broker is there is for the ticks to tell, and what is read is checked again
                # before it is charged.
                if admin is not None:
                    with contextlib.suppress(Exception):
                        admin.close()
                admin = None
                continue
            if found.items() - told.items():
                self._tell({"at": at, "ids": found})
                # Of the topics that were wanted then: others' ids are told again.
                told.update(found)

    def _look(self, topics: set[str]) -> None:
        """Find new partitions, and give up the topics that are gone."""
        admin = admin_client(self._kafka)
        try:
            described = {t["name"]: t for t in admin.describe_topics(sorted(topics))}
        finally:
            admin.close()
        gone = {t for t in topics if t not in described or described[t]["error_code"]}
        with self._lock:
            for topic in topics - gone:
                found = described[topic]["partitions"]
                # A partition without a leader yet would hold up every tick.
                if topic in self._partitions and all(p["leader_id"] >= 0 for p in found):
                    self._partitions[topic] = max(len(found), self._partitions[topic])
        if gone:
            self._fail("the topic is gone", gone)


def teller(out: IO[bytes], gone: Callable[[], object]) -> Tell:
    """What writes events, a line each, from a thread of its own; calls ``gone`` when nobody reads any more.

    A pipe holds 64 KiB. The worker empties it when its interpreter's lock is free,
    and how long a record keeps that is contents: no tick may wait for it.
    Where nothing happens, an empty line each second says that the process is there.
    """
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def write() -> None:
        try:
            while True:
                try:
                    line = json.dumps(events.get(timeout=_BEAT_SECONDS)).encode()
                except Empty:
                    line = b""
                out.write(line + b"\n")
                out.flush()
        except (OSError, ValueError):  # its other end, or it, was closed
            gone()

    threading.Thread(target=write, daemon=True).start()
    return events.put


def _obey(ticker: Ticker, lines: IO[bytes]) -> None:
    for line in lines:
        ticker.want(json.loads(line))
    _end()


def _end() -> None:
    # The worker is gone. Nothing here is worth a clean end.
    os._exit(0)


def main() -> None:
    """Serve one worker."""
    # Some send it to all processes: the worker finishes its batch first, and the clock ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What fails is told to the worker, which says it in its own form.
    logging.getLogger().addHandler(logging.NullHandler())
    first = json.loads(sys.stdin.buffer.readline())
    tell = teller(sys.stdout.buffer, _end)
    ticker = Ticker(KafkaSettings(**first["kafka"]), first["tick"], first["partitions_every"], tell)
    threading.Thread(target=_obey, args=(ticker, sys.stdin.buffer), daemon=True).start()
    ticker.run()


if __name__ == "__main__":
    main()
