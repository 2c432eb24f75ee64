"""Files of records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streaming_pca.service.produce import RecordFileError, read_records


def test_npy_and_csv_hold_the_same_records(tmp_path: Path) -> None:
    x = np.array([[1.5, -2.0], [3.0, 4e-3]])
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x.csv").write_text("a,b\n1.5,-2\n3,4e-3\n")
    np.testing.assert_array_equal(read_records(tmp_path / "x.npy"), x)
    np.testing.assert_array_equal(read_records(tmp_path / "x.csv"), x)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", b"1,2\n3\n", "line 2: has 1 numbers, the lines before have 2"),
        ("x.csv", b"1,2\n3,b\n", "line 2: is no list of numbers"),
        ("x.csv", b"", "holds no records"),
        ("x.npy", b"nothing", "is no array of numbers"),
        ("x.parquet", b"", "expected a .npy or .csv file"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordFileError, match=expected) as caught:
        read_records(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(RecordFileError):
        read_records(tmp_path / "x.npy")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match="No such file"):
        read_records(tmp_path / "x.npy")
