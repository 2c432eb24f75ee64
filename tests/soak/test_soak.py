"""A leader and a standby run at full speed for ``--soak-seconds``: nothing grows.

The producer stays a few batches ahead of the releases, so that the worker's pace is the stream's. Metrics of
both workers are scraped during the run. The result is in build/soak.json.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from streaming_pca.dev.processes import Child as Process
from streaming_pca.privacy.ledger.entries import Committed, Released
from streaming_pca.service.commit.verification import verify_ledger
from tests.kafka.admin.test_operations import get, of, samples
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import Child, Stream
from tests.soak.producer import Pace
from tests.soak.series import Series, family, sample
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]

PARTITIONS, DIM, BATCH = 4, 64, 20_000
AHEAD = 6 * BATCH
SAMPLE_SECONDS, PROGRESS_SECONDS = 2.0, 30.0
WARM_SHARE = 0.1
"""Share of the run, at its start, that is ignored: pools and buffers fill."""
SLOWEST = 0.5
"""Minimum pace of the second half relative to the first: otherwise work grows with the history."""


# -- the check itself ------------------------------------------------------


def series_of(memory: Callable[[np.ndarray], np.ndarray]) -> Series:
    """Return an hour of samples whose memory follows a rule, with some percent of noise."""
    made, at = Series(), np.arange(0.0, 3600.0, 2.0)
    noise = np.random.default_rng(0).normal(0, 12, len(at))
    for seconds, mib in zip(at, memory(at) + noise, strict=True):
        made.add(seconds, {"memory_mib": mib, "descriptors": 60, "threads": 30, "series": 80})
    return made


def test_a_leak_is_noticed() -> None:
    """The leak is 30 MiB an hour, and a descriptor every three minutes."""
    assert series_of(lambda at: 400 - 100 * np.exp(-at / 300)).problems() == []
    (found,) = series_of(lambda at: 400 + at * 60 / 3600).problems()
    assert found.startswith("memory_mib: +")
    leaking = series_of(lambda at: 400 + 0 * at)
    leaking.values["descriptors"] = [60.0 + at // 180 for at in leaking.at]
    (found,) = leaking.problems()
    assert found.startswith("descriptors: +")


# -- the run ---------------------------------------------------------------


def make_stream(cluster: FaultyCluster, directory: Path) -> Stream:
    """Make an endless stream of vectors that deletes records once read."""
    made = Stream.make(
        cluster.bootstrap,
        "soak",
        directory,
        partitions=PARTITIONS,
        dim=DIM,
        rank=4,
        estimator="private-oja",
        centering="none",
        options={"clip_radius": 20.0, "batch_size": BATCH},
        worker={"stop_when_done": False, "tick_seconds": 0.2},
    )
    configs = {"retention.bytes": str(128 * 2**20), "segment.bytes": str(32 * 2**20)}
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs([ConfigResource("topic", made.settings.stream.input, configs=configs)])
    return made


def address_of(worker: Child) -> str:
    found = re.search(r"metrics and health on (http://\S+)", worker.log)
    assert found is not None, worker.log
    return found[1]


def bad_lines(worker: Child) -> list[str]:
    """Return log lines that a run without faults has no reason for."""
    return [
        line for line in worker.log.splitlines() if re.search(r" (WARNING|ERROR|CRITICAL) |Traceback", line)
    ]


class Soak:
    """A leader, a standby and a producer, sampled continuously."""

    def __init__(self, stream: Stream, directory: Path) -> None:
        self.stream, self._directory = stream, directory
        self.name = stream.settings.stream.name
        self.learnt: list[tuple[float, float, float]] = []
        """Seconds, records learnt by then, and the lag."""
        self.series = {"leader": Series(), "standby": Series()}

    def start(self) -> None:
        """Start all three; return once there are releases."""
        names, watched = self.stream.settings.stream, self.stream.changed("http", enabled=True, port=0)
        leader = self.stream.start(watched)
        leader.logs("leading stream", 240)
        standby = self.stream.start(watched)
        standby.logs("standing by")
        self.workers = {"leader": leader, "standby": standby}
        pace = Pace(
            self.stream.settings.kafka.bootstrap_servers,
            names.input,
            names.releases_topic,
            PARTITIONS,
            4 * DIM,
            AHEAD,
        )
        command = [sys.executable, "-m", "tests.soak.producer", json.dumps(asdict(pace))]
        self.producer = Process(command, log=self._directory / "producer.log", cwd=ROOT)
        leader.logs("batch 3 released", 240)

    def look(self, seconds: float, warm: bool) -> str:
        """Scrape and sample everything once; return a line for people."""
        line = f"{seconds:6.0f} s"
        for role, worker in self.workers.items():
            address = address_of(worker)
            scraped = samples(address)
            assert get(f"{address}/healthz")[0] == 200
            held = sample(family(worker.pid)) | {"series": float(len(scraped))}
            if warm:
                self.series[role].add(seconds, held)
            if role == "leader":
                records = of(scraped, "records_delivered_total", stream=self.name)
                lag = of(scraped, "lag_records", stream=self.name)
                self.learnt.append((seconds, records, lag))
                line += f"  {records:,.0f} records, lag {lag:,.0f}"
            memory, descriptors, threads, _ = held.values()
            line += f"  {role}: {memory:.0f} MiB, {descriptors:.0f} descriptors, {threads:.0f} threads"
        assert self.producer.returncode is None, self.producer.log_tail()
        return line

    def stop(self) -> int:
        """End the producer, then the workers after the last record; return the records written."""
        os.kill(self.producer.pid, signal.SIGTERM)
        wait_for("the producer to end", lambda: self.producer.returncode is not None)
        assert self.producer.returncode == 0, self.producer.log_tail()
        written = int(json.loads(self.producer.log_tail(1))["written"])
        last = f", {written - written % BATCH} records"
        self.workers["leader"].logs(last, 240)
        for worker in reversed(self.workers.values()):
            worker.signal(signal.SIGTERM)
            assert worker.ends() == 0, worker.log[-3000:]
        return written

    def pace(self) -> tuple[float, float]:
        """Return the records per second of each half."""
        (first, a, _), (middle, b, _), (end, c, _) = (
            self.learnt[i] for i in (0, len(self.learnt) // 2, len(self.learnt) - 1)
        )
        return (b - a) / (middle - first), (c - b) / (end - middle)


@pytest.mark.soak
@pytest.mark.kafka
def test_nothing_grows_at_full_speed(
    fork_server: None,
    make_cluster: Callable[..., FaultyCluster],
    soak_seconds: float,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = make_cluster(nodes=1, replication=1, in_sync=1, heap=512, more="", options=())
    soak = Soak(make_stream(cluster, tmp_path), tmp_path)
    try:
        soak.start()
        started = message = time.monotonic()
        while (seconds := time.monotonic() - started) < soak_seconds:
            line = soak.look(seconds, warm=seconds >= WARM_SHARE * soak_seconds)
            if started + seconds - message >= PROGRESS_SECONDS:
                message = started + seconds
                with capsys.disabled():
                    print(line, flush=True)
            time.sleep(SAMPLE_SECONDS)
        written = soak.stop()
    finally:
        if hasattr(soak, "producer"):
            soak.producer.kill()
        soak.stream.destroy()
    settings, (early, late) = soak.stream.settings, soak.pace()
    committed, released = (soak.stream.own(kind) for kind in (Committed, Released))
    lags = [lag for _, _, lag in soak.learnt]
    started = time.monotonic()
    ledger = verify_ledger(settings.kafka, settings.stream.input)
    result = {
        "seconds": soak_seconds,
        "records": written,
        "batches": len(committed),
        "records_a_second": {"first half": round(early), "second half": round(late)},
        "lag_records": {"mean": round(float(np.mean(lags))), "most": round(max(lags))},
        "verified_in_seconds": round(time.monotonic() - started, 1),
        "workers": {role: each.summary() for role, each in soak.series.items()},
        "problems": [
            *(f"{role}: {text}" for role, each in soak.series.items() for text in each.problems()),
            *(f"{role}: {line}" for role, worker in soak.workers.items() for line in bad_lines(worker)),
            *map(str, ledger.problems),
        ],
    }
    place = ROOT / "build" / "soak.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(result, indent=1) + "\n")
    record_property("to look at", str(place))
    with capsys.disabled():
        print(json.dumps(result))
    assert not result["problems"]
    assert len(committed) == len(released) == written // BATCH
    assert max(lags) <= AHEAD
    assert late > SLOWEST * early
