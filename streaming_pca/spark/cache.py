"""Decoded rows of a batch, cached by the executors between the passes of an estimator.

Each Python worker writes the rows of a segment to an unnamed file in its executor's local folder. The
file stays in memory as far as there is room, otherwise on disk. It disappears with the process, however
that ends. Other workers of the machine open it through ``/proc``.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind

_ALIGNED = 64  # alignment of arrays in a file, in bytes
_LENGTH = struct.Struct("<q")


@dataclass(frozen=True)
class Shelf:
    """Location of a segment's rows: a file of one process on one machine, with the segment's name.

    The path is valid while the process lives; it is "" if the rows were not cached.
    """

    name: str
    host: str
    path: str


class CachedRows:
    """Rows of a segment in a mapped file, as consecutive batches."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        """Map a file; raise LookupError if it belongs to another segment, or is incomplete."""
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise LookupError(name)
        # Shared and writable because kernels are compiled for writable arrays; none of them writes.
        self._pages = mmap.mmap(file.fileno(), size)
        (at,) = _LENGTH.unpack(self._pages[-_LENGTH.size :])
        if not 0 <= at < size:
            raise LookupError(name)
        index: dict[str, Any] = json.loads(self._pages[at : -_LENGTH.size])
        if index["name"] != name:
            raise LookupError(name)
        kind, width = RecordKind(index["kind"]), index["width"]
        self.parts = [
            ArrayBatch(
                self._array(dtype, rows_at, n_rows * width).reshape(n_rows, width),
                self._array("int64", starts_at, n_records + 1),
                kind,
            )
            for dtype, rows_at, n_rows, starts_at, n_records in index["parts"]
        ]

    def _array(self, dtype: str, at: int, count: int) -> NDArray[Any]:
        return np.frombuffer(self._pages, dtype=dtype, count=count, offset=at)


class RowCache:
    """Files of one process, with at most ``limit`` bytes in total."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder, self.limit = folder, limit
        self._files: dict[str, tuple[IO[bytes], int]] = {}

    @property
    def used(self) -> int:
        return sum(size for _, size in self._files.values())

    @property
    def names(self) -> set[str]:
        return set(self._files)

    def store(self, name: str, width: int, kind: RecordKind, parts: Iterable[ArrayBatch]) -> Shelf:
        """Write a segment's parts as they arrive; if they do not fit, read on but cache nothing."""
        self.drop([name])
        index, at = [], 0
        with contextlib.ExitStack() as failed:
            file: IO[bytes] | None = None
            # Suppress only errors of writing: errors raised by ``parts`` come from their source.
            with contextlib.suppress(OSError):
                # Unbuffered: on a full disk, `close` would try to write the buffer again and fail.
                file = failed.enter_context(tempfile.TemporaryFile(dir=self._folder, buffering=0))
            for part in parts:
                if file is None:
                    continue
                block = part.packed()
                try:
                    if self.used + at + block.rows.nbytes + block.starts.nbytes > self.limit:
                        raise OSError("the cache is full")
                    rows_at, starts_at = at, _write(file, at, block.rows)
                    at = _write(file, starts_at, block.starts)
                    index.append((block.rows.dtype.name, rows_at, len(block.rows), starts_at, len(block)))
                except OSError:
                    failed.close()
                    file = None
            end = json.dumps({"name": name, "kind": str(kind), "width": width, "parts": index}).encode()
            with contextlib.suppress(OSError):
                if file is not None:
                    _write_all(file, end + _LENGTH.pack(at))
                    failed.pop_all()
                    self._files[name] = (file, at + len(end) + _LENGTH.size)
                    return Shelf(name, socket.gethostname(), f"/proc/{os.getpid()}/fd/{file.fileno()}")
        return Shelf(name, "", "")

    def open(self, shelf: Shelf) -> CachedRows:
        """Map a segment's rows, of any process of this machine; raise LookupError if they are missing."""
        if shelf.name in self._files:
            return CachedRows(self._files[shelf.name][0], shelf.name)
        with self._file(shelf) as file:
            return CachedRows(file, shelf.name)

    @staticmethod
    @contextlib.contextmanager
    def _file(shelf: Shelf) -> Iterator[IO[bytes]]:
        """Open a file of a process on this machine; raise LookupError on any failure."""
        if not shelf.path or shelf.host != socket.gethostname():
            raise LookupError(shelf.name)
        try:
            with _opened(shelf.path) as file:
                yield file
        except (OSError, ValueError, KeyError):
            raise LookupError(shelf.name) from None

    def drop(self, names: Iterable[str]) -> None:
        """Free the files of segments; ignore segments without files."""
        for name in names:
            if name in self._files:
                self._files.pop(name)[0].close()

    def drop_shelves(self, shelves: Sequence[Shelf]) -> None:
        """Free files of this and other processes of the machine."""
        for shelf in shelves:
            if shelf.name in self._files:
                self.drop([shelf.name])
                continue
            with contextlib.suppress(LookupError), self._file(shelf) as file:
                CachedRows(file, shelf.name)
                # The system kills a late reader of a truncated file, instead of returning zeros. Truncate by
                # descriptor: the path may belong to another file by now.
                os.ftruncate(file.fileno(), 0)


class ValueCache:
    """Values of records, in files that all workers of a machine find by name.

    A name is a link in the session's folder to the open file of the process that computed the values. Values
    beyond ``limit`` bytes of this process's files are recomputed for each sum.
    """

    def __init__(self, session: str, limit: int) -> None:
        self._folder = folder_of(session)
        self._limit, self._used = limit, 0
        self._files: dict[str, dict[str, tuple[IO[bytes], int]]] = {}
        with contextlib.suppress(OSError):
            os.mkdir(self._folder, 0o700)
        try:
            found = os.lstat(self._folder)
            # Another user could have created it first.
            self._shared = (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.getuid(), 0o700)
        except OSError:
            self._shared = False

    @property
    def segments(self) -> set[str]:
        return set(self._files)

    def recall(
        self, segment: str, part: str, values: str, compute: Callable[[], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Return the values of a part of a segment; compute them unless cached on this machine."""
        name = f"{segment.rpartition('/')[2]}.{part}.{values}"
        link = os.path.join(self._folder, name)
        head = f"{self._folder} {name}\n".encode()
        if self._shared:
            with contextlib.suppress(OSError), _opened(link) as file:
                # The process of a link may have ended, and another may have its PID.
                if file.read(len(head)) == head:
                    return np.frombuffer(file.read(), dtype=np.float64).copy()
        found = compute()
        if self._shared and self._used + found.nbytes <= self._limit:
            # The disk may be full, or a speculative copy of this task was first: its values are the same.
            with contextlib.suppress(OSError):
                kept = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                try:
                    _write_all(kept, head + found.tobytes())
                except OSError:
                    kept.close()
                    raise
                self._files.setdefault(segment, {})[link] = (kept, found.nbytes)
                self._used += found.nbytes
                os.symlink(f"/proc/{os.getpid()}/fd/{kept.fileno()}", link)
        return found

    def drop(self, segments: Iterable[str]) -> None:
        for segment in segments:
            for link, (file, size) in self._files.pop(segment, {}).items():
                with contextlib.suppress(OSError):
                    os.unlink(link)
                file.close()
                self._used -= size

    def close(self) -> None:
        """Free all values of this process; remove the folder if it is then empty."""
        self.drop(list(self._files))
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


def _opened(path: str) -> IO[bytes]:
    """Open a regular file for reading and writing; raise OSError for others, without blocking."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_NONBLOCK), "r+b")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def folder_of(session: str) -> str:
    """Return the folder of a session's links on this machine."""
    parent = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return os.path.join(parent, f"streaming-pca-{session}")


def _write(file: IO[bytes], at: int, array: NDArray[Any]) -> int:
    """Write an array at ``at``; return the next aligned position."""
    data = np.ascontiguousarray(array)
    _write_all(file, data.reshape(-1).view(np.uint8).data)
    rest = -(at + data.nbytes) % _ALIGNED
    _write_all(file, b"\0" * rest)
    return at + data.nbytes + rest


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all bytes to an unbuffered file: on a nearly full disk, writes can be partial."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
