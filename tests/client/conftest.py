"""Topics of a broker for producers and readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient

NewTopic = Callable[..., str]


@pytest.fixture
def new_topic(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> NewTopic:
    def make(partitions: int = 1, **configs: str) -> str:
        name = unique_name("client")
        with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
            one = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
            admin.create_topics({name: one}, wait_for_metadata=True)
        return name

    return make
