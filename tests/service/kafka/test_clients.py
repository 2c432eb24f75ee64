"""Clients get the security settings, and a consumer that cannot be made leaves nothing open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.service.kafka import clients
from streaming_pca.service.kafka.clients import first_offsets
from tests.cli.test_app import closed_port
from tests.security.needles import secret


def secure(**more: Any) -> KafkaSettings:
    return KafkaSettings(
        **{
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "pca",
            "sasl_password": secret("two"),
            **more,
        }
    )


def test_security_settings_reach_the_client(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    found = clients._common_options(secure(ssl_cafile=authority))
    assert found["security_protocol"] == "SASL_SSL"
    assert found["sasl_mechanism"] == "SCRAM-SHA-512"
    assert found["sasl_plain_username"] == "pca"
    assert found["sasl_plain_password"]() == secret("two")
    assert secret("two") not in str(found)
    assert found["ssl_cafile"] == str(authority)
    assert "ssl_certfile" not in found


def test_a_password_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(secret("three") + "\n")
    settings = secure(sasl_password=None, sasl_password_file=tmp_path / "password")
    password = clients._common_options(settings)["sasl_plain_password"]
    assert password() == secret("three")
    # It is read again for each connection.
    (tmp_path / "password").write_text(secret("four") + "\n")
    assert password() == secret("four")
    (tmp_path / "password").unlink()
    with pytest.raises(ConfigurationError, match=r"kafka\.sasl_password_file: .*No such file"):
        clients._common_options(settings)


def test_consumers_that_cannot_reach_a_broker_leave_no_threads_and_few_descriptors() -> None:
    # In its own process: kafka-python leaves refused sockets to the garbage collector, which warns.
    address = f"127.0.0.1:{closed_port()}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ATTEMPTS, address],
        capture_output=True, text=True, timeout=120, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    threads, descriptors = json.loads(done.stdout)
    assert threads == 0
    # If kept, two sockets an attempt (IPv4 and the wake-up) at most: 40.
    assert descriptors <= 10


_ATTEMPTS = """
import gc, json, sys, threading
import psutil
from streaming_pca.service.kafka.clients import BrokerUnreachable, reading_consumer
from streaming_pca.config.settings import KafkaSettings

settings = KafkaSettings(bootstrap_servers=sys.argv[1], bootstrap_timeout_ms=100)

def attempt():
    try:
        reading_consumer(settings, topics=["t"])
    except BrokerUnreachable as error:
        assert "kafka.bootstrap_servers" in str(error)
        return
    raise SystemExit("somebody answers")

def used():
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds()

attempt()
before = used()
for _ in range(20):
    attempt()
print(json.dumps([now - then for now, then in zip(used(), before)]))
"""


def test_a_partition_without_a_leader_is_an_error_of_the_client_s_kind() -> None:
    class Forgetful:
        """Client that answers as kafka-python 3.0.12 does when it knows only some leaders."""

        def beginning_offsets(self, partitions: list[Any], timeout_ms: int) -> dict[Any, int]:
            return {partitions[0]: 0, "other": {}[partitions[1]]}

    with pytest.raises(clients.KafkaError, match="no known leader"):
        first_offsets(Forgetful(), ["a", "b"], 100)  # type: ignore[arg-type, list-item]
