"""Process whose Spark session finishes its job when stopped, as a driver's does."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from streaming_pca.config.spark import SparkSettings
from streaming_pca.spark.session import start_spark, stop_spark, watch_spark


def slow(batches: Iterator[Any]) -> Iterator[Any]:
    import time

    time.sleep(3)
    yield from batches


def say(*words: object) -> None:
    # In one write, because the traceback of another thread goes to the same pipe.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    warnings.simplefilter("ignore")
    logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s")
    stopping = threading.Event()
    spark = start_spark(SparkSettings(), sys.argv[1])
    # After the start, like a driver: Spark's own handler of Ctrl-C would cancel the job.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    gateway: Any = spark.sparkContext._gateway
    say("java", gateway.proc.pid)

    def ended(reason: str) -> None:
        say("ended:", reason)
        stopping.set()

    watch_spark(spark, ended, stopping)
    job = threading.Thread(
        target=lambda: say("counted", spark.range(7).mapInArrow(slow, "id long").count()), daemon=True
    )
    job.start()
    stopping.wait()
    job.join()
    stop_spark(spark)
    say("stopped")


if __name__ == "__main__":
    main()
