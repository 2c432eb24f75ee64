"""Whole streams run over an Apache Kafka that demands TLS, certificates, passwords or tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka import clients
from streaming_pca.service.kafka.clients import admin_client
from streaming_pca.service.kafka.diagnosis import diagnose
from tests.kafka.conftest import Name, Patch
from tests.kafka.security.secured import (
    AUDIENCE,
    MECHANISMS,
    PROTOCOLS,
    Secured,
    identity_provider,
    password_of,
)
from tests.kafka.security.streams import BATCH, as_user, create, described, feed, grant
from tests.kafka.stream import Stream, all_at_once, check_books

ROLES = ("operator", "producer", "worker")


@pytest.fixture
def make_described(
    secured: Secured, unique_name: Name, tmp_path: Path, fork_server: None
) -> Iterator[Callable[[str], Stream]]:
    made: list[Stream] = []

    def make(stem: str) -> Stream:
        made.append(described(secured, unique_name(stem), tmp_path))
        return made[-1]

    yield make
    for stream in made:
        stream.destroy()


def run_whole(secured: Secured, stream: Stream, users: dict[str, KafkaSettings]) -> None:
    """Create, fill and run a stream, each step by a user with that role only."""
    grant(secured, stream, [role for role in ROLES if role != "worker"])
    create(stream, users["operator"])
    grant(secured, stream, ["worker"])
    feed(stream, users["producer"], 2 * BATCH)
    stream.run(as_user(stream, users["worker"]))
    assert len(stream.release_values()) == 2
    check_books(stream)


def test_a_whole_stream_runs_over_each_transport(
    secured: Secured, make_described: Callable[[str], Stream]
) -> None:
    users = {at: {role: secured.settings(at, role) for role in ROLES} for at in PROTOCOLS}
    all_at_once(run_whole, [(secured, make_described(at.lower()), mine) for at, mine in users.items()])


def test_a_whole_stream_runs_with_tokens_of_an_identity_provider(
    secured: Secured, make_described: Callable[[str], Stream]
) -> None:
    certificate = secured.authority.issue_cert("localhost")
    how = {"sasl_oauth_scope": "kafka", "sasl_oauth_cafile": secured.directory / "authority.pem"}
    with identity_provider(secured, certificate=certificate) as provider:
        users = {role: secured.settings("OAUTH", **provider.login(role), **how) for role in ROLES}
        run_whole(secured, make_described("granted"), users)
        assert all(form["scope"] == "kafka" for form in provider.granted)
        # The clients of a process share a token: this process, the worker and its clock.
        assert len(provider.granted) <= 2 + 1 + 2


@pytest.mark.parametrize("listener", PROTOCOLS)
def test_each_listener_demands_what_it_is_named_after(secured: Secured, listener: str) -> None:
    """A client without TLS, or configured for another listener, cannot connect."""
    for other in ("NONE", *PROTOCOLS):
        how = {"bootstrap_servers": secured.address(listener)}
        if other != "NONE":
            how = secured.client(other) | how
        found = diagnose(KafkaSettings(**how), [secured.address(listener)])
        # A certificate that is not requested does no harm.
        fits = other == listener or (listener, other) == ("TLS", "MUTUAL")
        assert (found is None) is fits, (listener, other, found)


def refusal(secured: Secured, listener: str, **changes: object) -> str:
    """Return the only line about a refused connection."""
    kafka = secured.settings(listener, **changes)
    found = diagnose(kafka, [kafka.bootstrap_servers])
    assert found is not None
    assert found.answers
    assert len(found.text.splitlines()) == 1
    return found.text


def test_tokens_that_are_not_the_issuers_are_refused(secured: Secured) -> None:
    issuer = secured.issuer
    right = issuer.token("worker")
    head, _, signature = right.rpartition(".")
    wrong = {
        "unsigned": issuer.token("worker", signed=False),
        "of no key": f"{head}.{signature[::-1]}",
        "for another audience": issuer.token("worker", aud=f"not-{AUDIENCE}"),
        "of another issuer": issuer.token("worker", iss="https://other.test"),
        "no token": "nonsense",
    }
    for name, token in wrong.items():
        file = secured.secret("wrong.jwt", token)
        text = refusal(secured, "OAUTH", sasl_oauth_token_file=file)
        assert f"refuses the token of kafka.sasl_oauth_token_file = {str(file)!r}" in text, name
        assert "invalid_token" in text, name
        assert token not in text, name
    file = secured.secret("late.jwt", issuer.token("worker", -60))
    text = refusal(secured, "OAUTH", sasl_oauth_token_file=file)
    assert "which expired 6" in text
    assert text.endswith("s ago: renew it, or set the clock")


def test_a_certificate_of_another_authority_is_refused(secured: Secured) -> None:
    stranger = secured.certificate("stranger", trustme.CA())
    text = refusal(secured, "MUTUAL", ssl_certfile=stranger, ssl_keyfile=stranger)
    assert f"refuses the client's certificate, kafka.ssl_certfile = {str(stranger)!r}" in text


def test_mechanisms_of_another_kind_name_what_is_asked_for(secured: Secured) -> None:
    for listener, mechanism in MECHANISMS.items():
        client = secured.client(listener)
        plain = {name: None for name in client if name.startswith("sasl_")} | {"security_protocol": "SSL"}
        text = refusal(secured, listener, **plain)
        wanted = "token" if mechanism == "OAUTHBEARER" else "password"
        assert f"asks for a {wanted}: set kafka.security_protocol" in text
        assert f"kafka.sasl_mechanism ({mechanism})" in text


def test_an_identity_provider_that_grants_nothing(secured: Secured) -> None:
    def message(**changes: object) -> str:
        kafka = secured.settings("OAUTH", **(provider.login("worker") | changes))
        with pytest.raises(BrokerUnreachable) as error:
            admin_client(kafka)
        assert "secret-of" not in str(error.value)
        assert len(str(error.value).splitlines()) == 1
        return str(error.value)

    with identity_provider(secured) as provider:
        wrong = secured.secret("wrong", password_of("nobody"))
        text = message(sasl_oauth_client_secret_file=wrong)
        assert "refuses kafka.sasl_oauth_client_id = 'worker' (HTTP 401, invalid_client)" in text
        assert f"kafka.sasl_oauth_client_secret_file = {str(wrong)!r}" in text
        other = provider.url.replace("/token", "/other")
        assert "answers without a token" in message(sasl_oauth_token_url=other)
        # The client does not send the secret to another address.
        assert "HTTP 307" in message(sasl_oauth_token_url=provider.url.replace("/token", "/moved"))
    assert "does not answer (Connection refused)" in message()
    with identity_provider(secured, certificate=trustme.CA().issue_cert("localhost")) as stranger:
        authority = secured.directory / "authority.pem"
        text = message(sasl_oauth_token_url=stranger.url, sasl_oauth_cafile=authority)
        assert "is not trusted" in text
        assert "set kafka.sasl_oauth_cafile" in text


@pytest.mark.parametrize("later", [False, True])
def test_secrets_that_cannot_be_read_are_named(secured: Secured, monkeypatch: Patch, later: bool) -> None:
    """Once the broker has answered, a file may be missing while it is replaced: that ends nothing."""
    address = secured.settings("SCRAM").bootstrap_servers, secured.settings("OAUTH").bootstrap_servers
    monkeypatch.setattr(clients, "_answered", dict.fromkeys(address if later else (), ""))
    error = BrokerUnreachable if later else ConfigurationError
    for listener, setting in (("SCRAM", "sasl_password_file"), ("OAUTH", "sasl_oauth_token_file")):
        for content, reason in ((None, "No such file"), ("", "is empty")):
            file = secured.directory / "absent" if content is None else secured.secret("empty", content)
            with pytest.raises(error, match=rf"kafka\.{setting}: .*{reason}"):
                admin_client(secured.settings(listener, **{setting: file}))


def test_right_credentials_give_no_diagnosis(secured: Secured) -> None:
    for listener in PROTOCOLS:
        kafka = secured.settings(listener)
        with closing(admin_client(kafka)) as admin:
            assert admin.describe_cluster()["brokers"]
        assert diagnose(kafka, [kafka.bootstrap_servers], advertised=True) is None
