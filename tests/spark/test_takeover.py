"""A service worker and a Spark driver stand by for and fence each other."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.stream import ENDLESS, Stream, check_books
from tests.spark.driver import Hold
from tests.spark.streams import LOCAL, SHORT, Making, Runner, Runners, at_once, check_same, wait_for_batches
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

SEEDED = ENDLESS | {"seed": 5}
MOMENTS = [
    Hold("reserve.1 dry run", "after", 2),
    Hold("reserve.3 RESERVED", "after", 2),
    Hold("reserve.4 commit", "before", 2),
    Hold("commit.1 begin", "before", 2),
    Hold("commit.4 offsets", "after", 2),
    Hold("commit.5 commit", "before", 2),
    Hold("publish.3 RELEASED", "after", 2),
    Hold("take_over.2 ends"),
]
KINDS: dict[str, Any] = {"service": None, "driver": LOCAL}


@pytest.fixture
def make(make_stream: Making, session_ms: int) -> Making:
    """Make streams whose election soon notices an ended member."""
    worker = {"stop_when_done": True, "step_deadline_seconds": 300}
    return lambda stem="s", **how: make_stream(stem, session_ms=session_ms, worker=worker, **how)


def written(stream: Stream) -> tuple[Any, ...]:
    """Return everything that a stream has written."""
    return stream.entries(), stream.release_values(), [digest for _, digest in stream.checkpoints()]


@pytest.mark.soak
@pytest.mark.parametrize("zombie", ["service", "driver"])
def test_one_that_slept_while_another_led_leaves_no_trace(make: Making, tmp_path: Path, zombie: str) -> None:
    """The stopped process has a stream at each moment; the other finishes them all."""
    streams = at_once(lambda _: make(**SHORT), MOMENTS)
    at_once(lambda stream: stream.produce_vectors(stream.vectors(120)), streams)
    (other,) = KINDS.keys() - {zombie}
    holds = {s.settings.stream.name: hold for s, hold in zip(streams, MOMENTS, strict=True)}
    with Runners(tmp_path) as run:
        group = streams[0].settings.worker.group
        asleep = run.start(streams, zombie, spark=KINDS[zombie], holds=holds, group=group)
        asleep.wait_until_held()
        asleep.signal(signal.SIGSTOP)
        awake = run.start(streams, other, spark=KINDS[other], group=group)
        assert awake.ends() == 0, awake.log
        at_once(check_books, streams)
        before = at_once(written, streams)
        asleep.let_go()
        asleep.signal(signal.SIGCONT)
        # It finds the other's entries; it takes over properly, and finds everything done.
        assert asleep.ends() in (0, 4), asleep.log
        assert "Traceback" not in asleep.log, asleep.log
        assert re.search("ProducerFencedError|another leader", asleep.log), asleep.log
    assert at_once(written, streams) == before


@pytest.mark.soak
def test_they_stand_by_for_each_other(make: Making, tmp_path: Path) -> None:
    """A driver follows a killed worker, and a worker follows a driver."""
    alone = make("alone", cap=("2", "1e-5"), **SEEDED)
    both = make("both", input=alone.settings.stream.input, cap=None, **SEEDED)
    group = both.settings.worker.group
    x = alone.vectors(160)
    with Runners(tmp_path) as run:
        service = run.start([both], "service", group=group)
        service.logs("leading stream")
        driver = run.start([both], "driver", group=group, spark=LOCAL)
        driver.logs("standing by")
        alone.produce_vectors(x[:80])
        wait_for_batches(service, [both], 2)
        assert "leading" not in driver.log
        service.kill()
        alone.produce_vectors(x[80:120])
        wait_for_batches(driver, [both], 3)
        again = run.start([both], "service", group=group)
        again.logs("standing by")
        driver.stop()
        again.logs("leading stream")
        alone.produce_vectors(x[120:])
        wait_for_batches(again, [both], 4)
        again.stop()
        run.finish([alone], "alone", 4)
    check_same(alone, both, 4, alone.entries())
    check_books(both)


@pytest.mark.soak
def test_two_that_both_lead_share_the_batches(make: Making, tmp_path: Path) -> None:
    """Different election groups make them take the stream from each other; no batch is charged twice."""
    stream = make(**SHORT | {"options": SHORT["options"] | {"n_records": 240, "n_batches": 6}})
    stream.produce_vectors(stream.vectors(240))
    with Runners(tmp_path) as run:
        hold = {stream.settings.stream.name: Hold("reserve.5 read back", "after", 2)}
        first = run.start([stream], "driver", spark=LOCAL, holds=hold)
        first.wait_until_held()
        second = run.start([stream], "service")
        second.logs("batch 3 released")
        first.let_go()
        runners: list[Runner] = [first, second]
        wait_for("both to end", lambda: all(each.status() is not None for each in runners))
        for each in runners:
            assert each.ends() in (0, 4), each.log
            assert "Traceback" not in each.log, each.log
    check_books(stream)
    assert stream.releases()[-1].records == 240
