"""A collector of traces: an OTLP receiver over HTTP, which may also misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

Manner = Literal["takes", "fails", "hangs", "drips", "floods", "redirects", "insults"]
MOST = 64 * 2**20
"""Bytes after which an endless response ends after all."""
INSULT = "insult-of-the-collector"
"""Text that a bad collector tries to place in the log."""


@dataclass(frozen=True)
class SeenSpan:
    """Span as received.

    Attributes
    ----------
    start, end : int
        Nanoseconds since 1970.
    arrived : float
        Seconds since 1970.
    """

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    arrived: float


class Collector:
    """Received spans, and a server that receives more.

    Attributes
    ----------
    bodies : list of bytes
        Requests as received.
    headers : list of dict
    resource : dict
        Attributes of the last request's resource.
    flooded : int
        Number of bytes written of an endless response.
    released : Event
        Set when this collector closes.
    ended : Event
        Set when an endless response has ended.
    """

    def __init__(self, manner: Manner = "takes", elsewhere: str = "") -> None:
        self.manner, self.elsewhere = manner, elsewhere
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.resource: dict[str, Any] = {}
        self.flooded = 0
        self._spans: list[SeenSpan] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.released, self.ended = threading.Event(), threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[SeenSpan]:
        return list(self._spans)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: SeenSpan) -> list[SeenSpan]:
        """Return the child spans, ordered by their start."""
        return sorted((s for s in self.spans if s.parent == parent.id), key=lambda s: (s.start, s.end))

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        self.bodies.append(body)
        self.headers.append(headers)
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.resource = {a.key: value_of(a.value) for a in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    assert not span.events
                    assert not span.links
                    assert not span.status.message
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    times = (span.start_time_unix_nano, span.end_time_unix_nano)
                    failed = span.status.code == Status.STATUS_CODE_ERROR
                    attributes = {a.key: value_of(a.value) for a in span.attributes}
                    seen = SeenSpan(span.name, *ids, *times, failed, attributes, time.time())
                    self._spans.append(seen)

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/traces", self.path
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(body, {name.lower(): value for name, value in self.headers.items()})
            match collector.manner:
                case "takes":
                    self._answer(200, 0)
                case "fails":
                    self._answer(500, 0)
                case "insults":
                    self.send_response_only(500, INSULT)
                    self._answer(None, 0, ("X", INSULT))
                case "redirects":
                    self._answer(307, 0, ("Location", f"{collector.elsewhere}/v1/traces"))
                case "hangs":
                    collector.released.wait()
                    self.close_connection = True
                case "drips":
                    self.send_response_only(200)
                    self.flush_headers()
                    self._write(b"x", 0.05)
                case "floods":
                    self._answer(200, 1 << 40)
                    self._write(bytes(1 << 16), 0)

        def _answer(self, status: int | None, length: int, *headers: tuple[str, str]) -> None:
            if status is not None:
                self.send_response_only(status)
            for name, value in (("Content-Length", str(length)), *headers):
                self.send_header(name, value)
            self.end_headers()

        def _write(self, data: bytes, pause: float) -> None:
            self.close_connection = True
            with suppress(OSError):
                while not collector.released.wait(pause) and collector.flooded < MOST:
                    collector.flooded += self.wfile.write(data)
            collector.ended.set()

    return Handler


@contextmanager
def collecting(manner: Manner = "takes", elsewhere: str = "") -> Iterator[Collector]:
    """Run a collector on the loopback."""
    collector = Collector(manner, elsewhere)
    thread = threading.Thread(target=collector.serve, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.close()
        thread.join()
