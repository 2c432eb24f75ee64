"""docker-compose.yml: an engine would take it, and it gives away nothing that it need not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import streaming_pca
from streaming_pca.config.loading import load_settings
from streaming_pca.dev.jars import KAFKA
from tests.deploy.compose import read_compose, seconds_of
from tests.deploy.dockerfile import last_of, read_stages
from tests.deploy.tools import ROOT, run_tool

SERVICES: dict[str, dict[str, Any]] = read_compose()["services"]
OURS = {name: told for name, told in SERVICES.items() if "build" in told}
LONG_RUNNING = {"kafka", "worker", "standby", "prometheus"}


def test_docker_compose_accepts_the_file() -> None:
    checked = run_tool("docker-compose", "config")
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""
    # It resolves the anchors to what the other tests run.
    resolved = yaml.safe_load(checked.stdout)["services"]
    assert set(resolved) == set(SERVICES)
    for name, told in resolved.items():
        assert told.get("command") == SERVICES[name].get("command")


def test_docker_compose_refuses_a_file_that_is_wrong(tmp_path: Any) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    wrong = text.replace("stop_grace_period", "stop_grace", 1)
    assert wrong != text
    (tmp_path / "docker-compose.yml").write_text(wrong)
    assert run_tool("docker-compose", "config", cwd=tmp_path).returncode != 0


def test_there_is_a_broker_a_worker_and_all_that_goes_with_them() -> None:
    assert set(SERVICES) == LONG_RUNNING | {"token", "topics", "flights-file", "flights"}
    assert SERVICES["worker"]["command"] == SERVICES["standby"]["command"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert str(port).startswith("127.0.0.1:"), port


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_of_one_version_each(name: str) -> None:
    image, _, version = SERVICES[name]["image"].partition(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", version), image
    if name in OURS:
        assert version == streaming_pca.__version__ == label("version")
    if image == "apache/kafka":
        assert version == KAFKA, "the tests run another Kafka"


def label(name: str) -> str:
    value = last_of("service", "LABEL") or ""
    found = re.search(rf'org\.opencontainers\.image\.{name}="([^"]*)"', value)
    assert found is not None, value
    return found[1]


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_can_gain_rights(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
    assert not SERVICES[name].get("privileged")


@pytest.mark.parametrize("name", [*OURS, "prometheus"])
def test_nothing_but_volumes_and_tmp_can_be_written(name: str) -> None:
    assert SERVICES[name]["read_only"] is True
    assert [mount.split(":")[0] for mount in SERVICES[name]["tmpfs"]] == ["/tmp"]
    for mount in SERVICES[name].get("volumes", []):
        if mount.startswith("."):
            assert mount.endswith(":ro"), mount


@pytest.mark.parametrize("name", SERVICES)
def test_what_runs_on_is_checked_and_restarted_and_what_ends_is_not(name: str) -> None:
    told = SERVICES[name]
    checked = told.get("healthcheck", {})
    if name in LONG_RUNNING:
        assert checked["test"][0] == "CMD"
        assert told["restart"] == "unless-stopped"
    else:
        assert checked.get("disable") or last_of(told["build"]["target"], "HEALTHCHECK") == "NONE"
        assert "restart" not in told


def test_a_worker_is_given_the_time_to_finish_a_batch() -> None:
    settings = load_settings(ROOT / "deploy" / "compose" / "flights.toml")
    for name in ("worker", "standby"):
        assert seconds_of(SERVICES[name]["stop_grace_period"]) > settings.worker.step_deadline_seconds


def test_the_broker_is_named_in_one_place() -> None:
    for name, told in OURS.items():
        where = told.get("environment", {}).get("STREAMING_PCA_KAFKA__BOOTSTRAP_SERVERS")
        assert where == (None if name == "flights-file" else "kafka:9092")
    assert "bootstrap" not in (ROOT / "deploy" / "compose" / "flights.toml").read_text()


def test_every_built_target_is_a_stage() -> None:
    assert {told["build"]["target"] for told in OURS.values()} <= set(read_stages())
    assert all(told["build"]["dockerfile"] == "deploy/Dockerfile" for told in OURS.values())
