"""Archive of Kafka's classes for Java, which more than halves the work of starting."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from streaming_pca.dev.cluster import KafkaCluster
from streaming_pca.dev.jars import KafkaUnavailable

_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def archive_options(java: str, jars: Path, options: Sequence[str]) -> tuple[str, ...]:
    """Return the options with the archive of this Java and these jars; make it if missing.

    Parameters
    ----------
    java : str
        The `java` command.
    jars : Path
        Directory of Kafka's jars. The archive is stored next to it, if the parent is writable.
    options : sequence of str
        Further options of Java.
    """
    # Java also prints the options of the environment, which differ from test to test.
    plain = {name: value for name, value in os.environ.items() if name not in _OPTIONS}
    version = subprocess.run([java, "-version"], capture_output=True, check=False, env=plain).stderr
    names = "\n".join(sorted(path.name for path in jars.glob("*.jar"))).encode()
    archive = jars.parent / f"{jars.name}-{sha256(version + names).hexdigest()[:16]}.jsa"
    with suppress(OSError, KafkaUnavailable), archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(java, jars, archive, options)
    # Java silently ignores an archive that it cannot use.
    return (
        (*options, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off")
        if archive.exists()
        else tuple(options)
    )


def _make(java: str, jars: Path, archive: Path, options: Sequence[str]) -> None:
    """Run one node, which writes its loaded classes to the archive when it ends."""
    written = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory() as data:
        how = {"nodes": 1, "replication": 1, "in_sync": 1, "more": "", "directory": Path(data)}
        with KafkaCluster(java, jars, **how, options=(*options, f"-XX:ArchiveClassesAtExit={written}")):
            pass
    os.replace(written, archive)
