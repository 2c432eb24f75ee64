"""An input loses its last records with a replaced disk, during and between workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from streaming_pca.privacy.ledger.entries import Reserved
from tests.kafka.admin.test_backup import export, restore
from tests.kafka.conftest import Capture
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import ENDLESS, Stream

MakeCluster = Callable[..., FaultyCluster]
ONE: dict[str, Any] = ENDLESS | {"partitions": 1, "session_ms": 6000}


@pytest.fixture(scope="module")
def node(make_cluster: MakeCluster) -> FaultyCluster:
    """Make a cluster of one node, with the only replica of everything."""
    return make_cluster(nodes=1, replication=1, in_sync=1)


def lose(cluster: FaultyCluster, *streams: Stream) -> None:
    """Replace the disk that held the streams' inputs."""
    cluster.kill(1)
    for stream in streams:
        shutil.rmtree(cluster.log_directory(1, stream.settings.stream.input, 0))
    cluster.start(1)


def test_an_import_waits_for_the_first_coordinator_of_groups(
    node: FaultyCluster, tmp_path: Path, capfd: Capture
) -> None:
    """The first test of this file: only a broker that never had a group lacks a coordinator."""
    stream = Stream.make(node.bootstrap, "first", tmp_path, **ONE)
    try:
        with KafkaAdminClient(bootstrap_servers=node.bootstrap) as admin:
            assert "__consumer_offsets" not in admin.list_topics()
        backup = export(capfd, stream)
        stream.delete("ledger", "state", "releases")
        assert restore(capfd, stream, backup)["entries_written"] == 1
    finally:
        stream.destroy()


@pytest.mark.timeout(600)
def test_records_in_the_places_of_charged_ones_are_not_skipped_in_silence(
    node: FaultyCluster, tmp_path: Path
) -> None:
    """Fewer records than before, more than before, and more while no worker ran."""
    watched, fewer, more, skipping = (
        Stream.make(node.bootstrap, name, tmp_path, **ONE)
        for name in ("watched", "fewer", "more", "skipping")
    )
    streams = [watched, fewer, more, skipping]
    try:
        for stream in streams:
            stream.produce_vectors(stream.vectors(90))
            stream.start()
        for stream in streams:
            stream.children[0].logs("batch 2 released")
        for stream in (fewer, more, skipping):
            stream.children[0].stop()
        lose(node, *streams)
        for stream in (fewer, watched):
            stream.produce_vectors(stream.vectors(50, seed=1))
        for stream in (more, skipping):
            stream.produce_vectors(stream.vectors(170, seed=1))
        for stream in (fewer, more):
            stream.start()
        skips = skipping.start(skipping.changed(lost_records="skip"))
        for stream in (watched, fewer, more):
            assert "which the stream has passed, are lost" in stream.children[-1].refusal()
            assert len(stream.own(Reserved)) == 2
        skips.logs("batch 4 released")
        ranges = [(r.start, r.end) for e in skipping.own(Reserved) for r in e.ranges]
        assert ranges == [(0, 40), (40, 80), (80, 120), (120, 160)]
    finally:
        for stream in streams:
            stream.destroy()
