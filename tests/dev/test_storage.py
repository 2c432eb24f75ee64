"""Directories of a cluster's data: one process at a time, and no other files touched."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from streaming_pca.dev.cluster import Node, Storage
from streaming_pca.dev.jars import KafkaUnavailable, find_java


def opened(kept: Path | None, nodes: int = 1) -> Storage:
    storage = Storage(kept)
    storage.open(nodes)
    return storage


def test_a_temporary_directory_is_deleted() -> None:
    storage = opened(None)
    assert storage.path.is_dir()
    storage.close()
    assert not storage.path.exists()


def test_temporary_directories_are_made_where_the_tests_want_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "parent", str(tmp_path))
    storage = opened(None)
    assert storage.path.parent == tmp_path
    storage.close()
    assert not any(tmp_path.iterdir())


def test_a_kept_directory_keeps_its_cluster(tmp_path: Path) -> None:
    storage = opened(tmp_path / "new" / "data", 3)
    (storage.path / "1").mkdir()
    storage.close()
    again = opened(tmp_path / "new" / "data", 3)
    assert again.cluster == storage.cluster
    assert (again.path / "1").is_dir()
    again.close()


def test_a_directory_serves_one_process(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(KafkaUnavailable, match="is in use"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_cluster_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    opened(tmp_path, 3).close()
    with pytest.raises(KafkaUnavailable, match="holds a cluster of 3 nodes, not of 1"):
        opened(tmp_path, 1)


def test_other_files_stay_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(KafkaUnavailable, match="contains other files"):
        opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster": "k", "nodes": "x"}'])
def test_a_damaged_directory_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(KafkaUnavailable, match="is damaged"):
        opened(tmp_path)


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(KafkaUnavailable, match="cannot keep data in"):
            opened(path)


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(KafkaUnavailable, match=f"port {port} is taken"):
            Node("java", tmp_path, tmp_path / "1", number=1, heap=1, port=port)


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(KafkaUnavailable, match="no Java 17 found") as refused:
        find_java()
    assert f"{java} is Java 11" in refused.value.detail
