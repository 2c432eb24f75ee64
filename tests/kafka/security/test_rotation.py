"""A leading worker keeps the lead while passwords, tokens and certificates change.

The broker asks for credentials again every six seconds, or hangs up, so that old credentials do not last.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from kafka.admin import ConfigResource, NewTopic

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import admin_client, transactional_producer
from streaming_pca.service.kafka.transaction import Transaction, discard
from tests.kafka.conftest import Name
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.security.relay import Relay
from tests.kafka.security.secured import (
    Secured,
    identity_provider,
    password_of,
    pem_of,
    start_secured,
    write_whole,
)
from tests.kafka.security.streams import BATCH, as_user, create, described, feed
from tests.kafka.stream import Child, Stream, all_at_once, check_books, have_released

SESSION_MS = 6000
"""Time after which the broker closes a connection that has not shown its credentials again."""
TOKEN_SECONDS = 15.0
GRANT_SECONDS = 60.0
"""Lifetime of a granted token. The last fifth is left to renew it: load may stop the provider for seconds."""
_PAUSE_SECONDS = 0.5
_PATIENT = {"request_timeout_ms": 60_000, "session_timeout_ms": 30_000}
"""Limits of a worker that must keep the lead, although a busy broker answers late."""
REFUSED_SECONDS = 1.5
"""Time between the change of a password at the broker and in its file, in either order."""
CUT = "MUTUAL_CUT"
"""Listener that keeps its certificates, and whose connections are cut."""
LISTENERS = ("SCRAM_BROKER_FIRST", "SCRAM_FILE_FIRST", "OAUTH_FILE", "OAUTH_URL", "MUTUAL")
USERS = dict(zip(LISTENERS, ("auditor", "reader", "worker", "operator", "producer"), strict=True))
"""Arbitrary users: all may do everything here, and each has its own password."""


@dataclass
class Rotating:
    """Broker, and relays in front of its listeners with certificates."""

    secured: Secured
    relay: Relay
    cut: Relay
    authority: trustme.CA
    """Authority of the new certificates."""


@pytest.fixture(scope="module")
def rotating(
    make_cluster: Callable[..., FaultyCluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rotating]:
    directory, relay, cut = tmp_path_factory.mktemp("secured"), Relay(), Relay()
    more = {"super.users": ";".join(f"User:{user}" for user in ("ANONYMOUS", *USERS.values()))}
    for name in LISTENERS[:-1]:
        mechanism = "scram-sha-512" if name.startswith("SCRAM") else "oauthbearer"
        more[f"listener.name.{name.lower()}.{mechanism}.connections.max.reauth.ms"] = str(SESSION_MS)
    advertised = {"MUTUAL": relay.port, CUT: cut.port}
    secured = start_secured(make_cluster, directory, (*LISTENERS, CUT), more, advertised)
    relay.target, cut.target = secured.ports["MUTUAL"], secured.ports[CUT]
    yield Rotating(secured, relay, cut, trustme.CA())
    relay.close()
    cut.close()


@pytest.fixture
def make_leading(
    rotating: Rotating, unique_name: Name, tmp_path: Path, fork_server: None
) -> Iterator[Callable[..., Leading]]:
    with ExitStack() as stack:

        def make(listener: str) -> Leading:
            stream = described(rotating.secured, unique_name(listener.lower()[:12]), tmp_path, batches=120)
            stack.callback(stream.destroy)
            create(stream, rotating.secured.open_settings)
            return Leading(rotating.secured, stream)

        yield make


class Leading:
    """Stream with a worker that leads it."""

    def __init__(self, secured: Secured, stream: Stream) -> None:
        self.secured, self.stream = secured, stream
        self.child: Child | None = None
        self.batches = 0

    def start(self, kafka: KafkaSettings) -> None:
        settings = as_user(self.stream, kafka)
        patient = settings.kafka.model_copy(update=_PATIENT)
        self.child = self.stream.start(settings.model_copy(update={"kafka": patient}))
        self.go_on()

    def go_on(self) -> None:
        """Feed a batch, and wait for its release."""
        assert self.child is not None
        feed(self.stream, self.secured.open_settings, BATCH, seed=self.batches)
        self.batches += 1
        self.child.until(f"release {self.batches}", lambda: have_released([self.stream], self.batches))
        assert self.child.status() is None, self.child.log

    def go_on_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.go_on()
            time.sleep(_PAUSE_SECONDS)

    def has_led_throughout(self) -> None:
        """Check that one process led in one session, so that its writer was never replaced."""
        assert self.child is not None
        assert self.child.log.count(" leading stream ") == 1, self.child.log
        self.child.has_led_on()
        check_books(self.stream)


def change_password(rotating: Rotating, leading: Leading, listener: str, broker_first: bool) -> None:
    secured, user = rotating.secured, USERS[listener]
    leading.start(secured.settings(listener, user))
    changes: list[Callable[[], Any]] = [
        lambda: secured.set_password(user, "another"),
        lambda: secured.secret(user, "another"),
    ]
    for change in changes if broker_first else changes[::-1]:
        change()
        time.sleep(REFUSED_SECONDS)
    # Longer than connections last.
    leading.go_on_for(1.5 * SESSION_MS / 1000)
    assert password_of(user) != "another"
    leading.has_led_throughout()


def renew_token_file(rotating: Rotating, leading: Leading, listener: str) -> None:
    secured, user = rotating.secured, USERS[listener]
    done = threading.Event()

    def renew() -> Path:
        return secured.secret(f"{user}.jwt", secured.issuer.token(user, TOKEN_SECONDS))

    def keep_fresh() -> None:
        while not done.wait(TOKEN_SECONDS / 5):
            renew()

    file, keeper = renew(), threading.Thread(target=keep_fresh)
    keeper.start()
    try:
        leading.start(secured.settings(listener, user, sasl_oauth_token_file=file))
        leading.go_on_for(1.3 * TOKEN_SECONDS)
        leading.has_led_throughout()
    finally:
        done.set()
        keeper.join()


def renew_granted_token(rotating: Rotating, leading: Leading, listener: str) -> None:
    secured, user = rotating.secured, USERS[listener]
    with identity_provider(secured, GRANT_SECONDS) as provider:
        leading.start(secured.settings(listener, **provider.login(user)))
        leading.go_on_for(1.3 * GRANT_SECONDS)
        # Worker and clock had one token each at the start.
        assert len(provider.granted) >= 4
        leading.has_led_throughout()


def change_certificates(rotating: Rotating, leading: Leading, listener: str) -> None:
    secured, relay, user = rotating.secured, rotating.relay, USERS[listener]
    authorities = [ca.cert_pem.bytes().decode() for ca in (secured.authority, rotating.authority)]
    trusted = write_whole(secured.directory / "trusted.pem", authorities[0])
    kafka = secured.settings(listener, user, ssl_cafile=trusted)
    leading.start(kafka)

    def change(what: Callable[[], object]) -> None:
        what()
        accepted = relay.accepted
        relay.hang_up()
        leading.go_on()
        assert relay.accepted > accepted
        leading.go_on()

    # First everything trusts both authorities, then the certificates change, then the old authority is
    # removed.
    change(lambda: write_whole(trusted, "".join(authorities)))
    change(lambda: replace_on_broker(rotating, listener, "truststore", "clients", "".join(authorities)))
    change(lambda: secured.certificate(user, rotating.authority))
    renewed = pem_of(secured.broker_certificate(rotating.authority))
    change(lambda: replace_on_broker(rotating, listener, "keystore", "broker", renewed))
    change(lambda: write_whole(trusted, authorities[1]))
    change(lambda: replace_on_broker(rotating, listener, "truststore", "clients", authorities[1]))
    leading.has_led_throughout()


def replace_on_broker(rotating: Rotating, listener: str, store: str, name: str, content: str) -> None:
    """Make the broker read a store of a listener from another file."""
    secured = rotating.secured
    file = write_whole(secured.directory / f"{name}-{time.monotonic_ns()}.pem", content)
    key = f"listener.name.{listener.lower()}.ssl.{store}.location"
    change = ConfigResource("broker", "1", {key: str(file)})
    with closing(admin_client(secured.open_settings)) as admin:
        answer = admin.alter_configs([change], raise_on_unknown=False)
    assert answer["broker"]["1"] == "OK", answer


def test_a_leader_keeps_the_lead_when_its_credentials_change(
    rotating: Rotating, make_leading: Callable[[str], Leading]
) -> None:
    def rotate(listener: str, how: Callable[..., None], *more: Any) -> None:
        how(rotating, make_leading(listener), listener, *more)

    all_at_once(
        rotate,
        [
            ("SCRAM_BROKER_FIRST", change_password, True),
            ("SCRAM_FILE_FIRST", change_password, False),
            ("OAUTH_FILE", renew_token_file),
            ("OAUTH_URL", renew_granted_token),
            ("MUTUAL", change_certificates),
        ],
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.describe_topics([]),
        lambda admin: admin.describe_cluster(),
        lambda admin: admin.describe_configs([ConfigResource("broker", "1")]),
    ],
    ids=["topics", "cluster", "configs"],
)
def test_a_question_outlives_lost_connections(rotating: Rotating, ask: Callable[[Any], object]) -> None:
    with closing(admin_client(rotating.secured.settings(CUT))) as admin:
        rotating.cut.hang_up([True, True])
        ask(admin)
        assert rotating.cut.drops == []


@pytest.mark.soak
def test_a_leader_outlives_connections_that_end_every_second(
    rotating: Rotating, make_leading: Callable[[str], Leading]
) -> None:
    leading, over, pauses = make_leading(CUT), threading.Event(), random.Random(5)
    ended = 0

    def hang_up() -> None:
        nonlocal ended
        while not over.wait(pauses.uniform(0.02, 2)):
            rotating.cut.hang_up()
            ended += 1

    leading.start(rotating.secured.settings(CUT))
    leading.go_on()
    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        leading.go_on_for(60)
    finally:
        over.set()
        thread.join()
    assert ended >= 40
    leading.go_on()
    assert leading.child is not None
    # A connection that is lost while a transaction ends is a lost session.
    assert leading.child.log.count(" leading stream ") <= 1 + ended / 10, leading.child.log
    assert leading.child.status() is None, leading.child.log
    check_books(leading.stream)


def test_a_transaction_outlives_lost_connections(rotating: Rotating, unique_name: Name) -> None:
    secured, topic = rotating.secured, unique_name("cut")
    with closing(admin_client(secured.open_settings)) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    settings = secured.settings(CUT)
    producer = transactional_producer(settings, topic)
    try:
        producer.init_transactions()
        # The coordinator's connection is the first or the second, so one of the cases drops it.
        for number, drops in enumerate(([], [True], [False, True], [True, True])):
            rotating.cut.hang_up(drops)
            transaction = Transaction(producer, settings)
            sent = transaction.send(topic, b"value", None)
            transaction.commit()
            assert rotating.cut.drops == []
            # A commit marker takes an offset too.
            assert sent.value.offset == 2 * number
    finally:
        discard(producer)
