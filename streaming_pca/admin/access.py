"""Permissions that each role needs on a broker with access control lists.

This is the only table of roles; `deploy/kafka/acls.sh` applies the output of `streaming-pca topics acls`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Literal, get_args

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import ClusterAuthorizationFailedError, SecurityDisabledError

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.service.errors import NotPermitted, TopicError
from streaming_pca.service.kafka.clients import ask_broker
from streaming_pca.service.topics.find import topic_id_of
from streaming_pca.service.topics.output import check_output_name, group_of_projections

Role = Literal["producer", "reader", "dashboard", "auditor", "projector", "worker", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

_CLUSTER = "kafka-cluster"
_WRITERS = "streaming-pca."
"""Prefix of all transactional ids of this package; the rest contains ids of topics."""


@dataclass(frozen=True, order=True)
class Permission:
    """Operations, by Kafka's names, that a role may perform on one resource.

    ``kind`` is "topic", "group", "transactional-id" or "cluster"; if ``prefixed``, ``name`` is a prefix.
    """

    kind: str
    operations: tuple[str, ...]
    prefixed: bool
    name: str


def topic_ids(role: str, streams: Sequence[Settings]) -> dict[str, str]:
    """Return the ids of the input topics that a role's permissions contain."""
    if role != "worker":
        return {}
    return {
        name: topic_id_of(kafka, name) for name, kafka in {s.stream.input: s.kafka for s in streams}.items()
    }


def permissions(
    role: str,
    streams: Sequence[Settings],
    output: str | None = None,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> list[Permission]:
    """Return the permissions of a role; ``output`` is a projector's, ``ids`` are from :func:`topic_ids`."""
    if role not in ROLES:
        raise ConfigurationError(f"--role must be one of {', '.join(ROLES)}, not {role!r}")
    if (role == "projector") != (output is not None):
        raise ConfigurationError("--output TOPIC is needed with --role projector, and only there")
    if output is not None:
        # A broker interprets the name "*" as all topics, and a projector may write its output.
        check_output_name(output, [settings.stream for settings in streams])
    # Streams share inputs and groups.
    return sorted({each for settings in streams for each in _of_stream(role, settings, output or "", ids)})


def _of_stream(role: str, settings: Settings, output: str, ids: Mapping[str, str]) -> Iterator[Permission]:
    stream, group = settings.stream, settings.worker.group
    source, ledger = stream.input, stream.ledger_topic
    state, releases = stream.state_topic, stream.releases_topic
    # Read and Write imply Describe.
    match role:
        case "producer":
            yield _may("topic", source, "Write")
        case "reader":
            yield _may("topic", releases, "Read")
        case "dashboard" | "auditor":
            yield _may("topic", source, "Describe")
            for name in (ledger, releases):
                yield _may("topic", name, "Read")
            for name in (stream.name, group):
                yield _may("group", name, "Describe")
        case "projector":
            yield _may("topic", source, "DescribeConfigs", "Read")
            yield _may("topic", releases, "Read")
            # It reads its own output once, to find out whether it starts from the beginning.
            yield _may("topic", output, "Create", "DescribeConfigs", "Read", "Write")
            projecting = group_of_projections(stream.name, output)
            yield _may("group", projecting, "Read")
            yield _may("transactional-id", f"{_WRITERS}{projecting}.", "Write", prefixed=True)
            yield _may("cluster", _CLUSTER, "DescribeConfigs")
        case "worker":
            yield _may("topic", source, "DescribeConfigs", "Read")
            for name in (ledger, state, releases):
                yield _may("topic", name, "DescribeConfigs", "Read", "Write")
            for name in (stream.name, group):
                yield _may("group", name, "Read")
            # A literal name, because with a prefix a worker could fence the leaders of all other streams.
            yield _may("transactional-id", f"{_WRITERS}{ids[source]}.{stream.name}", "Write")
            yield _may("cluster", _CLUSTER, "DescribeConfigs")
        case "operator":
            # A pause leaves a trace in a group's offsets, and Kafka lets only readers commit these.
            yield _may("topic", source, "Create", "DescribeConfigs", "Read")
            for name in (ledger, state, releases):
                yield _may("topic", name, "Create", "DescribeConfigs", "Read", "Write")
            for name in (stream.name, group):
                yield _may("group", name, "Read")
            # A charge under a stream's name is refused, so other streams' topics must be visible.
            yield _may("topic", "*", "Describe")
            # An import looks for traces of newer batches in the offsets of all groups.
            yield _may("group", "*", "Describe")
            # For the groups with traces of charges (`ledger charge`).
            yield _may("group", f"{ledger}.", "Read", prefixed=True)
            yield _may("transactional-id", _WRITERS, "Write", prefixed=True)
            yield _may("cluster", _CLUSTER, "DescribeConfigs")


def _may(kind: str, name: str, *operations: str, prefixed: bool = False) -> Permission:
    return Permission(kind, operations, prefixed, name)


def choose_principal(principal: str | None, kafka: KafkaSettings) -> str:
    """Return the principal of an option, by default the settings' own user."""
    if principal is None and kafka.sasl_username is not None and kafka.sasl_mechanism != "OAUTHBEARER":
        principal = f"User:{kafka.sasl_username}"
    if principal is None:
        raise ConfigurationError("name the user by --principal User:NAME: the settings have no sasl_username")
    kind, colon, name = principal.partition(":")
    if not (kind == "User" and colon and name and name.isprintable()):
        raise ConfigurationError(f"--principal must be User:NAME, not {principal!r}")
    # kafka-acls.sh strips spaces, so "User:* " would also be everybody.
    if name.strip() == "*":
        raise ConfigurationError("--principal User:* would permit everyone: name the role's own user")
    return principal


def as_options(wanted: Iterable[Permission], principal: str) -> list[str]:
    """Return permissions as options of Kafka's ``kafka-acls.sh --add``, one line per call."""
    lines = []
    for (kind, operations, prefixed), alike in groupby(wanted, lambda p: (p.kind, p.operations, p.prefixed)):
        words = ["--allow-principal", principal]
        words += [word for operation in operations for word in ("--operation", operation)]
        words += ["--resource-pattern-type", "prefixed"] if prefixed else []
        words += ["--cluster"] if kind == "cluster" else [w for p in alike for w in (f"--{kind}", p.name)]
        lines.append(shlex.join(words))
    return lines


def apply_permissions(kafka: KafkaSettings, wanted: Sequence[Permission], principal: str) -> None:
    """Grant permissions to a principal; idempotent."""
    acls = []
    for each in wanted:
        kind = ACLResourcePatternType.PREFIXED if each.prefixed else ACLResourcePatternType.LITERAL
        resource = ResourceType[each.kind.replace("-", "_").upper()]
        of = (ACLPermissionType.ALLOW, ResourcePattern(resource, each.name, kind))
        for name in each.operations:
            operation = "DESCRIBE_CONFIGS" if name == "DescribeConfigs" else name.upper()
            acls.append(ACL(principal, "*", ACLOperation[operation], *of))
    with ask_broker(kafka, "the broker did not accept the permissions", "Alter") as admin:
        failed = admin.create_acls(acls)["failed"]
    if ClusterAuthorizationFailedError in failed:
        raise NotPermitted("Alter", "the cluster")
    if failed:
        reason = failed[0].__name__
        if failed[0] is SecurityDisabledError:
            reason = "it has no authorizer: set authorizer.class.name in its server.properties"
        raise TopicError(f"the broker did not accept the permissions: {reason}")
