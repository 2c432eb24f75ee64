"""A process that is asked to stop finishes its work; one without progress gives up after a time."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time

import pytest
import uvloop

from streaming_pca.config.settings import WorkerSettings
from streaming_pca.service.process import Patience, stop_on_signals
from tests.waiting import LIMIT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_stops_the_work_and_has_no_handler_after_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def main() -> None:
        stopping = asyncio.Event()
        with stop_on_signals(stopping.set):
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stopping.wait(), LIMIT)

    uvloop.run(main())
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("failures", "given_up"),
    [
        ([(0, 1), (5, 6), (13, 14)], [False, False, True]),
        ([(0, 1), (2, 18), (29, 30)], [False, False, True]),
        ([(0, 1), None, (11, 12)], [False, False]),
        ([(math.inf, 12), (math.inf, 24)], [False, True]),
        ([(math.inf, 1), (2, 8), (9, 12)], [False, False, False]),
        ([(math.inf, 1), (5, 6), (16, 17)], [False, False, True]),
        # Each attempt stalls after 5 s, and a second passes until the next.
        ([(math.inf, 0), *((6 * i + 1, 6 * i + 6) for i in range(12))], [False] * 11 + [True] * 2),
    ],
    ids=[
        "without progress",
        "after a long attempt",
        "after progress",
        "attempts longer than the patience",
        "after a healthy time",
        "after short attempts",
        "attempts that stall",
    ],
)
def test_patience_ends_after_ten_seconds(
    failures: list[tuple[float, float] | None], given_up: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience, found = Patience(WorkerSettings(give_up_seconds=10.0, step_deadline_seconds=5.0)), []
    for failure in failures:
        if failure is None:
            patience.reset()
        else:
            monkeypatch.setattr(time, "monotonic", lambda now=failure[1]: now)
            found.append(patience.is_over(failure[0]))
    assert found == given_up
