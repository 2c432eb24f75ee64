"""Creation, lookup and checks of the four topics of a stream."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kafka.admin import NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.errors import CREATE, RESTORE, NotPermitted, TopicError, in_one_line
from streaming_pca.service.kafka.clients import MAX_MESSAGE_BYTES, admin_client, ask_broker
from streaming_pca.service.topics.checks import (
    Finding,
    Problem,
    broker_settings,
    find_facts,
    find_problems,
    required_configs,
)
from streaming_pca.service.topics.sizes import (
    MESSAGE_OVERHEAD,
    commit_bytes,
    record_bytes,
    release_bytes,
    state_topic_config,
    whole_mib,
)

log = logging.getLogger(__name__)

# A ledger entry names every partition of the input: this allows some 30,000 partitions.
_LEDGER_MESSAGE = 4 * 2**20
_ROLES = {"input": "input", "ledger": "ledger_topic", "state": "state_topic", "releases": "releases_topic"}


@dataclass(frozen=True)
class Topics:
    """Identity of a stream's input topic, as described by the broker."""

    topic_id: str
    partitions: tuple[int, ...]


def new_topic(role: str, name: str, partitions: int, replication: int, more: Mapping[str, str]) -> NewTopic:
    configs = {**required_configs(role), **more}
    if replication >= 3:
        # Producers write with acks=all, which waits only for the in-sync replicas, perhaps only the leader.
        configs["min.insync.replicas"] = "2"
    return NewTopic(name, partitions, replication, topic_configs=configs)


def input_topic(stream: StreamSettings, partitions: int, replication: int) -> NewTopic:
    # With this setting a broker inflates compressed batches, and refuses those above the largest message.
    configs = {"compression.type": "uncompressed"}
    record = record_bytes(stream) + MESSAGE_OVERHEAD
    if record > 2**20:
        # Above the broker's default limit for a message.
        configs |= {"max.message.bytes": str(whole_mib(record))}
    return new_topic("input", stream.input, partitions, replication, configs)


def state_topic(name: str, replication: int, commit: int) -> NewTopic:
    return new_topic("state", name, 1, replication, state_topic_config(commit))


def releases_topic(name: str, replication: int, release: int) -> NewTopic:
    size = {"max.message.bytes": str(whole_mib(release + MESSAGE_OVERHEAD))}
    return new_topic("releases", name, 1, replication, size)


def create_topics(
    kafka: KafkaSettings, stream: StreamSettings, partitions: int, replication: int
) -> list[str]:
    """Create missing topics; return their names. Raises TopicError, also if a release cannot fit."""
    release = release_bytes(stream)
    # A topic's max.message.bytes overrides the broker's; the remaining limit is the size of one request.
    with ask_broker(kafka, "the broker did not describe itself") as admin:
        broker, settings = broker_settings(admin)
    key = "socket.request.max.bytes"
    limits = {
        "the most that the producer sends": MAX_MESSAGE_BYTES,
        f"{key} of broker {broker}": int(settings.get(key, MAX_MESSAGE_BYTES)),
    }
    what = min(limits, key=limits.__getitem__)
    if release + MESSAGE_OVERHEAD > limits[what]:
        raise TopicError(
            f"a release of stream {stream.name!r} (dim = {stream.dim}, rank = {stream.rank}) can take "
            f"{release} bytes, which is above {limits[what]}, {what}: lower stream.rank or stream.dim"
        )
    written = written_topics(stream, replication)
    return ensure_topics(kafka, [input_topic(stream, partitions, replication), *written])


def written_topics(stream: StreamSettings, replication: int) -> list[NewTopic]:
    return [
        new_topic("ledger", stream.ledger_topic, 1, replication, {"max.message.bytes": str(_LEDGER_MESSAGE)}),
        state_topic(stream.state_topic, replication, commit_bytes(stream)),
        releases_topic(stream.releases_topic, replication, release_bytes(stream)),
    ]


def ensure_topics(kafka: KafkaSettings, wanted: Iterable[NewTopic]) -> list[str]:
    """Create the missing topics and wait until all are available; return the new names."""
    wanted, created = list(wanted), []
    try:
        with closing(admin_client(kafka)) as admin:
            for topic in wanted:
                # The exception's text would contain the whole request.
                (answer,) = admin.create_topics([topic], raise_errors=False)["topics"]
                if answer["error_code"] == TopicAlreadyExistsError.errno:
                    continue
                if answer["error_code"] == TopicAuthorizationFailedError.errno:
                    raise NotPermitted("Create", f"topic {topic.name!r}")
                if answer["error_code"]:
                    reason = answer.get("error_message") or for_code(answer["error_code"]).__name__
                    raise TopicError(f"topic {topic.name} cannot be created: {' '.join(reason.split())}")
                created.append(topic.name)
            admin.wait_for_topics([t.name for t in wanted], timeout_ms=kafka.request_timeout_ms)
    except KafkaError as error:
        raise TopicError(f"created topics do not answer yet: {in_one_line(error, 'Describe')}") from None
    return created


def check_topics(kafka: KafkaSettings, stream: StreamSettings) -> tuple[Topics | None, list[Problem]]:
    """Return the topics, None if one is missing, and problems; raise BrokerUnreachable."""
    names = {role: getattr(stream, attribute) for role, attribute in _ROLES.items()}
    problems, there = [], {}
    with ask_broker(kafka, "the broker did not describe the topics", "DescribeConfigs") as admin:
        described = {t["name"]: t for t in admin.describe_topics(list(names.values()))}
        NotPermitted.check(described.values())
        for role, name in names.items():
            topic: Any = described.get(name)
            subject = f"topic {name!r} ({role})"
            if topic is None or topic["error_code"] or not topic["partitions"]:
                remedy = f"create it with {CREATE}" + RESTORE * (role in ("ledger", "state"))
                problems.append(Problem(subject, "", "missing", "", remedy))
                continue
            there[role] = topic
            if role != "input" and (count := len(topic["partitions"])) != 1:
                fix = "delete it and create it again, if it is not in use"
                problems.append(Problem(subject, "the number of partitions", str(count), "1", fix))
        problems.extend(find_problems(admin, kafka, stream, there))
    if len(there) < len(names):
        return None, problems
    topic = there["input"]
    partitions = tuple(sorted(p["partition_index"] for p in topic["partitions"]))
    return Topics(topic_id=str(topic["topic_id"]), partitions=partitions), problems


def describe_input(kafka: KafkaSettings, stream: StreamSettings) -> list[Finding]:
    """Describe how the broker stores a stream's input topic; raises like :func:`check_topics`."""
    with ask_broker(kafka, "the broker did not describe the topics", "DescribeConfigs") as admin:
        return find_facts(admin, stream.input)


def find_topics(kafka: KafkaSettings, stream: StreamSettings) -> Topics:
    """Find the topics and check their configuration.

    Raises BrokerUnreachable, or TopicError that names topic, setting, required value, and how to set it.
    """
    topics, problems = check_topics(kafka, stream)
    report(problems)
    assert topics is not None, "a missing topic is a fatal problem"
    return topics


def report(problems: Sequence[Problem]) -> None:
    """Raise TopicError for the first fatal problem; otherwise log all as warnings."""
    for problem in problems:
        if problem.fatal:
            raise TopicError(problem.line)
    for problem in problems:
        log.warning("%s", problem.line)


def describe_topics(kafka: KafkaSettings, names: Sequence[str], what: str) -> list[dict[str, Any]]:
    """Return the broker's description of topics, called ``what``; ``error_code`` marks missing ones."""
    with ask_broker(kafka, f"the broker did not describe {what}") as admin:
        return list(admin.describe_topics(list(names)))


def existing_topics(kafka: KafkaSettings, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the broker's description of each existing topic among ``names``.

    Raises NotPermitted: a topic that this user may not describe must not count as missing.
    """
    described = describe_topics(kafka, names, "the topics") if names else []
    NotPermitted.check(described)
    return {topic["name"]: topic for topic in described if not topic["error_code"]}


def topic_id_of(kafka: KafkaSettings, topic: str) -> str:
    """Return the topic's current id; raise TopicError if it or its ledger is missing."""
    return str(require_topics(kafka, [topic, f"{topic}.ledger"])[topic]["topic_id"])


def require_topics(
    kafka: KafkaSettings, names: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the broker's description of topics; raise TopicError if one is missing and not optional."""
    found = existing_topics(kafka, [*names, *optional])
    for name in names:
        if name not in found or not found[name]["partitions"]:
            with ask_broker(kafka, "the broker did not list its topics") as admin:
                raise TopicError.missing(name, admin.list_topics())
    return found


def input_topic_id(kafka: KafkaSettings, stream: StreamSettings) -> str | None:
    """Return the current id of the input topic; None if the topic is missing."""
    (topic,) = describe_topics(kafka, [stream.input], stream.input)
    return None if topic["error_code"] else str(topic["topic_id"])
