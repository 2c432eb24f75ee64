"""The command `streaming-pca dashboard` in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streaming_pca.config.settings import Settings
from streaming_pca.dev.processes import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Dashboard:
    """Process of the dashboard, whose origin is ``home``."""

    def __init__(self, folder: Path, settings: Sequence[Settings], http: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
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
