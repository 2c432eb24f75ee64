"""Java options for Spark in tests, and a class archive that halves a start's work.

The archive is made once for a checkout, in build/.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from streaming_pca.dev.cluster import UNMAPPED_COUNTERS
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[2]
_SPARK = Path(pyspark.__path__[0])
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend$"


def _archive() -> Path:
    """Return the archive's path for this Java and these jars; Java silently ignores a mismatched archive."""
    java = Path(os.environ.get("JAVA_HOME", "/usr"), "bin", "java").resolve()
    key = f"{java} {_SPARK} {pyspark.__version__}"
    return _ROOT / "build" / f"spark-{sha256(key.encode()).hexdigest()[:16]}.jsa"


_ARCHIVE = _archive()
# Processes that live for a minute spend most of it in Java's better compiler.
_SHORT_LIVED = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {UNMAPPED_COUNTERS}"
JAVA = f"{_SHORT_LIVED} -XX:SharedArchiveFile={_ARCHIVE} -Xlog:cds=off"
"""Options of a driver's Java."""
IN_CLUSTER = f"{JAVA} -Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
"""Options of a cluster's Java. A settings folder would be in the class path, which an archive forbids."""


def make_archive() -> None:
    """Make the archive, unless it exists, or wait while another process makes it; tests pass without it."""

    def is_mine() -> bool:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with suppress(OSError, AssertionError):
        _ARCHIVE.parent.mkdir(exist_ok=True)
        with _ARCHIVE.with_suffix(".lock").open("w") as lock:
            # A start without the archive would take four times the work, on a machine that is busy.
            wait_for("the archive of another process", lambda: _ARCHIVE.exists() or is_mine())
            if not _ARCHIVE.exists():
                command = [sys.executable, "-m", "tests.spark.java"]
                subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)


def _work(spark: SparkSession) -> None:
    """Run jobs of each kind that the package has."""
    rows = spark.range(4, numPartitions=2).mapInArrow(lambda batches: batches, "id long").persist()
    more = rows.union(rows).repartition(2, "id").mapInArrow(lambda batches: batches, "id long")
    assert more.coalesce(1).count() == 8
    rows.unpersist()


def main() -> None:
    """Run a local session and one with a cluster; at its end, their Java archives its loaded classes."""
    from pyspark.sql import SparkSession

    from streaming_pca.config.spark import SparkSettings
    from streaming_pca.spark.session import start_spark

    os.environ |= {"SPARK_HOME": str(_SPARK), "PYSPARK_PYTHON": sys.executable}
    written = _ARCHIVE.with_suffix(".new")
    options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={written}"
    spark = start_spark(SparkSettings(conf={"spark.driver.extraJavaOptions": options}), "local[2]")
    gateway: Any = spark.sparkContext._gateway
    _work(spark)
    spark.stop()
    # Master and worker share this Java. An executor would have its own: the worker has too few cores for one,
    # whose class is loaded by name.
    builder: Any = SparkSession.builder.master("local-cluster[1,1,512]")
    spark = builder.config("spark.executor.memory", "512m").config("spark.executor.cores", "2").getOrCreate()
    gateway.jvm.java.lang.Class.forName(_EXECUTOR)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    os.replace(written, _ARCHIVE)


if __name__ == "__main__":
    main()
