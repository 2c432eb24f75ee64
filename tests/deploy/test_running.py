"""docker-compose.yml on this machine: all its commands, health checks and addresses work."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.admin import ConfigResource

from streaming_pca.client.releases import follow
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.data.release import Release
from streaming_pca.service.kafka.clients import admin_client
from tests.deploy.compose import NOT_HERE, Deployment, bytes_of
from tests.deploy.tools import ROOT
from tests.waiting import LIMIT, wait_for, without_progress

pytestmark = pytest.mark.timeout(600)

STREAM = "flights-pca"
CONFIG = "/etc/streaming-pca/flights.toml"
# Of 336,776; enough for two batches.
FLIGHTS = 12_000
WORKERS = ("worker", "standby")
SERVING = (*WORKERS, "dashboard")
PORTS = {"worker": 9464, "standby": 9464, "dashboard": 9470}


@pytest.fixture(scope="module")
def running(deployment: Deployment) -> Deployment:
    """Start all services, in the order that the file requires."""
    deployment.start("flights-file", "--limit", str(FLIGHTS))
    assert not deployment.is_healthy("kafka"), "its health check passes without it"
    for name in (*SERVING, "prometheus"):
        assert not deployment.is_healthy(name), "its health check passes without it"
    for name, service in deployment.services.items():
        if name not in NOT_HERE and "profiles" not in service.definition:
            deployment.up(name)
    for name in (*SERVING, "prometheus"):
        deployment.wait_healthy(name)
    return deployment


def password(running: Deployment, role: str) -> str:
    return (running.volume(f"password-{role}") / "password").read_text()


def connection(running: Deployment, role: str, secret: str | None = None) -> KafkaSettings:
    """Return settings for a program of this machine to reach the broker, as a role."""
    return KafkaSettings(
        bootstrap_servers=f"{running.services['kafka'].address}:19092",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=role,
        sasl_password=secret or password(running, role),
    )


@pytest.fixture(scope="module")
def releases(running: Deployment) -> list[Release]:
    """Return the releases after all flights were sent."""
    assert running.ends("flights") == 0, running.services["flights"].log
    kafka = connection(running, "dashboard")
    with follow(STREAM, kafka, start="first", timeout=LIMIT) as found:
        return list(islice(found, 2))


def get(deployment: Deployment, service: str, port: int, path: str) -> str:
    url = f"http://{deployment.services[service].address}:{port}{path}"
    volume = "access-metrics" if path == "/metrics" else "access"
    token = (deployment.volume(volume) / "token").read_text()
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
        text: str = answer.read().decode()
    return text


def query(deployment: Deployment, promql: str) -> list[dict[str, Any]]:
    """Return Prometheus's current answer to a query."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": promql})
    result: list[dict[str, Any]] = json.loads(get(deployment, "prometheus", 9090, path))["data"]["result"]
    return result


def leads(deployment: Deployment, name: str) -> bool:
    return f'streaming_pca_leader{{stream="{STREAM}"}} 1.0' in get(deployment, name, 9464, "/metrics")


def test_kafka_knows_every_property_that_the_file_sets(running: Deployment) -> None:
    kafka = running.services["kafka"]
    text = (ROOT / "deploy" / "compose" / "kafka" / "server.properties").read_text()
    lines = [line for line in running.addressed(text, kafka).splitlines() if line and line[0] != "#"]
    wanted = dict(line.split("=", 1) for line in lines)
    assert len(wanted) >= 25
    with closing(admin_client(connection(running, "admin"))) as admin:
        found = admin.describe_configs([ConfigResource("broker", "1")], config_filter="all")
    definition = found["broker"]["1"]
    # Kafka would accept an unknown property silently, and omit it from this answer. It also omits properties
    # of plugins, and shows no secret: other tests log in, and are refused.
    of_plugins = re.compile(r"jaas|^config\.providers|^super\.users|^allow\.everyone")
    hidden = {key for key in wanted if of_plugins.search(key)}
    assert len(hidden) == 8
    shown = {key: value for key, value in wanted.items() if key not in hidden}
    assert {key: str(definition.get(key, {}).get("value")) for key in shown} == shown
    assert not any(definition[key]["value"] for key in hidden & set(definition))


def test_starting_again_changes_no_topic_and_no_cap(running: Deployment) -> None:
    running.start("topics", "--json")
    assert running.ends("topics") == 0, running.services["topics"].log
    message = json.loads(running.services["topics"].log.splitlines()[-1])
    assert message["created"] == []
    assert message["cap"] == {"epsilon": "1", "delta": "1/1000000"}


def test_releases_come_out_and_the_ledger_verifies(running: Deployment, releases: list[Release]) -> None:
    assert [r.records for r in releases] == [4096, 4096 + 6552]
    auditor = running.start("auditor")
    assert running.ends("auditor") == 0, auditor.log
    assert "verified" in auditor.log


def test_one_worker_leads_and_both_are_ready(running: Deployment) -> None:
    wait_for("a leader", lambda: any(leads(running, name) for name in WORKERS))
    assert [leads(running, name) for name in WORKERS].count(True) == 1
    for name in WORKERS:
        assert get(running, name, 9464, "/readyz")


def test_the_dashboard_shows_the_stream_and_its_releases(
    running: Deployment, releases: list[Release]
) -> None:
    def shown() -> list[Any]:
        path = f"/v1/streams/{STREAM}/releases"
        found: list[Any] = json.loads(get(running, "dashboard", 9470, path))["items"]
        return found

    wait_for("the dashboard's releases", lambda: len(shown()) == len(releases), pause=0.5)
    assert "<html" in get(running, "dashboard", 9470, "/")


@pytest.mark.parametrize(
    ("role", "command"),
    [
        ("flights", ["status"]),
        ("dashboard", ["produce", "/data/flights.npy"]),
        ("auditor", ["stream", "pause"]),
        ("worker", ["topics", "acls", "--role", "operator", "--apply"]),
    ],
)
def test_what_a_role_need_not_do_is_refused_with_one_line(
    running: Deployment, releases: list[Release], role: str, command: list[str]
) -> None:
    refused = running.run(running.services[role], "streaming-pca", *command, "--config", CONFIG)
    assert refused.returncode != 0, refused.stdout
    assert len(without_progress(refused.stderr.strip())) == 1, refused.stderr


def test_a_server_tells_only_those_who_have_the_token(running: Deployment) -> None:
    for name in SERVING:
        url = f"http://{running.services[name].address}:{PORTS[name]}"
        for path in ("/metrics", "/v1/streams"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url + path, timeout=LIMIT)
    streams = json.loads(get(running, "dashboard", 9470, "/v1/streams"))["items"]
    assert [stream["name"] for stream in streams] == [STREAM]
    # Prometheus has a separate token, which gives access to nothing else.
    address = f"http://{running.services['dashboard'].address}:{PORTS['dashboard']}/v1/streams"
    of_metrics = (running.volume("access-metrics") / "token").read_text()
    asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {of_metrics}"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(asked, timeout=LIMIT)


def test_secrets_are_made_once_for_their_group_and_never_printed(running: Deployment) -> None:
    names = ("access", "access-metrics", "password-*")
    files = {path for name in names for path in running.directory.glob(f"volumes/{name}/*")}
    assert len(files) == len(running.services["secrets"].definition["command"])
    made = {path: path.read_text() for path in files}
    assert len(set(made.values())) == len(made)
    for path, secret in made.items():
        assert path.stat().st_mode & 0o777 == 0o640
        assert len(secret) >= 40
    running.start("secrets")
    assert running.ends("secrets") == 0, running.services["secrets"].log
    assert {path: path.read_text() for path in files} == made, "another was made"
    for name, service in running.services.items():
        if service.process is not None:
            message = service.process.log.read_text(errors="replace")
            assert not any(secret in message for secret in made.values()), name
            arguments = Path(f"/proc/{service.process.pid}/cmdline")
            shown = arguments.read_text() if service.process.returncode is None else ""
            assert not any(secret in shown for secret in made.values()), name


def test_every_service_stays_below_its_limits(running: Deployment, releases: list[Release]) -> None:
    for name in ("kafka", *SERVING, "prometheus"):
        service = running.services[name]
        assert service.process is not None
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        assert int(facts["VmHWM"].split()[0]) * 1024 < 0.8 * bytes_of(service.definition["mem_limit"]), name
        assert int(facts["Threads"]) < 0.8 * service.definition["pids_limit"], name
        # The confinement tested here is the one that the file requires.
        assert facts["NoNewPrivs"].strip() == "1"
        assert {facts[kind].strip() for kind in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
        assert "0" not in facts["Uid"].split()


def test_workers_log_json_alone(running: Deployment, releases: list[Release]) -> None:
    for name in WORKERS:
        lines = running.services[name].log.splitlines()
        assert lines
        for line in lines:
            assert isinstance(json.loads(line), dict)


def test_prometheus_has_what_the_alerts_ask_for(running: Deployment, releases: list[Release]) -> None:
    both = {f"{running.services[name].address}:9464" for name in WORKERS}
    wait_for("both workers", lambda: len(query(running, 'up{job="streaming_pca"} == 1')) == 2)
    assert {r["metric"]["instance"] for r in query(running, "up")} == both
    wait_for("the releases", lambda: total(running, "sum(streaming_pca_releases_total)") == 2)
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "recording.yml").read_text())["groups"]
    for name in [rule["record"] for rule in group["rules"]]:
        wait_for(name, lambda name=name: query(running, name))
    loaded = json.loads(get(running, "prometheus", 9090, "/api/v1/rules"))["data"]["groups"]
    assert {rule["health"] for group in loaded for rule in group["rules"]} == {"ok"}

    def silent() -> bool:
        alerts = json.loads(get(running, "prometheus", 9090, "/api/v1/alerts"))["data"]["alerts"]
        return all(alert["state"] != "firing" for alert in alerts)

    # Workers that compile their kernels first, on a busy machine, have no leader for a minute: that alert
    # stays until the next evaluation of the rules.
    wait_for("every alert to end", silent)


def total(deployment: Deployment, promql: str) -> float:
    answers = query(deployment, promql)
    return float(answers[0]["value"][1]) if answers else 0.0


def test_when_the_leader_is_stopped_the_other_leads(running: Deployment) -> None:
    leader = next(name for name in WORKERS if leads(running, name))
    (other,) = {*WORKERS} - {leader}
    assert running.stop(leader) == 0, running.services[leader].log
    wait_for("the standby to lead", lambda: leads(running, other), pause=0.5)
    running.start(leader)
    running.wait_healthy(leader)
    assert not leads(running, leader)


def test_the_broker_starts_again_with_what_it_has(running: Deployment) -> None:
    assert running.stop("kafka") in (0, 143), running.services["kafka"].log
    running.start("kafka")
    running.wait_healthy("kafka")
    with closing(admin_client(connection(running, "admin"))) as admin:
        assert {"flights", "flights.ledger", f"{STREAM}.state"} <= set(admin.list_topics())


def test_nothing_was_written_into_the_image(image: Any, running: Deployment, releases: list[Release]) -> None:
    assert image.files() == image.built
