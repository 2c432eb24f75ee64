"""A failing start of Spark gives one line of explanation; Spark ends with its driver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.service.errors import StreamRefused
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.session import start_spark, stop_spark
from tests.waiting import LIMIT

pytestmark = pytest.mark.usefixtures("own_java")

ROOT = Path(__file__).parents[2]
CHILD = ROOT / "tests" / "spark" / "stopped_child.py"


def refusal(settings: SparkSettings, master: str | None = "local[2]") -> str:
    with pytest.raises(ConfigurationError) as error:
        start_spark(settings, master)
    (line,) = error.value.lines
    assert "\n" not in line
    return line


def test_a_wrong_setting_of_spark_is_named_and_the_next_start_is_another(spark_java: str) -> None:
    line = refusal(SparkSettings(conf={"spark.memory.fraction": "much"}))
    assert line.startswith("Spark did not start on local[2]: ")
    assert "spark.memory.fraction" in line
    chosen = {"spark.executor.heartbeatInterval": "7s", "spark.ui.showConsoleProgress": True}
    session = start_spark(SparkSettings(app_name="mine", conf=chosen), "local[1]")
    conf = session.sparkContext.getConf()
    assert [conf.get(name) for name in chosen] == ["7s", "true"]
    assert session.sparkContext.appName == "mine"
    stop_spark(session)
    stop_spark(session)


REMEDY = "install openjdk-17-jre-headless, or set JAVA_HOME"
JAVA = f"(Spark needs Java 17 or later on PATH or at JAVA_HOME: {REMEDY})"


def test_a_java_process_that_does_not_start_says_why(spark_java: str) -> None:
    line = refusal(SparkSettings(conf={"spark.driver.memory": "lots"}))
    assert line.startswith("Spark did not start: Invalid maximum heap size: -Xmxlots")


def test_without_java_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        (found,) = [p for each in ("/usr/bin", "/bin") if (p := Path(each, tool)).exists()][:1]
        (tmp_path / tool).symlink_to(found)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(SparkSettings()) == f"Spark did not start: JAVA_HOME is not set {JAVA}"
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    line = refusal(SparkSettings())
    assert "/nowhere/bin/java: No such file or directory" in line
    assert line.endswith(JAVA)


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # Java 11 fails on Spark's classes like this.
    reason = "java.lang.UnsupportedClassVersionError: class file version 61.0, recognized up to 55.0"
    message = "Error: LinkageError occurred while loading main class"
    java.write_text(f"#!/bin/sh\necho '{message}'\necho '{reason}'\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert refusal(SparkSettings()).endswith(f"{reason} {JAVA}")


@pytest.mark.parametrize("name", ["pandas", "pyarrow", "pyspark"])
def test_without_the_extra_the_line_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python refuses to import a name whose entry is None.
    monkeypatch.setitem(sys.modules, name, None)
    assert refusal(SparkSettings()) == f"Spark needs {name}: pip install '.[spark]' in the checkout"


@pytest.mark.parametrize("master", ["sc://127.0.0.1", "localhost:7077", "local[two]"])
def test_an_address_of_another_form_is_refused(master: str) -> None:
    assert refusal(SparkSettings(), master).startswith(f"--master {master}: ")


@pytest.mark.soak
@pytest.mark.parametrize("listens", [False, True], ids=["closed", "silent"])
def test_a_master_that_does_not_answer_is_named(spark_java: str, listens: bool) -> None:
    # Spark gives up after three attempts of 20 s each.
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen()
        master = f"spark://127.0.0.1:{port.getsockname()[1]}"
        line = refusal(SparkSettings(master=master), None)
    assert line == f"Spark did not start on {master}: All masters are unresponsive! Giving up."


@pytest.mark.soak
def test_a_python_without_the_package_is_named(spark_java: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    spark = start_spark(SparkSettings(conf={"spark.pyspark.python": python}), "local[1]")
    try:
        stream = StreamSettings(name="s", input="t", dim=3, rank=1, epsilon=1.0, delta=1e-6)
        cluster = Cluster(spark, SparkSettings(), KafkaSettings(), stream, None)
        with pytest.raises(StreamRefused, match=r"Python has no \w+: set PYSPARK_PYTHON") as refused:
            cluster.load([cluster.range(0, 0, 10)], "reading")
        assert "\n" not in str(refused.value)
        cluster.close()
    finally:
        stop_spark(spark)


# -- ends ------------------------------------------------------------------


@pytest.fixture
def child(spark_java: str) -> Iterator[Callable[..., tuple[subprocess.Popen[str], psutil.Process]]]:
    running: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], psutil.Process]:
        env, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
        how: dict[str, Any] = {"stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        process = subprocess.Popen([sys.executable, CHILD, "local[1]"], stdout=pipe, env=env, **how)
        running.append(process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "java", words
        return process, psutil.Process(int(words[1]))

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)],
    ids=lambda each: each.name,
)
def test_a_signal_to_the_whole_group_lets_the_driver_finish_its_job(child: Any, number: int) -> None:
    process, java = child()
    time.sleep(1)
    # Ctrl-C in a terminal reaches every process of the group.
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert output.splitlines() == ["counted 7", "stopped"]
    assert process.returncode == 0
    java.wait(120)


def test_java_ends_with_a_driver_that_is_killed(child: Any) -> None:
    process, java = child()
    workers = java.children(recursive=True)
    process.kill()
    java.wait(120)
    _, alive = psutil.wait_procs(workers, LIMIT)
    assert not alive


def test_a_driver_learns_that_java_was_killed(child: Any) -> None:
    process, java = child()
    java.kill()
    output, _ = process.communicate(timeout=240)
    assert "ended: the Java process of Spark" in output
    # The job's thread may report its error after that.
    assert "stopped" in output.splitlines()


SUBMITTED = """
from streaming_pca.config.spark import SparkSettings
from streaming_pca.spark.session import start_spark, stop_spark
try:
    start_spark(SparkSettings(master='local[1]'))
except Exception as error:
    print('refused:', error)
spark = start_spark(SparkSettings(conf={'spark.ui.enabled': True, 'spark.memory.fraction': 0.5}))
conf = spark.sparkContext.getConf()
names = ('spark.master', 'spark.app.name', 'spark.ui.enabled', 'spark.memory.fraction')
print('runs:', *(conf.get(name) for name in names))
stop_spark(spark)
"""


@pytest.mark.soak
def test_the_master_of_spark_submit_is_the_one(spark_java: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    submit = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", "--name", "submitted"]
    command = [*submit, "--conf", "spark.memory.fraction=0.4", program]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused: spark-submit runs on local[2], not on local[1]: give it --master local[1], "
        "or leave out [spark] master",
        "runs: local[2] submitted true 0.4",
    ]
