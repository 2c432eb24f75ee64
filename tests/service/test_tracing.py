"""Spans reach a collector after their batch, contain public quantities, and cost a batch nothing."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from pydantic import ValidationError

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import LogSettings, StreamSettings, TraceSettings
from streaming_pca.privacy.ledger.entries import OffsetRange, Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service import span_export
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.logs import StreamLog, configure_logging
from streaming_pca.service.tracing import Tracing
from tests.config.test_settings import GOOD
from tests.security.needles import secret
from tests.service.collector import INSULT, MOST, collecting
from tests.waiting import LIMIT, wait_for

Patch = pytest.MonkeyPatch
Caplog = pytest.LogCaptureFixture
STREAM = StreamSettings(name="s", input="t", dim=4, rank=2, epsilon=1.0, delta=1e-6)
SECRET = secret("of-the-operator")


@pytest.fixture(autouse=True)
def alone(monkeypatch: Patch) -> Iterator[None]:
    """Remove outside variables, and let no threads reach the next test."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    # Spans leave immediately; the library would wait five seconds for more.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    # The library does not repeat a line within 20 s, even if another test had it.
    for each in logging.getLogger("opentelemetry.sdk._shared_internal").filters:
        monkeypatch.setattr(each, "last_log", None, raising=False)
    yield
    names = ("Otel", "closing")
    wait_for("the threads to end", lambda: not [t for t in threading.enumerate() if t.name.startswith(names)])


@contextmanager
def tracing(endpoint: str | None) -> Iterator[Tracing]:
    made = Tracing(TraceSettings(enabled=True, endpoint=endpoint))
    try:
        yield made
    finally:
        made.close()


def record_batch(traces: Tracing, name: str = "batch") -> None:
    with traces.trace(name, STREAM) as trace, trace.child("update", secret_errors=True):
        pass


def lines_about_traces(caplog: Caplog) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    return [line for line in lines if line.startswith("traces: ")]


OFFSETS = ((0, 5, 15, 10), (2, 0, 12, 9))
RANGES = tuple(OffsetRange(partition=p, start=a, end=b, count=count) for p, a, b, count in OFFSETS)
PROMISE, CHARGE = {"epsilon": 1.0, "delta": 1e-6}, Charge(epsilon="1/2", delta="1e-7", rho="1/16")
SHOWN: Any = {"ranges": RANGES, "promise": PROMISE, "parameters": {}, "charge": CHARGE}
RESERVED = Reserved(topic_id="id", job="s", batch=7, previous="", **SHOWN)


def test_a_batch_is_a_tree_of_spans_with_public_attributes() -> None:
    with collecting() as collector:
        with tracing(collector.address) as traces, traces.trace("batch", STREAM) as trace:
            trace.show(planned=20, resumed=False)
            with trace.child("reserve"):
                pass
            trace.show_reserved(RESERVED)
            with trace.child("publish") as publish:
                publish.show(batch=7, outcome="learnt")
        (root,) = collector.named("batch")
        assert root.parent == ""
        assert {name.removeprefix("streaming_pca."): value for name, value in root.attributes.items()} == {
            **{"stream": "s", "input": "t", "batch": 7, "planned": 20, "resumed": False, "count": 19},
            **{"ranges": ["0:5-15", "2:0-12"], "epsilon": 0.5, "delta": 1e-7, "rho": 0.0625},
        }
        assert all(name.startswith("streaming_pca.") for name in root.attributes)
        assert [(s.name, s.attributes) for s in collector.children(root)] == [
            ("reserve", {}),
            ("publish", {"streaming_pca.batch": 7, "streaming_pca.outcome": "learnt"}),
        ]
        assert len(collector.spans) == 3
        assert len({s.trace for s in collector.spans}) == 1
        assert not any(s.failed for s in collector.spans)


def test_no_span_leaves_before_its_batch_has_ended() -> None:
    with collecting() as collector, tracing(collector.address) as traces:
        with traces.trace("slow", STREAM) as slow:
            with slow.child("update"):
                pass
            for name in ("one", "two"):
                record_batch(traces, name)
                wait_for(name, lambda name=name: collector.named(name))  # type: ignore[misc]
            assert {s.name for s in collector.spans} == {"one", "two", "update"}
            ended = [*collector.named("one"), *collector.named("two")]
            assert {s.trace for s in collector.spans} == {s.trace for s in ended}
        wait_for("the slow one", lambda: collector.named("slow"))


def test_a_dropped_trace_never_leaves() -> None:
    with collecting() as collector:
        with tracing(collector.address) as traces:
            with traces.trace("waited in vain", STREAM) as trace:
                with trace.child("read"):
                    pass
                trace.drop()
            record_batch(traces)
        assert {s.name for s in collector.spans} == {"batch", "update"}


def fail(traces: Tracing, step: str, secret: bool, error: Exception) -> None:
    with traces.trace("batch", STREAM) as trace:
        try:
            with trace.child(step, secret_errors=secret):
                raise error
        except Exception:
            raise StreamRefused("the estimator failed") from None


def test_an_error_is_told_by_its_type_where_the_type_is_public() -> None:
    with collecting() as collector:
        with tracing(collector.address) as traces:
            for step, secret, kind in (
                *(("update", True, kind) for kind in (ValueError, KafkaTimeoutError)),
                *(("read", False, ValueError), ("commit", False, KafkaTimeoutError)),
            ):
                with pytest.raises(StreamRefused):
                    fail(traces, step, secret, kind("row 3 holds 271.25"))
        assert len(collector.spans) == 8
        assert all(s.failed for s in collector.spans)
        types = [s.attributes.get("error.type") for s in collector.spans if s.parent]
        assert types == [None, None, None, "KafkaTimeoutError"]
        assert {s.attributes["error.type"] for s in collector.named("batch")} == {"StreamRefused"}
        assert not any(b"271.25" in body or b"ValueError" in body for body in collector.bodies)


def test_times_are_whole_milliseconds_and_a_step_of_the_clock_does_not_show(monkeypatch: Patch) -> None:
    with collecting() as collector:
        with tracing(collector.address) as traces, traces.trace("batch", STREAM) as trace:
            hour_ago = time.time_ns() - 3600 * 10**9
            monkeypatch.setattr(time, "time_ns", lambda: hour_ago)
            with trace.child("update"):
                pass
        (root,), (update,) = collector.named("batch"), collector.named("update")
        assert hour_ago + 3000 * 10**9 < root.start <= update.start <= update.end <= root.end
        assert all(t % 10**6 == 0 for s in collector.spans for t in (s.start, s.end))


def test_ids_do_not_come_from_pythons_shared_generator() -> None:
    state = random.getstate()
    try:
        with collecting() as collector:
            with tracing(collector.address) as traces:
                for _ in range(2):
                    random.seed(0)
                    record_batch(traces)
            assert len({s.trace for s in collector.spans}) == 2
            assert len({s.id for s in collector.spans}) == 4
    finally:
        random.setstate(state)


def test_a_span_of_another_library_is_no_parent() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    other = TracerProvider(shutdown_on_exit=False).get_tracer("other")
    with collecting() as collector:
        with other.start_as_current_span("theirs"), tracing(collector.address) as traces:
            record_batch(traces)
        (root,) = collector.named("batch")
        assert root.parent == ""


def test_json_lines_name_their_trace_while_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    try:
        configure_logging(LogSettings(format="json"))
        log = StreamLog(logging.getLogger(__name__), "s")
        with collecting() as collector:
            with tracing(collector.address) as traces:
                with traces.trace("batch", STREAM):
                    log.info("within")
                log.info("after")
            (span,) = collector.spans
        lines = {line["message"]: line for line in map(json.loads, capsys.readouterr().err.splitlines())}
        assert lines["within"]["trace_id"] == span.trace
        assert "trace_id" not in lines["after"]
        assert lines["after"]["stream"] == "s"
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


# -- the standard variables ------------------------------------------------


def test_the_standard_variables_are_obeyed(monkeypatch: Patch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{SECRET}")
        with tracing(None) as traces:
            record_batch(traces)
        assert collector.resource["service.name"] == "streaming-pca"
        assert collector.resource["service.version"]
        assert collector.headers[-1]["authorization"] == f"Bearer {SECRET}"

        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.address}/v1/traces")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,zone=a")
        with tracing(None) as traces:
            record_batch(traces)
        assert (collector.resource["service.name"], collector.resource["zone"]) == ("mine", "a")

        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        before = len(collector.spans)
        with tracing(None) as traces:
            record_batch(traces)
        assert len(collector.spans) == before == 4


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("OTEL_TRACES_EXPORTER", "console", "OTEL_TRACES_EXPORTER: must be otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_ENDPOINT: must be http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:{SECRET}@c", "ENDPOINT: must have no password"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "a variable OTEL_* is wrong: Invalid timeout value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", SECRET, "a variable OTEL_* is wrong: Header format invalid!"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a variable OTEL_* is wrong: max_queue_size must be"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "a variable OTEL_* is wrong: Unable to parse value"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "a variable OTEL_* is wrong: Couldn't recognize sampler"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "some", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
    ],
    ids=itertools.count(),
)
def test_a_wrong_variable_is_one_line_without_its_secret(
    variable: str, value: str, named: str, monkeypatch: Patch, caplog: Caplog
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as raised:
        Tracing(TraceSettings(enabled=True))
    (line,) = raised.value.lines
    assert line.startswith("environment: ")
    assert named in line
    assert "\n" not in line
    assert SECRET not in line + caplog.text


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "ftp://c",
        "http://",
        "http://c:x",
        "http://u:p@c",
        "http://c?key=k",
        "http://c d",
        "",
    ],
)
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="must"):
        TraceSettings(endpoint=endpoint)


# -- a collector that is dead, slow or hostile ------------------------------


def closed_port() -> str:
    with collecting() as gone:
        return gone.address


@pytest.mark.parametrize("manner", ["fails", "insults", "redirects", "hangs", "drips", "floods", "refuses"])
def test_a_bad_collector_costs_spans_and_one_line(manner: str, monkeypatch: Patch, caplog: Caplog) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    # The library waits this long for a response, and half a minute when it closes.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setattr(span_export, "_CLOSE_SECONDS", 0.3)
    with collecting("takes" if manner == "refuses" else manner) as collector:  # type: ignore[arg-type]
        address = closed_port() if manner == "refuses" else collector.address
        traces = Tracing(TraceSettings(enabled=True, endpoint=address))
        for _ in range(100):
            record_batch(traces)
        if manner != "refuses":
            wait_for("a request", lambda: collector.bodies)
        if manner == "floods":
            assert collector.ended.wait(LIMIT)
        else:
            wait_for("a line", lambda: lines_about_traces(caplog))
        before = time.monotonic()
        traces.close()
        assert time.monotonic() - before < 20
        assert collector.flooded < MOST
    lines = lines_about_traces(caplog)
    dropped = [line for line in lines if "does not accept spans" in line]
    if manner == "floods":
        # Its responses count, and their bodies are not read. The small queue may have been full.
        assert len(dropped) <= 2
    else:
        (line,) = dropped
        start = re.escape(f"traces: the collector at {address} does not accept spans (")
        assert re.fullmatch(rf"{start}(no answer|status [35]\d\d|ConnectionError)\): they are dropped", line)
        assert len(lines) <= 2
    assert SECRET not in caplog.text
    assert INSULT not in caplog.text
    assert {r.name for r in caplog.records} == {"streaming_pca.service.span_export"}


def test_a_redirect_is_not_followed() -> None:
    with collecting() as elsewhere, collecting("redirects", elsewhere.address) as collector:
        with tracing(collector.address) as traces:
            record_batch(traces)
        assert collector.bodies
        assert not elsewhere.bodies


def test_a_collector_that_comes_back_is_told_once(monkeypatch: Patch, caplog: Caplog) -> None:
    caplog.set_level(logging.INFO)
    with collecting("fails") as collector, tracing(collector.address) as traces:
        for _ in range(3):
            sent = len(collector.bodies)
            record_batch(traces)
            wait_for("a request", lambda sent=sent: len(collector.bodies) > sent)  # type: ignore[misc]
        wait_for("a line", lambda: lines_about_traces(caplog))
        collector.manner = "takes"
        wait_for("a second line", lambda: (record_batch(traces), len(lines_about_traces(caplog)) > 1)[1])
    dropped = "does not accept spans (status 500): they are dropped"
    lines = [line.split(": ", 1)[1].split(" ", 4)[4] for line in lines_about_traces(caplog)]
    assert lines == [dropped, "accepts spans again"]


# -- off, and without the extra --------------------------------------------

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", EXPORTER, "requests"])
def test_a_missing_extra_is_one_line(missing: str, monkeypatch: Patch) -> None:
    monkeypatch.delitem(sys.modules, "streaming_pca.service.span_export")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError) as raised:
        Tracing(TraceSettings(enabled=True))
    (line,) = raised.value.lines
    assert re.fullmatch(r"trace.enabled needs \S+: pip install '\.\[otel\]' in the checkout", line), line


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from streaming_pca.cli import main
from streaming_pca.config.loading import load_settings
from streaming_pca.service.worker import Worker

async def run():
    worker = Worker([load_settings(Path("stream.toml"))])
    with worker.tracing.trace("batch", worker._settings.stream) as trace, trace.child("read"):
        pass
    worker.tracing.close()

asyncio.run(run())
found = sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "requests"))
assert not found, found

os.environ["STREAMING_PCA_TRACE__ENABLED"] = "true"
sys.modules["opentelemetry.sdk"] = None
sys.argv = ["streaming-pca", "worker", "--config", "stream.toml"]
main()
"""
CONFIG = GOOD.replace("127.0.0.1:9092", "127.0.0.1:1")


def test_a_worker_without_traces_imports_nothing_and_one_without_the_extra_ends(tmp_path: Path) -> None:
    (tmp_path / "stream.toml").write_text(CONFIG)
    how: Any = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | paths, check=False, **how)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith("pip install '.[otel]' in the checkout")


@pytest.mark.parametrize("failing", [False, True])
def test_a_line_that_is_under_way_at_the_end_is_not_told(failing: bool, caplog: Caplog) -> None:
    """The library's thread may have looked up its handlers before they were removed."""
    caplog.set_level(logging.INFO)
    heard = span_export._LibraryLog("http://c", span_export._Session())
    heard.at_start = None
    record = logging.LogRecord("opentelemetry", logging.WARNING, "", 0, "it fails", None, None)
    heard.attach()
    if failing:
        heard.handle(record)
    heard.detach()
    heard.handle(record)
    heard.recovered()
    assert len(lines_about_traces(caplog)) == failing
