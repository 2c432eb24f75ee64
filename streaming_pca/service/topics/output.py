"""Topic of projections: its name, its creation, and checks before the first write."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from streaming_pca.config.kafka import TOPIC_NAME, ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.records import RecordKind
from streaming_pca.service.errors import TopicError
from streaming_pca.service.kafka.clients import MAX_MESSAGE_BYTES, ask_broker
from streaming_pca.service.topics.checks import Problem, find_problems, topic_configs
from streaming_pca.service.topics.find import ensure_topics, new_topic, report, require_topics
from streaming_pca.service.topics.sizes import MESSAGE_OVERHEAD, projection_bytes, whole_mib

log = logging.getLogger(__name__)

_RESERVED = (".ledger", ".state", ".releases")
_RETENTION = ("retention.ms", "retention.bytes")


def group_of_projections(stream: str, output: str) -> str:
    """Return the consumer group of workers that project a stream to a topic."""
    return f"{stream}.project.{output}"


@dataclass(frozen=True)
class Output:
    topic: str
    partitions: int
    stream: str
    input_id: str
    input_partitions: tuple[int, ...]

    @property
    def group(self) -> str:
        return group_of_projections(self.stream, self.topic)


def check_output_name(output: str, streams: Iterable[StreamSettings]) -> None:
    """Refuse (ConfigurationError) an output that is, or could be, a topic of a stream."""
    if not TOPIC_NAME.fullmatch(output):
        raise ConfigurationError("--output must be 1 to 200 letters, digits, '.', '_' or '-'")
    for stream in streams:
        if output in (stream.input, stream.ledger_topic, stream.state_topic, stream.releases_topic):
            raise ConfigurationError(
                f"--output {output}: this is a topic of stream {stream.name!r}: name another one"
            )
    if output.endswith(_RESERVED):
        raise ConfigurationError(
            f"--output {output}: topics whose names end in {', '.join(_RESERVED)} belong to streams: "
            "name another one"
        )


def check_stream(stream: StreamSettings) -> None:
    """Refuse (ConfigurationError) a stream whose records cannot be projected."""
    if stream.record_kind is not RecordKind.FACTOR:
        raise ConfigurationError(
            f'stream.record_kind = "{stream.record_kind.value}": only rows are projected, of streams with '
            'record_kind = "factor"'
        )
    if stream.build_estimator().info.releases != "subspace":
        raise ConfigurationError(
            f'stream.estimator = "{stream.estimator}" releases tensors, which span no subspace: project with '
            "the releases of another estimator"
        )


def find_output(kafka: KafkaSettings, stream: StreamSettings, output: str, create: bool = False) -> Output:
    """Find, or create like the input, the topic of projections; check it and the input.

    Raises BrokerUnreachable, or TopicError that names topic, setting, required value, and how to set it.
    """
    size = projection_bytes(stream) + MESSAGE_OVERHEAD
    if size > MAX_MESSAGE_BYTES:
        raise TopicError(
            f"a projected message can take {size} bytes (stream.max_rows = {stream.max_rows}, rank = "
            f"{stream.rank}), above {MAX_MESSAGE_BYTES}, the most that is sent: lower stream.max_rows"
        )
    names = {"input": stream.input, "releases": stream.releases_topic, "output": output}
    there = _described(kafka, names)
    with ask_broker(kafka, "the broker did not describe the topics", "DescribeConfigs") as admin:
        if "output" not in there:
            if not create:
                raise TopicError(
                    f"topic {output!r} (--output) is missing: add --create, or create it yourself"
                )
            ensure_topics(kafka, [_definition(admin, stream, output, there["input"])])
            log.info("created topic %s, with the input's partitions, replicas and retention", output)
            there = _described(kafka, names)
        checked = {role: there[role] for role in ("input", "output")}
        problems = [*find_problems(admin, kafka, stream, checked), *_retention_problems(admin, names)]
    report(problems)
    source = there["input"]
    partitions = tuple(sorted(p["partition_index"] for p in source["partitions"]))
    count = len(there["output"]["partitions"])
    return Output(output, count, stream.name, str(source["topic_id"]), partitions)


def _described(kafka: KafkaSettings, names: dict[str, str]) -> dict[str, Any]:
    found = require_topics(kafka, [names["input"], names["releases"]], [names["output"]])
    return {role: found[name] for role, name in names.items() if name in found and found[name]["partitions"]}


def _definition(admin: KafkaAdminClient, stream: StreamSettings, output: str, source: Any) -> NewTopic:
    replication = min(len(p["replica_nodes"]) for p in source["partitions"])
    kept = topic_configs(admin, stream.input)[stream.input]
    configs = {key: kept[key] for key in _RETENTION if key in kept}
    if (size := projection_bytes(stream) + MESSAGE_OVERHEAD) > 2**20:
        configs |= {"max.message.bytes": str(whole_mib(size))}
    return new_topic("output", output, len(source["partitions"]), replication, configs)


def _retention_problems(admin: KafkaAdminClient, names: dict[str, str]) -> Iterable[Problem]:
    """Yield settings that keep projections longer than their records."""
    configs = topic_configs(admin, names["input"], names["output"])
    source, output = configs[names["input"]], configs[names["output"]]
    for key in _RETENTION:
        if key not in source or key not in output:
            continue
        ours, theirs = int(output[key]), int(source[key])
        if theirs >= 0 and not 0 <= ours <= theirs:
            wanted = f"{theirs}, the input's (projections are as secret as their records)"
            fix = f"set {key} of topic {names['output']}"
            yield Problem(f"topic {names['output']!r}", key, output[key], wanted, fix, fatal=False)
