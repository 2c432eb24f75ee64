"""Exact bytes of an estimator's state."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Estimator, State
from streaming_pca.privacy.randomness import utility_generator

S = TypeVar("S")

_STORED_NAMES = {"product": "image", "products": "images"}
"""Stored names of renamed fields: names in stored states never change."""
_FIELD_NAMES = {stored: name for name, stored in _STORED_NAMES.items()}


def state_values(state: Any) -> dict[str, Any]:
    """List arrays, numbers, strings and None of a state by name; ``outer.inner`` in a dataclass."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        stored = _STORED_NAMES.get(f.name, f.name)
        if dataclasses.is_dataclass(value):
            values |= {f"{stored}.{name}": inner for name, inner in state_values(value).items()}
        else:
            values[stored] = value
    return values


def encode_state(state: State) -> bytes:
    """Encode a state exactly: numbers as JSON, arrays as .npy, in one .npz; no pickle."""
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
    """Decode :func:`encode_state`'s bytes; TypeError, ValueError or KeyError if they hold no state."""
    try:
        values = _read_values(data)
    except Exception as error:
        # Foreign bytes can make zipfile, numpy or json raise anything.
        raise ValueError(f"the bytes are not a state: {type(error).__name__}") from None
    return _build_state(state_type, values)


def _read_values(data: bytes) -> dict[str, Any]:
    """Read arrays and plain values, within the memory of the bytes themselves."""
    members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    # Compressed members, and members that share bytes, can unfold to any size.
    if any(m.compress_type for m in members) or sum(m.file_size for m in members) > len(data):
        raise ValueError("its arrays are larger than the bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        values: dict[str, Any] = {name: archive[name] for name in archive.files if name != "__plain__"}
        return values | dict(json.loads(archive["__plain__"].tobytes()))


def _build_state(kind: type[S], values: Mapping[str, Any]) -> S:
    """Make the dataclass from values named ``field`` or ``field.inner``."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        outer, dot, rest = name.partition(".")
        outer = _FIELD_NAMES.get(outer, outer)
        if dot:
            inner.setdefault(outer, {})[rest] = value
            continue
        hint = hints.get(outer)
        if dataclasses.is_dataclass(hint):
            raise ValueError(f"{name} of the state is a single value")
        is_hex = isinstance(value, str) and float in (hint, *get_args(hint))
        found[outer] = _parse_float(value) if is_hex else value
    # The dataclass's constructor refuses unknown names.
    return kind(**found, **{name: _build_state(hints[name], fields) for name, fields in inner.items()})


def _parse_float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError as error:
        raise ValueError(f"a number of the state is too large: {error}") from None


def decode_fitting_state(estimator: Estimator[Any, Any], data: bytes) -> State:
    """Decode the bytes of :func:`encode_state` to a state that this estimator can continue from.

    Options are not part of a stream's privacy contract, so a state can be older than the
    present options, and some options decide its shapes.

    Raises TypeError, ValueError or KeyError if the bytes hold no such state, one of other shapes, or one with
    a mean that it does not use.
    """
    state: State = decode_state(estimator.state_type, data)
    # The state before any record has all lasting shapes, for any seed and noise.
    fresh = state_values(estimator.init(utility_generator(0)))
    for name, value in state_values(state).items():
        _check_value(name, value, fresh[name])
    if not 0 <= state.mean_weight < math.inf or (state.mean_noise is not None and state.mean_noise < 0):
        raise ValueError("numbers of the state's mean must not be below 0")
    if state.mean is not None and "auto" not in estimator.centerings:
        raise ValueError(
            f"it has a mean that an earlier version estimated, but {estimator.info.id} does not estimate "
            "means: fit a new model"
        )
    _check_parts(state)
    estimator.plan(state)
    return state


def _check_parts(state: Any) -> None:
    """Run the ``check`` methods of the dataclasses in a state."""
    for f in dataclasses.fields(state):
        part = getattr(state, f.name)
        if dataclasses.is_dataclass(part):
            if hasattr(part, "check"):
                part.check()
            _check_parts(part)


def _check_value(name: str, value: Any, fresh: Any) -> None:
    """Check a value's type, shape and range against the state before any record."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        # Bytes of an inner state vary in length; its own decoding checks their content.
        fits = isinstance(fresh, np.ndarray) and fresh.dtype == value.dtype and value.ndim == 1
    elif isinstance(value, np.ndarray):
        if fresh is None:
            fits = value.dtype in (np.float64, np.int64)
        else:
            fits = isinstance(fresh, np.ndarray) and (value.dtype, value.shape) == (fresh.dtype, fresh.shape)
        fits = fits and bool(np.isfinite(value).all())
    elif value is None or fresh is None:
        fits = True
    else:
        fits = type(value) is type(fresh) and (not isinstance(value, int) or value >= 0)
        fits = fits and (not isinstance(value, float) or not math.isnan(value))
    if not fits:
        raise ValueError(f"{name} of the state does not fit the estimator")
