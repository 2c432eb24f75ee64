"""Spark learns from records with schemas of a registry as the service does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.privacy.ledger.entries import Reserved
from tests.kafka.stream import Stream, check_books
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer, id_of, record_type
from tests.spark.streams import LOCAL, SELDOM, SHORT, Runners, check_same, wait_for_batches

pytestmark = pytest.mark.timeout(900)

COUNT = 40
"""Records per batch."""
NAMES = ("a", "b", "c")
OLD = record_type("V", a="double", b="double", c="double")
# As long as OLD: with the wrong schema, its numbers would silently be read as other features.
NEW = record_type("V", c="double", b="double", a="double")


def test_versions_that_come_while_it_runs_are_read_as_the_service_reads_them(
    kafka_bootstrap: str,
    fork_server: None,
    spark_java: str,
    apicurio: Apicurio,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Noise is drawn from a digest of exact sums: one wrong record changes all numbers of a release."""
    features = [{"name": name, "bounds": [-9, 9]} for name in NAMES]
    how: dict[str, Any] = SHORT | {"dim": 3, "features": features, "format": "avro"}
    name = unique_name("registered")
    subject = f"in-{name}-value"
    streams = []
    shares = {"cap": None, "input": f"in-{name}"}
    for which, more in ((name, {"cap": ("2", "1e-5")}), (f"{name}-spark", shares)):
        made = Stream.make(kafka_bootstrap, which, tmp_path, **how, **more, subject=subject, worker=SELDOM)
        registry = RegistrySettings(url=apicurio.url, seconds=0.5)
        made.settings = made.settings.model_copy(update={"registry": registry})
        streams.append(made)
    alone, shared = streams
    rows = np.random.default_rng(0).normal(size=(3 * COUNT, 3)).clip(-9, 9)
    with Producer(apicurio, f"in-{name}") as producer, Runners(tmp_path) as run:

        def produce(batch: int, *schemas: Any) -> list[bytes]:
            chosen = rows[batch * COUNT : (batch + 1) * COUNT].tolist()
            records = [dict(zip(NAMES, row, strict=True)) for row in chosen]
            values = [producer.avro(schemas[i % len(schemas)], each) for i, each in enumerate(records)]
            alone.produce(values, headers=[])
            return values

        first = id_of(produce(0, OLD)[0])
        service = run.start([alone], "service")
        driver = run.start([shared], "driver", spark=LOCAL)
        wait_for_batches(service, [alone], 1)
        wait_for_batches(driver, [shared], 1)
        second = id_of(produce(1, NEW)[0])
        produce(2, OLD, NEW, NEW)
        for each in (service, driver):
            each.ends_well()
    check_same(alone, shared, 3, alone.entries())
    named = [entry.parameters["schemas"]["ids"] for entry in shared.own(Reserved)]
    assert named == [[first], *[sorted([first, second])] * 2]
    assert shared.releases()[-1].least_null_share == 0
    check_books(shared)
