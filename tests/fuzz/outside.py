"""Targets for people and programs other than producers: HTTP requests and settings files."""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.loading import load_streams
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.dashboard.observing.observer import Observer
from tests.dashboard.api.conftest import ApiSite
from tests.fuzz.records import check_line
from tests.fuzz.target import MIB, Broken, target
from tests.service.http.running import TOKEN, Running, serving

# -- HTTP -----------------------------------------------------------------------------------------


@cache
def _server() -> Running:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    stream = StreamSettings(name="s", input="in", dim=5, rank=2, epsilon=1, delta=1e-6)
    # Its observer does not run, so it knows nothing.
    site = ApiSite(Observer([Settings.model_construct(kafka=kafka, stream=stream)]), runs=False)
    for name in ("uvicorn.error", "asyncio", "streaming_pca"):
        logging.getLogger(name).addHandler(_Log(logging.ERROR))
        logging.getLogger(name).propagate = False
    # It runs in a separate thread until the process ends.
    context = serving(site=site, requests_per_second=10_000.0, token=TOKEN)
    running = context.__enter__()
    _open.append(context)
    return running


_open: list[Any] = []
_logged: list[str] = []


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Record errors: an unknown client must not be able to fill the log."""
        _logged.append(record.getMessage() + traceback_of(record))


def traceback_of(record: logging.LogRecord) -> str:
    """Return the last line of a record's traceback."""
    return f" {record.exc_info[1]!r}" if record.exc_info else ""


def _http_seeds() -> Sequence[bytes]:
    def request(path: str, method: str = "GET", body: bytes = b"", *more: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}", *more]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body

    plan = (
        "/v1/plan?dim=50&rank=2&records=100000&epsilon=1&delta=1e-6&gap=0.1&tail=2&batches=3&contributions=1"
    )
    paths = [
        "/metrics",
        "/readyz",
        "/v1/streams",
        "/v1/streams/s",
        "/v1/streams/s/budget",
        "/v1/streams/s/releases/latest?format=npz",
        "/v1/streams/s/releases/1",
        "/v1/streams/s/releases?limit=5&before=3",
        "/v1/ledger/in/entries?job=s&limit=5",
        "/v1/ledger/in/spent?partition=0&offset=4711",
        plan,
        plan.replace("records=100000", "records=" + "9" * 30),
        plan.replace("epsilon=1", "epsilon=1e308").replace("delta=1e-6", "delta=5e-324"),
        "/v1/streams/%00%ff%2e%2e",
        "/v1/openapi.json",
    ]
    return [
        *map(request, paths),
        request("/v1/ledger/in/verification", "POST", b'{"a": [1e308]}', "Content-Type: application/json"),
        request("/v1/streams", "POST", b"[" * 10_000),
        request("/v1/streams", "HEAD", b"", "If-None-Match: " + "W/" * 2000, "Accept-Encoding: gzip;q=nan"),
        request("/v1/streams", "GET", b"", *(f"X-{i}: {'y' * 20}" for i in range(500))),
        request("/v1/streams", "GET", b"", "Cookie: " + "x" * 20_000),
        request("/v1/streams", "GET", b"", "Content-Length: 9" + "9" * 4999),
        request("/v1/streams", "GET", b"", "Content-Length: -1"),
        request("/v1/streams", "POST", b"", "Transfer-Encoding: chunked") + b"ffffffffffffffff\r\n",
        request("/v1/streams", "POST", b"", "Transfer-Encoding: chunked")
        + b"1\r\na\r\n" * 3000
        + b"0\r\n\r\n",
        request("/v1/events", "GET", b"", "Last-Event-ID: \xff"),
        request("/v1/streams?" + "a=1&" * 3000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" + bytes(500),
        b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n\x00\xff no request\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n" * 100,
    ]


_PATIENCE = 40.0
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@target("http", _http_seeds, times=16, allowance=32 * MIB, inputs=800)
def http(data: bytes) -> None:
    """Send bytes to the server: it answers without an internal error, and continues to serve."""
    answer = _exchange(data)
    if b"HTTP/1.1 500" in answer or b"Traceback" in answer:
        raise Broken(f"the server fails: {answer[:200]!r}")
    if _logged:
        raise Broken(f"a client fills the log: {_logged[0]}")
    if not _exchange(_HEALTH, _PATIENCE).startswith(b"HTTP/1.1 200"):
        raise Broken("the server has stopped")


def _exchange(data: bytes, seconds: float = 1.0) -> bytes:
    """Send bytes, shut down writing, and return the answer."""
    found = b""
    # A server may close the connection while it refuses a request, and a stream of events does not end.
    with (
        suppress(TimeoutError, ConnectionError),
        socket.create_connection(_server().place, timeout=seconds) as connection,
    ):
        with suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        while len(found) < MIB and (more := connection.recv(2**16)):
            found += more
            if b"text/event-stream" in found:
                break
    return found


# -- settings -------------------------------------------------------------------------------------


def _settings_seeds() -> Sequence[bytes]:
    root = Path(__file__).parents[2]
    good = """
[kafka]
bootstrap_servers = "localhost:9092"
[worker]
tick_seconds = 0.5
[http]
port = 9464
[stream]
name = "s"
input = "in"
dim = 5
rank = 2
epsilon = 1.0
delta = 1e-6
bounds = [-1.0, [1, 2, 3, 4, 5]]
scale = [1, 2, 3, 4, 5]
centering = "auto"
[stream.options]
n_records = 1000
first_batch = 100
"""
    several = (
        good.replace('name = "s"\n', "") + '[[streams]]\nname = "a"\n[[streams]]\nname = "b"\nepsilon = 2\n'
    )
    seeds = [good, several, (root / "deploy/compose/flights.toml").read_text()]
    return [
        *(each.encode() for each in seeds),
        good.replace("dim = 5", "dim = " + "9" * 5000).encode(),
        good.replace("dim = 5", "dim = 1" + "0" * 300).encode(),
        good.replace("epsilon = 1.0", "epsilon = 1e999").encode(),
        good.replace("epsilon = 1.0", "epsilon = nan").encode(),
        good.replace("n_records = 1000", "n_records = 10" + "0" * 4000).encode(),
        b"a = " + b"[" * 50_000,
        b"a = " + b"{b = " * 50_000,
        b"[" + b"a." * 500 + b"a]",
        b"a" * MIB,
        good.encode("utf-16"),
    ]


@target("settings", _settings_seeds, times=64, inputs=1000)
def settings(data: bytes) -> None:
    """Load a settings file."""
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        try:
            load_streams(Path(file.name))
        except ConfigurationError as error:
            for line in error.lines:
                # It repeats names of the file, however long these are.
                check_line(line, len(data) + 2000)
