"""A failed connection to any listener reports its cause and the setting to change."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka.clients import plain_producer, reading_consumer
from streaming_pca.service.kafka.diagnosis import diagnose
from streaming_pca.service.topics.find import describe_topics
from tests.cli.test_app import closed_port, write_config
from tests.kafka.conftest import Patch
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.security.secured import listening, properties, set_passwords
from tests.ports import steady_ports
from tests.security.needles import secret
from tests.waiting import LIMIT, without_progress

PROTOCOLS = {"CLEAR": "PLAINTEXT", "TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
PROTOCOLS |= {"EXPIRED": "SSL", "MUTUAL": "SSL", "ASTRAY": "PLAINTEXT"}
"""Listeners of the broker."""
NOWHERE = "nowhere.invalid"
USER, PASSWORD = "pca", secret("broker")


@dataclass(frozen=True)
class Listeners:
    """Addresses of a broker, and the certificates of its listeners."""

    ports: dict[str, int]
    certificates: Path

    def address(self, listener: str, host: str = "localhost") -> str:
        return f"{host}:{self.ports[listener]}"

    def trusting(self, name: str = "broker") -> dict[str, Any]:
        return {"security_protocol": "SSL", "ssl_cafile": self.certificates / f"{name}.pem"}

    def login(self, password: str = PASSWORD) -> dict[str, Any]:
        how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": USER}
        return how | {"sasl_password": password}

    def both(self, password: str = PASSWORD) -> dict[str, Any]:
        scram = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
        return self.trusting() | self.login(password) | scram


def make_certificate(directory: Path, name: str, begins: timedelta = timedelta(minutes=-1)) -> None:
    """Make a self-signed certificate for `localhost` of one day, alone and as a broker's key store."""
    key, start = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC) + begins
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(start).not_valid_after(start + timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    pem = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (directory / f"{name}.pem").write_bytes(pem)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / f"{name}-store.pem").write_bytes(plain + pem)


def settings_of(listeners: Listeners) -> str:
    """Return the broker's settings in addition to those of all brokers of the tests."""
    directory, modules = listeners.certificates, "org.apache.kafka.common.security"
    advertised = {name: listeners.address(name) for name in PROTOCOLS} | {"ASTRAY": f"{NOWHERE}:9092"}
    found = listening(listeners.ports, PROTOCOLS, advertised) | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{directory}/broker-store.pem",
        "listener.name.expired.ssl.keystore.location": f"{directory}/expired-store.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{directory}/foreign.pem",
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": (
            f'{modules}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "listener.name.both.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.both.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
    }
    return properties(found)


@pytest.fixture(scope="module")
def listeners(
    make_cluster: Callable[..., FaultyCluster], tmp_path_factory: pytest.TempPathFactory
) -> Listeners:
    directory = tmp_path_factory.mktemp("certificates")
    ports = steady_ports(len(PROTOCOLS))
    found = Listeners(dict(zip(PROTOCOLS, ports, strict=True)), directory)
    make_certificate(directory, "broker")
    make_certificate(directory, "foreign")
    make_certificate(directory, "expired", timedelta(days=-2))
    cluster = make_cluster(nodes=1, replication=1, in_sync=1, more=settings_of(found))
    set_passwords(KafkaSettings(bootstrap_servers=cluster.bootstrap), {USER: PASSWORD})
    return found


def settings(server: str, patience_ms: int = 2000, **how: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=server, bootstrap_timeout_ms=patience_ms, **how)


def diagnosis(server: str, *, answers: bool = True, **how: Any) -> str:
    """Return the line about a failed connection.

    Other processes make the client's own attempts: it leaves sockets to the garbage collector, which warns.
    """
    found = diagnose(settings(server, **how), server.split(","))
    assert found is not None
    assert found.answers is answers
    assert PASSWORD not in found.text
    assert len(found.text.splitlines()) == 1
    return found.text


def test_right_settings_connect(listeners: Listeners) -> None:
    ways = {"CLEAR": {}, "TLS": listeners.trusting(), "LOGIN": listeners.login(), "BOTH": listeners.both()}
    for listener, how in ways.items():
        kafka = settings(listeners.address(listener), int(1000 * LIMIT), **how)
        assert describe_topics(kafka, ["missing"], "it")[0]["error_code"] == 3, listener
        reading_consumer(kafka).close(autocommit=False)
        plain_producer(kafka).close()


def test_a_wrong_password_or_mechanism(listeners: Listeners) -> None:
    for listener, how in (("LOGIN", listeners.login("wrong")), ("BOTH", listeners.both("wrong"))):
        found = diagnosis(listeners.address(listener), **how)
        assert f"refuses kafka.sasl_username = {USER!r} with its password (Authentication failed" in found
        assert "STREAMING_PCA_KAFKA__SASL_PASSWORD" in found
    found = diagnosis(listeners.address("LOGIN"), **listeners.login() | {"sasl_mechanism": "SCRAM-SHA-256"})
    assert "kafka.sasl_mechanism is 'SCRAM-SHA-256', but the broker at localhost:" in found
    assert found.endswith("offers PLAIN")


def test_a_password_that_is_wanted_or_not(listeners: Listeners) -> None:
    found = diagnosis(listeners.address("LOGIN"))
    assert 'asks for a password: set kafka.security_protocol = "SASL_PLAINTEXT"' in found
    assert "kafka.sasl_mechanism (PLAIN)" in found
    found = diagnosis(listeners.address("CLEAR"), **listeners.login())
    assert 'has no authentication: set kafka.security_protocol = "PLAINTEXT"' in found


def test_tls_on_one_side_only(listeners: Listeners) -> None:
    for listener, how in (
        ("TLS", {}),
        ("BOTH", {}),
        ("TLS", listeners.login()),
        ("CLEAR", listeners.trusting()),
        ("LOGIN", listeners.both()),
    ):
        found = diagnosis(listeners.address(listener), **how)
        spoken, mine = PROTOCOLS[listener], how.get("security_protocol", "PLAINTEXT")
        assert f'speaks {spoken}, not {mine}: set kafka.security_protocol = "{spoken}"' in found


def test_a_certificate_that_does_not_suit(listeners: Listeners) -> None:
    foreign = listeners.trusting("foreign")
    found = diagnosis(listeners.address("TLS"), **foreign)
    assert "is not trusted (self-signed certificate)" in found
    assert f"kafka.ssl_cafile = {str(foreign['ssl_cafile'])!r} does not hold the authority" in found
    found = diagnosis(listeners.address("TLS"), security_protocol="SSL")
    assert "is not trusted (self-signed certificate): set kafka.ssl_cafile" in found
    found = diagnosis(listeners.address("TLS", "127.0.0.1"), **listeners.trusting())
    assert "is for localhost, not for '127.0.0.1': use a name of the certificate in kafka.bootstrap_" in found
    found = diagnosis(listeners.address("EXPIRED"), **listeners.trusting("expired"))
    assert "is not valid now (certificate has expired)" in found
    found = diagnosis(listeners.address("MUTUAL"), **listeners.trusting())
    assert "asks for a client's certificate: set kafka.ssl_certfile and kafka.ssl_keyfile" in found


def test_files_that_cannot_be_used(listeners: Listeners) -> None:
    absent = str(listeners.certificates / "absent.pem")
    found = diagnosis(listeners.address("TLS"), **listeners.trusting("absent"))
    assert found == f"kafka.ssl_cafile: {absent}: No such file or directory"
    certificate = listeners.certificates / "broker.pem"
    found = diagnosis(listeners.address("TLS"), **listeners.trusting(), ssl_certfile=certificate)
    assert found == f"kafka.ssl_certfile: {certificate}: holds no private key: set kafka.ssl_keyfile"


def test_an_address_at_which_no_broker_answers(listeners: Listeners) -> None:
    port = closed_port()
    found = diagnosis(f"127.0.0.1:{port},{NOWHERE}:9092", answers=False)
    assert f"127.0.0.1:{port} refuses connections" in found
    assert f"the name {NOWHERE!r} cannot be resolved" in found
    # If several brokers fail, the diagnosis is about the broker that answers and refuses these settings.
    assert "asks for a password" in diagnosis(f"127.0.0.1:{port},{listeners.address('LOGIN')}")
    # No error to report.
    server = listeners.address("BOTH")
    assert diagnose(settings(server, **listeners.both()), [server], advertised=True) is None


def test_a_broker_that_refers_clients_to_an_address_of_its_own(listeners: Listeners) -> None:
    words = r"refers clients to nowhere\.invalid:9092, by its advertised"
    kafka = settings(listeners.address("ASTRAY"), int(1000 * LIMIT), request_timeout_ms=1000)
    with pytest.raises(BrokerUnreachable, match=words):
        describe_topics(kafka, ["missing"], "the topics")


RUN_ALL = """
import sys
from streaming_pca.cli import main
for command in {commands}:
    sys.argv = ["streaming-pca", *command]
    try:
        main()
    except SystemExit as end:
        print("status", end.code)
"""


def run_all(commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", RUN_ALL.format(commands=commands)]
    return subprocess.run(program, capture_output=True, text=True, timeout=600, check=True)


@pytest.mark.timeout(900)
def test_every_command_says_it_in_one_line(listeners: Listeners, tmp_path: Path, monkeypatch: Patch) -> None:
    login = f"""
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
sasl_username = "{USER}"
"""
    # The commands report a refusal only after this time; the broker of the third file answers.
    soon = ("timeout_ms = 60000", "timeout_ms = 2000")
    wrong = write_config(tmp_path, listeners.address("LOGIN"), "wrong", ("[kafka]", f"[kafka]{login}"), soon)
    monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", "wrong")
    short = ("[kafka]", "[kafka]\nrequest_timeout_ms = 1000")
    astray = write_config(tmp_path, listeners.address("ASTRAY"), "astray", short)
    np.save(tmp_path / "rows.npy", np.zeros((3, 6)))
    refused = f"refuses kafka.sasl_username = {USER!r} with its password"
    referred = f"refers clients to {NOWHERE}:9092, by its advertised.listeners: the name {NOWHERE!r} cannot"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server = f"127.0.0.1:{mute.getsockname()[1]}"
        # kafka-python would wait for ever for this handshake.
        silence = ("[kafka]", '[kafka]\nsecurity_protocol = "SSL"')
        silent = write_config(tmp_path, server, "silent", silence, soon)
        expected = {
            ("config", "check", "--broker", "-c", wrong): refused,
            ("topics", "create", "--cap", "1,1e-6", "-c", wrong): refused,
            ("produce", tmp_path / "rows.npy", "-c", wrong): refused,
            ("worker", "-c", wrong): refused,
            ("status", "-c", astray): referred,
            ("watch", "-c", astray): referred,
            ("status", "-c", silent): f"({server} accepts connections but does not reply",
        }
        done = run_all([[str(word) for word in command] for command in expected])
    assert done.stdout.split("\n").count("status 4") == len(expected), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in without_progress(done.stderr) if line and " INFO " not in line]
    assert len(lines) == len(expected), done.stderr
    for line, words in zip(lines, expected.values(), strict=True):
        assert words in line
