"""Log lines, as text or JSON, with stream, job and batch.

They show public quantities only: counts of delivered records, offsets, charges
and times of day. Nothing in them depends on a record's contents.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from streaming_pca.config.settings import LogSettings
from streaming_pca.service.process_hardening import traceback_text
from streaming_pca.text import printable

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""Id of the current trace, in 32 hexadecimal digits; None without a trace."""


class StreamLog(logging.LoggerAdapter[logging.Logger]):
    """Logger whose lines name their stream; ``batch=N`` in ``extra`` names the batch."""

    def __init__(self, logger: logging.Logger, stream: str) -> None:
        # In the ledger a stream's job has the stream's name.
        super().__init__(logger, {"stream": stream, "job": stream})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        trace = {} if trace_id.get() is None else {"trace_id": trace_id.get()}
        kwargs["extra"] = {**(self.extra or {}), **trace, **kwargs.get("extra", {})}
        return msg, kwargs


class _Formatter(logging.Formatter):
    def formatException(self, ei: Any) -> str:
        # A bug's message, for example a library's, may quote a record.
        return traceback_text(ei[1]).rstrip("\n")


class _TextFormatter(_Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        names = [name for name in ("stream", "batch") if hasattr(record, name)]
        fields = " ".join(f"{name}={getattr(record, name)}" for name in names)
        return f"{line} [{fields}]" if fields else line


class _JsonFormatter(_Formatter, JsonFormatter):
    pass


def configure_logging(settings: LogSettings) -> None:
    """Send all log lines to standard error, replacing earlier handlers."""
    formatter: logging.Formatter = _TextFormatter("%(asctime)s %(levelname)s %(message)s")
    if settings.format == "json":
        names = {"levelname": "level", "name": "logger"}
        formatter = _JsonFormatter(
            "%(levelname)s %(name)s %(message)s", rename_fields=names, timestamp="time"
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    # A full disk loses the line; a traceback about the loss would add nothing.
    logging.raiseExceptions = False
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    # The client logs every reconnect; our own log reports the failures that matter.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
