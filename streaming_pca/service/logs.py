"""Log lines for people or for programs, with stream, job and batch.

They show public quantities only: counts of delivered records, offsets, charges
and times of day; nothing that depends on a record's contents.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from streaming_pca.config.settings import LogSettings

__all__ = ["StreamLog", "configure_logging"]

_FIELDS = ("stream", "job", "batch")


class StreamLog(logging.LoggerAdapter[logging.Logger]):
    """Logger whose lines name their stream; ``batch=N`` in ``extra`` names the batch."""

    def __init__(self, logger: logging.Logger, stream: str) -> None:
        # In the ledger a stream's job has the stream's name.
        super().__init__(logger, {"stream": stream, "job": stream})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the stream to the fields of a line."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = " ".join(
            f"{name}={getattr(record, name)}" for name in ("stream", "batch") if hasattr(record, name)
        )
        return f"{line} [{fields}]" if fields else line


def _formatter(settings: LogSettings) -> logging.Formatter:
    if settings.format == "text":
        return _TextFormatter("%(asctime)s %(levelname)s %(message)s")
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
    )


def configure_logging(settings: LogSettings) -> None:
    """Send all log lines to standard error, in place of earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(settings))
    # A line that a full disk has no room for is lost; a traceback in its place would say nothing more.
    logging.raiseExceptions = False
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    # The client logs every reconnect; its relevant failures reach our own log.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
