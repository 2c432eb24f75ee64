"""A stream with a worker that releases when a test wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming_pca.client import latest
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from tests.kafka.stream import Child, Stream
from tests.waiting import wait_for

FEATURES = ["age", "income", "children", "rooms", "distance", "visits", "spent", "returns"]
BATCHES = 12
_RECORDS = 60_000
_BOUNDS = (-40.0, 40.0)


@dataclass
class RunningStream:
    """Stream of the tests with a real worker."""

    stream: Stream
    worker: Child
    others: list[Settings] = field(default_factory=list)
    """Unhealthy streams on the same broker: one never began, one has no topics."""
    _sent: int = 0

    def __post_init__(self) -> None:
        self.settings = self.stream.settings
        self.name, self.input = self.settings.stream.name, self.settings.stream.input

    @classmethod
    def start(cls, bootstrap: str, name: str, folder: Path, session_ms: int) -> RunningStream:
        """Create topics and ledger, and start the worker."""
        stream = Stream.make(
            bootstrap,
            name,
            folder,
            partitions=2,
            cap=("2", "2e-6"),
            session_ms=session_ms,
            worker={"stop_when_done": False},
            dim=len(FEATURES),
            rank=3,
            feature_names=FEATURES,
            bounds=_BOUNDS,
            diagnostics_share=0.05,
            options={"n_records": _RECORDS, "n_batches": BATCHES, "growth": 1.0},
        )
        waiting = Stream.make(
            bootstrap, f"{name}-waiting", folder, partitions=1, session_ms=session_ms, dim=4, rank=2
        )
        absent = stream.changed(name=f"{name}-absent", input=f"in-{name}-absent")
        return cls(stream, stream.start(), [waiting.settings, absent])

    def learn(self, batches: int = 1) -> None:
        """Produce the records of the next batches, and wait until they are released."""
        count = batches * _RECORDS // BATCHES
        self.stream.produce_vectors(_rows(count, seed=self._sent))
        self._sent += count
        self.worker.says(f"batch {self._sent * BATCHES // _RECORDS} released")

    def latest(self) -> Release:
        """Return the latest release, as any program reads it."""
        found = latest(self.settings)
        assert found is not None
        return found

    def latest_bytes(self) -> bytes:
        """Return the bytes of the topic's last message."""
        return wait_for("a release", self.stream.release_values)[-1]

    def stop(self) -> None:
        self.stream.destroy()


def _rows(count: int, seed: int) -> NDArray[np.float32]:
    """Return rows of three strong directions, little noise, and a feature clamped by some bounds."""
    rng = np.random.default_rng([17, seed])
    d = len(FEATURES)
    directions = np.linalg.qr(np.random.default_rng(1).standard_normal((d, 3)))[0]
    x = rng.standard_normal((count, 3)) * [7, 5, 3.5] @ directions.T
    return (x + rng.standard_normal((count, d)) * 0.7).astype("<f4")
