"""The file of a copy of a ledger and its states.

A zip of ``manifest.json``, ``ledger.jsonl`` (the entries' exact bytes, in
order, one a line), ``states/JOB`` (the bytes that the state topic holds in
chunks) and, where the user is the unit of privacy, ``users/JOB`` (the parts of
the table that the state names, one after the other). Digests in the manifest
find damage. They do not find forgery, which the ledger's hash chains do, except
for a forged end of a chain: keep a copy where the topics' own readers may read
it, and nobody may write.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from streaming_pca import __version__

__all__ = ["Copy", "CopyError", "check_new", "read_copy", "write_copy"]

_LARGEST_MANIFEST = 64 * 2**20
_LEDGER, _MANIFEST, _STATES, _USERS = "ledger.jsonl", "manifest.json", "states/", "users/"


class CopyError(Exception):
    """The file cannot be written or read, or is no copy of what is asked for; one line."""


@dataclass(frozen=True)
class Copy:
    """What a copy holds.

    Attributes
    ----------
    topic, topic_id : str
        The input topic, and which life of it.
    created : str
        ISO 8601, UTC.
    ledger_end : int
        The offset of the ledger topic that the copy goes up to.
    entries : tuple of bytes
        All of the ledger, other lives of the topic included.
    states : dict of str to bytes
        The last committed state of each job that has one.
    users : dict of str to bytes
        The table of users of each job whose state names one.
    """

    topic: str
    topic_id: str
    created: str
    ledger_end: int
    entries: tuple[bytes, ...]
    states: dict[str, bytes]
    users: dict[str, bytes] = field(default_factory=dict)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Part(_Frozen):
    size: int
    sha256: str


class _Manifest(_Frozen):
    format: Literal["streaming-pca copy"] = "streaming-pca copy"
    version: Literal[1] = 1
    program: str
    created: str
    topic: str
    topic_id: str
    ledger_end: int
    entries: int
    ledger: _Part
    states: dict[str, _Part]
    users: dict[str, _Part] = {}


def write_copy(copy: Copy, path: Path) -> None:
    """Write a copy to a new file that only its owner may read; all of it, or no file."""
    check_new(path)
    ledger = b"".join(entry + b"\n" for entry in copy.entries)
    manifest = _Manifest(
        program=__version__,
        created=copy.created,
        topic=copy.topic,
        topic_id=copy.topic_id,
        ledger_end=copy.ledger_end,
        entries=len(copy.entries),
        ledger=_part(ledger),
        states={name: _part(data) for name, data in copy.states.items()},
        users={name: _part(data) for name, data in copy.users.items()},
    )
    # A copy that needs no newer program can be read by an older one.
    unsaid = None if copy.users else {"users"}
    parts = {_MANIFEST: manifest.model_dump_json(indent=1, exclude=unsaid).encode(), _LEDGER: ledger}
    parts |= {f"{_STATES}{name}": data for name, data in copy.states.items()}
    parts |= {f"{_USERS}{name}": data for name, data in copy.users.items()}
    try:
        # Made with mode 0600; beside the file, so that the rename is atomic.
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, data in parts.items():
                        # What a state holds is noise, mostly, or hashes, and does not shrink.
                        dense = name.startswith((_STATES, _USERS))
                        way = zipfile.ZIP_STORED if dense else zipfile.ZIP_DEFLATED
                        archive.writestr(name, data, compress_type=way)
                file.flush()
                os.fsync(file.fileno())
            os.rename(scratch, path)
        except BaseException:
            os.unlink(scratch)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CopyError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_new(path: Path) -> None:
    """Refuse to write over a file."""
    # Not path.exists(), which raises where it may not look, and overlooks a broken link.
    if os.path.lexists(path):
        raise CopyError(f"{path}: is there already: name a new file")


def _part(data: bytes) -> _Part:
    return _Part(size=len(data), sha256=_digest(data))


def read_copy(path: Path) -> Copy:
    """Read a copy; CopyError if the file is none, or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > _LARGEST_MANIFEST:
                raise CopyError(f"{path}: its manifest is too large")
            manifest = _Manifest.model_validate_json(archive.read(_MANIFEST))
            wanted = {_LEDGER: manifest.ledger}
            wanted |= {f"{_STATES}{name}": part for name, part in manifest.states.items()}
            wanted |= {f"{_USERS}{name}": part for name, part in manifest.users.items()}
            if sorted(archive.namelist()) != sorted([_MANIFEST, *wanted]):
                raise CopyError(f"{path}: holds other parts than its manifest names")
            parts = {name: _read_part(archive, path, name, part) for name, part in wanted.items()}
    except OSError as error:
        raise CopyError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CopyError(
            f"{path}: its manifest is not of this program's version 1: {where}: {first['msg']}"
        ) from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ):
        raise CopyError(f"{path}: is no copy made by `streaming-pca export`, or is damaged") from None
    entries = tuple(parts[_LEDGER].split(b"\n")[:-1])
    if len(entries) != manifest.entries:
        raise CopyError(f"{path}: has {len(entries)} entries, its manifest says {manifest.entries}")
    return Copy(
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        created=manifest.created,
        ledger_end=manifest.ledger_end,
        entries=entries,
        states={name: parts[f"{_STATES}{name}"] for name in manifest.states},
        users={name: parts[f"{_USERS}{name}"] for name in manifest.users},
    )


def _read_part(archive: zipfile.ZipFile, path: Path, name: str, part: _Part) -> bytes:
    # The size first: what is compressed can unfold to anything.
    if archive.getinfo(name).file_size != part.size:
        raise CopyError(f"{path}: {name} is damaged: its size is not the manifest's")
    data = archive.read(name)
    if _digest(data) != part.sha256:
        raise CopyError(f"{path}: {name} is damaged: its digest is not the manifest's")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
