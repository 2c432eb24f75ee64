"""Reports from vectors: refusals, messages, and charges of users."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.admin import NewTopic

from streaming_pca.admin import produce
from streaming_pca.admin.produce import arrange_vectors, report_mechanism, row_users, send_reports
from streaming_pca.client import Producer, sending
from streaming_pca.client.sending import Outgoing, Produced, Sending
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.files import ColumnChoice, RecordFile, open_records
from streaming_pca.data.records import RecordKind
from streaming_pca.errors import UserError
from streaming_pca.linalg.packed import pack_symmetric, packed_size
from streaming_pca.local import AlreadySpent, LocalAccountant, LocalGaussian
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service.errors import BrokerUnreachable
from streaming_pca.service.kafka import clients
from streaming_pca.service.kafka.clients import admin_client
from tests.admin.test_produce import Capture, config_of, sent_to
from tests.cli.command import call
from tests.config.refusals import refusal
from tests.privacy.noise import FACTORS, ScriptedSampler, has_scale

Patch = pytest.MonkeyPatch
ONE = (1.0, 1e-6)
OF_FACTORS = {"record_kind": "factor", "estimator": "analyze-gauss"}
X = np.array([[0.5, -0.25, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.125, np.nan, 0.0]])
CLIPPED = np.array([[0.5, -0.25, 0.0], [0.6, 0.0, 0.8], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
RECORDS = RecordFile.of_array(X, "x.npy")
NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:1")
TO = Sending(NOWHERE, "in")


def stream(**changes: Any) -> StreamSettings:
    base: dict[str, Any] = {"name": "s", "input": "in", "dim": 3, "rank": 1, "epsilon": 1.0, "delta": 1e-6}
    local = {"record_kind": "local", "centering": "none", "estimator": "local-gaussian"}
    return StreamSettings(**(base | local | changes))


def keyed(*keys: bytes | None) -> RecordFile:
    return replace(RECORDS, row_keys=lambda: iter(keys))


@pytest.fixture
def accountant(tmp_path: Path) -> LocalAccountant:
    return LocalAccountant(tmp_path / "spent.sqlite")


Sent = list[tuple[bytes, list[tuple[str, bytes]]]]


@pytest.fixture
def sent(monkeypatch: Patch) -> Sent:
    """Collect every message with its headers instead of sending it."""
    found: Sent = []

    def send(to: Sending, messages: Any, total: int, headers: Any, *_: Any) -> Produced:
        not_finite = 0
        for message in messages:
            assert isinstance(message, Outgoing)
            assert (message.key, message.rows) == (None, 1)
            found.append((message.value, headers))
            not_finite += message.not_finite
            if to.progress is not None:
                to.progress(1)
        assert len(found) == total
        return Produced(len(found), len(found), 0.0, to.topic, not_finite)

    monkeypatch.setattr(produce, "send_messages", send)
    return found


def reports(sent: Sent) -> np.ndarray:
    return np.array([np.frombuffer(value, "<f4") for value, _ in sent])


def exact(x: np.ndarray) -> np.ndarray:
    return pack_symmetric(x[:, :, None] * x[:, None, :])


# -- refusals --------------------------------------------------------------


def test_the_promise_is_the_streams() -> None:
    mechanism = report_mechanism(stream(epsilon=0.5, delta=1e-7))
    assert (mechanism.epsilon, mechanism.delta, mechanism.radius) == (0.5, 1e-7, 1.0)
    assert report_mechanism(stream(), 3.0).radius == 3.0


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        (OF_FACTORS, (), 'record_kind = "factor" does not accept reports: set record_kind = "local"'),
        ({}, (0.0,), "radius"),
    ],
)
def test_another_promise_is_refused(settings: Any, options: tuple[Any, ...], expected: str) -> None:
    assert expected in refusal(
        (ConfigurationError, ValueError), report_mechanism, stream(**settings), *options
    )


def test_only_vectors_of_the_streams_features_are_reported() -> None:
    assert arrange_vectors(RECORDS, stream()) is RECORDS
    named = replace(RECORDS, feature_names=("c", "a", "b"))
    turned = arrange_vectors(named, stream(feature_names=("a", "b", "c")))
    np.testing.assert_array_equal(next(turned.blocks(9)), X[:, [1, 2, 0]])
    for records, changes, expected in (
        (RECORDS, {"dim": 4}, "have 3 features, the stream's dim is 4"),
        (RecordFile.of_array(np.zeros((2, 3, 3)), "x.npy"), {}, "holds factors of 3 rows, and a report"),
        (named, {"feature_names": ("a", "b", "d")}, "stream.feature_names has"),
    ):
        assert expected in refusal(UserError, arrange_vectors, records, stream(**changes))


def test_a_report_that_no_message_holds_is_refused_before_any_is_made() -> None:
    wide = RecordFile.of_array(np.zeros((1, 4500)), "x.npy")
    with pytest.raises(ConfigurationError, match=r"dim = 4500 makes reports of 39 MiB.* holds 32 MiB"):
        arrange_vectors(wide, stream(dim=4500))


# -- messages --------------------------------------------------------------


def test_each_message_is_a_report_that_the_codec_takes(sent: Sent) -> None:
    settings = stream()
    reported: list[int] = []
    with replace_noise_sampler(ScriptedSampler()):
        produced = send_reports(replace(TO, progress=reported.append), RECORDS, report_mechanism(settings))
    assert (produced.messages, reported) == (4, [1] * 4)
    np.testing.assert_allclose(reports(sent), exact(CLIPPED), atol=4e-6)
    assert settings.local_guarantee is not None
    codec = PayloadCodec(3, kind=RecordKind.LOCAL, privacy_contract=settings.local_guarantee)
    for (value, headers), report in zip(sent, reports(sent), strict=True):
        decoded = codec.decode(_Message(value, headers))
        assert decoded is not None
        np.testing.assert_array_equal(decoded, [report])
        other = [*headers[:-1], ("local-promise", b"2.0,1e-06")]
        assert codec.decode(_Message(value, other)) is None


class _Message:
    def __init__(self, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        self.value, self.headers, self.key = value, headers, None


def test_what_is_sent_has_the_noise_that_is_promised(sent: Sent) -> None:
    """This uses the system's own noise at level 2e-7, also on null vectors."""
    records = RecordFile.of_array(np.tile(X, (60, 1)), "x.npy")
    mechanism = report_mechanism(stream())
    send_reports(TO, records, mechanism)
    noise = reports(sent) - exact(np.tile(CLIPPED, (60, 1)))
    assert has_scale(noise, mechanism.sigma)
    for factor in FACTORS:
        assert not has_scale(noise * factor, mechanism.sigma)


def test_a_public_seed_shuffles(sent: Sent) -> None:
    x = np.arange(1.0, 31.0)[:, None] / 64
    with replace_noise_sampler(ScriptedSampler()):
        send_reports(replace(TO, shuffle=3), RecordFile.of_array(x), LocalGaussian(*ONE))
    found = reports(sent)
    assert not np.array_equal(found[:, 0], np.sort(found[:, 0]))
    np.testing.assert_allclose(np.sort(found, axis=0), x * x, atol=1e-5)


CSVS = {
    "empty cell": "a,b,c\n0.1,0.2,0\n0.3,,0\n",
    "text": "a,b,c\nNA,0.2,0\n0.1,0.2,0\n",
    "first row": "NA,NA,NA\n0.1,0.2,0\n",
    "short row": "0.1,0.2,0\n0.3\n",
    "long row": "0.1,0.2,0\n0.3,0.3,0.3,0.3\n",
}
LISTS: dict[str, list[Any]] = {
    "short list": [[0.1, 0.2, 0.0], [0.3]],
    "short first list": [[0.3], [0.1, 0.2, 0.0]],
    "null lists": [None, None],
}


@pytest.mark.parametrize("case", [*CSVS, *LISTS])
def test_whether_a_report_is_sent_does_not_depend_on_the_row_of_a_file(
    case: str, tmp_path: Path, sent: Sent, capfd: Capture
) -> None:
    """On a user's own machine, the absence of its report would reveal the missing value."""
    path = tmp_path / ("x.csv" if case in CSVS else "x.parquet")
    header = []
    if case in CSVS:
        path.write_text(CSVS[case])
        header = ["--header" if CSVS[case].startswith("a") else "--no-header"]
    else:
        pq.write_table(pa.table({"x": pa.array(LISTS[case], pa.list_(pa.float64()))}), path)
    local = ("dim = 3", 'record_kind = "local"', 'centering = "none"', 'estimator = "local-gaussian"')
    config = config_of(tmp_path, (NOWHERE, "in"), *local)
    with replace_noise_sampler(ScriptedSampler()):
        done = call(capfd, "produce", path, "--config", config, *header)
    assert done.returncode == 0, done.stderr
    zeros = 2 if case == "null lists" else 1
    assert f"{zeros} of 2 vectors were reported as zeros" in done.stderr
    expected = [[0.0] * 3] * zeros + [[0.1, 0.2, 0.0]] * (2 - zeros)
    got = reports(sent)
    np.testing.assert_allclose(got[np.argsort(got[:, 0])], exact(np.array(expected)), atol=4e-6)


def test_a_file_without_any_line_of_numbers_charges_nobody(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n0.1,0.2,\n0.3,0.4,\n")
    with pytest.raises(UserError, match="no line has numbers alone"):
        open_records(path, None, ColumnChoice(header=True), reports_dim=2)
    # Of one record, the error would show the missing cell.
    path.write_text("a,b\n0.1,\n")
    assert len(open_records(path, None, ColumnChoice(header=True), reports_dim=2)) == 1


def test_reports_of_a_csv_file_do_not_guess_its_header(tmp_path: Path) -> None:
    """A guess would take a first record without numbers as names."""
    path = tmp_path / "x.csv"
    path.write_text("NA,NA,NA\n0.1,0.2,0\n")
    given = partial(open_records, path, reports_dim=3)
    assert "pass --header or --no-header" in refusal(UserError, given)
    assert len(given(choice=ColumnChoice(header=False))) == 2


# -- charges ---------------------------------------------------------------


def test_a_file_is_reported_once(sent: Sent, accountant: LocalAccountant) -> None:
    send = partial(send_reports, records=RECORDS, mechanism=LocalGaussian(*ONE), accountant=accountant)
    send(TO)
    assert len(sent) == 4
    assert re.search(r"4 of 4 rows .* on 'in', by .*: --local-skip-spent", refusal(AlreadySpent, send, TO))
    assert len(sent) == 4
    sent.clear()
    send(Sending(NOWHERE, "other"))
    assert len(sent) == 4


def test_a_user_of_two_rows_reports_once(sent: Sent, accountant: LocalAccountant) -> None:
    records = keyed(b"ada", b"bob", b"ada", b"eve")
    mechanism = LocalGaussian(*ONE)
    with pytest.raises(AlreadySpent, match="1 of 4 rows are of users"):
        send_reports(TO, records, mechanism, accountant=accountant)
    assert not sent
    reported: list[int] = []
    to = replace(TO, progress=reported.append)
    with replace_noise_sampler(ScriptedSampler()):
        send_reports(to, records, mechanism, accountant=accountant, skip_spent=True)
    np.testing.assert_allclose(reports(sent), exact(CLIPPED[[0, 1, 3]]), atol=4e-6)
    assert sum(reported) == 4
    assert len(produce.without_spent(row_users(records), accountant, "in", mechanism)) == 0


@pytest.mark.parametrize("shuffle", [None, 5])
def test_an_interrupted_file_goes_on_where_it_stopped(
    sent: Sent, accountant: LocalAccountant, shuffle: int | None
) -> None:
    """The interrupted report stays charged, and is lost."""
    mechanism = LocalGaussian(*ONE)

    class Interrupted(ScriptedSampler):
        def rounded_gaussian(self, total: Any, sigma: float) -> Any:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().rounded_gaussian(total, sigma)

    x = np.arange(1.0, 9.0)[:, None] / 16
    records = RecordFile.of_array(x, "x.npy")
    with replace_noise_sampler(Interrupted()), pytest.raises(KeyboardInterrupt):
        send_reports(replace(TO, shuffle=shuffle), records, mechanism, accountant=accountant)
    assert len(sent) == 2
    first = reports(sent)
    sent.clear()
    with replace_noise_sampler(ScriptedSampler()):
        to, options = replace(TO, shuffle=shuffle), {"accountant": accountant, "skip_spent": True}
        assert send_reports(to, records, mechanism, **options).messages == 5
        rest = reports(sent)
        sent.clear()
        assert send_reports(to, records, mechanism, **options).messages == 0
    assert len({float(v) for v in np.concatenate([first, rest])[:, 0]}) == 7


def test_a_user_who_was_charged_from_python_has_spent(accountant: LocalAccountant) -> None:
    accountant.spend(b"ada", "in", *ONE)
    users = row_users(keyed(b"ada", b"bob", b"eve", b"ada"))
    assert produce.without_spent(users, accountant, "in", LocalGaussian(*ONE)).tolist() == [1, 2]


def test_a_row_is_its_own_user_where_the_file_has_no_keys() -> None:
    assert len(set(row_users(RECORDS))) == 4
    assert set(row_users(RECORDS)).isdisjoint(row_users(replace(RECORDS, path="y.npy")))
    assert set(row_users(RECORDS)) == set(row_users(replace(RECORDS, path="./x.npy")))
    with pytest.raises(UserError, match="row 2 has no key"):
        row_users(keyed(b"ada", None, b"bob", b"eve"))


def test_nobody_is_charged_where_no_broker_answers(accountant: LocalAccountant, monkeypatch: Patch) -> None:
    def no_answer(kafka: KafkaSettings) -> None:
        raise BrokerUnreachable("no broker answers")

    monkeypatch.setattr(clients, "admin_client", no_answer)
    with pytest.raises(BrokerUnreachable):
        send_reports(TO, RECORDS, LocalGaussian(*ONE), accountant=accountant)
    assert len(produce.without_spent(row_users(RECORDS), accountant, "in", LocalGaussian(*ONE))) == 4


def test_no_more_waits_to_be_sent_than_a_few_large_reports(monkeypatch: Patch) -> None:
    """The previous report must be handed over before the next is made."""
    waiting = made = 0
    most = 0

    class Producer:
        def send(self, topic: str, value: bytes, **_: Any) -> Any:
            nonlocal waiting, most
            waiting += len(value)
            most = max(most, waiting)
            assert made == 1 + self.sent
            self.sent += 1
            return self

        sent = 0

        def add_callback(self, call: Any) -> None: ...
        def add_errback(self, call: Any) -> None: ...

        def flush(self, timeout: float) -> None:
            nonlocal waiting
            waiting = 0

    def messages() -> Iterator[Outgoing]:
        nonlocal made
        for _ in range(40):
            made += 1
            yield Outgoing(bytes(2**23))

    monkeypatch.setattr(sending, "discard", lambda producer: None)
    monkeypatch.setattr(sending, "plain_producer", lambda kafka: Producer())
    monkeypatch.setattr(sending, "_count_partitions", lambda kafka, topic: 2)
    assert sending.send_messages(TO, messages(), 40, []).messages == 40
    assert (waiting, most) == (0, 2**26)


@pytest.mark.parametrize("by_producer", [False, True])
def test_an_interruption_loses_few_charged_reports(
    by_producer: bool, accountant: LocalAccountant, monkeypatch: Patch
) -> None:
    assert sending._MAX_CHARGED + 1 == 200, "as documented"
    monkeypatch.setattr(sending, "_MAX_CHARGED", 19)
    charged = acknowledged = most = 0
    spend = accountant.spend

    class Client:
        waiting = 0

        def send(self, topic: str, **_: Any) -> Any:
            self.waiting += 1
            return Mock()

        def flush(self, timeout: float) -> None:
            nonlocal acknowledged
            acknowledged, self.waiting = acknowledged + self.waiting, 0

    def count(*given: Any) -> None:
        nonlocal charged, most
        spend(*given)
        charged += 1
        most = max(most, charged - acknowledged)

    monkeypatch.setattr(accountant, "spend", count)
    monkeypatch.setattr(sending, "discard", lambda producer: None)
    monkeypatch.setattr(sending, "plain_producer", lambda kafka: Client())
    monkeypatch.setattr(sending, "_count_partitions", lambda kafka, topic: 2)
    x = np.zeros((45, 1))
    if by_producer:
        mechanism = LocalGaussian(*ONE)
        with Producer("in", NOWHERE, dim=1, privatize=mechanism, accountant=accountant) as producer:
            producer.send(x, key=[f"user {i}" for i in range(len(x))])
    else:
        send_reports(TO, RecordFile.of_array(x), LocalGaussian(*ONE), accountant=accountant)
    assert (charged, acknowledged) == (45, 45)
    assert most <= 20


# -- the command, on a broker ----------------------------------------------


def test_the_command_sends_reports(
    tmp_path: Path, broker_bootstrap: str, unique_name: Callable[[str], str], capfd: Capture
) -> None:
    topic = unique_name("reports")
    kafka = KafkaSettings(bootstrap_servers=broker_bootstrap)
    with closing(admin_client(kafka)) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    local = ("dim = 2", 'record_kind = "local"', 'centering = "none"', 'estimator = "local-gaussian"')
    config = config_of(tmp_path, (kafka, topic), *local)
    path = tmp_path / "x.csv"
    path.write_text("a,who,b\n0.5,ada,0\n0,bob,0.5\n30,eve,40\n")
    options = ("--key", "who", "--local-accountant", tmp_path / "spent", "--local-radius", 2)
    given = ("produce", path, "--config", config, *options)
    with replace_noise_sampler(ScriptedSampler()):
        done = call(capfd, *given, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["records"], facts["messages"], facts["skipped"], facts["radius"]) == (3, 3, 0, 2.0)
    assert round(facts["sigma"], 4) == 5.9746
    messages = [m for partition in sent_to(kafka, topic, 3) for m in partition]
    assert {m.key for m in messages} == {None}
    described = {"content-type": b"application/octet-stream", "record-kind": b"local"}
    assert all(m.headers == [*described.items(), ("local-promise", b"1.0,1e-06")] for m in messages)
    found = np.array(sorted(np.frombuffer(m.value, "<f4").tolist() for m in messages))
    assert found.shape == (3, packed_size(2))
    np.testing.assert_allclose(found, [[0, 0, 1 / 16], [1 / 16, 0, 0], [0.36, 0.48, 0.64]], atol=1e-5)
    assert "a renamed file" not in done.stderr
    again = call(capfd, *given)
    assert again.returncode == 2
    assert "3 of 3 rows are of users who have spent" in " ".join(again.stderr.split())
    left_out = call(capfd, *given, "--local-skip-spent")
    assert left_out.returncode == 0, left_out.stderr
    assert "0 reports of (1, 1e-06)" in left_out.stdout
    assert "leaving out 3 rows of users charged before" in " ".join(left_out.stdout.split())


@pytest.mark.parametrize("is_folder", [False, True])
def test_rows_of_a_changed_file_may_be_of_other_users(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "people"
    if is_folder:
        file.mkdir()
    inner = file / "part.csv" if is_folder else file
    inner.write_text("ada\nbob\n")
    mechanism = LocalGaussian(*ONE)
    with LocalAccountant(tmp_path / "spent.sqlite") as accountant:
        for _ in range(2):
            produce.check_unchanged(file, accountant, "in", mechanism)
        inner.write_text("zoe\nada\nbob\n")
        produce.check_unchanged(file, accountant, "another topic", mechanism)
        with pytest.raises(AlreadySpent, match=r"^\S+people: has changed since .* --key"):
            produce.check_unchanged(file, accountant, "in", mechanism)
        # A report of another epsilon is one of the same row.
        with pytest.raises(AlreadySpent, match="has changed"):
            produce.check_unchanged(file, accountant, "in", LocalGaussian(ONE[0] / 2, ONE[1]))
        inner.write_text("ada\nbob\n")
        produce.check_unchanged(file, accountant, "in", mechanism)
