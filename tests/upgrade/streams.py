"""Streams of the upgrade tests: every estimator, unit of privacy and status of a version."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIM, RANK, BATCH = 6, 2, 200
FIRM: dict[str, Any] = {"epsilon": 10.0, "delta": 1e-3}
LOOSE: dict[str, Any] = {"epsilon": 100.0, "delta": 1e-3}
RANGED: dict[str, Any] = {"batch_size": BATCH, "range_constant": 100.0}
CLIPPED: dict[str, Any] = {"batch_size": BATCH, "clip_radius": 20.0}
GROWING: dict[str, Any] = {"first_batch": BATCH, "growth": 1.0}

ESTIMATORS: dict[str, dict[str, Any]] = {
    "adadpo": {"options": RANGED, **LOOSE},
    "adaptive": {"options": GROWING},
    "adaptive-power": {"options": CLIPPED, **FIRM},
    "analyze-gauss": {"options": GROWING},
    # The default of 0.5, which such a stream has to name now.
    "block": {"options": {**GROWING, "oversampling": 0}},
    "dp-pca": {"options": RANGED, "rank": 1, **LOOSE},
    "k-dp-ojas": {"options": CLIPPED},
    "k-dp-pca": {"options": RANGED, **LOOSE},
    "noisy-power": {"options": {"batch_size": BATCH, "clip_l2": 5.0}, **FIRM},
    "output-perturbation": {"options": CLIPPED, **FIRM},
    "private-oja": {"options": CLIPPED},
    "tadadpo": {"options": {**RANGED, "warm_records": BATCH, "warm_options": RANGED}, **LOOSE},
}
"""Settings by the id of the estimator; all have the same input."""

CAPS = {"old": "1000,0.1", "old-users": "10,1e-3", "old-open": "inf,inf", "old-life": "10,1e-3"}
"""Inputs with the caps of their ledgers."""

_OJA: dict[str, Any] = {"estimator": "private-oja", "options": CLIPPED}
_ROWS: dict[str, Any] = {"record_kind": "factor", "max_rows": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "open": {
        "input": "old-open",
        "estimator": "oja",
        "private": False,
        "epsilon": math.inf,
        "delta": math.inf,
        "options": {"batch_size": BATCH},
    },
    "user-once": {"input": "old-users", "privacy_unit": "user", **_OJA},
    "user-often": {"input": "old-users", "privacy_unit": "user", "contributions_per_user": 3, **_OJA},
    "rows": {"input": "old-life", "privacy_unit": "row", **_ROWS, **_OJA},
    "paused": {"input": "old-life", **_OJA},
    "retired": {"input": "old-life", **_OJA},
    "reserved": {"input": "old-life", **_OJA},
    "committed": {"input": "old-life", **_OJA},
}
"""Further streams: the last two were killed in their second batch."""

STRIKES = {"reserved": "reserve.4 commit", "committed": "commit.5 commit"}
"""Step after which the worker of a stream was killed, in the second batch."""


def stream_settings(name: str) -> dict[str, Any]:
    """Return the table [stream] of one of these streams."""
    base = {"name": name, "input": "old", "dim": DIM, "rank": RANK, "epsilon": 1.0, "delta": 1e-6}
    base["centering"] = "none"
    if name in ESTIMATORS:
        return base | {"estimator": name} | ESTIMATORS[name]
    return base | OTHERS[name]


def write_config(folder: Path, bootstrap: str, name: str, group: str = "workers") -> Path:
    """Write the settings of a stream as TOML, and return the file."""
    tables: dict[str, Mapping[str, Any]] = {
        "kafka": {"bootstrap_servers": bootstrap, "session_timeout_ms": 2000},
        "stream": stream_settings(name),
        "worker": {"group": group},
        "http": {"enabled": False},
    }
    text = "\n".join(
        f"[{title}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for title, table in tables.items()
    )
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return "inf" if value == math.inf else json.dumps(value)
