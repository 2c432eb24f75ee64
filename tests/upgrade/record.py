"""Record the fixtures of a version: `python -m tests.upgrade.record CHECKOUT`.

It starts a separate Kafka, runs that version's streams on it, and archives the broker's whole data
directory: ids of topics cannot be chosen, and ledger and state contain them.
See README.md here.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from streaming_pca.dev.cluster import KafkaCluster
from streaming_pca.dev.jars import fetch_jars, find_java
from tests.upgrade.program import RECORDS_BEFORE, Program, end, messages_of, produce, status_of, until
from tests.upgrade.streams import BATCH, CAPS, ESTIMATORS, OTHERS, STRIKES, stream_settings, write_config

FIXTURES = Path(__file__).parent / "fixtures"
_LEFT_OUT = {
    "lock",
    "server.log",
    "server.properties",
    "log4j2.properties",
    ".lock",
    "cleaner-offset-checkpoint",
}

MODEL = """
import sys, numpy as np
from streaming_pca import PrivatePCA
x = np.random.default_rng(3).standard_normal((2000, 6)) * [5, 3, 1, 1, 1, 1]
how = {"estimator": sys.argv[1], "options": eval(sys.argv[2]), "centering": "none"}
model = PrivatePCA(2, epsilon=1.0, delta=1e-6, **how).fit(x)
model.save(sys.argv[3])
"""


def main(checkout: Path) -> None:
    """Record all fixtures of the version in `checkout`."""
    with closing(Program(checkout)) as program:
        record_version(program)


def record_version(program: Program) -> None:
    """Record all fixtures of a program."""
    version = program.run("--version").stdout.split()[-1]
    folder = FIXTURES / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for estimator, options in (("adaptive", {}), ("private-oja", {"batch_size": 1000, "clip_radius": 50.0})):
        program.python(MODEL, estimator, options, folder / f"{estimator}.model")
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "data")
        how: dict[str, Any] = {"nodes": 1, "replication": 1, "in_sync": 1, "directory": data}
        with KafkaCluster(find_java(), fetch_jars(), **how, more=SMALL) as kafka:
            facts = record(program, kafka.bootstrap, Path(scratch), folder)
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=program.checkout, check=True, capture_output=True, text=True
        )
        facts["commit"] = commit.stdout.strip()
        (folder / "facts.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        pack(data, folder / "cluster.tar.xz")
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:8} {path.name}")


SMALL = "offsets.topic.num.partitions=1\ntransaction.state.log.num.partitions=1\n"
"""Reduces the number of files in the archive."""


def record(program: Program, bootstrap: str, scratch: Path, folder: Path) -> dict[str, Any]:
    """Run all streams, and return the version's own facts about them."""
    configs = {name: write_config(scratch, bootstrap, name) for name in (*ESTIMATORS, *OTHERS)}
    for name, config in configs.items():
        topic = stream_settings(name)["input"]
        program.run("topics", "create", "--config", config, "--cap", CAPS[topic], "--partitions", 2)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:  # the fixture must not age
        for topic in CAPS:
            admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "-1"})]
            )
    for topic in CAPS:
        produce(bootstrap, topic, RECORDS_BEFORE, seed=0, keyed=topic == "old-users")

    log = scratch / "worker.log"
    quiet = [configs[name] for name in configs if name not in STRIKES]
    worker = program.start_worker(quiet, log)
    until(
        "two releases of each",
        lambda: all(
            len(messages_of(bootstrap, f"{name}.releases")) == RECORDS_BEFORE // BATCH
            for name in configs
            if name not in STRIKES
        ),
        worker,
        log,
    )
    assert end(worker) == 0, log.read_text()
    for name, step in STRIKES.items():
        struck = program.start_worker([configs[name]], log, (step, 2))
        assert status_of(struck, 240) == -9, log.read_text()
    program.run("stream", "pause", "--config", configs["paused"], "--reason", "fixture")
    program.run("stream", "retire", "--config", configs["retired"], "--reason", "fixture", "--yes")
    program.run("export", folder / "backup.zip", "--config", configs["user-once"])
    facts: dict[str, Any] = {"streams": {}, "inputs": {}}
    for name in configs:
        facts["streams"][name] = [json.loads(m.value) for m in messages_of(bootstrap, f"{name}.releases")]
    for name in ("private-oja", "user-once", "open", "rows"):
        where = ("--config", configs[name], "--partition", 0, "--offset", 7)
        facts["inputs"][stream_settings(name)["input"]] = {
            "spent": program.json("ledger", "spent", *where),
            "entries": len(messages_of(bootstrap, f"{stream_settings(name)['input']}.ledger")),
        }
    return facts


def pack(data: Path, archive: Path) -> None:
    """Write a cluster's data, without the process's logs and without times."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(data.rglob("*")):
            if path.name in _LEFT_OUT or not path.is_file():
                continue
            info = tarfile.TarInfo(str(path.relative_to(data)))
            content = path.read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
