"""The observer while a broker is away, is killed, returns, or stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import Event
from streaming_pca.dashboard.observing import observer as observing
from streaming_pca.service.errors import BrokerUnreachable
from tests.dashboard.observing.conftest import Observe
from tests.dashboard.streams import make_stream
from tests.kafka.faulty_cluster import FaultyCluster
from tests.waiting import wait_for

LONG_MS = 40_000
"""Duration that a request to a missing broker may be made to last."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., FaultyCluster]) -> FaultyCluster:
    return make_cluster(nodes=1, replication=1, in_sync=1)


def starts_and_stops_in_time(observe: Observe, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and stop an observer whose requests last far longer than the limits of both."""
    limits = {"request_timeout_ms": LONG_MS, "bootstrap_timeout_ms": LONG_MS}
    patient = settings.model_copy(update={"kafka": settings.kafka.model_copy(update=limits)})
    with monkeypatch.context() as patch:
        patch.setattr(observing, "_REQUEST_MS", LONG_MS)
        patch.setattr(observing, "_BOOTSTRAP_MS", LONG_MS)
        begun = time.monotonic()
        observer = observe(patient, loaded=False)
        # This lets its threads begin a request.
        time.sleep(1)
        observer.stop()
    assert time.monotonic() - begun < LONG_MS / 2000


def test_it_starts_without_a_broker(observe: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    away = make_stream("127.0.0.1:1", "away", topics=False)
    starts_and_stops_in_time(observe, away.settings, monkeypatch)
    observer = observe(away, loaded=False)
    (summary,) = observer.overview().streams
    assert (summary.name, summary.records, summary.health.level) == ("away", None, "unknown")
    wait_for("the loss of the connection", lambda: not observer.overview().connection.ok)
    connection = observer.overview().connection
    assert connection.problem is not None
    assert "127.0.0.1:1" in connection.problem
    assert "\n" not in connection.problem
    assert not connection.loaded
    assert observer.stream("away").health.level == "unknown"
    assert observer.history("away").batch == []
    assert observer.ledger("in-away").entries == 0


def test_numbers_stay_while_the_broker_is_away(
    cluster: FaultyCluster, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream(cluster.bootstrap, "struck", releases=4)
    name, topic = stream.name, stream.settings.stream.input
    observer = observe(stream)
    wait_for("the lag", lambda: observer.stream(name).lag)
    heard: list[Event] = []
    observer.listen(heard.append)
    for strike, mend in ((cluster.kill, cluster.start), (cluster.stop, cluster.go_on)):
        before = observer.stream(name)
        released = observer.history(name)
        heard.clear()
        strike(1)
        wait_for("the loss of the connection", lambda: not observer.overview().connection.ok)
        wait_for("an event", lambda: "connection" in [e.kind for e in heard])
        connection = observer.overview().connection
        assert connection.loaded
        assert connection.problem is not None
        assert "\n" not in connection.problem
        after = observer.stream(name)
        # The rate of arrival may change once more before the broker is away.
        kept = {"health": before.health, "next_batch": before.next_batch}
        assert after.model_copy(update=kept) == before
        assert (after.health.level, len(after.health.reasons)) == ("unknown", 1)
        assert observer.history(name) == released
        assert observer.release(name)[0] == stream.values[-1]
        assert observer.record_charge(topic, 0, 5).spent.epsilon == "1"
        with monkeypatch.context() as patch:
            # It must not ask: a request would take 5 s to fail.
            patch.delattr(type(observer._lookup), "ask")
            with pytest.raises(BrokerUnreachable):
                observer.release(name, 1)
        # Another observer, started now, ends in time too, and its threads end with their requests.
        starts_and_stops_in_time(observe, stream.settings, monkeypatch)
        mend(1)
        wait_for("the connection", lambda: observer.overview().connection.ok)
        wait_for("the end of the threads", lambda: threading.active_count() <= _threads_of_one())
        assert observer.release(name, 1)[0] == stream.values[0]
        stream.publish()
        wait_for("the history", lambda: observer.history(name).batch[-1] == len(stream.values))
        assert observer.history(name).batch == list(range(1, len(stream.values) + 1))
        wait_for("the records", lambda: observer.stream(name).records == 100 * len(stream.values))
        # Readers have a release before listeners hear of it.
        news = ("release", len(stream.values))
        wait_for("its event", lambda: news in [(e.kind, e.batch) for e in heard])  # noqa: B023
        assert [e.kind for e in heard].count("connection") >= 2


def _threads_of_one() -> int:
    """Return the number of threads once only this observer's and the client's are left."""
    own = {thread for thread in threading.enumerate() if not thread.name.startswith("dashboard-")}
    return len(own) + 1
