"""deploy/kubernetes is valid, confined and true to the settings, and its containers run."""

from __future__ import annotations

import copy
import json
import re
import secrets
import shutil
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

import streaming_pca
from streaming_pca.config.loading import load_settings
from streaming_pca.dev.processes import Child
from tests.deploy.conftest import Guarded, give
from tests.deploy.dockerfile import Image, last_of
from tests.deploy.sandbox import Confined, Mount, Sandbox
from tests.deploy.tools import ROOT, run_tool
from tests.waiting import LIMIT

FILES = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.33"
LAYERS = ("base", "overlays/example")
SETTINGS = "/etc/streaming-pca/stream.toml"
WORKLOADS = ("streaming-pca-worker", "streaming-pca-dashboard", "streaming-pca-topics")


@cache
def build(layer: str) -> tuple[dict[str, Any], ...]:
    """Return the objects that a layer makes."""
    made = run_tool("kustomize", "build", FILES / layer)
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    return tuple(yaml.safe_load_all(made.stdout))


def find(layer: str, kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the only object of a kind, or of a kind and a name."""
    (found,) = (
        each for each in build(layer) if each["kind"] == kind and name in (None, each["metadata"]["name"])
    )
    return found


def workload(layer: str, name: str) -> dict[str, Any]:
    return find(layer, "Job" if name.endswith("topics") else "Deployment", name)


def pod_of(owner: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = owner["spec"]["template"]["spec"]
    return pod


def labels_of(owner: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = owner["spec"]["template"]["metadata"]["labels"]
    return labels


def validate(each: dict[str, Any]) -> None:
    """Raise for an object that the schemas refuse; a field unknown to all schemas is refused too."""
    if each["kind"] == "ServiceMonitor":
        # The import takes two seconds, which no other process of a run needs to spend.
        from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

        read = ServiceMonitor.model_validate(each).model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert read == each, "a field that no ServiceMonitor has"
    else:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_object_is_valid(layer: str) -> None:
    kinds = {each["kind"] for each in build(layer)}
    assert {"Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor"} <= kinds
    for each in build(layer):
        validate(each)


def test_a_wrong_object_is_refused() -> None:
    for kind, wrong in (("ServiceMonitor", "selectors"), ("NetworkPolicy", "podSelectors")):
        each = copy.deepcopy(next(each for each in build("base") if each["kind"] == kind))
        each["spec"][wrong] = {}
        with pytest.raises((AssertionError, kubernetes_validate.ValidationError)):
            validate(each)
    monitor = copy.deepcopy(find("base", "ServiceMonitor"))
    monitor["spec"]["endpoints"][0]["interval"] = "ten seconds"
    with pytest.raises(ValidationError):
        validate(monitor)


@pytest.mark.parametrize("layer", LAYERS)
def test_kube_score_finds_nothing(layer: str, tmp_path: Path) -> None:
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(build(layer)))
    more = ("container-seccomp-profile", "container-ports-check", "environment-variable-key-duplication")
    # The one exception: a throttled worker would hold a reserved batch longer.
    options = ["--exit-one-on-warning", "--ignore-container-cpu-limit"]
    options += [word for name in more for word in ("--enable-optional-test", name)]
    scored = run_tool("kube-score", "score", *options, tmp_path / "objects.yaml")
    assert scored.returncode == 0, scored.stdout + scored.stderr
    assert scored.stdout.count("apps/v1/Deployment") == 2


def test_images_are_of_this_version() -> None:
    for layer in LAYERS:
        for name in WORKLOADS:
            for container in pod_of(workload(layer, name))["containers"]:
                assert container["image"].endswith(f"streaming-pca:{streaming_pca.__version__}")
                assert "command" not in container, "the image's own entry is meant"


def test_the_image_may_be_named_by_its_digest(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "example"
    file, digest = overlay / "kustomization.yaml", f"sha256:{'0' * 64}"
    tag = f"newTag: {streaming_pca.__version__}"
    assert tag in file.read_text()
    file.write_text(file.read_text().replace(tag, f"digest: {digest}"))
    made = run_tool("kustomize", "build", overlay)
    assert made.returncode == 0, made.stderr
    images = re.findall(r"^ *image: (\S+)$", made.stdout, re.MULTILINE)
    assert images == [f"registry.example.org/streaming-pca@{digest}"] * len(WORKLOADS)


def test_secrets_are_named_and_never_here() -> None:
    for layer in LAYERS:
        assert "Secret" not in {each["kind"] for each in build(layer)}
        for name in WORKLOADS:
            for container in pod_of(workload(layer, name))["containers"]:
                variables = {variable["name"] for variable in container["env"]}
                assert not any(re.search("PASSWORD|TOKEN", variable) for variable in variables)
    text = "".join(path.read_text() for path in FILES.rglob("*") if path.is_file())
    assert not re.search(r"(?im)^\s*(sasl_password|token|metrics_token)\s*[:=]", text)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_has_no_right_that_it_need_not_have(name: str) -> None:
    pod = pod_of(workload("base", name))
    assert pod["automountServiceAccountToken"] is False
    assert find("base", "ServiceAccount")["automountServiceAccountToken"] is False
    # Otherwise variables of services would be read as settings, see below.
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user, _, group = (last_of("service", "USER") or "").partition(":")
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert (rights["runAsUser"], rights["runAsGroup"]) == (int(user), int(group))
    assert rights["runAsNonRoot"] is rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    for mount in container["volumeMounts"]:
        assert mount.get("readOnly") or mount["mountPath"] == "/tmp"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_path_of_the_settings_is_mounted(layer: str, name: str) -> None:
    (container,) = pod_of(workload(layer, name))["containers"]
    text = settings_text(layer)
    named = set(re.findall(r'"(/[^"]+)"', text)) | {SETTINGS}
    assert len(named) == 5
    assert container["args"][container["args"].index("--config") + 1] == SETTINGS
    if name == "streaming-pca-topics":  # it has no server
        named = {path for path in named if "/http/" not in path}
    folders = {mount["mountPath"] for mount in container["volumeMounts"]} - {"/tmp"}
    assert {str(Path(path).parent) for path in named} == folders


def settings_text(layer: str) -> str:
    ((name, text),) = find(layer, "ConfigMap")["data"].items()
    assert name == Path(SETTINGS).name
    return str(text)


@pytest.mark.parametrize("layer", LAYERS)
def test_what_selects_pods_finds_them_and_their_ports(layer: str) -> None:
    pods = {name: workload(layer, name) for name in WORKLOADS}

    def selected(labels: dict[str, str]) -> set[str]:
        return {name for name, owner in pods.items() if labels.items() <= labels_of(owner).items()}

    def port(name: str, wanted: Any) -> int:
        ports = pod_of(pods[name])["containers"][0]["ports"]
        (found,) = (p["containerPort"] for p in ports if wanted in (p["name"], p["containerPort"]))
        return int(found)

    for short in ("worker", "dashboard"):
        name = f"streaming-pca-{short}"
        service = find(layer, "Service", name)
        assert selected(service["spec"]["selector"]) == {name}
        served = {"worker": 9464, "dashboard": 9470}[short]
        assert port(name, service["spec"]["ports"][0]["targetPort"]) == served
        assert selected(find(layer, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]) == {name}
        assert selected(pods[name]["spec"]["selector"]["matchLabels"]) == {name}
        policy = find(layer, "NetworkPolicy", "streaming-pca-metrics" if short == "worker" else name)["spec"]
        assert selected(policy["podSelector"]["matchLabels"]) == {name}
        assert port(name, policy["ingress"][0]["ports"][0]["port"])
        budget = find(layer, "PodDisruptionBudget", name)["spec"]["minAvailable"]
        assert find(layer, "PodDisruptionBudget", name)["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert pods[name]["spec"]["replicas"] == 2 > budget
    deny = find(layer, "NetworkPolicy", "streaming-pca")["spec"]
    assert selected(deny["podSelector"]["matchLabels"]) == set(WORKLOADS)
    assert set(deny["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in deny


def test_the_network_policy_lets_pods_reach_the_broker_of_the_settings() -> None:
    for layer in LAYERS:
        server = tomllib.loads(settings_text(layer))["kafka"]["bootstrap_servers"]
        host, _, port = server.partition(":")
        broker = find(layer, "NetworkPolicy", "streaming-pca")["spec"]["egress"][0]
        assert broker["ports"] == [{"protocol": "TCP", "port": int(port)}]
        (peer,) = broker["to"]
        assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": host.split(".")[1]}


def test_prometheus_finds_the_workers_under_the_name_that_alerts_ask_for() -> None:
    monitor, service = find("base", "ServiceMonitor")["spec"], find("base", "Service", "streaming-pca-worker")
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert f'job="{labels[monitor["jobLabel"]]}"' in (ROOT / "deploy/prometheus/alerts.yml").read_text()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    credentials = endpoint["authorization"]["credentials"]
    file = tomllib.loads(settings_text("base"))["http"]["metrics_token_file"]
    pod = pod_of(workload("base", "streaming-pca-worker"))
    assert Path(file).name == credentials["key"]
    assert source_of(pod, file)["secret"]["secretName"] == credentials["name"]


def source_of(pod: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the volume that contains a path of the container."""
    mounts = pod["containers"][0]["volumeMounts"]
    (name,) = (mount["name"] for mount in mounts if mount["mountPath"] == str(Path(path).parent))
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == name)
    return dict(volume)


# -- run ----------------------------------------------------------------------


class Pod(Confined):
    """One pod of a workload as a process of this machine, with a separate address."""

    def __init__(
        self,
        owner: dict[str, Any],
        address: str,
        directory: Path,
        image: Image,
        files: dict[str, dict[str, str]],
        hosts: dict[str, str],
    ) -> None:
        self.spec, self.address = pod_of(owner), address
        (self.container,) = self.spec["containers"]
        self.directory = directory / f"{owner['metadata']['name']}-{address}"
        rights = self.container["securityContext"]
        user, group = rights["runAsUser"], self.spec["securityContext"]["fsGroup"]
        made, tmpfs = image.root / "opt", {}
        mounts = [Mount(made, "/opt"), Mount(made, str(made))]
        for mount in self.container["volumeMounts"]:
            (volume,) = (volume for volume in self.spec["volumes"] if volume["name"] == mount["name"])
            if "emptyDir" in volume:
                tmpfs[mount["mountPath"]] = f"mode=1777,size={volume['emptyDir']['sizeLimit'].rstrip('i')}"
                continue
            held = volume.get("secret", volume.get("configMap"))
            source = self.directory / mount["name"]
            for name, text in files[held.get("secretName", held.get("name"))].items():
                mode = held.get("defaultMode", 0o644)
                give(source / name, text.replace("0.0.0.0", self.address), mode, 0, group)
            mounts.append(Mount(source, mount["mountPath"]))
        ids, read_only = (user, rights["runAsGroup"], [group]), rights["readOnlyRootFilesystem"]
        self.sandbox = Sandbox(self.directory / "root", mounts, *ids, hosts, tmpfs, read_only, "/tmp")
        self.environment = image.environment("service", "/usr/bin:/bin") | {
            variable["name"]: variable["value"] for variable in self.container["env"]
        }
        self.command = [*image.entrypoint("service"), *self.container["args"]]

    def start(self, **more: str) -> Pod:
        command = self.sandbox.command(*(word.replace("0.0.0.0", self.address) for word in self.command))
        where, env = self.directory, self.environment | more
        self.process = Child(command, log=where / "log", cwd=where, env=env)
        return self

    def get(self, path: str, port: Any, token: str = "") -> int:
        (number,) = (each["containerPort"] for each in self.container["ports"] if each["name"] == port)
        asked = urllib.request.Request(f"http://{self.address}:{number}{path}")
        if token:
            asked.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def probe(self, kind: str) -> int:
        asked = self.container[kind]["httpGet"]
        return self.get(asked["path"], asked["port"])

    def wait_for_probe(self, kind: str, seconds: float = LIMIT) -> None:
        self.wait(kind, lambda: self.probe(kind) == 200, seconds)

    def terminate(self) -> int:
        """End it like Kubernetes: steps before the signal count towards the grace period."""
        before = self.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        return self.stop(self.spec["terminationGracePeriodSeconds"] - before)


class Cluster:
    """Pods of the example: its settings, Secrets filled by this test, a broker with the right name."""

    layer = "overlays/example"

    def __init__(self, directory: Path, image: Image, guard: Callable[[str], Guarded]) -> None:
        self.directory, self.image, self.pods = directory, image, list[Pod]()
        server = tomllib.loads(settings_text(self.layer))["kafka"]["bootstrap_servers"]
        broker = guard(server)
        self._net, _, self._last = broker.address.rpartition(".")
        self._hosts = {server.partition(":")[0]: broker.address}
        (directory / "stream.toml").write_text(settings_text(self.layer))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STREAMING_PCA_KAFKA__SASL_USERNAME", "worker")
            settings = load_settings(directory / "stream.toml")
        broker.permit([settings], "dashboard", "operator")
        # This takes effect once the topics exist.
        self.permit_workers = partial(broker.permit, [settings], "worker")
        self.tokens = {name: secrets.token_urlsafe(32) for name in ("token", "metrics-token")}
        self._files: dict[str, dict[str, str]] = {
            "streaming-pca-http": self.tokens,
            "streaming-pca-kafka-ca": {"ca.crt": broker.authority},
            find(self.layer, "ConfigMap")["metadata"]["name"]: {"stream.toml": settings_text(self.layer)},
        }
        for role in ("worker", "dashboard", "operator"):
            self._files[f"streaming-pca-kafka-{role}"] = {"password": broker.passwords[role]}

    def pod(self, name: str) -> Pod:
        """Make another pod of a workload."""
        free = [str(number) for number in range(1, 200) if str(number) != self._last]
        address = f"{self._net}.{free[len(self.pods)]}"
        owner = workload(self.layer, name)
        self.pods.append(Pod(owner, address, self.directory, self.image, self._files, self._hosts))
        return self.pods[-1]


@pytest.fixture(scope="module")
def cluster(
    guard: Callable[[str], Guarded], image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("kubernetes"), image, guard)
    yield made
    for pod in made.pods:
        pod.kill()


@pytest.mark.timeout(600)
def test_the_pods_run_answer_their_probes_and_end_in_time(cluster: Cluster) -> None:
    job = cluster.pod("streaming-pca-topics")
    # The only difference: this broker is alone.
    assert job.command[-2:] == ["--replication", "3"]
    job.command[-1] = "1"
    assert job.start().ends() == 0, job.log
    assert "flights-pca.state" in job.log
    cluster.permit_workers()
    workers = [cluster.pod("streaming-pca-worker").start() for _ in range(2)]
    dashboard = cluster.pod("streaming-pca-dashboard").start()
    for pod in (*workers, dashboard):
        startup = pod.container["startupProbe"]
        pod.wait_for_probe("startupProbe", startup["periodSeconds"] * startup["failureThreshold"])
        pod.wait_for_probe("readinessProbe")
        assert pod.probe("livenessProbe") == 200
    for pod in workers:
        assert pod.get("/metrics", "metrics") == 401
        assert pod.get("/metrics", "metrics", cluster.tokens["metrics-token"]) == 200
    assert dashboard.get("/v1/streams", "http") == 401
    assert dashboard.get("/v1/streams", "http", cluster.tokens["token"]) == 200
    for pod in (dashboard, *workers):
        assert pod.terminate() == 0, pod.log
    for pod in workers:
        assert all(isinstance(json.loads(line), dict) for line in pod.log.splitlines())


def test_the_page_names_the_folder_of_its_commands_and_the_origin_of_every_secret() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    section = page.partition("## In Kubernetes")[2].partition("\n## ")[0]
    text, _, rest = section.partition("```bash\n")
    block = rest.partition("```")[0]
    folder = ROOT / re.search(r"^cd (\S+)$", block, re.M)[1]  # type: ignore[index]
    (layer,) = re.findall(r"^kubectl apply -k (\S+)$", block, re.M)
    assert (folder / layer / "kustomization.yaml").is_file()
    (roles,) = re.findall(r"^for role in (.*); do$", block, re.M)
    drawn = set(re.findall(r"> (\S+)$", block, re.M))
    assert drawn == {"token", "metrics-token"}
    for source in re.findall(r"--from-file=(?:\S+?=)?\"?([^\s\"]+)", block):
        for name in {source.replace("$role", role) for role in roles.split()}:
            assert name in drawn or f"`{name}`" in text, name
