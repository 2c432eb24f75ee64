"""What is wrong with how a stream's topics are kept, each thing with its remedy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.errors import KafkaError

from streaming_pca.service.topic_sizes import MESSAGE_OVERHEAD, record_bytes, release_bytes
from streaming_pca.settings import KafkaSettings, StreamSettings

__all__ = ["REQUIRED", "Problem", "broker_settings", "problems_of", "replica_problems"]

_FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_SAFE = {"unclean.leader.election.enable": "false"}
"""An election of a replica that was not in sync loses the tail of a topic."""

REQUIRED: dict[str, dict[str, str]] = {
    "input": {"cleanup.policy": "delete", "compression.type": "uncompressed"} | _SAFE,
    "ledger": _FOREVER | _SAFE,
    "state": {"cleanup.policy": "compact"} | _SAFE,
    "releases": {},
}
"""What privacy or recovery rests on, by the topic's role."""

_RANGE_BYTES = 128
"""More than an entry of the ledger says of one partition."""
_ENTRY_BYTES = 64 * 1024
_CHUNK_BYTES = 512 * 1024 + MESSAGE_OVERHEAD


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it must be, or, where a worker can go on, should be.

    Attributes
    ----------
    subject : str
        "topic 'NAME'" or "broker ID".
    key : str
        The setting; "" where the topic is missing.
    found, wanted : str
    fix : str
        A command, or what to change.
    fatal : bool
        A worker does not start.
    """

    subject: str
    key: str
    found: str
    wanted: str
    fix: str
    fatal: bool = True

    @property
    def line(self) -> str:
        """All of it."""
        if not self.key:
            return f"{self.subject} is {self.found}: {self.fix}"
        must = "must" if self.fatal else "should"
        return f"{self.subject}: {self.key} is {self.found}, it {must} be {self.wanted}: {self.fix}"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        names = ("subject", "key", "found", "wanted", "fix")
        return {"severity": "error" if self.fatal else "warning"} | {n: getattr(self, n) for n in names}


def problems_of(
    admin: KafkaAdminClient, kafka: KafkaSettings, stream: StreamSettings, described: Mapping[str, Any]
) -> Iterator[Problem]:
    """Check the topics that are there, then the broker.

    Parameters
    ----------
    admin : KafkaAdminClient
    kafka, stream : settings
    described : dict of role to dict
        What the broker says of the topics that exist.
    """
    names = {role: topic["name"] for role, topic in described.items()}
    resources = [ConfigResource("topic", name) for name in names.values()]
    found = admin.describe_configs(resources, config_filter="all").get("topic", {})
    n_brokers = len(admin.describe_cluster()["brokers"])
    for role, name in names.items():
        configs = {key: str(item["value"]) for key, item in found.get(name, {}).items()}
        if configs:
            yield from _of_topic(kafka, stream, role, described[role], configs, n_brokers)
        else:
            # Empty from the embedded broker, but also where an ACL denies DESCRIBE_CONFIGS.
            yield Problem(
                f"the way in which topic {name!r} is kept",
                "",
                "not told by the broker",
                "",
                "allow DescribeConfigs on it (kafka.unchecked_topics = true is for the embedded broker only)",
                fatal=not kafka.unchecked_topics,
            )
    if "ledger" in names:
        yield from _of_ledger_start(admin, names["ledger"])
    yield from _of_broker(admin, kafka)


def _of_topic(
    kafka: KafkaSettings,
    stream: StreamSettings,
    role: str,
    topic: Mapping[str, Any],
    configs: Mapping[str, str],
    n_brokers: int,
) -> Iterator[Problem]:
    name = topic["name"]

    def wrong(key: str, value: str, because: str = "", fatal: bool = True) -> Problem:
        return Problem(
            f"topic {name!r}",
            key,
            configs.get(key, "not set"),
            value + because,
            _alter(kafka, name, key, value),
            fatal,
        )

    for key, wanted in REQUIRED[role].items():
        if configs.get(key) == wanted:
            continue
        if role != "input" or key != "cleanup.policy":
            yield wrong(key, wanted)
        elif "compact" in configs.get(key, ""):
            yield wrong(key, wanted, " (records of a compacted topic vanish from batches)")
    if role == "releases":
        if "compact" in configs.get("cleanup.policy", ""):
            yield wrong("cleanup.policy", "delete", " (a compacted topic keeps the last release only)")
        for key in ("retention.ms", "retention.bytes"):
            if configs.get(key) != "-1":
                yield wrong(key, "-1", " (`ledger verify` misses the releases that are gone)", fatal=False)
    least = _least_message(stream, role, len(topic["partitions"]))
    if int(configs.get("max.message.bytes", least)) < least:
        yield wrong("max.message.bytes", str(least), " at least")
    if role != "input":
        yield from replica_problems(kafka, topic, configs, n_brokers)


def _least_message(stream: StreamSettings, role: str, n_partitions: int) -> int:
    """What ``max.message.bytes`` must be."""
    match role:
        case "ledger":
            return _ENTRY_BYTES + _RANGE_BYTES * n_partitions
        case "state":
            return _CHUNK_BYTES
        case "releases":
            return release_bytes(stream) + MESSAGE_OVERHEAD
        case "input" if record := record_bytes(stream):
            return record + MESSAGE_OVERHEAD
    return 0


def replica_problems(
    kafka: KafkaSettings, topic: Mapping[str, Any], configs: Mapping[str, str], n_brokers: int
) -> Iterator[Problem]:
    """Whether a topic takes what is written to it, and keeps it when a broker is lost."""
    subject, key = f"topic {topic['name']!r}", "min.insync.replicas"
    n_replicas = min(len(p["replica_nodes"]) for p in topic["partitions"])
    in_sync = int(configs.get(key, "1"))
    wanted = str(max(1, n_replicas - 1))
    fix = _alter(kafka, topic["name"], key, wanted)
    if in_sync > n_replicas:
        yield Problem(subject, key, str(in_sync), f"{wanted} (it has {n_replicas} replicas)", fix)
    elif in_sync == n_replicas > 1:
        because = f"{wanted} (one broker that is down would stop the stream)"
        yield Problem(subject, key, str(in_sync), because, fix, fatal=False)
    elif n_replicas >= 3 and in_sync < 2:
        because = "2 (one broker that is lost could take what was committed along)"
        yield Problem(
            subject, key, str(in_sync), because, _alter(kafka, topic["name"], key, "2"), fatal=False
        )
    if n_replicas < min(3, n_brokers):
        fix = "add replicas with `kafka-reassign-partitions`, or create topics with `--replication 3`"
        wanted = f"{min(3, n_brokers)}, on {n_brokers} brokers"
        yield Problem(subject, "the number of replicas", str(n_replicas), wanted, fix, fatal=False)


def _of_ledger_start(admin: KafkaAdminClient, name: str) -> Iterator[Problem]:
    tp = TopicPartition(name, 0)
    start = int(admin.list_partition_offsets({tp: OffsetSpec.EARLIEST})[tp].offset)
    if start > 0:
        yield Problem(
            f"topic {name!r}",
            "its first offset",
            str(start),
            "0 (entries were deleted, so what records have been charged is not known)",
            "delete the topic and bring back its newest copy with `streaming-pca import`",
        )


def _of_broker(admin: KafkaAdminClient, kafka: KafkaSettings) -> Iterator[Problem]:
    broker, settings = broker_settings(admin)
    key, needed = "transaction.max.timeout.ms", kafka.transaction_timeout_ms
    if int(settings.get(key, needed)) < needed:
        yield Problem(
            f"broker {broker}",
            key,
            settings[key],
            f"{needed} at least, which is kafka.transaction_timeout_ms",
            f"set kafka.transaction_timeout_ms = {settings[key]}, or raise the broker's",
        )
    key = "auto.create.topics.enable"
    if settings.get(key, "false") != "false":
        because = "false (a topic that was deleted comes back by itself, kept in the broker's way)"
        fix = "set it in the broker's server.properties"
        yield Problem(f"broker {broker}", key, settings[key], because, fix, fatal=False)


def broker_settings(admin: KafkaAdminClient) -> tuple[str, dict[str, str]]:
    """The id of one broker, and how it is set; no settings where it does not tell."""
    broker = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    try:
        found = admin.describe_configs([ConfigResource("broker", broker)], config_filter="all")
    except KafkaError:
        # Hosted clusters show topics' settings but not brokers'.
        return broker, {}
    items = found.get("broker", {}).get(broker, {}).items()
    return broker, {key: str(item["value"]) for key, item in items if item["value"] is not None}


def _alter(kafka: KafkaSettings, topic: str, key: str, value: str) -> str:
    return (
        f"kafka-configs --bootstrap-server {shlex.quote(kafka.bootstrap_servers)} --alter "
        f"--entity-type topics --entity-name {topic} --add-config {key}={value}"
    )
