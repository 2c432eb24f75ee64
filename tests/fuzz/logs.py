"""Targets of data that the service reads back: ledger, states, releases, backups, models."""

from __future__ import annotations

import json
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca import PrivatePCA
from streaming_pca.admin.backup import (
    BackupNotVerified,
    read_backup,
    verified_ledger,
    write_backup,
)
from streaming_pca.client.releases import NotARelease, read_release
from streaming_pca.data.release import Release
from streaming_pca.errors import UserError
from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.privacy.ledger.entries import MalformedEntry, decode_entry, encode_entry
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.users import Part, UserIndex, UserShard
from streaming_pca.service.commit.state_topic import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    summarise,
)
from streaming_pca.service.commit.user_log import MalformedState, UserLog
from tests.admin.test_backup import ID, made_backup
from tests.data.test_release import plain
from tests.estimators.suite import EVERY_CASE, make, records, run
from tests.fuzz.mutations import with_zip_parts, zip_parts
from tests.fuzz.records import check_line
from tests.fuzz.target import MIB, Broken, target
from tests.privacy.ledger.test_entries import RESERVED

# -- the ledger -----------------------------------------------------------------------------------


def _entry_seeds() -> Sequence[bytes]:
    made = [*made_backup().entries, encode_entry(RESERVED)]
    user = RESERVED.model_copy(update={"version": 2, "promise": {"privacy_unit": "user"}})
    made.append(encode_entry(user))
    return [*made, b'{"kind":' * 50_000, made[1][:-1] + b',"kind":"RESERVED"}']


@target("ledger-entry", _entry_seeds, times=64, inputs=2000)
def ledger_entry(data: bytes) -> None:
    """Decode an entry, and replay it after the first entries of a ledger."""
    try:
        entry = decode_entry(data)
    except MalformedEntry as error:
        check_line(str(error))
        return
    if encode_entry(entry) != data:
        raise Broken("an entry has two spellings")
    ledger = Ledger(ID)
    for each in made_backup().entries[:3]:
        ledger.apply(decode_entry(each))
    ledger.apply(entry)
    verify_log(enumerate([*made_backup().entries[:3], data]), topic_id=ID)


# -- states ---------------------------------------------------------------------------------------


@cache
def _table() -> tuple[UserLog, dict[str, bytes]]:
    log, parts = UserLog(2), {}
    rng = np.random.default_rng(0)
    for _ in range(3):
        users = rng.integers(1, 2**63, (20, 2), dtype=np.uint64)
        step = log.step(users, log.table.admit(users))
        parts |= step.parts
        log.follow(step)
    return log, parts


def _checkpoint_seeds() -> Sequence[bytes]:
    log, _ = _table()
    facts = {"topic_id": ID, "stream": "s", "batch": 3, "positions": {0: 5, 1: 7}, "salt": b"s" * 32}
    plain_one = Checkpoint(**facts, state=b"state" * 10, release=b"{}", epochs={0: 3})  # type: ignore[arg-type]
    users = Checkpoint(**facts, state=b"s", release=b"{}", users=log.index)  # type: ignore[arg-type]
    bomb = b'{"a":' * 100_000
    huge = json.dumps({"topic_id": 1, "stream": [], "batch": "x", "positions": {"1": 1e308}}).encode()
    return [
        encode_checkpoint(plain_one)[0],
        encode_checkpoint(users)[0],
        len(bomb).to_bytes(4, "big") + bomb,
        (2**32 - 1).to_bytes(4, "big") + bomb[:50],
        len(huge).to_bytes(4, "big") + huge,
        b"",
    ]


@target("checkpoint", _checkpoint_seeds, times=64, inputs=2000)
def checkpoint(data: bytes) -> None:
    """Decode a state's bytes."""
    try:
        found, digest = decode_checkpoint(data)
    except MalformedState as error:
        check_line(str(error))
        if summarise(data, None).problem == "":
            raise Broken("a damaged state is called whole") from None
        return
    summarise(data, b"")
    for value, kind in ((found.batch, int), (found.stream, str), (found.topic_id, str)):
        if type(value) is not kind:
            raise Broken(f"{value!r} is no {kind.__name__}")
    if not all(0 <= p < 2**31 and 0 <= o < 2**63 for p, o in found.positions.items()) or found.batch < 1:
        raise Broken("positions or batch that no stream has")
    if len(digest) != 64:
        raise Broken("no digest")


def _shard_seeds() -> Sequence[bytes]:
    _, parts = _table()
    return [*parts.values(), b"", parts["users.shard.1"] + bytes(5)]


@target("user-shard", _shard_seeds, times=64, inputs=300)
def user_shard(data: bytes) -> None:
    """Read a part of the table of users, alone and within a table."""
    for shard in (0, 1, 63):
        with suppress(ValueError):
            again = UserShard.from_bytes(shard, data, 2)
            if again.to_bytes(shard) != data:
                raise Broken("a shard has two spellings")
    log, parts = _table()
    assert log.index is not None
    name = sorted(parts)[len(data) % len(parts)]
    kind, slot = name.split(".")[1:]
    reported = {"deltas": dict(log.index.deltas), "shards": dict(log.index.shards)}
    reported[kind + "s"][int(slot)] = Part.of(data)
    index = UserIndex(log.index.key, log.index.commits, **reported)
    with suppress(MalformedState):
        UserLog.rebuilt(2, index, parts | {name: data})


CASES = list(dict(reversed(EVERY_CASE)).items())
"""A case to build each estimator."""


@cache
def _estimator(i: int) -> Any:
    name, how = CASES[i % len(CASES)]
    return make(name, how)


def _state_seeds() -> Sequence[bytes]:
    seeds = []
    for i in range(len(CASES)):
        estimator = _estimator(i)
        for batches in (0, 1):
            data = encode_state(run(estimator, [records(estimator, 80, n) for n in range(batches)]))
            seeds.append(bytes([i]) + data)
    parts = zip_parts(seeds[1][1:])
    assert parts is not None
    name = next(n for n in parts if n != "__plain__.npy")
    bomb = parts | {name: parts[name][:128] + bytes(200 * MIB)}
    many = parts | {f"{name}{n}": parts[name] for n in range(200)}
    seeds.append(seeds[1][:1] + with_zip_parts(bomb, zipfile.ZIP_DEFLATED))
    seeds.append(seeds[1][:1] + with_zip_parts(many))
    nested = parts | {"__plain__.npy": _text(b"[" * 100_000)}
    seeds.append(seeds[1][:1] + with_zip_parts(nested))
    huge = parts | {name: _header("<f8", "(1099511627776,)")}
    seeds.append(seeds[1][:1] + with_zip_parts(huge))
    return seeds


def _header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _text(data: bytes) -> bytes:
    return _header("|u1", f"({len(data)},)") + data


@target("estimator-state", _state_seeds, times=64, allowance=32 * MIB, inputs=200)
def estimator_state(data: bytes) -> None:
    """Decode the state of an estimator, which the first byte selects."""
    if not data:
        return
    estimator = _estimator(data[0])
    try:
        state = decode_fitting_state(estimator, data[1:])
    except (TypeError, ValueError, KeyError):
        return
    if not np.isfinite(estimator.plan(state).count):
        raise Broken("no plan")


# -- models ---------------------------------------------------------------------------------------


@cache
def _model() -> PrivatePCA:
    x = np.random.default_rng(0).standard_normal((300, 5)) * np.linspace(3, 0.5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrivatePCA(2, epsilon=8.0, delta=1e-5, random_state=0).fit(x)


def _model_seeds() -> Sequence[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.npz")
        _model().save(path)
        good = path.read_bytes()
    parts = zip_parts(good)
    assert parts is not None
    bombs = [with_zip_parts(parts, zipfile.ZIP_DEFLATED)]
    bombs.append(with_zip_parts(parts | {"model.npy": _text(b"[" * 100_000)}))
    bombs.append(with_zip_parts(parts | {"model.npy": _header("|u1", "(1099511627776,)")}))
    state = zip_parts(parts["state.npy"][128:])
    if state is not None:
        name = next(n for n in state if n != "__plain__.npy")
        inner = with_zip_parts(state | {name: state[name][:128] + bytes(200 * MIB)}, zipfile.ZIP_DEFLATED)
        bombs.append(with_zip_parts(parts | {"state.npy": _text(inner)}))
    header = json.loads(parts["model.npy"][128:])
    for n in (10**5, 10**9):
        reported = header | {"n_features_in": n}
        bombs.append(with_zip_parts(parts | {"model.npy": _text(json.dumps(reported).encode())}))
    return [good, *bombs]


@target("model-file", _model_seeds, times=64, allowance=64 * MIB, inputs=600)
def model_file(data: bytes) -> None:
    """Load a saved model."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        file.write(data)
        file.flush()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = PrivatePCA.load(file.name)
        except ValueError as error:
            check_line(str(error))
            return
    if not np.isfinite(model.components_).all():
        raise Broken("components that are not finite")


# -- releases -------------------------------------------------------------------------------------


def _release_seeds() -> Sequence[bytes]:
    whole = Release.model_validate(plain())
    tensor = plain(kind="tensor", version=4, weights=[1.0])
    return [
        whole.to_bytes(),
        json.dumps(plain()).encode(),
        json.dumps(tensor).encode(),
        json.dumps(plain(dim=10**9)).encode(),
        json.dumps(plain(rank=-1)).encode(),
        b'{"schema_name":"streaming-pca.release","version":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ]


@target("release", _release_seeds, times=64, inputs=2000)
def release(data: bytes) -> None:
    """Read a release as a consumer does, and as a model."""
    found = read_release("s.releases", 0, data)
    if isinstance(found, NotARelease):
        check_line(str(found))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PrivatePCA.from_release(data)
    except ValueError as error:
        check_line(str(error))
        return
    if not np.isfinite(model.transform(np.ones((1, model.n_features_in_)))).all():
        raise Broken("a projection that is not finite")


# -- backups --------------------------------------------------------------------------------------


def _backup_seeds() -> Sequence[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "backup.zip")
        write_backup(made_backup(), path)
        good = path.read_bytes()
    parts = zip_parts(good)
    assert parts is not None
    manifest = json.loads(parts["manifest.json"])
    manifest["ledger"]["size"] = 300 * MIB
    bomb = {"manifest.json": json.dumps(manifest).encode(), "ledger.jsonl": bytes(300 * MIB)}
    bomb |= {name: data for name, data in parts.items() if name.startswith("states")}
    methods = (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED)
    return [
        good,
        *(with_zip_parts(parts, method) for method in methods),
        with_zip_parts(bomb, zipfile.ZIP_DEFLATED),
        with_zip_parts(bomb, zipfile.ZIP_LZMA),
    ]


@target("backup", _backup_seeds, times=64, allowance=32 * MIB, inputs=200)
def backup(data: bytes) -> None:
    """Read a backup, and verify it."""
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(data)
        file.flush()
        try:
            found = read_backup(Path(file.name))
            verified_ledger(found, "it")
        except BackupNotVerified as error:
            for line in (str(error), *error.problems):
                check_line(line)
        except UserError as error:
            check_line(str(error))
