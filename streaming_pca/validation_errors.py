"""Problems of a table of settings, one line each."""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from streaming_pca.text import is_number, one_line

Problem = tuple[tuple[str, ...], str]
"""Place of a setting in its table, and the description of what is wrong with it."""


_NEAR = 0.6  # least similarity of a misspelt name and a known name; difflib's own choice
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
"""Key of the limit, and its words, by pydantic's type of a problem."""
_TYPES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("string_type", "path_type"), "must be text"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type"), "must be a table"),
    "missing": "must be set",
    "extra_forbidden": "no such setting",
}
"""Words by pydantic's type of a problem."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is most similar to a misspelt one; None if none is near."""
    written = name.lower().replace("-", "_")
    rated = [(SequenceMatcher(None, each.lower(), written).ratio(), each) for each in known]
    best, found = max(rated, default=(0.0, ""))
    return found if best >= _NEAR else None


def meant(near: str | None) -> str:
    """Return the end of a message about an unknown name."""
    return "" if near is None else f"; did you mean {near}?"


def table_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field that is a table or an optional one."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


class Table(BaseModel):
    """Table of settings; it refuses unknown names, and booleans in the place of numbers."""

    # Attribute docstrings are the fields' descriptions in the settings reference.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        # Python takes them for 1 and 0.
        if kinds & {int, float} and bool not in kinds and _has_boolean(value):
            raise ValueError("must be a number, not true or false")
        return value


def _has_boolean(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_has_boolean, value)))


def _kinds(annotation: Any) -> set[Any]:
    """Return the types in an annotation."""
    parts = typing.get_args(annotation)
    return {annotation} if not parts else set().union(*map(_kinds, parts))


def list_problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Return the place and the description of each problem, one of each place."""
    found: dict[tuple[str, ...], str] = {}
    for problem in error.errors():
        place = _place(problem["loc"], model)
        if problem["type"] == "extra_forbidden":
            place = (*place, str(problem["loc"][-1]))
        # Values of several types have a problem with each.
        found.setdefault(place, _message(problem))
    return list(found.items())


def _place(parts: Sequence[int | str], model: type[BaseModel] | None) -> tuple[str, ...]:
    """Return the names and the indices of a place, without the types that pydantic tried."""
    place: list[str] = []
    for part in parts:
        if model is not None and part in model.model_fields:
            model = _model_within(model.model_fields[str(part)].annotation)
        elif not isinstance(part, int):
            break
        place.append(str(part))
    return tuple(place)


def _model_within(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field that is a table, or a list of tables."""
    return next(filter(None, map(table_model, (annotation, *typing.get_args(annotation)))), None)


def _message(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    message = _TYPES.get(kind, str(problem["msg"]).removeprefix("Value error, "))
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = problem["ctx"][key]
        message = f"must be {words} {f'{limit:g}' if isinstance(limit, float) else limit}"
        # Only a number is repeated: text may be a password in the wrong place.
        if is_number(problem["input"]):
            message = f"{message}, not {problem['input']}"
    return re.sub("^Input should (be|have)", r"must \1", message)


def error_lines(error: ValueError, model: type[BaseModel]) -> list[str]:
    """Return the lines of an error, or one for each problem that pydantic found."""
    if isinstance(error, ValidationError):
        return [_line(problem) for problem in list_problems(error, model)]
    return str(error).splitlines()


def _line(problem: Problem) -> str:
    place, message = problem
    return ": ".join(filter(None, (".".join(place), one_line(message))))


def options_problems(kind: type[BaseModel], options: Mapping[str, Any]) -> list[Problem]:
    """Find all problems of an estimator's options, unknown names first.

    An unknown name stands for the option that it resembles, so that this one is not
    reported as missing too. The list is empty if the options are valid.
    """
    found: list[Problem] = []
    known, repaired = kind.model_fields, dict(options)
    for name in options:
        if name not in known:
            near = nearest(name, known)
            found.append(((name,), f"no such setting{meant(near)}"))
            value = repaired.pop(name)
            if near is not None:
                repaired.setdefault(near, value)
    try:
        kind(**repaired)
    except ValidationError as error:
        found += list_problems(error, kind)
    return found


def options_lines(kind: type[BaseModel], options: Mapping[str, Any]) -> list[str]:
    """Describe all problems of an estimator's options, one line each."""
    return [_line(problem) for problem in options_problems(kind, options)]
