"""Files and messages of the previous version are read; unknown later versions are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.admin.backup import read_backup, verified_ledger
from streaming_pca.data.release import Release
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import MalformedEntry, decode_entry
from streaming_pca.service.commit.state_topic import MalformedCheckpoint, decode_checkpoint


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


def test_a_later_state_is_refused(fixtures: Path) -> None:
    state = read_backup(fixtures / "backup.zip").states["user-once"]
    assert state.count(b'"version": 1') == 1
    with pytest.raises(MalformedCheckpoint, match=r"of version 2, .* reads version 1: update streaming-pca"):
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
