"""`watch` and `status` agree with real workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from streaming_pca.admin.broker_status import describe_status
from streaming_pca.admin.watch import FollowedRelease, follow_releases
from tests.kafka.stream import Stream


def test_they_agree_with_what_a_worker_does(make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(worker={"stop_when_done": False})
    settings = stream.settings
    worker = stream.start()
    how: dict[str, Any] = {"from_beginning": True, "stopped": lambda: False}
    with closing(follow_releases(settings.kafka, settings.stream.releases_topic, **how)) as items:
        followed = []
        for _ in range(3):
            stream.produce_vectors(stream.vectors(100))
            item = next(filter(None, items))
            assert isinstance(item, FollowedRelease)
            followed.append(item)
    assert [item.release for item in followed] == stream.releases()
    assert followed[0].principal_angle is None
    assert all(item.principal_angle is not None for item in followed[1:])

    stream.produce_vectors(stream.vectors(30))
    (led,) = describe_status([settings])
    assert led["leader"] == {"present": True, "host": "127.0.0.1", "candidates": 1}
    worker.stop()
    (facts,) = describe_status([settings])
    assert facts["leader"]["present"] is False
    assert facts["problem"] is None
    assert facts["standing"] == "active"
    assert facts["batches"] == {"committed": 3, "abandoned": 0, "released": 3}
    assert facts["records"] == 300
    last = followed[-1].release
    shown = facts["last_release"]
    assert (shown["batch"], shown["created"], shown["outcome"]) == (last.batch, last.created, None)
    assert shown["doubts"] == list(last.doubts)
    assert facts["lag"]["total"] == 30
    assert facts["left"] == {"epsilon": "0", "delta": "0"}
    messages = stream.messages(settings.stream.ledger_topic)
    assert facts["ledger"] == {"entries": len(messages), "bytes": sum(len(m.value) for m in messages)}
