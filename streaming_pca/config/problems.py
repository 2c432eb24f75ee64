"""All problems of a settings file and its environment, one line each, unknown names first.

For the check of the rest, an unknown name is replaced by the setting that it resembles, so that a misspelt
setting is not reported as missing too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource

from streaming_pca.config.environment import (
    OPTIONS,
    SECRETS,
    deciding_variable,
    unknown_variables,
    variable_of,
)
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.schema import every_setting
from streaming_pca.config.settings import Settings, StreamSettings, check_registry, parse_options
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.validation import meant, model_of, nearest, options_problems, problems_of

Place = tuple[str, ...]
Tables = dict[str, Any]
Describe = Callable[[Place, Place | None], str]

_FORMER = {("stream", "content_type"): ("stream", "format")}
"""Current names of renamed settings."""
_SECTIONS = {name: model_of(field.annotation) for name, field in Settings.model_fields.items()}


class _Written(float):
    """Number that prints in its original spelling."""

    text: str

    def __new__(cls, text: str) -> _Written:
        """Keep the text together with the number."""
        number = super().__new__(cls, text.replace("_", ""))
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def read_written(text: str) -> Tables:
    """Parse TOML; decimal numbers keep their spelling in messages."""
    return tomllib.loads(text, parse_float=_Written)


# -- unknown names ---------------------------------------------------------


def take_unknown(tables: Mapping[str, Any], describe: Describe) -> tuple[Tables, list[str]]:
    """Move unknown names to the settings that they resemble, and describe each in a line.

    Options are not changed, because the estimator decides which are known.

    Parameters
    ----------
    tables : mapping
        Sections.
    describe : callable
        Returns a line about an unknown name, from its place and the intended place.
    """
    fixed: Tables = {}
    lines: list[str] = []
    moved: list[tuple[Place, Any]] = []

    def known_part(table: Any, model: type[BaseModel] | None, place: Place) -> Any:
        if model is None or not isinstance(table, dict):
            return table
        kept = {}
        for name, value in table.items():
            here = (*place, name)
            if name in model.model_fields:
                kept[name] = known_part(value, model_of(model.model_fields[name].annotation), here)
            else:
                move(here, _setting_meant(here, model), value)
        return kept

    def move(here: Place, there: Place | None, value: Any) -> None:
        lines.append(describe(here, there))
        if there is not None:
            moved.append((there, value))

    for name, value in tables.items():
        if name not in _SECTIONS:
            move((name,), _section_meant(name, value), value)
    sections = {name: value for name, value in tables.items() if name in _SECTIONS}
    while moved:
        _put(sections, *moved.pop(0))
    for name in sorted(sections, key=[*_SECTIONS, "streams"].index):
        fixed[name] = known_part(sections[name], _SECTIONS.get(name), (name,))
    for place, value in moved:
        _put(fixed, place, value)
    return fixed, lines


def unknown_line(label: str, here: Place, there: Place | None) -> str:
    """Describe an unknown name, with the intended name or section."""
    hint = ""
    if there is not None and len(there) == 1:
        hint = meant("[[streams]]" if there == ("streams",) else f"[{there[0]}]")
    elif there is not None and there[:-1] == here[:-1]:
        hint = meant(there[-1])
    elif there is not None:
        home = f"[{'.'.join(there[:-1])}]"
        hint = f"; it belongs in {home}" if there[-1] == here[-1] else meant(f"{there[-1]} in {home}")
    return f"{label}: no such setting{hint}"


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


def environment_tables() -> tuple[Tables, list[str]]:
    """Return the environment's settings as sections, and a line for each unknown variable."""
    fixed, lines = take_unknown(EnvSettingsSource(Settings)(), _unknown_in_environment)
    known = {"__".join(setting.path): setting.path for setting in every_setting()}
    known |= {name: (name,) for name in (*_SECTIONS, "streams")}
    for variable, path, value in unknown_variables():
        near = nearest("__".join(path), known)
        hint = meant(None if near is None else variable_of(known[near]))
        lines.append(f"environment: {variable}: no such setting{hint}")
        if near is not None and len(known[near]) > 1:
            _put(fixed, known[near], value)
    return fixed, lines


def _unknown_in_environment(here: Place, there: Place | None) -> str:
    decided = deciding_variable(here)
    assert decided is not None, f"{here} was read from the environment"
    variable, rest = decided
    if rest:
        return unknown_line(f"environment: {variable}: {'.'.join(rest)}", here, there)
    hint = meant(None if there is None else variable_of(there))
    return f"environment: {variable}: no such setting{hint}"


# -- wrong values ----------------------------------------------------------


def value_problems(tables: Mapping[str, Any], label: Callable[[Place], str]) -> tuple[list[str], list[str]]:
    """Return lines on a stream's unknown options, and on its wrong or missing values.

    Parameters
    ----------
    tables : mapping
        Sections of one stream without unknown names, with the environment's overrides.
    label : callable
        Returns a place with its origin, for messages.
    """
    lines = []
    valid: dict[str, Any] = {}
    for name, model in _SECTIONS.items():
        assert model is not None, f"{name} is not a section"
        if name not in tables:
            if Settings.model_fields[name].is_required():
                lines.append(f"{label((name,))}: must be set")
            continue
        try:
            valid[name] = model.model_validate(tables[name])
        except ValidationError as error:
            for place, message in problems_of(error, model):
                found = [message] if place else _together(tables[name], message)
                lines += [f"{label((name, *place))}: {line}" for line in found]
    lines += [f"{label(place)}: {line}" for place, line in _between_sections(tables, valid)]
    stream = tables.get("stream")
    options: Any = {}
    estimator = StreamSettings.model_fields["estimator"].default
    if isinstance(stream, dict):
        options, estimator = stream.get("options", options), stream.get("estimator", estimator)
    unknown: list[str] = []
    if estimator in ESTIMATORS and isinstance(options, dict):
        for place, message in options_problems(ESTIMATORS[estimator].options_type, parse_options(options)):
            text = ": ".join([f"options of {estimator}", *filter(None, [".".join(place)]), message])
            line = f"{label((*OPTIONS, *place[:1]))}: {text}"
            (unknown if message.startswith("no such") else lines).append(line)
    return unknown, lines


def _between_sections(tables: Mapping[str, Any], valid: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield places and descriptions of conflicts between individually valid sections."""
    stream, registry = valid.get("stream"), valid.get("registry")
    if isinstance(stream, StreamSettings) and (registry is not None or "registry" not in tables):
        assert registry is None or isinstance(registry, RegistrySettings)
        try:
            check_registry(stream, registry)
        except ValueError as error:
            yield ("stream",), str(error)


def _together(table: Any, message: str) -> list[str]:
    """Return the problems of a section's combined settings, with numbers in their original spelling."""
    found = []
    for line in message.splitlines():
        if line.startswith("options of "):
            # Options are described one by one elsewhere.
            continue
        for name, value in table.items() if isinstance(table, dict) else ():
            if name in line and not isinstance(value, bool):
                line = _as_written(line, value)
        found.append(line)
    return found


def _as_written(line: str, value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return line
    for shown in (repr(number), f"{number:g}"):
        line = re.sub(rf"(?<![\w.]){re.escape(shown)}(?![\w.])", str(value), line)
    return line
