"""Brokers that hang, internal errors, and absurd plans get answers in bounded time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streaming_pca.dashboard.observing import lookup
from streaming_pca.dashboard.observing.logs import TopicsLost
from streaming_pca.dashboard.observing.observer import Observer
from streaming_pca.service.errors import BrokerUnreachable, TopicError
from tests.dashboard.api.conftest import ApiSite
from tests.dashboard.offline import Offline, made_offline
from tests.dashboard.streams import make_stream
from tests.ports import steady_port
from tests.service.http.running import Running, serving
from tests.waiting import LIMIT, wait_for

_HANGS = 4.0
"""Seconds after which these servers give up on a broker."""


class Troubled:
    """Observer whose threads have lost the broker; a test may replace its answers."""

    def __init__(self) -> None:
        made = make_stream(f"127.0.0.1:{steady_port()}", "away", topics=False)
        self.observer = Observer([made.settings])
        self.observer._watched.report("topics", "the broker does not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observer, name)


@pytest.fixture
def troubled() -> Troubled:
    return Troubled()


@pytest.fixture
def server(troubled: Troubled) -> Iterator[Running]:
    # Another test covers how the observer's thread detects a missing broker.
    site = ApiSite(troubled, runs=False, broker_seconds=_HANGS)
    with serving(site=site, requests_per_second=10_000) as running:
        yield running


def detail(answer: Any, status: int) -> str:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json["detail"])


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*given: Any) -> Any:
        raise error

    return fail


def test_a_broker_that_is_away_is_503_where_it_is_needed(server: Running) -> None:
    assert server.ask("/v1/streams").status == 200
    assert server.ask("/v1/streams/away").json["last_release"] is None
    for path in ("streams/away/releases/latest", "streams/away/budget", "streams/away/releases/3"):
        answer = server.ask(f"/v1/{path}")
        assert "\n" not in detail(answer, 503), path
        assert answer.headers["retry-after"] == "5"


PARTIAL = [
    *(f"streams/away/{path}" for path in ("budget", "history", "releases", "releases/latest", "releases/1")),
    *(f"ledger/in-away{path}" for path in ("", "/entries", "/records/0/5")),
]
"""Paths whose answers would not show that topics are still being read."""


@pytest.fixture
def partly() -> Iterator[tuple[Running, Offline]]:
    """Serve a stream with a release, while other topics are still being read."""
    offline = Offline(made_offline("away"))
    offline.publish("away")
    offline.observer._watched.is_loaded = False
    offline.observer._watched.refresh()
    with serving(site=ApiSite(offline.observer, runs=False), requests_per_second=10_000) as running:
        yield running, offline


@pytest.mark.parametrize("path", PARTIAL)
def test_partial_numbers_are_503_until_all_topics_are_read(
    partly: tuple[Running, Offline], path: str
) -> None:
    server, offline = partly
    assert "still being read" in detail(server.ask(f"/v1/{path}"), 503)
    offline.observer._watched.load()
    assert server.ask(f"/v1/{path}").status == 200
    # Answers from memory remain without the broker.
    offline.observer._watched.report("topics", "the broker does not answer")
    assert server.ask(f"/v1/{path}").status == 200


def test_answers_that_show_whether_all_topics_are_read_are_given_before(
    partly: tuple[Running, Offline],
) -> None:
    server, _ = partly
    for path in ("streams", "ledger"):
        assert not server.ask(f"/v1/{path}").json["connection"]["loaded"]
    assert server.ask("/v1/streams/away").json["health"]["reasons"] == ["The topics are still being read."]


@pytest.mark.parametrize("path", [path for path in PARTIAL if path != "ledger/in-away"])
def test_a_topic_that_cannot_be_read_is_503_with_its_problem(
    partly: tuple[Running, Offline], path: str
) -> None:
    server, offline = partly
    watched, problem = offline.observer._watched, "topic 'x' may not be read by this user"
    watched.load()
    for topic in watched.topics.values():
        topic.problem = problem
    watched.refresh()
    assert detail(server.ask(f"/v1/{path}"), 503) == problem


def test_a_permission_that_was_just_withdrawn_is_503(
    partly: tuple[Running, Offline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads topics has not found out yet."""
    server, offline = partly
    offline.observer._watched.load()
    offline.observer._watched.streams["away"].releases.latest = None
    monkeypatch.setattr(lookup, "_search", raising(TopicsLost({"away.releases"}, denied=True)))
    monkeypatch.setattr(lookup, "TopicsReader", lambda kafka: None)
    assert "may not be read" in detail(server.ask("/v1/streams/away/releases/1"), 503)


def test_hanging_calls_keep_no_other_from_its_answer_and_give_their_places_back(
    server: Running, troubled: Troubled
) -> None:
    released, asked = threading.Event(), []
    troubled.observer._watched.load()
    path = "/v1/streams/away/releases/latest"

    def hang(*given: Any) -> None:
        asked.append(given)
        released.wait(LIMIT)

    troubled.release = hang  # type: ignore[attr-defined]
    try:
        with ThreadPoolExecutor(40) as pool:
            hanging = [pool.submit(server.ask, path) for _ in range(40)]
            wait_for("calls that hang", lambda: len(asked) == 8)
            assert server.ask("/v1/streams").status == 200
            details = {detail(one.result(), 503) for one in hanging}
            assert details == {"the broker did not answer within 4 s: try again later"}
            # Waiting requests did not get a place after their time.
            assert len(asked) == 8
        assert [thread.name for thread in threading.enumerate()].count("dashboard-call") <= 8
    finally:
        released.set()
    troubled.release = raising(BrokerUnreachable("it is away"))  # type: ignore[attr-defined]
    for _ in range(20):
        assert detail(server.ask(path), 503) == "it is away"


def test_errors_of_topics_are_503_in_a_line(server: Running, troubled: Troubled) -> None:
    troubled.observer._watched.load()
    troubled.record_charge = raising(TopicError("no leader\nand more"))  # type: ignore[attr-defined]
    assert detail(server.ask("/v1/ledger/in-away/records/0/1"), 503) == "no leader"


def test_an_error_inside_says_nothing_to_the_client(
    server: Running, troubled: Troubled, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "/etc/passwd of record 17"
    troubled.stream = raising(ValueError(secret))  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR):
        answer = server.ask("/v1/streams/away")
    assert detail(answer, 500) == "the server failed on this request: see its log"
    assert secret.encode() not in answer.body
    assert "ValueError" in caplog.text
    assert server.ask("/v1/streams").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "dim=8192&rank=8192&records=10000000000&epsilon=1e12&delta=0.999&batches=10000&contributions=10000",
        "dim=8192&rank=1&records=10000000000&epsilon=1e-300&delta=1e-300&contributions=10000",
        "dim=1&rank=1&records=1&epsilon=1e-12&delta=0.5&tail=1000000",
        "dim=2&rank=1&records=10000000000&epsilon=5e-324&delta=5e-324&gap=1e-12&tail=1000000",
    ],
)
def test_absurd_plans_are_answered_soon(server: Running, query: str) -> None:
    # The client waits no longer than the limit of all waits.
    answer = server.ask(f"/v1/plan?{query}")
    assert answer.status in (200, 422), answer.body
    assert len(answer.body) < 2**20
    assert b"NaN" not in answer.body
    assert b"Infinity" not in answer.body


def test_many_plans_at_once_are_all_answered(server: Running) -> None:
    path = "/v1/plan?dim=8192&rank=10&records=10000000000&epsilon=1e-9&delta=1e-300&batches=10000"
    with ThreadPoolExecutor(20) as pool:
        found = {answer.status for answer in pool.map(server.ask, [path] * 20)}
    assert found <= {200, 503}
    assert 200 in found
