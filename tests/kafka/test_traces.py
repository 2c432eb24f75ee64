"""Traces of real workers contain only public quantities, and arrive after the commit."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from streaming_pca.config.settings import Settings
from streaming_pca.privacy.ledger.entries import Abandoned, Released, Reserved, decode_entry
from tests.kafka import child
from tests.kafka.child import Strike
from tests.kafka.conftest import Make
from tests.kafka.stream import OCTETS, STEADY_MS, Child, Stream, all_at_once, check_books
from tests.service.collector import INSULT, Collector, Manner, SeenSpan, collecting
from tests.waiting import wait_for

PLANTED = 271.828125
"""Exact in every format: neither its bytes nor its digits may be in exported data."""
KEY = b"key-of-a-person"
PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = [*OCTETS, ("traceparent", f"00-{PARENT}-00f067aa0ba902b7-01".encode())]
OF_STREAM = {"stream", "input"}
OF_BATCH = {"batch", "planned", "resumed", "count", "ranges", "epsilon", "delta", "rho"}


def prompt(*arguments: Any, **how: Any) -> None:
    """Run a worker whose spans leave immediately; the library would wait five seconds for more."""
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "20"
    child.main(*arguments, **how)


def traced(stream: Stream, collector: Collector) -> Settings:
    """Return settings with traces, and a session that lasts: each lead is a trace."""
    kafka = stream.changed("kafka", session_timeout_ms=STEADY_MS).kafka
    settings = stream.changed("trace", enabled=True, endpoint=collector.address)
    return settings.model_copy(update={"kafka": kafka})


def plant(stream: Stream) -> None:
    x = stream.vectors(300)
    x[:, 1] = PLANTED
    stream._send(((KEY, row.tobytes(), HEADERS) for row in x), None)


def check_contents(collector: Collector) -> None:
    """Check that no data of the records which :func:`plant` writes was exported."""
    formats = ("<f4", ">f4", "<f8", ">f8")
    hidden = [np.array(PLANTED, kind).tobytes() for kind in formats]
    hidden += [b"271.8", KEY, PARENT.encode(), bytes.fromhex(PARENT)]
    assert collector.bodies
    for body in collector.bodies:
        assert not [value for value in hidden if value in body]


def attributes(span: SeenSpan) -> dict[str, Any]:
    return {name.removeprefix("streaming_pca."): value for name, value in span.attributes.items()}


def check_batches(stream: Stream, collector: Collector) -> None:
    """Check that the spans of all batches agree with the ledger, in order."""
    messages = stream.messages(stream.settings.stream.ledger_topic)
    entries = [decode_entry(message.value) for message in messages]
    written = dict(zip(map(id, entries), (message.timestamp for message in messages), strict=True))
    reservations, released = stream.own(Reserved, entries), stream.own(Released, entries)
    steps = zip(collector.named("batch"), reservations, released, stream.releases(), strict=True)
    for root, reserved, of_release, release in steps:
        shown, children = attributes(root), collector.children(root)
        charge = reserved.charge
        assert shown == {
            "stream": stream.settings.stream.name,
            "input": stream.settings.stream.input,
            "batch": reserved.batch,
            "planned": 100,
            "resumed": False,
            "count": reserved.count,
            "ranges": [f"{r.partition}:{r.start}-{r.end}" for r in reserved.ranges],
            "epsilon": float(charge.epsilon),
            "delta": float(charge.delta),
            **({} if charge.rho is None else {"rho": float(charge.rho)}),
        }
        outcome = {} if release.outcome is None else {"outcome": release.outcome}
        assert [(step.name, attributes(step)) for step in children] == [
            *((name, {}) for name in STEPS),
            ("publish", {"batch": reserved.batch, **outcome}),
        ]
        times = [root.start, *(t for step in children for t in (step.start, step.end)), root.end]
        assert times == sorted(times)
        for span in (root, *children):
            assert span.trace == root.trace
            assert not span.failed
            assert span.arrived * 1000 >= written[id(of_release)]


STEPS = ["read", "reserve", "update", "commit"]


def test_each_batch_is_a_trace_of_public_quantities(make_stream: Make) -> None:
    shapes = []

    def watch(stream: Stream, good: bool) -> None:
        if good:
            plant(stream)
        else:
            stream.produce(b"\xff" * (i % 7) for i in range(300))
        with collecting() as collector:
            strike = Strike("commit.1 begin", what="wait", when="before")
            worker = stream.start(traced(stream, collector), target=prompt, strike=strike)
            # Stopped between update and commit: spans leave after 20 ms, except those of this batch.
            worker.strikes()
            wait_for("the take-over's trace", lambda: collector.named("lead"))
            time.sleep(0.5)
            assert {span.name for span in collector.spans} == {"lead", "recover"}
            worker.let_go()
            worker.ends_well()
            check_books(stream)
            check_contents(collector)
            (lead,) = collector.named("lead")
            assert attributes(lead).keys() == {*OF_STREAM, "action", "leader_epoch"}
            assert attributes(lead)["action"] == "plan"
            assert attributes(lead)["leader_epoch"] >= 0
            assert [(s.name, s.attributes) for s in collector.children(lead)] == [("recover", {})]
            check_batches(stream, collector)
            # No other span, and an id for each trace.
            assert len(collector.spans) == 2 + 3 * 6
            assert len({s.trace for s in collector.spans}) == 4
            assert collector.resource.keys() >= {"service.name", "service.version"}
            found = [(s.name, s.parent == "", str(s.attributes)) for s in collector.spans]
            shapes.append(str(found).replace(stream.settings.stream.name, "NAME"))

    all_at_once(watch, [(make_stream(), True), (make_stream(), False)])
    # One stream's records are null: no name, attribute or number of spans reveals it.
    assert shapes[0] == shapes[1]


def crash(stream: Stream, step: str) -> None:
    stream.produce_vectors(stream.vectors(300))
    stream.crash(Strike(step, "before"))


def test_a_take_over_is_a_trace_with_the_batch_that_it_finishes(make_stream: Make) -> None:
    def publish(stream: Stream) -> None:
        crash(stream, "publish.1 begin")
        with collecting() as collector:
            stream.run(traced(stream, collector))
            (lead,) = collector.named("lead")
            assert attributes(lead)["action"] == "publish"
            recover, published = collector.children(lead)
            assert (recover.name, published.name) == ("recover", "publish")
            assert attributes(published)["batch"] == 1
            assert [attributes(s)["batch"] for s in collector.named("batch")] == [2, 3]

    def resume(stream: Stream) -> None:
        crash(stream, "commit.1 begin")
        with collecting() as collector:
            stream.run(traced(stream, collector))
            (lead,) = collector.named("lead")
            assert attributes(lead)["action"] == "resume"
            recover, batch = collector.children(lead)
            assert recover.name == "recover"
            check_resumed(collector, batch, ["read", "update", "commit", "publish"])
            assert attributes(batch)["batch"] == 1

    def abandon(stream: Stream) -> None:
        crash(stream, "commit.1 begin")
        stream.delete_before({p: 100 for p in range(stream.partitions)})
        with collecting() as collector:
            skipping = {"stream": stream.changed(lost_records="skip").stream}
            settings = traced(stream, collector).model_copy(update=skipping)
            stream.run_until("batch 1 abandoned", settings)
            assert [e.batch for e in stream.own(Abandoned)] == [1]
            (lead,) = collector.named("lead")
            _, batch = collector.children(lead)
            check_resumed(collector, batch, ["read", "abandon"])
            # The batch that it waited for is not traced.
            assert collector.named("batch") == [batch]

    def check_resumed(collector: Collector, batch: SeenSpan, steps: list[str]) -> None:
        assert batch.name == "batch"
        assert attributes(batch).keys() <= OF_BATCH
        assert attributes(batch)["resumed"] is True
        assert [s.name for s in collector.children(batch)] == steps
        assert {s.trace for s in collector.children(batch)} == {batch.trace}

    def run(work: Any) -> None:
        work(make_stream())

    all_at_once(run, [(publish,), (resume,), (abandon,)])


def test_an_error_on_records_is_not_told(make_stream: Make) -> None:
    stream = make_stream()
    plant(stream)
    with collecting() as collector:
        worker = stream.start(traced(stream, collector), telltale="cannot allocate shape (97, 5)")
        assert worker.ends() == 2, worker.log
        (root,) = collector.named("batch")
        (read,) = collector.children(root)
        assert root.failed
        assert read.failed
        assert attributes(root).keys() == {*OF_STREAM, "planned", "resumed", "error.type"}
        assert root.attributes["error.type"] == read.attributes["error.type"] == "StreamRefused"
        assert not any(b"alloc" in body or b"97, 5" in body or b"Memory" in body for body in collector.bodies)
        check_contents(collector)


@pytest.fixture
def collectors() -> Any:
    with ExitStack() as stack:
        yield lambda manner: stack.enter_context(collecting(manner))


def test_no_collector_stops_a_stream(make_stream: Make, collectors: Any) -> None:
    def run(stream: Stream, manner: Manner | None) -> None:
        stream.produce_vectors(stream.vectors(300))
        collector = collectors(manner or "takes")
        if manner is None:
            collector.close()
        reason = {"insults": "status 500", None: "ConnectionError"}.get(manner, "")
        worker = stream.run(traced(stream, collector))
        check_books(stream)
        assert len(stream.own(Released)) == 3
        check_log(worker, collector)
        assert reason in worker.log

    manners: list[Manner | None] = ["insults", "hangs", None]
    all_at_once(run, [(make_stream(), manner) for manner in manners])


def check_log(worker: Child, collector: Collector) -> None:
    lines = re.findall(r"traces: .*", worker.log)
    reported = [line for line in lines if collector.address in line or "the last spans are dropped" in line]
    assert lines == reported
    assert 1 <= len(lines) <= 2
    assert INSULT not in worker.log
    assert "Traceback" not in worker.log
    assert "opentelemetry" not in worker.log
