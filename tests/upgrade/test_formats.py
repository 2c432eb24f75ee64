"""Files and messages of the previous version are read; unknown later versions are refused."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.record.memory_records import MemoryRecords

from streaming_pca import PrivatePCA
from streaming_pca.admin.backup import read_backup, verified_ledger
from streaming_pca.config.loading import load_settings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import Release
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import MalformedEntry, Reserved, decode_entry
from streaming_pca.service.commit.admission import _REMOVED_OPTIONS, check_admission
from streaming_pca.service.commit.state_topic import decode_checkpoint
from streaming_pca.service.commit.user_log import MalformedState
from streaming_pca.service.errors import StreamRefused
from tests.upgrade.streams import ESTIMATORS, OTHERS, stream_settings, write_config


def edited(data: bytes, **changes: Any) -> bytes:
    return json.dumps(json.loads(data) | changes).encode()


def test_releases_of_the_version_before_are_read(facts: dict[str, Any]) -> None:
    versions = set()
    for name, values in facts["streams"].items():
        for value in values:
            release = Release.from_bytes(json.dumps(value).encode())
            assert release.stream == name
            versions.add(release.version)
    assert versions == {1, 2, 3}


def test_a_later_release_is_read_and_another_format_is_not(facts: dict[str, Any]) -> None:
    (first, *_) = facts["streams"]["private-oja"]
    data = json.dumps(first).encode()
    later = edited(data, version=99, a_new_field=1, centering="none", scale=None, bounds=None)
    assert Release.from_bytes(later).components == Release.from_bytes(data).components
    with pytest.raises(ValueError, match="schema_name"):
        Release.from_bytes(edited(data, schema_name="streaming-pca.release.2"))


@pytest.mark.parametrize("estimator", ["adaptive", "private-oja"])
def test_models_of_the_version_before(fixtures: Path, estimator: str) -> None:
    path = fixtures / f"{estimator}.model"
    if estimator == "adaptive":  # its state differs
        with pytest.raises(ValueError, match=r"adaptive\.model") as refused:
            PrivatePCA.load(path)
        assert len(str(refused.value).splitlines()) == 1
        return
    model = PrivatePCA.load(path)
    assert np.allclose(model.components_ @ model.components_.T, np.eye(2))
    spent = model.privacy_spent_.epsilon
    model.partial_fit(np.random.default_rng(4).standard_normal((1000, 6)) * [5, 3, 1, 1, 1, 1])
    assert model.privacy_spent_.epsilon == spent


def test_a_backup_of_the_version_before_is_read(fixtures: Path) -> None:
    backup = read_backup(fixtures / "backup.zip")
    assert backup.topic == "old-users"
    assert backup.states.keys() == backup.users.keys() == {"user-once", "user-often"}
    assert verified_ledger(backup).jobs.keys() == {"user-once", "user-often"}
    for name, state in backup.states.items():
        checkpoint, _ = decode_checkpoint(state)
        assert (checkpoint.stream, checkpoint.batch) == (name, 2)


def test_users_of_one_contribution_continue(fixtures: Path, tmp_path: Path) -> None:
    """Their reservations contain options that were removed, at their defaults."""
    ledger = verified_ledger(read_backup(fixtures / "backup.zip"))
    reservation = ledger.job("user-once").reservation
    assert reservation is not None
    assert reservation.parameters["options"]["schedule"] == "inverse"
    once, often = (
        load_settings(write_config(tmp_path, "localhost:1", name), None).stream
        for name in ("user-once", "user-often")
    )
    check_admission(once, ledger)
    with pytest.raises(StreamRefused, match="whose noise was discrete"):
        check_admission(often, ledger)


UNPINNED = {"radius_range": None}
"""Option whose default changed, and whose value does not affect calibration."""


def test_recorded_options_contain_no_others_that_were_removed(fixtures: Path) -> None:
    """Each reservation's options are present ones, and removed ones at their defaults."""
    seen = set()
    for entry in recorded_entries(fixtures / "cluster.tar.xz"):
        if not isinstance(entry, Reserved):
            continue
        settings = StreamSettings(**stream_settings(entry.job))
        options, present = entry.parameters["options"], settings.mechanism_options
        former = _REMOVED_OPTIONS | {"n_records": None}
        known = {key: former[key] for key in options.keys() - present.keys()} | present
        assert options | UNPINNED == known | UNPINNED, entry.job
        seen.add(entry.job)
    assert seen == {*ESTIMATORS, *OTHERS}


def recorded_entries(path: Path) -> Iterator[Any]:
    """Yield the entries of all ledgers in the data of a broker."""
    with tarfile.open(path) as archive:
        for member in archive:
            if not re.search(r"\.ledger-0/\d+\.log$", member.name):
                continue
            file = archive.extractfile(member)
            assert file is not None
            batches = MemoryRecords(file.read())
            while (batch := batches.next_batch()) is not None:
                if not batch.is_control_batch:
                    yield from (decode_entry(record.value) for record in batch)


def test_a_later_state_is_refused(fixtures: Path) -> None:
    state = read_backup(fixtures / "backup.zip").states["user-once"]
    assert state.count(b'"version": 1') == 1
    with pytest.raises(MalformedState, match=r"of version 2, .* reads version 1: update streaming-pca"):
        decode_checkpoint(state.replace(b'"version": 1', b'"version": 2'))


def test_later_ledger_entries_are_refused(fixtures: Path) -> None:
    for entry in read_backup(fixtures / "backup.zip").entries:
        decode_entry(entry)
        for changes in ({"version": 3}, {"kind": "SHRUNK"}, {"a_new_field": 1}):
            with pytest.raises(MalformedEntry) as refused:
                decode_entry(json.dumps(json.loads(entry) | changes, sort_keys=True).encode())
            assert len(str(refused.value).splitlines()) == 1


def test_a_later_backup_is_refused(fixtures: Path, tmp_path: Path) -> None:
    path = tmp_path / "later.zip"
    with zipfile.ZipFile(fixtures / "backup.zip") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, edited(data, version=2) if name == "manifest.json" else data)
    with pytest.raises(
        UserError, match=r"later\.zip: its manifest is not in this program's format, version 1"
    ):
        read_backup(path)
