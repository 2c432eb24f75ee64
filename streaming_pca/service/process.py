"""Shell of a serving process: signals, event loop, exit status, and patience with a failing broker."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import uvloop

from streaming_pca.config.settings import WorkerSettings
from streaming_pca.service.errors import BrokerUnreachable, DeadlineExceeded, exit_status
from streaming_pca.service.executors import first_of

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_SECONDS = 1.0  # pause after a failure of the broker

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


def end_process(reason: object, successor: str) -> NoReturn:
    """End the process without waiting for its threads, which may hang."""
    try:
        log.error("%s: ending the process; the next one %s", reason, successor)
        logging.shutdown()
    finally:
        # Also if logging fails because its pipe ended, for example with the spark-submit process.
        os._exit(4)


def run_process(serve: Callable[[], Coroutine[Any, Any, int]], successor: str) -> int:
    """Run an event loop; return the exit status, which ``serve`` returns for a normal end.

    ``successor`` is for the log: how the next process continues after a step that hangs.
    """
    try:
        with warnings.catch_warnings():
            # A library's warning about a number could reveal records or noise.
            warnings.simplefilter("ignore")
            return uvloop.run(serve())
    except DeadlineExceeded as error:
        end_process(error, successor)
    except Exception as error:
        status = exit_status(error)
        if status is None:
            raise  # a bug
        log.error("%s", error)
        return status


class Patience:
    """Limit on the time of repeated failures without progress: ``worker.give_up_seconds``.

    Time while work went well does not count. Three times as much as one step may take is progress: no
    stalled step ends so late.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._seconds = settings.give_up_seconds
        self._progress = 3 * settings.step_deadline_seconds
        self._since: float | None = None

    def reset(self) -> None:
        """Start again: there was progress."""
        self._since = None

    def is_over(self, started: float) -> bool:
        """Note a failure of work that went well from ``started`` on, or never (infinity).

        Returns whether to give up, which the log then has.
        """
        now = time.monotonic()
        went_well = max(now - started, 0.0)
        if self._since is None or went_well > self._progress:
            self._since = now
        else:
            self._since += went_well
        if now - self._since <= self._seconds:
            return False
        log.warning("giving up: no progress for %.0f s (worker.give_up_seconds)", now - self._since)
        return True


async def patiently(
    ask: Callable[[], Awaitable[T]],
    patience: Patience,
    stopping: asyncio.Event,
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    broker_reached: Callable[[], bool] = lambda: False,
) -> T:
    """Look for topics; retry if a broker has responded, now or, by ``broker_reached``, earlier."""
    while True:
        try:
            found = await ask()
        except BrokerUnreachable as error:
            await first_of(stopping, seconds=RETRY_SECONDS)
            if stopping.is_set() or not (error.may_pass or broker_reached()) or patience.is_over(math.inf):
                raise
            log.warning("looking for the topics again: %s", error)
        else:
            patience.reset()
            return found
