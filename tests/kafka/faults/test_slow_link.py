"""A slow link between workers and brokers has low bandwidth, delays, and stops mid-message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.projection.worker import ProjectionOptions
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.projecting import Projecting, publish, written
from tests.kafka.three_brokers import BEHIND, FAR, NEAR, Trial, hold
from tests.waiting import LIMIT, wait_for

pytestmark = pytest.mark.timeout(900)

T = TypeVar("T")

_CHUNK = 16 * 1024
_UNLIMITED = 1e12


class Link:
    """Proxy of each broker, all on one line; ``ports`` on this side are mapped to those of the brokers."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self.bytes_a_second = _UNLIMITED
        self.seconds = 0.0
        """Delay of bytes on the link."""
        self._ports, self._free_at = ports, 0.0
        self._servers: list[asyncio.Server] = []
        self._moving = asyncio.Event()
        self._moving.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for port, behind in self._ports.items():
            made = asyncio.start_server(lambda r, w, to=behind: self._serve(r, w, to), FAR, port)
            self._servers.append(self._do(made))
        return self

    def __exit__(self, *exc_info: object) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)

    def stop(self) -> None:
        """Stop all traffic, also in the middle of messages; connections stay open."""
        self._loop.call_soon_threadsafe(self._moving.clear)

    def go_on(self) -> None:
        self._loop.call_soon_threadsafe(self._moving.set)

    def set(self, bytes_a_second: float = _UNLIMITED, seconds: float = 0.0) -> None:
        """Set the bandwidth, shared by all connections, and the delay."""
        self.bytes_a_second, self.seconds = bytes_a_second, seconds

    async def _serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter, port: int) -> None:
        try:
            server, request = await asyncio.open_connection(BEHIND, port)
        except OSError:
            answer.close()
            return
        both = (self._carry(client, request), self._carry(server, answer))
        ways = [self._loop.create_task(each) for each in both]
        try:
            # When one end closes, both directions end, and bytes in transit are dropped.
            with suppress(asyncio.CancelledError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (answer, request):
                writer.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Carry bytes in one direction."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                    await self._moving.wait()
                    to.write(half)
                    await to.drain()
                if not data:
                    return

        async def take() -> None:
            while data := await source.read(_CHUNK):
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + len(data) / self.bytes_a_second
                await asyncio.sleep(self._free_at - now)
                await under_way.put((time.monotonic() + self.seconds, data))
            await under_way.put((time.monotonic(), b""))

        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(take())
                both.create_task(deliver())
        except* OSError:
            pass


@pytest.fixture
def link(three_brokers: FaultyCluster, first_digits: int) -> Iterator[Link]:
    ports = {node.port: int(f"{first_digits}{number}") for number, node in three_brokers.nodes.items()}
    with Link(ports) as made:
        yield made


def far(cluster: FaultyCluster) -> str:
    """Return the addresses of the brokers across the link."""
    return cluster.bootstrap.replace(NEAR, FAR)


@pytest.mark.soak
def test_a_leader_on_a_slow_link_keeps_the_lead_and_up(
    fork_server: None, three_brokers: FaultyCluster, link: Link, tmp_path: Path
) -> None:
    """256 kB/s, 50 ms each way, and standstills below the session's 6 s."""
    with Trial(three_brokers, tmp_path, "slow", bootstrap=far(three_brokers)) as trial:
        leader, standby = trial.lead_and_stand_by()
        link.set(bytes_a_second=256_000, seconds=0.05)
        trial.goes_on(4)
        for _ in range(2):
            link.stop()
            hold(1.5)
            link.go_on()
            trial.goes_on(2)
        for worker in (leader, standby):
            worker.has_led_on()
        link.set()
        trial.end()


def test_a_leader_whose_link_stands_still_is_replaced_by_one_with_another(
    fork_server: None, three_brokers: FaultyCluster, link: Link, tmp_path: Path
) -> None:
    with Trial(three_brokers, tmp_path, "still", bootstrap=far(three_brokers)) as trial:
        trial.produce()
        leader = trial.start()
        leader.logs("batch 1 released", 240)
        near = trial.stream.changed("kafka", bootstrap_servers=three_brokers.bootstrap)
        standby = trial.start(settings=near)
        standby.logs("standing by")
        link.stop()
        standby.logs("leading stream")
        trial.goes_on()
        link.go_on()
        leader.logs("no longer leading")
        trial.goes_on()
        trial.end()


@pytest.mark.soak
def test_a_fetch_that_takes_longer_than_a_request_may_is_made_smaller(
    fork_server: None, three_brokers: FaultyCluster, link: Link, tmp_path: Path
) -> None:
    """A 5 MB backlog passes a link that carries 1.6 MB in a request's time.

    There are three partitions. A broker sends a producer's batch whole, so no link works that cannot carry
    one batch of each partition in that time.
    """
    how: dict[str, Any] = {"dim": 256, "options": {"clip_radius": 20.0, "batch_size": 960}}
    how |= {"bootstrap": far(three_brokers), "kafka": {"request_timeout_ms": 4000}}
    with Trial(three_brokers, tmp_path, "backlog", **how) as trial:
        stream = trial.stream
        beyond = stream.settings
        stream.settings = stream.changed("kafka", bootstrap_servers=three_brokers.bootstrap)
        stream.produce_vectors(stream.vectors(4800))
        link.set(bytes_a_second=400_000)
        worker = trial.start(settings=beyond)
        worker.logs("batch 5 released")
        assert "the link to the broker is slow" in worker.log


def test_what_ended_a_session_is_not_hidden_by_messages_on_their_way(
    three_brokers: FaultyCluster, link: Link, tmp_path: Path
) -> None:
    with Trial(three_brokers, tmp_path, "close", bootstrap=far(three_brokers)) as trial:
        settings = trial.stream.settings
        writer = CheckpointWriter(settings.kafka, settings.stream, trial.stream.topic_id)
        writer.take_over()
        assert writer._producer is not None
        writer._producer.partitions_for(settings.stream.releases_topic)
        link.stop()
        writer._begin()
        writer._transaction.send(settings.stream.releases_topic, b"never arrives", None)
        writer.close()


def test_an_idle_projection_notices_that_its_link_stands_still(
    fork_server: None, three_brokers: FaultyCluster, link: Link, tmp_path: Path
) -> None:
    """The client's polls of brokers that do not answer find nothing, as those of an idle topic do."""
    with Trial(
        three_brokers,
        tmp_path,
        "idle",
        bootstrap=far(three_brokers),
        worker={"give_up_seconds": 5.0},
        kafka={"request_timeout_ms": 4000},
    ) as trial:
        publish(trial.stream, 1)
        trial.stream.produce_vectors(trial.stream.vectors(1))
        options = ProjectionOptions("idle-out", create=True)
        worker = Projecting(trial.stream.settings, options, tmp_path / "p", silence_seconds=2.0)
        try:
            worker.logs("projected here: 0, 1, 2")
            wait_for("the projection", lambda: written(trial.stream, "idle-out", 3), seen=lambda: worker.log)
            link.stop()
            assert worker.ends() == 4
            assert "recovering from the committed positions: asking the broker" in worker.log
        finally:
            worker.destroy()
