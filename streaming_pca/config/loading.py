"""Settings from a TOML file and the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streaming_pca.config.environment import (
    STREAMS_VARIABLE,
    check_environment,
    deciding_variable,
    environment_streams,
)
from streaming_pca.config.settings import ConfigurationError, Settings
from streaming_pca.estimators.base import first_problem

__all__ = ["load_settings", "load_streams", "load_together"]


def load_settings(path: Path, stream: str | None = None) -> Settings:
    """Read one stream from a TOML file; see :func:`load_streams`.

    Parameters
    ----------
    path : Path
    stream : str, optional
        Name of the stream; needed if the file holds several.

    Raises
    ------
    ConfigurationError
        One line that names the file and the setting.
    """
    found = load_streams(path)
    names = ", ".join(settings.stream.name for settings in found)
    if stream is not None:
        for settings in found:
            if settings.stream.name == stream:
                return settings
        raise ConfigurationError(f"{path}: no stream {stream!r}; it has {names}")
    if len(found) > 1:
        raise ConfigurationError(f"{path}: holds several streams ({names}): name one with --stream")
    return found[0]


def load_streams(path: Path) -> tuple[Settings, ...]:
    """Read a TOML file of one stream or several.

    ``[stream]`` is the only stream, or holds the settings that all of
    ``[[streams]]`` share. Environment variables
    (``STREAMING_PCA_STREAM__EPSILON``) override the file for each stream;
    ``STREAMING_PCA_STREAMS`` replaces the list ``[[streams]]``, as JSON.

    Raises
    ------
    ConfigurationError
        One line that names the file and the setting.
    """
    values = _read(path)
    check_environment()
    if isinstance(values.get("kafka"), dict) and "sasl_password" in values["kafka"]:
        raise ConfigurationError(
            f"{path}: kafka.sasl_password: a password does not belong in this file: use "
            "kafka.sasl_password_file, or STREAMING_PCA_KAFKA__SASL_PASSWORD"
        )
    common = values.get("stream", {})
    streams = _listed_streams(path, values)
    if not isinstance(common, dict):
        raise ConfigurationError(f"{path}: stream: must be a table")
    if streams is None:
        return (_load(path, values, "stream"),)
    found = []
    for number, own in enumerate(streams, start=1):
        where = f"streams[{number}]"
        if not isinstance(own, dict):
            raise ConfigurationError(f"{_home_of_streams(path)}: {where}: must be a table")
        found.append(_load(path, values | {"stream": _merged(common, own)}, where))
    names = [settings.stream.name for settings in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{_home_of_streams(path)}: streams: {name!r} is there twice")
    return tuple(found)


def load_together(paths: Sequence[Path]) -> tuple[Settings, ...]:
    """Read the streams of several files for one process.

    Raises
    ------
    ConfigurationError
        If a file is wrong, a stream's name occurs twice, or the files differ in
        another section than ``[stream]``.
    """
    found: list[Settings] = []
    for path in paths:
        for settings in load_streams(path):
            for section in sorted(Settings.model_fields.keys() - {"stream"}):
                if found and getattr(settings, section) != getattr(found[0], section):
                    raise ConfigurationError(
                        f"{path}: {section}: differs from {paths[0]}: one process has one [{section}]"
                    )
            if any(settings.stream.name == other.stream.name for other in found):
                raise ConfigurationError(f"{path}: stream {settings.stream.name!r} is there twice")
            found.append(settings)
    return tuple(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None


def _listed_streams(path: Path, values: dict[str, Any]) -> list[Any] | None:
    """Remove the list of streams from ``values`` and return it; None if there is only ``[stream]``."""
    streams = values.pop("streams", None)
    from_environment = environment_streams()
    if from_environment is not None:
        return from_environment
    if streams is not None and (not isinstance(streams, list) or not streams):
        raise ConfigurationError(f"{path}: streams: must be a list of tables, [[streams]]")
    return streams


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge a stream's own settings over the common ones.

    Options are merged too unless the stream names an estimator of its own.
    """
    both = common | own
    shared, options = common.get("options"), own.get("options")
    if isinstance(shared, dict) and isinstance(options, dict) and "estimator" not in own:
        both["options"] = shared | options
    elif "estimator" in own and "options" not in own:
        both.pop("options", None)
    return both


def _load(path: Path, values: dict[str, Any], where: str) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigurationError(_located(path, where, error)) from None


def _located(path: Path, where: str, error: ValidationError) -> str:
    """Describe the first problem and the place to correct it: a variable, or the file."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    problem = first_problem(error)
    decided = deciding_variable(location)
    # A problem of a whole section is a conflict of its settings, which may have several origins.
    if decided is not None and (len(location) > 1 or first["type"] == "model_type"):
        variable, rest = decided
        return ": ".join(["environment", variable, *rest, problem.partition(": ")[2]])
    if location[0] != "stream" or where == "stream":
        return f"{path}: {problem}"
    return f"{_home_of_streams(path)}: {where}{problem.removeprefix('stream')}"


def _home_of_streams(path: Path) -> str:
    """Name the origin of the list of streams in messages."""
    return f"{path}" if environment_streams() is None else f"environment: {STREAMS_VARIABLE}"
