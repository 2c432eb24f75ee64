"""Blocking calls in separate threads, limited in number and time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Overloaded(Exception):
    """No answer in time, or topics that have not been read to their ends."""


class Limiter:
    """Limit of concurrent blocking calls, and of the time for each.

    A call that hangs keeps its thread, and its place, until it ends: at most ``most`` can hang. The threads
    are daemons, unlike those of asyncio and anyio, so that a hanging call does not delay the process's exit.
    The seconds include the wait for a place. After a timeout, ``what`` is the subject of the error message.
    """

    def __init__(self, most: int, seconds: float, what: str) -> None:
        self._places = asyncio.Semaphore(most)
        self._seconds, self._what = seconds, what

    async def call(self, function: Callable[[], T]) -> T:
        """Return the function's result, or raise its error, or Overloaded after the time limit."""
        result: Future[T] = Future()
        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
                self._start(function, result)
                return await asyncio.wrap_future(result)
        except TimeoutError:
            late = f"{self._what} did not answer within {self._seconds:g} s: try again later"
            raise Overloaded(late) from None

    def _start(self, function: Callable[[], T], result: Future[T]) -> None:
        loop = asyncio.get_running_loop()
        result.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result.set_result(function())
            except TimeoutError:
                # It would be mistaken for this class's time limit.
                result.set_exception(Overloaded(f"{self._what} did not answer"))
            except BaseException as error:
                result.set_exception(error)
            with suppress(RuntimeError):
                # Raised once the server has stopped, and its loop is closed.
                loop.call_soon_threadsafe(self._places.release)

        try:
            threading.Thread(target=work, name="dashboard-call", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise Overloaded("the process has no threads left: try again later") from None
