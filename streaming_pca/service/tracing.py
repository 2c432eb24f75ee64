"""Traces of batches and take-overs: their steps, with times and public quantities.

A span contains only what the ledger and the log show too: numbers and offset ranges of batches, charges,
outcomes. It never contains sizes, norms, null counts or error messages. All spans of a batch are held until
the batch is released, abandoned or given up, so no part of a trace leaves the process between ``update``
and the commit. Times are whole milliseconds, like those of messages in the ledger. They can depend on
records, as all durations can (docs/explanation/guarantee.md). Trace contexts are never read from a record,
because headers count as contents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from kafka.errors import KafkaError

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import StreamSettings, TraceSettings
from streaming_pca.privacy.ledger.cap import BudgetExceeded
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.service.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    RecordsLost,
    SessionLost,
    StreamRefused,
)
from streaming_pca.service.logs import trace_id
from streaming_pca.text import install_command

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan

    from streaming_pca.service.span_export import SpanExport

_MILLISECOND = 1_000_000  # resolution of times, in nanoseconds
_PUBLIC_ERRORS = (
    BrokerUnreachable,
    BudgetExceeded,
    DeadlineExceeded,
    KafkaError,
    RecordsLost,
    SessionLost,
    StreamRefused,
)
"""Errors whose types reveal nothing about records."""


class _Trace:
    """Spans of one trace, held until its root ends."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        # Read the wall clock once, so that an adjustment of it does not distort the trace.
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._ended: list[tuple[OtelSpan, int]] = []
        self.dropped = False

    def _now(self) -> int:
        """Return the time in nanoseconds since 1970, in whole milliseconds."""
        return (self._epoch + time.monotonic_ns()) // _MILLISECOND * _MILLISECOND

    @contextmanager
    def timed(self, name: str, parent: OtelSpan | None, secret_errors: bool = False) -> Iterator[OtelSpan]:
        """Time a step; without a parent it is the root."""
        span = self._export.start(name, parent, self._now())
        try:
            yield span
        except BaseException as error:
            self._export.mark_failed(span)
            if isinstance(error, _PUBLIC_ERRORS) and not secret_errors:
                span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            self._ended.append((span, self._now()))

    def send(self) -> None:
        if not self.dropped:
            for span, end in self._ended:
                span.end(end)


class PublicFacts(TypedDict, total=False):
    """All attributes of a span but the type of a public error."""

    stream: str
    input: str
    action: str  # the first one of a take-over
    leader_epoch: int  # the broker's fencing token
    planned: int
    resumed: bool  # another leader reserved the batch
    batch: int
    count: int
    ranges: list[str]
    epsilon: float
    delta: float
    rho: float | None
    outcome: str | None


class Span:
    """Step of a batch or of a take-over; records nothing while traces are off."""

    def __init__(self, trace: _Trace | None = None, span: OtelSpan | None = None) -> None:
        self._trace, self._span = trace, span

    @contextmanager
    def child(self, name: str, *, secret_errors: bool = False) -> Iterator[Span]:
        """Time a step within this one.

        ``secret_errors`` is for a step on records, where even an error's type may reveal them.
        """
        if self._trace is None:
            yield self
            return
        with self._trace.timed(name, self._span, secret_errors) as span:
            yield Span(self._trace, span)

    def drop(self) -> None:
        if self._trace is not None:
            self._trace.dropped = True

    def show_reserved(self, reserved: Reserved) -> None:
        """Set the batch's number, records and charge from its RESERVED entry."""
        charge = reserved.charge
        self.show(
            batch=reserved.batch,
            count=reserved.count,
            ranges=[f"{r.partition}:{r.start}-{r.end}" for r in reserved.ranges],
            epsilon=float(charge.epsilon),
            delta=float(charge.delta),
            rho=None if charge.rho is None else float(charge.rho),
        )

    def show(self, **facts: Unpack[PublicFacts]) -> None:
        if self._span is None:
            return
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(f"streaming_pca.{name}", cast("str | float | list[str]", value))


class Tracing:
    """Traces of a process.

    Raises ConfigurationError without the extra, or if a variable ``OTEL_*`` is wrong.
    """

    def __init__(self, settings: TraceSettings) -> None:
        self._export: SpanExport | None = None
        if not settings.enabled:
            return
        # Imported here: users without tracing do not need the library or its import time.
        try:
            from streaming_pca.service.span_export import SpanExport
        except ImportError as error:
            missing = f"{error.name or 'opentelemetry'}: {install_command('otel')}"
            raise ConfigurationError(f"trace.enabled needs {missing}") from None
        except ValueError as error:
            # The library reads some variables at import time.
            raise ConfigurationError(f"environment: {error}") from None
        self._export = SpanExport(settings)

    @contextmanager
    def trace(self, name: str, stream: StreamSettings) -> Iterator[Span]:
        """Record a trace of a stream, if enabled; log lines carry its id while it is open."""
        if self._export is None:
            yield Span()
            return
        trace = _Trace(self._export)
        token = None
        try:
            with trace.timed(name, None) as root:
                if root.is_recording():
                    token = trace_id.set(f"{root.get_span_context().trace_id:032x}")
                span = Span(trace, root)
                span.show(stream=stream.name, input=stream.input)
                yield span
        finally:
            if token is not None:
                trace_id.reset(token)
            trace.send()

    def close(self) -> None:
        if self._export is not None:
            self._export.close()
