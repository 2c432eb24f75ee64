"""`streaming-pca watch` shows releases as they are published, and nothing else."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaProducer

from streaming_pca.admin import watch as module
from streaming_pca.admin.watch import FollowedRelease, follow_releases
from streaming_pca.cli import watch as command
from streaming_pca.cli.common import out
from streaming_pca.cli.plan import explained_text
from streaming_pca.client import releases as following
from streaming_pca.client.releases import NotARelease, ReleaseReader, UnreadableRelease, read_release
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.data.release import ACCURACY, Release
from streaming_pca.demo.broker import EmbeddedBroker
from streaming_pca.service.errors import BrokerUnreachable, TopicError
from tests.cli.command import call
from tests.cli.test_app import closed_port, one_line
from tests.config.test_loading import SEVERAL
from tests.data.test_release import COUNTED
from tests.kafka.test_broker import create
from tests.waiting import LIMIT, suspend

Name = Callable[[str], str]
Capture = pytest.CaptureFixture[str]
LATER = json.dumps({"schema_name": "streaming-pca.release", "version": 999, "new": True}).encode()
COMMAND = [sys.executable, "-m", "streaming_pca", "watch"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a terminal width that wraps no line; tests/cli/test_tables.py has narrow ones."""
    monkeypatch.setattr(out, "_width", 200)


def last_release(kafka: KafkaSettings, topic: str) -> Release | None:
    """Return the last release of a topic of any name."""
    with closing(ReleaseReader(kafka, topic)) as reader:
        return reader.newest()


def release(batch: int, turn: float = 0.0, **changes: Any) -> Release:
    """Return one direction of the plane, ``turn`` radians from the first axis."""
    values: dict[str, Any] = {
        **{"stream": "s", "batch": batch, "records": 100 * batch, "dim": 2, "rank": 1, "mean": None},
        **{"estimator": "analyze-gauss", "components": [[math.cos(turn), math.sin(turn)]]},
        **{"explained_variance": [2.5], "created": f"2026-01-0{batch}T00:00:00.000+00:00"},
        **{"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one", "privacy_unit": "message"},
    }
    return Release(**(values | changes))


class Published:
    """A releases topic, written as a worker writes it: a transaction for each release."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap, bootstrap_timeout_ms=int(LIMIT * 1000))
        self.topic = topic
        create(bootstrap, topic)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"t-{topic}")
        self._producer.init_transactions()

    def __call__(self, *values: Release | bytes, abort: bool = False) -> None:
        for value in values:
            self._producer.begin_transaction()
            data = value.to_bytes() if isinstance(value, Release) else value
            self._producer.send(self.topic, data).get(LIMIT)
            if abort:
                self._producer.abort_transaction()
            else:
                self._producer.commit_transaction()

    def arguments(self) -> list[str]:
        return ["--releases", self.topic, "--bootstrap", self.kafka.bootstrap_servers]

    def watch(self, capfd: Capture, *arguments: object) -> list[dict[str, Any]]:
        """Return the output of `watch --json`, which must succeed."""
        result = call(capfd, "watch", *self.arguments(), "--json", *arguments)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def watch_all(self, capfd: Capture, count: int) -> tuple[list[dict[str, Any]], list[str]]:
        """Return all releases as JSON and as text."""
        how = ("--from-beginning", "--count", count)
        result = call(capfd, "watch", *self.arguments(), *how)
        assert result.returncode == 0, result.stderr
        return self.watch(capfd, *how), result.stdout.splitlines()

    def follow(self, **how: Any) -> Iterator[Any]:
        return follow_releases(self.kafka, self.topic, **({"from_beginning": True} | how))

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def published(broker_bootstrap: str, unique_name: Name) -> Iterator[Published]:
    with closing(Published(broker_bootstrap, f"{unique_name('copied')}.s.releases")) as topic:
        yield topic


@contextmanager
def watching(*arguments: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """Run watch until the test ends."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=how.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **how,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended_well(process: subprocess.Popen[str]) -> bool:
    """Return whether a process ends in silence, with status 0."""
    assert process.stderr is not None
    return (process.wait(120), process.stderr.read()) == (0, "")


def test_it_starts_with_the_latest_release_and_its_angle_to_the_one_before(
    capfd: Capture, published: Published
) -> None:
    published(release(1), release(2, 0.25), release(3, 0.75))
    (line,) = published.watch(capfd, "--count", 1)
    unknown = ("total_variance", "outcome", "advice", "resolved_components", "dominant_feature", *ACCURACY)
    assert line == dict.fromkeys(unknown) | {
        **{"stream": "s", "batch": 3, "records": 300, "created": "2026-01-03T00:00:00.000+00:00"},
        **{"principal_angle": pytest.approx(0.5), "explained_variance": [2.5], "doubts": []},
    }


def test_from_the_beginning_all_releases_are_shown_and_the_first_has_no_angle(
    capfd: Capture, published: Published
) -> None:
    published(release(1), release(2, 0.25), release(3, 0.75))
    lines, _ = published.watch_all(capfd, 3)
    assert [line["batch"] for line in lines] == [1, 2, 3]
    assert lines[0]["principal_angle"] is None
    assert [line["principal_angle"] for line in lines[1:]] == pytest.approx([0.25, 0.5])


def test_the_stream_is_named_by_its_file(capfd: Capture, published: Published, tmp_path: Path) -> None:
    published(release(1))
    name = published.topic.removesuffix(".releases")
    config = tmp_path / "streams.toml"
    text = SEVERAL.replace("127.0.0.1:9092", published.kafka.bootstrap_servers)
    config.write_text(text.replace('name = "b"', f'name = "{name}"'))
    result = call(capfd, "watch", "--config", config, "--stream", name, "--json", "--count", 1)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["batch"] == 1
    one_line(call(capfd, "watch", "--config", config), 2, f"(a, {name}, c): name one with --stream")


def test_what_a_batch_came_to_is_shown(capfd: Capture, published: Published) -> None:
    published(release(1, version=3, outcome="learnt"), release(2, version=3, outcome="no-gap"))
    lines, text = published.watch_all(capfd, 2)
    assert [line["outcome"] for line in lines] == ["learnt", "no-gap"]
    assert [line.partition("  2.5")[2] for line in text[1:]] == ["; learnt", "; no-gap"]


DOUBTFUL: dict[str, Any] = {
    **{"version": 5, "rank": 2, "dim": 3, "components": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]},
    **{"explained_variance": [20.0, 1.0], "explained_variance_error": [0.25, 0.75]},
    **{"angle_bound": math.pi / 2, "doubts": ("not-resolved", "no-such-word-yet")},
}
REASONS = [
    "not-resolved: noise alone could have produced the components (the angle bound is 90 degrees), "
    "but not the first of 2",
    "no-such-word-yet",
]
HELPS = [
    "what helps (a new stream charges its records again):",
    "- a new stream with a lower rank, such as 1",
    "- more records",
    "- a new stream with a larger epsilon",
    "- a new stream with public bounds of the features",
]


def test_doubts_of_a_release_have_lines_below_it(capfd: Capture, published: Published) -> None:
    published(release(1, **DOUBTFUL), release(2, **DOUBTFUL), release(3))
    (first, second, third), lines = published.watch_all(capfd, 3)
    assert (first["doubts"], first["resolved_components"]) == (["not-resolved", "no-such-word-yet"], 1)
    assert first["advice"] == second["advice"]
    assert first["advice"]["reasons"] == REASONS
    assert first["advice"]["remedies"] == [line.removeprefix("- ") for line in HELPS[1:]]
    assert (third["doubts"], third["advice"], third["resolved_components"]) == ([], None, None)
    indented = [f"       {line}" for line in (f"doubtful: {REASONS[0]}", REASONS[1])]
    assert lines[2:9] == [*indented, *(f"       {line}" for line in HELPS)]
    # The second release has the same doubts: what helps is not repeated.
    assert lines[10:12] == indented
    assert [line.split()[0] for line in (lines[1], lines[9], lines[12])] == ["1", "2", "3"]


def test_text_has_a_line_a_release_with_the_angle_in_degrees(capfd: Capture, published: Published) -> None:
    published(release(1), release(2, math.pi / 6))
    _, (head, first, second) = published.watch_all(capfd, 2)
    assert head.split() == ["batch", "records", "moved", "created", "explained", "variance"]
    assert first.split() == ["1", "100", "-", "2026-01-01T00:00:00.000+00:00", "2.5"]
    assert second.split() == ["2", "200", "30.000°", "2026-01-02T00:00:00.000+00:00", "2.5"]
    assert head.index("created") == first.index("2026") == second.index("2026")


EXACT: dict[str, Any] = {
    "version": 2,
    "explained_variance_error": [0.123],
    "total_variance": 10.0,
    "total_variance_error": 0.4,
    "angle_bound": math.radians(3.14159),
}


def test_what_a_release_says_of_its_accuracy_is_shown(capfd: Capture, published: Published) -> None:
    exact = {name: value for name, value in EXACT.items() if name != "version"}
    published(release(1, **EXACT), release(2, **(EXACT | {"angle_bound": math.pi / 2})))
    lines, (_, first, second) = published.watch_all(capfd, 2)
    assert lines[0] | exact == lines[0]
    assert lines[1]["angle_bound"] == math.pi / 2
    # A bound is rounded up.
    assert first.endswith("  2.5 ± 0.12; of 10 ± 0.4 (25%); angle ≤ 3.2° (95%)")
    assert second.endswith("  2.5 ± 0.12; of 10 ± 0.4 (25%); angle error unknown: too much noise")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"explained_variance_error": [0.1]}, "2.5 ± 0.1"),
        ({"total_variance": 5.0}, "2.5; of 5 (50%)"),
        ({"total_variance": 2.0, "total_variance_error": 3.0}, "2.5; of 2 ± 3 (100%)"),
        ({"total_variance": -2.0, "explained_variance": [0.0]}, "0; of -2"),
        ({"angle_bound": 0.0}, "2.5; angle ≤ 0.0° (95%)"),
    ],
)
def test_only_what_is_known_is_said(changes: dict[str, Any], expected: str) -> None:
    assert explained_text(release(1, version=2, **changes).accuracy) == expected


def test_of_many_variances_the_first_are_shown_with_their_errors() -> None:
    variances = {"explained_variance": [*map(float, range(18, 10, -1))], "total_variance": 232.0}
    shape = {"rank": 8, "components": [[1.0, 0.0]] * 8, "explained_variance_error": [0.5] * 8}
    many = release(1, version=2, **shape, **variances)
    shown = "  ".join(f"{v} ± 0.5" for v in range(18, 12, -1))
    assert explained_text(many.accuracy) == f"{shown}  … (8); of 232 (50%)"


def test_releases_that_come_later_follow(published: Published) -> None:
    published(release(1))
    with watching(*published.arguments(), "--json", "--count", 3) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["batch"] == 1
        published(release(2), release(3))
        assert [json.loads(process.stdout.readline())["batch"] for _ in range(2)] == [2, 3]
        assert process.wait(120) == 0


def test_an_empty_topic_is_waited_on(published: Published) -> None:
    with closing(published.follow(from_beginning=False, stopped=lambda: False)) as items:
        assert next(items) is None
        published(release(1))
        item = next(found for found in items if found is not None)
    assert item == FollowedRelease(release(1), None)


def test_a_long_wait_for_the_first_release_is_not_silent(
    capfd: Capture, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.0)
    monkeypatch.setattr(command, "_REPEAT", 0.1)
    result = call(capfd, "watch", *published.arguments(), "--timeout", 1)
    first, *later, _ = result.stderr.splitlines()
    assert first.startswith("no release yet: ")
    assert later
    assert all(re.fullmatch(r"no release after \d s", line) for line in later)


def test_after_the_timeout_without_a_release_the_status_is_1(capfd: Capture, published: Published) -> None:
    published(release(1))
    result = call(capfd, "watch", *published.arguments(), "--json", "--timeout", 0.5)
    assert json.loads(result.stdout)["batch"] == 1
    one_line(result, 1, "release within", published.topic, "0.5 s")


def test_a_message_that_is_no_release_is_one_line_and_the_next_is_shown(
    capfd: Capture, published: Published
) -> None:
    published(release(1), b"\xff", release(2), *[b"{}"] * 40, release(3))
    result = call(capfd, "watch", *published.arguments(), "--json", "--from-beginning", "--count", 3)
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["batch"] for line in result.stdout.splitlines()] == [1, 2, 3]
    *noted, last = result.stderr.splitlines()
    assert len(noted) == 10
    assert all(line.startswith(f"warning: {published.topic}, offset ") for line in noted)
    assert all("not a release" in line and line.endswith(": skipped") for line in noted)
    assert last == f"warning: more messages of {published.topic} are not releases: name STREAM.releases"


def test_a_topic_of_other_messages_is_said_to_be_the_wrong_one(
    capfd: Capture, broker_bootstrap: str, unique_name: Name
) -> None:
    with closing(Published(broker_bootstrap, unique_name("records"))) as published:
        published(b"1,2", b"3,4")
        result = call(capfd, "watch", *published.arguments(), "--timeout", 0.5)
        assert result.returncode == 1
        first, last = result.stderr.splitlines()
        assert first.startswith(f"warning: {published.topic}, offset 2: not a release")
        assert last.startswith(
            f"error: {published.topic}: no release within 0.5 s: it has messages, but no release"
        )
        assert last_release(published.kafka, published.topic) is None


def test_a_release_that_cannot_be_read_is_not_called_none(
    capfd: Capture, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.0)
    published(LATER)
    result = call(capfd, "watch", *published.arguments(), "--timeout", 0.5)
    line, *_ = result.stderr.splitlines()
    assert line.startswith(f"warning: {published.topic}, offset 0: a release of version 999 cannot be read")
    assert line.endswith("a later version has written it")
    assert "no release yet" not in result.stderr
    with pytest.raises(UnreadableRelease):
        last_release(published.kafka, published.topic)


@pytest.mark.parametrize(
    "changes",
    [
        {"components": [[1.0, 0.0], [0.0, 1.0]]},
        {"components": [[1.0]]},
        {"components": [[1.0, 0.0], [0.0]]},
        {"components": [[math.nan, 1.0]]},
        {"explained_variance": [math.inf]},
        {"created": "\x1b[31mtoday"},
        {"version": 2, "explained_variance_error": [0.1, 0.1]},
        {"version": 2, "angle_bound": 2.0},
        {"version": 1, "angle_bound": 0.1},
    ],
)
def test_numbers_that_do_not_hold_together_are_no_release(
    published: Published, changes: dict[str, Any]
) -> None:
    text = release(1).model_dump() | changes
    published(json.dumps(text).encode(), release(2))
    with closing(published.follow(stopped=lambda: False)) as items:
        found = [next(filter(None, items)) for _ in range(2)]
    assert isinstance(found[0], NotARelease)
    assert "not a release" in found[0].reason
    assert "\x1b" not in str(found[0])
    assert found[1] == FollowedRelease(release(2), None)


def test_releases_of_another_dimension_have_no_angle(capfd: Capture, published: Published) -> None:
    published(release(1), release(2, dim=3, components=[[1.0, 0.0, 0.0]]))
    assert [line["principal_angle"] for line in published.watch(capfd, "--count", 1)] == [None]


@pytest.mark.parametrize(
    "changes",
    [
        {"components": [[1e200, 0.0]]},
        {"version": 4, "kind": "tensor", "dim": 1, "rank": 2, "weights": [1.0, 1.0]}
        | {"components": [[1.0], [1.0]], "explained_variance": [2.5, 2.5]},
    ],
)
def test_components_without_an_orthonormal_basis_have_no_angle(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    items = [release(1), release(2, **changes), release(3, **changes), release(4, 0.25), release(5)]
    reader = SimpleNamespace(first=0, seek=lambda offset: None, poll=lambda: items, close=lambda: None)
    monkeypatch.setattr(module, "ReleaseReader", lambda kafka, topic: reader)
    how: dict[str, Any] = {"from_beginning": True, "stopped": lambda: False}
    with closing(follow_releases(KafkaSettings(), "s.releases", **how)) as found:
        angles = [item.principal_angle for item in islice(found, 5) if isinstance(item, FollowedRelease)]
    assert angles == [None] * 4 + [pytest.approx(0.25)]


def test_the_last_release_is_found_behind_what_is_none(published: Published) -> None:
    assert last_release(published.kafka, published.topic) is None
    published(release(1), release(2), *[b"?"] * 40)
    assert last_release(published.kafka, published.topic) == release(2)
    with closing(published.follow(from_beginning=False, stopped=lambda: False)) as items:
        assert next(items) == FollowedRelease(release(2), pytest.approx(0.0))


@pytest.mark.kafka
def test_an_aborted_release_was_never_published(
    capfd: Capture, kafka_bootstrap: str, unique_name: Name
) -> None:
    with closing(Published(kafka_bootstrap, unique_name("releases"))) as published:
        published(release(1))
        published(release(2), release(3), abort=True)
        assert last_release(published.kafka, published.topic) == release(1)
        published(release(4))
        assert [line["batch"] for line in published.watch(capfd, "--from-beginning", "--count", 2)] == [1, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(published: Published, number: signal.Signals) -> None:
    published(release(1))
    with watching(*published.arguments(), "--json") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        assert ended_well(process)


def test_it_ends_well_with_whoever_reads_it(published: Published) -> None:
    published(release(1), release(2))
    read_end, write_end = os.pipe()
    with watching(*published.arguments(), "--json", "--from-beginning", stdout=write_end) as process:
        os.close(write_end)
        with os.fdopen(read_end) as lines:
            assert json.loads(lines.readline())["batch"] == 1
        # No further release reveals the broken pipe.
        assert ended_well(process)


def test_a_reader_that_is_gone_from_the_start_is_no_error(published: Published) -> None:
    published(release(1))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with watching(*published.arguments(), stdout=write_end) as process:
        os.close(write_end)
        assert ended_well(process)


def test_a_topic_that_is_missing_is_one_line(
    capfd: Capture, broker_bootstrap: str, unique_name: Name
) -> None:
    topic = unique_name("nowhere")
    with pytest.raises(TopicError, match="exists on the broker"):
        last_release(KafkaSettings(bootstrap_servers=broker_bootstrap), topic)
    result = call(capfd, "watch", "--releases", topic, "--bootstrap", broker_bootstrap, "--json")
    one_line(result, 2, f"no topic '{topic}' exists on the broker at {broker_bootstrap}")


def test_a_broker_that_is_not_there_is_one_line(capfd: Capture) -> None:
    address = f"127.0.0.1:{closed_port()}"
    result = call(capfd, "watch", "--releases", "r", "--bootstrap", address)
    one_line(result, 4, f"no broker answers at --bootstrap '{address}' within")
    assert result.stdout == ""


@pytest.mark.broker
def test_a_broker_that_falls_silent_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_SILENCE_SECONDS", 0.5)
    with EmbeddedBroker() as broker:
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap, request_timeout_ms=3000)
        create(broker.bootstrap, "t.releases")
        follow = follow_releases(kafka, "t.releases", from_beginning=True, stopped=lambda: False)
        with closing(follow):
            assert next(follow) is None
            assert broker.pid is not None
            suspend(broker.pid)
            try:
                with pytest.raises(BrokerUnreachable, match=r"reading t\.releases failed"):
                    list(islice(follow, 100))
            finally:
                os.kill(broker.pid, signal.SIGCONT)


def test_shares_of_null_and_clipped_records_are_shown_with_their_errors(
    published: Published, capfd: Capture
) -> None:
    """Text limits a share to between 0% and 100%; JSON keeps the noisy numbers."""
    of_version_6 = {"version": 6, "centering": "none"}
    published(
        release(1),
        release(2, **of_version_6, **COUNTED),
        release(3, **of_version_6, **COUNTED | {"null_records": 2300.0, "clipped_records_error": 1900.0}),
        release(4, **of_version_6, **COUNTED | {"batch_records": 0}),
    )
    found, text = published.watch_all(capfd, 4)
    shown = [line.rpartition("; ")[2] for line in text[1:]]
    assert "null" not in shown[0]
    assert shown[1:] == [
        "null 12.3% ± 0.45%, clipped 0.0% ± 0.45%",
        "null 100.0% ± 0.45%, clipped 0.0% ± 86%",
        "no rows: no message could be read",
    ]
    assert not found[0].keys() & COUNTED.keys()
    assert {name: found[1][name] for name in COUNTED} == COUNTED
    assert found[2]["null_records"] == 2300


def test_a_release_whose_time_is_of_any_length_is_none() -> None:
    whole = release(1, created="2026-01-01T00:00:00." + "1" * 10_000)
    found = read_release("s.releases", 0, whole.to_bytes())
    assert isinstance(found, NotARelease)
    assert found.reason == "not a release: created is not a time"
