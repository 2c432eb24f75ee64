"""One-line texts of broker errors, naming missing permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import (
    AuthorizationError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from streaming_pca.service.errors import NotPermitted, SessionLost
from streaming_pca.text import first_line

_RESOURCES: dict[type[Exception], tuple[str, str]] = {
    GroupAuthorizationFailedError: ("Read", "consumer group"),
    TransactionalIdAuthorizationFailedError: ("Write with", "the transactional id"),
    ClusterAuthorizationFailedError: ("Describe", "the cluster"),
}
_OFFSETS_OF = re.compile(
    r"(?:OffsetFetchResponse failed for group '|FindCoordinatorResponse error for GROUP/)(.*?)(?:'\.|: .*)"
)
"""Texts of the admin client about a group whose offsets were requested; other errors have only the name."""


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
