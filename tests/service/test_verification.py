"""A worker verifies in separate processes; a stop ends them, and their failures are counted.

Finding and showing problems is tested against a broker: tests/deploy/test_monitoring.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from pydantic import SecretStr

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service import verification
from streaming_pca.service.metrics import Metrics
from streaming_pca.service.verification import Verifier
from tests.security.needles import secret

PASSWORD = secret("dashboard")


def verifier(metrics: Metrics, port: int, interval: float = 0.01, patience: int = 100_000) -> Verifier:
    kafka = KafkaSettings(
        bootstrap_servers=f"127.0.0.1:{port}",
        bootstrap_timeout_ms=patience,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="worker",
        sasl_password=SecretStr(PASSWORD),
    )
    return Verifier(kafka, {"records": [metrics.for_stream("a"), metrics.for_stream("b")]}, interval)


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
    asyncio.run(verifier(metrics, 1, interval=0).run(asyncio.Event()))
    assert errors(metrics) == [0, 0]


def test_a_verification_that_cannot_be_done_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics, stopping = Metrics(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def run() -> None:
        running = asyncio.create_task(verifier(metrics, port, patience=100).run(stopping))
        while 0 in errors(metrics):
            await asyncio.sleep(0.05)
        stopping.set()
        await running

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(run(), 100))
    assert "the ledger of records could not be verified: no broker answers at" in caplog.messages[0]
    assert "verification_problems{" not in metrics.text().decode()


def test_a_process_that_ends_without_an_answer_is_counted() -> None:
    metrics, stopping = Metrics(), asyncio.Event()

    async def run(port: int) -> None:
        running = asyncio.create_task(verifier(metrics, port).run(stopping))
        while not children():
            await asyncio.sleep(0.05)
        children()[0].kill()
        while 0 in errors(metrics):
            await asyncio.sleep(0.05)
        stopping.set()
        await running

    with silent_broker() as port:
        asyncio.run(asyncio.wait_for(run(port), 100))


def test_a_late_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_LONGEST_SECONDS", 0.5)
    metrics, stopping = Metrics(), asyncio.Event()

    async def run(port: int) -> None:
        running = asyncio.create_task(verifier(metrics, port).run(stopping))
        while 0 in errors(metrics):
            await asyncio.sleep(0.05)
        stopping.set()
        await running

    with silent_broker() as port:
        asyncio.run(asyncio.wait_for(run(port), 100))
    assert not children()


def test_a_stop_ends_the_process_and_no_argument_holds_the_password() -> None:
    metrics, stopping = Metrics(), asyncio.Event()

    async def run(port: int) -> None:
        running = asyncio.create_task(verifier(metrics, port).run(stopping))
        while not children():
            await asyncio.sleep(0.05)
        (child,) = children()
        assert PASSWORD not in " ".join([*child.cmdline(), *child.environ().values()])
        stopping.set()
        await running

    with silent_broker() as port:
        asyncio.run(asyncio.wait_for(run(port), 100))
    assert not children()
    assert errors(metrics) == [0, 0]
