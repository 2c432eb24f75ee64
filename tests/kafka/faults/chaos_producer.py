"""Producer of the chaos loop, a program: plain or transactional, until it is stopped.

Some transactions are aborted, and in the middle of some the program kills itself.
Like :mod:`tests.kafka.faults.chaos_check` it imports nothing from the package.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.kafka.faults.chaos_check import record_key
from tests.kafka.faults.chaos_payloads import draw

_TRANSACTION_MS = 4000
_RETRIES = 20
REFUSED = 75
"""Exit status after an error from Kafka that faults cause: fenced, aborted or out of time."""
_stopping = False


@dataclass(frozen=True)
class Load:
    """Options of a producer."""

    bootstrap: str
    topic: str
    partitions: int
    dim: int
    name: str
    """Prefix of its records' names, unique to this producer."""
    seed: int
    transactional_id: str | None
    """None for a plain producer."""
    rate: float
    """Approximate number of records a second."""


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopping
    _stopping = True


class _Writer:
    def __init__(self, load: Load) -> None:
        self._load, self._dice, self._count = load, random.Random(load.seed), 0
        configs: dict[str, Any] = {"bootstrap.servers": load.bootstrap, "enable.idempotence": True}
        configs |= {"linger.ms": 5, "message.timeout.ms": 60_000}
        if load.transactional_id is not None:
            configs["transactional.id"] = load.transactional_id
            configs |= dict.fromkeys(("transaction.timeout.ms", "message.timeout.ms"), _TRANSACTION_MS)
        self._producer = Producer(configs)

    def run(self) -> None:
        if self._load.transactional_id is None:
            while not _stopping:
                self._write("commit", self._dice.randrange(1, 20))
            self._producer.flush(30)
            return
        self._patiently(self._producer.init_transactions, 10)
        while not _stopping:
            self._transaction()

    def _write(self, fate: str, count: int) -> None:
        for _ in range(count):
            (value, headers), kind, rows = draw(self._dice, self._load.dim)
            self._count += 1
            key = record_key(f"{self._load.name}-{self._count}", fate, kind, rows)
            where = self._dice.randrange(self._load.partitions)
            self._producer.produce(self._load.topic, value, key, where, headers=list(headers))
        self._producer.poll(0)
        time.sleep(count / self._load.rate)

    def _transaction(self) -> None:
        fate = self._dice.choices(("commit", "abort", "die"), (72, 24, 4))[0]
        self._producer.begin_transaction()
        for _ in range(self._dice.randrange(1, 4)):
            self._write(fate, self._dice.randrange(1, 30))
        if self._dice.random() < 0.1:
            time.sleep(self._dice.uniform(0.2, 1.5))  # delays the last stable offset
        if fate == "die":
            self._producer.flush(5)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if fate == "abort":
                self._patiently(self._producer.abort_transaction)
            else:
                self._patiently(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._patiently(self._producer.abort_transaction)

    @staticmethod
    def _patiently(call: Any, timeout: float = 5) -> None:
        for _ in range(_RETRIES):
            try:
                call(timeout)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or _stopping:
                    raise
        raise TimeoutError(f"{call.__name__}: {_RETRIES} times")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    writer = _Writer(Load(**json.loads(sys.argv[1])))
    try:
        writer.run()
    except (KafkaException, TimeoutError) as error:
        # The status reports it: librdkafka's threads log lines after this one.
        print(repr(error), file=sys.stderr, flush=True)
        sys.exit(REFUSED)
