"""The error line contains the missing permission, however the client reports it."""

from __future__ import annotations

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    DelegationTokenAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from streaming_pca.service.kafka.authorization import in_one_line


@pytest.mark.parametrize(
    ("error", "operation", "words"),
    [
        (TopicAuthorizationFailedError({"b", "a"}), "Read", "to Read topic 'a' and topic 'b':"),
        (TopicAuthorizationFailedError("a"), "Write", "to Write topic 'a':"),
        (TopicAuthorizationFailedError(), "Write", "to Write a topic:"),
        (GroupAuthorizationFailedError("g"), "Write", "to Read consumer group 'g':"),
        (TransactionalIdAuthorizationFailedError(), "Write", "to Write with the transactional id:"),
        (ClusterAuthorizationFailedError(), "Write", "to Write any topic:"),
        (ClusterAuthorizationFailedError(), "Describe", "to Describe the cluster:"),
        (DelegationTokenAuthorizationFailedError(), "Read", "to Read a resource:"),
        (
            KafkaError("in TxnOffsetCommitResponse: [Error 29] TopicAuthorizationFailedError"),
            "Write",
            "to Read the topic whose offsets are committed:",
        ),
        (
            KafkaError("in InitProducerIdResponse: [Error 31] ClusterAuthorizationFailedError"),
            "Write",
            "to Write any topic:",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_missing_permission_is_named(error: Exception, operation: str, words: str) -> None:
    line = in_one_line(error, operation)
    assert line.startswith(f"no permission {words}")
    assert len(line.splitlines()) == 1


def test_other_errors_keep_their_first_line() -> None:
    assert in_one_line(KafkaTimeoutError("late\nand more"), "Read") == "KafkaTimeoutError: late"
    assert in_one_line(OSError("gone"), "Read") == "gone"
