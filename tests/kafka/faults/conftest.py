"""One cluster of three brokers for all tests of faults, except of their own disks and clocks."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from streaming_pca.dev.cluster import _CLUSTER_SETTINGS
from tests.conftest import start_cluster
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.three_brokers import BEHIND, FAR, NEAR

LISTENERS = """
listeners=PLAINTEXT://{near}:{{port}},FAR://{behind}:{first_digits}{{node}},CONTROLLER://{near}:{{controller_port}}
advertised.listeners=PLAINTEXT://{near}:{{port}},FAR://{far}:{{port}}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT
"""
"""The last digit of a port beyond the link is the node's number: a broker can use each port only once."""


@pytest.fixture(scope="session")
def first_digits() -> int:
    """Return the first digits of the ports beyond the link."""
    dice = random.SystemRandom()
    # Below Linux's ephemeral ports.
    drawn = (dice.randrange(1100, 3200) for _ in range(100))
    return next(digits for digits in drawn if all(_is_free(10 * digits + node) for node in (1, 2, 3)))


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((BEHIND, port))
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def three_brokers(
    kafka_installation: object, request: pytest.FixtureRequest, first_digits: int
) -> Iterator[FaultyCluster]:
    """Yield three brokers, each with a second address for the link (`test_slow_link.py`)."""
    more = _CLUSTER_SETTINGS + LISTENERS.format(near=NEAR, far=FAR, behind=BEHIND, first_digits=first_digits)
    # Otherwise a broker's list of aborted transactions can be too short for librdkafka, the reader of checks:
    # the chaos loop saw that (test_aborted_records.py has the fault in a topic of its own).
    more += "log.index.interval.bytes=2147483647\n"
    with ExitStack() as stack:
        yield start_cluster(stack, request.config, more=more)
