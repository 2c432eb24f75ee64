"""Standard output that may be full, closed, or of few characters: one line says so, and no traceback."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn, TextIO, cast

from streaming_pca.cli.common import fail

__all__ = ["OutputFailed", "end_without_output", "guard_output"]


class OutputFailed(OSError):
    """Error of a write to standard output, which may come at the end of any command."""


class _OutputClosed(OutputFailed, BrokenPipeError):
    """The reader of a pipe is gone, which typer takes for no error worth a line."""


class _Output:
    """Stream that says of its errors whose they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _named(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _named(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Errors(_Output):
    """Standard error: where it cannot be written, nothing else can say so, and the exit status tells."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _named(error: OSError) -> OutputFailed:
    kind = _OutputClosed if error.errno == errno.EPIPE else OutputFailed
    return kind(error.errno, os.strerror(error.errno or errno.EIO))


def guard_output() -> None:
    """Show characters that standard output cannot encode as escapes, and name its other errors."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        # Closed by whoever started the program: nobody wants to read it.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout = cast(TextIO, _Output(sys.stdout))
    if sys.stderr is not None:
        sys.stderr = cast(TextIO, _Errors(sys.stderr))


def end_without_output(error: OutputFailed, status: int = 1) -> NoReturn:
    """Leave what could not be written, and end: with one line, unless the reader is gone."""
    # Python would write it at its own end, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        sys.exit(status)
    fail(OSError(f"standard output cannot be written: {error.strerror}"), 1)
