"""Resource usage of processes, sample by sample, and detection of growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

LIMITS: Mapping[str, tuple[float, float]] = {
    "memory_mib": (0.04, 8.0),
    "descriptors": (0.04, 3.0),
    "threads": (0.04, 2.0),
    "series": (0.0, 0.5),
}
"""Allowed gain in the second half of a run: a share of the level, and a minimum amount."""


@dataclass
class Series:
    """Samples of one process with its helpers.

    Attributes
    ----------
    at : list of float
        Seconds of the run.
    values : dict of str to list of float
        By quantity, one for each time.
    """

    at: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LIMITS})

    def add(self, seconds: float, sample: Mapping[str, float]) -> None:
        """Add a sample."""
        self.at.append(seconds)
        for name, value in sample.items():
            self.values[name].append(value)

    def growth(self, name: str) -> tuple[float, float]:
        """Return the fitted line's gain over the second half, and its level."""
        at, values = np.array(self.at), np.array(self.values[name])
        late = at >= (at[0] + at[-1]) / 2
        slope, _ = np.polyfit(at[late], values[late], 1)
        return float(slope * np.ptp(at[late])), float(values[late].mean())

    def problems(self) -> list[str]:
        """Name the quantities that grow."""
        found = []
        for name, (share, least) in LIMITS.items():
            gained, level = self.growth(name)
            if gained > max(share * level, least):
                found.append(f"{name}: {gained:+.1f} in the second half, at a level of {level:.1f}")
        return found

    def summary(self) -> dict[str, Any]:
        """Return level, gain and peak of each quantity."""
        found = {}
        for name, values in self.values.items():
            gained, level = self.growth(name)
            found[name] = {
                "level": round(level, 1),
                "gained": round(gained, 2),
                "peak": round(max(values), 1),
            }
        return found


def sample(pids: Sequence[int]) -> dict[str, float]:
    """Return the processes' total usage now."""
    processes = [psutil.Process(pid) for pid in pids]
    return {
        "memory_mib": sum(each.memory_info().rss for each in processes) / 2**20,
        "descriptors": float(sum(each.num_fds() for each in processes)),
        "threads": float(sum(each.num_threads() for each in processes)),
    }


def family(pid: int) -> list[int]:
    """Return a process and its helpers."""
    return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
