"""Kafka's authorizer lets each role do its own work, and one line refuses the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError as KafkaErrorOfRd
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError

from streaming_pca.admin.access import ROLES, Permission, apply_permissions, permissions
from streaming_pca.admin.backup import export_backup
from streaming_pca.admin.broker_status import describe_status
from streaming_pca.admin.ledger import describe_ledger
from streaming_pca.admin.pause import pause, resume
from streaming_pca.admin.restore import import_backup
from streaming_pca.admin.topics import create_with_cap
from streaming_pca.client.releases import latest
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import Verification
from streaming_pca.dashboard.observing.observer import Observer
from streaming_pca.dashboard.observing.verification import Verifications
from streaming_pca.dev.jars import find_java
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.service.commit.log_reader import LogReader
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.election import Election
from streaming_pca.service.errors import BrokerUnreachable, NotPermitted, SessionLost, TopicError, in_one_line
from streaming_pca.service.kafka.clients import admin_client, transactional_producer
from streaming_pca.service.topics.find import ensure_topics, existing_topics, find_topics, releases_topic
from streaming_pca.service.topics.output import find_output
from tests.cli.test_app import one_line
from tests.kafka.child import Strike
from tests.kafka.conftest import Name
from tests.kafka.projecting import run as project
from tests.kafka.security.secured import Secured
from tests.kafka.security.streams import BATCH, as_user, create, described, feed, grant
from tests.kafka.security.test_connecting import run_all
from tests.kafka.stream import Stream, check_books, read_all
from tests.waiting import LIMIT, wait_for, without_progress

ROOT = Path(__file__).resolve().parents[3]
USERS = (*ROLES, "stranger")


@dataclass
class Place:
    """Stream with a release, and a user for each role and one without a role."""

    secured: Secured
    stream: Stream
    output: str

    def of(self, user: str) -> Settings:
        return as_user(self.stream, self.secured.settings("SCRAM", user))


@pytest.fixture(scope="module")
def place(
    secured: Secured, unique_name: Name, tmp_path_factory: pytest.TempPathFactory, fork_server: None
) -> Iterator[Place]:
    stream = described(secured, unique_name("roles"), tmp_path_factory.mktemp("stream"), batches=3)
    found = Place(secured, stream, f"{stream.settings.stream.name}.out")
    grant(secured, stream, [role for role in ROLES if role != "worker"], found.output)
    create(stream, secured.settings("SCRAM", "operator"))
    # Its permission contains the topic's id.
    grant(secured, stream, ["worker"])
    feed(stream, secured.settings("SCRAM", "producer"), 3 * BATCH)
    # A worker dies in a commit, and the next takes over, with only the permissions of its role.
    first = stream.start(found.of("worker"), strike=Strike("commit.5 commit", "before"))
    assert first.ends() < 0
    stream.run(found.of("worker"))
    check_books(stream)
    yield found
    stream.destroy()


def test_a_worker_with_the_permissions_of_its_role_takes_over(place: Place) -> None:
    assert len(place.stream.release_values()) == 3
    assert "leading stream" in place.stream.children[1].log
    for child in place.stream.children:
        assert "no permission" not in child.log


# -- the table -----------------------------------------------------------------


def check(place: Place, settings: Settings) -> None:
    find_topics(settings.kafka, settings.stream)


def create_again(place: Place, settings: Settings) -> None:
    create_with_cap([settings], Cap(epsilon="1", delta="1e-6"), "basic", 2, 1)


def send(place: Place, settings: Settings) -> None:
    feed(place.stream, settings.kafka, 2)


def read_records(place: Place, settings: Settings) -> None:
    _read(settings, settings.stream.input)


def watch(place: Place, settings: Settings) -> None:
    assert latest(settings) is not None


def status(place: Place, settings: Settings) -> None:
    (facts,) = describe_status([settings])
    if facts["problem"] is not None:
        raise SessionLost(facts["problem"])
    assert facts["batches"]["released"] == 3


def show(place: Place, settings: Settings) -> None:
    assert describe_ledger(settings.kafka, settings.stream.input)["entries"]


def verify(place: Place, settings: Settings) -> None:
    assert verify_ledger(settings.kafka, settings.stream.input).ok


def audit(place: Place, settings: Settings) -> None:
    report = verify_ledger(settings.kafka, settings.stream.input, states=False)
    assert (report.ok, report.states) == (True, None)


def verify_on_dashboard(place: Place, settings: Settings) -> None:
    found = verified(settings)
    permitted = settings.kafka.sasl_username in ("worker", "operator")
    assert (found.state, found.problems, found.states) == ("verified", [], permitted)


def verified(settings: Settings) -> Verification:
    """Verify as the page of a ledger does."""
    runs, topic = Verifications(settings.kafka, lambda _: None), settings.stream.input
    runs.start(topic)
    wait_for("the verification", lambda: runs.last(topic).finished)
    if (found := runs.last(topic)).state == "failed":
        assert found.states is None
        raise SessionLost(found.problems[0])
    return found


def read_permissions(place: Place, settings: Settings) -> None:
    with closing(admin_client(settings.kafka)) as admin:
        any_of_all = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, any_of_all))


def fence(place: Place, settings: Settings) -> None:
    """Take the transactional id of the stream's leader."""
    identity = f"streaming-pca.{place.stream.topic_id}.{settings.stream.name}"
    with _one_writer, closing(transactional_producer(settings.kafka, identity)) as producer:
        producer.init_transactions()


def fence_another(place: Place, settings: Settings) -> None:
    """Take the transactional id that another stream's leader on the topic would have."""
    identity = f"streaming-pca.{place.stream.topic_id}.{settings.stream.name}-other"
    with closing(transactional_producer(settings.kafka, identity)) as producer:
        producer.init_transactions()


def read_state(place: Place, settings: Settings) -> None:
    _read(settings, settings.stream.state_topic)


def change_status(place: Place, settings: Settings) -> None:
    with _one_writer:
        pause(settings.kafka, settings.stream, "a test")
        resume(settings.kafka, settings.stream, "a test")


def write_releases(place: Place, settings: Settings) -> None:
    """Forge a release outside the protocol."""
    identity = f"streaming-pca.{place.stream.topic_id}.{settings.stream.name}"
    with _one_writer, closing(transactional_producer(settings.kafka, identity)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(settings.stream.releases_topic, b"forged", partition=0).get(LIMIT)
        producer.abort_transaction()


def lead(place: Place, settings: Settings) -> None:
    """Join the group whose members lead the stream."""
    kafka, stream = settings.kafka, settings.stream
    # As a worker does first.
    assert existing_topics(kafka, [stream.state_topic])
    with closing(Election(kafka, settings.worker.group, lambda: None)) as election:
        wait_for("the group", lambda: election.poll([stream.state_topic]) is not None and election.joined)


def show_dashboard(place: Place, settings: Settings) -> None:
    observer = Observer([settings])
    observer.start()
    try:
        wait_for("the dashboard", lambda: observer.overview().connection.loaded or _problem_of(observer))
        if (problem := _problem_of(observer)) is not None:
            raise SessionLost(problem)
        assert observer.stream(settings.stream.name).batches.released == 3
    finally:
        observer.stop()


def _problem_of(observer: Observer) -> str | None:
    overview = observer.overview()
    return overview.streams[0].problem or overview.connection.problem


def grant_more(place: Place, settings: Settings) -> None:
    apply_permissions(settings.kafka, permissions("reader", [settings]), "User:stranger-2")


_one_writer = threading.Lock()
_READERS = {"dashboard", "auditor", "worker", "operator"}
TABLE: dict[Callable[[Place, Settings], None], set[str]] = {
    check: {"worker", "operator"},
    create_again: {"operator"},
    send: {"producer"},
    read_records: {"projector", "worker", "operator"},
    watch: {"reader", "projector"} | _READERS,
    status: _READERS,
    show: _READERS,
    verify: {"worker", "operator"},
    audit: _READERS,
    verify_on_dashboard: _READERS,
    read_state: {"worker", "operator"},
    fence: {"worker", "operator"},
    fence_another: {"operator"},
    read_permissions: set(),
    change_status: {"worker", "operator"},
    write_releases: {"worker", "operator"},
    lead: {"worker", "operator"},
    show_dashboard: _READERS,
    grant_more: set(),
}
"""Roles that may perform each action; no other user may."""


def _read(settings: Settings, topic: str) -> None:
    assert existing_topics(settings.kafka, [topic])
    with closing(LogReader(settings.kafka, topic)) as reader:
        assert next(reader.read_to(reader.committed_end(), 20))


def outcome(action: Callable[[Place, Settings], None], place: Place, user: str) -> str | None:
    """Return the line that refuses an action, or None if it is allowed."""
    try:
        action(place, place.of(user))
    except (TopicError, SessionLost, BrokerUnreachable) as error:
        return str(error)
    except KafkaError as error:
        return in_one_line(error, "Write")
    return None


@pytest.mark.parametrize("action", TABLE)
def test_each_role_may_do_what_it_is_for_and_nothing_else(
    place: Place, action: Callable[[Place, Settings], None]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(USERS, pool.map(lambda user: outcome(action, place, user), USERS), strict=True))
    assert {user for user, line in found.items() if line is None} == TABLE[action], found
    for user, line in found.items():
        if line is not None:
            # Brokers that do not show a topic's settings are allowed, so this line is worded differently.
            assert "no permission to " in line or "allow DescribeConfigs on it" in line, (user, line)
            assert len(line.splitlines()) == 1, (user, line)


def test_a_dashboard_verifies_without_states_that_it_may_only_describe(place: Place) -> None:
    seen = Permission("topic", ("Describe",), False, place.stream.settings.stream.state_topic)
    apply_permissions(place.secured.open_settings, [seen], "User:auditor")
    found = verified(place.of("auditor"))
    assert (found.state, found.states) == ("verified", False)


def test_an_operator_restores_a_lost_ledger_with_another_stream_on_the_broker(
    place: Place, tmp_path: Path
) -> None:
    operator, path = place.of("operator"), tmp_path / "backup.zip"
    other = releases_topic(f"{operator.stream.name}-other.releases", 1, 1000)
    ensure_topics(place.secured.open_settings, [other])
    export_backup(operator.kafka, operator.stream.input, path)
    place.stream.delete("ledger", "state")
    done = import_backup(operator.kafka, [operator.stream], path)
    assert (done.states, done.lost_releases) == ((operator.stream.name,), 0)
    verify(place, operator)


def test_a_projector_writes_its_output_and_others_may_not(place: Place) -> None:
    with pytest.raises(NotPermitted):
        find_output(place.of("reader").kafka, place.stream.settings.stream, place.output)
    settings = place.of("projector")
    find_output(settings.kafka, settings.stream, place.output, create=True)
    assert project(settings, place.output) == 0
    assert len(read_all(place.secured.open_settings, place.output, (0, 1))) >= 3 * BATCH


def other_admin(kafka: KafkaSettings) -> AdminClient:
    """Return librdkafka's client, whose errors name the missing right."""
    options = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": kafka.security_protocol}
    options["log_level"] = 0
    if kafka.sasl_username is not None:
        options |= {
            "sasl.mechanism": str(kafka.sasl_mechanism),
            "sasl.username": kafka.sasl_username,
            "sasl.password": str(kafka.password),
            "ssl.ca.location": str(kafka.ssl_cafile),
        }
    return AdminClient(options)


def meddle(place: Place, kafka: KafkaSettings) -> list[KafkaErrorOfRd | None]:
    """Delete zero records, which needs the same right as some, and change a topic's settings."""
    admin, stream = other_admin(kafka), place.stream.settings.stream
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    ledger = ConfigResource(ConfigResource.Type.TOPIC, stream.ledger_topic, incremental_configs=[entry])
    futures = [
        *admin.delete_records([TopicPartition(stream.input, 0, 0)]).values(),
        *admin.incremental_alter_configs([ledger]).values(),
    ]
    return [None if (error := future.exception(60)) is None else error.args[0] for future in futures]


def test_no_role_deletes_records_or_changes_a_topic(place: Place) -> None:
    refused = KafkaErrorOfRd.TOPIC_AUTHORIZATION_FAILED
    for user in USERS:
        deleted, changed = (error and error.code() for error in meddle(place, place.of(user).kafka))
        # A user who may not describe a topic is not shown the leaders of its partitions.
        assert deleted in (refused, KafkaErrorOfRd._NOENT), (user, deleted)
        assert changed == refused, (user, changed)
    # Without an authorizer's refusal both succeed.
    assert meddle(place, place.secured.open_settings) == [None, None]


# -- the command and the script --------------------------------------------------


def write_config(place: Place, user: str | None) -> Path:
    server = {"bootstrap_servers": place.secured.open_settings.bootstrap_servers}
    kafka = server if user is None else place.secured.client("SCRAM", user)
    worker = {"group": place.stream.settings.worker.group}
    return place.stream.write_config(kafka=kafka, worker=worker, http={"port": 0})


@pytest.mark.timeout(900)
def test_every_command_refuses_a_stranger_in_one_line(place: Place, tmp_path: Path) -> None:
    config = str(write_config(place, "stranger"))
    (tmp_path / "rows.csv").write_text("1,2,3,4,5\n")
    commands = [
        ["topics", "check", "--config", config],
        ["topics", "create", "--config", config, "--cap", "1,1e-6"],
        ["status", "--config", config],
        ["ledger", "show", "--config", config],
        ["ledger", "verify", "--config", config],
        ["watch", "--config", config, "--count", "1", "--timeout", "20"],
        ["produce", str(tmp_path / "rows.csv"), "--config", config],
        ["worker", "--config", config],
        ["project", "--config", config, "--output", place.output],
        ["topics", "acls", "--config", config, "--role", "reader", "--apply"],
    ]
    done = run_all(commands)
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines().count("status 0") == 0, done.stdout + done.stderr
    lines = [line for line in without_progress(done.stderr) if line and " INFO " not in line]
    assert len(lines) == len(commands), done.stderr + done.stdout
    for line, command in zip(lines, commands, strict=True):
        assert "no permission to " in line, (command, line)


@contextmanager
def programs(directory: Path, tools: str) -> Iterator[dict[str, str]]:
    """Put Kafka's and this package's programs where the script looks for them."""
    acls = f"{find_java()} -XX:TieredStopAtLevel=1 -cp '{tools}' org.apache.kafka.tools.AclCommand"
    own = f"{sys.executable} -P -m streaming_pca"
    for name, command in (("kafka-acls.sh", acls), ("streaming-pca", own)):
        (directory / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (directory / name).chmod(0o755)
    yield os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}


def granted(secured: Secured, principal: str) -> set[tuple[str, str, bool, str]]:
    """Return the permissions of a principal."""
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    wanted = ACLFilter(principal, None, ACLOperation.ANY, ACLPermissionType.ANY, everything)
    with closing(admin_client(secured.open_settings)) as admin:
        found, _ = admin.describe_acls(wanted)
    return {
        (
            acl.resource_pattern.resource_type.name,
            acl.resource_pattern.resource_name,
            acl.resource_pattern.pattern_type is ACLResourcePatternType.PREFIXED,
            acl.operation.name,
        )
        for acl in found
    }


def test_the_script_grants_what_the_command_does_and_again_does_no_harm(
    place: Place, tmp_path: Path, kafka_tools: str
) -> None:
    config = write_config(place, None)
    script = [str(ROOT / "deploy/kafka/acls.sh"), "--config", str(config)]
    script += ["--bootstrap-server", place.secured.open_settings.bootstrap_servers]
    with programs(tmp_path, kafka_tools) as environment:
        # The reader, who has one permission, is permitted again.
        for role in ("dashboard", "reader", "reader"):
            command = [*script, "--role", role, "--principal", f"User:{role} by script"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stdout + done.stderr
            assert granted(place.secured, f"User:{role} by script") == granted(place.secured, f"User:{role}")


def test_the_script_refuses_in_one_line_what_it_cannot_use(tmp_path: Path) -> None:
    script, right = str(ROOT / "deploy/kafka/acls.sh"), ["--bootstrap-server", "localhost:1", "--config", "x"]
    for arguments, line in (
        ([], "--bootstrap-server is missing"),
        (right, "--role is missing"),
        ([*right, "--role", "worker"], "--principal is missing"),
        ([*right, "--role"], "--role needs a value"),
        (["--rolle", "worker"], "unknown argument '--rolle'"),
        ([*right, "--role", "worker", "--principal", "User:x"], "kafka-acls.sh is not on the PATH"),
    ):
        path = {"PATH": "/usr/bin:/bin"}
        one_line(subprocess.run([script, *arguments], capture_output=True, text=True, env=path), 2, line)
    assert "usage: acls.sh" in subprocess.run([script, "--help"], capture_output=True, text=True).stdout
