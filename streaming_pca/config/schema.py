"""All settings, and the JSON schema of a file, both from the models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from streaming_pca.config.environment import OPTIONS, SECRETS, variable_name
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.validation_errors import table_model


@dataclass(frozen=True)
class Setting:
    """One setting, perhaps an ``estimator``'s option, or one of an optional ``table``."""

    path: tuple[str, ...]
    field: FieldInfo
    estimator: str | None = None
    table: FieldInfo | None = None

    @property
    def variable(self) -> str:
        return variable_name(self.path)


def every_setting() -> list[Setting]:
    """Return all settings in the order of the models, options of estimators last."""
    found: list[Setting] = []
    for name, field in Settings.model_fields.items():
        model = table_model(field.annotation)
        assert model is not None, f"{name} is not a section"
        found += settings_of(model, (name,))
    for name, estimator in sorted(ESTIMATORS.items()):
        found += settings_of(estimator.options_type, OPTIONS, name)
    return found


def settings_of(
    model: type[BaseModel], path: tuple[str, ...], estimator: str | None = None
) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        if here == OPTIONS:
            continue
        inner = table_model(field.annotation)
        if inner is None:
            yield Setting(here, field, estimator)
        else:
            yield from (replace(setting, table=field) for setting in settings_of(inner, here))


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
