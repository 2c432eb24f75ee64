"""Settings from a TOML file and the environment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streaming_pca.config.environment import (
    SECRETS,
    check_environment,
    deciding_variable,
    environment_streams,
    environment_tables,
    home_of_streams,
    variable_name,
)
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.reader import StreamReader, Tables, rename_sections, rename_variables
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import Settings, StreamSettings, subject_name
from streaming_pca.validation_errors import list_problems


def load_settings(path: Path, stream: str | None = None) -> Settings:
    """Read one stream from a TOML file, by its name if the file has several."""
    found = load_streams(path)
    names = ", ".join(settings.stream.name for settings in found)
    if stream is None and len(found) > 1:
        raise ConfigurationError(f"{path}: holds several streams ({names}): name one with --stream")
    chosen = [settings for settings in found if stream in (None, settings.stream.name)]
    if not chosen:
        raise ConfigurationError(f"{path}: no stream {stream!r}; it has {names}")
    return chosen[0]


def load_streams(path: Path, files: bool = False) -> tuple[Settings, ...]:
    """Read a TOML file of one or several streams.

    ``[stream]`` is the only stream, or contains the common settings of all ``[[streams]]``. Environment
    variables (``STREAMING_PCA_STREAM__EPSILON``) override the file for each stream;
    ``STREAMING_PCA_STREAMS`` replaces the list ``[[streams]]``, as JSON. ``files``: check other files too.
    """
    tables = _read(path)
    found, lines = _checked(path, tables, files)
    if lines:
        raise ConfigurationError(*lines)
    names = [settings.stream.name for settings in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{home_of_streams(path)}: streams: {name!r} is listed twice")
    _refuse_outputs(home_of_streams(path), [settings.stream for settings in found])
    return tuple(found)


def load_registry(path: Path, stream: str | None = None) -> tuple[RegistrySettings, str]:
    """Read the registry and a stream's subject from a file, which may lack features."""
    values = _read(path)
    table = values.get("registry", {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: registry: must be a table")
    settings = registry_settings(table, path)
    tables = [sections["stream"] for _, _, sections in _split(path, values)]
    known = [each for each in tables if stream is None or each.get("name") == stream]
    if len(known) != 1:
        raise ConfigurationError(f"{path}: holds {len(known)} such streams: name one with --stream")
    subject, topic = known[0].get("subject"), known[0].get("input")
    if not isinstance(subject or topic, str):
        raise ConfigurationError(f"{path}: stream.input: must be set")
    return settings, subject_name(subject or None, topic)


def registry_settings(table: Mapping[str, Any], path: Path | None = None) -> RegistrySettings:
    """Return the registry settings from a table and the environment, which overrides a file's table.

    Without a file, the table contains command-line options, which override the environment.
    """
    environment = environment_tables().get("registry") or {}
    both = {**environment, **table} if path is None else {**table, **environment}
    try:
        return RegistrySettings(**both)
    except ValidationError as error:
        lines = []
        for place, message in list_problems(error, RegistrySettings):
            decided = deciding_variable(("registry", *place)) if place and place[0] in environment else None
            here = f"{path}: {'.'.join(['registry', *place])}" if path else "--registry"
            lines.append(f"{here if decided is None else f'environment: {decided[0]}'}: {message}")
    # Not within the handler, because the error contains the values, perhaps a password.
    raise ConfigurationError(*lines)


def load_together(paths: Sequence[Path], ignored: Collection[str] = ()) -> tuple[Settings, ...]:
    """Read one process's streams from files, which may differ in ``[stream]`` and ``ignored``."""
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
                first, own = (getattr(each, section) for each in ((found or loaded)[0], settings))
                if section == "http" and "http.port" in ignored:
                    own = own.model_copy(update={"port": first.port})
                if own != first:
                    raise ConfigurationError(
                        f"{path}: {section}: differs from {paths[0]}: one process has one [{section}]: "
                        "make both alike, or start a process for each file"
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


def _read(path: Path) -> Tables:
    """Read a file's tables; refuse secrets in them, and variables that cannot be read."""
    try:
        # Some editors write a byte order mark at the beginning.
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is not TOML: it nests too deeply") from None
    except ValueError as error:
        # Integers with thousands of digits do not raise a TOMLDecodeError.
        raise ConfigurationError(f"{path}: {_toml_problem(str(error))}") from None
    check_environment()
    for section, name in sorted(SECRETS):
        if isinstance(tables.get(section), dict) and name in tables[section]:
            what = "token" if section == "http" else "password"
            raise ConfigurationError(
                f"{path}: {section}.{name}: a {what} does not belong in this file: use "
                f"{section}.{name}_file, or {variable_name((section, name))}"
            )
    return tables


def _toml_problem(message: str) -> str:
    """Describe a failure of tomllib; name a section or setting that is written twice."""
    line = re.search(r"\(at line (\d+)", message)
    where = "" if line is None else f"line {line[1]}: "
    if (section := re.match(r"Cannot declare \((.*)\) twice", message)) is not None:
        name = ".".join(re.findall(r"'([^']*)'", section[1]))
        hint = "; write several streams as [[streams]]" if name == "stream" else ""
        return f"{where}the section [{name}] is there twice: join the two{hint}"
    if message.startswith("Cannot overwrite a value"):
        return f"{where}the setting is there twice: leave out one of them"
    return f"is not TOML: {message}"


def _checked(path: Path, tables: Tables, files: bool) -> tuple[list[Settings], list[str]]:
    """Return the streams' settings, or a line for each problem: unknown names first, each problem once."""
    sections, unknown = rename_sections(path, tables)
    environment = environment_tables()
    unknown += rename_variables(environment)
    found: list[Settings | None] = []
    wrong: list[str] = []
    for where, own, each in _split(path, sections):
        reader = StreamReader(path, where, own, _over(each, environment))
        found.append(reader.read())
        unknown += reader.unknown
        wrong += [*reader.wrong, *(reader.unusable() if files else ())]
    lines = list(dict.fromkeys([*unknown, *wrong]))
    return [settings for settings in found if settings is not None], lines


def _split(path: Path, sections: Tables) -> list[tuple[str, Tables, Tables]]:
    """Return the name of each stream's table, its own settings and its sections."""
    listed, common = sections.get("streams"), sections.get("stream", {})
    if not isinstance(common, dict):
        hint = "; write several as [[streams]]" if isinstance(common, list) else ""
        raise ConfigurationError(f"{path}: stream: must be a table{hint}")
    if (from_environment := environment_streams()) is not None:
        listed = from_environment
    elif listed is None:
        return [("stream", {}, sections)]
    elif not isinstance(listed, list) or not listed:
        raise ConfigurationError(f"{path}: streams: must be a list of tables, [[streams]]")
    elif "name" in common:
        raise ConfigurationError(
            f"{path}: stream.name: [stream] is not a stream if there are [[streams]]: leave out its name, "
            "or make it one of [[streams]]"
        )
    others = {name: table for name, table in sections.items() if name != "streams"}
    found = []
    for number, own in enumerate(listed, start=1):
        where = f"streams[{number}]"
        if not isinstance(own, dict):
            raise ConfigurationError(f"{home_of_streams(path)}: {where}: must be a table")
        found.append((where, own, others | {"stream": _merged(common, own)}))
    return found


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge a stream's settings over the common ones; options too, unless it sets an estimator."""
    both = common | own
    shared, options = common.get("options"), own.get("options")
    if isinstance(shared, dict) and isinstance(options, dict) and "estimator" not in own:
        both["options"] = shared | options
    elif "estimator" in own and "options" not in own:
        both.pop("options", None)
    return both


def _over(tables: Any, environment: Any) -> Any:
    """Merge the environment's tables over the file's."""
    if not (isinstance(tables, dict) and isinstance(environment, dict)):
        return environment
    return tables | {name: _over(tables.get(name), value) for name, value in environment.items()}
