"""Periodic verification of the ledgers of a worker's streams, each in a process.

A ledger keeps growing and is read from its start, so the pause grows with a verification's duration
(:mod:`streaming_pca.service.commit.verification`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.executors import first_of
from streaming_pca.service.input.clock import settings_line
from streaming_pca.service.metrics import StreamMetrics
from streaming_pca.service.process_hardening import environment_without_settings

log = logging.getLogger(__name__)

_FIRST_SECONDS = 300.0
"""Longest time to the first verification, which should not compete with the take-over after a start."""
_PAUSES = 9
"""Shortest pause after a verification over its duration: verifying takes at most a tenth of the time."""
_LONGEST_SECONDS = 3600.0  # time limit of one verification, which reads some thousands of entries a second
_MOST_LINES = 10  # number of problems that are logged; `streaming-pca ledger verify` shows all


async def verify_periodically(
    kafka: KafkaSettings,
    shown: Mapping[str, Sequence[StreamMetrics]],
    interval: float,
    stopping: asyncio.Event,
) -> None:
    """Verify ledgers every ``interval`` seconds until stopping; never if it is 0.

    ``shown`` has the metrics of the streams that read each input topic; they show the result.
    """
    if not interval:
        return
    await first_of(stopping, seconds=min(interval, _FIRST_SECONDS))
    while not stopping.is_set():
        started = time.monotonic()
        for topic, metrics in shown.items():
            found = await _ask(kafka, topic, stopping)
            if not stopping.is_set():
                _show(topic, found, metrics)
        lasted = time.monotonic() - started
        await first_of(stopping, seconds=max(interval - lasted, _PAUSES * lasted))


def _show(topic: str, found: dict[str, Any], shown: Sequence[StreamMetrics]) -> None:
    if "failed" in found:
        for metrics in shown:
            metrics.count_verification_error()
        log.warning("the ledger of %s could not be verified: %s", topic, found["failed"])
        return
    problems = found["problems"]
    for metrics in shown:
        metrics.show_verification(len(problems))
    for problem in problems[:_MOST_LINES]:
        log.error("the ledger of %s is NOT verified: %s", topic, problem)


async def _ask(kafka: KafkaSettings, topic: str, stopping: asyncio.Event) -> dict[str, Any]:
    """Return the result of a process; kill it if it is late or the worker stops."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: import nothing from the worker's working directory.
            *("-P", "-m", "streaming_pca.service.commit.verification"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment_without_settings(),
            start_new_session=True,  # keep a terminal's Ctrl-C from this process
        )
    except OSError as error:
        return {"failed": f"no process could be started ({error.strerror or error})"}
    request = settings_line(kafka, 0, 0) + json.dumps(topic).encode() + b"\n"
    answering = asyncio.create_task(process.communicate(request))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({answering, stopped}, timeout=_LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not answering.done():
        process.kill()
        await answering
        return {"failed": f"it did not end within {_LONGEST_SECONDS:g} s"}
    try:
        answer: dict[str, Any] = json.loads(answering.result()[0])
    except ValueError:
        return {"failed": f"its process ended with status {process.returncode}"}
    return answer
