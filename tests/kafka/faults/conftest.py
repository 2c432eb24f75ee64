"""One cluster of three brokers for all tests of faults that strike neither a disk nor a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from streaming_pca.dev.cluster import _CLUSTER_SETTINGS, KafkaCluster
from tests.conftest import start_cluster
from tests.kafka.three_brokers import BEHIND, FAR, NEAR

LISTENERS = """
listeners=PLAINTEXT://{near}:{{port}},FAR://{behind}:{first_digits}{{node}},CONTROLLER://{near}:{{controller_port}}
advertised.listeners=PLAINTEXT://{near}:{{port}},FAR://{far}:{{port}}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT
"""
"""The last digit of a port behind the link is the node's number: a broker has each port once."""


@pytest.fixture(scope="session")
def first_digits() -> int:
    """First digits of the ports behind the link."""
    # Below the ports that Linux gives to connections.
    return random.SystemRandom().randrange(1100, 3200)


@pytest.fixture(scope="session")
def three_brokers(request: pytest.FixtureRequest, first_digits: int) -> Iterator[KafkaCluster]:
    """Three brokers with a second address each, that of the link (`test_slow_link.py`)."""
    listeners = LISTENERS.format(near=NEAR, far=FAR, behind=BEHIND, first_digits=first_digits)
    with ExitStack() as stack:
        yield start_cluster(stack, request.config, more=_CLUSTER_SETTINGS + listeners)
