"""`streaming-pca watch` explains once, before the first release, why it may have to wait."""

from __future__ import annotations

import json

import pytest

from streaming_pca.admin.watch import FollowedRelease
from streaming_pca.cli import watch as module
from tests.cli.test_watch import release


class Clock:
    """Clock that advances with each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, silent: int) -> tuple[str, str]:
    """Return the output if ``silent`` looks, a second apart, find nothing before two releases."""
    monkeypatch.setattr(module, "time", Clock(1.0))
    first, second = (FollowedRelease(release(batch), None) for batch in (1, 2))
    items = [*[None] * silent, first, *[None] * 60, second]
    module._show(iter(items), as_json=True, count=2, timeout=None, settings=None)
    printed = capfd.readouterr()
    return printed.out, " ".join(printed.err.split())


def test_a_long_silence_before_the_first_release_is_explained_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = shown(capfd, monkeypatch, 100)
    assert err.count("no release yet") == 1
    assert "compiles" in err
    assert [json.loads(line)["batch"] for line in out.splitlines()] == [1, 2]


def test_a_short_one_is_not_and_none_between_releases(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = shown(capfd, monkeypatch, 3)
    assert err == ""
