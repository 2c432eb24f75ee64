"""Readers of releases for programs, on a topic written as a worker writes it."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.client import BrokerUnreachable, Releases, TopicError, UnreadableRelease, follow, latest
from streaming_pca.client.releases import connection, missing_releases
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.loading import load_settings
from streaming_pca.data.release import Release
from streaming_pca.errors import UserError
from tests.cli.test_app import write_config
from tests.cli.test_watch import LATER, Published, release
from tests.config.refusals import refusal
from tests.waiting import LIMIT

Caplog = pytest.LogCaptureFixture
TOUR = "tour.releases"
QUIET = 1.0
"""Seconds without a release after which a test's iterator ends."""


@pytest.fixture
def published(kafka_bootstrap: str, unique_name: Callable[[str], str]) -> Iterator[Published]:
    with closing(Published(kafka_bootstrap, f"{unique_name('copied')}.s.releases")) as topic:
        yield topic


def name_of(published: Published) -> str:
    return published.topic.removesuffix(".releases")


def follow_all(published: Published, **how: object) -> Releases:
    return follow(name_of(published), published.kafka, **({"timeout": LIMIT} | how))  # type: ignore[arg-type]


def batches(items: Releases, count: int) -> list[int]:
    """Wait for releases; return their batches and those of all later arrivals."""
    found = [each.batch for each in islice(items, count)]
    items._timeout = QUIET
    return [*found, *(each.batch for each in items)]


def test_before_the_first_release_there_is_none(published: Published) -> None:
    name, broker = name_of(published), published.kafka.bootstrap_servers
    assert latest(name, broker) is None
    assert list(follow(name, broker, timeout=QUIET)) == []
    # Control records of aborted transactions do not count as releases either.
    published(release(1), release(2), abort=True)
    assert latest(name, broker) is None


def test_the_last_release_is_found_before_markers_and_what_is_none(published: Published) -> None:
    published(release(1), release(2))
    published(release(3), release(4), abort=True)
    published(*[b"?"] * 20)
    assert latest(name_of(published), published.kafka) == release(2)


def test_an_iterator_begins_where_it_is_told(published: Published) -> None:
    published(release(1), release(2))
    with (
        follow_all(published, start="next") as coming,
        follow_all(published) as last,
        follow_all(published, start="first") as everything,
    ):
        published(release(3), b"?", release(4))
        assert batches(coming, 2) == [3, 4]
        assert batches(last, 3) == [2, 3, 4]
        assert batches(everything, 4) == [1, 2, 3, 4]
        assert list(coming) == []


def test_what_is_no_release_is_skipped_with_a_warning(published: Published, caplog: Caplog) -> None:
    published(release(1), b'{"version": 999}', release(2, stream="t"))
    assert batches(follow_all(published, start="first"), 1) == [1]
    assert f"{published.topic}, offset 2: not a release" in caplog.text
    assert f"{published.topic}, offset 4: a release of stream 't'" in caplog.text
    assert latest(name_of(published), published.kafka) == release(1)


def test_a_release_that_cannot_be_read_is_no_reason_to_return_an_older_one(published: Published) -> None:
    published(release(1), LATER, b"?")
    expected = r"offset 2: a release of version 999 cannot be read .*: update streaming-pca"
    with pytest.raises(UnreadableRelease, match=expected):
        latest(name_of(published), published.kafka)
    with pytest.raises(UnreadableRelease, match=expected):
        follow_all(published)
    with follow_all(published, start="first") as items:
        assert next(items) == release(1)
        with pytest.raises(UnreadableRelease, match=expected):
            next(items)
        published(release(4))
        assert next(items) == release(4)
    with follow_all(published, start="next") as items:
        published(release(2))
        assert next(items) == release(2)
    assert latest(name_of(published), published.kafka) == release(2)
    published(json.dumps(release(3).model_dump() | {"rank": 2}).encode())
    with pytest.raises(UnreadableRelease, match=r"of version 1 cannot be read .*: find out what else"):
        latest(name_of(published), published.kafka)


def test_a_stream_without_topics_is_named_with_the_streams_that_exist(
    published: Published, tmp_path: Path
) -> None:
    existing, servers = name_of(published), published.kafka.bootstrap_servers
    settings = load_settings(write_config(tmp_path, servers, f"{existing}x"))
    missing = f"no topic '{existing}x.releases' exists on the broker at {servers}"
    begins = f"{missing}: correct the stream's name; streams there: {existing}"
    for read in (latest, follow):
        assert refusal(TopicError, read, settings).startswith(begins)


UNLESS = "correct the address or the name, unless the stream is not set up yet"


@pytest.mark.parametrize(
    ("others", "ends"),
    [
        ([], f", nor any releases that you may read: {UNLESS}"),
        (["in", "in.ledger"], f", nor any releases that you may read: {UNLESS}"),
        (["in", "a.state", "b.releases", "visits.releases"], "; streams there: visits, b"),
    ],
    ids=["no topic", "no releases", "two streams"],
)
def test_a_reader_learns_the_names_that_exist_and_is_not_sent_to_create_topics(
    others: list[str], ends: str
) -> None:
    message = str(missing_releases(KafkaSettings(), "visit.releases", others))
    assert message.startswith("no topic 'visit.releases' exists on the broker at localhost:9092")
    assert message.endswith(ends)
    assert "create" not in message


@pytest.mark.parametrize("start", ["earliest", "beginning", None, 0])
def test_another_word_for_the_start_is_refused_before_a_release_is_skipped(start: object) -> None:
    with pytest.raises(UserError, match='start must be "first", "last" or "next"'):
        follow("visit", "localhost:1", start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("timeout", "given"),
    [
        *((each, repr(each)) for each in ("1", True, math.nan, -1)),
        ([1], "of type list"),
        (1j, "of type complex"),
    ],
)
def test_a_timeout_that_is_not_a_number_is_refused_before_a_broker_is_asked(
    timeout: object, given: str
) -> None:
    expected = f"timeout must be seconds of at least 0, or None to wait forever, not {given}"
    with pytest.raises(UserError, match=f"^{expected}$"):
        follow("visit", "localhost:1", timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "others", "words"),
    [
        # latest("tour.releases"), a topic in the place of its stream; the topic need not be visible.
        (f"{TOUR}.releases", [TOUR], "name the stream, 'tour', not its topic 'tour.releases'"),
        (f"{TOUR}.releases", [], "name the stream, 'tour', not its topic 'tour.releases'"),
        # watch --releases tour, a stream in the place of its topic.
        ("tour", [TOUR], "'tour' is a stream, whose topic is 'tour.releases'"),
        ("tor", [TOUR], "correct the stream's name; streams there: tour"),
    ],
)
def test_a_topic_and_a_stream_that_were_confused_are_named(topic: str, others: list[str], words: str) -> None:
    assert str(missing_releases(KafkaSettings(), topic, others)).endswith(f": {words}")


FILE = "is a file: load its settings first, stream = load_settings(Path("


@pytest.mark.parametrize(
    ("stream", "kind", "words"),
    [
        (None, TypeError, "stream must be the name of a stream, or its Settings, not NoneType"),
        (b"rd", TypeError, "stream must be the name of a stream, or its Settings, not bytes"),
        (KafkaSettings(), TypeError, "or its Settings, not KafkaSettings"),
        (Path("stream.toml"), ValueError, f"stream = 'stream.toml' {FILE}'stream.toml'))"),
        (Path("stream"), ValueError, f"stream = 'stream' {FILE}'stream'))"),
        ("a/stream.toml", ValueError, f"stream = 'a/stream.toml' {FILE}'a/stream.toml'))"),
        ("", ValueError, "stream must be 1 to 200 letters"),
        ("..", ValueError, "and not '.' or '..'; this is '..'"),
        ("rd\n", ValueError, r"this is 'rd\n'"),
        ("é" * 99, ValueError, f"this is '{'é' * 40}'..."),
    ],
)
@pytest.mark.parametrize("read", [latest, follow])
def test_what_is_no_stream_is_refused_in_one_line(
    read: Callable[..., object], stream: object, kind: type[Exception], words: str
) -> None:
    assert words in refusal(kind, read, stream, "127.0.0.1:1")


@pytest.mark.parametrize("given", ["127.0.0.1:1", None])
def test_a_broker_that_does_not_answer_is_named_as_the_argument(given: str | None) -> None:
    settings = connection(given)
    settings = settings.model_copy(update={"bootstrap_timeout_ms": 100})
    expected = "kafka = '127.0.0.1:1'" if given else "kafka = 'localhost:9092', the default,"
    assert settings.given_servers == expected
    assert "kafka.bootstrap_servers" not in settings.given_servers
    if given:
        with pytest.raises(BrokerUnreachable, match=f"^no broker answers at {expected} within 100 ms"):
            latest("visits", settings)


def test_of_many_streams_the_most_similar_are_named() -> None:
    others = [f"{name}.releases" for name in (*"abcdefghijklmn", "nope2", "noper")]
    message = str(missing_releases(KafkaSettings(), "nope.releases", others))
    names = message.partition("streams there: ")[2]
    assert re.fullmatch(r"nope[2r], nope[2r], (\w, ){7}\w, and 6 more", names)


class Outage:
    """Reader whose broker does not answer twice."""

    def __init__(self) -> None:
        lost = BrokerUnreachable("no broker answers")
        self._answers: list[BrokerUnreachable | list[Release]] = [[release(1)], lost, lost, [release(2)], []]

    def poll(self) -> list[Release]:
        answer = self._answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    def close(self) -> None:
        """Do nothing: it has no connection."""


def test_an_iterator_continues_after_an_outage_of_the_broker() -> None:
    reader: Any = Outage()
    with Releases(reader, [], None) as items:
        assert next(items) == release(1)
        for _ in range(2):
            with pytest.raises(BrokerUnreachable):
                next(items)
        assert next(items) == release(2)
    assert "the next call of ``next``" in str(follow.__doc__)


def test_a_forked_process_reads_for_itself(published: Published) -> None:
    """Servers load an application and then fork: the parent's threads are missing in the child."""
    published(release(1))
    assert latest(name_of(published), published.kafka) == release(1)
    with follow_all(published, start="first") as items:
        assert next(items).batch == 1

        def child() -> None:
            assert latest(name_of(published), published.kafka) == release(1)
            with follow_all(published) as own:
                assert next(own).batch == 1
            with pytest.raises(RuntimeError, match="was opened in another process: open one in each"):
                next(items)
            items.close()
            os._exit(17)

        forked = multiprocessing.get_context("fork").Process(target=child, daemon=True)
        forked.start()
        forked.join(LIMIT)
        assert forked.exitcode == 17
        published(release(2))
        assert next(items).batch == 2
