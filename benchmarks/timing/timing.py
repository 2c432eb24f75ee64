"""Times of contenders that take turns: what slows the machine down for a while slows all of them.

A ratio of medians of such times says what wall-clock times on a shared machine do not.
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
    """Number of timed calls, by the duration of one.

    Attributes
    ----------
    total : float
        Seconds that all turns of a call are to add up to.
    least, most : int
        Bounds of the turns.
    patience : float
        Seconds beyond which a slow call has fewer than ``least``,
    fewest : int
        but no fewer than these.
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
    """Wait until no thread of this process is at work any more.

    OpenBLAS' threads spin for a tenth of a second after a product: meanwhile they
    would take a core from the next call.
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
    """Seconds of every call, the contenders taking turns in rounds.

    Caches are as the others leave them, as for a batch that has just arrived: small
    products take twice as long as in a loop of their own.

    Parameters
    ----------
    contenders : mapping of str to callable
    repeats : int, or mapping of str to int
        Turns of each contender. Who has fewer than others is in some rounds
        only, evenly spread.
    clock : callable
        Seconds, from any origin.
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
        Turns of every contender. Left out: by ``effort``, from the faster of its first two calls.
    effort : Effort
    clock, rest : callable
        Of :func:`interleaved`.
    """
    warm = interleaved(contenders, 1, clock=clock, rest=rest)
    times = interleaved(contenders, 1, clock=clock, rest=rest)
    # One of them may have compiled, or met another process.
    left = {n: (repeats or effort.turns(min(warm[n][0], times[n][0]))) - 1 for n in contenders}
    for name, more in interleaved(contenders, left, clock=clock, rest=rest).items():
        times[name].extend(more)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Median seconds of each contender."""
    return {name: statistics.median(seconds) for name, seconds in times.items()}
