"""A worker's memory is bounded by two batches and the state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streaming_pca.data.array_batch import _BLOCK_ENTRIES
from streaming_pca.kernels.threads import thread_count
from streaming_pca.service.input.partition_reader import _FETCH_BYTES
from tests.kafka.stream import Stream, check_books

DIM = 256
ROWS = 8
BATCH_ROWS = 102_400
PARTITIONS = 2
BATCH = BATCH_ROWS * DIM * 4
"""Bytes of a batch: decoded rows keep their number type, float32."""


def peak(make_stream: Callable[..., Stream], batch_records: int, n_batches: int, lost: int) -> int:
    """Return the peak resident size of a worker that learns from ``n_batches`` batches of factors.

    It loses its first ``lost`` sessions, each with a batch in memory, and has no cyclic collector:
    memory that only the collector would free shows in every run, not only after a chance loss.
    """
    records = batch_records * n_batches
    stream = make_stream(
        partitions=PARTITIONS,
        dim=DIM,
        centering="none",
        options={"n_records": records, "n_batches": n_batches},
    )
    x = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype("<f4")
    stream.produce(x.tobytes() for _ in range(records))
    worker = stream.run(seconds=200, lost_batches=lost, collector=False)
    print(worker.log)
    assert worker.log.count("session lost") >= lost
    check_books(stream)
    return int((worker.directory / "peak").read_text())


def test_memory_is_bounded_by_two_batches_and_the_state(make_stream: Callable[..., Stream]) -> None:
    """Compare peak resident size with a worker on tiny batches of the same dimension.

    allowed = 2 batches + state + blocks + fetches, where

    - 2 batches: the batch being learnt from, and the next one, being gathered at the same time
      (``rows * dim * itemsize`` each, and 16 bytes a row for indices);
    - state: d' x d' float64, in the baseline too, so it is counted once for safety;
    - blocks: four temporaries of ``_BLOCK_ENTRIES`` float64 in a kernel (transformed
      rows, lattice points, and temporaries of preprocessing and of the product), in each of its threads;
    - fetches: six times ``_FETCH_BYTES`` (on the wire, received, the response's field, its record
      batches, their values, and the part of them beyond the batch).
    """
    baseline = peak(make_stream, 64, 2, lost=0)
    used = peak(make_stream, BATCH_ROWS // ROWS, 3, lost=2) - baseline
    batches = 2 * (BATCH + 16 * BATCH_ROWS)
    state = DIM * DIM * 8
    blocks = 4 * _BLOCK_ENTRIES * 8 * thread_count()
    fetches = 6 * _FETCH_BYTES
    allowed = batches + state + blocks + fetches
    print(f"{used / 2**20:.0f} MiB over {baseline / 2**20:.0f}; {allowed / 2**20:.0f} allowed")
    # It must hold at least one batch: otherwise this measures the wrong process.
    assert BATCH < used < allowed
