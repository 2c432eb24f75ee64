"""Why a worker stops, each with the exit status that it stops with."""

from __future__ import annotations

__all__ = ["DeadlineExceeded", "RecordsLost", "SessionLost", "StreamRefused"]


class StreamRefused(Exception):
    """The ledger or the state does not allow this stream to go on as configured."""


class RecordsLost(Exception):
    """Records that were not read yet are gone, or were written in a way in which they are not read."""


class SessionLost(Exception):
    """Fenced, or the broker failed in the midst: drop everything, recover from the topics."""


class DeadlineExceeded(Exception):
    """A broker exchange hangs; its thread cannot be stopped, so the process must end."""
