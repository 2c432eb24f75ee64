"""Checks of the configuration of a stream's topics, with a remedy for each problem."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.errors import KafkaError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.kafka.clients import MOST_MESSAGE_BYTES
from streaming_pca.service.topics.sizes import MESSAGE_OVERHEAD, projection_bytes, record_bytes, release_bytes

_RANGE_BYTES = 128  # upper bound of a ledger entry's bytes per partition
_ENTRY_BYTES = 64 * 1024
_CHUNK_BYTES = 512 * 1024 + MESSAGE_OVERHEAD


@dataclass(frozen=True)
class Problem:
    """Setting that must be changed or, if a worker can run (not ``fatal``), should be.

    ``subject`` is "topic 'NAME'" or "broker ID"; ``key`` is the setting, "" if the topic is missing.
    """

    subject: str
    key: str
    found: str
    wanted: str
    fix: str
    fatal: bool = True

    @property
    def line(self) -> str:
        if not self.key:
            return f"{self.subject} is {self.found}: {self.fix}"
        must = "must" if self.fatal else "should"
        return f"{self.subject}: {self.key} is {self.found}, it {must} be {self.wanted}: {self.fix}"

    def to_json(self) -> dict[str, Any]:
        names = ("subject", "key", "found", "wanted", "fix")
        return {"severity": "error" if self.fatal else "warning"} | {n: getattr(self, n) for n in names}


@dataclass(frozen=True)
class Finding:
    """Setting of an input topic, where any value is allowed, and its meaning."""

    topic: str
    key: str
    value: str
    meaning: str

    @property
    def line(self) -> str:
        return f"topic {self.topic!r}: {self.key} is {self.value}: {self.meaning}"


@dataclass(frozen=True)
class _Rule:
    """Required or (not ``fatal``) recommended value of a topic's setting, with a reason.

    With ``refused`` a value is wrong only if it contains this text; a missing setting is right.
    """

    key: str
    wanted: str
    reason: str = ""
    refused: str = ""
    fatal: bool = True

    def holds(self, value: str | None) -> bool:
        if self.refused:
            return self.refused not in (value or "")
        return value == self.wanted


# Electing a replica that was not in sync loses the tail of a topic.
_NO_UNCLEAN_ELECTION = _Rule("unclean.leader.election.enable", "false")
# Brokers refuse a record with a timestamp more than message.timestamp.after.max.ms ahead of their clock.
_STAMP, _BY_BROKER = "message.timestamp.type", "LogAppendTime"
_WRITTEN = _Rule(
    _STAMP, _BY_BROKER, " (a broker refuses records of a writer whose clock is an hour ahead)", fatal=False
)
_RECEIVED = _Rule(
    _STAMP, _BY_BROKER, " (else producers' clocks decide how long records are kept)", fatal=False
)
_GONE = " (`ledger verify` misses the releases that are gone)"

_RULES: dict[str, tuple[_Rule, ...]] = {
    "input": (
        _Rule("cleanup.policy", "delete", " (records of a compacted topic vanish from batches)", "compact"),
        _NO_UNCLEAN_ELECTION,
        _RECEIVED,
    ),
    "ledger": (
        _Rule("cleanup.policy", "delete"),
        _Rule("retention.ms", "-1"),
        _Rule("retention.bytes", "-1"),
        _NO_UNCLEAN_ELECTION,
        _WRITTEN,
    ),
    "state": (_Rule("cleanup.policy", "compact"), _NO_UNCLEAN_ELECTION, _WRITTEN),
    "output": (
        _Rule("cleanup.policy", "delete", " (a compacted topic loses projections)", "compact"),
        _NO_UNCLEAN_ELECTION,
        _WRITTEN,
    ),
    "releases": (
        _Rule("cleanup.policy", "delete", " (a compacted topic keeps the last release only)", "compact"),
        _Rule("retention.ms", "-1", _GONE, fatal=False),
        _Rule("retention.bytes", "-1", _GONE, fatal=False),
        _WRITTEN,
    ),
}
"""Settings required by privacy, recovery or `ledger verify`, by the topic's role."""


def required_configs(role: str) -> dict[str, str]:
    return {rule.key: rule.wanted for rule in _RULES[role]}


def find_problems(
    admin: KafkaAdminClient, kafka: KafkaSettings, stream: StreamSettings, described: Mapping[str, Any]
) -> Iterator[Problem]:
    """Check the existing topics, as the broker has described each role's, then the broker."""
    names = {role: topic["name"] for role, topic in described.items()}
    found = topic_configs(admin, *names.values())
    n_brokers = len(admin.describe_cluster()["brokers"])
    for role, name in names.items():
        if found[name]:
            yield from _topic_problems(kafka, stream, role, described[role], found[name], n_brokers)
        else:
            # Empty from the embedded broker, but also if an ACL denies DESCRIBE_CONFIGS.
            what = f"the configuration of topic {name!r}"
            fix = (
                "allow DescribeConfigs on it (kafka.unchecked_topics = true is for the embedded broker only)"
            )
            yield Problem(what, "", "not returned by the broker", "", fix, fatal=not kafka.unchecked_topics)
    if "ledger" in names:
        yield from _ledger_start_problems(admin, names["ledger"])
    yield from _broker_problems(admin, kafka)


def topic_configs(admin: KafkaAdminClient, *topics: str) -> dict[str, dict[str, str]]:
    """Return the settings of topics; those of a topic are empty if the broker does not return them."""
    resources = [ConfigResource("topic", topic) for topic in topics]
    found = admin.describe_configs(resources, config_filter="all").get("topic", {})
    return {t: {key: str(item["value"]) for key, item in found.get(t, {}).items()} for t in topics}


def find_facts(admin: KafkaAdminClient, topic: str) -> list[Finding]:
    """Describe how the broker stores an input topic; empty if it does not return the settings."""
    values = topic_configs(admin, topic)[topic]
    facts = []
    if codec := values.get("compression.type"):
        how = {
            "producer": "batches stay as producers compress them, and can be read",
            "uncompressed": "the broker keeps batches uncompressed",
        }
        meaning = how.get(codec, "the broker compresses batches, which can be read")
        facts.append(Finding(topic, "compression.type", codec, meaning))
    if kept := values.get("retention.ms"):
        days = int(kept) / 86_400_000
        meaning = "records are kept"
        if days >= 0:
            meaning = f"records are deleted after {days:.3g} days, read or not: see stream.lost_records"
        facts.append(Finding(topic, "retention.ms", kept, meaning))
    if size := values.get("max.message.bytes"):
        meaning = "no message is longer, and a record above the payload's bound is null"
        facts.append(Finding(topic, "max.message.bytes", size, meaning))
    return facts


def _topic_problems(
    kafka: KafkaSettings,
    stream: StreamSettings,
    role: str,
    topic: Mapping[str, Any],
    configs: Mapping[str, str],
    n_brokers: int,
) -> Iterator[Problem]:
    name, rules = topic["name"], list(_RULES[role])
    least, size = _least_message_bytes(stream, role, len(topic["partitions"])), "max.message.bytes"
    if int(configs.get(size, least)) < least:
        rules.append(_Rule(size, str(least), " at least"))
    if role == "input" and int(configs.get(size, 0)) > MOST_MESSAGE_BYTES:
        rules.append(_Rule(size, str(MOST_MESSAGE_BYTES), " at most (readers do not accept larger messages)"))
    for rule in rules:
        value = configs.get(rule.key)
        if not rule.holds(value):
            found, wanted = "not set" if value is None else value, rule.wanted + rule.reason
            fix = _alter_command(kafka, name, rule.key, rule.wanted)
            yield Problem(f"topic {name!r}", rule.key, found, wanted, fix, rule.fatal)
    if role != "input":
        yield from replica_problems(kafka, topic, configs, n_brokers)


def _least_message_bytes(stream: StreamSettings, role: str, n_partitions: int) -> int:
    match role:
        case "ledger":
            return _ENTRY_BYTES + _RANGE_BYTES * n_partitions
        case "state":
            return _CHUNK_BYTES
        case "releases":
            return release_bytes(stream) + MESSAGE_OVERHEAD
        case "input" if record := record_bytes(stream):
            return record + MESSAGE_OVERHEAD
        case "output":
            return projection_bytes(stream) + MESSAGE_OVERHEAD
    return 0


def replica_problems(
    kafka: KafkaSettings, topic: Mapping[str, Any], configs: Mapping[str, str], n_brokers: int
) -> Iterator[Problem]:
    """Yield replica settings that can lose committed data or block writes."""
    subject, key = f"topic {topic['name']!r}", "min.insync.replicas"
    n_replicas = min(len(p["replica_nodes"]) for p in topic["partitions"])
    in_sync = int(configs.get(key, "1"))

    def wrong(wanted: int, reason: str, fatal: bool = False) -> Problem:
        fix = _alter_command(kafka, topic["name"], key, str(wanted))
        return Problem(subject, key, str(in_sync), f"{wanted} ({reason})", fix, fatal)

    if in_sync > n_replicas:
        yield wrong(max(1, n_replicas - 1), f"it has {n_replicas} replicas", fatal=True)
    elif in_sync == n_replicas > 1:
        yield wrong(n_replicas - 1, "one broker that is down would stop the stream")
    elif n_replicas >= 3 and in_sync < 2:
        yield wrong(2, "one broker that is lost could take what was committed along")
    if n_replicas < min(3, n_brokers):
        fix = "add replicas with `kafka-reassign-partitions`, or create topics with `--replication 3`"
        wanted = f"{min(3, n_brokers)}, on {n_brokers} brokers"
        yield Problem(subject, "the number of replicas", str(n_replicas), wanted, fix, fatal=False)


def _ledger_start_problems(admin: KafkaAdminClient, name: str) -> Iterator[Problem]:
    tp = TopicPartition(name, 0)
    start = int(admin.list_partition_offsets({tp: OffsetSpec.EARLIEST})[tp].offset)
    if start > 0:
        wanted = "0 (entries were deleted, so it is not known which records were charged)"
        fix = "delete the topic and restore its newest backup with `streaming-pca import`"
        yield Problem(f"topic {name!r}", "its first offset", str(start), wanted, fix)


def _broker_problems(admin: KafkaAdminClient, kafka: KafkaSettings) -> Iterator[Problem]:
    broker, settings = broker_settings(admin)
    key, needed = "transaction.max.timeout.ms", kafka.transaction_timeout_ms
    if int(settings.get(key, needed)) < needed:
        wanted = f"{needed} at least, which is kafka.transaction_timeout_ms"
        fix = f"set kafka.transaction_timeout_ms = {settings[key]}, or raise the broker's"
        yield Problem(f"broker {broker}", key, settings[key], wanted, fix)
    key = "auto.create.topics.enable"
    if settings.get(key, "false") != "false":
        because = "false (else a deleted topic is created again by itself, with the broker's defaults)"
        fix = "set it in the broker's server.properties"
        yield Problem(f"broker {broker}", key, settings[key], because, fix, fatal=False)


def broker_settings(admin: KafkaAdminClient) -> tuple[str, dict[str, str]]:
    """Return the id and settings of one broker; the settings are empty if it hides them."""
    broker = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    try:
        found = admin.describe_configs([ConfigResource("broker", broker)], config_filter="all")
    except KafkaError:
        # Hosted clusters return the settings of topics but not of brokers.
        return broker, {}
    items = found.get("broker", {}).get(broker, {}).items()
    return broker, {key: str(item["value"]) for key, item in items if item["value"] is not None}


def _alter_command(kafka: KafkaSettings, topic: str, key: str, value: str) -> str:
    return (
        f"kafka-configs --bootstrap-server {shlex.quote(kafka.bootstrap_servers)} --alter "
        f"--entity-type topics --entity-name {topic} --add-config {key}={value}"
    )
