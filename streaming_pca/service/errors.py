"""Errors that end a session, a stream or the process, and texts of broker errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from kafka.errors import (
    AuthorizationError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from streaming_pca.errors import UserError
from streaming_pca.text import first_line

CREATE = "`streaming-pca topics create --config FILE --cap EPSILON,DELTA`"
RESTORE = ", or, if it was lost, restore it by `streaming-pca import`"
_MOST_SIMILAR = 3
_NOT_PERMITTED = 29  # Kafka's error code of a topic that this user may not use

_RESOURCES: dict[type[Exception], tuple[str, str]] = {
    GroupAuthorizationFailedError: ("Read", "consumer group"),
    TransactionalIdAuthorizationFailedError: ("Write with", "the transactional id"),
    ClusterAuthorizationFailedError: ("Describe", "the cluster"),
}
_OFFSETS_OF = re.compile(
    r"(?:OffsetFetchResponse failed for group '|FindCoordinatorResponse error for GROUP/)(.*?)(?:'\.|: .*)"
)
"""Texts of the admin client about a group whose offsets were requested; other errors have only the name."""

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


class BrokerUnreachable(UserError):
    """Failure to reach any broker.

    ``may_pass``: True if a broker has responded, and the same request can succeed later.
    """

    exit_status = 4

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class DeadlineExceeded(Exception):
    """Step that hangs; its thread cannot be stopped, so the process must end."""


def exit_status(error: BaseException) -> int | None:
    """Return the exit status for an expected error; None for a bug."""
    if isinstance(error, KafkaError):
        return SessionLost.exit_status
    return error.exit_status if isinstance(error, UserError) else None


def missing_permission(error: BaseException, operation: str) -> NotPermitted | None:
    """Return the error that names a missing permission; None for others. The broker names the topic only."""
    if isinstance(error, TopicAuthorizationFailedError):
        named = error.args[0] if error.args else ()
        topics = sorted({named} if isinstance(named, str) else map(str, named))
        return NotPermitted(operation, " and ".join(f"topic {t!r}" for t in topics) or "a topic")
    if type(error) is KafkaError:
        # The client wraps responses to commits of a group's offsets, and to a producer's first request.
        if TopicAuthorizationFailedError.__name__ in str(error):
            return NotPermitted("Read", "the topic whose offsets are committed")
        if ClusterAuthorizationFailedError.__name__ in str(error):
            return missing_permission(ClusterAuthorizationFailedError(), operation)
    if isinstance(error, ClusterAuthorizationFailedError) and operation == "Write":
        # Idempotent producers need this permission, or a permission to write any topic.
        return NotPermitted(operation, "any topic")
    for kind, (verb, resource) in _RESOURCES.items():
        if isinstance(error, kind):
            name = error.args[0] if error.args and isinstance(error.args[0], str) else ""
            if (offsets_of := _OFFSETS_OF.fullmatch(name)) is not None:
                verb, name = "Describe", offsets_of[1]
            return NotPermitted(verb, f"{resource} {name!r}" if name else resource)
    return NotPermitted(operation, "a resource") if isinstance(error, AuthorizationError) else None


def in_one_line(error: BaseException, operation: str, *, quoted: bool = True) -> str:
    """Describe an error of the client in one line; ``operation`` as in :func:`missing_permission`.

    Without ``quoted`` only by its type: the client's text can contain offsets.
    """
    missing = missing_permission(error, operation)
    if missing is not None:
        return str(missing)
    return first_line(error) if quoted else type(error).__name__


@contextmanager
def session_lost_by(what: str, operation: str, *, quoted: bool = True) -> Iterator[None]:
    """Turn a KafkaError of a block into SessionLost; the options are those of :func:`in_one_line`."""
    try:
        yield
    except KafkaError as error:
        raise SessionLost(f"{what} failed: {in_one_line(error, operation, quoted=quoted)}") from error
