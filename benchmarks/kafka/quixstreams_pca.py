"""Exactly-once quixstreams program with scikit-learn's IncrementalPCA, as a user might write it.

It is not private. ``python quixstreams_pca.py BOOTSTRAP TOPIC DIM RANK ROWS BATCHES``, with the Python of an
environment that contains quixstreams, learns from batches of ROWS messages of one float32 row each, commits
offsets and components together after each batch, and prints messages, seconds and CPU seconds of BATCHES
batches after the first.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

_STEP_ROWS = 4096
_FETCH_BYTES = 16 * 2**20


def main() -> None:
    """Read and learn, then print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    for name in ("dim", "rank", "rows", "batches"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()

    from quixstreams import Application
    from sklearn.decomposition import IncrementalPCA

    app = Application(
        broker_address=given.bootstrap,
        consumer_group=f"quixstreams-{time.time_ns()}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        loglevel="WARNING",
        # One commit per batch.
        commit_every=given.rows,
        commit_interval=1e9,
        consumer_extra_config={"fetch.max.bytes": _FETCH_BYTES, "max.partition.fetch.bytes": _FETCH_BYTES},
    )
    source = app.topic(given.topic, value_deserializer="bytes", key_deserializer="bytes")
    target = app.topic(f"{given.topic}-quixstreams", value_serializer="json", key_serializer="bytes")
    pca = IncrementalPCA(given.rank)
    rows: list[bytes] = []
    done: list[tuple[float, float]] = []

    def learn(value: bytes) -> Any:
        rows.append(value)
        if len(rows) < given.rows:
            return None
        x = np.frombuffer(b"".join(rows), np.float32).reshape(-1, given.dim)
        rows.clear()
        for first in range(0, len(x), _STEP_ROWS):
            pca.partial_fit(x[first : first + _STEP_ROWS])
        done.append((time.perf_counter(), time.process_time()))
        if len(done) > given.batches:
            app.stop()
        return pca.components_.tolist()

    released = app.dataframe(source).apply(learn).filter(lambda value: value is not None)
    released.to_topic(target, key=lambda value: b"components")
    app.run()
    (started, cpu), (ended, cpu_at_end) = done[0], done[given.batches]
    messages = given.rows * given.batches
    print(json.dumps({"messages": messages, "seconds": ended - started, "cpu_seconds": cpu_at_end - cpu}))


if __name__ == "__main__":
    main()
