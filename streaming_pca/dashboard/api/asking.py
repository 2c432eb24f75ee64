"""Blocking calls in separate threads, bounded in number and time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Busy(Exception):
    """A blocking call did not return in time."""


class Asker:
    """Runner of blocking calls.

    A call that hangs keeps its thread, and its slot, until it ends: at most ``most`` can hang. The threads
    are daemons, so that a hanging call does not prevent the process from exiting.

    Parameters
    ----------
    most : int
        Largest number of concurrent calls; others wait.
    seconds : float
        Longest time for an answer, waiting included.
    what : str
        Subject of the error message after a timeout.
    """

    def __init__(self, most: int, seconds: float, what: str) -> None:
        self._free = most
        self._seconds, self._what = seconds, what
        self._waiting: list[asyncio.Future[None]] = []

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer, or raise its error.

        Raises
        ------
        Busy
            If the call did not return in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._take_turn()
                return await self._run(question)
        except TimeoutError:
            raise Busy(f"{self._what} did not answer within {self._seconds:g} s: try again later") from None

    async def _take_turn(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled():
                self._give_turn()
            raise

    def _give_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _run(self, question: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def finish(value: T | None, error: BaseException | None) -> None:
            self._give_turn()
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value, failed = None, None
            try:
                value = question()
            except BaseException as error:
                # A TimeoutError would be mistaken for this class's time limit.
                failed = Busy(f"{self._what} did not answer") if isinstance(error, TimeoutError) else error
            try:
                loop.call_soon_threadsafe(finish, value, failed)
            except RuntimeError:
                # The server has stopped, and its loop is closed.
                return

        try:
            threading.Thread(target=work, name="dashboard-question", daemon=True).start()
        except RuntimeError:
            self._give_turn()
            raise Busy("the process has no threads left: try again later") from None
        return answer
