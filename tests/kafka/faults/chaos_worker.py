"""Worker of the chaos loop, which records every batch that its estimators see."""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import signal
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.base import Estimator
from tests.kafka import child
from tests.kafka.faults.chaos_check import Observed

_FILE = "observed"
STACKS = "stacks"
"""File for the stacks of all threads, written on SIGUSR1."""


def main(settings: list[dict[str, Any]], directory: str, strike: child.Strike | None = None) -> None:
    """Run a worker that writes its batches to a file of ``directory``."""
    _write_down(Path(directory, _FILE))
    stacks = os.open(Path(directory, STACKS), os.O_WRONLY | os.O_CREAT)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    child.main(settings, directory, strike)


def _write_down(path: Path) -> None:
    """Patch ``Estimator.update`` of this process; a stream's rank identifies it."""
    original = Estimator.update
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def update(self: Any, state: Any, batch: ArrayBatch) -> Any:
        packed = batch.packed()
        starts, rows = packed.starts.tolist(), packed.rows
        texts = [
            base64.b64encode(np.asarray(rows[a:b], "<f8").tobytes()).decode() if b > a else None
            for a, b in pairwise(starts)
        ]
        line = json.dumps({"rank": self.k, "before": state.records, "rows": texts})
        # In one call, so that a kill leaves a whole line, or a last line without its end.
        os.write(file, line.encode() + b"\n")
        return original(self, state, batch)

    child.replace(Estimator, "update", update)


def observed(directories: Iterable[Path], jobs: dict[int, str]) -> dict[str, list[Observed]]:
    """Read the batches that workers have recorded, by job; ``jobs`` maps ranks to jobs."""
    found: dict[str, list[Observed]] = {job: [] for job in jobs.values()}
    for directory in directories:
        path = directory / _FILE
        text = path.read_bytes() if path.exists() else b""
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                message = json.loads(line)
                rows = tuple(None if t is None else base64.b64decode(t) for t in message["rows"])
                found[jobs[message["rank"]]].append(Observed(message["before"], rows))
    return found
