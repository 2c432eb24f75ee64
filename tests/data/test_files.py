"""Columns of record files: feature selection, order and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_pca.admin.produce import arrange
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.files import ColumnChoice, RecordFile, open_records
from streaming_pca.errors import UserError
from tests.cli.command import call
from tests.cli.test_app import write_config
from tests.data.refusals import refuses
from tests.data.test_codec import npy

X = np.arange(12.0).reshape(3, 4)
NAMES = ["a", "b", "c", "d"]


def read(records: RecordFile, order: Any = None) -> np.ndarray:
    return np.concatenate(list(records.blocks(2, order)))


def chosen(path: Path, keep: str | None = None, drop: str | None = None, **how: Any) -> RecordFile:
    return open_records(path, how.pop("key", None), ColumnChoice.parse(keep, drop, **how))


def named(folder: Path, name: str) -> Path:
    """Write the records X between a text and a date column, which are not features."""
    path = folder / name
    features = dict(zip(NAMES, X.T, strict=True))
    table = pa.table({"id": ["x", "y", "z"], **features, "day": ["mon", "tue", "wed"]})
    if name.endswith("csv"):
        rows = [",".join(map(str, row.values())) for row in table.to_pylist()]
        path.write_text("\n".join([",".join(table.column_names), *rows]))
    elif name.endswith("parquet"):
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.arrow"])
def test_columns_are_chosen_and_ordered_by_name_or_number(tmp_path: Path, name: str) -> None:
    path = named(tmp_path, name)
    for keep, drop, features in (
        ("d,a", None, "da"),
        ("5,2", None, "da"),
        ("2-5", None, "abcd"),
        ("2-5", "c", "abd"),
        (None, "id,day", "abcd"),
        (None, "1,6,b", "acd"),
        ('"b" , c', None, "bc"),
    ):
        records = chosen(path, keep, drop)
        assert records.feature_names == tuple(features)
        expected = X[:, ["abcd".index(f) for f in features]]
        np.testing.assert_array_equal(read(records), expected)
        np.testing.assert_array_equal(read(records, np.array([2, 0, 1])), expected[[2, 0, 1]])
    for key in ("id", "1"):
        records = chosen(path, None, "day", key=key)
        assert list(records.keys()) == [b"x", b"y", b"z"]
        np.testing.assert_array_equal(read(records), X)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.arrow"])
@pytest.mark.parametrize(
    ("keep", "drop", "key", "expected"),
    [
        ("a,e", None, None, "has no column 'e'; it has 'id', 'a', 'b', 'c', 'd', 'day'"),
        ("a,7", None, None, "has no column 7; it has 6 columns"),
        (None, "5-7", None, "has no column 5-7; it has 6 columns"),
        ("3-2", None, None, "has no column 3-2"),
        ("0", None, None, "has no column '0'"),
        ("a,2", None, None, "--columns names column 2 twice"),
        ("a", "a", None, "no column is left"),
        ("", None, None, "no column is left"),
        ("id,a", None, "id", "column 1 holds the keys: leave it out of --columns"),
        (None, "id", "1-2", "--key 1-2 names 2 columns"),
    ],
)
def test_a_choice_that_cannot_be_is_one_line(
    tmp_path: Path, name: str, keep: str | None, drop: str | None, key: str | None, expected: str
) -> None:
    refuses(expected, chosen, named(tmp_path, name), keep, drop, key=key, error=UserError)


def test_arrays_have_numbers_of_columns_and_no_names(tmp_path: Path) -> None:
    for array in (X, np.arange(24.0).reshape(3, 2, 4)):
        np.save(tmp_path / "x.npy", array)
        records = chosen(tmp_path / "x.npy", "4,1-2")
        assert records.shape == (*array.shape[:-1], 3)
        np.testing.assert_array_equal(read(records), array[..., [3, 0, 1]])
        assert chosen(tmp_path / "x.npy", "1-4").columns is None
    np.save(tmp_path / "x.npy", np.arange(16.0).reshape(4, 4))
    factors = chosen(tmp_path / "x.npy", None, "2").grouped(2)
    np.testing.assert_array_equal(read(factors), np.arange(16.0).reshape(2, 2, 4)[..., [0, 2, 3]])
    with pytest.raises(UserError, match="has no column 'a'; has no names of columns: give numbers"):
        chosen(tmp_path / "x.npy", "a")


@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "x.arrow"])
@pytest.mark.parametrize("header", [True, False])
def test_only_csv_files_have_a_header(tmp_path: Path, name: str, header: bool) -> None:
    refuses(r"are about \.csv files", chosen, tmp_path / name, header=header, error=UserError)


def test_columns_beside_a_column_of_lists(tmp_path: Path) -> None:
    table = pa.table({"id": ["x", "y", "z"], "v": pa.array(X.tolist(), pa.list_(pa.float64(), 4))})
    pq.write_table(table, tmp_path / "x.parquet")
    np.testing.assert_array_equal(read(chosen(tmp_path / "x.parquet", "v")), X)


def test_two_columns_of_a_name_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,a,b.c\n1,2,3\n")
    refuses("has 2 columns 'a': give their numbers", chosen, tmp_path / "x.csv", "a", error=UserError)
    table = pa.Table.from_arrays([[1.0], [2.0], [3.0]], names=["a", "a", "b.c"])
    pq.write_table(table, tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        np.testing.assert_array_equal(read(chosen(tmp_path / name, "b.c,2")), [[3, 2]])


@pytest.mark.parametrize(
    ("text", "header", "names", "rows"),
    [
        ("a,b\n1,2\n", None, ("a", "b"), [[1, 2]]),
        ("1,2\n3,4\n", None, None, [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", False, None, [[1, 2], [3, 4]]),
        ("2019,2020\n3,4\n", True, ("2019", "2020"), [[3, 4]]),
        ("name,2020\n3,4\n", True, ("name", "2020"), [[3, 4]]),
        ("\n\nnan,2\n3,4\n", None, None, [[np.nan, 2], [3, 4]]),
        ('"a\nb",c\n3,4\n', None, ("a\nb", "c"), [[3, 4]]),
    ],
)
def test_the_first_line_is_names_or_a_record(
    tmp_path: Path, text: str, header: Any, names: Any, rows: Any
) -> None:
    (tmp_path / "x.csv").write_text(text)
    records = chosen(tmp_path / "x.csv", header=header)
    assert records.feature_names == names
    assert records.guessed_header == (header is None and names is not None)
    np.testing.assert_array_equal(read(records), rows)


def test_text_beside_the_features_tells_nothing_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("ada,1,2\nbob,3,4\n")
    for how in ({"keep": "2-3"}, {"drop": "1"}, {"key": "1"}):
        records = chosen(tmp_path / "x.csv", **how)
        assert (records.feature_names, len(records)) == (None, 2)
    assert list(records.keys()) == [b"ada", b"bob"]


@pytest.mark.parametrize(
    ("text", "header", "expected"),
    [
        # One bad cell does not make a header, and its record is not lost.
        ("1,oops,3\n4,5,6\n", None, r"line 1: column 2 is 'oops', but other cells are numbers: pass --head"),
        ("1,oops,3\n4,5,6\n", False, r"line 1: column 2 is 'oops', which is not a number: correct it"),
        ("a,b\n1,2\n", False, r"line 1: column 1 is 'a', which is not a number"),
        ("a,b\n1,2\n3,\n", None, r"line 3: column 2 \('b'\) is empty: fill it in, write nan .* --drop 2"),
        ("1,2\n3, \n", None, r"line 2: column 2 is empty"),
        ('a,b\n"\n",2\n', None, r"line 3: column 1 \('a'\) is empty"),
        ("1;2\n3;4\n", False, r"is '1;2', which is not a number: separate cells by commas"),
        ("a,b\n1,2,\n", None, r"line 2: has 3 cells, but the first line has 2"),
        ("a,b\n1,\0\n", None, r"x\.csv"),
        # An unclosed quote would swallow the following lines.
        ('a,b\n1,2\n3,"4\n5,6\n', None, r"unexpected end of data"),
        # Tables without names are saved with numbers as names, and an empty name for the index.
        (",0,1\n0,1,2\n", None, r"line 1: 0, 1, 2, \.\.\. may be names or a record: pass --header"),
        ("0,1,2\n3,4,5\n", None, r"line 1: 0, 1, 2, \.\.\. may be names or a record: pass --header"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, text: str, header: bool | None, expected: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    refuses(expected, chosen, tmp_path / "x.csv", header=header, error=UserError)


def test_an_open_quote_in_a_column_that_is_left_out_loses_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,b,note\n1,2,"open\n3,4,x\n5,6,y\n')
    refuses("unexpected end of data", chosen, tmp_path / "x.csv", drop="note", error=UserError)


def test_a_number_that_names_another_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",0,1\n0,1.5,2.5\n1,3.5,4.5\n")
    with pytest.raises(UserError, match="write 1-1 for the number, or 3-3 for the name"):
        chosen(tmp_path / "x.csv", drop="1", header=True)
    records = chosen(tmp_path / "x.csv", drop="1-1", header=True)
    np.testing.assert_array_equal(read(records), [[1.5, 2.5], [3.5, 4.5]])


def test_files_that_are_no_arrays_or_no_text_are_named(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as out:
        np.savez(out, a=X)
    (tmp_path / "empty.npy").touch()
    whole = npy(X)
    (tmp_path / "cut.npy").write_bytes(whole[:-8])
    (tmp_path / "changed.npy").write_bytes(b"?" + whole[1:])
    np.save(tmp_path / "objects.npy", np.array([{}, "a"], dtype=object))
    (tmp_path / "latin.csv").write_bytes("a,café\n1,2\n".encode("latin-1"))
    damaged = "cannot be read as numbers: the file is not numpy.save's, is damaged or is cut off$"
    for name, expected in (
        ("x.npy", r"\.npz"),
        ("empty.npy", damaged),
        ("cut.npy", damaged),
        ("changed.npy", damaged),
        ("objects.npy", "the file holds Python objects$"),
        ("latin.csv", "not UTF-8"),
    ):
        with pytest.raises(UserError, match=expected):
            chosen(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("b", "d"), r"stream\.feature_names does not have 'id', 'a', 'c': leave columns out with --drop"),
        (("b", "e"), r"column 'e' of stream\.feature_names is missing"),
        (None, "choose columns with --columns or --drop, or set stream.dim"),
    ],
)
def test_columns_that_the_stream_does_not_have_are_named(tmp_path: Path, names: Any, expected: str) -> None:
    (tmp_path / "x.csv").write_text("id,a,b,c,d\n1,2,3,4,5\n")
    stream = StreamSettings(name="s", input="in", dim=2, rank=1, epsilon=1, delta=1e-6, feature_names=names)
    refuses(expected, arrange, chosen(tmp_path / "x.csv"), stream, error=UserError)
    wide = stream.model_copy(update={"dim": 9, "feature_names": None})
    refuses("add columns, or set stream.dim", arrange, chosen(tmp_path / "x.csv"), wide, error=UserError)


def test_a_guessed_header_is_said_unless_the_stream_knows_its_names(tmp_path: Path, capfd: Any) -> None:
    unknown = write_config(tmp_path, "127.0.0.1:1", "s")
    names = '["f", "b", "c", "d", "e", "a"]'
    known = write_config(tmp_path, "127.0.0.1:1", "t", ("dim = 6", f"dim = 6\nfeature_names = {names}"))
    # Its factors are too long; this is detected after the header, before any contact with a broker.
    (tmp_path / "x.csv").write_text("a,b,c,d,e,f\n" + "1,2,3,4,5,6\n" * 65)
    given = ("produce", tmp_path / "x.csv", "--factors", "--rows-per-message", 65, "--config")
    warned = call(capfd, *given, unknown)
    message, error = warned.stderr.splitlines()
    assert warned.returncode == 2
    assert "the first line is taken as names of columns (a, b, c, ...): add --header" in message
    assert "--no-header" in message
    assert "max_rows" in error
    for quiet in ((unknown, "--header"), (known,)):
        done = call(capfd, *given, *quiet)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


def test_keys_of_a_csv_are_text_without_the_spaces_around_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("user,a,b\n7,1,2\n 7,3,4\n7 ,5,6\n07,7,8\n7.0,9,10\n ,11,12\n")
    assert list(open_records(path, "user").keys()) == [b"7", b"7", b"7", b"07", b"7.0", None]


def test_lists_of_one_length_are_records_and_a_null_list_is_null(tmp_path: Path) -> None:
    """pandas, polars and Spark write list<double>, not Arrow's fixed-size lists."""
    values, path = [[1.0, 2.0, 3.0], None, [4.0, None, 6.0], [7.0, 8.0, 9.0]], tmp_path / "lists.parquet"
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float32())):
        pq.write_table(pa.table({"user": ["a", "b", "c", "d"], "x": pa.array(values, kind)}), path)
        found = open_records(path, "user")
        assert found.shape == (4, 3)
        rows = np.concatenate(list(found.parts()))
        np.testing.assert_array_equal(rows, [[1, 2, 3], [np.nan] * 3, [4, np.nan, 6], [7, 8, 9]])
        assert list(found.keys()) == [b"a", b"b", b"c", b"d"]


def test_lists_of_several_lengths_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ragged.parquet"
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0], [4.0, 5.0]]}), path)
    refuses("has a list of 1 numbers, but the first has 2", list, open_records(path).parts(), error=UserError)


def test_a_folder_of_part_files_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    for i in range(3):
        part = pa.table({"user": [f"u{i}"] * 2, "a": [1.0 * i, 2.0], "b": [3.0, 4.0]})
        pq.write_table(part, folder / f"part-0000{i}-abc.snappy.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-00000.crc").touch()
    found = open_records(folder, "user")
    assert found.shape == (6, 2)
    assert np.concatenate(list(found.parts()))[::2, 0].tolist() == [0.0, 1.0, 2.0]
    assert list(found.keys()) == [b"u0"] * 2 + [b"u1"] * 2 + [b"u2"] * 2
    other = pa.table({"user": ["u"], "a": [1.0], "c": [3.0]})
    pq.write_table(other, folder / "part-00009.parquet")
    refuses(r"part-00009.parquet has other columns than part-00000", open_records, folder, error=UserError)
    empty = tmp_path / "empty"
    empty.mkdir()
    refuses(r"is a folder without .parquet files", open_records, empty, error=UserError)
    by_day = tmp_path / "by_day" / "day=3"
    by_day.mkdir(parents=True)
    pq.write_table(other, by_day / "part-0.parquet")
    with pytest.raises(UserError, match="the name of its folder 'day=3' is a column's value"):
        open_records(by_day.parent)
