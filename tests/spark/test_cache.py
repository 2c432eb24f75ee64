"""Decoded rows between passes are found by other processes, bounded, and end with their process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.spark.cache import RowCache, Shelf, ValueCache, folder_of


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[Callable[[int], RowCache]]:
    """Make caches with a limit in one folder, and free them after the test."""
    made: list[RowCache] = []

    def make(limit: int) -> RowCache:
        made.append(RowCache(str(tmp_path), limit))
        return made[-1]

    yield make
    for cache in made:
        cache.drop(cache.names)


def parts() -> list[ArrayBatch]:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((7, 3))
    first = ArrayBatch(rows.astype(np.float32), np.array([0, 2, 2, 7]))
    # Rows that are not consecutive, and of another type.
    second = ArrayBatch(rows, np.array([0, 1, 3]), begins=np.array([5, 1]))
    return [first, second, ArrayBatch(rows[:0], np.array([0, 0]))]


def test_rows_come_back_as_they_were(tmp_path: Path, make_cache: Callable[[int], RowCache]) -> None:
    cache = make_cache(2**20)
    shelf = cache.store("app/1", 3, RecordKind.FACTOR, parts())
    other = make_cache(0)
    for found in (cache.open(shelf), other.open(shelf)):
        for ours, theirs in zip(found.parts, parts(), strict=True):
            np.testing.assert_array_equal(ours.rows, theirs.packed().rows)
            np.testing.assert_array_equal(ours.starts, theirs.starts)
            assert ours.rows.dtype == theirs.rows.dtype
            # Kernels are compiled for such arrays.
            assert ours.rows.flags.writeable
            assert ours.rows.flags.aligned
    assert list(tmp_path.iterdir()) == []


def test_no_more_than_the_limit_is_kept(make_cache: Callable[[int], RowCache]) -> None:
    cache = make_cache(600)
    first = cache.store("app/1", 3, RecordKind.FACTOR, parts())
    assert 0 < cache.used <= 600
    second = cache.store("app/2", 3, RecordKind.FACTOR, parts())
    assert second.path == ""
    with pytest.raises(LookupError):
        cache.open(second)
    cache.drop(["app/1"])
    assert cache.used == 0
    with pytest.raises(LookupError):
        cache.open(first)


def test_a_file_of_another_segment_is_not_taken(
    tmp_path: Path, make_cache: Callable[[int], RowCache]
) -> None:
    cache, other = make_cache(2**20), make_cache(0)
    shelf = cache.store("app/1", 3, RecordKind.FACTOR, parts())
    for wrong in (
        Shelf("app/2", shelf.host, shelf.path),
        Shelf(shelf.name, "elsewhere", shelf.path),
        Shelf(shelf.name, shelf.host, "/proc/self/fd/0"),
        Shelf(shelf.name, shelf.host, str(tmp_path)),
        Shelf(shelf.name, shelf.host, __file__),
    ):
        with pytest.raises(LookupError):
            other.open(wrong)


def test_another_process_can_free_a_file(make_cache: Callable[[int], RowCache]) -> None:
    cache, other = make_cache(2**20), make_cache(0)
    shelf = cache.store("app/1", 3, RecordKind.FACTOR, parts())
    other.drop_shelves([shelf])
    with pytest.raises(LookupError):
        cache.open(shelf)


def test_files_are_gone_with_a_process_that_is_killed(
    tmp_path: Path, make_cache: Callable[[int], RowCache]
) -> None:
    code = f"""
import time
from streaming_pca.data.records import RecordKind
from tests.spark.test_cache import RowCache, parts
cache = RowCache({str(tmp_path)!r}, 2**20)
print(cache.store('app/1', 3, RecordKind.FACTOR, parts()).path, flush=True)
time.sleep(60)
"""
    command, env = [sys.executable, "-c", code], {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | env) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        cache, host = make_cache(0), os.uname().nodename
        assert len(cache.open(Shelf("app/1", host, path)).parts) == 3
        process.kill()
    with pytest.raises(LookupError):
        cache.open(Shelf("app/1", host, path))
    assert list(tmp_path.iterdir()) == []


def recalled(cache: ValueCache, value: float, segment: str = "app/1") -> tuple[NDArray[np.float64], bool]:
    computed = []

    def compute() -> NDArray[np.float64]:
        computed.append(True)
        return np.array([value, 2.0])

    return cache.recall(segment, "0-2", "v1", compute), bool(computed)


def test_values_are_computed_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    first, second = ValueCache("app", 2**20), ValueCache("app", 2**20)
    assert recalled(first, 1.0) == (pytest.approx(np.array([1.0, 2.0])), True)
    assert recalled(second, 5.0) == (pytest.approx(np.array([1.0, 2.0])), False)
    first.drop(["app/1"])
    assert recalled(second, 5.0) == (pytest.approx(np.array([5.0, 2.0])), True)
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_another_file_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    cache = ValueCache("app", 2**20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"1234567812345678")
    for target in ("pipe", "file", "nothing"):
        (Path(folder_of("app")) / "1.0-2.v1").symlink_to(tmp_path / target)
        assert recalled(cache, 3.0)[0].tolist() == [3.0, 2.0]
        cache.drop(["app/1"])
        (Path(folder_of("app")) / "1.0-2.v1").unlink(missing_ok=True)


def test_a_folder_of_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    Path(folder_of("app")).mkdir(mode=0o755)
    cache = ValueCache("app", 2**20)
    recalled(cache, 1.0)
    assert list(Path(folder_of("app")).iterdir()) == []
    assert recalled(cache, 4.0)[0].tolist() == [4.0, 2.0]
    cache.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Make writes stop at a size, as on a full disk: a part is written, and the next write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 50, 200, 450, 550])
def test_a_full_disk_keeps_nothing_of_a_segment(make_cache: Callable[[int], RowCache], room: int) -> None:
    """The disk may fill up in rows, between them, or at the file's end."""
    cache = make_cache(2**20)
    with files_of_at_most(room):
        left = iter(parts())
        shelf = cache.store("app/1", 3, RecordKind.FACTOR, left)
    assert (shelf.path, cache.used, list(left)) == ("", 0, [])
    assert cache.store("app/1", 3, RecordKind.FACTOR, parts()).path


def test_a_folder_that_is_gone_keeps_nothing(tmp_path: Path) -> None:
    cache, left = RowCache(str(tmp_path / "gone"), 2**20), iter(parts())
    assert cache.store("app/1", 3, RecordKind.FACTOR, left).path == ""
    assert list(left) == []


def test_values_that_a_full_disk_has_cut_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    cache = ValueCache("app", 2**20)
    head = len(f"{folder_of('app')} 1.0-2.v1\n")
    with files_of_at_most(head + 8):
        assert recalled(cache, 1.0)[0].tolist() == [1.0, 2.0]
        assert recalled(cache, 3.0) == (pytest.approx(np.array([3.0, 2.0])), True)
    cache.close()


@pytest.mark.parametrize("length", range(1, 9))
def test_values_that_found_no_room_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    # With one of these names, the truncated file would hold a whole number of values.
    cache, values = ValueCache("a" * length, 2**20), np.arange(5000.0)
    with files_of_at_most(8192):
        for _ in range(2):
            np.testing.assert_array_equal(cache.recall("a/1", "0-5000", "v1", lambda: values), values)
    cache.close()
