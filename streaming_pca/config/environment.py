"""Environment variables of settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import Settings

ENV_PREFIX = "STREAMING_PCA_"
STREAMS_VARIABLE = f"{ENV_PREFIX}STREAMS"
OPTIONS = ("stream", "options")  # path of the estimator's options
SPARK_CONF = ("spark", "conf")  # path of Spark's own settings
NO_SETTINGS = frozenset({f"{ENV_PREFIX}KAFKA_JARS"})
"""Variables of this package that are not settings (:mod:`streaming_pca.dev.jars`)."""
_ONE_PORT = "_PORT_[0-9]+_(TCP|UDP|SCTP)"
_OF_A_SERVICE = {
    f"_SERVICE_HOST|{_ONE_PORT}_ADDR": "[0-9a-fA-F:.]+",
    f"_SERVICE_PORT(_[A-Z0-9_]+)?|{_ONE_PORT}_PORT": "[0-9]+",
    f"{_ONE_PORT}_PROTO": "tcp|udp|sctp",
    f"_PORT|{_ONE_PORT}": "(tcp|udp|sctp)://.+:[0-9]+",
}
"""Name endings and value patterns of the variables that Kubernetes sets in pods for a Service."""
SECRETS = frozenset(
    {("kafka", "sasl_password"), ("http", "token"), ("http", "metrics_token"), ("registry", "password")}
)
"""Paths of the settings that only the environment may contain; a file contains ``NAME_file`` instead."""


def variable_name(path: Sequence[str]) -> str:
    """Return the environment variable of a setting: ``STREAMING_PCA_STREAM__EPSILON``."""
    return ENV_PREFIX + "__".join(path).upper()


def _environment() -> dict[str, str]:
    """Return all variables in upper case, because pydantic-settings ignores case."""
    return {name.upper(): value for name, value in os.environ.items()}


def deciding_variable(path: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return the variable that sets a value, and the value's path in its JSON; None if no variable does.

    ``stream.cap.epsilon`` can also be set, as JSON, by the variables of ``stream.cap`` and ``stream``.
    """
    environment = _environment()
    for length in range(len(path), 0, -1):
        variable = variable_name(path[:length])
        if variable in environment:
            keys = _keys(environment[variable], path[length:])
            if keys is not None:
                return variable, keys
    return None


def _keys(text: str, path: Sequence[str]) -> Sequence[str] | None:
    """Return the keys along a path in a variable's JSON; None if it does not set that value."""
    value: Any = json.loads(text) if _is_json(text) else text
    for depth, name in enumerate(path):
        if not isinstance(value, dict):
            return path[:depth]
        if name not in value:
            return None
        value = value[name]
    return path


def check_environment() -> None:
    """Refuse tables that are not JSON, and parts of the list of streams."""
    for variable, path, text in _settings():
        if path[0] == "streams" and len(path) > 1:
            raise ConfigurationError(
                f"environment: {variable}: the list of streams is set as a whole, in JSON, by "
                f"{STREAMS_VARIABLE}"
            )
        # pydantic-settings raises an error without the variable's name for these.
        if (len(path) == 1 or path in (OPTIONS, SPARK_CONF)) and _is_known(path) and not _is_json(text):
            raise ConfigurationError(f"environment: {variable}: is not JSON")


def unknown_variables() -> list[tuple[str, tuple[str, ...], str]]:
    """Return the variables with the prefix but no known section: name, path and value."""
    return [found for found in _settings() if not _is_known(found[1])]


def variables_below(path: Sequence[str]) -> list[str]:
    """Return the variables that set a part of a setting's value."""
    return [variable for variable in _environment() if variable.startswith(f"{variable_name(path)}__")]


def _settings() -> Iterator[tuple[str, tuple[str, ...], str]]:
    for variable, text in _environment().items():
        is_own = variable.startswith(ENV_PREFIX) and variable not in NO_SETTINGS
        if is_own and not _is_of_a_service(variable, text):
            yield variable, tuple(variable.removeprefix(ENV_PREFIX).lower().split("__")), text


def _is_of_a_service(variable: str, text: str) -> bool:
    """Return whether Kubernetes sets this variable in pods, for a Service called ``streaming-pca...``."""
    # Compares the value too, because a mistaken STREAMING_PCA_HTTP_PORT = 9464 must be refused.
    return "__" not in variable and any(
        re.search(f"({end})$", variable) and re.fullmatch(value, text) for end, value in _OF_A_SERVICE.items()
    )


def _is_known(path: tuple[str, ...]) -> bool:
    return path[0] in (*Settings.model_fields, "streams")


class _Environment(Settings, BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__")


def environment_tables() -> dict[str, Any]:
    """Return the environment's settings as sections, as checked by :func:`check_environment`."""
    return EnvSettingsSource(_Environment)()


def environment_streams() -> list[Any] | None:
    """Return the list in ``STREAMING_PCA_STREAMS``, JSON that was checked before; None if not set."""
    text = _environment().get(STREAMS_VARIABLE)
    if text is None:
        return None
    found = json.loads(text)
    if not isinstance(found, list) or not found:
        raise ConfigurationError(f"environment: {STREAMS_VARIABLE}: must be a list of tables")
    return found


def home_of_streams(path: Path) -> str:
    """Return the origin of the list of streams, for messages: a file or the environment."""
    return f"{path}" if environment_streams() is None else f"environment: {STREAMS_VARIABLE}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
