"""Producer in Java with Confluent's own serializer for Avro.

Maven Central does not have Confluent's artifacts. Apache Pinot's plugin contains the serializer, its
registry client and Kafka's producer, with Confluent's original package names (version 7.9.5).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.dev.jars import fetch_jars, find_java
from tests.service.registry.archives import CACHE, download, fetching
from tests.waiting import run_to_success

_NAME = "org.apache.pinot", "pinot-confluent-avro", "1.5.0", "jar", "shaded"
_SHA256 = "fcba31945ab17f393008f46975b37dd12516e59f536b0bec5a19ab9fd84464d1"
_PROGRAM = Path(__file__).with_name("Produce.java")


def fetch() -> Path:
    """Return the jar with Confluent's serializer; fetch it if this machine does not have it."""
    jar = CACHE / f"{_NAME[1]}-{_NAME[2]}.jar"
    with fetching(jar) as scratch:
        if scratch is not None:
            download(scratch, _NAME, _SHA256).rename(jar)
    return jar


def produce_avro(
    folder: Path,
    broker: str,
    registry: str,
    topic: str,
    *written: tuple[Mapping[str, Any], NDArray[np.float64]],
) -> None:
    """Write one record a row, to partitions 0 and 1 in turn, for each schema and its rows.

    The first record of a schema registers it.
    """
    files = []
    for number, (schema, rows) in enumerate(written):
        files += [f"{number}.json", f"{number}.txt"]
        (folder / files[-2]).write_text(json.dumps(schema))
        (folder / files[-1]).write_text("\n".join(" ".join(map(repr, row)) for row in rows.tolist()))
    # The log of its producer needs a jar of Kafka's.
    classes = f"{fetch()}{os.pathsep}{fetch_jars()}/*"
    program = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", classes, _PROGRAM]
    run_to_success([*program, broker, registry, topic, *files], folder)
