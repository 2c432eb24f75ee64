"""The clock reads end offsets in its own process, and the worker notices failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input.clock import settings_line
from streaming_pca.service.input.end_offsets import EndOffsetPoller, EndOffsets, OffsetFeed
from tests.kafka.conftest import Make
from tests.kafka.stream import Stream
from tests.security.needles import secret
from tests.waiting import wait_for

TICK = 0.05


def ticking(stream: Stream, **limits: int) -> closing[EndOffsetPoller]:
    return closing(EndOffsetPoller(stream.settings.kafka.model_copy(update=limits), TICK, 0.2))


def opened(clock: EndOffsetPoller, stream: Stream, partitions: int = 2) -> OffsetFeed:
    return clock.open_feed(stream.settings.stream.input, range(partitions), lambda: None)


def taken(feed: OffsetFeed, ends: dict[int, int]) -> EndOffsets:
    """Return the first end offsets equal to ``ends``."""

    def probe() -> EndOffsets | None:
        found = feed.next()
        return found if found is not None and found.ends == ends else None

    return wait_for(f"ends {ends}", probe)


def process_of(clock: EndOffsetPoller) -> int:
    assert clock._process is not None
    return clock._process.pid


def test_a_feed_shows_every_end_in_order(make_stream: Make) -> None:
    stream = make_stream(partitions=2)
    with ticking(stream) as clock:
        feed = opened(clock, stream)
        first = taken(feed, {0: 0, 1: 0})
        assert first.time >= feed.started
        stream.produce([b"x"] * 6)
        assert taken(feed, {0: 3, 1: 3}).time > first.time


def test_two_feeds_of_a_topic_share_its_ticks(make_stream: Make) -> None:
    stream = make_stream(partitions=2)
    with ticking(stream) as clock:
        one, other = opened(clock, stream), opened(clock, stream)
        wait_for("both", lambda: one.last and other.last)
        clock.close_feed(one)
        stream.produce([b"x"] * 2)
        taken(other, {0: 1, 1: 1})
        assert one.last == {0: 0, 1: 0}


def test_the_process_that_ends_is_noticed_and_made_anew(make_stream: Make) -> None:
    stream = make_stream(partitions=2)
    with ticking(stream) as clock:
        feed = opened(clock, stream)
        taken(feed, {0: 0, 1: 0})
        gone = process_of(clock)
        os.kill(gone, signal.SIGKILL)
        with pytest.raises(SessionLost, match="the clock's process ended"):
            wait_for("the end", lambda: feed.next() is not None)
        taken(opened(clock, stream), {0: 0, 1: 0})
        assert process_of(clock) != gone


def test_a_topic_that_is_deleted_fails_its_feed_alone(make_stream: Make) -> None:
    stream, other = make_stream(partitions=2), make_stream(partitions=2)
    # A topic has to be silent for this long.
    with ticking(stream, request_timeout_ms=8000) as clock:
        lost, kept = opened(clock, stream), opened(clock, other)
        taken(lost, {0: 0, 1: 0})
        taken(kept, {0: 0, 1: 0})
        stream.delete("input")
        with pytest.raises(SessionLost, match="the topic is gone"):
            wait_for("the end", lambda: lost.next() is not None)
        other.produce([b"x"] * 2)
        taken(kept, {0: 1, 1: 1})


def test_it_ends_with_the_worker_however_that_ended() -> None:
    command = [sys.executable, "-m", "streaming_pca.service.input.clock"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(settings_line(KafkaSettings(bootstrap_servers="127.0.0.1:1"), TICK, 1.0))
    process.stdin.flush()
    # Signals are meant for the worker; the clock ends when its input ends.
    wait_for("its handlers", lambda: ignores_sigterm(process.pid))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(timeout=120) == 0
    process.stdout.close()


def ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


def test_passwords_reach_it_by_its_input() -> None:
    login: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    settings = KafkaSettings(**login, sasl_username="u", sasl_password=secret("clock"))
    assert secret("clock").encode() in settings_line(settings, TICK, 1.0)
    registry = RegistrySettings(url="https://a.example", username="u", password=secret("registry"))
    assert secret("registry").encode() in settings_line(KafkaSettings(), TICK, 1.0, registry)
    assert secret("registry") not in f"{registry!r} {registry} {registry.model_dump(mode='json')}"
