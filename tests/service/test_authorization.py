"""The error line contains the missing permission, however the client reports it."""

from __future__ import annotations

import pytest
from kafka import errors

from streaming_pca.service.errors import in_one_line


def in_response(request: str, what: str) -> Exception:
    return errors.KafkaError(f"in {request}Response: [Error {what}AuthorizationFailedError")


@pytest.mark.parametrize(
    ("error", "operation", "words"),
    [
        (errors.TopicAuthorizationFailedError({"b", "a"}), "Read", "to Read topic 'a' and topic 'b':"),
        (errors.TopicAuthorizationFailedError("a"), "Write", "to Write topic 'a':"),
        (errors.TopicAuthorizationFailedError(), "Write", "to Write a topic:"),
        (errors.GroupAuthorizationFailedError("g"), "Write", "to Read consumer group 'g':"),
        *(
            (errors.GroupAuthorizationFailedError(text), "Describe", "to Describe consumer group 'g':")
            for text in (
                "FindCoordinatorResponse error for GROUP/g: ",
                "OffsetFetchResponse failed for group 'g'.",
            )
        ),
        (errors.TransactionalIdAuthorizationFailedError(), "Write", "to Write with the transactional id:"),
        (errors.ClusterAuthorizationFailedError(), "Write", "to Write any topic:"),
        (errors.ClusterAuthorizationFailedError(), "Describe", "to Describe the cluster:"),
        (errors.DelegationTokenAuthorizationFailedError(), "Read", "to Read a resource:"),
        (
            in_response("TxnOffsetCommit", "29] Topic"),
            "Write",
            "to Read the topic whose offsets are committed:",
        ),
        (in_response("InitProducerId", "31] Cluster"), "Write", "to Write any topic:"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_missing_permission_is_named(error: Exception, operation: str, words: str) -> None:
    line = in_one_line(error, operation)
    assert line.startswith(f"no permission {words}")
    assert len(line.splitlines()) == 1


def test_other_errors_keep_their_first_line() -> None:
    assert in_one_line(errors.KafkaTimeoutError("late\nand more"), "Read") == "KafkaTimeoutError: late"
    assert in_one_line(OSError("gone"), "Read") == "gone"
