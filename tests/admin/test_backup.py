"""The file of a backup, and its checks: no broker is needed."""

from __future__ import annotations

import hashlib
import json
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca.admin.backup import Backup, BackupNotVerified, read_backup, verified_ledger, write_backup
from streaming_pca.cli.common import fail
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Cap,
    Charged,
    Committed,
    LedgerEntry,
    OffsetRange,
    OffsetSpan,
    Opened,
    Paused,
    Released,
    Reserved,
    encode_entry,
    entry_hash,
)
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.state_topic import Checkpoint, decode_checkpoint, encode_checkpoint
from streaming_pca.service.commit.user_log import MalformedState, UserLog
from tests.config.refusals import refusal

Capture = pytest.CaptureFixture[str]
ID, CREATED = "9bd05b8e-6e39-43a4-9d57-3e4f5b6ba6a2", "2026-07-01T00:00:00.000+00:00"
CHARGE = Charge(epsilon="1", delta="1e-6")
RELEASE = hashlib.sha256(b"{}").hexdigest()
PROMISE = {"epsilon": 1.0, "delta": 1e-6, "privacy_unit": "message"}
MECHANISM = {"mechanism": "private-oja", "sigma_over_sensitivity": 9.0}


def state_of(job: str, batch: int, **changes: Any) -> tuple[bytes, str]:
    values = {"topic_id": ID, "stream": job, "batch": batch, "positions": {0: 100 * batch}, "salt": b"s" * 32}
    values |= {"state": bytes(range(256)) * 40, "release": b"{}"}
    return encode_checkpoint(Checkpoint(**(values | changes)))


def entries_of(job: str, previous: str, batches: int, **changes: Any) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []

    def add(kind: type, **more: Any) -> None:
        nonlocal previous
        entry = kind(topic_id=ID, job=job, previous=previous, **more)
        found.append(entry)
        previous = entry_hash(entry)

    for batch in range(1, batches + 1):
        span = OffsetRange(partition=0, start=100 * (batch - 1), end=100 * batch, count=100)
        add(Reserved, batch=batch, ranges=(span,), promise=PROMISE, parameters=MECHANISM, charge=CHARGE)
        add(Committed, batch=batch, state_digest=state_of(job, batch, **changes)[1])
        add(Released, batch=batch, release_digest=RELEASE)
    return found


def made_backup() -> Backup:
    """Build streams of two batches, one, and one abandoned; and a charge for a release elsewhere."""
    opened = Opened(topic_id=ID, topic="in", cap=Cap(epsilon="4", delta="1e-5"))
    first = entry_hash(opened)
    entries = [opened, *entries_of("a", first, 2), *entries_of("b", first, 1)]
    reserved = entries_of("c", first, 1)[0]
    abandoned = Abandoned(topic_id=ID, job="c", previous=entry_hash(reserved), batch=1, reason="x")
    paused = Paused(topic_id=ID, job="c", previous=entry_hash(abandoned), reason="for a while")
    span = OffsetSpan(partition=0, start=0, end=50)
    charged = Charged(topic_id=ID, job="d", previous=first, ranges=(span,), charge=CHARGE, reason="a report")
    entries += [reserved, abandoned, paused, charged]
    states = {"a": state_of("a", 2)[0], "b": state_of("b", 1)[0]}
    return Backup("in", ID, CREATED, 31, tuple(map(encode_entry, entries)), states)


def test_a_copy_comes_back_byte_for_byte_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "copy.zip"
    write_backup(made_backup(), path)
    assert read_backup(path) == made_backup()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["manifest.json", "ledger.jsonl", "states/a", "states/b"]
        lines = archive.read("ledger.jsonl").split(b"\n")
        assert tuple(lines[:-1]) == made_backup().entries
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest["topic_id"] == ID
        # Programs that do not know users can read a copy without any.
        assert "users" not in manifest


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "copy.zip"
    path.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        write_backup(made_backup(), path)
    assert path.read_text() == "mine"


def test_a_copy_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file"):
        write_backup(made_backup(), tmp_path / "nowhere" / "copy.zip")
    whole = made_backup()
    broken = replace(whole, states=whole.states | {"a": "no bytes"})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        write_backup(broken, tmp_path / "copy.zip")
    assert list(tmp_path.iterdir()) == []


Change = Callable[[dict[str, bytes]], object]


def rewritten(folder: Path, change: Change, mend: bool = False, **how: Any) -> Path:
    """Write a copy, and change its parts; with ``mend``, make the manifest match."""
    path = folder / "copy.zip"
    write_backup(made_backup(), path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    if mend:
        manifest = json.loads(parts["manifest.json"])
        manifest["entries"] = parts["ledger.jsonl"].count(b"\n")
        manifest["ledger"] = part_of(parts["ledger.jsonl"])
        states = [name for name in parts if name.startswith("states/")]
        manifest["states"] = {name.removeprefix("states/"): part_of(parts[name]) for name in states}
        parts["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w", **how) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def part_of(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def line(number: int, new: Callable[[bytes], bytes | None]) -> Change:
    """Change a line of the ledger, or leave it out."""

    def change(parts: dict[str, bytes]) -> None:
        lines: list[bytes | None] = [*parts["ledger.jsonl"].split(b"\n")]
        lines[number] = new(lines[number] or b"")
        parts["ledger.jsonl"] = b"\n".join(each for each in lines if each is not None)

    return change


def without(number: int) -> Change:
    return line(number, lambda _: None)


def flip(name: str, at: int) -> Change:
    return lambda parts: parts.update({name: flipped(parts[name], at)})


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


def put(name: str, data: bytes) -> Change:
    return lambda parts: parts.update({name: data})


def drop(name: str) -> Change:
    return lambda parts: parts.pop(name)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (flip("ledger.jsonl", 500), "ledger.jsonl is damaged"),
        (flip("states/a", 5000), "states/a is damaged"),
        (put("states/b", b"short"), "states/b is damaged: its size"),
        (drop("states/b"), "other parts than its manifest lists"),
        (put("more", b"x"), "other parts than its manifest lists"),
        (drop("manifest.json"), "is not a backup made by `streaming-pca export`, or is damaged"),
        (put("manifest.json", b"{}"), "its manifest is not in this program's format, version 1: program"),
        (put("manifest.json", b"\x00"), "its manifest is not in this program's format, version 1"),
        (line(0, lambda _: b""), "ledger.jsonl is damaged"),
    ],
)
def test_damage_is_found_before_anything_is_looked_at(tmp_path: Path, change: Change, reported: str) -> None:
    assert reported in refusal(UserError, read_backup, rewritten(tmp_path, change))


def test_damage_to_the_file_itself_is_found_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "copy.zip"
    write_backup(made_backup(), path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with suppress(UserError):  # except for an insignificant byte, such as a time of day
            assert read_backup(path) == made_backup(), at
        path.write_bytes(whole[:at])
        with pytest.raises(UserError):
            read_backup(path)


# -- with a table of users ----------------------------------------------------------


def copy_with_users() -> Backup:
    """Build a stream of one batch of three users."""
    log, users = UserLog(1), np.arange(6, dtype=np.uint64).reshape(3, 2)
    step = log.step(users, log.table.admit(users))
    opened = Opened(topic_id=ID, topic="in", cap=Cap(epsilon="4", delta="1e-5"))
    entries = [opened, *entries_of("u", entry_hash(opened), 1, users=step.index)]
    states, tables = {"u": state_of("u", 1, users=step.index)[0]}, {"u": step.index.join(step.parts)}
    return Backup("in", ID, CREATED, 7, tuple(map(encode_entry, entries)), states, tables)


def test_a_table_of_users_comes_back_with_its_state(tmp_path: Path) -> None:
    path, copy = tmp_path / "copy.zip", copy_with_users()
    write_backup(copy, path)
    assert read_backup(path) == copy
    assert set(verified_ledger(copy).jobs) == {"u"}
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist()[-1] == "users/u"
        assert "users" in json.loads(archive.read("manifest.json"))


def test_a_state_without_the_table_that_it_names_is_not_verified() -> None:
    whole = copy_with_users()
    table = whole.users["u"]
    for users, reported in (
        ({}, "job 'u': its table of users is missing"),
        ({"u": table[:-1]}, "job 'u': the size of the table of users differs from the one in its state"),
        ({"u": flipped(table, 0)}, "job 'u': users.delta.1 of the table of users differs"),
        ({"u": flipped(table, -1)}, "job 'u': users.shard.1 of the table of users differs"),
    ):
        with pytest.raises(BackupNotVerified) as refused:
            verified_ledger(replace(whole, users=users))
        (problem,) = refused.value.problems
        assert reported in problem
    with pytest.raises(BackupNotVerified) as refused:
        verified_ledger(replace(made_backup(), users={"a": table}))
    assert refused.value.problems == ("job 'a': a table of users that its state does not name",)


def test_a_file_that_is_not_there_or_no_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_backup(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(UserError, match="is not a backup made by"):
        read_backup(tmp_path / "text.zip")


def test_a_part_that_unfolds_to_more_than_it_should_is_not_unfolded(tmp_path: Path) -> None:
    for size, reported in (
        (2**17, "ledger.jsonl is damaged: its size"),
        (2**24, "would decompress to more than 100 times its size"),
    ):
        path = rewritten(tmp_path, put("ledger.jsonl", bytes(size)), compression=zipfile.ZIP_DEFLATED)
        assert reported in refusal(UserError, read_backup, path)
        path.unlink()


# -- with a matching manifest -------------------------------------------------------

BREAKS = "the hash chain of job 'a' breaks"


def test_a_sound_copy_is_verified() -> None:
    ledger = verified_ledger(made_backup())
    assert {name: job.last_committed for name, job in ledger.jobs.items()} == {"a": 2, "b": 1, "c": 0, "d": 0}


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        # A smaller charge, for an entry that other entries follow.
        (line(1, lambda x: x.replace(b'"epsilon":"1"', b'"epsilon":"0"')), BREAKS),
        (line(3, lambda x: x.replace(RELEASE[:4].encode(), b"1111", 1)), BREAKS),
        (without(2), BREAKS),
        (without(0), "never opened"),
        (line(0, lambda x: x.replace(b'"4"', b'"9"')), BREAKS),
        (line(4, lambda x: x + b" "), "not a ledger entry"),
        (drop("states/a"), "job 'a': the state that the ledger committed with batch"),
        (put("states/a", state_of("a", 1)[0]), "job 'a': the state differs from the one committed"),
        (flip("states/b", 3000), "job 'b': the state differs from the one committed with batch 1"),
        (put("states/b", b"\x00\x00\x00\xff{"), "job 'b': state message cannot be read"),
        (put("states/c", state_of("c", 1)[0]), "job 'c': it has a state, but no batch was committed"),
        (put("states/b", state_of("a", 2)[0]), "job 'b': the state differs from the one"),
    ],
)
def test_a_copy_that_was_changed_with_its_manifest_is_not_verified(
    tmp_path: Path, change: Change, reported: str
) -> None:
    copy = read_backup(rewritten(tmp_path, change, mend=True))
    with pytest.raises(BackupNotVerified) as refused:
        verified_ledger(copy)
    assert any(reported in problem for problem in refused.value.problems), refused.value.problems
    assert all("\n" not in problem for problem in refused.value.problems)


def test_a_terminal_obeys_no_name_of_a_foreign_file(tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "copy.zip"
    with zipfile.ZipFile(path, "w") as archive:
        part = {"size": 1, "sha256": ""}
        manifest = {"program": "", "created": "", "topic": "", "topic_id": "", "ledger_end": 0, "entries": 0}
        empty = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
        manifest |= {"ledger": empty, "states": {"\x1b[2J\u202e": part}}
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("ledger.jsonl", b"")
        archive.writestr("states/\x1b[2J\u202e", b"")
    with pytest.raises(UserError) as refused:
        read_backup(path)
    assert "\x1b" in str(refused.value)
    with pytest.raises(SystemExit):
        fail(refused.value, 2)
    shown = capfd.readouterr().err.removesuffix("\n")
    assert shown.startswith("error: ")
    assert shown.isprintable()


def test_a_state_of_a_foreign_version_is_refused_in_a_short_line() -> None:
    header = json.dumps({"version": "x" * 100_000}).encode()
    with pytest.raises(MalformedState, match="update streaming-pca") as refused:
        decode_checkpoint(len(header).to_bytes(4, "big") + header)
    assert len(str(refused.value)) < 300
