"""Signals that ask a process to finish its work and stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` in the event loop on SIGTERM or SIGINT within the block."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        # uvloop would leave its SIGINT handler installed, and a later Ctrl-C would do nothing.
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
