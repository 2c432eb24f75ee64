"""Brokers with topics that an earlier version wrote."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.dev.cluster import KafkaCluster
from tests.conftest import SHORT_LIVED
from tests.java_archive import archive_options
from tests.upgrade.record import FIXTURES, SMALL

VERSION = "0.5.0"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Return the folder of the recorded version."""
    return FIXTURES / VERSION


@pytest.fixture(scope="session")
def facts(fixtures: Path) -> dict[str, Any]:
    """Return that version's facts about its streams."""
    found: dict[str, Any] = json.loads((fixtures / "facts.json").read_text())
    return found


@pytest.fixture(scope="module")
def restore(
    kafka_installation: tuple[str, Path], fixtures: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], str]]:
    """Start brokers on the recorded data, and return their addresses."""
    with ExitStack() as stack:

        def start() -> str:
            data = tmp_path_factory.mktemp("cluster")
            with tarfile.open(fixtures / "cluster.tar.xz") as archive:
                archive.extractall(data, filter="data")
            cluster = KafkaCluster(
                *kafka_installation,
                nodes=1,
                replication=1,
                in_sync=1,
                more=SMALL,
                directory=data,
                options=archive_options(*kafka_installation, SHORT_LIVED),
            )
            return stack.enter_context(cluster).bootstrap

        yield start
