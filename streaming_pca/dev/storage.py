"""Temporary and persistent data directories of clusters."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import IO

from streaming_pca.dev.jars import KAFKA, KafkaUnavailable

_MARKER = "cluster.json"
_LOCK = "lock"


class Storage:
    """Directory of a cluster, for one process at a time.

    Parameters
    ----------
    kept : Path, optional
        Persistent directory, created if missing. By default a temporary one, deleted at the end.

    Attributes
    ----------
    path : Path
        The directory; valid after :meth:`open`.
    cluster : str
        Id of the cluster that owns the data; valid after :meth:`open`.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self.kept = kept is not None
        self.path = Path() if kept is None else kept.absolute()
        self.cluster = ""
        self._lock: IO[str] | None = None

    def open(self, nodes: int) -> None:
        """Create the directory, or take over the data of an earlier cluster.

        Raises
        ------
        KafkaUnavailable
            If the directory is not writable, contains other files or another number of nodes, or is in
            use.
        """
        if not self.kept:
            self.path = Path(tempfile.mkdtemp(prefix="streaming-pca-kafka-"))
            self.cluster = _new_identity()
            return
        try:
            self._take_over(nodes)
        except OSError as error:
            self.close()
            raise KafkaUnavailable(f"cannot keep data in {self.path}", error.strerror or str(error)) from None
        except KafkaUnavailable:
            self.close()
            raise

    def close(self) -> None:
        """Release the directory, and delete it if temporary."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if not self.kept and self.cluster:
            shutil.rmtree(self.path, ignore_errors=True)

    def _take_over(self, nodes: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / _MARKER
        if not marker.exists() and {each.name for each in self.path.iterdir()} - {_LOCK}:
            raise KafkaUnavailable(
                f"{self.path} contains other files", "name an empty or absent directory for Kafka's data"
            )
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KafkaUnavailable(
                f"{self.path} is in use",
                "another Kafka keeps its data there: stop it, or name another directory",
            ) from None
        if not marker.exists():
            marker.write_text(json.dumps({"kafka": KAFKA, "cluster": _new_identity(), "nodes": nodes}))
        self._read(marker, nodes)

    def _read(self, marker: Path, nodes: int) -> None:
        try:
            facts = json.loads(marker.read_text())
            found, self.cluster = int(facts["nodes"]), str(facts["cluster"])
        except (ValueError, KeyError, TypeError):
            raise KafkaUnavailable(
                f"{marker} is damaged", "name another directory for Kafka's data"
            ) from None
        if found != nodes:
            raise KafkaUnavailable(
                f"{self.path} holds a cluster of {found} {'node' if found == 1 else 'nodes'}, not of {nodes}",
                "start as many, or name another directory",
            )


def _new_identity() -> str:
    # Kafka reads its ids as unpadded base64 and refuses a leading dash on the command line.
    return "k" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
