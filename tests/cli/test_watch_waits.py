"""`streaming-pca watch` explains once, before the first release, why it may have to wait."""

from __future__ import annotations

import json
from itertools import count
from types import SimpleNamespace

import pytest

from streaming_pca.admin.watch import FollowedRelease
from streaming_pca.cli import watch as module
from tests.cli.test_watch import release

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def shown(capfd: Capture, monkeypatch: Patch, silent: int) -> tuple[str, str]:
    """Return the output if ``silent`` looks, a second apart, find nothing before two releases."""
    seconds = count(1.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    first, second = (FollowedRelease(release(batch), None) for batch in (1, 2))
    items = [*[None] * silent, first, *[None] * 60, second]
    module._show(iter(items), as_json=True, count=2, timeout=None, settings=None)
    printed = capfd.readouterr()
    return printed.out, " ".join(printed.err.split())


def test_a_long_silence_before_the_first_release_is_explained_once(
    capfd: Capture, monkeypatch: Patch
) -> None:
    out, err = shown(capfd, monkeypatch, 100)
    assert err.count("no release yet") == 1
    assert "compiles" in err
    assert "operators see by `streaming-pca status --config FILE` whether a worker runs" in err
    assert [json.loads(line)["batch"] for line in out.splitlines()] == [1, 2]


def test_a_short_one_is_not_and_none_between_releases(capfd: Capture, monkeypatch: Patch) -> None:
    assert shown(capfd, monkeypatch, 3)[1] == ""
