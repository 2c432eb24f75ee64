"""Consumer that discards its input: an upper bound on the speed of Kafka clients in Python.

Like the worker, it runs in a separate process: ``python -m benchmarks.kafka.bare_consumer CLIENT BOOTSTRAP
TOPIC MESSAGES`` reads that number of messages of partition 0 from its start, and prints the seconds and CPU
seconds between the arrivals of the first and the last.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

__all__ = ["CLIENTS", "librdkafka_is_there"]

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 1.0
_FETCH_BYTES = 16 * 2**20
"""Fastest size for both clients among 1, 4, 16 and 50 MiB; a worker requests 4 MiB, to use less memory."""
_AT_ONCE = 2000
_FEW = 32


def _by_kafka_python(bootstrap: str, topic: str) -> Iterator[int]:
    """Yield the number of messages of each poll."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=_FETCH_BYTES,
        max_poll_records=_AT_ONCE,
    )
    consumer.assign([TopicPartition(topic, 0)])
    while True:
        yield sum(map(len, consumer.poll(timeout_ms=_POLL_SECONDS * 1000).values()))


def _by_librdkafka(bootstrap: str, topic: str) -> Iterator[int]:
    """Yield the number of messages of each call."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.bytes": _FETCH_BYTES,
            "max.partition.fetch.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": 4 * _FETCH_BYTES // 1024,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while True:
        # A small number, because the call waits until it is complete.
        messages = consumer.consume(_FEW, _POLL_SECONDS)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            message.value()  # this call makes the copy
        yield len(messages)


CLIENTS: dict[str, Callable[[str, str], Iterator[int]]] = {
    "kafka-python": _by_kafka_python,
    "librdkafka": _by_librdkafka,
}


def librdkafka_is_there() -> bool:
    """Return whether confluent-kafka, the Python client of librdkafka, is installed."""
    from importlib.util import find_spec

    return find_spec("confluent_kafka") is not None


def main() -> None:
    """Read messages and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka.bare_consumer", description=__doc__)
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("messages", type=int)
    given = parser.parse_args()

    deadline = time.monotonic() + _PATIENCE_SECONDS
    first = 0
    started = cpu = 0.0
    for read in accumulate(CLIENTS[given.client](given.bootstrap, given.topic)):
        if not first and read:
            # Exclude messages that arrived before the clock started.
            first, started, cpu = read, time.monotonic(), time.process_time()
        if read >= given.messages:
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"only {read} of {given.messages} messages came in {_PATIENCE_SECONDS:g} s")
    if read == first:
        raise SystemExit(f"all {read} messages arrived together: too few to time")
    print(
        json.dumps(
            {
                "messages": read - first,
                "seconds": time.monotonic() - started,
                "cpu_seconds": time.process_time() - cpu,
            }
        )
    )


if __name__ == "__main__":
    main()
