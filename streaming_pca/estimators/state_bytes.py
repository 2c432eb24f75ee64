"""The exact bytes of an estimator's state."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import State

__all__ = ["decode_state", "encode_state", "state_values"]

S = TypeVar("S")


def state_values(state: Any) -> dict[str, Any]:
    """Arrays, numbers, strings and None of a state, by name; of a dataclass in it as ``outer.inner``."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if dataclasses.is_dataclass(value):
            values |= {f"{f.name}.{name}": inner for name, inner in state_values(value).items()}
        else:
            values[f.name] = value
    return values


def encode_state(state: State) -> bytes:
    """Exact bytes of a state: numbers as JSON, arrays as .npy, in one .npz; no pickle."""
    arrays: dict[str, NDArray[Any]] = {}
    plain: dict[str, Any] = {}
    for name, value in state_values(state).items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            plain[name] = value.hex() if isinstance(value, float) else value
    header = json.dumps(plain, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, __plain__=np.frombuffer(header, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def decode_state(state_type: type[S], data: bytes) -> S:
    """Read what :func:`encode_state` wrote.

    Raises
    ------
    TypeError, ValueError or KeyError
        If these are not the values of such a state.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        values: dict[str, Any] = {name: archive[name] for name in archive.files if name != "__plain__"}
        values |= json.loads(archive["__plain__"].tobytes())
    return _built(state_type, values)


def _built(kind: type[S], values: Mapping[str, Any]) -> S:
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        outer, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(outer, {})[rest] = value
            continue
        hint = hints.get(name)
        if dataclasses.is_dataclass(hint):
            raise ValueError(f"{name} of the state is a single value")
        is_hex = isinstance(value, str) and float in (hint, *get_args(hint))
        found[name] = float.fromhex(value) if is_hex else value
    # A name that the dataclass does not have is refused by its constructor.
    return kind(**found, **{name: _built(hints[name], fields) for name, fields in inner.items()})
