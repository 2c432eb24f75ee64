"""Driver's own seconds per batch: two transactions, the noise, eigenpairs and the release.

Except for its reader and its sums, the driver is the service's worker process. Therefore these seconds are
the times between a worker's releases on batches with almost no records.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

from benchmarks.kafka.running_worker import RunningWorker, draw_records, make_stream, send
from benchmarks.spark.streams import Case
from streaming_pca.config.loading import load_settings

__all__ = ["seconds_of_a_batch"]

_BATCH = 64
"""Messages of a batch, with one row each."""
_WARM_UP = 3


def seconds_of_a_batch(bootstrap: str, folder: Path, case: Case, batches: int) -> float:
    """Return the median seconds between the releases of small batches."""
    name = f"commits-{case.dim}"
    stream = case.stream(largest=_BATCH)
    table = {
        "name": name,
        "input": name,
        "dim": case.dim,
        "rank": case.rank,
        "epsilon": 1.0,
        "delta": 1e-6,
        "estimator": case.estimator,
        "centering": "none",
        "max_rows": 1,
        "options": stream.options,
    }
    config = make_stream(bootstrap, folder, table)
    rows = draw_records(_BATCH, case.dim, case.rank)
    send(load_settings(config), [row.tobytes() for row in rows], _BATCH * (_WARM_UP + batches + 2))
    arrivals = []
    with RunningWorker(config) as worker:
        for arrival in worker.arrivals():
            arrivals.append(arrival.at)
            if arrival.release.batch >= _WARM_UP + batches:
                break
    times = arrivals[_WARM_UP - 1 :]
    return statistics.median(b - a for a, b in pairwise(times))
