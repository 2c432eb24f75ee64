"""What a file and the environment come to: each value with its origin, and what a stream will do first."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from streaming_pca.environment import deciding_variable, environment_streams
from streaming_pca.estimators.base import State
from streaming_pca.estimators.state_bytes import state_values
from streaming_pca.privacy.parameters import format_rational
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import RecordKind
from streaming_pca.settings import Settings, StreamSettings

__all__ = ["EffectiveSetting", "describe_stream", "process_settings", "stream_settings"]

_BLOCKS_BYTES = 128 * 2**20
"""Four temporaries of a kernel."""
_FETCH_BYTES = 48 * 2**20
"""Messages fetched ahead, being decoded, and on the wire; more with over 48 partitions."""
_STATES = 8
"""Of a state: old, new, its bytes, and what sums, noise and eigenvectors take; 7 were measured."""
_ROW_BYTES = 16
"""Of indices."""

Origin = Literal["default", "environment", "file"]


@dataclass(frozen=True)
class EffectiveSetting:
    """A value as JSON has it, secrets masked, and where it comes from."""

    path: tuple[str, ...]
    value: Any
    origin: Origin


def process_settings(settings: Settings) -> list[EffectiveSetting]:
    """Those that all streams of a file have in common."""
    return [
        found
        for name in Settings.model_fields
        if name != "stream"
        for found in _effective(getattr(settings, name), (name,), ())
    ]


def stream_settings(settings: Settings, number: int) -> list[EffectiveSetting]:
    """Those of one stream, its estimator's options too.

    Parameters
    ----------
    settings : Settings
    number : int
        The stream's place in the file, from 0.
    """
    listed = environment_streams()
    own: dict[str, Any] = {} if listed is None else listed[number]
    stream = settings.stream
    found = _effective(stream, ("stream",), own, without={"options"})
    options = stream.made.options
    given = own.get("options") or {}
    return found + _effective(options, ("stream", "options"), given, given=stream.options)


def _effective(
    model: BaseModel,
    path: tuple[str, ...],
    in_environment: Collection[str],
    *,
    given: Collection[str] | None = None,
    without: Collection[str] = (),
) -> list[EffectiveSetting]:
    """The values of a model.

    Parameters
    ----------
    model : BaseModel
    path : tuple of str
    in_environment : collection of str
        Keys that ``STREAMING_PCA_STREAMS`` sets.
    given : collection of str, optional
        Keys that are not defaults, where the model itself does not know.
    without : collection of str
        Keys that are left out.
    """
    given = model.model_fields_set if given is None else given
    values = model.model_dump(mode="json")
    found: list[EffectiveSetting] = []
    for name in type(model).model_fields:
        if name in without:
            continue
        here, value = (*path, name), getattr(model, name)
        if isinstance(value, BaseModel):
            inner = value.model_fields_set if name in in_environment else ()
            found += _effective(value, here, inner)
            continue
        origin: Origin = "default"
        if name in in_environment or deciding_variable(here) is not None:
            origin = "environment"
        elif name in given:
            origin = "file"
        found.append(EffectiveSetting(here, _plain(values[name]), origin))
    return found


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def describe_stream(stream: StreamSettings) -> dict[str, Any]:
    """Its topics, the plan of its first batch, and a bound of the memory it takes, as plain data."""
    estimator = stream.made
    state = estimator.init(utility_generator(stream.seed))
    plan = estimator.plan(state)
    rho = plan.charge.rho
    return {
        "stream": stream.name,
        "privacy_unit": stream.privacy_unit,
        "topics": {
            "input": stream.input,
            "ledger": stream.ledger_topic,
            "state": stream.state_topic,
            "releases": stream.releases_topic,
        },
        "first_batch": {
            "records": plan.count,
            "charge": {
                "epsilon": format_rational(plan.charge.epsilon),
                "delta": format_rational(plan.charge.delta),
                "rho": None if rho is None else format_rational(rho),
            },
            "noise_multiplier": plan.parameters.get("sigma_over_sensitivity"),
        },
        "memory_bytes": _memory(stream, state),
    }


def _memory(stream: StreamSettings, state: State) -> dict[str, int]:
    """Bounds: with any messages, and, of factors, with one row a message of the stream's number type."""
    state_bytes = sum(a.nbytes for a in state_values(state).values() if isinstance(a, np.ndarray))
    fixed = _STATES * state_bytes + _BLOCKS_BYTES + _FETCH_BYTES
    records = stream.made.largest_batch
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
