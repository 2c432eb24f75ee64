"""The four topics of a stream: creating them, finding them, checking how they are kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from streaming_pca.service.clients import BrokerUnreachable, admin_client
from streaming_pca.settings import KafkaSettings, StreamSettings

__all__ = ["TopicError", "Topics", "create_topics", "find_topics", "input_topic_id"]

log = logging.getLogger(__name__)

_MESSAGE_BYTES = str(16 * 2**20)

LEDGER_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": _MESSAGE_BYTES,
}
STATE_CONFIG = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": _MESSAGE_BYTES,
    # A commit with a covariance can be 16 MB: let compaction see closed segments soon.
    "segment.bytes": str(64 * 2**20),
    "min.cleanable.dirty.ratio": "0.3",
}
RELEASES_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": _MESSAGE_BYTES,
}
INPUT_CONFIG = {"cleanup.policy": "delete", "compression.type": "uncompressed"}

# What a worker insists on: a subset of the above that privacy or recovery rests on.
_REQUIRED = {
    "ledger": {k: LEDGER_CONFIG[k] for k in list(LEDGER_CONFIG)[:4]},
    "state": {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
    "input": INPUT_CONFIG,
}


class TopicError(Exception):
    """A topic is missing or kept in a way that would break the promise; one line."""


@dataclass(frozen=True)
class Topics:
    """What the broker says of a stream's topics."""

    topic_id: str
    partitions: tuple[int, ...]


def create_topics(
    kafka: KafkaSettings, stream: StreamSettings, partitions: int, replication: int
) -> list[str]:
    """Create those of the four topics that are missing; returns their names."""
    wanted = [
        NewTopic(stream.input, partitions, replication, topic_configs=INPUT_CONFIG),
        NewTopic(stream.ledger_topic, 1, replication, topic_configs=LEDGER_CONFIG),
        NewTopic(stream.state_topic, 1, replication, topic_configs=STATE_CONFIG),
        NewTopic(stream.releases_topic, 1, replication, topic_configs=RELEASES_CONFIG),
    ]
    created = []
    admin = admin_client(kafka)
    try:
        for topic in wanted:
            try:
                admin.create_topics([topic])
            except TopicAlreadyExistsError:
                continue
            except KafkaError as error:
                raise TopicError(f"topic {topic.name} cannot be created: {_one_line(error)}") from None
            created.append(topic.name)
        admin.wait_for_topics([t.name for t in wanted], timeout_ms=kafka.request_timeout_ms)
    except KafkaError as error:
        raise TopicError(f"topics were created but do not answer yet: {_one_line(error)}") from None
    finally:
        admin.close()
    return created


def find_topics(kafka: KafkaSettings, stream: StreamSettings) -> Topics:
    """Find the topics and check their configuration.

    Raises
    ------
    TopicError
        Names the topic, the setting and the value that it must have.
    BrokerUnreachable
        If the broker fails in the midst.
    """
    admin = admin_client(kafka)
    try:
        return _find(admin, stream, kafka.unchecked_topics)
    except KafkaError as error:
        raise BrokerUnreachable(f"the broker would not describe the topics: {_one_line(error)}") from None
    finally:
        admin.close()


def input_topic_id(kafka: KafkaSettings, stream: StreamSettings) -> str | None:
    """The id that the input topic has now; None if there is no such topic."""
    admin = admin_client(kafka)
    try:
        (topic,) = admin.describe_topics([stream.input])
    except KafkaError as error:
        raise BrokerUnreachable(f"the broker would not describe {stream.input}: {_one_line(error)}") from None
    finally:
        admin.close()
    return None if topic["error_code"] else str(topic["topic_id"])


def _find(admin: KafkaAdminClient, stream: StreamSettings, unchecked: bool) -> Topics:
    names = {
        "input": stream.input,
        "ledger": stream.ledger_topic,
        "state": stream.state_topic,
        "releases": stream.releases_topic,
    }
    described = {t["name"]: t for t in admin.describe_topics(list(names.values()))}
    for role, name in names.items():
        topic = described.get(name)
        if topic is None or topic["error_code"] or not topic["partitions"]:
            raise TopicError(
                f"topic {name!r} ({role}) is missing: create it with "
                "`streaming-pca topics create --config FILE --cap EPSILON,DELTA`"
            )
        if role != "input" and len(topic["partitions"]) != 1:
            raise TopicError(
                f"topic {name!r} ({role}) has {len(topic['partitions'])} partitions: it must have 1"
            )
    _check_configuration(admin, {role: names[role] for role in _REQUIRED}, unchecked)
    topic = described[stream.input]
    partitions = tuple(sorted(p["partition_index"] for p in topic["partitions"]))
    return Topics(topic_id=str(topic["topic_id"]), partitions=partitions)


def _check_configuration(admin: KafkaAdminClient, names: dict[str, str], unchecked: bool) -> None:
    for role, name in names.items():
        found: dict[str, Any] = (
            admin.describe_configs([ConfigResource("topic", name)], config_filter="all")
            .get("topic", {})
            .get(name, {})
        )
        if not found:
            # Empty from the embedded broker, but also where an ACL denies DESCRIBE_CONFIGS.
            if not unchecked:
                raise TopicError(
                    f"the broker does not tell how topic {name!r} is kept: allow DescribeConfigs on it "
                    "(kafka.unchecked_topics = true is for the embedded broker only)"
                )
            log.warning("the broker does not tell how topic %s is kept: not checked", name)
            continue
        for key, wanted in _REQUIRED[role].items():
            value = found.get(key, {}).get("value")
            if role == "input" and key == "cleanup.policy":
                if "compact" not in str(value):
                    continue
                wanted = "delete (records of a compacted topic vanish from batches)"
            if str(value) != wanted:
                raise TopicError(f"topic {name!r}: {key} is {value}, it must be {wanted}")


def _one_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
