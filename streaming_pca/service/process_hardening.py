"""Protection of a process's memory, which holds records and secrets, from dumps and debuggers.

On Linux a protected process is not dumpable (prctl(2), PR_SET_DUMPABLE): no core files, even for handlers
that ignore their limit, and only root can read its memory, environment and open files. ``exec`` resets the
flag, so every program of the service sets it, before anything else: only the standard library is imported.
Error messages of bugs are withheld as well: libraries quote the values that they cannot handle.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

log = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4
WITHHELD = "(message withheld: it may quote records or secrets; worker.debuggable = true shows it)"

_messages_shown = False


def protect_process(*, debuggable: bool = False) -> str | None:
    """Refuse core files and debuggers from now on; idempotent.

    ``debuggable``: admit debuggers of the same user and show messages of bugs; core files are still refused.
    Returns, for the log, why a protection is not available here, or what ``debuggable`` admits.
    """
    global _messages_shown
    _messages_shown = debuggable
    missing = [each for each in (refuse_core_files(), _set_dumpable(debuggable)) if each is not None]
    if debuggable:
        missing.append(
            "worker.debuggable: debuggers of this user, and handlers of crashes, can read records and secrets"
        )
    return "; ".join(missing) or None


def environment_without_settings() -> dict[str, str]:
    """Return the environment of a child process, which others can read until it is protected."""
    return {name: v for name, v in os.environ.items() if not name.upper().startswith("STREAMING_PCA_")}


def refuse_core_files() -> str | None:
    """Set the limit of core files to 0, also for child processes; return the reason on failure."""
    try:
        import resource

        # Only the soft limit: programs started later could not raise the hard one again.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):
        return "this platform cannot refuse core files: switch them off for this user"
    return None


def _set_dumpable(dumpable: bool) -> str | None:
    if not sys.platform.startswith("linux"):
        return "this platform cannot refuse debuggers: give the service its own user"
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0):
        return f"the system does not let this process refuse debuggers (error {ctypes.get_errno()})"
    return None


def traceback_text(error: BaseException) -> str:
    """Return an error's traceback, with messages of errors only if the process is debuggable.

    An error's type, lines of source code and the name of a missing module reveal nothing about records.
    """
    if _messages_shown:
        return "".join(traceback.format_exception(error))
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "\n".join(
        "Traceback (most recent call last):\n"
        + "".join(traceback.format_tb(each.__traceback__))
        + f"{type(each).__module__}.{type(each).__qualname__}: "
        + (f"{each}\n" if type(each) in (ImportError, ModuleNotFoundError) else f"{WITHHELD}\n")
        for each in reversed(chain)
    )


@contextmanager
def withheld_messages() -> Iterator[None]:
    """Print uncaught errors of threads and of the interpreter without their messages."""

    def show(_: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            sys.stderr.write(traceback_text(error.with_traceback(trace)))

    def of_thread(arguments: threading.ExceptHookArgs) -> None:
        if not isinstance(arguments.exc_value, SystemExit):
            show(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    def of_interpreter(arguments: Any) -> None:
        show(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    before: tuple[Callable[..., Any], ...] = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    sys.excepthook, threading.excepthook, sys.unraisablehook = show, of_thread, of_interpreter
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook = before
