"""Which environment variable sets what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from streaming_pca.settings import ENV_PREFIX, ConfigurationError

__all__ = [
    "STREAMS_VARIABLE",
    "deciding_variable",
    "environment_streams",
    "unreadable_section",
    "variable_of",
]

STREAMS_VARIABLE = f"{ENV_PREFIX}STREAMS"


def variable_of(path: Sequence[str]) -> str:
    """The environment variable of a setting: ``STREAMING_PCA_STREAM__EPSILON``."""
    return ENV_PREFIX + "__".join(path).upper()


def _environment() -> dict[str, str]:
    """As pydantic-settings reads it: case does not matter."""
    return {name.upper(): value for name, value in os.environ.items()}


def deciding_variable(path: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The variable that sets the value at a path, and where in its JSON.

    Parameters
    ----------
    path : sequence of str
        As in ``("stream", "cap", "epsilon")``, which the variables of
        ``stream.cap`` and of ``stream`` can set too, as JSON.

    Returns
    -------
    (variable, rest) or None
        None where the environment leaves it to the file.
    """
    environment = _environment()
    for length in range(len(path), 0, -1):
        variable = variable_of(path[:length])
        if variable in environment:
            keys = _keys(environment[variable], path[length:])
            if keys is not None:
                return variable, keys
    return None


def _keys(text: str, path: Sequence[str]) -> Sequence[str] | None:
    """The keys that lead along a path in the JSON of a variable; None if it does not set that value."""
    value: Any = json.loads(text) if _is_json(text) else text
    for depth, name in enumerate(path):
        if not isinstance(value, dict):
            return path[:depth]
        if name not in value:
            return None
        value = value[name]
    return path


def unreadable_section(names: Iterable[str]) -> str | None:
    """The variable of the first section that is no JSON."""
    environment = _environment()
    variables = (variable_of([name]) for name in names)
    return next((v for v in variables if v in environment and not _is_json(environment[v])), None)


def environment_streams() -> list[Any] | None:
    """The list of streams in ``STREAMING_PCA_STREAMS``; None where it is not set.

    Raises
    ------
    ConfigurationError
        If it is no JSON, or no list.
    """
    text = _environment().get(STREAMS_VARIABLE)
    if text is None:
        return None
    if not _is_json(text):
        raise ConfigurationError(f"environment: {STREAMS_VARIABLE}: is not JSON")
    found = json.loads(text)
    if not isinstance(found, list) or not found:
        raise ConfigurationError(f"environment: {STREAMS_VARIABLE}: must be a list of tables")
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
