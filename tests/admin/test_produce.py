"""Files of records, and the messages made from them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

from streaming_pca import progress
from streaming_pca.admin.produce import arrange, check_format, send_records
from streaming_pca.client import sending
from streaming_pca.client.encoding import payload_encoder
from streaming_pca.client.sending import Sending
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import NPY, OCTETS, PayloadCodec
from streaming_pca.data.features.records import ARROW, JSON
from streaming_pca.data.files import RecordFile, open_records
from streaming_pca.errors import UserError
from streaming_pca.service.errors import TopicError
from streaming_pca.service.kafka.clients import admin_client
from tests.cli.command import call
from tests.cli.test_app import last_json, one_line
from tests.config.refusals import refusal
from tests.data.test_codec import message

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
X = np.array([[1.5, -2.0], [3.0, 4e-3], [5.0, 6.0]])
tables = pytest.mark.parametrize("name", ["x.parquet", "stream.arrow", "file.arrow"])


def read(records: RecordFile, size: int = 2, order: Any = None) -> np.ndarray:
    return np.concatenate(list(records.blocks(size, order)))


def lists(rows: Any) -> Any:
    return pa.table({"x": pa.array(rows, pa.list_(pa.float64(), 2))})


def write(folder: Path, name: str, table: Any = None, **options: Any) -> Path:
    """Write the records X, with names a and b if the format supports names."""
    path = folder / name
    if table is None:
        table = pa.table({"a": X[:, 0], "b": X[:, 1]})
    if name.endswith("npy"):
        np.save(path, X)
    elif name.endswith("csv"):
        path.write_text("a,b\n1.5,-2\n3,4e-3\n5,6\n")
    elif name.endswith("parquet"):
        pq.write_table(table, path, **options)
    else:
        new = pa.ipc.new_file if name.startswith("file") else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, **options)
    return path


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.parquet", "stream.arrow", "file.arrow"])
def test_all_formats_hold_the_same_records(tmp_path: Path, name: str) -> None:
    records = open_records(write(tmp_path, name))
    assert (len(records), records.dim) == X.shape
    assert records.feature_names == (None if name == "x.npy" else ("a", "b"))
    for size in (1, 2, 5):
        np.testing.assert_array_equal(read(records, size), X)
    np.testing.assert_array_equal(read(records, 2, np.array([2, 0, 1])), X[[2, 0, 1]])


@tables
def test_lists_of_numbers_are_records_without_names(tmp_path: Path, name: str) -> None:
    records = open_records(write(tmp_path, name, lists(X.tolist())))
    assert records.feature_names is None
    np.testing.assert_array_equal(read(records), X)


@tables
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (pa.table({"a": [1, None, 3], "b": [4.5, 5.0, None]}), [[1, 4.5], [np.nan, 5], [3, np.nan]]),
        (lists([[1, 4.5], [None, 5.0], None]), [[1, 4.5], [np.nan, 5], [np.nan, np.nan]]),
    ],
)
def test_a_missing_number_is_sent_as_nan(tmp_path: Path, name: str, table: Any, expected: Any) -> None:
    np.testing.assert_array_equal(read(open_records(write(tmp_path, name, table))), expected)


@tables
def test_a_large_table_is_read_a_piece_at_a_time(tmp_path: Path, name: str) -> None:
    x = np.arange(400_000.0).reshape(-1, 2)
    piece = {"row_group_size": 3000} if name == "x.parquet" else {"max_chunksize": 3000}
    records = open_records(write(tmp_path, name, pa.table({"a": x[:, 0], "b": x[:, 1]}), **piece))
    before, held, blocks = pa.total_allocated_bytes(), [], []
    for block in records.blocks(10_000):
        held.append(pa.total_allocated_bytes() - before)
        blocks.append(block)
    assert [len(b) for b in blocks] == [10_000] * 20
    np.testing.assert_array_equal(np.concatenate(blocks), x)
    assert max(held) < x.nbytes / 4


def test_rows_become_factors(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(12, 2)
    np.save(tmp_path / "x.npy", x)
    table = write(tmp_path, "x.parquet", pa.table({"a": x[:, 0], "b": x[:, 1]}))
    expected, order = x.reshape(4, 3, 2), np.array([3, 1, 0, 2])
    for path in (tmp_path / "x.npy", table):
        records = open_records(path)
        factors = records.grouped(3)
        assert factors.shape == (4, 3, 2)
        np.testing.assert_array_equal(read(factors, 3), expected)
        np.testing.assert_array_equal(read(factors, 3, order), expected[order])
        with pytest.raises(UserError, match="12 rows do not divide into records of 5 rows"):
            records.grouped(5)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "file.arrow"])
def test_features_are_put_in_order_by_their_names(tmp_path: Path, name: str) -> None:
    records = open_records(write(tmp_path, name))
    assert records.with_features(("a", "b")) is records
    turned = records.with_features(("b", "a"))
    np.testing.assert_array_equal(read(turned), X[:, ::-1])
    np.testing.assert_array_equal(read(turned, 2, np.array([1, 0, 2])), X[[1, 0, 2], ::-1])
    with pytest.raises(UserError, match=r"column 2 is 'b', but stream\.feature_names has 'c'"):
        records.with_features(("a", "c"))


IDS = ["ada", "bob", "ada"]


def keyed(folder: Path, name: str, ids: Any = IDS) -> Path:
    """Write the records X, with their users in a column between the two features."""
    table = pa.table({"a": X[:, 0], "who": ids, "b": X[:, 1]})
    if not name.endswith("csv"):
        return write(folder, name, table, **({"row_group_size": 2} if name.endswith("parquet") else {}))
    rows = zip(X[:, 0], ids, X[:, 1], strict=True)
    (folder / name).write_text("a, who,b\n" + "".join(f"{a},{who},{b}\n" for a, who, b in rows))
    return folder / name


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "stream.arrow", "file.arrow"])
def test_a_column_of_keys_is_no_feature(tmp_path: Path, name: str) -> None:
    records = open_records(keyed(tmp_path, name), "who")
    assert records.shape == X.shape
    assert records.feature_names == ("a", "b")
    np.testing.assert_array_equal(read(records), X)
    assert list(records.keys()) == [b"ada", b"bob", b"ada"]
    order = np.array([1, 0, 2])
    np.testing.assert_array_equal(read(records, 2, order), X[order])
    assert list(records.keys(order)) == [b"bob", b"ada", b"ada"]


def test_keys_are_text_or_whole_numbers_and_may_be_missing(tmp_path: Path) -> None:
    text = pa.array(["a", "", None]).dictionary_encode()
    for ids, expected in (([7, None, 8], [b"7", None, b"8"]), (text, [b"a", None, None])):
        assert list(open_records(keyed(tmp_path, "x.parquet", ids), "who").keys()) == expected
    in_csv = open_records(keyed(tmp_path, "x.csv", ["é", "", " "]), "who")
    assert list(in_csv.keys()) == ["é".encode(), None, None]
    lists_and_ids = lists(X.tolist()).append_column("who", [[b"x", None, b""]])
    records = open_records(write(tmp_path, "x.arrow", lists_and_ids), "who")
    np.testing.assert_array_equal(read(records), X)
    assert list(records.keys()) == [b"x", None, None]


def test_rows_of_one_record_have_one_key(tmp_path: Path) -> None:
    for ids, expected in ((["a", "a", "b", "b"], [b"a", b"b"]), (["a", "b", "b", "b"], None)):
        table = pa.table({"a": np.arange(4.0), "who": ids})
        records = open_records(write(tmp_path, "x.parquet", table), "who").grouped(2)
        if expected is not None:
            assert list(records.keys()) == expected
            continue
        with pytest.raises(UserError, match="the rows 1 to 2 are one record, and have different keys"):
            list(records.keys())


def test_records_of_two_keys_are_found_before_any_is_sent(tmp_path: Path) -> None:
    table = pa.table({"a": np.arange(8.0), "who": ["a"] * 6 + ["b", "c"]})
    records = open_records(write(tmp_path, "x.parquet", table), "who")
    by_user = stream(dim=1, max_rows=2, privacy_unit="user")
    with pytest.raises(UserError, match="the rows 7 to 8 are one record, and have different keys"):
        arrange(records, by_user, rows_per_message=2, factors=True)


def test_a_column_of_keys_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    def fails(path: Path, key: str, expected: str) -> None:
        assert expected in refusal(UserError, open_records, path, key)

    for name in ("x.csv", "x.parquet"):
        fails(keyed(tmp_path, name), "user", "has no column 'user'; it has 'a', 'who', 'b'")
    fails(keyed(tmp_path, "x.parquet"), "a", "'a' is of type double: keys are text or whole numbers")
    fails(write(tmp_path, "x.npy"), "who", "has no column 'who'")
    (tmp_path / "short.csv").write_text("a,b,who\n1,2,x\n3\n")
    fails(tmp_path / "short.csv", "who", "line 3: has 1 cells, but the first line has 3")


def test_a_file_without_names_is_taken_as_it_is(tmp_path: Path) -> None:
    records = open_records(write(tmp_path, "x.npy"))
    assert records.with_features(("b", "a")) is records


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", b"1,2\n3\n", "line 2: has 1 cells, but the first line has 2"),
        ("x.csv", b"a,b\n3\n", "line 2: has 1 cells, but the first line has 2"),
        ("x.csv", b"1,2\n3,b\n", "line 2: column 2 is 'b', which is not a number: correct it"),
        ("x.csv", b"1,,2\n3,4,5\n", "line 1: column 2 is empty: fill it in, write nan"),
        ("x.csv", b"", "holds no records"),
        ("x.csv", b"a,b\n", "holds no records"),
        ("x.csv", b"\xff\xfe", "is not UTF-8 text"),
        ("x.npy", b"nothing", "cannot be read as numbers"),
        ("x.parquet", b"", "x.parquet: cannot be read as numbers"),
        ("x.parquet", b"PAR1" + b"\0" * 100, "x.parquet: "),
        ("x.arrow", b"", "x.arrow: "),
        ("x.arrow", b"ARROW1 and nothing more", "x.arrow: "),
        ("x.txt", b"1", r"\.txt: expected a \.npy, \.csv, \.jsonl, \.parquet or \.arrow file"),
        ("x", b"1", "no ending"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert re.search(expected, refusal(UserError, open_records, tmp_path / name))


@pytest.mark.parametrize("name", ["x.parquet", "file.arrow"])
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (pa.table({"a": [1.0], "b": ["text"]}), "column 'b' is of type string"),
        (pa.table({"a": [["text", "text"]]}), "column 'a' is of type list"),
        (pa.table({"a": [True]}), "column 'a' is of type bool"),
        (pa.table({"a": pa.array([], pa.float64())}), "holds no records"),
    ],
)
def test_a_table_of_something_else_is_one_line(tmp_path: Path, name: str, table: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        open_records(write(tmp_path, name, table))


def test_a_table_that_is_cut_is_one_line_wherever_it_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "x.parquet")
    records = open_records(path)
    whole = path.read_bytes()
    path.write_bytes(b"\0" * len(whole))
    with pytest.raises(UserError, match=r"x\.parquet: "):
        read(records)


def test_a_vector_alone_and_a_pickle_are_no_file_of_records(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"shape \(3,\); expected at least one record, of shape"):
        open_records(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError):
        open_records(tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.parquet", "x.arrow"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: .*No such file"):
        open_records(tmp_path / name)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_without_pyarrow_one_line_says_how_to_get_it(tmp_path: Path, name: str, monkeypatch: Patch) -> None:
    path = write(tmp_path, name)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    for use, given in ((open_records, [path]), (payload_encoder, ["arrow", "float32"])):
        assert "pip install '.[arrow]' in the checkout" in refusal(UserError, use, *given)


CONTENT_TYPES = {"octets": OCTETS, "npy": NPY, "json": JSON, "arrow": ARROW}


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_encoded_is_decoded(content_type: Any, dtype: Any, rows: int) -> None:
    x = X[:rows].astype(dtype).astype(np.float64)
    codec = PayloadCodec(2, dtype=dtype)
    decoded = codec.decode(message(payload_encoder(content_type, dtype)(x), CONTENT_TYPES[content_type]))
    assert decoded is not None
    np.testing.assert_array_equal(decoded, x)


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_a_row_that_is_not_finite_is_encoded_as_a_null_record(content_type: Any) -> None:
    """This includes rows that float32 cannot hold, without a warning."""
    x = np.array([[1.0, 2], [np.nan, 4], [5, -np.inf], [7, 8]])
    if content_type != "json":
        x[1, 0] = 1e300
    sent = message(payload_encoder(content_type, "float32")(x), CONTENT_TYPES[content_type])
    rows = PayloadCodec(2, unit="row").decode(sent)
    assert rows is not None
    np.testing.assert_array_equal(rows, [[1, 2], [np.nan] * 2, [np.nan] * 2, [7, 8]])
    assert PayloadCodec(2).decode(sent) is None


def stream(**changes: Any) -> StreamSettings:
    base: dict[str, Any] = {"name": "s", "input": "in", "dim": 2, "rank": 1, "epsilon": 1.0, "delta": 1e-6}
    rows = {"options": {"first_batch": 100, "max_batch": 100}, "max_rows": 8}
    return StreamSettings(**(base | rows | changes))


VECTORS = RecordFile.of_array(np.zeros((12, 2)), "x.npy")
FACTORS = RecordFile.of_array(np.zeros((4, 3, 2)), "x.npy")
MATRIX = {"record_kind": "matrix", "centering": "none"}
KEYED = replace(VECTORS, row_keys=lambda: iter([b"a"] * 12))
USER = {"privacy_unit": "user"}
LOCAL = {"record_kind": "local", "centering": "none", "estimator": "local-gaussian", "options": {}}


def test_a_producer_of_tables_is_advised_only_where_it_takes_them() -> None:
    features = {"features": [{"name": "a", "bounds": [0, 1]}, {"name": "b", "bounds": [0, 1]}]}
    advice = "or tables by streaming_pca.client.Producer.for_stream"
    assert advice in refusal(ConfigurationError, check_format, "x.npy", stream(**features), False)
    by_field = stream(**features, user_field="user", **USER)
    assert refusal(ConfigurationError, check_format, "x.npy", by_field, True).endswith("of an object a line")


@pytest.mark.parametrize(
    ("records", "settings", "how", "shape"),
    [
        (VECTORS, {}, {}, (12, 2)),
        (VECTORS, {}, {"rows_per_message": 4, "factors": True}, (3, 4, 2)),
        (VECTORS, {"privacy_unit": "row"}, {"rows_per_message": 5}, (12, 2)),
        (KEYED, USER, {}, (12, 2)),
        (KEYED, USER, {"rows_per_message": 4, "factors": True}, (3, 4, 2)),
        (FACTORS, {}, {}, (4, 3, 2)),
        (FACTORS, {"privacy_unit": "row"}, {}, (4, 3, 2)),
        (RecordFile.of_array(np.zeros((4, 2, 2))), MATRIX, {}, (4, 2, 2)),
        (VECTORS, MATRIX, {"rows_per_message": 2, "factors": True}, (6, 2, 2)),
    ],
)
def test_records_are_arranged_as_the_stream_wants_them(
    records: RecordFile, settings: Any, how: Any, shape: tuple[int, ...]
) -> None:
    assert arrange(records, stream(**settings), **how).shape == shape


@pytest.mark.parametrize(
    ("records", "settings", "how", "expected"),
    [
        (VECTORS, {"dim": 3}, {}, "have 2 features, the stream's dim is 3"),
        (VECTORS, {}, {"rows_per_message": 2}, "add --factors if they are"),
        (KEYED, USER, {"rows_per_message": 2}, 'with .* = "user" 2 rows .* are one record: add --factors'),
        (VECTORS, USER, {}, "messages without a key null: name the column of the users with --key"),
        (KEYED, {"privacy_unit": "row"}, {"rows_per_message": 2}, "--key gives each row a key"),
        (VECTORS, {"privacy_unit": "row"}, {"rows_per_message": 2, "factors": True}, "leave out --factors"),
        (VECTORS, {"privacy_unit": "row"}, {"rows_per_message": 9}, r"9 rows a message .*max_rows = 8"),
        (VECTORS, {}, {"rows_per_message": 12, "factors": True}, r"12 rows a message .*max_rows = 8"),
        (VECTORS, {}, {"rows_per_message": 5, "factors": True}, "do not divide into"),
        (FACTORS, {}, {"rows_per_message": 2}, "holds factors of 3 rows, one a message"),
        (FACTORS, {"max_rows": 2}, {}, r"3 rows a message .*max_rows = 2"),
        (VECTORS, MATRIX, {}, r'record_kind is "matrix": expected the shape \(records, 2, 2\)'),
        (FACTORS, MATRIX, {}, "expected the shape"),
        (VECTORS, LOCAL, {}, r'record_kind = "local" takes reports'),
    ],
)
def test_records_that_would_all_be_null_are_not_sent(
    records: RecordFile, settings: Any, how: Any, expected: str
) -> None:
    assert re.search(
        expected, refusal((UserError, ConfigurationError), arrange, records, stream(**settings), **how)
    )


def test_names_are_compared_with_the_streams(tmp_path: Path) -> None:
    records = open_records(write(tmp_path, "x.csv"))
    turned = arrange(records, stream(feature_names=("b", "a")))
    np.testing.assert_array_equal(read(turned), X[:, ::-1])
    with pytest.raises(UserError, match=r"column 1 is .a., but .* has .d.:"):
        arrange(records, stream(feature_names=("d", "b")))


# -- on a broker -----------------------------------------------------------


@pytest.fixture
def topic(broker_bootstrap: str, unique_name: Callable[[str], str]) -> tuple[KafkaSettings, str]:
    kafka = KafkaSettings(bootstrap_servers=broker_bootstrap)
    name = unique_name("produce")
    with closing(admin_client(kafka)) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    return kafka, name


def sent_to(kafka: KafkaSettings, topic: str, expected: int) -> list[list[Any]]:
    """Return all messages, by partition."""
    tps = [TopicPartition(topic, p) for p in range(2)]
    found: list[list[Any]] = [[], []]
    servers = kafka.bootstrap_servers
    with closing(KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)) as consumer:
        consumer.assign(tps)
        consumer.seek_to_beginning(*tps)
        while sum(map(len, found)) < expected:
            polled = consumer.poll(10_000)
            assert polled, f"{sum(map(len, found))} of {expected} messages"
            for tp, messages in polled.items():
                found[tp.partition] += messages
    return found


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_rows_are_sent_in_turn_to_the_partitions(topic: tuple[KafkaSettings, str], content_type: Any) -> None:
    x = np.arange(46.0).reshape(23, 2)
    reported: list[int] = []
    to = Sending(*topic, progress=reported.append)
    produced = send_records(to, x, content_type=content_type, rows_per_message=5)
    assert (produced.messages, produced.rows, sum(reported)) == (5, 23, 5)
    by_partition = sent_to(*topic, 5)
    codec = PayloadCodec(2, unit="row")
    for p, messages in enumerate(by_partition):
        assert {m.headers[0] for m in messages} == {("content-type", CONTENT_TYPES[content_type].encode())}
        rows, _ = codec.decode_all(messages)[:2]
        np.testing.assert_array_equal(rows, np.concatenate([x[i : i + 5] for i in range(5 * p, 23, 10)]))


def test_a_public_seed_shuffles_factors_whole(topic: tuple[KafkaSettings, str]) -> None:
    x = np.arange(2000.0).reshape(-1, 2, 2)
    produced = send_records(Sending(*topic, shuffle=7), x)
    assert (produced.messages, produced.rows) == (500, 1000)
    decoded = [PayloadCodec(2).decode(m) for messages in sent_to(*topic, 500) for m in messages]
    found = np.stack([rows for rows in decoded if rows is not None])
    assert not np.array_equal(found[np.argsort(found[:, 0, 0])], found)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0, 0])], x)


def test_a_topic_that_is_missing_is_one_line(topic: tuple[KafkaSettings, str]) -> None:
    with pytest.raises(TopicError, match="is missing: correct its name"):
        send_records(Sending(topic[0], f"{topic[1]}-missing"), X)


def config_of(folder: Path, topic: tuple[KafkaSettings, str], *lines: str) -> Path:
    """Write settings of a stream that reads a topic."""
    kafka, name = topic
    head = (f'kafka.bootstrap_servers = "{kafka.bootstrap_servers}"', "[stream]", f'input = "{name}"')
    path = folder / "s.toml"
    path.write_text("\n".join([*head, 'name = "s"', "rank = 1", "epsilon = 1.0", "delta = 1e-6", *lines]))
    return path


def test_the_command_sends_a_table_in_the_order_of_the_streams_features(
    tmp_path: Path, topic: tuple[KafkaSettings, str], capfd: Capture
) -> None:
    names = list("abcdef")
    x = np.arange(60.0).reshape(10, 6)
    table = pa.table({n: x[:, i] for i, n in enumerate(names)})
    path = write(tmp_path, "x.parquet", table.select(names[::-1]))
    by_row = ("dim = 6", 'privacy_unit = "row"', "max_rows = 8", f"feature_names = {names}")
    config = config_of(tmp_path, topic, *by_row)
    how = ("--rows-per-message", 4, "--rate", 1000, "--json")
    result = call(capfd, "produce", path, "--config", config, *how)
    facts = last_json(result)
    assert (facts["records"], facts["messages"], facts["rows"]) == (10, 3, 10)
    assert "order of stream.feature_names" in result.stderr
    found = np.frombuffer(b"".join(m.value for p in sent_to(*topic, 3) for m in p), "<f4").reshape(-1, 6)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], x)


def test_the_command_sends_keys_with_their_records(
    tmp_path: Path, topic: tuple[KafkaSettings, str], capfd: Capture
) -> None:
    ids = [f"user {i % 7}" for i in range(40)]
    table = pa.table({"who": ids, "a": np.arange(40.0), "b": np.zeros(40)})
    config = config_of(tmp_path, topic, "dim = 2", 'privacy_unit = "user"', "contributions_per_user = 3")
    path = write(tmp_path, "x.parquet", table)
    result = call(capfd, "produce", path, "--config", config, "--key", "who", "--shuffle", 3, "--json")
    assert last_json(result)["messages"] == 40
    found = [(np.frombuffer(m.value, "<f4")[0], m.key.decode()) for p in sent_to(*topic, 40) for m in p]
    assert sorted(found) == list(zip(range(40), ids, strict=True))
    # Before cells are read: the column of names would give another advice, --drop.
    for file in (path, write(tmp_path, "x.npy")):
        one_line(call(capfd, "produce", file, "--config", config), 2, "--key")


def test_the_command_without_a_terminal_prints_how_many_messages_it_has_sent(
    topic: tuple[KafkaSettings, str], tmp_path: Path, capfd: Capture, monkeypatch: Patch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 2)))
    config = config_of(tmp_path, topic, "dim = 2")
    monkeypatch.setattr(progress, "_SECONDS", 0.01)
    done = call(capfd, "produce", tmp_path / "x.npy", "--config", config, "--rate", 10, "--json")
    assert last_json(done)["messages"] == 8
    assert len(done.stdout.splitlines()) == 1
    lines = done.stderr.splitlines()
    assert all(re.fullmatch(r"messages delivered: \d of 8 \(\d+%\), \d+ s", line) for line in lines)
    # Eight lines on a quiet machine: at ten messages a second each is reported.
    assert len({line.partition(" of ")[0] for line in lines}) >= 2


def test_an_interrupt_prints_how_many_messages_were_delivered(
    topic: tuple[KafkaSettings, str], tmp_path: Path, capfd: Capture, monkeypatch: Patch
) -> None:
    naps = iter(range(5))

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if next(naps, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    np.save(tmp_path / "x.npy", np.zeros((8, 2)))
    config = config_of(tmp_path, topic, "dim = 2")
    done = call(capfd, "produce", tmp_path / "x.npy", "--config", config, "--rate", 10)
    assert (done.returncode, done.stdout) == (130, "")
    assert re.search(r"interrupted: messages delivered: [0-7] of 8", done.stderr)


def test_records_that_count_as_null_are_counted_where_they_are_sent(
    topic: tuple[KafkaSettings, str], tmp_path: Path, capfd: Capture
) -> None:
    (tmp_path / "x.csv").write_text("u,a,b\nx,1,2\ny,1e39,2\n,3,4\nz,nan,0\n")
    config = config_of(tmp_path, topic, "dim = 2", 'privacy_unit = "user"')
    done = call(capfd, "produce", tmp_path / "x.csv", "--config", config, "--header", "--key", "u")
    assert done.returncode == 0
    assert "2 of 4 messages have a cell that is empty, nan, infinite or too large for float32" in done.stderr
    assert "1 of 4 messages have no key" in done.stderr
    wide = send_records(Sending(*topic), np.array([[1e39, 1.0], [np.inf, 1.0]]), dtype="float64")
    assert (wide.not_finite, wide.without_key) == (1, 0)
