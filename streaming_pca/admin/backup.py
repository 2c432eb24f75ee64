"""Backup of a ledger and its jobs' states: export, verification and file format.

The file is a zip of ``manifest.json``, ``ledger.jsonl`` (the entries' exact bytes, in order, one per line),
``states/JOB`` (the bytes that the state topic contains in chunks) and, if the user is the unit of privacy,
``users/JOB`` (the concatenated parts of the state's table of users).

Digests in the manifest detect damage. The ledger's hash chains detect forgery, except for a forged end of a
chain: keep backups where they are read-only, and readable only by the topics' own readers.

How ledger and states are read while workers run: :mod:`streaming_pca.service.commit.snapshot`.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from streaming_pca import __version__
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.verify import check_states, verify_log
from streaming_pca.service.commit.log_reader import whole_log
from streaming_pca.service.commit.snapshot import read_snapshot, replay
from streaming_pca.service.commit.state_topic import summarise
from streaming_pca.service.topics.find import topic_id_of

_LARGEST_MANIFEST = 64 * 2**20
_MOST_UNFOLDED = 100
"""Largest ratio of the parts' size to the file's. A ledger contains hashes, and deflates to about a tenth."""
_LEDGER, _MANIFEST, _STATES, _USERS = "ledger.jsonl", "manifest.json", "states/", "users/"


class BackupNotVerified(UserError):
    """Backup or topics that the verifier rejects, with its problems."""

    exit_status = 1

    def __init__(self, what: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{what} is not verified: {len(self.problems)} problem(s)")


@dataclass(frozen=True)
class Backup:
    """Ledger of an input topic, with its jobs' last committed states and tables of users.

    ``entries``, up to offset ``ledger_end``, are the whole ledger, also for other incarnations of the topic.
    """

    topic: str
    topic_id: str
    created: str
    ledger_end: int
    entries: tuple[bytes, ...]
    states: dict[str, bytes]
    users: dict[str, bytes] = field(default_factory=dict)


def export_backup(kafka: KafkaSettings, topic: str, path: Path) -> Backup:
    _check_new(path)
    backup = take_backup(kafka, topic)
    write_backup(backup, path)
    return backup


def take_backup(kafka: KafkaSettings, topic: str) -> Backup:
    """Read and verify a ledger and its jobs' states while workers run."""
    topic_id = topic_id_of(kafka, topic)
    with closing(whole_log(kafka, f"{topic}.ledger")) as reader:
        read = read_snapshot(kafka, reader, topic_id, lambda found, _: found)
    backup = Backup(
        topic=topic,
        topic_id=topic_id,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ledger_end=read.end,
        entries=tuple(data for _, data in read.entries),
        states={name: s.data for name, s in sorted(read.states.items()) if s.data is not None},
        users={name: s.users for name, s in sorted(read.states.items()) if s.users is not None},
    )
    verified_ledger(backup, f"ledger {reader.topic!r}")
    return backup


def verified_ledger(backup: Backup, what: str = "the backup") -> Ledger:
    """Verify a backup, including that each state is its job's last; return its ledger."""
    problems = list(verify_log(enumerate(backup.entries), topic_id=backup.topic_id).problems)
    ledger = replay(backup.entries, Ledger(backup.topic_id))
    states = {name: summarise(data, backup.users.get(name)) for name, data in backup.states.items()}
    problems += [
        f"job {name!r}: {wrong}" for name, wrong in check_states(states, ledger.jobs, backup.topic_id).items()
    ]
    if problems:
        raise BackupNotVerified(what, problems)
    return ledger


class _Part(BaseModel, frozen=True, extra="forbid"):
    size: int
    sha256: str


class _Manifest(BaseModel, frozen=True, extra="forbid"):
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


def write_backup(backup: Backup, path: Path) -> None:
    """Write a new file atomically, readable only by its owner."""
    _check_new(path)
    ledger = b"".join(entry + b"\n" for entry in backup.entries)
    manifest = _Manifest(
        program=__version__,
        created=backup.created,
        topic=backup.topic,
        topic_id=backup.topic_id,
        ledger_end=backup.ledger_end,
        entries=len(backup.entries),
        ledger=_part(ledger),
        states={name: _part(data) for name, data in backup.states.items()},
        users={name: _part(data) for name, data in backup.users.items()},
    )
    # Older versions do not know users, but can read a backup without them.
    left_out = None if backup.users else {"users"}
    parts = {_MANIFEST: manifest.model_dump_json(indent=1, exclude=left_out).encode(), _LEDGER: ledger}
    parts |= {f"{_STATES}{name}": data for name, data in backup.states.items()}
    parts |= {f"{_USERS}{name}": data for name, data in backup.users.items()}
    try:
        # Created with mode 0600, in the same directory, so that the rename is atomic.
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, data in parts.items():
                        # States consist mostly of noise and hashes, which do not compress.
                        dense = name.startswith((_STATES, _USERS))
                        method = zipfile.ZIP_STORED if dense else zipfile.ZIP_DEFLATED
                        archive.writestr(name, data, compress_type=method)
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
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def _check_new(path: Path) -> None:
    # Not path.exists(), which raises without permission and overlooks a broken link.
    if os.path.lexists(path):
        raise UserError(f"{path}: already exists: name a new file")


def _part(data: bytes) -> _Part:
    return _Part(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_backup(path: Path) -> Backup:
    """Read a backup; raise UserError for other or damaged files."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
                raise UserError(f"{path}: is not packed as `streaming-pca export` packs it")
            if sum(m.file_size for m in members) > _MOST_UNFOLDED * path.stat().st_size:
                raise UserError(f"{path}: would decompress to more than {_MOST_UNFOLDED} times its size")
            if archive.getinfo(_MANIFEST).file_size > _LARGEST_MANIFEST:
                raise UserError(f"{path}: its manifest is too large")
            manifest = _Manifest.model_validate_json(archive.read(_MANIFEST))
            wanted = {_LEDGER: manifest.ledger}
            wanted |= {f"{_STATES}{name}": part for name, part in manifest.states.items()}
            wanted |= {f"{_USERS}{name}": part for name, part in manifest.users.items()}
            if sorted(archive.namelist()) != sorted([_MANIFEST, *wanted]):
                raise UserError(f"{path}: contains other parts than its manifest lists")
            parts = {name: _read_part(archive, path, name, part) for name, part in wanted.items()}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: its manifest is not in this program's format, version 1: {where}: {first['msg']}"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError, struct.error):
        raise UserError(f"{path}: is not a backup made by `streaming-pca export`, or is damaged") from None
    entries = tuple(parts[_LEDGER].split(b"\n")[:-1])
    if len(entries) != manifest.entries:
        raise UserError(f"{path}: has {len(entries)} entries, but its manifest records {manifest.entries}")
    return Backup(
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        created=manifest.created,
        ledger_end=manifest.ledger_end,
        entries=entries,
        states={name: parts[f"{_STATES}{name}"] for name in manifest.states},
        users={name: parts[f"{_USERS}{name}"] for name in manifest.users},
    )


def _read_part(archive: zipfile.ZipFile, path: Path, name: str, part: _Part) -> bytes:
    # Checked before unpacking, because a wrong size means a damaged part.
    if archive.getinfo(name).file_size != part.size:
        raise UserError(f"{path}: {name} is damaged: its size is not the manifest's")
    data = archive.read(name)
    if _part(data) != part:
        raise UserError(f"{path}: {name} is damaged: its digest is not the manifest's")
    return data
