"""A kill -9 after any numbered step, followed by a restart, neither loses nor double-charges.

Before a step is the same moment as after the preceding step: `make soak` kills there too.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from streaming_pca.privacy.ledger.entries import Abandoned, Committed, Reserved, Started
from streaming_pca.service.commit import checkpoint
from tests.kafka.child import Strike
from tests.kafka.conftest import Make, Name
from tests.kafka.steps import steps_of
from tests.kafka.stream import Stream, all_at_once, check_books
from tests.waiting import wait_for

AT_ONCE = 8
SECONDS = 240


STEPS = steps_of(checkpoint)
CASES = [(step, when) for step in STEPS for when in ("before", "after")]


def test_the_steps_of_every_method_are_found() -> None:
    methods = {step.partition(".")[0] for step in STEPS}
    assert methods == {"take_over", "start", "reserve", "commit", "publish", "abandon"}
    assert len(STEPS) >= 24


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest,
    kafka_bootstrap: str,
    unique_name: Name,
    session_ms: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str], Future[None]]]:
    """Run all selected cases, a few at a time: each mostly waits for a dead member's session."""
    directory = tmp_path_factory.mktemp("crashes")
    streams: list[Stream] = []

    def run(step: str, when: str) -> None:
        how: dict[str, Any] = {"partitions": 2, "options": {"n_records": 120, "n_batches": 3}}
        name = unique_name("crash")
        stream = Stream.make(kafka_bootstrap, name, directory, session_ms=session_ms, **how)
        streams.append(stream)
        crash_and_restart(stream, step, when)

    mine = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    cases = [item.callspec.params.get("case") for item in mine if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {case: pool.submit(run, *case) for case in cases if case in CASES}
        pool.shutdown(wait=False, cancel_futures=True)
    for stream in streams:
        stream.destroy()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((step, when), marks=() if when == "after" else pytest.mark.soak, id=f"{when} {step}")
        for step, when in CASES
    ],
)
def test_a_kill_at_a_step_costs_nothing(
    case: tuple[str, str], outcomes: dict[tuple[str, str], Future[None]]
) -> None:
    outcomes[case].result(SECONDS)


def crash_and_restart(stream: Stream, step: str, when: Any) -> None:
    """Kill a worker at a step (of its second batch), finish with another, check books."""
    stream.produce_vectors(stream.vectors(160))
    settings = stream.settings
    method = step.split(".")[0]
    if method == "start":
        settings = stream.changed(start="latest")
    if method in ("take_over", "abandon"):
        # The take-over must have something to find: an open reservation.
        stream.crash(Strike("reserve.5 read back", "after", 2))
        if method == "abandon":
            settings = stream.changed(options=settings.stream.options | {"clip_quantile": 0.9})
    once = bool(stream.children) or method == "start"
    stream.crash(Strike(step, when, nth=1 if once else 2), settings)
    at_crash = stream.entries()
    successor = stream.start(settings)
    if method == "start":
        # Its records arrive after either worker has fixed the beginning.
        wait_for("STARTED", lambda: stream.own(Started))
        stream.produce_vectors(stream.vectors(160, seed=1))
    successor.ends_well()
    check_books(stream)
    after = stream.entries()
    assert after[: len(at_crash)] == at_crash
    # Three batches are learnt; an abandoned batch is not taken again.
    assert len(stream.own(Committed, after)) == 3
    assert len(stream.own(Abandoned, after)) == (method == "abandon")
    assert len(stream.own(Reserved, after)) == 3 + (method == "abandon")
    started = stream.own(Started, after)
    assert [p.offset for e in started for p in e.positions] == [80, 80] * (method == "start")


def test_kills_at_any_instant_cost_nothing(make_stream: Make) -> None:
    options = {"n_records": 240, "n_batches": 12}
    all_at_once(kill_again_and_again, [(make_stream(partitions=2, options=options), s) for s in range(4)])


def kill_again_and_again(stream: Stream, seed: int) -> None:
    dice = random.Random(seed)
    stream.produce_vectors(stream.vectors(240))
    for _ in range(3):
        worker = stream.start()
        worker.logs("leading stream")
        # A take-over takes about a second, a batch a fifth of a second.
        time.sleep(dice.uniform(0.2, 2.5))
        if worker.status() is None:
            worker.signal(signal.SIGKILL)
        worker.ends()
    stream.run()
    check_books(stream)
    assert stream.releases()[-1].records == 240
