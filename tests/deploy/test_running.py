"""docker-compose.yml, run: every command, health check and address of it, on this machine."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from streaming_pca.config.settings import KafkaSettings
from streaming_pca.data.release import Release
from tests.deploy.compose import PATIENCE, Deployment
from tests.deploy.tools import ROOT
from tests.kafka.stream import read_all, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

STREAM = "flights-pca"
CONFIG = "/etc/streaming-pca/flights.toml"
# Of 336,776; enough for two batches.
LIMIT = 12_000
WORKERS = ("worker", "standby")


@pytest.fixture(scope="module")
def running(deployment: Deployment) -> Deployment:
    """All services up, in the order that the file asks for."""
    deployment.start("flights-file", "--limit", str(LIMIT))
    assert not deployment.is_healthy("kafka"), "its health check passes without it"
    for name in (*WORKERS, "prometheus"):
        assert not deployment.is_healthy(name), "its health check passes without it"
    for name in deployment.services:
        deployment.up(name)
    for name in (*WORKERS, "prometheus"):
        deployment.wait_healthy(name)
    return deployment


@pytest.fixture(scope="module")
def bootstrap(running: Deployment) -> str:
    return f"{running.services['kafka'].address}:9092"


@pytest.fixture(scope="module")
def releases(running: Deployment, bootstrap: str) -> list[Release]:
    """What was released once all flights were sent."""
    assert running.ends("flights") == 0, running.services["flights"].log
    kafka = KafkaSettings(bootstrap_servers=bootstrap)

    def two() -> list[Release] | None:
        found = [Release.from_bytes(message.value) for message in read_all(kafka, f"{STREAM}.releases")]
        return found if len(found) >= 2 else None

    found = wait_for("two releases", two, PATIENCE)
    assert found is not None
    return found


def get(deployment: Deployment, service: str, port: int, path: str) -> str:
    url = f"http://{deployment.services[service].address}:{port}{path}"
    token = token_of(deployment, "worker").read_text()
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def token_of(deployment: Deployment, service: str) -> Path:
    return deployment.services[service].paths["/access"] / "token"


def query(deployment: Deployment, promql: str) -> list[dict[str, Any]]:
    """What Prometheus answers to a query, now."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": promql})
    result: list[dict[str, Any]] = json.loads(get(deployment, "prometheus", 9090, path))["data"]["result"]
    return result


def leads(deployment: Deployment, name: str) -> bool:
    return f'streaming_pca_leader{{stream="{STREAM}"}} 1.0' in get(deployment, name, 9464, "/metrics")


def test_kafka_knows_every_property_that_the_file_sets(running: Deployment, bootstrap: str) -> None:
    kafka = running.services["kafka"]
    wanted = {
        key.removeprefix("KAFKA_").lower().replace("_", "."): running.translated(value, kafka)
        for key, value in kafka.environment.items()
        if key.startswith("KAFKA_") and key != "KAFKA_HEAP_OPTS"
    }
    assert len(wanted) >= 15
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        told = admin.describe_configs([ConfigResource("broker", "1")], config_filter="all")["broker"]["1"]
    # A property that Kafka does not know would be taken in silence, and left out of this answer.
    assert {key: str(told.get(key, {}).get("value")) for key in wanted} == wanted


def test_both_listeners_of_the_broker_answer(running: Deployment) -> None:
    kafka = running.services["kafka"]
    for port in (9092, 19092):
        with KafkaAdminClient(bootstrap_servers=f"{kafka.address}:{port}") as admin:
            assert "flights" in admin.list_topics()


def test_starting_again_changes_no_topic_and_no_cap(running: Deployment) -> None:
    running.start("topics", "--json")
    assert running.ends("topics") == 0, running.services["topics"].log
    said = json.loads(running.services["topics"].log.splitlines()[-1])
    assert said["created"] == []
    assert said["cap"] == {"epsilon": "1", "delta": "1/1000000"}


def test_releases_come_out_and_the_ledger_verifies(running: Deployment, releases: list[Release]) -> None:
    assert [r.records for r in releases] == [4096, 4096 + 6552]
    verified = running.run(
        running.services["worker"], "streaming-pca", "ledger", "verify", "--config", CONFIG
    )
    assert verified.returncode == 0, verified.stderr
    assert "verified" in verified.stdout


def test_one_worker_leads_and_both_are_ready(running: Deployment) -> None:
    wait_for("a leader", lambda: any(leads(running, name) for name in WORKERS))
    assert [leads(running, name) for name in WORKERS].count(True) == 1
    for name in WORKERS:
        assert get(running, name, 9464, "/readyz")


def test_a_worker_tells_only_those_who_have_the_token(running: Deployment) -> None:
    token = token_of(running, "worker")
    assert token.stat().st_mode & 0o777 == 0o640
    made = token.read_text()
    assert len(made) >= 40
    running.start("token")
    assert running.ends("token") == 0, running.services["token"].log
    assert token.read_text() == made, "another token was made"
    for name in WORKERS:
        assert made not in running.services[name].log
        url = f"http://{running.services[name].address}:9464"
        for path in ("/metrics", "/v1/streams"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url + path, timeout=10)
        streams = json.loads(get(running, name, 9464, "/v1/streams"))["items"]
        assert [stream["name"] for stream in streams] == [STREAM]


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
    # stays until the rules are looked at again.
    wait_for("every alert to end", silent)


def total(deployment: Deployment, promql: str) -> float:
    answers = query(deployment, promql)
    return float(answers[0]["value"][1]) if answers else 0.0


def test_when_the_leader_is_stopped_the_other_leads(running: Deployment) -> None:
    leader = next(name for name in WORKERS if leads(running, name))
    (other,) = {*WORKERS} - {leader}
    assert running.stop(leader) == 0, running.services[leader].log
    wait_for("the standby to lead", until(lambda: leads(running, other)))
    running.start(leader)
    running.wait_healthy(leader)
    assert not leads(running, leader)


def until(probe: Callable[[], bool]) -> Callable[[], bool]:
    """The same probe, at most twice a second."""

    def slowly() -> bool:
        time.sleep(0.5)
        return probe()

    return slowly


def test_nothing_was_written_into_the_image(image: Any, running: Deployment, releases: list[Release]) -> None:
    assert image.files() == image.built
