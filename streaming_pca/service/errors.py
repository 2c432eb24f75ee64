"""Errors that end a session, a stream or the process."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from kafka.errors import KafkaError

from streaming_pca.errors import UserError

CREATE = "`streaming-pca topics create --config FILE --cap EPSILON,DELTA`"
RESTORE = ", or, if it was lost, restore it by `streaming-pca import`"
_MOST_SIMILAR = 3
_NOT_PERMITTED = 29  # Kafka's error code of a topic that this user may not use

E = TypeVar("E", bound=BaseException)


def without_traceback(error: E) -> E:
    """Drop an error's traceback and context.

    They keep the variables of all callers alive, batches included. kafka-python's frames and errors refer to
    each other: only the garbage collector would free them.
    """
    error.__context__ = None
    return error.with_traceback(None)


class StreamRefused(UserError):
    """Ledger or state that does not allow this stream to continue as configured."""


class BudgetExceededByAnother(StreamRefused):
    """Void entry: another job charged the rest of the records' budget first."""

    exit_status = 3

    def __init__(self, reason: str) -> None:
        super().__init__(f"the cap was reached by another job first: {reason}")


class TopicError(UserError):
    """Missing topic, or settings of a topic that break the privacy guarantee; one line."""

    @classmethod
    def missing(cls, topic: str, others: Iterable[str] = ()) -> Self:
        """Return the error for a missing topic, with similar names among ``others``."""
        similar = ", ".join(map(repr, difflib.get_close_matches(topic, sorted(others), _MOST_SIMILAR)))
        names = f" (similar names there: {similar})" if similar else ""
        remedy = CREATE + RESTORE * topic.endswith((".ledger", ".state"))
        return cls(f"topic {topic!r} is missing: correct its name{names}; operators create it by {remedy}")


class NotPermitted(TopicError):
    """Missing permission on a topic, a group or the cluster; one line that names it."""

    def __init__(self, operation: str, resource: str) -> None:
        super().__init__(
            f"no permission to {operation} {resource}: the broker's access control lists refuse it "
            "(`streaming-pca topics acls` has the permissions of each role)"
        )

    @classmethod
    def check(cls, described: Iterable[Mapping[str, Any]]) -> None:
        """Raise the error for a topic that the broker refuses to describe to this user."""
        for topic in described:
            if topic["error_code"] == _NOT_PERMITTED:
                raise cls("Describe", f"topic {topic['name']!r}")


class RecordsLost(UserError):
    """Unread records that were deleted or are in an unreadable format."""


class SessionLost(UserError):
    """Loss of the lead or of the broker: drop everything and recover from the topics."""

    exit_status = 4


class DeadlineExceeded(Exception):
    """Step that hangs; its thread cannot be stopped, so the process must end."""


def exit_status(error: BaseException) -> int | None:
    """Return the exit status for an expected error; None for a bug."""
    if isinstance(error, KafkaError):
        return SessionLost.exit_status
    return error.exit_status if isinstance(error, UserError) else None
