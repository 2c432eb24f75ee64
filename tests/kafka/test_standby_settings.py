"""A standby with wrong settings is refused while standing by, not when it is needed."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from streaming_pca.admin.topics import create_with_cap
from streaming_pca.config.settings import Settings
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.topics.find import describe_topics
from tests.kafka.admin.test_operations import get
from tests.kafka.conftest import Make
from tests.kafka.stream import Child, Stream, check_books
from tests.waiting import wait_for

CAP = Cap(epsilon="1", delta="1e-6")
"""Cap of the streams in these tests."""
ENDLESS: dict[str, Any] = {"stop_when_done": False}


def start(stream: Stream, *settings: Settings) -> tuple[Child, str]:
    """Start a worker of some streams; return it and the address of its readiness check."""
    watched = [
        s.model_copy(update={"http": s.http.model_copy(update={"enabled": True, "port": 0})})
        for s in settings
    ]
    child = Child(watched, stream.directory / str(len(stream.children)), poll_seconds=1.0)
    stream.children.append(child)
    child.logs("metrics and health on ")
    found = re.search(r"on (http://\S+)", child.log)
    assert found is not None
    return child, f"{found[1]}/readyz"


def wait_until_ready(address: str, **roles: str) -> None:
    """Wait until a worker is ready in these roles; it must never be ready in others."""

    def ready() -> bool:
        status, text = get(address)
        body = json.loads(text)
        assert status == (200 if body["ready"] else 503)
        assert not body["ready"] or body["streams"] == roles, body
        return bool(body["ready"])

    wait_for(f"{roles}", ready)


def test_a_standby_with_other_settings_ends_and_is_not_ready(make_stream: Make) -> None:
    options = {"clip_l2": 10.0, "batch_size": 100, "oversampling": 2}
    how: dict[str, Any] = {"worker": ENDLESS, "estimator": "noisy-power", "centering": "none"}
    # Nobody may lose its session; but each rebalance waits for heartbeats, a fifth of this.
    stream = make_stream(session_ms=10_000, options=options, **how)
    name, group = stream.settings.stream.name, stream.settings.worker.group
    leader = stream.start()
    leader.logs("leading stream")
    # The stream has not begun, and could begin with either of these settings.
    alike, at_alike = start(stream, stream.settings)
    other, at_other = start(stream, stream.changed(epsilon=0.5))
    for address in (at_alike, at_other):
        wait_until_ready(address, **{name: "standby"})
    stream.produce_vectors(stream.vectors(100))
    leader.logs("batch 1 released")
    reason = f"stream.epsilon is 0.5, but the ledger has 1.0 for stream {name!r}: set it back, or choose a"
    assert reason in other.refusal()
    # Options may change, but not to values that the state cannot have.
    unfit, _ = start(stream, stream.changed(options=options | {"oversampling": 1}))
    words = f"the state of stream {name!r} was written by another version or with other stream.options"
    assert words in unfit.refusal()

    # Now it has begun. The same next to another stream, which continues; the process is never ready.
    extra = make_stream(session_ms=10_000, worker=ENDLESS | {"group": group})
    both, at_both = start(extra, stream.changed(epsilon=0.5), extra.settings)
    both.logs(f"leading stream {extra.settings.stream.name}")

    def refused() -> Any:
        status, text = get(at_both)
        assert status == 503, text
        return json.loads(text).get("refused")

    assert reason in wait_for("the refusal", refused)[name]
    extra.produce_vectors(extra.vectors(100))
    both.logs("batch 1 released")
    both.signal(signal.SIGTERM)
    assert reason in both.refusal()

    # A standby whose settings agree takes over.
    wait_until_ready(at_alike, **{name: "standby"})
    leader.stop()
    stream.produce_vectors(stream.vectors(200, seed=1))
    alike.logs("batch 2 released")
    alike.stop()
    check_books(stream)


def test_a_stream_that_has_begun_on_another_input_is_refused(make_stream: Make) -> None:
    stream, other = make_stream(worker=ENDLESS), make_stream()
    stream.produce_vectors(stream.vectors(150))
    leader = stream.start()
    leader.logs("batch 1 released")
    mistaken, _ = start(stream, stream.changed(input=other.settings.stream.input))
    reason = "belongs to another input topic than the present"
    assert reason in mistaken.refusal()
    # No topics are created for it either.
    nowhere = stream.changed(input=f"{other.settings.stream.input}-nowhere")
    with pytest.raises(StreamRefused, match=reason):
        create_with_cap([nowhere], CAP, "basic", 1, 1)
    for topic in describe_topics(stream.settings.kafka, [nowhere.stream.input], "it"):
        assert topic["error_code"]
    assert create_with_cap([stream.settings], CAP, "basic", 1, 1)[0] == []
    leader.stop()
    check_books(stream)
