"""A stream with a worker that releases when a test wants it, and the dashboard in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.client import latest
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from tests.kafka.stream import Child, Stream
from tests.ports import steady_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
FEATURES = ["age", "income", "children", "rooms", "distance", "visits", "spent", "returns"]
BATCHES = 12
_RECORDS = 60_000
_BOUNDS = (-40.0, 40.0)


@dataclass
class RunningStream:
    """Stream of the tests with a real worker."""

    stream: Stream
    worker: Child
    others: list[Settings] = field(default_factory=list)
    """Unhealthy streams on the same broker: one never began, one has no topics."""
    _sent: int = 0

    def __post_init__(self) -> None:
        self.settings = self.stream.settings
        self.name, self.input = self.settings.stream.name, self.settings.stream.input

    @classmethod
    def start(cls, bootstrap: str, name: str, folder: Path, session_ms: int) -> RunningStream:
        """Create topics and ledger, and start the worker."""
        stream = Stream.make(
            bootstrap,
            name,
            folder,
            partitions=2,
            cap=("2", "2e-6"),
            session_ms=session_ms,
            worker={"stop_when_done": False},
            dim=len(FEATURES),
            rank=3,
            feature_names=FEATURES,
            bounds=_BOUNDS,
            diagnostics_share=0.05,
            options={"n_records": _RECORDS, "n_batches": BATCHES, "growth": 1.0},
        )
        waiting = Stream.make(
            bootstrap, f"{name}-waiting", folder, partitions=1, session_ms=session_ms, dim=4, rank=2
        )
        absent = stream.changed(name=f"{name}-absent", input=f"in-{name}-absent")
        return cls(stream, stream.start(), [waiting.settings, absent])

    def learn(self, batches: int = 1) -> None:
        """Produce the records of the next batches, and wait until they are released."""
        count = batches * _RECORDS // BATCHES
        self.stream.produce_vectors(_rows(count, seed=self._sent))
        self._sent += count
        self.worker.logs(f"batch {self._sent * BATCHES // _RECORDS} released")

    def latest(self) -> Release:
        """Return the latest release, as any program reads it."""
        found = latest(self.settings)
        assert found is not None
        return found

    def latest_bytes(self) -> bytes:
        """Return the bytes of the topic's last message."""
        return wait_for("a release", self.stream.release_values)[-1]

    def stop(self) -> None:
        self.stream.destroy()


def _rows(count: int, seed: int) -> NDArray[np.float32]:
    """Return rows of three strong directions, little noise, and a feature clamped by some bounds."""
    rng = np.random.default_rng([17, seed])
    d = len(FEATURES)
    directions = np.linalg.qr(np.random.default_rng(1).standard_normal((d, 3)))[0]
    x = rng.standard_normal((count, 3)) * [7, 5, 3.5] @ directions.T
    return (x + rng.standard_normal((count, d)) * 0.7).astype("<f4")


class Dashboard:
    """Process of the dashboard, whose origin is ``home``."""

    def __init__(self, folder: Path, settings: Sequence[Settings], http: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = steady_port()
        scheme = "https" if "certificate" in http else "http"
        self.home = f"{scheme}://127.0.0.1:{port}"
        self._log = folder / "dashboard.log"
        config = folder / "dashboard.toml"
        config.write_text(settings_file(settings, http))
        command = [sys.executable, "-P", "-m", "streaming_pca", "dashboard", "--config", str(config)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A test may run on another copy of the code than the installed one.
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def log(self) -> str:
        """Return the process's output so far."""
        return self._log.read_text()

    def get(self, path: str, token: str | None = None) -> bytes:
        """Return the body of an answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib.request.urlopen(urllib.request.Request(self.home + path, headers=headers)) as answer:
            return bytes(answer.read())

    def wait_until_it_serves(self) -> None:
        """Wait until the process answers."""

        def serves() -> bool:
            assert self._process.poll() is None, f"status {self._process.returncode}\n{self.log}"
            with suppress(OSError):
                self.get("/healthz")
                return True
            return False

        wait_for("the dashboard", serves, seen=lambda: self.log)

    def wait_until_loaded(self, token: str | None = None) -> None:
        """Wait until all topics were read to their ends once."""
        wait_for(
            "all topics",
            lambda: json.loads(self.get("/v1/streams?limit=1", token))["connection"]["loaded"],
            seen=lambda: self.log,
        )

    def stop(self) -> None:
        """End it as an operator does; it must succeed without reporting a bug."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
        assert status == 0, f"status {status}\n{self.log}"
        assert "Traceback" not in self.log, self.log


@contextmanager
def dashboard(folder: Path, settings: Sequence[Settings], **http: Any) -> Iterator[Dashboard]:
    """Run the dashboard of streams; ``http`` has settings of its section."""
    made = Dashboard(folder, settings, http)
    try:
        made.wait_until_it_serves()
        yield made
    finally:
        made.stop()


def settings_file(settings: Sequence[Settings], http: Mapping[str, Any]) -> str:
    """Return a settings file of streams on one broker."""
    parts = [
        _section("[kafka]", settings[0].kafka.model_dump(mode="json", exclude_defaults=True)),
        _section("[http]", dict(http)),
        _section("[worker]", settings[0].worker.model_dump(mode="json", exclude_defaults=True)),
    ]
    streams = [each.stream.model_dump(mode="json", exclude_defaults=True) for each in settings]
    return "\n".join([*parts, *(_section("[[streams]]", each) for each in streams)])


def _section(title: str, values: Mapping[str, Any]) -> str:
    return "\n".join([title, *(f"{key} = {_value(value)}" for key, value in values.items()), ""])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # Text, numbers and booleans are written as in JSON.
    return json.dumps(value)
