"""The observer beside a broker that is away, is killed, comes back, or stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from streaming_pca.dashboard.models import Event
from streaming_pca.dashboard.observing.observer import Observer
from streaming_pca.dev.cluster import KafkaCluster
from streaming_pca.service.kafka.clients import BrokerUnreachable
from tests.dashboard.streams import make_stream
from tests.dashboard.waiting import wait_for

Observe = Callable[..., Observer]

STOP_SECONDS = 4.5
"""Below the 5 s that a request to a broker that is away takes to fail."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return make_cluster(nodes=1, replication=1, in_sync=1)


def stops_in_time(observer: Observer) -> None:
    begun = time.monotonic()
    observer.stop()
    assert time.monotonic() - begun < STOP_SECONDS


def test_it_starts_without_a_broker(observe: Observe) -> None:
    away = make_stream("127.0.0.1:1", "away", topics=False)
    begun = time.monotonic()
    observer = observe(away, loaded=False)
    # It does not wait for the broker, which would take 3 s.
    assert time.monotonic() - begun < 2.9
    (summary,) = observer.overview().streams
    assert (summary.name, summary.records, summary.health.level) == ("away", None, "unknown")
    wait_for(lambda: not observer.overview().connection.ok)
    connection = observer.overview().connection
    assert connection.problem is not None
    assert "127.0.0.1:1" in connection.problem
    assert "\n" not in connection.problem
    assert not connection.loaded
    assert observer.stream("away").health.level == "unknown"
    assert observer.history("away").batch == []
    assert observer.ledger("in-away").entries == 0
    stops_in_time(observer)


@pytest.mark.slow
def test_numbers_stay_while_the_broker_is_away(cluster: KafkaCluster, observe: Observe) -> None:
    stream = make_stream(cluster.bootstrap, "struck", releases=4)
    name, topic = stream.name, stream.settings.stream.input
    observer = observe(stream)
    wait_for(lambda: observer.stream(name).lag)
    heard: list[Event] = []
    observer.listen(heard.append)
    for strike, mend in ((cluster.kill, cluster.start), (cluster.stop, cluster.go_on)):
        before = observer.stream(name)
        released = observer.history(name)
        heard.clear()
        strike(1)
        wait_for(lambda: not observer.overview().connection.ok, 30)
        wait_for(lambda: "connection" in [e.kind for e in heard])
        connection = observer.overview().connection
        assert connection.loaded
        assert connection.problem is not None
        assert "\n" not in connection.problem
        after = observer.stream(name)
        assert after.model_copy(update={"health": before.health}) == before
        assert (after.health.level, len(after.health.reasons)) == ("unknown", 1)
        assert observer.history(name) == released
        assert observer.release(name)[0] == stream.values[-1]
        assert observer.record_charge(topic, 0, 5).spent.epsilon == "1"
        begun = time.monotonic()
        with pytest.raises(BrokerUnreachable):
            observer.release(name, 1)
        # It does not ask: a request would take 5 s to fail.
        assert time.monotonic() - begun < 4.5
        # Another one, begun now, ends in time too, and so do its threads when their requests do.
        second = observe(stream, loaded=False)
        time.sleep(1)
        stops_in_time(second)
        mend(1)
        wait_for(lambda: observer.overview().connection.ok, 60)
        wait_for(lambda: threading.active_count() <= _threads_of(observer), 30)
        assert observer.release(name, 1)[0] == stream.values[0]
        stream.publish()
        wait_for(lambda: observer.history(name).batch[-1] == len(stream.values), 30)
        assert observer.history(name).batch == list(range(1, len(stream.values) + 1))
        wait_for(lambda: observer.stream(name).records == 100 * len(stream.values))
        news = [(e.kind, e.batch) for e in heard]
        assert ("release", len(stream.values)) in news
        assert [kind for kind, _ in news].count("connection") >= 2
    stops_in_time(observer)


def _threads_of(observer: Observer) -> int:
    """Return how many threads there are when only this observer's and the client's are left."""
    own = {thread for thread in threading.enumerate() if not thread.name.startswith("dashboard-")}
    return len(own) + len(observer._threads)
