"""Many streams in one process share one election, one clock and few threads."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming_pca.admin.external_charge import charge_records
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.parameters import Charge
from tests.kafka.conftest import Name
from tests.kafka.stream import Child, Stream, check_books, have_released, run_together
from tests.waiting import wait_for

STREAMS = 50
MOST_THREADS = 72
"""60, and those of streams' short-lived admin clients, as many as can exchange at the same time."""
MOST_DESCRIPTORS = 1000


def make_streams(bootstrap: str, names: list[str], directory: Path, **how: Any) -> list[Stream]:
    """Make streams of one process, which share an election."""
    worker = {"group": f"group-{names[0]}", "stop_when_done": True, **how.pop("worker", {})}

    def make(name: str) -> Stream:
        return Stream.make(bootstrap, name, directory, worker=worker, **how)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(make, names))


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_fifty_streams_in_one_process(kafka_bootstrap: str, unique_name: Name, tmp_path: Path) -> None:
    names = [unique_name("many") for _ in range(STREAMS)]
    how = {"options": {"n_records": 60, "n_batches": 2}, "worker": {"stop_when_done": False}}
    streams = make_streams(kafka_bootstrap, names, tmp_path, **how)
    for stream in streams:
        stream.produce_vectors(stream.vectors(60))
    # Watched over HTTP, as in production.
    child = Child([s.changed("http", enabled=True, port=0) for s in streams], tmp_path / "worker")
    process = psutil.Process(child.pid)
    threads = descriptors = 0
    try:

        def all_released() -> bool:
            nonlocal threads, descriptors
            threads, descriptors = max(threads, process.num_threads()), max(descriptors, process.num_fds())
            assert child.status() is None, child.log
            return have_released(streams)

        wait_for("a release of every stream", all_released, 200, lambda: child.log)
        child.stop()
    finally:
        child.destroy()
    assert threads < MOST_THREADS, threads
    assert descriptors < MOST_DESCRIPTORS, descriptors
    print(f"{threads} threads, {descriptors} descriptors")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_books, streams))


def test_what_ends_one_stream_does_not_end_the_others(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path
) -> None:
    names = [unique_name("several") for _ in range(3)]
    good, poor, strange = make_streams(kafka_bootstrap, names, tmp_path)
    for stream in (good, poor, strange):
        stream.produce_vectors(stream.vectors(300))
    # Its records have half of the cap left, which is not enough for a batch.
    half = Charge(epsilon="1/2", delta="1/10000000")
    charge_records(poor.settings.kafka, poor.settings.stream.input, "census", half, None, "a histogram")
    settings = [good.settings, poor.settings, strange.changed(cap={"epsilon": "7", "delta": "1e-6"})]
    child = Child(settings, tmp_path / "worker")
    try:
        assert child.ends() == 3
    finally:
        child.destroy()
    assert "budget exceeded" in child.log
    assert "stream.cap is" in child.log
    assert "Traceback" not in child.log
    check_books(good)
    assert [r.batch for r in good.releases()] == [1, 2, 3]
    assert poor.releases() == strange.releases() == []


def test_all_streams_of_a_killed_process_are_taken_over(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path, session_ms: int
) -> None:
    names = [unique_name("shared") for _ in range(6)]
    streams = make_streams(kafka_bootstrap, names, tmp_path, session_ms=session_ms)
    settings = [s.settings for s in streams]
    children = [Child(settings, tmp_path / "a"), Child(settings, tmp_path / "b")]
    try:
        # Two processes share the streams, in any distribution.
        wait_for("leaders", lambda: all(any(f"leading stream {n}" in c.log for c in children) for n in names))
        for stream in streams:
            stream.produce_vectors(stream.vectors(100))
        wait_for(
            "first releases",
            lambda: have_released(streams),
            seen=lambda: "\n\n".join(child.log_and_stacks() for child in children),
            pause=0.5,
        )
        os.kill(children[0].pid, signal.SIGKILL)
        for stream in streams:
            stream.produce_vectors(stream.vectors(200, seed=1))
        # A process leaves finished streams, so the other one ends when all six are finished.
        children[1].ends_well()
    finally:
        for child in children:
            child.destroy()
    for stream in streams:
        check_books(stream)
        assert [r.batch for r in stream.releases()] == [1, 2, 3]


def test_streams_on_one_input_share_its_records_and_its_cap(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path
) -> None:
    one = Stream.make(kafka_bootstrap, unique_name("one"), tmp_path, cap=("2", "2e-6"))
    topic = one.settings.stream.input
    two = Stream.make(kafka_bootstrap, unique_name("two"), tmp_path, cap=None, input=topic)
    one.produce_vectors(one.vectors(300))
    try:
        run_together(one, two)
    finally:
        one.destroy()
    for stream in (one, two):
        check_books(stream)
    ranges = [Counter(r for e in s.own(Reserved) for r in e.ranges) for s in (one, two)]
    assert ranges[0] == ranges[1]
    ledger = one.replay()
    assert float(ledger.spent(0, 0).epsilon) == 2
