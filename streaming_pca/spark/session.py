"""Start and end of Spark: its settings, its log, and one-line errors.

PySpark starts Java, or connects to spark-submit's. Two arguments of that start are ours: the output of Java
goes to :class:`_Relay`, because stack traces could quote a record, and Java has a separate process group, so
that a signal to Python's group cannot end the executors before Python has finished its reserved batch.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.spark import SparkSettings, check_master
from streaming_pca.text import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JAVA = 17  # oldest version of Java that Spark 4 supports
_SPARK = 4  # major version of Spark that this package supports
_END_SECONDS = 20.0  # time limit for the Java process to exit by itself
_WATCH_SECONDS = 2.0  # interval between checks of the application
_KEPT_LINES = 400  # number of last lines of the Java process to store, to explain a failed start

_DEFAULTS = {
    "spark.log.level": "WARN",
    # Spark writes larger functions to a file on the driver, and ours contain the Kafka password.
    "spark.broadcast.UDFCompressionThreshold": "1g",
    # Replanning is useless: a job has one or two stages.
    "spark.sql.adaptive.enabled": "false",
    # By default, Hadoop's clients retry for a quarter of an hour.
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "30000",
    "spark.hadoop.ipc.client.connect.max.retries": "3",
    "spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "3",
}
_LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}

_HEADER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (.*)")
"""First line of an event in Spark's own log format."""
_LEVELS = {"INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR, "FATAL": logging.ERROR}
_ERROR = re.compile(r"error|exception|invalid|failed", re.IGNORECASE)
_THREAD = re.compile(r'^Exception in thread "[^"]*" ([\w.$]+: )?|\s+at [\w.$]+\(.*$')
"""Start of an uncaught exception, and the location that Java's launcher appends."""
_KILLED = re.compile(r"Application has been killed. Reason: (.*)")
"""Event of a standalone cluster that does not accept the application; the exception does not contain it."""


def start_spark(settings: SparkSettings, master: str | None = None) -> SparkSession:
    """Return a new Spark session, in spark-submit's Java process if it exists.

    ``master`` overrides the settings. Raises ConfigurationError, with one line, if the extra or Java is
    missing, a setting is wrong, or the cluster does not answer.
    """
    check_extra()
    if master is not None:
        try:
            check_master(master)
        except ValueError as error:
            raise ConfigurationError(f"--master {master}: {error}") from None
    master = master or settings.master
    # Py4J logs Java's answers, and repeats reported errors as stack traces.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # It also logs to the root logger, whose filter applies only to records logged there directly.
    logging.getLogger().addFilter(lambda record: Path(record.pathname).parent.name != "py4j")
    with warnings.catch_warnings():
        # PySpark warns about versions of pandas, which this package does not use.
        warnings.simplefilter("ignore")
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            spark = _join_submitted(settings, master)
        else:
            master = master or "local[*]"
            log.info("starting Spark on %s", master)
            with _environment(_variables(settings, master)):
                spark = _start(settings, master)
    log.info("Spark %s runs on %s", spark.version, spark.sparkContext.master)
    return spark


def stop_spark(spark: SparkSession) -> None:
    """End a session, and its Java process if this module started it."""
    gateway: Any = spark.sparkContext._gateway
    # Java may already be gone.
    with suppress(Exception):
        spark.stop()
    if getattr(gateway, "proc", None) is not None:
        _end(gateway)


def watch_spark(spark: SparkSession, on_end: Callable[[str], None], stopping: threading.Event) -> None:
    """Call a function once, in another thread, if Spark ends before ``stopping`` is set.

    Java can be killed or run out of memory, or the cluster can end the application. A driver without
    executors must not continue to lead its stream. ``on_end`` receives the reason.
    """

    def problem() -> str | None:
        try:
            return "Spark ended the application" if spark._jsc.sc().isStopped() else None
        except Exception:
            return "the Java process of Spark does not answer"

    def watch() -> None:
        while not stopping.wait(_WATCH_SECONDS):
            reason = problem()
            if reason is not None and not stopping.is_set():
                on_end(reason)
                return

    threading.Thread(target=watch, name="watch-spark", daemon=True).start()


def check_extra() -> None:
    """Raise ConfigurationError without the extra, or with another major version of Spark."""
    how = install_command("spark")
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise ConfigurationError(f"Spark needs {error.name or 'pyspark'}: {how}") from None
    version = str(pyspark.__version__)
    if version.partition(".")[0] != str(_SPARK):
        raise ConfigurationError(f"pyspark {version} is installed, but Spark {_SPARK} is needed: {how}")
    if "SPARK_REMOTE" in os.environ:
        raise ConfigurationError(
            "SPARK_REMOTE is set, but Spark Connect cannot run this: unset it, and name a cluster by --master"
        )


def _join_submitted(settings: SparkSettings, master: str | None) -> SparkSession:
    """Create the session in the Java process that spark-submit has started."""
    from pyspark import SparkConf, SparkContext

    gateway = SparkContext._gateway or _launch()
    given = SparkConf(_jvm=gateway.jvm).get("spark.master", "local[*]")
    # Inside a cluster, the address of Kubernetes differs from the address outside.
    if master not in (None, given) and not str(given).startswith("k8s://"):
        raise ConfigurationError(
            f"spark-submit runs on {given}, not on {master}: give it --master {master}, "
            "or leave out [spark] master"
        )
    return _session(gateway, str(given), settings, settings.conf)


def _start(settings: SparkSettings, master: str) -> SparkSession:
    """Start Java, and return a new session."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    # Spark takes this process for a shell, where the default is true.
    early = {"spark.ui.showConsoleProgress": "false", **settings.conf, "spark.master": master}
    for name, value in {**early, "spark.app.name": settings.app_name}.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    relay, problem = _Relay(reading), ""
    try:
        gateway = _launch(conf, {"stdout": writing, "stderr": writing, "start_new_session": True})
    except Exception as error:
        # Raise below, without this error: it keeps the process and its pipe alive.
        problem = str(error)
    finally:
        # Java has a copy of this end.
        os.close(writing)
    if problem:
        relay.join()
        raise ConfigurationError(_why_java_failed(relay.lines, problem))
    try:
        return _session(gateway, master, settings, {}, relay.lines)
    except BaseException:
        _end(gateway)
        raise
    finally:
        relay.starting = False


def _launch(*arguments: Any) -> Any:
    """Start Java, or connect to spark-submit's Java process."""
    from pyspark import java_gateway

    return cast("Any", java_gateway.launch_gateway)(*arguments)


def _session(
    gateway: Any, master: str, settings: SparkSettings, more: dict[str, str], lines: deque[str] | None = None
) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    conf = SparkConf(_jvm=gateway.jvm)
    defaults = _DEFAULTS | (_LOCAL_DEFAULTS if _is_local(master) else {})
    given = {**defaults, **more, "spark.master": master, "spark.app.name": settings.app_name}
    for name, value in given.items():
        conf.setIfMissing(name, value)
    try:
        server: Any = SparkContext(conf=conf, gateway=gateway)._accumulatorServer
        # Otherwise this unused server prints a stack trace, with messages, when Java is gone.
        server.handle_error = lambda *_: log.debug("Spark: the connection for accumulators ended")
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        killed = [found[1] for line in lines or () if (found := _KILLED.search(line))]
        reason = killed[-1] if killed else _reason(error)
        raise ConfigurationError(f"Spark did not start on {master}: {reason}") from None


def _variables(settings: SparkSettings, master: str) -> dict[str, str]:
    """Return the environment of a start: a local Spark has our Python, and listens only on loopback."""
    wanted = {}
    if _is_local(master):
        wanted = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if "spark.pyspark.python" in settings.conf:
        wanted["PYSPARK_PYTHON"] = settings.conf["spark.pyspark.python"]
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables within the block: a later session may need others."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _end(gateway: Any) -> None:
    """Wait for the exit of Java; a service manager would kill it before it has cleaned up."""
    from pyspark import SparkContext

    with suppress(Exception):
        gateway.shutdown()
    # Java exits when its standard input closes, so also after any end of Python.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # Otherwise a later session of this process would use the closed connection.
    SparkContext._gateway = SparkContext._jvm = None


def _why_java_failed(lines: deque[str], problem: str) -> str:
    """Explain in one line why the Java process did not start."""
    texts = [_THREAD.sub("", line) for line in lines if not line.startswith("\t")]
    errors = [text for text in texts if _ERROR.search(text)]
    reason = " ".join((errors or texts)[:2]) or problem
    return (
        f"Spark did not start: {reason} (Spark needs Java {JAVA} or later on PATH or at JAVA_HOME: install "
        f"openjdk-{JAVA}-jre-headless, or set JAVA_HOME)"
    )


def _reason(error: Exception) -> str:
    """Return the messages of a Java exception and its causes, in one line."""
    exception: Any = getattr(error, "java_exception", None)
    found = [] if exception is not None else [str(error)]
    while exception is not None:
        found.append(str(exception.getMessage() or exception.toString()))
        exception = exception.getCause()
    text = ""
    for message in found:
        line = message.strip().partition("\n")[0].strip()
        if line not in text:
            text = f"{text}: {line}" if text else line
    return text


class _Relay(threading.Thread):
    """Thread that logs Java's output and keeps the last lines of its start.

    Events of Spark's log keep their severity. All other lines (stack traces, and output of Python workers)
    have level DEBUG, because they could quote a record.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="spark-log", daemon=True)
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.starting = True
        self._pipe = os.fdopen(descriptor, encoding="utf-8", errors="replace")
        self.start()

    def run(self) -> None:
        with self._pipe:
            for line in self._pipe:
                text, level = line.rstrip(), logging.DEBUG
                event = _HEADER.match(text)
                if self.starting:
                    # Only DEBUG: errors of the start are raised, in one line.
                    self.lines.append(text)
                elif event is not None:
                    level = _LEVELS.get(event[1], logging.DEBUG)
                log.log(level, "Spark: %s", text if event is None else event[2])
