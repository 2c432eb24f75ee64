"""Settings as Markdown, and the JSON schema of a file, both generated from the models."""

from __future__ import annotations

import copy
import json
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from streaming_pca.config.environment import OPTIONS, SECRETS, STREAMS_VARIABLE, variable_name
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.data.features.feature import Feature
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.text import one_line
from streaming_pca.validation_errors import table_model

_WORDS: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    SecretStr: "secret",
    Fraction: "ratio",
    types.NoneType: "",
}


@dataclass(frozen=True)
class Setting:
    """Texts that describe one setting, perhaps an ``estimator``'s option; ``default`` is "" if required."""

    path: tuple[str, ...]
    type: str
    default: str
    description: str
    estimator: str | None = None

    @property
    def variable(self) -> str:
        return variable_name(self.path)


def every_setting() -> list[Setting]:
    """Return all settings in the order of the models, options of estimators last."""
    found: list[Setting] = []
    for name, field in Settings.model_fields.items():
        model = table_model(field.annotation)
        assert model is not None, f"{name} is not a section"
        found += _settings_of(model, (name,))
    for name, estimator in sorted(ESTIMATORS.items()):
        found += _settings_of(estimator.options_type, OPTIONS, name)
    return found


def _settings_of(
    model: type[BaseModel], path: tuple[str, ...], estimator: str | None = None
) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        if here == OPTIONS:
            continue
        inner = table_model(field.annotation)
        if inner is None:
            type_ = ", ".join([_words(field.annotation), *filter(None, map(_limit, field.metadata))])
            yield Setting(here, type_, _default(field), _prose(field.description), estimator)
            continue
        for setting in _settings_of(inner, here):
            # The required keys of an optional table are required only if the table is given.
            description = setting.description or _prose(field.description)
            yield Setting(setting.path, setting.type, "not set", description)


def _limit(limit: Any) -> str | None:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return next((f"{signs[name]} {getattr(limit, name)}" for name in signs if hasattr(limit, name)), None)


def _words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(_text(member.value) for member in kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _words(args[0])
    if origin is Literal:
        return _choice(_text(value) for value in args)
    if origin in (typing.Union, types.UnionType):
        return _choice(filter(None, (_words(arg) for arg in args)))
    if origin is dict:
        return "table"
    if origin is tuple and table_model(args[0]) is not None:
        return "list of tables"
    if origin is tuple and args[1:] == (...,):
        return f"list ({_words(args[0])})"
    if origin is tuple and len(args) == 2:
        return f"pair (each {_words(args[0])})"
    raise TypeError(f"the settings reference cannot describe this type: {kind!r}")


def _choice(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    return _text(value.value if isinstance(value, Enum) else value)


def _text(value: Any) -> str:
    """Format a value in TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _prose(text: str | None) -> str:
    return one_line(text or "").replace("``", "`")


def settings_markdown() -> str:
    """Return the settings reference as Markdown, with one table per section."""
    parts = [
        "Environment variables override the file; in them lists and tables are written as JSON. "
        "With several streams, a variable of `[stream]` applies to each of them, and "
        f"`{STREAMS_VARIABLE}` replaces the list `[[streams]]`."
    ]
    sections: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in every_setting():
        key = (OPTIONS if setting.estimator else setting.path[:1], setting.estimator)
        sections.setdefault(key, []).append(setting)
    for (path, estimator), settings in sections.items():
        title = f"`[{'.'.join(path)}]`"
        if estimator is None:
            about = _prose(getattr(table_model(Settings.model_fields[path[0]].annotation), "__doc__", ""))
        else:
            title += f" of {estimator}"
            about = _prose(ESTIMATORS[estimator].options_type.__doc__).replace(":class:", "")
        parts += [f"#### {title}", about, _table(settings, len(path))]
        if path == ("stream",):
            features = list(_settings_of(Feature, ("stream", "features")))
            title = "#### `[[stream.features]]`"
            parts += [title, _prose(Feature.__doc__), _table(features, 1, variables=False)]
    return "\n\n".join(parts) + "\n"


def _table(settings: list[Setting], depth: int, variables: bool = True) -> str:
    titles = ("key", "type", "default", "environment variable", "description")
    rows: list[tuple[str, ...]] = [titles, ("---",) * 5]
    for s in settings:
        default = f"`{s.default}`" if s.default not in ("", "not set") else s.default or "**required**"
        key = ".".join(s.path[depth:])
        rows.append((f"`{key}`", s.type, default, f"`{s.variable}`", s.description))
    if not variables:
        rows = [(*row[:3], row[4]) for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def file_schema() -> dict[str, Any]:
    """Return a settings file's JSON schema, without passwords and tokens, which it may not contain."""
    schema = copy.deepcopy(Settings.model_json_schema())
    definitions = schema["$defs"]
    for section, name in SECRETS:
        model = table_model(Settings.model_fields[section].annotation)
        assert model is not None, f"{section} is not a section"
        del definitions[model.__name__]["properties"][name]
    for name in ("epsilon", "delta"):
        # Exact rationals: pydantic does not know the types that their parser accepts.
        definitions["Cap"]["properties"][name] |= {"type": ["number", "string"]}
    stream = definitions["StreamSettings"]
    needed = stream.pop("required")
    # `dim` follows from features.
    needed.remove("dim")
    needs = {"required": needed, "anyOf": [{"required": ["dim"]}, {"required": ["features"]}]}
    stream["properties"]["estimator"]["enum"] = sorted(ESTIMATORS)
    stream["allOf"] = [_options_schema(name) for name in sorted(ESTIMATORS)]
    for section in schema["properties"].values():
        # A whole section's default would show the password's key; each key has its own default.
        section.pop("default", None)
    table = {"$ref": "#/$defs/StreamSettings"}
    schema["properties"]["stream"] = {
        **table,
        "description": "The only stream, or the settings that all of [[streams]] share.",
    }
    schema["properties"]["streams"] = {
        "type": "array",
        "minItems": 1,
        "items": table,
        "description": "Several streams, each with its own settings.",
    }
    del schema["required"]
    # A table of [[streams]] may take required keys from [stream].
    schema["if"] = {"not": {"required": ["streams"]}}
    schema["then"] = {"required": ["stream"], "properties": {"stream": needs}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "streaming-pca",
        "description": "Settings of streaming-pca for one stream or several.",
    }


def _options_schema(name: str) -> dict[str, Any]:
    """Return the schema of ``options`` for one estimator, chosen by name or by default."""
    options = ESTIMATORS[name].options_type.model_json_schema()
    # Options can be split between [stream] and one of [[streams]].
    options.pop("required", None)
    chosen: dict[str, Any] = {"properties": {"estimator": {"const": name}}}
    if name != StreamSettings.model_fields["estimator"].default:
        chosen["required"] = ["estimator"]
    return {"if": chosen, "then": {"properties": {"options": options}}}
