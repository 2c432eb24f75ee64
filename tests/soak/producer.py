"""A producer program at a stream's own pace: it stays a number of records ahead of releases."""

from __future__ import annotations

import json
import random
import signal
import sys
from dataclasses import dataclass
from types import FrameType

from confluent_kafka import Consumer, Producer, TopicPartition

_STEP = 2000
_stopping = False


@dataclass(frozen=True)
class Pace:
    """Parameters of the producer.

    Attributes
    ----------
    bootstrap, topic, releases : str
    partitions : int
    record_bytes : int
    ahead : int
        Maximum number of written records not yet in a release.
    """

    bootstrap: str
    topic: str
    releases: str
    partitions: int
    record_bytes: int
    ahead: int


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopping
    _stopping = True


def run(pace: Pace) -> int:
    """Write until stopped by a signal; return the number of records."""
    dice = random.Random(0)
    # The exponents of ordinary numbers: float32, little-endian.
    values = [
        b"".join(bytes([*dice.randbytes(3), 0x3F]) for _ in range(pace.record_bytes // 4)) for _ in range(500)
    ]
    producer = Producer(
        {
            "bootstrap.servers": pace.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 10 * _STEP,
        }
    )
    consumer = Consumer(
        {"bootstrap.servers": pace.bootstrap, "group.id": "pace", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(pace.releases, 0, 0)])
    written, learnt = 0, 0
    while not _stopping:
        full = written - learnt + _STEP > pace.ahead
        message = consumer.poll(0.1 if full else 0.0)
        if message is not None and message.error() is None:
            learnt = json.loads(message.value())["records"]
        if full:
            continue
        for _ in range(_STEP):
            producer.produce(pace.topic, values[written % len(values)], partition=written % pace.partitions)
            written += 1
        while producer.poll(0) or len(producer) > 5 * _STEP:
            producer.poll(0.01)
    producer.flush(60)
    consumer.close()
    return written


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    print(json.dumps({"written": run(Pace(**json.loads(sys.argv[1])))}), flush=True)
