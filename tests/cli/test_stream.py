"""`streaming-pca stream`: its lines, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming_pca.admin import pause
from streaming_pca.privacy.ledger.protocol import JobStatus
from tests.cli.command import call
from tests.cli.test_app import write_config


@pytest.mark.parametrize(
    ("changed", "given", "words"),
    [
        (True, ("--reason", "x"), ""),
        (False, (), " already"),
        (False, ("--reason", "x"), " already; its reason is unchanged"),
    ],
)
def test_a_reason_that_is_not_recorded_is_named(
    changed: bool,
    given: tuple[str, ...],
    words: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = pause.Change("one", JobStatus.PAUSED, changed, 3, "released")
    monkeypatch.setattr(pause, "pause", lambda *_: change)
    config = write_config(tmp_path, "127.0.0.1:1", "one")
    done = call(capfd, "stream", "pause", "--config", config, *given)
    assert done.stdout == f"stream one is paused{words}; its last batch, 3, is released\n"
