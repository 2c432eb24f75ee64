"""Effective settings with their origins, and a forecast of each stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from streaming_pca.config.environment import OPTIONS, deciding_variable, environment_streams
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import State
from streaming_pca.estimators.common.state import state_values
from streaming_pca.privacy.parameters import format_number, guarantee_warnings
from streaming_pca.privacy.randomness import utility_generator

# Bounds of the memory of a stream.
_BLOCKS_BYTES = 128 * 2**20  # memory of four temporaries of a kernel
_FETCH_BYTES = 48 * 2**20
"""Messages fetched ahead, being decoded, and on the wire; with over 48 partitions they take more."""
_STATES = 8
"""Copies of a state: old, new, encoded, and temporaries of sums, noise and eigenvectors (7 measured)."""
_ROW_BYTES = 16  # memory of a row's indices

Origin = Literal["default", "environment", "file"]


@dataclass(frozen=True)
class EffectiveSetting:
    """Value of a setting as plain JSON data, secrets masked, with its origin."""

    path: tuple[str, ...]
    value: Any
    origin: Origin


def process_settings(settings: Settings) -> list[EffectiveSetting]:
    """Return the settings common to all streams of a file."""
    return [
        found
        for name in Settings.model_fields
        if name != "stream" and getattr(settings, name) is not None
        for found in _effective(getattr(settings, name), (name,))
    ]


def stream_settings(settings: Settings, number: int) -> list[EffectiveSetting]:
    """Return the settings of stream ``number``, counted from 0, with its estimator's options."""
    listed = environment_streams()
    own = {} if listed is None else listed[number]
    stream = settings.stream
    options = stream.build_estimator().options
    return _effective(stream, ("stream",), own) + _effective(options, OPTIONS, own.get("options"))


def _effective(model: BaseModel, path: tuple[str, ...], own: Any = None) -> list[EffectiveSetting]:
    """Return values with their origins; ``own`` are those of ``STREAMING_PCA_STREAMS``."""
    own = own or {}
    values = model.model_dump(mode="json")
    found: list[EffectiveSetting] = []
    for name in type(model).model_fields:
        here, value = (*path, name), getattr(model, name)
        if here == OPTIONS:
            continue
        if isinstance(value, BaseModel):
            found += _effective(value, here, own.get(name))
            continue
        origin: Origin = "default"
        if name in own or deciding_variable(here) is not None:
            origin = "environment"
        elif name in model.model_fields_set:
            origin = "file"
        found.append(EffectiveSetting(here, _plain(values[name]), origin))
    return found


def _plain(value: Any) -> Any:
    """Return infinities as text, which JSON cannot represent as numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def describe_stream(stream: StreamSettings) -> dict[str, Any]:
    """Return a stream's topics, first plan, memory bounds and warnings as plain data."""
    estimator = stream.build_estimator()
    state = estimator.init(utility_generator(stream.seed))
    plan = estimator.plan(state)
    return {
        "stream": stream.name,
        "privacy_unit": stream.privacy_unit,
        "warnings": doubts_of_settings(stream),
        "topics": {
            "input": stream.input,
            "ledger": stream.ledger_topic,
            "state": stream.state_topic,
            "releases": stream.releases_topic,
        },
        "first_batch": {
            "records": plan.count,
            "charge": plan.charge.model_dump(mode="json"),
            "noise_multiplier": plan.parameters.get("sigma_over_sensitivity"),
        },
        "memory_bytes": _memory(stream, state),
    }


_UNITS = {"message": "each message", "row": "each row of a message", "user": "all messages of a user"}


def describe_guarantee(stream: StreamSettings) -> str:
    if not stream.private:
        return "NOT private: its releases guarantee nothing"
    number = f"({format_number(stream.epsilon)}, {format_number(stream.delta)})"
    if stream.record_kind is RecordKind.LOCAL:
        return f"each report: {number}-differential privacy before it is sent"
    return f"{_UNITS[stream.privacy_unit]}: {number}-differential privacy over all releases"


def doubts_of_settings(stream: StreamSettings) -> list[str]:
    """Return a warning for each valid but doubtful setting."""
    lines = [f"{missing}; the schema was not compared"] if (missing := stream.missing_library) else []
    centering = stream.build_estimator().preprocessing.centering
    several = "max_rows" in stream.model_fields_set and stream.max_rows > 1 and stream.privacy_unit != "row"
    if several and isinstance(centering, str) and centering != "none":
        effect = "count as null" if centering == "pairs" else "whose mean moves have wrong variances"
        lines.append(
            f'max_rows = {stream.max_rows}, but with centering = "{centering}" records of several rows '
            f'{effect}: set max_rows = 1, or centering = "none" or numbers'
        )
    features = stream.features or ()
    if any(f.bounds for f in features) and (without := [f.name for f in features if f.column_bounds is None]):
        lines.append(f"no bounds of {', '.join(without[:5])}: no feature is clamped, or scaled by its bounds")
    if not stream.private:
        return lines
    records = getattr(stream.build_estimator().options, "n_records", None)
    lines += guarantee_warnings(stream.epsilon, stream.delta, records)
    if stream.record_kind is RecordKind.FACTOR and records is not None and records < stream.rank:
        lines.append(f"options.n_records = {records} is below rank = {stream.rank}: lower the rank")
    return lines


def _memory(stream: StreamSettings, state: State) -> dict[str, int]:
    """Bound the memory of a stream, in bytes: for all messages, and for factors of one plain row each."""
    state_bytes = sum(a.nbytes for a in state_values(state).values() if isinstance(a, np.ndarray))
    fixed = _STATES * state_bytes + _BLOCKS_BYTES + _FETCH_BYTES
    records = stream.build_estimator().largest_batch
    if stream.record_kind is RecordKind.LOCAL:
        report = 4 * stream.record_kind.width(stream.dim)
        return {"any_messages": fixed + 3 * records * (report + _ROW_BYTES)}
    matrices = stream.record_kind is RecordKind.MATRIX
    most_rows = stream.dim if matrices else stream.max_rows
    bounds = {"any_messages": fixed + 3 * records * most_rows * (stream.dim * 8 + _ROW_BYTES)}
    if not matrices:
        row_bytes = stream.dim * np.dtype(stream.dtype).itemsize
        bounds["one_row_messages"] = fixed + 3 * records * (row_bytes + _ROW_BYTES)
    return bounds
