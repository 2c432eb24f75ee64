"""`streaming-pca dashboard`, and a worker's: their addresses, refusals and endings."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.config.loading import load_streams
from streaming_pca.dashboard.site import make_site
from tests.cli.command import call
from tests.cli.test_app import closed_port, one_line
from tests.dashboard.streams import MadeStream, make_stream
from tests.security.needles import secret
from tests.waiting import LIMIT, wait_for

Capture = pytest.CaptureFixture[str]
TOKEN = secret("token")
ELSEWHERE = ["0.0.0.0", "::", "192.0.2.1", "example.org"]

CONFIG = """\
kafka = {{ bootstrap_servers = "{}", bootstrap_timeout_ms = 60000 }}
stream = {{ name = "{}", input = "{}", dim = {}, rank = {}, epsilon = 1.0, delta = 1e-6, centering = "none" }}
[http]
port = 0
"""
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


def written(path: Path, bootstrap: str, made: MadeStream | None = None, more: str = "") -> Path:
    stream = None if made is None else made.settings.stream
    shown = (
        ("shown", "shown-records", 4, 2)
        if stream is None
        else (stream.name, stream.input, stream.dim, stream.rank)
    )
    path.write_text(CONFIG.format(bootstrap, *shown) + more)
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write settings with a broker that does not answer."""
    path = written(tmp_path / "stream.toml", f"127.0.0.1:{closed_port()}")
    path.write_text(path.read_text().replace("timeout_ms = 60000", "timeout_ms = 1000"))
    return path


@contextmanager
def running(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command, and wait for the address that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "streaming_pca", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | PATHS,
    ) as process:
        try:
            assert process.stdout is not None
            message = []
            for line in process.stdout:
                message.append(line)
                found = re.search(r"dashboard:? (?:on )?(https?://\S+)/", line)
                if found is not None:
                    yield process, found[1]
                    break
            else:
                raise AssertionError("".join(message))
        finally:
            process.kill()


def read(url: str, token: str | None = None) -> bytes:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=240) as answer:
        text: bytes = answer.read()
    return text


def get(url: str, token: str | None = None) -> Any:
    return json.loads(read(url, token))


def ends(process: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send a signal and return the exit status; remaining listeners must not delay the process."""
    process.send_signal(number)
    return process.wait(LIMIT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_soon_even_without_a_broker(
    config: Path, number: signal.Signals
) -> None:
    with running("dashboard", "--config", config, "--port", 0) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        wait_for("the loss of the connection", lambda: not get(f"{url}/v1/streams")["connection"]["ok"])
        with urllib.request.urlopen(f"{url}/", timeout=240) as page:
            assert page.headers["content-type"].startswith("text/html")
        events = urllib.request.urlopen(f"{url}/v1/events", timeout=240)
        # The events' client stays: a server that waits for it would not end.
        status = ends(process, number)
        events.close()
        assert status == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def test_it_shows_a_stream_and_asks_for_the_token(
    kafka_bootstrap: str, unique_name: Any, tmp_path: Path
) -> None:
    made = make_stream(kafka_bootstrap, unique_name("shown"), releases=3)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    path = written(tmp_path / "stream.toml", kafka_bootstrap, made, f'token_file = "{token}"\n')
    with running("dashboard", "--config", path, "--port", 0, "--host", "0.0.0.0") as (_, url):
        url = url.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{url}/v1/streams")

        def shown() -> Any:
            found = get(f"{url}/v1/streams", TOKEN)["items"][0]
            return found if found["last_release"] is not None else None

        wait_for("the last release", lambda: shown() is not None)
        found = shown()
        assert (found["name"], found["last_release"]["batch"]) == (made.name, made.releases[-1].batch)


def test_a_worker_shows_its_streams_beside_its_metrics(
    kafka_bootstrap: str, unique_name: Any, tmp_path: Path, capfd: Capture
) -> None:
    name = unique_name("worked")
    text = CONFIG.format(kafka_bootstrap, name, f"{name}-records", 4, 2)
    path = tmp_path / "stream.toml"
    path.write_text(f"{text}dashboard = true\n\n[worker]\ngroup = '{name}'\n")
    assert call(capfd, "topics", "create", "--config", path, "--cap", "1,1e-6").returncode == 0
    with running("worker", "--config", path) as (process, url):
        leads = f'_leader{{stream="{name}"}} 1.0'.encode()
        wait_for("the leader", lambda: leads in read(f"{url}/metrics"))
        (found,) = wait_for("the stream", lambda: get(f"{url}/v1/streams")["items"])
        assert found["name"] == name
        wait_for("the ledger", lambda: get(f"{url}/v1/ledger")["items"][0]["entries"] >= 1)
        events = urllib.request.urlopen(f"{url}/v1/events", timeout=240)
        status = ends(process, signal.SIGTERM)
        events.close()
        assert status == 0


@pytest.mark.parametrize("host", ELSEWHERE)
def test_elsewhere_without_a_token_it_does_not_start(host: str, config: Path, capfd: Capture) -> None:
    refused = call(capfd, "dashboard", "--config", config, "--port", 0, "--host", host)
    one_line(refused, 2, f"http.host = '{host}' is not loopback")


@pytest.mark.parametrize("command", ["worker", "dashboard"])
def test_a_process_ends_with_one_line_and_status_2(command: str, config: Path) -> None:
    words = ["--host", "0.0.0.0"] if command == "dashboard" else []
    program = [sys.executable, "-m", "streaming_pca", command, "--config", config, *words]
    variables = os.environ | PATHS | {"STREAMING_PCA_HTTP__HOST": "0.0.0.0"}
    done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert "http.host = '0.0.0.0' is not loopback" in line
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_line(config: Path, capfd: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in (("dashboard", "--config", config), ("demo", "--dashboard")):
            refused = call(capfd, *command, "--port", port)
            one_line(refused, 2, "--port: cannot listen on", "name another port with --port, or 0 for a free")


def test_a_missing_extra_is_one_line(config: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> None:
        if name != "fastapi":
            raise PackageNotFoundError(name)

    monkeypatch.setattr("streaming_pca.dashboard.site.distribution", installed)
    expected = "the dashboard needs sse-starlette, plotly: pip install '.[dashboard]' in the checkout"
    one_line(call(capfd, "dashboard", "--config", config), 2, expected)
    one_line(call(capfd, "demo", "--dashboard"), 2, expected)
    monkeypatch.setenv("STREAMING_PCA_HTTP__DASHBOARD", "true")
    one_line(call(capfd, "worker", "--config", config), 2, expected)


def test_a_site_starts_no_thread_before_it_is_told(config: Path) -> None:
    before = set(threading.enumerate())
    assert len(make_site(load_streams(config)).routes) >= 4
    assert set(threading.enumerate()) == before


def test_files_of_several_workers_share_a_dashboard(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is an option, and each stream keeps the group of its own workers."""
    shown: list[Any] = []
    monkeypatch.setattr(
        "streaming_pca.dashboard.site.run_dashboard", lambda streams, *_: shown.extend(streams)
    )
    a, b = (written(tmp_path / f"{name}.toml", "127.0.0.1:1") for name in "ab")
    other = b.read_text().replace('"shown"', '"b"')
    b.write_text(other.replace("port = 0", "port = 9999") + '[worker]\ngroup = "b"\n')
    done = call(capfd, "dashboard", "-c", a, "-c", b)
    assert done.returncode == 0, done.stderr
    assert [each.worker.group for each in shown] == ["streaming-pca", "b"]
    remedy = "one process has one [http]: make both alike, or start a process for each file"
    one_line(call(capfd, "worker", "-c", a, "-c", b), 2, f"{b}: http: differs from {a}: {remedy}")
    b.write_text(other.replace("port = 0", 'port = 0\nhosts = ["b.example"]'))
    one_line(call(capfd, "dashboard", "-c", a, "-c", b), 2, f"{b}: http: differs from {a}: {remedy}")
