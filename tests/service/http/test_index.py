"""The root of a worker's server has links; a port that is in use is an error that names the remedy."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pydantic import SecretStr

from streaming_pca.config.environment import variable_name
from streaming_pca.config.http import HttpSettings
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.http.index import index_page
from streaming_pca.service.http.server import HttpServer
from tests.config.refusals import refusal
from tests.service.http.running import TOKEN, Running, serving


@pytest.fixture(scope="module", params=[{}, {"token": SecretStr(TOKEN)}], ids=["open", "token"])
def worker(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Yield a server as a worker without the dashboard has it."""
    with serving(has_site=False, **request.param) as running:
        running.roles["a&b"] = "standby"
        yield running


def links(page: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', page)


def test_each_link_of_the_page_leads_to_an_answer(worker: Running) -> None:
    answer = worker.ask("/", token=TOKEN)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    paths = links(answer.body.decode())
    assert paths == ["healthz", "readyz", "metrics"]
    # Relative, so that they also lead through a proxy that serves the worker below a path.
    assert [worker.status(f"/{path}", token=TOKEN) for path in paths] == [200, 200, 200]


def test_streams_are_shown_only_to_clients_that_may_see_them(worker: Running) -> None:
    row = "<tr><td>a&amp;b</td><td>standby</td></tr>"
    assert row in worker.ask("/", token=TOKEN).body.decode()
    page = worker.ask("/").body.decode()
    is_open = worker.status("/metrics") == 200
    assert (row in page) is is_open
    assert ("standby" in page) is is_open
    assert ("with the token" in page) is not is_open
    assert worker.ask("/", Host="evil.example").status == 421


def test_a_server_without_metrics_has_no_link_to_them() -> None:
    page = bytes(index_page(metrics=False, token=False, roles=None).body).decode()
    assert links(page) == ["healthz", "readyz"]


def test_the_page_names_its_documentation() -> None:
    page = bytes(index_page(metrics=True, token=False, roles=None).body).decode()
    assert "Documentation: <code>docs/how-to/monitor.md</code>" in page


@pytest.mark.parametrize(
    ("option", "names"),
    [
        (None, ["http.port", variable_name(("http", "port")), "http.enabled = false"]),
        ("--port", ["with --port"]),
        ("--http-port", ["with --http-port"]),
    ],
)
def test_a_port_in_use_is_an_error_that_names_what_to_change(option: str | None, names: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(StreamRefused, HttpServer, HttpSettings(port=port), port_option=option)
    problem, _, remedy = line.partition("): ")
    in_use = f"cannot listen on 127.0.0.1:{port} (another process uses this port"
    assert problem == f"{option or 'http.port'}: {in_use}"
    assert all(name in remedy for name in [*names, "0 for a free one"])


def test_port_0_takes_a_free_port() -> None:
    first, second = (HttpServer(HttpSettings(port=0)) for _ in range(2))
    with closing(first._socket), closing(second._socket):
        assert len({first.address, second.address}) == 2


@pytest.mark.parametrize(("option", "setting"), [(None, "http.host"), ("--port", "--host")])
def test_an_address_of_another_machine_is_no_fault_of_the_port(option: str | None, setting: str) -> None:
    # Reserved for documentation (RFC 5737), so no machine has it.
    elsewhere: dict[str, Any] = {"host": "192.0.2.1", "token": SecretStr(TOKEN)}
    line = refusal(StreamRefused, HttpServer, HttpSettings(**elsewhere), port_option=option)
    assert line.startswith(f"{setting}: cannot listen on 192.0.2.1:9464 ")
    assert "name an address" in line
