"""Times of contenders that take turns, so that a temporary slowdown affects all of them.

On a shared machine, ratios of medians of such times are meaningful; wall-clock times are not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["QUICK", "THOROUGH", "Call", "Effort", "idle", "interleaved", "measured", "medians"]

Call = Callable[[], object]
Clock = Callable[[], float]

_GLANCE, _LONGEST_WAIT = 0.002, 0.5


@dataclass(frozen=True)
class Effort:
    """Number of timed calls, depending on the duration of one.

    Attributes
    ----------
    total : float
        Target for the total seconds of a call's turns.
    least, most : int
        Bounds on the number of turns.
    patience : float
        Total seconds above which a slow call has fewer turns than ``least``.
    fewest : int
        Smallest number of turns of a slow call.
    """

    total: float = 0.5
    least: int = 7
    most: int = 60
    patience: float = 6.0
    fewest: int = 3

    def turns(self, seconds: float) -> int:
        """Return the turns for a call of ``seconds``."""
        if seconds <= 0:
            return self.most
        wanted = min(max(math.ceil(self.total / seconds), self.least), self.most)
        return min(wanted, max(int(self.patience / seconds), self.fewest))


THOROUGH = Effort()
QUICK = Effort(total=0.05, least=3, most=10, patience=1.0, fewest=1)


def idle() -> None:
    """Wait until all threads of this process are idle.

    OpenBLAS' threads spin for a tenth of a second after a product, and would take a core from the next call.
    """
    end = time.perf_counter() + _LONGEST_WAIT
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(_GLANCE)
        if time.process_time() - before < _GLANCE / 4:
            return


def interleaved(
    contenders: Mapping[str, Call],
    repeats: int | Mapping[str, int],
    *,
    clock: Clock = time.perf_counter,
    rest: Callable[[], None] = idle,
) -> dict[str, list[float]]:
    """Time every call, with the contenders taking turns in rounds; return seconds.

    Other contenders have used the caches before each call, as for a batch that has just arrived: small
    products take twice as long as in a separate loop.

    Parameters
    ----------
    contenders : mapping of str to callable
    repeats : int, or mapping of str to int
        Turns of each contender. A contender with fewer turns takes part in only some rounds, evenly spread.
    clock : callable
        Returns seconds, from any origin.
    rest : callable
        Called before every turn.
    """
    turns = {name: repeats if isinstance(repeats, int) else repeats[name] for name in contenders}
    rounds = max(turns.values(), default=0)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, call in contenders.items():
            if (i + 1) * turns[name] // rounds == i * turns[name] // rounds:
                continue
            rest()
            start = clock()
            call()
            times[name].append(clock() - start)
    return times


def measured(
    contenders: Mapping[str, Call],
    repeats: int | None = None,
    effort: Effort = THOROUGH,
    *,
    clock: Clock = time.perf_counter,
    rest: Callable[[], None] = idle,
) -> dict[str, list[float]]:
    """Time calls after an uncounted first one, which compiles and fills caches.

    Parameters
    ----------
    contenders : mapping of str to callable
    repeats : int, optional
        Turns of every contender. By default ``effort`` decides, from the faster of its first two calls.
    effort : Effort
    clock, rest : callable
        Passed to :func:`interleaved`.
    """
    warm = interleaved(contenders, 1, clock=clock, rest=rest)
    times = interleaved(contenders, 1, clock=clock, rest=rest)
    # One of the two calls may have compiled, or been slowed by another process.
    left = {n: (repeats or effort.turns(min(warm[n][0], times[n][0]))) - 1 for n in contenders}
    for name, more in interleaved(contenders, left, clock=clock, rest=rest).items():
        times[name].extend(more)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median seconds of each contender."""
    return {name: statistics.median(seconds) for name, seconds in times.items()}
