"""Why a worker stops, each with the exit status that it stops with."""

from __future__ import annotations

__all__ = ["DeadlineExceeded", "RecordsLost", "SessionLost", "StreamRefused"]


class StreamRefused(Exception):
    """The ledger or the state does not allow this stream to go on as configured."""


class RecordsLost(Exception):
    """Retention deleted records that were not read yet."""


class SessionLost(Exception):
    """Fenced, or the broker failed in the midst: drop everything, recover from the topics."""


class DeadlineExceeded(Exception):
    """A broker exchange hangs; its thread cannot be stopped, so the process must end."""
