"""Between the clock's process and the worker: no tick waits for a reader, no feed for a dead process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from streaming_pca.config.settings import KafkaSettings
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input.clock import event_writer
from streaming_pca.service.input.end_offsets import EndOffsetPoller


def test_a_worker_that_does_not_read_holds_up_no_tick() -> None:
    back, forth = os.pipe()
    with os.fdopen(back, "rb") as lines, os.fdopen(forth, "wb") as out:
        told, gone = threading.Event(), threading.Event()
        tell = event_writer(out, gone.set)

        def tick() -> None:
            for at in range(5000):  # a pipe holds some 1,000
                tell({"at": at, "ends": {"topic": [0] * 10}})
            told.set()

        threading.Thread(target=tick, daemon=True).start()
        held_up = not told.wait(120)
        read = []
        while len(read) < 5000:
            if (line := lines.readline()) != b"\n":
                read.append(line)
    assert not held_up
    assert read[-1].startswith(b'{"at": 4999,')
    # It says something every second, and so notices.
    assert gone.wait(120)


def test_a_process_that_is_killed_while_it_writes_fails_its_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdin.readline()\nsys.stdin.readline()\n"
        'sys.stdout.write(\'{"at": 1e9, "ends": {"to\')\n'
    )
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    clock, failed = EndOffsetPoller(KafkaSettings(), 0.1, 1.0), threading.Event()
    try:
        feed = clock.open_feed("topic", [0], failed.set)
        assert failed.wait(120)
        with pytest.raises(SessionLost, match="the clock's process ended"):
            feed.check()
    finally:
        clock.close()
