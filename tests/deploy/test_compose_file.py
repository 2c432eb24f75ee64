"""docker-compose.yml is valid for an engine, and reveals nothing without need."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import streaming_pca
from streaming_pca.config.loading import load_settings
from streaming_pca.dev.jars import KAFKA
from tests.deploy.compose import bytes_of, mounts_of, read_compose, seconds_of
from tests.deploy.dockerfile import last_of, read_stages
from tests.deploy.tools import ROOT, run_tool

SERVICES: dict[str, dict[str, Any]] = read_compose()["services"]
OURS = {name: definition for name, definition in SERVICES.items() if "build" in definition}
LONG_RUNNING = {"kafka", "worker", "standby", "dashboard", "prometheus", "grafana"}
ONCE = {"secrets", "acls", "worker-acls", "topics", "flights-file", "flights", "auditor"}
# Users of Kafka, and the services that log in as each.
ROLES = {
    "admin": {"acls", "worker-acls"},
    "operator": {"topics"},
    "worker": {"worker", "standby"},
    "producer": {"flights"},
    "dashboard": {"dashboard"},
    "auditor": {"auditor"},
    "broker": {"kafka"},
}


def test_docker_compose_accepts_the_file() -> None:
    checked = run_tool("docker-compose", "config")
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""
    # Resolving the anchors gives the services that the other tests run.
    resolved = yaml.safe_load(checked.stdout)["services"]
    assert set(resolved) == set(SERVICES)
    for name, definition in resolved.items():
        assert definition.get("command") == SERVICES[name].get("command")


def test_docker_compose_refuses_a_file_that_is_wrong(tmp_path: Any) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    wrong = text.replace("stop_grace_period", "stop_grace", 1)
    assert wrong != text
    (tmp_path / "docker-compose.yml").write_text(wrong)
    assert run_tool("docker-compose", "config", cwd=tmp_path).returncode != 0


def test_there_is_a_broker_a_worker_and_all_that_goes_with_them() -> None:
    assert set(SERVICES) == LONG_RUNNING | ONCE
    assert SERVICES["worker"]["command"] == SERVICES["standby"]["command"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert str(port).startswith("127.0.0.1:"), port


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_of_one_version_each(name: str) -> None:
    image, _, version = SERVICES[name]["image"].partition(":")
    version, _, digest = version.partition("@")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", version), image
    assert re.fullmatch(r"|sha256:[0-9a-f]{64}", digest), "make pin"
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
def test_no_service_can_gain_rights_or_take_all_memory(name: str) -> None:
    definition = SERVICES[name]
    assert definition["cap_drop"] == ["ALL"]
    assert definition["security_opt"] == ["no-new-privileges:true"]
    assert not definition.get("privileged")
    assert "user" not in definition, "images are of ordinary users"
    assert 2**29 <= bytes_of(definition["mem_limit"]) <= 2**31
    assert definition["pids_limit"] <= 256


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_but_volumes_and_tmp_can_be_written(name: str) -> None:
    assert SERVICES[name]["read_only"] is True
    assert [mount.split(":")[0] for mount in SERVICES[name]["tmpfs"]] == ["/tmp"]
    for source, _, writable in mounts_of(SERVICES[name]):
        if source.startswith("."):
            assert not writable, source
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_shown_the_secrets_that_it_names_and_no_others(name: str) -> None:
    definition = SERVICES[name]
    mounts = {target: (source, writable) for source, target, writable in mounts_of(definition)}
    shown = {target.removeprefix("/passwords/") for target in mounts if target.startswith("/passwords/")}
    named = set(re.findall(r"/passwords/(\w+)/password", str(definition.get("environment", {}))))
    tokens = {"/access/token", "/access-metrics/token"}
    if name == "secrets":
        assert {f"/passwords/{role}/password" for role in shown} | tokens == set(definition["command"])
    elif name == "kafka":
        assert shown == set(definition["command"]) == set(ROLES)
    else:
        assert shown == named
    for target, (source, writable) in mounts.items():
        if target.startswith("/passwords/"):
            assert source == f"password-{target.removeprefix('/passwords/')}"
        if target.startswith(("/passwords/", "/access")):
            assert writable == (name == "secrets")
    workers = {"worker", "standby", "secrets"}
    assert ("/access" in mounts) == (name in workers | {"dashboard"})
    # The dashboard's token would let Prometheus see all streams.
    assert ("/access-metrics" in mounts) == (name in workers | {"prometheus"})
    # The files have mode 0640 and the image's own group.
    if (shown or {"/access", "/access-metrics"} & set(mounts)) and "build" not in definition:
        assert definition["group_add"] == [(last_of("service", "USER") or "").partition(":")[2]]


@pytest.mark.parametrize(("role", "services"), ROLES.items())
def test_every_role_is_that_of_its_services(role: str, services: set[str]) -> None:
    for name in services - {"kafka"}:
        own = {k.removeprefix("STREAMING_PCA_KAFKA__"): v for k, v in SERVICES[name]["environment"].items()}
        assert own["SECURITY_PROTOCOL"] == "SASL_PLAINTEXT"
        assert own["SASL_MECHANISM"] == "SCRAM-SHA-512"
        assert own["SASL_USERNAME"] == role
        assert own["SASL_PASSWORD_FILE"] == f"/passwords/{role}/password"
    granted = " ".join(SERVICES["acls"]["command"] + SERVICES["worker-acls"]["command"])
    assert (re.search(rf"(?<!-)\b{role}\b", granted) is not None) == (role not in ("admin", "broker"))
    properties = (ROOT / "deploy" / "compose" / "kafka" / "server.properties").read_text()
    assert (f"User:{role}" in properties) == (role in ("admin", "broker"))


def test_services_that_speak_share_a_network_and_others_have_none() -> None:
    networks = {name: set(definition.get("networks", ())) for name, definition in SERVICES.items()}
    texts = {name: str(definition) for name, definition in SERVICES.items()}
    for folder, name in (("deploy/prometheus", "prometheus"), ("deploy/grafana", "grafana")):
        texts[name] += "".join(path.read_text() for path in (ROOT / folder).rglob("*.yml"))
    for name, text in texts.items():
        for other in set(re.findall(rf"\b({'|'.join(SERVICES)}):\d{{4,}}", text)) - {name}:
            assert networks[name] & networks[other], f"{name} cannot reach {other}"
    assert networks["grafana"] == networks["prometheus"] == {"monitoring"}
    for name in ("secrets", "flights-file"):
        assert SERVICES[name]["network_mode"] == "none"


def test_grafana_asks_for_a_password_and_tells_no_other_host() -> None:
    definition = SERVICES["grafana"]
    environment = definition["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == environment["GF_USERS_ALLOW_SIGN_UP"] == "false"
    off = ("REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES", "FEEDBACK_LINKS_ENABLED")
    assert {environment[f"GF_ANALYTICS_{name}"] for name in off} == {"false"}
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"
    targets = {target: source for source, target, _ in mounts_of(definition)}
    assert environment["GF_PATHS_DATA"] in targets
    (port,) = definition["ports"]
    assert port.rpartition(":")[2] == environment["GF_SERVER_HTTP_PORT"]
    assert f":{environment['GF_SERVER_HTTP_PORT']}/" in definition["healthcheck"]["test"][-1]


def test_grafana_finds_its_data_source_and_its_dashboards() -> None:
    targets = {target: source for source, target, _ in mounts_of(SERVICES["grafana"])}
    provisioning = ROOT / targets[SERVICES["grafana"]["environment"]["GF_PATHS_PROVISIONING"]]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    listening = next(word for word in SERVICES["prometheus"]["command"] if "listen-address" in word)
    assert source["url"] == f"http://prometheus:{listening.rpartition(':')[2]}"
    (file,) = (provisioning / "dashboards").glob("*.yml")
    (provider,) = yaml.safe_load(file.read_text())["providers"]
    assert list((ROOT / targets[provider["options"]["path"]]).glob("*.json"))


@pytest.mark.parametrize("name", SERVICES)
def test_what_runs_on_is_checked_and_restarted_and_what_ends_is_not(name: str) -> None:
    definition = SERVICES[name]
    checked = definition.get("healthcheck", {})
    if name in LONG_RUNNING:
        assert checked["test"][0] == "CMD"
        assert definition["restart"] == "unless-stopped"
    else:
        assert checked.get("disable") or last_of(definition["build"]["target"], "HEALTHCHECK") == "NONE"
        assert "restart" not in definition


def test_a_worker_is_given_the_time_to_finish_a_batch() -> None:
    settings = load_settings(ROOT / "deploy" / "compose" / "flights.toml")
    for name in ("worker", "standby"):
        assert seconds_of(SERVICES[name]["stop_grace_period"]) > settings.worker.step_deadline_seconds


def test_the_broker_is_named_in_one_place() -> None:
    for name, definition in OURS.items():
        where = definition.get("environment", {}).get("STREAMING_PCA_KAFKA__BOOTSTRAP_SERVERS")
        assert where == (None if name in ("flights-file", "secrets") else "kafka:9092")
    assert "bootstrap" not in (ROOT / "deploy" / "compose" / "flights.toml").read_text()


def test_every_built_target_is_a_stage() -> None:
    assert {definition["build"]["target"] for definition in OURS.values()} <= set(read_stages())
    assert all(definition["build"]["dockerfile"] == "deploy/Dockerfile" for definition in OURS.values())
