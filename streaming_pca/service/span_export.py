"""Export of spans by OpenTelemetry (extra ``otel``): OTLP over HTTP, in a separate thread.

A dead, slow or hostile collector costs only spans. The queue is bounded and drops its oldest spans,
response bodies are never read, redirects are not followed, and the end of the process waits at most
``_CLOSE_SECONDS``. The library's own log lines are not shown, because they can quote the collector and the
headers that contain its password. One line of ours replaces them.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, StatusCode, set_span_in_context

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import TraceSettings, check_collector
from streaming_pca.privacy.randomness import secret_salt

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0  # time for the last spans at the end of the process
_VERSION = version("streaming-pca")
_LIBRARIES = ("opentelemetry", "urllib3")  # loggers of the library and of its HTTP client
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables for the collector's address, in order of precedence."""
_ONLY = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}
"""Standard variables that may have only this value here."""


class _Ids(IdGenerator):
    """Ids from the operating system's generator.

    The library's ids would reveal outputs of Python's shared generator, and so its state.
    """

    def generate_span_id(self) -> int:
        return int.from_bytes(secret_salt(8)) or 1

    def generate_trace_id(self) -> int:
        return int.from_bytes(secret_salt(16)) or 1

    def is_trace_id_random(self) -> bool:
        return True


class _Session(requests.Session):
    """HTTP session that reads only the status and headers of a response."""

    outcome = "no answer"  # outcome of the last request, for the log: a status or an error's type

    def __init__(self) -> None:
        super().__init__()
        self.on_success: Callable[[], None] = lambda: None

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.outcome = "no answer"
        try:
            response = super().request(*args, **(kwargs | {"stream": True, "allow_redirects": False}))
        except Exception as error:
            self.outcome = type(error).__name__
            raise
        response.close()
        self.outcome = f"status {response.status_code}"
        if response.is_redirect:
            # The library treats a redirect as success.
            raise requests.TooManyRedirects
        if response.ok:
            self.on_success()
        return response


class _LibraryLog(logging.Handler):
    """Handler that replaces the library's warnings by one line per outage."""

    def __init__(self, collector: str, session: _Session) -> None:
        super().__init__(logging.WARNING)
        self._collector, self._session = collector, session
        session.on_success = self.recovered
        self.at_start: list[str] | None = []
        """The library's lines during setup, without their values; None afterwards."""
        self._failing = self._silent = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.at_start is not None:
            self.at_start.append(re.sub(r"%\S", "...", str(record.msg)))
        elif not (self._failing or self._silent):
            self._failing = True
            line = "traces: the collector at %s does not accept spans (%s): they are dropped"
            log.warning(line, self._collector, self._session.outcome)

    def attach(self) -> None:
        """Redirect the libraries' log lines to this handler only."""
        for library in map(logging.getLogger, _LIBRARIES):
            library.addHandler(self)
            library.setLevel(logging.WARNING)
            library.propagate = False

    def detach(self) -> None:
        """Restore the libraries' loggers; log nothing further."""
        # First, because the library's thread may be about to log a line.
        self._silent = True
        for library in map(logging.getLogger, _LIBRARIES):
            # First: a thread that still hangs in a request must not start to log.
            library.setLevel(logging.CRITICAL)
            library.removeHandler(self)
            library.propagate = True

    def recovered(self) -> None:
        if self._failing and not self._silent:
            self._failing = False
            log.info("traces: the collector at %s accepts spans again", self._collector)


class SpanExport:
    """Tracer of a process that exports its spans to the collector.

    Other settings are read from the standard variables ``OTEL_*``; if one is wrong, ConfigurationError names
    it in one line without secrets.
    """

    def __init__(self, settings: TraceSettings) -> None:
        address, session = _collector(settings), _Session()
        self._library_log = _LibraryLog(address, session)
        self._library_log.attach()
        provider, problems = None, []
        try:
            endpoint = None if settings.endpoint is None else f"{settings.endpoint.rstrip('/')}/v1/traces"
            resource = Resource.create({"service.name": "streaming-pca", "service.version": _VERSION})
            # The variables take precedence: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES.
            resource = resource.merge(OTELResourceDetector().detect())
            provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=_Ids())
            self._exporter = OTLPSpanExporter(endpoint=endpoint, session=session)
            provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            problems.append(str(error))
        problems += self._library_log.at_start or []
        self._library_log.at_start = None
        if provider is None or problems:
            if provider is not None:
                provider.shutdown()
            self._library_log.detach()
            raise ConfigurationError(f"environment: a variable OTEL_* is wrong: {problems[0]}")
        self._provider = provider
        self._tracer = provider.get_tracer("streaming_pca", _VERSION)
        log.info("traces go to %s", address)

    def start(self, name: str, parent: Span | None, time: int) -> Span:
        """Start a span at a time in nanoseconds; without a parent it is the root of a new trace."""
        # An empty context, so that no span of another library can become the parent.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, start_time=time)

    def mark_failed(self, span: Span) -> None:
        """Mark a span as failed, without text: error messages may reveal records."""
        span.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """Export the remaining spans, within a time limit."""
        # The library's own limit is half a minute, during which its thread is inside a request.
        closing = threading.Thread(target=self._provider.shutdown, name="closing-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            line = "traces: the last spans are dropped: they were not accepted within %g s"
            log.warning(line, _CLOSE_SECONDS)
            # Ends the pauses between its attempts.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._library_log.detach()


def _collector(settings: TraceSettings) -> str:
    """Return the collector's address for the log, without path and password; check the variables."""
    for variable, known in _ONLY.items():
        if os.environ.get(variable, known) not in ("", known):
            raise ConfigurationError(f"environment: {variable}: must be {known}")
    url = settings.endpoint or "http://localhost:4318"
    deciding = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if settings.endpoint is None and deciding is not None:
        url = os.environ[deciding]
        try:
            check_collector(url)
        except ValueError as error:
            raise ConfigurationError(f"environment: {deciding}: {error}") from None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
