"""A worker's first look at its topics is repeated if the broker has answered, and may do so again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError, UnknownBrokerIdError, UnsupportedVersionError

from streaming_pca.config.settings import Settings
from streaming_pca.service import worker as workers
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka import clients
from streaming_pca.service.kafka.diagnosis import Diagnosis
from streaming_pca.service.projection import worker as projecting
from streaming_pca.service.topics.find import Topics, find_topics
from streaming_pca.service.topics.output import Output
from streaming_pca.service.worker import Worker
from tests.waiting import LIMIT

Patch = pytest.MonkeyPatch
STREAM = {"name": "s", "input": "records", "dim": 4, "rank": 2, "epsilon": 1.0, "delta": 1e-6}
SETTINGS = Settings.model_validate({"stream": STREAM, "http": {"enabled": False}})
HERE = Topics(topic_id="id", partitions=(0,))
OF_SETTINGS = Diagnosis("the listener speaks SSL, not PLAINTEXT")
AWAY = Diagnosis("it refuses connections", answers=False)


@pytest.fixture
def failing(monkeypatch: Patch) -> Callable[..., list[None]]:
    """Return the function that makes the first checks fail; it returns a list of all checks."""
    monkeypatch.setattr("streaming_pca.service.process.RETRY_SECONDS", 0.01)

    def fail(error: KafkaError, diagnosis: Diagnosis | None = None, times: int = 2) -> list[None]:
        checks: list[None] = []
        monkeypatch.setattr(clients, "diagnose", lambda *_, **__: diagnosis)
        # Its connection was made, and its first request fails.
        client = Mock(**{"describe_topics.side_effect": error})
        monkeypatch.setattr(clients, "admin_client", lambda _: client)

        def check(*arguments: Any) -> Topics:
            checks.append(None)
            return find_topics(*arguments) if len(checks) <= times else HERE

        monkeypatch.setattr(workers, "find_topics", check)
        return checks

    return fail


async def first_check(give_up_seconds: float = 60.0) -> Topics:
    worker = SETTINGS.worker.model_copy(update={"give_up_seconds": give_up_seconds})
    settings = SETTINGS.model_copy(update={"worker": worker})
    (stream,) = Worker([settings])._streams
    async with asyncio.timeout(LIMIT):
        return await stream._find_topics_patiently()


@pytest.mark.parametrize("diagnosis", [None, AWAY], ids=["answers", "away"])
@pytest.mark.parametrize("error", [UnknownBrokerIdError(2), KafkaTimeoutError()], ids=["unknown", "late"])
def test_a_check_that_may_succeed_later_is_repeated(
    failing: Callable[..., list[None]], error: KafkaError, diagnosis: Diagnosis | None
) -> None:
    checks = failing(error, diagnosis)
    assert asyncio.run(first_check()) == HERE
    assert len(checks) == 3


@pytest.mark.parametrize(
    ("error", "diagnosis"),
    [(UnsupportedVersionError(), None), (UnknownBrokerIdError(2), OF_SETTINGS)],
    ids=["not retriable", "wrong settings"],
)
def test_a_check_that_cannot_succeed_ends_the_stream(
    failing: Callable[..., list[None]], error: KafkaError, diagnosis: Diagnosis | None
) -> None:
    checks = failing(error, diagnosis)
    with pytest.raises(BrokerUnreachable) as raised:
        asyncio.run(first_check())
    assert len(checks) == 1
    assert raised.value.exit_status == 4


def test_a_check_is_repeated_only_for_the_time_of_the_setting(failing: Callable[..., list[None]]) -> None:
    checks = failing(UnknownBrokerIdError(2), times=1000)
    with pytest.raises(BrokerUnreachable, match="did not describe the topics"):
        asyncio.run(first_check(give_up_seconds=0.2))
    assert 2 <= len(checks) < 1000


def test_a_client_that_cannot_be_made_may_succeed_later_only_if_no_fault_is_found(monkeypatch: Patch) -> None:
    def late(**_: Any) -> None:
        raise KafkaTimeoutError

    for diagnosis, may_pass in ((None, True), (AWAY, False), (OF_SETTINGS, False)):
        monkeypatch.setattr(clients, "diagnose", lambda *_, found=diagnosis, **__: found)
        with pytest.raises(BrokerUnreachable) as raised:
            clients._connect(SETTINGS.kafka, late)
        assert raised.value.may_pass is may_pass


def test_a_projecting_worker_repeats_its_first_check_too(
    failing: Callable[..., list[None]], monkeypatch: Patch
) -> None:
    class FoundIt(Exception):
        pass

    def find_output(kafka: Any, stream: Any, *_: Any) -> Any:
        checks.append(None)
        if len(checks) <= 2:
            find_topics(kafka, stream)
        return Output("projected", 1, "s", "id", (0,))

    checks = failing(KafkaTimeoutError())
    monkeypatch.setattr(projecting, "find_output", find_output)
    monkeypatch.setattr(projecting, "Projector", Mock(side_effect=FoundIt))
    options = projecting.ProjectionOptions("projected")

    async def run() -> None:
        async with asyncio.timeout(LIMIT):
            await projecting.ProjectionWorker(SETTINGS, options).run()

    with pytest.raises(FoundIt):
        asyncio.run(run())
    assert len(checks) == 3
