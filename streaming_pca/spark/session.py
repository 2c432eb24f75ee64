"""Start and end of Spark: the Java process, its settings, its log, and one-line errors.

Without spark-submit, this module starts the Java process itself, in a separate process group. Therefore
Ctrl-C in a terminal reaches only Python, which finishes its reserved batch first. Java ends when Python
does, however Python ends, because its standard input is a pipe.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.spark import SparkSettings, check_master

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JAVA = 17
"""Oldest version of Java that Spark 4 supports."""
_SPARK = 4
"""Major version of Spark that this package supports."""
_EXTRA = "pip install '.[spark]' in the checkout"
_CONNECT_SECONDS = 5.0
"""Time limit for a connection to a master, before Java starts."""
_END_SECONDS = 20.0
"""Time limit for the Java process to exit by itself."""
_REGISTER_SECONDS = 45.0
"""Time limit for a standalone master to register the application, after Java has started."""
_WATCH_SECONDS = 2.0
"""Interval between checks of the Java process."""
_KEPT_LINES = 400
"""Number of last lines of the Java process to store, to explain a failed start."""

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

_stopped: WeakSet[SparkSession] = WeakSet()
"""Sessions ended by :func:`stop_spark`."""

_HEADER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (.*)")
"""First line of an event in Spark's own log format."""
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.ERROR,
}
_ERROR = re.compile(r"error|exception|invalid|failed", re.IGNORECASE)
_THREAD = re.compile(r'^Exception in thread "[^"]*" ([\w.$]+: )?|\s+at [\w.$]+\(.*$')
"""Start of an uncaught exception, and the location that Java's launcher appends."""
_CHATTER = re.compile(r"NativeCodeLoader: ")
"""Events of every start that need no action."""


def start_spark(settings: SparkSettings, master: str | None = None) -> SparkSession:
    """Return a new Spark session, in spark-submit's Java process if it exists.

    Parameters
    ----------
    master : str, optional
        Cluster to run on; overrides the settings.

    Raises
    ------
    ConfigurationError
        If the extra or Java is missing, a setting is wrong, or the cluster does not answer; the message
        is one line and names what to change.
    """
    check_extra()
    if master is not None:
        try:
            check_master(master)
        except ValueError as error:
            raise ConfigurationError(f"--master {master}: {error}") from None
    master = master or settings.master
    _silence_py4j()
    with warnings.catch_warnings(), _kept_interrupt():
        # PySpark warns about versions of pandas, which this package does not use.
        warnings.simplefilter("ignore")
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            spark = _join_submitted(settings, master)
        else:
            master = master or "local[*]"
            log.info("starting Spark on %s", master)
            spark = _start(settings, master)
    log.info("Spark %s runs on %s", spark.version, spark.sparkContext.master)
    return spark


def stop_spark(spark: SparkSession) -> None:
    """End a session, and its Java process if this module started it."""
    from pyspark import SparkContext

    _stopped.add(spark)
    gateway: Any = spark.sparkContext._gateway
    # Java may already be gone.
    with suppress(Exception):
        spark.stop()
    if getattr(gateway, "proc", None) is not None:
        _end(gateway)
        # Otherwise a later session of this process would reuse the connection.
        SparkContext._gateway = SparkContext._jvm = None


def watch_spark(spark: SparkSession, on_end: Callable[[str], None]) -> None:
    """Call a function, in another thread, if Spark ends unexpectedly.

    This happens if the Java process is killed or runs out of memory, or if the cluster ends the
    application. A driver without executors must not continue to lead its stream.

    Parameters
    ----------
    on_end : callable
        Called once, with the reason.
    """
    gateway: Any = spark.sparkContext._gateway
    process, parent = gateway.proc, os.getppid()

    def ending() -> str | None:
        if process is not None and process.poll() is not None:
            return f"the Java process of Spark ended with status {process.returncode}"
        if process is None and os.getppid() != parent:
            return "the process of spark-submit ended"
        try:
            context = spark._jsc.sc()
            return "Spark ended the application" if context.isStopped() else None
        except Exception:
            return "the Java process of Spark does not answer"

    def watch() -> None:
        while True:
            reason = ending()
            if spark in _stopped:
                return
            if reason is not None:
                on_end(reason)
                return
            time.sleep(_WATCH_SECONDS)

    threading.Thread(target=watch, name="watch-spark", daemon=True).start()


# -- start -----------------------------------------------------------------


def check_extra() -> None:
    """Refuse an installation without the extra, or with another major version of Spark.

    Raises
    ------
    ConfigurationError
        If so; the message shows in one line how to install it.
    """
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise ConfigurationError(f"Spark needs {error.name or 'pyspark'}: {_EXTRA}") from None
    version = str(pyspark.__version__)
    if version.partition(".")[0] != str(_SPARK):
        raise ConfigurationError(f"pyspark {version} is installed, but Spark {_SPARK} is needed: {_EXTRA}")
    if "SPARK_REMOTE" in os.environ:
        raise ConfigurationError(
            "SPARK_REMOTE is set, but Spark Connect cannot run this: unset it, and name a cluster by --master"
        )


def _silence_py4j() -> None:
    """Silence Py4J's log: it repeats reported errors as stack traces."""
    for name in ("java_gateway", "clientserver"):
        logging.getLogger(f"py4j.{name}").setLevel(logging.CRITICAL)
    # Py4J also logs to the root logger, whose filter applies only to records logged there directly.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _silence_accumulators(context: Any) -> None:
    """Prevent stack traces of the unused accumulator server when Java is gone."""

    def handle_error(request: object, address: object) -> None:
        log.debug("Spark: the connection for accumulators ended", exc_info=True)

    context._accumulatorServer.handle_error = handle_error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _kept_interrupt() -> Iterator[None]:
    """Restore the handler of Ctrl-C: Spark's would cancel the jobs of a reserved batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _join_submitted(settings: SparkSettings, master: str | None) -> SparkSession:
    """Create the session in the Java process that spark-submit has started."""
    from pyspark import SparkConf, SparkContext

    gateway = SparkContext._gateway or _launch()
    conf = SparkConf(_jvm=gateway.jvm)
    given = conf.get("spark.master", "local[*]")
    # Inside a cluster, the address of Kubernetes differs from the address outside.
    if master not in (None, given) and not str(given).startswith("k8s://"):
        raise ConfigurationError(
            f"spark-submit runs on {given}, not on {master}: give it --master {master}, "
            "or leave out [spark] master"
        )
    for name, value in settings.conf.items():
        conf.setIfMissing(name, value)
    return _session(gateway, conf, str(given), settings)


def _start(settings: SparkSettings, master: str) -> SparkSession:
    """Start Java with the executors' Python, and return a new session."""
    from pyspark import SparkConf, SparkContext

    _check_master_answers(master)
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("this process has a session of Spark already")
    early = SparkConf(loadDefaults=False)
    # Spark takes this process for a shell, where the default is true.
    early.set("spark.ui.showConsoleProgress", "false")
    for name, value in {**settings.conf, "spark.master": master, "spark.app.name": settings.app_name}.items():
        early.set(name, value)
    # For this session only: a later session of this process may use another Python.
    with _environment(_python_of_executors(settings, master)):
        return _start_java(early, settings, master)


def _start_java(early: SparkConf, settings: SparkSettings, master: str) -> SparkSession:
    from pyspark import SparkConf, SparkContext

    reading, writing = os.pipe()
    relay, problem = _Relay(reading), ""
    try:
        with _environment(_loopback(master)):
            gateway = _launch(early, {"stdout": writing, "stderr": writing, "start_new_session": True})
    except Exception as error:
        # Raise below, without this error: it keeps the process and its pipe alive.
        problem = str(error)
    finally:
        # Java has a copy of this end.
        os.close(writing)
    if problem:
        relay.join()
        raise ConfigurationError(_why_java_failed(relay.lines, problem))
    # Spark itself gives up only after two minutes, with a message about a stopped context.
    limit = threading.Timer(_REGISTER_SECONDS, gateway.proc.kill)
    if master.startswith("spark://"):
        limit.start()
    try:
        return _session(gateway, SparkConf(_jvm=gateway.jvm), master, settings, relay)
    except BaseException:
        _end(gateway)
        SparkContext._gateway = SparkContext._jvm = None
        raise
    finally:
        limit.cancel()
        relay.starting = False


def _launch(*arguments: Any) -> Any:
    """Start Java, or connect to spark-submit's Java process."""
    from pyspark import java_gateway

    launch: Any = java_gateway.launch_gateway
    return launch(*arguments)


def _session(
    gateway: JavaGateway,
    conf: SparkConf,
    master: str,
    settings: SparkSettings,
    relay: _Relay | None = None,
) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    defaults = _DEFAULTS | (_LOCAL_DEFAULTS if _is_local(master) else {})
    for name, value in {**defaults, "spark.master": master, "spark.app.name": settings.app_name}.items():
        conf.setIfMissing(name, value)
    try:
        _silence_accumulators(SparkContext(conf=conf, gateway=gateway))
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        reason = None
        if relay is not None and master.startswith("spark://"):
            reason = relay.reason(gateway.proc)
        reason = reason or _reason(error)
        raise ConfigurationError(f"Spark did not start on {master}: {reason}") from None


def _python_of_executors(settings: SparkSettings, master: str) -> dict[str, str]:
    """Return the environment variable of the executors' Python, unless it is set."""
    named = settings.conf.get("spark.pyspark.python")
    if "PYSPARK_PYTHON" in os.environ:
        return {}
    if named is None and _is_local(master):
        named = sys.executable
    return {} if named is None else {"PYSPARK_PYTHON": named}


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _loopback(master: str) -> dict[str, str]:
    """Return the environment variable that restricts a local Spark to loopback."""
    wanted = _is_local(master) and "SPARK_LOCAL_IP" not in os.environ
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if wanted else {}


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables within the block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _end(gateway: Any) -> None:
    """End the Java process, which exits when its standard input closes."""
    with suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


# -- failures --------------------------------------------------------------


def _check_master_answers(master: str) -> None:
    """Refuse a master that accepts no connection; Spark would retry for a minute."""
    if master.startswith("spark://"):
        addresses = [f"//{each}" for each in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        url = master.removeprefix("k8s://")
        addresses = [url if "://" in url else f"https://{url}"]
    else:
        return
    problem = ""
    for address in addresses:
        try:
            parts = urlsplit(address)
            port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 7077)
            with socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
    raise ConfigurationError(
        f"{master} does not answer ({problem}): start it, or correct --master or [spark] master"
    )


def _why_java_failed(lines: deque[str], problem: str) -> str:
    """Explain in one line why the Java process did not start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    install = f"install Java {JAVA} or later (openjdk-{JAVA}-jre-headless) or set JAVA_HOME to one"
    if java is None or not Path(java).exists():
        where = f"at JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME is not set"
        return f"Spark needs Java, which was not found {where}: {install}"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # nosec B603  # as $JAVA_HOME says
        found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    except (OSError, subprocess.TimeoutExpired):
        return f"{java} does not run: {install}"
    if found is not None and int(found[1]) < JAVA:
        return f"{java} is Java {found[1]}: {install}"
    errors = [_THREAD.sub("", line) for line in lines if _ERROR.search(line) and not line.startswith("\t")]
    return f"Spark did not start: {' '.join(errors[:2]) or (lines[-1] if lines else problem)}"


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
    """Thread that logs the output of the Java process.

    Events of Spark's log keep their severity. All other lines (stack traces, and output of Python workers)
    have level DEBUG, because they could quote a record.

    Attributes
    ----------
    lines : deque of str
        Last lines of the start of the process.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="spark-log", daemon=True)
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.starting = True
        self._pipe = os.fdopen(descriptor, encoding="utf-8", errors="replace")
        self.start()

    def reason(self, process: subprocess.Popen[bytes]) -> str | None:
        """Return why a standalone master failed the start; None if it did not."""
        with suppress(subprocess.TimeoutExpired):
            # The process was killed, or keeps running.
            process.wait(1)
        unresponsive = any("All masters are unresponsive" in line for line in self.lines)
        if process.returncode is None and not unresponsive:
            return None
        causes = [line.removeprefix("Caused by: ") for line in self.lines if line.startswith("Caused by: ")]
        return "; ".join(["the master does not register the application", *causes[-1:]])

    def run(self) -> None:
        """Log lines until the process ends."""
        with self._pipe:
            for line in self._pipe:
                text = line.rstrip()
                if self.starting:
                    self.lines.append(text)
                event = _HEADER.match(text)
                if event is None:
                    log.debug("Spark: %s", text)
                elif not _CHATTER.match(event[2]):
                    # Only DEBUG during the start: its errors are raised, in one line.
                    log.log(logging.DEBUG if self.starting else _LEVELS[event[1]], "Spark: %s", event[2])
