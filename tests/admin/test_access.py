"""Permissions by role, without a broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.admin.access import ROLES, Permission, as_options, choose_principal, permissions
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from tests.config.refusals import refusal

ROOT = Path(__file__).resolve().parents[2]
IDS = {"traffic": "Jj9Yx1Q"}


def settings(name: str = "flows") -> Settings:
    return Settings(stream=StreamSettings(name=name, input="traffic", dim=4, rank=2, epsilon=1.0, delta=1e-6))


def every(role: str) -> list[Permission]:
    return permissions(role, [settings()], "flows.out" if role == "projector" else None, IDS)


def found(role: str, *streams: Settings) -> dict[str, set[str]]:
    """Return operations by topic."""
    output = "flows.out" if role == "projector" else None
    wanted = permissions(role, streams or [settings()], output, IDS)
    return {p.name: set(p.operations) for p in wanted if p.kind == "topic"}


def test_producers_write_the_input_and_nothing_else() -> None:
    found = [(p.kind, p.operations, p.name) for p in permissions("producer", [settings()])]
    assert found == [("topic", ("Write",), "traffic")]


def test_records_and_states_are_read_by_those_who_must() -> None:
    assert {r for r in ROLES if "Read" in found(r).get("traffic", ())} == {"projector", "worker", "operator"}
    assert {r for r in ROLES if "Read" in found(r).get("flows.state", ())} == {"worker", "operator"}
    for role in ("reader", "dashboard", "auditor"):
        assert not any("Write" in operations for operations in found(role).values())
    assert not any("Delete" in operations for role in ROLES for operations in found(role).values())


def test_streams_that_share_an_input_share_its_permissions() -> None:
    both = found("worker", settings("flows"), settings("others"))
    own = [f"{stream}.{topic}" for stream in ("flows", "others") for topic in ("releases", "state")]
    assert sorted(both) == [*own, "traffic", "traffic.ledger"]


def test_lines_are_options_of_kafkas_program() -> None:
    lines = as_options(permissions("operator", [settings()]), "User:O=Any Company")
    assert all(line.startswith("--allow-principal 'User:O=Any Company' --operation ") for line in lines)
    assert any(line.endswith("--operation DescribeConfigs --cluster") for line in lines)
    prefixed = next(line for line in lines if "--transactional-id" in line)
    assert "--resource-pattern-type prefixed --transactional-id streaming-pca." in prefixed


def test_a_worker_is_permitted_the_transactions_of_its_own_streams_and_no_others() -> None:
    wanted = permissions("worker", [settings(), settings("others")], None, IDS)
    of_transactions = [each for each in wanted if each.kind == "transactional-id"]
    assert [(each.name, each.prefixed) for each in of_transactions] == [
        ("streaming-pca.Jj9Yx1Q.flows", False),
        ("streaming-pca.Jj9Yx1Q.others", False),
    ]
    # Wider permissions belong to an operator, or lie within a projector's own output.
    wide = {(r, p.kind, p.name) for r in ROLES for p in every(r) if p.prefixed}
    assert wide == {
        ("operator", "transactional-id", "streaming-pca."),
        ("operator", "group", "traffic.ledger."),
        ("projector", "transactional-id", "streaming-pca.flows.project.flows.out."),
    }


def user(name: str) -> KafkaSettings:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": name, "sasl_password": "x"}
    return KafkaSettings(security_protocol="SASL_SSL", **login)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("king", [settings()]), "--role must be one of producer, reader"),
        (("projector", [settings()]), "--output TOPIC is needed with --role projector"),
        (("worker", [settings()], "flows.out"), "--output TOPIC is needed with --role projector"),
        ((None, KafkaSettings()), "name the user by --principal"),
        (("pca", KafkaSettings()), "must be User:NAME, not 'pca'"),
        # No spelling of everybody is permitted, nor the user of the settings.
        *(((all_, KafkaSettings()), r"would permit everyone") for all_ in ("User:*", "User:* ", "User: *")),
        ((None, user("*")), "would permit everyone"),
    ],
)
def test_mistakes_are_named(given: tuple[Any, ...], words: str) -> None:
    use = choose_principal if isinstance(given[1], KafkaSettings) else permissions
    assert words in refusal(ConfigurationError, use, *given)
    assert choose_principal(None, user("pca")) == "User:pca"


def test_the_page_has_the_same_roles() -> None:
    page = (ROOT / "docs" / "how-to" / "secure.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*)$", page, re.MULTILINE))
    assert list(rows) == list(ROLES)
    topics = ("traffic", "traffic.ledger", "flows.state", "flows.releases")
    words = {"Read": "read", "Write": "write", "Create": "create"}
    for role, row in rows.items():
        cells = row.strip("|").split("|")[1:5]
        for topic, cell in zip(topics, cells, strict=True):
            message = {word for word in words.values() if word in cell}
            assert message == {words[o] for o in found(role).get(topic, ()) if o in words}, (role, topic)


@pytest.mark.parametrize(
    "output",
    ["*", "", "two words", "line\nbreak", "traffic", "flows.state", "other.ledger", "traffic.ledger"],
)
def test_a_projector_is_not_permitted_to_write_all_topics_or_those_of_a_stream(output: str) -> None:
    with pytest.raises(ConfigurationError, match="--output"):
        permissions("projector", [settings()], output)
