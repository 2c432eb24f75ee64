"""Workers with faults, and a Prometheus that watches them by the rules of deploy/prometheus."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from streaming_pca.config.settings import Settings
from streaming_pca.dev.processes import Child as Program
from tests.deploy.tools import ROOT, tool
from tests.kafka.child import Strike
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import Child, Stream, have_released
from tests.ports import steady_port
from tests.waiting import LIMIT, wait_for

RULES = ROOT / "deploy" / "prometheus"
RUNBOOKS = "https://docs.example/how-to/alerts.html"
"""Address of the page of alerts, as a deployment sets it."""

# The rules' own durations are scaled: an alert's hour of waiting is 5 s here, and a window of 15 minutes
# is 5 s too, which holds 5 scrapes. Thresholds and expressions stay unchanged; tests/deploy/alerts_test.yml
# tests the durations themselves.
FOR_SCALE = 720
WINDOW_SCALE = 180
LEAST_WINDOW = 5
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

BATCH = 100
# These settings leave two thirds of epsilon and more for noisy counts of small batches.
_COUNTED = {"diagnostics_share": 0.5, "epsilon": 4.0, "cap": ("4", "1e-6")}
_TINY = {"clip_l2": 1e-3, "batch_size": BATCH}
STREAMS: dict[str, dict[str, Any]] = {
    # The first two are verified first.
    "forged": {},
    "fine": {},
    # The dashboards show this stream: any process that leads it has a release.
    "busy": {},
    "budget": {"cap": ("1.05", "1e-5")},
    "nulls": _COUNTED,
    "clipped": _COUNTED | {"estimator": "noisy-power", "centering": "none", "options": _TINY},
    "few": {},
    "unfit": {},
    "stuck": {},
}


def seconds(text: str) -> int:
    """Convert a duration of Prometheus."""
    return int(text[:-1]) * _UNITS[text[-1]]


def scaled(rules: str) -> str:
    """Return rules with shorter durations and no other change."""
    rules = re.sub(r"\bfor: (\d+[smhd])", lambda m: f"for: {max(1, seconds(m[1]) // FOR_SCALE)}s", rules)
    return re.sub(
        r"(\[|\boffset )(\d+[smhd])",
        lambda m: f"{m[1]}{max(LEAST_WINDOW, seconds(m[2]) // WINDOW_SCALE)}s",
        rules,
    )


class Prometheus:
    """Prometheus with the rules of the repository, except for the durations."""

    def __init__(self, directory: Path, targets: Sequence[str]) -> None:
        directory.mkdir()
        for name in ("recording.yml", "alerts.yml"):
            (directory / name).write_text(scaled((RULES / name).read_text()))
        config = yaml.safe_load((RULES / "prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["global"]["external_labels"]["runbooks"] = RUNBOOKS
        (job,) = config["scrape_configs"]
        del job["authorization"]
        job["static_configs"] = [{"targets": list(targets)}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._address = f"127.0.0.1:{steady_port()}"
        options = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        command = [tool("prometheus"), *options, f"--web.listen-address={self._address}"]
        self.program = Program(command, log=directory / "log", cwd=directory)

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            return bool(self.get("query", query="up"))
        except OSError:
            return False

    def query(self, promql: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=promql)["result"]
        return result

    def firing(self, name: str, **labels: str) -> list[dict[str, Any]]:
        """Return the firing alerts with that name and these labels."""
        wanted = labels.items() | {("alertname", name)}
        firing = (alert for alert in self.get("alerts")["alerts"] if alert["state"] == "firing")
        return [alert for alert in firing if wanted <= alert["labels"].items()]


class Watched:
    """A leader, a standby and a lonely worker; each stream has a different fault.

    Only the lonely one runs the stream "stuck", whose first commit never ends.
    """

    def __init__(self, cluster: FaultyCluster, directory: Path, name: Callable[[str], str]) -> None:
        self.cluster = cluster
        self.names = {fault: name(fault) for fault in STREAMS}
        group = name("watched")
        # Only a stopped broker may end a session here, and ticks leave most of a second to it.
        worker = {"group": group, "tick_seconds": 0.3, "stop_when_done": False}
        worker |= {"verify_seconds": 0, "step_deadline_seconds": 600}

        def make(fault: str) -> Stream:
            own = {"group": f"{group}-alone"} if fault == "stuck" else {}
            how = {"partitions": 1, "session_ms": 10_000, "worker": worker | own} | STREAMS[fault]
            return Stream.make(cluster.bootstrap, self.names[fault], directory, **how)

        with ThreadPoolExecutor(4) as pool:
            self.streams = dict(zip(STREAMS, pool.map(make, STREAMS), strict=True))
        self.addresses: dict[str, str] = {}
        self._children: list[Child] = []
        self._directory = directory
        self._ending = threading.Event()
        self._load = threading.Thread(target=self._produce)
        self._failed: Exception | None = None
        self._prometheus: Prometheus | None = None

    @property
    def prometheus(self) -> Prometheus:
        assert self._failed is None, self._failed
        assert self._prometheus is not None
        return self._prometheus

    def _start(self, name: str, settings: Sequence[Settings], **how: Any) -> Child:
        http = {"enabled": True, "port": 0, "process_metrics": True}
        changed = [s.model_copy(update={"http": type(s.http)(**http)}) for s in settings]
        child = Child(changed, self._directory / name, **how)
        self._children.append(child)
        child.logs("metrics and health on ")
        found = re.search(r"on http://(\S+)", child.log)
        assert found is not None
        self.addresses[name] = found[1]
        return child

    def start(self) -> None:
        """Start all; every stream but the stuck one has released by then."""
        shared = [stream for fault, stream in self.streams.items() if fault != "stuck"]
        self.leader = self._start("leader", [s.settings for s in shared])
        strike = Strike("commit.2 state", "before", 1, "wait")
        self.lonely = self._start("lonely", [self.streams["stuck"].settings], strike=strike)
        for fault, stream in self.streams.items():
            if fault != "nulls":
                stream.produce_vectors(stream.vectors(BATCH))
        self._load.start()
        seen = self.leader.log_and_stacks
        wait_for("a release of each", lambda: have_released(shared), seen=seen, pause=0.5)
        self._forge()
        changed = {"unfit": self.streams["unfit"].changed(epsilon=0.5)}
        settings = [changed.get(f, s.settings) for f, s in self.streams.items() if f != "stuck"]
        settings = [s.model_copy(update={"worker": type(s.worker)(**_often(s))}) for s in settings]
        self.standby = self._start("standby", settings)
        # It leads from the start: the leader of the other group writes nothing while its batch is incomplete.
        self._start("rival", [self.streams["few"].changed("worker", group=f"{self.names['few']}-other")])
        self._prometheus = Prometheus(self._directory / "prometheus", [*self.addresses.values()])
        wait_for("Prometheus", self._prometheus.answers)

    def metrics(self, worker: str) -> str:
        """Return the metrics of a worker."""
        with urllib.request.urlopen(f"http://{self.addresses[worker]}/metrics", timeout=LIMIT) as answer:
            text: str = answer.read().decode()
        return text

    def _forge(self) -> None:
        """Publish a release missing from every ledger, which only a verification detects."""
        stream = self.streams["forged"]
        value = stream.release_values()[0].replace(b'"batch":1', b'"batch":2')
        assert value != stream.release_values()[0]
        stream.write(stream.settings.stream.releases_topic, value)

    def _produce(self) -> None:
        """Send a batch a second to the busy, clipping, unreadable and stuck streams."""
        try:
            while not self._ending.wait(1):
                for fault in ("busy", "nulls", "clipped", "stuck"):
                    stream = self.streams[fault]
                    values = np.ones((BATCH, stream.settings.stream.dim), "<f4")
                    stream.produce([b"?" if fault == "nulls" else row.tobytes() for row in values])
        except Exception as error:
            self._failed = error

    def end_load(self) -> None:
        """Stop sending."""
        self._ending.set()
        if self._load.ident is not None:
            self._load.join()

    def destroy(self) -> None:
        self.end_load()
        for child in self._children:
            child.destroy()
        if self._prometheus is not None:
            self._prometheus.program.kill()

    def fires(self, name: str, **labels: str) -> dict[str, Any]:
        """Return the only alert with that name and these labels, once it fires."""
        firing = partial(self.prometheus.firing, name, **labels)
        (alert,) = wait_for(f"{name} {labels}", firing, seen=lambda: str(self.prometheus.get("alerts")))
        return alert


def _often(settings: Settings) -> Mapping[str, Any]:
    return settings.worker.model_dump(mode="json") | {"verify_seconds": 1}
