"""Clients get the security settings, and a consumer that cannot be made leaves nothing open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kafka import KafkaConsumer
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka import clients
from streaming_pca.service.kafka.clients import offsets_by
from tests.cli.test_app import closed_port
from tests.config.refusals import refusal
from tests.security.needles import secret


def secure(**more: Any) -> KafkaSettings:
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "pca", "sasl_password": secret("two")}
    return KafkaSettings(**{"security_protocol": "SASL_SSL"} | login | more)


def test_security_settings_reach_the_client(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    found = clients._common_options(secure(ssl_cafile=authority))
    assert (found["security_protocol"], found["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (found["sasl_plain_username"], found["sasl_plain_password"]()) == ("pca", secret("two"))
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


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files of right settings, and others."""
    directory = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    made, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    lock = serialization.BestAvailableEncryption(b"pass phrase")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    contents = {
        "ssl_cafile": authority.cert_pem.bytes(),
        "ssl_certfile": made.cert_chain_pems[0].bytes(),
        "ssl_keyfile": made.private_key_pem.bytes(),
        "both": made.private_key_and_cert_chain_pem.bytes(),
        "other key": other.private_key_pem.bytes(),
        "locked key": key.private_bytes(*form, lock),
        "text": b"no certificate",
        "empty": b"",
        "secret": b"of a client",
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return {name: directory / name for name in (*contents, "absent")}


FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
NO_KEY = "is not the private key of kafka.ssl_certfile in PEM, without a pass phrase"
SECRET_FILE, BEARER = "sasl_oauth_client_secret_file", {"sasl_mechanism": "OAUTHBEARER"}
TOKEN_URL = {"sasl_oauth_token_url": "https://login.test/token"}
GRANT = BEARER | TOKEN_URL | {"sasl_oauth_client_id": "me", SECRET_FILE: "secret"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"ssl_certfile": "both", "ssl_keyfile": None}, None),
        ({"ssl_cafile": "absent"}, "ssl_cafile: {}: No such file or directory"),
        ({"ssl_cafile": "text"}, "ssl_cafile: {}: holds no certificate in PEM"),
        ({"ssl_certfile": "absent"}, "ssl_certfile: {}: No such file or directory"),
        ({"ssl_certfile": "empty"}, "ssl_certfile: {}: holds no certificate in PEM"),
        ({"ssl_keyfile": "absent"}, "ssl_keyfile: {}: No such file or directory"),
        ({"ssl_keyfile": "text"}, f"ssl_keyfile: {{}}: {NO_KEY}"),
        ({"ssl_keyfile": "other key"}, f"ssl_keyfile: {{}}: {NO_KEY}"),
        ({"ssl_keyfile": "locked key"}, f"ssl_keyfile: {{}}: {NO_KEY}"),
        ({"ssl_keyfile": None}, "ssl_certfile: {}: holds no private key: set kafka.ssl_keyfile"),
        (GRANT, None),
        (GRANT | {"sasl_oauth_cafile": "text"}, "sasl_oauth_cafile: {}: holds no certificate in PEM"),
        (GRANT | {SECRET_FILE: "absent"}, "sasl_oauth_client_secret_file: {}: No such file or directory"),
        (BEARER | {"sasl_oauth_token_file": "empty"}, "sasl_oauth_token_file: {}: is empty"),
    ],
)
def test_files_that_cannot_be_used_are_a_mistake_until_a_broker_answers(
    changes: dict[str, Any], expected: str | None, pem: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = "SASL_SSL" if "sasl_mechanism" in changes else "SSL"
    chosen = {name: name for name in FILES} | {"security_protocol": protocol} | changes
    address = f"127.0.0.1:{closed_port()}"
    named = {name: pem.get(value, value) for name, value in chosen.items()}
    settings = KafkaSettings(bootstrap_servers=address, **named)

    def fails(**options: Any) -> None:
        raise clients.KafkaConnectionError("no broker")

    if expected is None:
        settings.check_files()
        return
    name = expected.partition(":")[0]
    line = f"kafka.{expected.format(named[name])}"
    for use in (settings.check_files, lambda: clients._connect(settings, fails)):
        assert refusal(ConfigurationError, use) == line
    # Later, the file is perhaps being replaced.
    if name in (*FILES, "sasl_oauth_token_file"):
        monkeypatch.setitem(clients._answered, address, address)
        assert refusal(BrokerUnreachable, clients._connect, settings, fails) == line


def test_all_unusable_files_are_named_at_once(pem: dict[str, Path]) -> None:
    files = {"sasl_password_file": "empty", "ssl_cafile": "absent", "ssl_certfile": "text"}
    settings = secure(sasl_password=None, **{name: pem[file] for name, file in files.items()})
    with pytest.raises(ConfigurationError) as caught:
        settings.check_files()
    assert [line.partition(":")[0] for line in caught.value.lines] == [f"kafka.{name}" for name in files]


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
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka.clients import reading_consumer
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


@pytest.fixture
def make_options(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that returns the options of the client that another one makes."""

    def connect(settings: KafkaSettings, make: object, **options: Any) -> dict[str, Any]:
        return clients._common_options(settings) | options

    monkeypatch.setattr(clients, "_connect", connect)
    return lambda make, *given: make(*given)


def test_a_batch_of_a_slow_link_does_not_expire(make_options: Callable[..., dict[str, Any]]) -> None:
    accumulator = RecordAccumulator(**make_options(clients.plain_producer, KafkaSettings()))
    batch = ProducerBatch(clients.TopicPartition("t", 0), None, now=0.0)
    assert not batch.has_reached_delivery_timeout(accumulator.delivery_timeout_ms, now=86_400.0)


REQUEST_MS = [1000, 119_981, 539_999]


@pytest.mark.parametrize("request_ms", REQUEST_MS)
def test_every_permitted_time_limit_of_a_request_makes_clients(
    request_ms: int, make_options: Callable[..., dict[str, Any]]
) -> None:
    settings = KafkaSettings(request_timeout_ms=request_ms)
    RecordAccumulator(**make_options(clients.plain_producer, settings))
    RecordAccumulator(**make_options(clients.transactional_producer, settings, "id"))
    options = make_options(clients.reading_consumer, settings)
    kept = {name: value for name, value in options.items() if name in KafkaConsumer.DEFAULT_CONFIG}

    def stop(**_: Any) -> None:
        raise InterruptedError

    # The client checks its options before it connects.
    with pytest.raises(InterruptedError):
        KafkaConsumer(**kept, kafka_client=stop)


def test_a_longer_time_limit_of_a_request_is_refused() -> None:
    assert KafkaConsumer.DEFAULT_CONFIG["connections_max_idle_ms"] == REQUEST_MS[-1] + 1
    with pytest.raises(ValueError, match="request_timeout_ms\n  Input should be less than 540000"):
        KafkaSettings(request_timeout_ms=REQUEST_MS[-1] + 1)


def test_settings_that_the_client_refuses_are_no_silent_broker() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{closed_port()}")
    line = refusal(ConfigurationError, clients._connect, settings, KafkaConsumer, fetch_max_wait_ms=10**6)
    assert line.startswith("kafka-python refuses settings of [kafka]: KafkaConfigurationError: ")
    assert "fetch_max_wait_ms (1000000)" in line


def test_a_partition_without_a_leader_is_an_error_of_the_client_s_kind() -> None:
    class Forgetful:
        """Client that answers as kafka-python 3.0.12 does when it knows only some leaders."""

        def beginning_offsets(self, partitions: list[Any], timeout_ms: int) -> dict[Any, int]:
            return {partitions[0]: 0, "other": {}[partitions[1]]}

    with pytest.raises(clients.KafkaError, match="no known leader"):
        offsets_by(Forgetful().beginning_offsets, ["a", "b"], 100)  # type: ignore[list-item]
