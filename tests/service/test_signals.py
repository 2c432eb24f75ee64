"""A process that is asked to stop finishes its work, and can be ended afterwards."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import uvloop

from streaming_pca.service.signals import stop_on_signals
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
