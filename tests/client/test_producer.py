"""The producer for programs, on Apache Kafka: the worker's decoder can read its messages."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError
from scipy.sparse import csr_array

from streaming_pca import PrivatePCA
from streaming_pca.client import DeliveryError, Producer, TopicError, sending
from streaming_pca.client.encoding import round_rows
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.loading import load_settings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.records import RecordKind
from streaming_pca.linalg.packed import pack_symmetric
from streaming_pca.local import AlreadySpent, LocalAccountant, LocalGaussian
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service.kafka.clients import reading_consumer
from tests.cli.test_app import write_config
from tests.cli.test_refusals import LOCAL
from tests.client.conftest import NewTopic
from tests.config.refusals import refusal
from tests.data.tables import tables_of
from tests.privacy.noise import ScriptedSampler

X = np.arange(15.0).reshape(5, 3)
ONE = (1.0, 1e-6)


def sent(bootstrap: str, topic: str, partitions: int = 1) -> list[list[Any]]:
    """Return all messages, by partition, through the worker's reader."""
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    found: list[list[Any]] = [[] for _ in tps]
    with closing(reading_consumer(KafkaSettings(bootstrap_servers=bootstrap), io="records")) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        while any(len(found[tp.partition]) < ends[tp] for tp in tps):
            for tp, messages in consumer.poll(timeout_ms=200).items():
                found[tp.partition] += messages
    return found


def frame_of(**columns: Any) -> pd.DataFrame:
    """Return a frame of one record with columns a, b and c."""
    return pd.DataFrame({"a": [1.0], "b": [2.0], "c": [3.0]} | columns)


def test_importing_it_loads_no_estimator_and_compiles_nothing() -> None:
    heavy = {
        "numba",
        "scipy",
        "sklearn",
        "opendp",
        "pyarrow",
        "pydantic_settings",
        "streaming_pca.estimators",
    }
    code = (
        f"import sys, streaming_pca.client\nfound = {heavy} & sys.modules.keys()\nassert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_vector_is_a_message_and_partitions_take_turns(
    kafka_bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    with Producer(topic, kafka_bootstrap, dim=3) as producer:
        producer.send(X[0])
        producer.send(X[1:].tolist())
    by_partition = sent(kafka_bootstrap, topic, 2)
    assert sorted(map(len, by_partition)) == [2, 3]
    messages = [m for messages in by_partition for m in messages]
    codec = PayloadCodec(3)
    rows, lengths = codec.decode_all(messages)[:2]
    assert lengths.tolist() == [1] * 5
    np.testing.assert_array_equal(np.sort(rows, axis=0), X)
    # They are as fast to read as messages of `streaming-pca produce`, which have one header.
    assert codec._decode_octets(messages) is not None
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        tps = [TopicPartition(topic, p) for p in range(2)]
        # Only an idempotent producer has an id.
        assert all(state.active_producers for state in admin.describe_producers(tps).values())
    # Under a stream's different settings they are null.
    assert not PayloadCodec(3, kind=RecordKind.MATRIX, dtype="float64").decode_all(messages)[1].any()


@pytest.mark.parametrize("content_type", ["octets", "npy", "json", "arrow"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_and_matrices_arrive_in_every_format(
    kafka_bootstrap: str, new_topic: NewTopic, content_type: Any, dtype: Any
) -> None:
    topic = new_topic()
    factors = np.random.default_rng(0).standard_normal((2, 4, 3))
    matrices = factors.transpose(0, 2, 1) @ factors
    for kind, records in (("factor", factors), ("matrix", matrices)):
        how: dict[str, Any] = {"record_kind": kind, "dtype": dtype, "content_type": content_type}
        with Producer(topic, kafka_bootstrap, dim=3, **how) as producer:
            producer.send(records)
        # The header gives the number format, so that the stream's own dtype does not matter.
        codec = PayloadCodec(3, kind=RecordKind(kind), dtype="float32")
        (messages,) = sent(kafka_bootstrap, topic)
        for message, record in zip(messages[-2:], records, strict=True):
            decoded = codec.decode(message)
            assert decoded is not None
            expected = record if content_type == "json" else record.astype(dtype)
            np.testing.assert_array_equal(decoded, expected)


def test_rows_wait_for_a_full_message(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    rows = np.random.default_rng(1).standard_normal((130, 3)).astype(np.float32)
    buffer = np.empty((26, 3), np.float32)
    with Producer(topic, kafka_bootstrap, dim=3, privacy_unit="row") as producer:
        for first in range(0, 130, 26):
            # A program may reuse its array.
            buffer[:] = rows[first : first + 26]
            producer.send(buffer)
        assert producer._sender.sent == 2
    (messages,) = sent(kafka_bootstrap, topic)
    found, lengths = PayloadCodec(3, unit="row").decode_all(messages)[:2]
    assert lengths.tolist() == [64, 64, 2]
    np.testing.assert_array_equal(found, rows)


def test_threads_may_share_it(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    rows = np.arange(3 * 4 * 200, dtype=np.float32).reshape(4, 200, 3)
    with (
        Producer(topic, kafka_bootstrap, dim=3, privacy_unit="row") as producer,
        ThreadPoolExecutor(4) as threads,
    ):
        list(threads.map(lambda own: [producer.send(row) for row in own], rows))
    (messages,) = sent(kafka_bootstrap, topic)
    found, lengths = PayloadCodec(3, unit="row").decode_all(messages)[:2]
    assert lengths.tolist() == [64] * 12 + [32]
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], rows.reshape(-1, 3))


def test_users_are_keys(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with Producer(topic, kafka_bootstrap, dim=3, privacy_unit="user") as producer:
        producer.send(X[:2], key=["ada", b"bob"])
        producer.send(X[2], key="ada")
        for key in (None, "", ["ada", "bob"], 5, [None]):
            with pytest.raises(ValueError, match="key"):
                producer.send(X[3], key=key)  # type: ignore[arg-type]
    (messages,) = sent(kafka_bootstrap, topic)
    assert [m.key for m in messages] == [b"ada", b"bob", b"ada"]


@pytest.mark.parametrize(
    ("how", "records", "expected"),
    [
        ({}, np.zeros(4), r"shape \(4,\): expected \(m, 3\)"),
        ({}, np.zeros((0, 3)), r"shape \(0, 3\)"),
        ({}, np.zeros((1, 1, 1, 3)), "expected"),
        ({}, ["a", "b", "c"], "records must hold numbers, not <U1"),
        ({}, [[1, 2, 3], [1, 2]], "^records has rows of different lengths$"),
        ({}, csr_array(np.eye(3)), r"^records is sparse: pass records.toarray\(\)$"),
        ({}, frame_of(c=["13,5"]), "^column 'c' of records must hold numbers, not str: convert it, as"),
        ({}, frame_of(b=[{}]), "^column 'b' of records must hold numbers, not object: convert it, as"),
        ({}, frame_of(b=pd.array([None], "Float64")), "^column 'b' of records must hold numbers, not Float"),
        ({}, frame_of(b=[True]), "^column 'b' of records must hold numbers, not bool"),
        ({"max_rows": 2}, np.zeros((1, 3, 3)), r"3 rows are above max_rows = 2"),
        ({"record_kind": "matrix"}, np.zeros((2, 3)), r"expected \(m, 3, 3\)"),
        ({"record_kind": "matrix"}, np.zeros(3), r"expected \(m, 3, 3\)"),
        ({"privacy_unit": "row"}, np.zeros((2, 4)), "expected"),
        ({}, np.ma.masked_equal([1.0, 2.0, 3.0], 2.0), "records is masked"),
        *(
            ({"feature_names": "abc"}, table, words)
            for columns, words in (
                ("cba", r"the stream's feature_names: bring them into the order \['a', 'b', 'c'\]$"),
                ("ab", r"the columns of records are not the stream's feature_names: missing \['c'\]$"),
                ("abcd", r"feature_names: extra \['d'\]$"),
                ("abd", r"feature_names: missing \['c'\], extra \['d'\]$"),
            )
            for table in tables_of(**dict.fromkeys(columns, 1.0))
        ),
    ],
)
def test_records_of_another_shape_are_not_sent(
    how: Any, records: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    producer = Producer("in", "127.0.0.1:1", dim=3, **how)
    with pytest.raises(ValueError, match=expected):
        producer.send(records)
    assert producer._sender.values == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", range(4))
def test_a_table_in_the_order_of_the_stream_is_sent(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    producer = Producer("in", "127.0.0.1:1", dim=3, feature_names="abc")
    producer.send(tables_of(a=1.0, b=2.0, c=3.0)[place])
    assert producer._sender.values == [np.array([1, 2, 3], "<f4").tobytes()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"rows_per_message": 5}, 'needs privacy_unit = "row"'),
        ({"privacy_unit": "row", "rows_per_message": 65}, "is not from 1 to max_rows = 64"),
        ({"record_kind": "local"}, "record_kind = 'local' is not one of factor, matrix"),
        ({"dim": 0}, "dim must be a whole number of at least 1, not 0"),
        ({"dim": "4"}, "dim must be a whole number of at least 1, not '4'"),
        ({"dim": True}, "dim must be a whole number"),
        ({"dim": np.eye(2)}, "dim must be a whole number of at least 1, not of type ndarray$"),
        ({"privacy_unit": "row", "max_rows": 0}, "^max_rows must be a whole number of at least 1, not 0$"),
        ({"max_rows": 0}, "^max_rows must be a whole number of at least 1, not 0$"),
        ({"max_rows": "x"}, "^max_rows must be a whole number of at least 1, not 'x'$"),
        ({"max_rows": 2.5}, "^max_rows must be a whole number of at least 1, not 2.5$"),
        ({"max_rows": None}, "^max_rows must be a whole number of at least 1, not None$"),
        ({"privacy_unit": "row", "rows_per_message": "5"}, "^rows_per_message must be a whole number"),
        ({"privacy_unit": "row", "rows_per_message": 0}, "^rows_per_message must be a whole number"),
        ({"dtype": "int8"}, "dtype = 'int8' is not one of"),
        ({"content_type": "xml"}, "content_type = 'xml' is not one of"),
        (
            {"privatize": LocalGaussian(*ONE), "dtype": "float64"},
            "privatize= needs vectors as float32 octets",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_broker_is_asked(how: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Producer("in", "127.0.0.1:1", **({"dim": 3} | how))


@pytest.mark.parametrize(
    ("topic", "given"),
    [
        (None, "of type NoneType"),
        (b"in", "of type bytes"),
        (Path("in"), "of type PosixPath"),
        ("", "''"),
        ("bad topic!", "'bad topic!'"),
        ("..", "'..'"),
        ("a\nb", r"'a\nb'"),
        ("x" * 201, f"'{'x' * 40}'..."),
    ],
)
def test_a_name_that_no_topic_can_have_is_refused_before_a_broker_is_asked(topic: Any, given: str) -> None:
    line = refusal(ValueError, Producer, topic, "127.0.0.1:1", dim=3)
    assert line.startswith("topic must be 1 to 200 letters, digits")
    assert line.endswith(f"; this is {given}")


@pytest.mark.parametrize(
    ("address", "words"),
    [("", "must be HOST:PORT"), (["a:1", "b:1"], "expected KafkaSettings, or HOST:PORT, or several ")],
)
def test_a_wrong_address_is_one_line(address: Any, words: str) -> None:
    assert refusal(ValueError, Producer, "in", address, dim=3).startswith(f"kafka = {address!r}: {words}")


def test_a_missing_topic_is_named_with_similar_ones(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with pytest.raises(TopicError, match=f"'{topic}x' is missing: correct its name .*'{topic}'"):
        Producer(f"{topic}x", kafka_bootstrap, dim=3)


def test_a_message_that_is_refused_is_raised_and_ends_the_sending(
    kafka_bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(**{"max.message.bytes": "1000"})
    with (
        pytest.raises(DeliveryError, match=f"sending to '{topic}' failed"),
        Producer(topic, kafka_bootstrap, dim=600) as producer,
    ):
        producer.send(np.zeros(600))
    mechanism = LocalGaussian(*ONE)
    with LocalAccountant(tmp_path / "spent") as accountant:
        reports = Producer(topic, kafka_bootstrap, dim=40, privatize=mechanism, accountant=accountant)
        reports.send(np.zeros(40), key="ada")
        with pytest.raises(DeliveryError):
            reports.flush()
        # The report was charged before its noise was drawn: it cannot be drawn again.
        with pytest.raises(AlreadySpent):
            reports.send(np.zeros(40), key="ada")
        # A report is not charged once it cannot be sent.
        with pytest.raises(DeliveryError):
            reports.send(np.zeros(40), key="bob")
        assert accountant.spent(b"ada", topic)[0] == 1
        assert accountant.spent(b"bob", topic) == (0, 0)
        with pytest.raises(DeliveryError):
            reports.close()


def test_a_broker_that_acknowledges_nothing_is_a_delivery_error(
    kafka_bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own close raises too while messages wait, and must not replace the error."""

    def wait(*_: object, **__: object) -> None:
        raise KafkaTimeoutError("Timeout waiting for future")

    topic = new_topic()
    monkeypatch.setattr(KafkaProducer, "flush", wait)
    with (
        pytest.raises(
            DeliveryError, match=rf"^sending to '{topic}' failed after \d+ delivered messages: .*Timeout"
        ),
        Producer(topic, kafka_bootstrap, dim=3) as producer,
    ):
        producer.send(np.zeros((20, 3)))


def test_after_an_error_of_the_program_nothing_is_waited_for(
    kafka_bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending.Sender, "flush", lambda self: pytest.fail("flushed"))
    with pytest.raises(KeyError), Producer(new_topic(), kafka_bootstrap, dim=3):
        raise KeyError


def test_each_user_reports_once(kafka_bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    mechanism = LocalGaussian(*ONE, radius=2.0)
    with (
        replace_noise_sampler(ScriptedSampler()),
        LocalAccountant(tmp_path / "spent") as accountant,
        Producer(topic, kafka_bootstrap, dim=3, privatize=mechanism, accountant=accountant) as producer,
    ):
        with pytest.raises(ValueError, match="names the user"):
            producer.send(X[0] / 9)
        producer.send(X[:2] / 9, key=["ada", "bob"])
        # This is detected before any charge of the call: eve may still report.
        for keys in (["eve", "ada"], ["eve", "eve"]):
            with pytest.raises(AlreadySpent, match="nothing of this call was sent"):
                producer.send(X[2:4] / 9, key=keys)
        producer.send(X[2] / 9, key="eve")
    (messages,) = sent(kafka_bootstrap, topic)
    assert {m.key for m in messages} == {None}
    codec = PayloadCodec(3, kind=RecordKind.LOCAL, privacy_contract=b"1.0,1e-06")
    rows, lengths = codec.decode_all(messages)[:2]
    assert lengths.tolist() == [1, 1, 1]
    x = X[:3] / 18
    np.testing.assert_allclose(rows, pack_symmetric(x[:, :, None] * x[:, None, :]), atol=4e-6)


def test_a_stream_tells_its_producer_what_to_send(
    kafka_bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    renamed = ('input = "s-in"', f'input = "{topic}"')
    config = write_config(tmp_path, kafka_bootstrap, "s", renamed)
    settings = load_settings(config)
    for stream in (settings, str(config)):
        with Producer.for_stream(stream) as producer:
            producer.send(np.arange(6.0))
    (messages,) = sent(kafka_bootstrap, topic)
    assert [m.headers for m in messages] == [[("content-type", b"application/octet-stream")]] * 2
    kind = ("dim = 6", LOCAL[0][1].replace("dim = 2", "dim = 6"))
    local = write_config(tmp_path, kafka_bootstrap, "s", renamed, kind, *LOCAL[2:])
    with pytest.raises(ValueError, match=r"add privatize=LocalGaussian\(1\.0, 1e-06\)"):
        Producer.for_stream(local)
    with pytest.raises(ValueError, match=r"LocalGaussian\(epsilon=2.* would be null"):
        Producer.for_stream(local, privatize=LocalGaussian(2.0, 1e-6))
    with Producer.for_stream(local, privatize=LocalGaussian(*ONE)) as producer:
        producer.send(np.zeros(6))
    (messages,) = sent(kafka_bootstrap, topic)
    own = load_settings(local).stream
    codec = PayloadCodec(6, kind=RecordKind.LOCAL, privacy_contract=own.local_guarantee)
    assert codec.decode(messages[-1]) is not None


class NoSender:
    """Sender without a broker, which keeps what it is given."""

    is_closed = False

    def __init__(self, *_: object, **__: object) -> None:
        self.values: list[bytes] = []

    def make_room(self) -> None: ...

    def is_in_clients_thread(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def send(self, value: bytes, *_: object) -> None:
        self.values.append(value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["eve", "eve"], "key= has one key 2 times, and "),
        (["eve", b"eve", "bob", "eve"], "key= has one key 3 times, and "),
        ("eve", "key= has one key 2 times, and "),
        (["eve", "ada"], "a user has no report of (1.0, 1e-06) left on 'in': nothing of this call was sent"),
    ],
)
def test_a_key_that_a_call_has_twice_is_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Any, words: str
) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    count = 2 if isinstance(keys, str) else len(keys)
    with LocalAccountant(tmp_path / "spent") as accountant:
        producer = Producer("in", "127.0.0.1:1", dim=3, privatize=LocalGaussian(*ONE), accountant=accountant)
        producer.send(X[0] / 9, key="ada")
        text = refusal(AlreadySpent, producer.send, X[:count] / 9, key=keys)
        assert accountant.spent(b"eve", "in") == accountant.spent(b"bob", "in") == (0, 0)
    assert len(producer._sender.values) == 1  # type: ignore[attr-defined]
    assert words in text
    assert text.endswith("nothing of this call was sent")
    assert "eve" not in text
    assert ("pass each key once" in text) == ("times" in words)


def test_a_stream_that_is_neither_settings_nor_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^stream must be Settings or the path of a TOML file, not None$"):
        Producer.for_stream(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["factor", "matrix"])
@pytest.mark.parametrize(
    "given", [("privatize",), ("accountant",), ("privatize", "accountant")], ids="+".join
)
def test_reports_for_a_stream_of_records_are_refused_before_a_charge(
    tmp_path: Path, kind: str, given: tuple[str, ...]
) -> None:
    of_kind = ("dim = 6", f'dim = 6\nrecord_kind = "{kind}"\ncentering = "none"')
    config = write_config(tmp_path, "127.0.0.1:1", "s", of_kind, ("bounds = [-6, 6]\n", ""))
    with LocalAccountant(tmp_path / "spent") as accountant:
        own = {"privatize": LocalGaussian(*ONE), "accountant": accountant}
        line = refusal(ValueError, Producer.for_stream, config, **{name: own[name] for name in given})
    assert line.startswith(f's: record_kind = "{kind}" takes records')
    assert "leave out privatize= and accountant=" in line


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("content_type", ["octets", "npy", "arrow"])
def test_values_beyond_the_bounds_are_those_of_the_records(
    dtype: Any, content_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker counts them; float32 rounds 0.1 and log(1 + 1000) up."""
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    features = [Feature(name="a", bounds=(-0.1, 0.1)), Feature(name="b", bounds=(0, 1000), transform="log1p")]
    values = [(0.1, 1000), (-0.1, 0), (0.05, 3), (0.3, 1001), (-1e300, 1e300), (1e39, -1)]
    records = [{"a": a, "b": b} for a, b in values]
    reader = FieldReader(features)
    known = reader.rows([reader.json_records(json.dumps(each).encode(), 1)[0] for each in records])
    how: dict[str, Any] = {"dim": 2, "dtype": dtype, "content_type": content_type}
    producer = Producer("in", "127.0.0.1:1", features=features, **how)
    producer.send(records)
    sender: Any = producer._sender
    messages = [SimpleNamespace(key=None, value=v, headers=producer._headers) for v in sender.values]
    rows, lengths = PayloadCodec(2, dtype=dtype).decode_all(messages)[:2]
    assert lengths.tolist() == [1] * 6
    lower, upper = map(np.array, reader.map.bounds or ())
    for each in (known, rows):
        assert ((each < lower) | (each > upper)).tolist() == [[False] * 2] * 3 + [[True] * 2] * 3
    np.testing.assert_allclose(np.clip(rows, lower, upper), np.clip(known, lower, upper), rtol=1e-6)


def test_features_determine_the_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    features = [Feature(name="a"), {"name": "b", "categories": ["x", "y"]}]
    for dim in (None, 3):
        producer = Producer("in", "127.0.0.1:1", dim=dim, features=features)
        assert producer._shaped({"a": 7, "b": "y"}).tolist() == [[7, 0, 1]]
    for other in ({"dim": 2}, {"record_kind": "matrix"}):
        line = refusal(ValueError, Producer, "in", "127.0.0.1:1", features=features, **other)
        assert line == "features make vectors of 3 numbers: leave out dim and record_kind"
    line = refusal(ValueError, Producer, "in", "127.0.0.1:1")
    assert line == "dim is needed, or features, which determine it"


def test_bounds_beyond_float32_leave_its_values_finite() -> None:
    values = np.array([[1e39], [-1e39], [1e300]])
    for limits in (((-1e40,), (1e40,)), ((1e39,), (1e40,)), ((-1.0,), (1.0,))):
        assert np.isfinite(round_rows(values, limits, "float32")).all()


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"name": "a"}, "features must be a list, or a FeatureMap, not dict"),
        ("ab", "features must be a list, or a FeatureMap, not str"),
        (b"ab", "features must be a list, or a FeatureMap, not bytes"),
        (5, "features must be a list, or a FeatureMap, not int"),
        ([5], "feature 0 must be a Feature or a dict, not int"),
        ([{"bounds": [0, 1]}], "feature 0: name: must be set"),
        ([{"name": "a", 1: 2}], "feature 'a': the names of its settings must be text"),
        ([{"name": "a"}, {"name": "b", "bonds": [0, 1]}], "feature 'b': bonds: no such setting"),
        ([{"name": "a"}, {"name": "a"}], "two columns have the name 'a'"),
        ([], "name one feature at least"),
    ],
)
def test_wrong_features_are_one_line_and_the_same_as_of_a_model(features: Any, words: str) -> None:
    line = refusal(ValueError, Producer, "in", "127.0.0.1:1", dim=1, features=features)
    assert line.startswith(words)
    assert refusal(ValueError, lambda: PrivatePCA(1, features=features).fit([{"a": 1.0}] * 9)) == line


@pytest.mark.parametrize("unit", ["message", "row"])
def test_a_closed_producer_is_named_and_charges_nothing(
    unit: Literal["message", "row"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its client's error would read as a loss of messages."""
    monkeypatch.setattr(sending, "_count_partitions", lambda *_: 1)
    monkeypatch.setattr(sending, "plain_producer", lambda _: Mock())
    monkeypatch.setattr(sending, "discard", lambda _: None)
    producer = Producer("t", dim=3, privacy_unit=unit)
    producer.close()
    with pytest.raises(ValueError, match=r"^the producer is closed"):
        producer.send(X)
    producer.close()
