"""Settings from a TOML file and the environment; each problem is a line with its origin.

An unknown name is replaced by a setting that it resembles, which is not reported as missing then.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from streaming_pca.config.environment import (
    OPTIONS,
    SECRETS,
    check_environment,
    deciding_variable,
    environment_streams,
    environment_tables,
    home_of_streams,
    unknown_variables,
    variable_name,
    variables_below,
)
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.schema import every_setting
from streaming_pca.config.settings import Settings, StreamSettings, parse_options, subject_name
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.validation_errors import list_problems, meant, nearest, options_problems, table_model

Place = tuple[str, ...]
Tables = dict[str, Any]

_FORMER = {("stream", "content_type"): ("stream", "format")}  # current names of renamed settings
_SECTIONS: dict[str, Any] = {name: table_model(f.annotation) for name, f in Settings.model_fields.items()}


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


class StreamReader:
    """Reader of the sections for one stream, from its table ``where``: "stream", or "streams[2]".

    ``own`` is its table in ``[[streams]]``, {} without such a list; ``tables`` are the file's sections, with
    the environment's overrides. ``unknown`` and ``wrong`` are lines about names, and about values.
    """

    def __init__(self, path: Path, where: str, own: Tables, tables: Tables) -> None:
        self._path, self._where, self._own = path, where, own
        self._tables = copy.deepcopy(tables)
        self._moved: dict[Place, Place] = {}
        self.unknown: list[str] = []
        self.wrong: list[str] = []

    def read(self) -> Settings | None:
        """Return the settings; None if they are wrong."""
        self._rename_unknown()
        try:
            settings = Settings.model_validate(self._tables)
        except ValidationError as error:
            for place, message in list_problems(error, Settings):
                if place == ("registry",) and "registry" not in self._tables:
                    place = ("stream",)
                lines = [message] if len(place) > 1 else self._together(place, message)
                self.wrong += [f"{self._label(place)}: {line}" for line in lines]
        else:
            return None if self.unknown else settings
        for place, message in self._options_problems():
            lines = self.unknown if ": no such setting" in message else self.wrong
            lines.append(f"{self._label(place)}: {message}")
        return None

    def unusable(self) -> Iterator[str]:
        """Yield the problems of files, and of open access, in sections that are right."""
        for name in ("kafka", "http", "registry"):
            try:
                _SECTIONS[name].model_validate(self._tables.get(name, {})).check_files()
            except ValidationError:
                continue
            except ConfigurationError as error:
                yield from error.lines

    def _rename_unknown(self) -> None:
        """Move values of unknown names to settings that they resemble; only estimators know options."""
        moved: list[tuple[Place, Any]] = []

        def visit(table: Any, model: type[BaseModel] | None, place: Place) -> None:
            if model is None or not isinstance(table, dict):
                return
            for name in list(table):
                here = (*place, name)
                if name in model.model_fields:
                    visit(table[name], table_model(model.model_fields[name].annotation), here)
                    continue
                there = _setting_meant(here, model)
                self.unknown.append(f"{self._label(here)}: no such setting{_hint(here, there)}")
                value = table.pop(name)
                if there is not None:
                    moved.append((there, value))
                    self._moved[there] = here

        for name in (each for each in _SECTIONS if each in self._tables):
            visit(self._tables[name], _SECTIONS[name], (name,))
        for place, value in moved:
            _put(self._tables, place, value)

    def _options_problems(self) -> Iterator[tuple[Place, str]]:
        """Yield the problems of options, which do not depend on other settings."""
        stream = self._tables.get("stream")
        stream = stream if isinstance(stream, dict) else {}
        estimator = stream.get("estimator", StreamSettings.model_fields["estimator"].default)
        options = stream.get("options", {})
        if estimator in ESTIMATORS and isinstance(options, dict):
            kind = ESTIMATORS[estimator].options_type
            for place, message in options_problems(kind, parse_options(options)):
                words = [f"options of {estimator}", *filter(None, [".".join(place)]), message]
                yield (*OPTIONS, *place[:1]), ": ".join(words)

    def _together(self, place: Place, message: str) -> Iterator[str]:
        """Yield the problems of a section's combined settings, with the variables that set them."""
        table = self._tables.get(place[0]) if place else None
        for line in message.splitlines():
            if line.startswith("options of "):
                # Options are described one by one elsewhere.
                continue
            variables: list[str] = []
            for name in table if isinstance(table, dict) else ():
                if re.search(rf"\b{re.escape(name)}\b", line):
                    variables += (deciding_variable((place[0], name)) or ())[:1]
            yield f"{line} ({' and '.join(variables)} of the environment)" if variables else line

    def _label(self, place: Place) -> str:
        """Return the name of a setting with its origin: a variable or a place in the file."""
        source = self._moved.get(place, place)
        is_option = place[:2] == OPTIONS and len(place) > 2
        decided = deciding_variable(source)
        if decided is None and len(place) > 2 and not is_option:
            # A variable contains the table without this setting.
            outer = deciding_variable(place[:-1])
            decided = None if outer is None else (outer[0], [*outer[1], place[-1]])
        if decided is None and len(place) > 1:
            # STREAMING_PCA_STREAM__EPSILON__X turns a number into a table.
            decided = next(((variable, ()) for variable in variables_below(place)), None)
        # A problem of a whole section is a conflict between settings, which may have several origins.
        if decided is not None and (len(place) > 1 or not isinstance(self._tables.get(place[0]), dict)):
            variable, rest = decided
            return ": ".join(["environment", variable, *([] if is_option else [".".join(rest)] * bool(rest))])
        shown = place[:1] if is_option else place
        stream = self._tables.get("stream")
        common = len(shown) > 1 and isinstance(stream, dict) and shown[1] in stream
        if place[0] != "stream" or self._where == "stream" or (common and source[1] not in self._own):
            return f"{self._path}: {'.'.join(shown)}"
        return ".".join([f"{home_of_streams(self._path)}: {self._where}", *shown[1:]])


def rename_sections(path: Path, tables: Mapping[str, Any]) -> tuple[Tables, list[str]]:
    """Return a file's sections under known names, and a line for each unknown name."""
    known = {name: value for name, value in tables.items() if name in (*_SECTIONS, "streams")}
    lines = []
    for name in (each for each in tables if each not in known):
        there = _section_meant(name, tables[name])
        lines.append(f"{path}: {name}: no such setting{_hint((name,), there)}")
        if there is not None:
            _put(known, there, tables[name])
    return known, lines


def rename_variables(tables: Tables) -> list[str]:
    """Add the unknown variables' values to the environment's tables, and describe each in a line."""
    known = {"__".join(setting.path): setting.path for setting in every_setting()}
    known |= {name: (name,) for name in (*_SECTIONS, "streams")}
    lines = []
    for variable, path, value in unknown_variables():
        near = nearest("__".join(path), known)
        hint = meant(None if near is None else variable_name(known[near]))
        lines.append(f"environment: {variable}: no such setting{hint}")
        if near is not None and len(known[near]) > 1:
            _put(tables, known[near], value)
    return lines


def _hint(here: Place, there: Place | None) -> str:
    """Return the end of a message about an unknown name: the intended name or section."""
    if there is None:
        return ""
    decided = deciding_variable(here)
    if decided is not None and not decided[1]:
        return meant(variable_name(there))
    if len(there) == 1:
        return meant("[[streams]]" if there == ("streams",) else f"[{there[0]}]")
    if there[:-1] == here[:-1]:
        return meant(there[-1])
    home = f"[{'.'.join(there[:-1])}]"
    return f"; it belongs in {home}" if there[-1] == here[-1] else meant(f"{there[-1]} in {home}")


def _homes() -> dict[str, Place]:
    """Return the place of each setting by its name; the outermost place if several exist."""
    places = sorted((setting.path for setting in every_setting()), key=len, reverse=True)
    # A file must not contain a secret.
    return {place[-1]: place for place in places if place not in SECRETS}


def _section_meant(name: str, value: Any) -> Place | None:
    if isinstance(value, dict | list):
        # A list of tables can only be [[streams]].
        near = nearest(name, ["streams"] if isinstance(value, list) else [*_SECTIONS, "streams"])
        return None if near is None else (near,)
    homes = _homes()
    near = nearest(name, homes)
    return None if near is None else homes[near]


def _setting_meant(here: Place, model: type[BaseModel]) -> Place | None:
    homes = _homes()
    if here in _FORMER:
        return _FORMER[here]
    if here[-1] in homes:
        return homes[here[-1]]
    near = nearest(here[-1], [name for name in model.model_fields if (*here[:-1], name) not in SECRETS])
    return None if near is None else (*here[:-1], near)


def _put(tables: Tables, place: Place, value: Any) -> None:
    """Set a value unless it is already set."""
    *path, name = place
    for each in path:
        tables = tables.setdefault(each, {})
        if not isinstance(tables, dict):
            return
    tables.setdefault(name, value)
