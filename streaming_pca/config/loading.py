"""Settings from a TOML file and the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from streaming_pca.config.environment import (
    OPTIONS,
    SECRETS,
    STREAMS_VARIABLE,
    check_environment,
    deciding_variable,
    environment_streams,
    unknown_variables,
    variable_of,
    variables_below,
)
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.problems import (
    Place,
    Tables,
    environment_tables,
    read_written,
    take_unknown,
    unknown_line,
    value_problems,
)
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import Settings, StreamSettings, subject_name
from streaming_pca.validation import problems_of


def load_settings(path: Path, stream: str | None = None) -> Settings:
    """Read one stream from a TOML file; see :func:`load_streams`.

    Parameters
    ----------
    stream : str, optional
        Name of the stream; required if the file has several.

    Raises
    ------
    ConfigurationError
        The message has a line for each problem, with the file or the variable, and the setting.
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
    """Read a TOML file of one or several streams.

    ``[stream]`` is the only stream, or contains the common settings of all ``[[streams]]``. Environment
    variables (``STREAMING_PCA_STREAM__EPSILON``) override the file for each stream;
    ``STREAMING_PCA_STREAMS`` replaces the list ``[[streams]]``, as JSON.

    Raises
    ------
    ConfigurationError
        The message has a line for each problem, with the file or the variable, and the setting.
    """
    text = _read(path)
    check_environment()
    values = _parsed(path, text)
    _refuse_secrets(path, values)
    streams = _listed_streams(path, values)
    tables = _tables_of_streams(path, values, streams)
    try:
        found = [Settings(**table) for _, table in tables]
    except ValidationError:
        found = []
    if not found or unknown_variables():
        # Not within the handler, because the first error contains the values, perhaps a password.
        raise ConfigurationError(*(_all_problems(path, text) or [f"{path}: is not valid"]))
    names = [settings.stream.name for settings in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{_home_of_streams(path)}: streams: {name!r} is listed twice")
    _refuse_outputs(_home_of_streams(path), [settings.stream for settings in found])
    return tuple(found)


def load_registry(path: Path, stream: str | None = None) -> tuple[RegistrySettings, str]:
    """Read the registry and a stream's subject from a file, which may lack features.

    Parameters
    ----------
    stream : str, optional
        Name of the stream; required if the file has several.

    Raises
    ------
    ConfigurationError
    """
    values = _parsed(path, _read(path))
    check_environment()
    _refuse_secrets(path, values)
    table = values.get("registry", {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: registry: must be a table")
    settings = registry_of(table, path)
    tables = [each["stream"] for _, each in _tables_of_streams(path, values, _listed_streams(path, values))]
    known = [each for each in tables if stream is None or each.get("name") == stream]
    if len(known) != 1:
        raise ConfigurationError(f"{path}: holds {len(known)} such streams: name one with --stream")
    subject, topic = known[0].get("subject"), known[0].get("input")
    if not isinstance(subject or topic, str):
        raise ConfigurationError(f"{path}: stream.input: must be set")
    return settings, subject_name(subject or None, topic)


def registry_of(table: Mapping[str, Any], path: Path | None = None) -> RegistrySettings:
    """Return the registry settings from a table and the environment.

    Parameters
    ----------
    path : Path, optional
        File of the table; the environment overrides it. Without a file, the table contains command-line
        options, which override the environment.

    Raises
    ------
    ConfigurationError
    """
    environment = EnvSettingsSource(Settings)().get("registry") or {}
    both = {**environment, **table} if path is None else {**table, **environment}
    try:
        return RegistrySettings(**both)
    except ValidationError as error:
        lines = []
        for place, message in problems_of(error, RegistrySettings):
            decided = deciding_variable(("registry", *place)) if place and place[0] in environment else None
            here = f"{path}: {'.'.join(['registry', *place])}" if path else "--registry"
            lines.append(f"{here if decided is None else f'environment: {decided[0]}'}: {message}")
    # Not within the handler, because the error contains the values, perhaps a password.
    raise ConfigurationError(*lines)


def load_together(paths: Sequence[Path], ignored: Collection[str] = ()) -> tuple[Settings, ...]:
    """Read the streams of several files for one process.

    Parameters
    ----------
    ignored : collection of str
        Sections that the process does not read, so they may differ.

    Raises
    ------
    ConfigurationError
        If a file is wrong, a stream's name occurs twice, or the files differ in a section other than
        ``[stream]``.
    """
    found: list[Settings] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded = load_streams(path)
        except ConfigurationError as error:
            problems += error.lines
            continue
        for settings in loaded:
            for section in sorted(Settings.model_fields.keys() - {"stream", *ignored}):
                if found and getattr(settings, section) != getattr(found[0], section):
                    raise ConfigurationError(
                        f"{path}: {section}: differs from {paths[0]}: one process has one [{section}]"
                    )
            if any(settings.stream.name == other.stream.name for other in found):
                raise ConfigurationError(f"{path}: stream {settings.stream.name!r} is listed twice")
            found.append(settings)
    if problems:
        raise ConfigurationError(*dict.fromkeys(problems))
    _refuse_outputs(", ".join(map(str, paths)), [settings.stream for settings in found])
    return tuple(found)


def _refuse_outputs(where: str, streams: Sequence[StreamSettings]) -> None:
    """Refuse a stream that reads an output topic of a stream."""
    outputs = {topic: s.name for s in streams for topic in (s.state_topic, s.releases_topic, s.ledger_topic)}
    for stream in streams:
        if stream.input in outputs:
            raise ConfigurationError(
                f"{where}: stream {stream.name!r}: input = {stream.input!r} is written by the stream "
                f"{outputs[stream.input]!r}: name the topic of its records"
            )


def _read(path: Path) -> str:
    try:
        # Some editors write a byte order mark at the beginning.
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None


def _parsed(path: Path, text: str) -> Tables:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError(f"{path}: is not TOML: it nests too deeply") from None
    except ValueError as error:
        # Integers with thousands of digits do not raise a TOMLDecodeError.
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None


def _refuse_secrets(path: Path, values: Tables) -> None:
    for section, name in sorted(SECRETS):
        if isinstance(values.get(section), dict) and name in values[section]:
            what = "token" if section == "http" else "password"
            raise ConfigurationError(
                f"{path}: {section}.{name}: a {what} does not belong in this file: use "
                f"{section}.{name}_file, or {variable_of((section, name))}"
            )


def _tables_of_streams(path: Path, values: Tables, streams: list[Any] | None) -> list[tuple[str, Tables]]:
    """Return each stream's sections, with its table's name for messages."""
    common = values.get("stream", {})
    if not isinstance(common, dict):
        hint = "; write several as [[streams]]" if isinstance(common, list) else ""
        raise ConfigurationError(f"{path}: stream: must be a table{hint}")
    if streams is None:
        return [("stream", values)]
    found = []
    for number, own in enumerate(streams, start=1):
        where = f"streams[{number}]"
        if not isinstance(own, dict):
            raise ConfigurationError(f"{_home_of_streams(path)}: {where}: must be a table")
        found.append((where, values | {"stream": _merged(common, own)}))
    return found


def _listed_streams(path: Path, values: dict[str, Any]) -> list[Any] | None:
    """Remove the list of streams from ``values`` and return it; None without such a list."""
    streams = values.pop("streams", None)
    from_environment = environment_streams()
    if from_environment is not None:
        return from_environment
    if streams is not None and (not isinstance(streams, list) or not streams):
        raise ConfigurationError(f"{path}: streams: must be a list of tables, [[streams]]")
    common = values.get("stream")
    if streams and isinstance(common, dict) and "name" in common:
        raise ConfigurationError(
            f"{path}: stream.name: [stream] is not a stream if there are [[streams]]: leave out its name, "
            "or make it one of [[streams]]"
        )
    return streams


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge a stream's own settings over the common ones.

    Options are merged too, unless the stream sets its own estimator.
    """
    both = common | own
    shared, options = common.get("options"), own.get("options")
    if isinstance(shared, dict) and isinstance(options, dict) and "estimator" not in own:
        both["options"] = shared | options
    elif "estimator" in own and "options" not in own:
        both.pop("options", None)
    return both


def _all_problems(path: Path, text: str) -> list[str]:
    """Return one line per problem: unknown names first, each problem once."""

    def unknown_in_file(here: Place, there: Place | None) -> str:
        return unknown_line(f"{path}: {'.'.join(here)}", here, there)

    values = read_written(text)
    listed = _listed_streams(path, values)
    values, unknown = take_unknown(values, unknown_in_file)
    if listed is None and "streams" in values:
        listed = _listed_streams(path, values)
    streams = []
    for number, own in enumerate([] if listed is None else listed, start=1):
        place = f"{_home_of_streams(path)}: streams[{number}]"

        def unknown_in_stream(here: Place, there: Place | None, place: str = place) -> str:
            return unknown_line(".".join([place, *here[1:]]), here, there)

        fixed, lines = take_unknown({"stream": own}, unknown_in_stream)
        streams.append(fixed["stream"])
        unknown += lines
    environment, lines = environment_tables()
    unknown += lines
    wrong: list[str] = []
    tables_of_streams = _tables_of_streams(path, values, None if listed is None else streams)
    for number, (where, tables) in enumerate(tables_of_streams):
        own = streams[number] if streams else {}
        merged = _over(tables, environment)
        more, lines = value_problems(merged, partial(_label, path, where, own, tables, merged))
        unknown += more
        wrong += lines
    return list(dict.fromkeys([*unknown, *wrong]))


def _over(tables: Any, environment: Any) -> Any:
    """Merge the environment's tables over the file's."""
    if not (isinstance(tables, dict) and isinstance(environment, dict)):
        return environment
    both = {name: _over(tables.get(name), value) for name, value in environment.items()}
    return tables | both


def _label(path: Path, where: str, own: Tables, values: Tables, merged: Tables, place: Place) -> str:
    """Return the name of a setting with its origin: a variable or a place in the file.

    Parameters
    ----------
    where : str
        Table of the stream: "stream", or "streams[2]".
    own : dict
        The stream's own table in ``[[streams]]``; empty without such a list.
    values, merged : dict
        Sections of the file, without and with the environment's overrides.
    """
    is_option = place[:2] == OPTIONS and len(place) > 2
    decided = deciding_variable(place)
    if decided is None and len(place) > 2 and not is_option:
        # A variable contains the table without this setting.
        outer = deciding_variable(place[:-1])
        decided = None if outer is None else (outer[0], [*outer[1], place[-1]])
    if decided is None and len(place) > 1:
        # STREAMING_PCA_STREAM__EPSILON__X turns a number into a table.
        decided = next(((variable, ()) for variable in variables_below(place)), None)
    # A problem of a whole section is a conflict between settings, which may have several origins.
    if decided is not None and (len(place) > 1 or not isinstance(merged.get(place[0]), dict)):
        variable, rest = decided
        return ": ".join(["environment", variable, *([] if is_option else rest)])
    shown = place[:1] if is_option else place
    if place[0] != "stream" or where == "stream":
        return f"{path}: {'.'.join(shown)}"
    common = values.get("stream", {})
    if len(shown) > 1 and shown[1] in common and shown[1] not in own:
        return f"{path}: {'.'.join(shown)}"
    return ".".join([f"{_home_of_streams(path)}: {where}", *shown[1:]])


def _home_of_streams(path: Path) -> str:
    """Return the origin of the list of streams, for messages."""
    return f"{path}" if environment_streams() is None else f"environment: {STREAMS_VARIABLE}"
