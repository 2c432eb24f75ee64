"""Verdicts on streams in plain words."""

from __future__ import annotations

from inspect import signature

import pytest
from kafka.errors import InvalidTopicError, KafkaTimeoutError, TopicAuthorizationFailedError

from streaming_pca.cli.stream import stream_pause
from streaming_pca.dashboard.observing.health import Facts, LagWatch, judge
from streaming_pca.dashboard.observing.logs import in_words
from streaming_pca.service.errors import BrokerUnreachable

NO_REASON = signature(stream_pause).parameters["reason"].default
VERDICTS: list[tuple[Facts, str, str]] = [
    (Facts(), "ok", ""),
    (Facts(problem="topic 'x' is missing"), "problem", "topic 'x' is missing"),
    (Facts(disconnected=True), "unknown", "may be old"),
    (Facts(loaded=False), "unknown", "still being read"),
    (
        Facts(leader=False, lag=0, group="pe-workers"),
        "warning",
        "No worker of group 'pe-workers' leads it. Operators start one by `streaming-pca worker`.",
    ),
    (
        Facts(leader=False, lag=7, candidates=2),
        "problem",
        "7 offsets wait. 2 stand by: one takes over in a moment.",
    ),
    (Facts(leader=None, lag=7), "ok", ""),
    (
        Facts(leader=True, lag=9000, lag_grows=True),
        "warning",
        "the lag grows, 9,000 offsets wait. Give the worker more cores",
    ),
    (Facts(open_ledger=False), "problem", "The ledger is not open: operators set a cap by"),
    (
        Facts(refused="above the cap"),
        "problem",
        "refused this stream's last entry: above the cap. The worker's log has",
    ),
    (Facts(cannot_charge="it is spent"), "problem", "does not allow its next batch: it is spent"),
    # Where the cap refuses, neither the log nor a worker has a remedy.
    (
        Facts(refused="above the cap", cannot_charge="it is spent.", leader=False, lag=7, group="a"),
        "problem",
        "last entry: above the cap. The budget does not allow its next batch: it is spent. "
        "No worker of group 'a' leads it. 7 offsets wait.",
    ),
    (Facts(abandoned_last=True, reason="lost"), "warning", "charged and abandoned: lost. The next batch has"),
    (Facts(standing="paused", reason="upgrade"), "warning", "Paused: upgrade. `streaming-pca stream resume`"),
    (Facts(standing="paused", reason=NO_REASON), "warning", "Paused, without a reason. `streaming-pca"),
    (Facts(standing="paused"), "warning", "Paused, without a reason. `streaming-pca"),
    (Facts(standing="retired", leader=False, lag=5), "ok", "Retired and no longer learning."),
    (Facts(standing="retired", reason=NO_REASON), "ok", "Retired and no longer learning."),
    (Facts(processed=300, leader=False, cannot_charge="spent"), "ok", "All its 300 records are processed."),
    (
        Facts(doubts=("clipped: a", "dominated: b")),
        "warning",
        "release: clipped: a. The last release: dominated: b.",
    ),
    (Facts(least_null_share=0.04), "ok", ""),
    (Facts(least_null_share=0.06), "warning", "At least 6% of the last batch's records are null"),
    (Facts(least_null_share=0.6), "problem", "At least 60%"),
    (
        Facts(unit="user", least_null_share=0.84),
        "ok",
        "are null: further messages of users are null by design: `streaming-pca payload check` shows others.",
    ),
    (Facts(unit="user", least_null_share=0.04), "ok", ""),
    (Facts(unreadable=3), "warning", "not releases of this stream: 3."),
    (
        Facts(seconds_since=700.0, usual_seconds=60.0, full_seconds=61.0),
        "warning",
        "No release for 12 minutes",
    ),
    # A batch that fills is not late.
    (Facts(seconds_since=3e5, usual_seconds=4.0, lag=4200), "ok", ""),
    (Facts(seconds_since=700.0, usual_seconds=60.0, full_seconds=30.0), "ok", ""),
    (Facts(seconds_since=200.0, usual_seconds=60.0, full_seconds=100.0), "ok", ""),
    (Facts(seconds_since=700.0, full_seconds=700.0), "ok", ""),
    (
        Facts(seconds_since=3e5, usual_seconds=4.0, full_seconds=100.0),
        "warning",
        "No release for 3 days, though the next batch is full; usually one comes every 4.0 seconds. See",
    ),
]


@pytest.mark.parametrize(("facts", "level", "words"), VERDICTS)
def test_each_reason_has_words(facts: Facts, level: str, words: str) -> None:
    found = judge(facts)
    assert found.level == level
    assert words in " ".join(found.reasons)
    assert bool(found.reasons) == bool(words)
    assert ("Start one" in words) == any("Start one" in reason for reason in found.reasons)
    assert not any("\n" in reason for reason in found.reasons)


def test_the_worst_reason_is_first() -> None:
    found = judge(Facts(leader=False, lag=3, doubts=("variance-lost",), unreadable=1, least_null_share=0.9))
    assert found.level == "problem"
    assert [r.split()[0] for r in found.reasons] == ["No", "At", "The", "Messages"]


def _grows(lags: list[int], largest: int = 100) -> bool:
    watch = LagWatch(largest)
    for i, lag in enumerate(lags):
        watch.add(2.0 * i, lag, i)
    return watch.grows


def test_a_lag_grows_when_it_does_not_come_down_again() -> None:
    assert _grows([50 * i for i in range(60)])
    assert not _grows([50 * i for i in range(6)])
    # The lag rises and falls with each batch, is constant, or stays within one batch.
    assert not _grows([10 * (i % 20) for i in range(60)])
    assert not _grows([5000] * 60)
    assert not _grows(list(range(60)))
    # It grew once, long ago.
    assert not _grows([50 * i for i in range(30)] + [1500] * 70)


def test_the_rate_of_arrival_is_that_of_the_last_two_minutes() -> None:
    watch = LagWatch(100)
    for second in range(0, 14, 2):
        watch.add(float(second), 0, 10 * second)
        assert watch.per_second is None
    watch.add(16.0, 0, 160)
    assert watch.per_second == 10.0
    for second in range(18, 400, 2):
        watch.add(float(second), 0, 160)
    assert watch.per_second == 0.0
    # A recreated topic is shorter.
    watch.add(400.0, 0, 5)
    assert watch.per_second is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KafkaTimeoutError(), "the broker at here:1 does not answer (KafkaTimeoutError)"),
        (InvalidTopicError(), "the broker at here:1 fails (InvalidTopicError)"),
        (
            TopicAuthorizationFailedError({"flows"}),
            "no permission to Read topic 'flows': the broker's access control lists refuse it "
            "(`streaming-pca topics acls` has the permissions of each role)",
        ),
        (OSError(2, "No such file", "/etc/secret/ca.pem"), "[Errno 2] No such file: (a file)"),
        (BrokerUnreachable("kafka.sasl_password_file: /a/b c"), "kafka.sasl_password_file: (a file) c"),
        (BrokerUnreachable("no broker at 'one:9092,two:9092'\nmore"), "no broker at 'one:9092,two:9092'"),
    ],
)
def test_a_failure_is_one_line_without_a_path(error: Exception, words: str) -> None:
    assert in_words(error, "here:1") == words
