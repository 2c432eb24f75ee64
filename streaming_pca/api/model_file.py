"""Saved models: one .npz of JSON and an estimator's state; nothing in it is executed."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streaming_pca.api.budget import float_at_most
from streaming_pca.estimators.base import Estimator, State
from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.text import first_line

_FORMAT = "streaming_pca.PrivatePCA"
_VERSION = 3  # version of files with features; others are still written as version 1 or 2
_SINCE_2 = {"whiten": False}  # parameters since version 2, with the values that reproduce earlier versions
_MEMBERS = {"model.npy", "state.npy"}
_FOREIGN = "is not a saved PrivatePCA, or is damaged"

M = TypeVar("M")


class ModelFileError(ValueError):
    """Error of a file without a readable model; the message is one line that names the file."""


def write_model(path: str | os.PathLike[str], header: Mapping[str, Any], state: State) -> None:
    """Write a model; an earlier file at ``path`` is replaced when the new one is complete.

    The header holds parameters and attributes: numbers, strings, None, and lists, dicts and arrays of them.
    :class:`ModelFileError` for anything else, or if the file cannot be written.
    """
    whole = {"format": _FORMAT, **_versioned(header)}
    try:
        # In their order: the bounds of columns have the order of the features.
        text = json.dumps(_plain(whole), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)}: cannot be saved: {error}") from None
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, model=_bytes(text), state=_bytes(encode_state(state)))
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ModelFileError(f"{target}: {error.strerror or error}") from None


def read_model(path: str | os.PathLike[str], restore: Callable[[dict[str, Any], bytes], M]) -> M:
    """Read a model of :func:`write_model`; ``restore`` makes it from the header and the state's bytes.

    :class:`ModelFileError` if the file cannot be read, is something else, or is of a later version.
    """
    path = Path(path)
    try:
        return restore(*_read(path))
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except ValueError as error:
        reason = first_line(error)
    # A foreign file can make zipfile, numpy or the model raise anything; the mistake is the same.
    except Exception:
        reason = _FOREIGN
    raise ModelFileError(f"{path}: {reason}")


def _versioned(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header with the least version whose readers understand it."""
    parameters = dict(header["parameters"])
    if parameters["features"] is not None:
        return {**header, "version": _VERSION, "parameters": parameters}
    del parameters["features"]
    is_first = isinstance(parameters["n_components"], Integral)
    is_first = is_first and all(parameters[name] == value for name, value in _SINCE_2.items())
    if is_first:
        for name in _SINCE_2:
            del parameters[name]
    return {**header, "version": 1 if is_first else 2, "parameters": parameters}


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    with path.open("rb") as file:
        try:
            members = zipfile.ZipFile(file).infolist()
            # Members that are not compressed cannot be larger than the file.
            if {m.filename for m in members} != _MEMBERS or any(m.compress_type for m in members):
                raise ValueError
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                header, state = json.loads(arrays["model"].tobytes()), arrays["state"].tobytes()
            if header["format"] != _FORMAT:
                raise ValueError
        except ValueError:
            raise ValueError(_FOREIGN) from None
    if header["version"] not in range(1, _VERSION + 1):
        raise ValueError(
            f"was saved in format version {header['version']!r}, "
            f"this release reads versions 1 to {_VERSION}: install the release that saved it"
        )
    return header, state


def decode_model_state(estimator: Estimator[Any, Any], data: bytes) -> State:
    """Read a state that this estimator can continue; an error of any kind for other bytes."""
    state = decode_fitting_state(estimator, data)
    release, k, dim = estimator.release(state), estimator.k, estimator.dim
    for name, shape in (
        ("components", (k, dim)),
        ("explained_variance", (k,)),
        ("explained_variance_error", (k,)),
        ("mean", (dim,)),
    ):
        array = getattr(release, name)
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} of the state's release does not fit the estimator")
    return state


def _bytes(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(data, dtype=np.uint8)


def _plain(value: Any) -> Any:
    """Convert numbers and sequences, of numpy too, to JSON data; floats keep every bit."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Fraction):
        return float_at_most(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"{value!r} is not a number, string, list or dict")
