"""Reader of one stream's settings, which describes each problem in a line with its origin.

An unknown name is replaced by a setting that it resembles, which is not reported as missing then.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from streaming_pca.config.environment import (
    OPTIONS,
    SECRETS,
    deciding_variable,
    home_of_streams,
    unknown_variables,
    variable_name,
    variables_below,
)
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.schema import every_setting
from streaming_pca.config.settings import Settings, StreamSettings, parse_options
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.validation_errors import list_problems, meant, nearest, options_problems, table_model

Place = tuple[str, ...]
Tables = dict[str, Any]

_FORMER = {("stream", "content_type"): ("stream", "format")}  # current names of renamed settings
_SECTIONS: dict[str, Any] = {name: table_model(f.annotation) for name, f in Settings.model_fields.items()}


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
