"""A worker verifies in separate processes; a stop ends them, and their failures are counted.

Finding and showing problems is tested against a broker: tests/deploy/test_monitoring.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from pydantic import SecretStr

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service import verification
from streaming_pca.service.metrics import Metrics, StreamMetrics
from streaming_pca.service.verification import verify_periodically
from tests.security.needles import secret
from tests.security.unprivileged import is_dumpable
from tests.waiting import LIMIT, wait_for

PASSWORD = secret("dashboard")


async def verify(
    metrics: Metrics, port: int, stopping: asyncio.Event, interval: float = 0.01, patience: int = 100_000
) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "worker", "sasl_password": SecretStr(PASSWORD)}
    address = {"bootstrap_servers": f"127.0.0.1:{port}", "bootstrap_timeout_ms": patience}
    kafka = KafkaSettings(security_protocol="SASL_PLAINTEXT", **login, **address)
    shown = {"records": [StreamMetrics(metrics, "a"), StreamMetrics(metrics, "b")]}
    await verify_periodically(kafka, shown, interval, stopping)


def errors(metrics: Metrics) -> list[float]:
    return [metrics.verification_errors.labels(stream)._value.get() for stream in "ab"]


@contextmanager
def silent_broker() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        # A child of another test that has ended, or is ending, has no command line any more.
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "streaming_pca.service.commit.verification" in child.cmdline():
                found.append(child)
    return found


def test_no_interval_is_no_verification() -> None:
    metrics = Metrics()
    asyncio.run(verify(metrics, 1, asyncio.Event(), interval=0))
    assert errors(metrics) == [0, 0]


def verify_until(
    done: Callable[[Metrics], object], port: int, see: Callable[[], object] = str, **how: int
) -> Metrics:
    """Run a verifier until something is done, look at it, and stop the verifier."""
    metrics, stopping = Metrics(), asyncio.Event()

    async def run() -> None:
        running = asyncio.create_task(verify(metrics, port, stopping, **how))
        while not done(metrics):
            await asyncio.sleep(0.05)
        see()
        stopping.set()
        await running

    asyncio.run(asyncio.wait_for(run(), LIMIT))
    return metrics


def counted(metrics: Metrics) -> bool:
    return 0 not in errors(metrics)


def test_a_verification_that_cannot_be_done_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with caplog.at_level(logging.WARNING):
        metrics = verify_until(counted, port, patience=100)
    assert "the ledger of records could not be verified: no broker answers at" in caplog.messages[0]
    assert "verification_problems{" not in metrics.text().decode()


def test_a_process_that_ends_without_an_answer_is_counted() -> None:
    killed: list[psutil.Process] = []

    def done(metrics: Metrics) -> bool:
        if not killed:
            killed[:] = children()[:1]
            for child in killed:
                child.kill()
        return counted(metrics)

    with silent_broker() as port:
        verify_until(done, port)
    assert killed


def test_a_late_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_LONGEST_SECONDS", 0.5)
    with silent_broker() as port:
        verify_until(counted, port)
    assert not children()


def test_a_stop_ends_the_process_and_no_argument_holds_the_password() -> None:
    def see() -> None:
        (child,) = children()
        assert PASSWORD not in " ".join(child.cmdline())
        # Root can read every process; tests/security/test_protection.py runs one without rights.
        if sys.platform.startswith("linux") and os.geteuid():
            wait_for("its protection", lambda: not is_dumpable(child.pid))

    with silent_broker() as port:
        metrics = verify_until(lambda _: children(), port, see)
    assert not children()
    assert errors(metrics) == [0, 0]
