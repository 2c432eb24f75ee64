"""Waiting for what threads and brokers do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(probe: Callable[[], T | None], seconds: float = 20.0) -> T:
    """What ``probe`` returns, once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s"
        time.sleep(0.02)
    return found
