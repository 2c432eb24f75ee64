"""Wait for what a thread, a process or a broker does, with one limit for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 120.0
"""Seconds that nothing should take on a machine that is busy with other tests and compilers."""


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    seconds: float = LIMIT,
    seen: Callable[[], str] = str,
    pause: float = 0.05,
) -> T:
    """Return what a probe returns once it is true; fail with what was seen when that takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}\n{seen()}"
        time.sleep(pause)
    return found
