"""The observer with a real worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from streaming_pca.admin.watch import FollowedRelease, follow_releases
from streaming_pca.dashboard.models import Batches
from streaming_pca.dashboard.observing.observer import Observer
from tests.kafka.stream import STEADY_MS, Stream
from tests.waiting import wait_for


def test_it_shows_what_a_worker_does(
    fork_server: None,
    kafka_bootstrap: str,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    observe: Callable[..., Observer],
) -> None:
    how: dict[str, Any] = {"epsilon": 5.0, "cap": ("6", "1e-5"), "worker": {"stop_when_done": False}}
    stream = Stream.make(kafka_bootstrap, unique_name("led"), tmp_path, session_ms=STEADY_MS, **how)
    name, topic = stream.settings.stream.name, stream.settings.stream.input
    try:
        observer = observe(stream.settings)
        worker = stream.start()
        wait_for("the leader", lambda: (leader := observer.stream(name).leader) and leader.present)
        for batch in (1, 2, 3):
            stream.produce_vectors(stream.vectors(100, seed=batch))
            wait_for("the batch", partial(_has, observer, name, batch))
        batches = Batches(committed=3, abandoned=0, released=3)
        wait_for("the batches", lambda: observer.stream(name).batches == batches)
        detail = observer.stream(name)
        assert detail.leader is not None
        assert (detail.leader.candidates, detail.records) == (1, 300)
        assert detail.budget is not None
        assert (detail.budget.by_all.epsilon, detail.budget.left.epsilon) == ("5", "1")
        releases = stream.releases()
        history = observer.history(name)
        assert history.explained_variance == [r.explained_variance for r in releases]
        how = {"from_beginning": True, "stopped": lambda: False}
        with closing(follow_releases(stream.settings.kafka, f"{name}.releases", **how)) as items:
            followed = [next(filter(None, items)) for _ in range(3)]
        angles = [item.principal_angle for item in followed if isinstance(item, FollowedRelease)]
        assert [a and a[0] for a in history.angles] == angles
        # Diagnostics are on by default; exact counts never leave the worker.
        shares = [(r.null_records or 0.0) / (r.batch_records or 1) for r in releases]
        assert history.null_share == [min(max(share, 0.0), 1.0) for share in shares]
        observer.verify(topic)
        wait_for("the verification", lambda: observer.verification(topic).state not in ("never", "running"))
        assert observer.verification(topic).problems == []
        assert observer.verification(topic).state == "verified"

        stream.produce_vectors(stream.vectors(30))
        worker.stop()
        wait_for("the leader's end", lambda: (leader := observer.stream(name).leader) and not leader.present)
        wait_for("the lag", lambda: (lag := observer.stream(name).lag) and lag.total >= 30)
        assert observer.stream(name).health.level == "problem"
        group = stream.settings.worker.group
        assert f"No worker of group {group!r} leads it." in observer.stream(name).health.reasons[0]
    finally:
        stream.destroy()


def _has(observer: Observer, name: str, batch: int) -> bool:
    return batch in observer.history(name).batch
