"""Public description of one feature: a field of records, and the columns that it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from streaming_pca.data.features.records import Path, split_path
from streaming_pca.data.features.values import (
    PERIODS,
    TRANSFORMS,
    Part,
    TimeUnit,
    Transform,
    parsed_number,
    unix_seconds,
)

OTHER = "other"
"""Name of the column, and of the stand-in, of values outside a vocabulary."""

_MOST_COLUMNS = 2**13
_DEEPEST = 32


def category_word(value: Any) -> str | None:
    """Return the word that a category's value is compared by; None for a value that is not a category."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, (int, np.integer)) else None


def _words(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        raise ValueError("must have an order, which a set has not: write a list")
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        return value
    words = [category_word(each) for each in value]
    return value if None in words else tuple(words)


def _pair(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or any(isinstance(each, (bool, str)) for each in value):
            raise ValueError("must be two numbers, the least and the largest value")
        # 0.0 and -0.0 are one bound.
        return tuple(each + 0.0 if isinstance(each, (int, float)) else each for each in value)
    return value


def _plain_time(value: Any) -> Any:
    """Return a time as text, as which it can be written, and anything else unchanged."""
    return value.isoformat() if isinstance(value, date) else value


class Feature(BaseModel):
    """Field of records, and the columns that it becomes.

    It is public, and part of a stream's privacy contract. A feature is a number, unless it has `categories`
    (a word of a public vocabulary), `parts` (a time) or a `size` (a list of numbers). The columns of a record
    are a function of that record alone.

    Raises
    ------
    ValueError
        With the setting's name, if settings do not go together.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        ignored_types=(cached_property,),
    )

    name: str = Field(min_length=1, max_length=200)
    """Name of its column, or the beginning of its columns' names."""
    path: Annotated[
        Path | None, BeforeValidator(split_path, json_schema_input_type=str | list[str] | None)
    ] = None
    """Place of the field, `"user.age"` or `["items", "0", "price"]`; if not set, the name."""
    bounds: Annotated[tuple[float, float] | None, BeforeValidator(_pair)] = None
    """Public least and largest value; values are clamped to them."""
    transform: Transform = "none"
    """Function of the value, which needs bounds within its domain."""
    missing: Annotated[bool | float | str | None, BeforeValidator(_plain_time)] = None
    """Public stand-in for a field that is absent or null, `"other"` for a category outside the vocabulary;
    if not set, a record that lacks the field is null."""
    categories: Annotated[
        tuple[str, ...] | None, BeforeValidator(_words, json_schema_input_type=list[str | int | bool] | None)
    ] = None
    """Vocabulary, with a column of 0 or 1 for each word; whole numbers and booleans are compared by their
    text."""
    other: bool = False
    """Give values outside the vocabulary a column; otherwise all columns are 0 for them."""
    parts: tuple[Part, ...] | None = None
    """Cyclic parts of a time in UTC, with a sine and a cosine each."""
    unit: TimeUnit = "s"
    """Unit of times that are numbers, counted from 1970; texts are ISO 8601."""
    size: int | None = Field(default=None, ge=1, le=_MOST_COLUMNS)
    """Length of a list of numbers."""
    parse: bool = False
    """Read texts as numbers."""
    scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Public factor of its columns after centring, in place of the stream's."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Iterate over the settings that ``repr`` shows: all but the defaults, which would fill pages."""
        fields = type(self).model_fields
        for name, value in super().__repr_args__():
            if name not in fields or value != fields[name].default:
                yield name, value

    @property
    def kind(self) -> Literal["number", "category", "time", "list"]:
        """Kind of its values."""
        if self.categories is not None:
            return "category"
        if self.parts is not None:
            return "time"
        return "number" if self.size is None else "list"

    @model_validator(mode="after")
    def _check(self) -> Feature:
        if self.path is not None and self.path == tuple(self.name.split(".")):
            # One map has one digest, however it is written.
            object.__setattr__(self, "path", None)
        if not all(self.place) or len(self.place) > _DEEPEST:
            raise ValueError(f"path must have 1 to {_DEEPEST} names, none of them empty")
        kinds = [name for name in ("categories", "parts", "size") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{kinds[0]} and {kinds[1]} do not go together")
        numbers = dict.fromkeys(("bounds", "transform", "parse"), "number")
        for name, of in ({"other": "categories", "unit": "parts"} | numbers).items():
            is_set = getattr(self, name) != type(self).model_fields[name].default
            fits = self.kind in ("number", "list") if of == "number" else getattr(self, of) is not None
            if is_set and not fits:
                raise ValueError(f"{name} {'is of numbers' if of == 'number' else f'needs {of}'}")
        for name in ("categories", "parts"):
            listed = getattr(self, name)
            if listed is not None and (not listed or len(set(listed)) < len(listed)):
                raise ValueError(f"{name} must be distinct, and one at least")
        if self.other and OTHER in (self.categories or ()):
            raise ValueError(f'other = true names a column "{OTHER}", which categories has already')
        self._check_bounds()
        self._check_missing()
        return self

    def _check_bounds(self) -> None:
        if self.bounds is None:
            if self.transform != "none":
                raise ValueError(f'transform = "{self.transform}" needs bounds')
            return
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError("bounds must be two finite numbers, the lower one first")
        least, most = TRANSFORMS[self.transform].domain
        if low < least or high > most:
            raise ValueError(
                f'bounds must lie within {least:g} and {most:g} for transform = "{self.transform}"'
            )
        least, most = self.column_bounds or (low, high)
        if not (math.isfinite(least) and math.isfinite(most)):
            raise ValueError(f'transform = "{self.transform}" is not finite at the bounds')
        if not 0 < most - least < math.inf or math.isinf(2 / (most - least)):
            raise ValueError("bounds are too near to each other, or too far apart")

    def _check_missing(self) -> None:
        value = self.missing
        if value is None:
            return
        if self.kind == "category":
            word = category_word(int(value) if isinstance(value, float) and value.is_integer() else value)
            if word != OTHER and word not in (self.categories or ()):
                raise ValueError(f'missing must be one of the categories, or "{OTHER}"')
            # As the words themselves: 2.0 and "2" are one stand-in.
            object.__setattr__(self, "missing", word)
        elif self.kind == "time":
            if math.isnan(unix_seconds(value, self.unit)):
                raise ValueError(f'missing must be a time: ISO 8601, or a number in unit "{self.unit}"')
        elif math.isnan(parsed_number(value, parse=False)):
            raise ValueError("missing must be a finite number")
        else:
            object.__setattr__(self, "missing", parsed_number(value, parse=False) + 0.0)
        if self.bounds is not None and not self.bounds[0] <= float(value) <= self.bounds[1]:
            raise ValueError("missing must lie within bounds")

    @property
    def place(self) -> Path:
        """Place of the field in a record."""
        return self.path or tuple(self.name.split("."))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""
        if self.categories is not None:
            return tuple(f"{self.name}={word}" for word in (*self.categories, *[OTHER] * self.other))
        if self.parts is not None:
            return tuple(f"{self.name}.{part}.{wave}" for part in self.parts for wave in ("sin", "cos"))
        return (self.name,) if self.size is None else tuple(f"{self.name}.{i}" for i in range(self.size))

    @cached_property
    def column_bounds(self) -> tuple[float, float] | None:
        """Least and largest number in each of its columns; None where that is not known."""
        if self.kind == "category":
            return 0.0, 1.0
        if self.kind == "time":
            return -1.0, 1.0
        if self.bounds is None:
            return None
        of = TRANSFORMS[self.transform].of
        return of(self.bounds[0]), of(self.bounds[1])

    @property
    def plain(self) -> dict[str, Any]:
        """Settings other than the defaults, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def column_values(self, value: Any) -> NDArray[np.float64]:
        """Return the columns (width,) of one value, not clamped."""
        columns: NDArray[np.float64] = np.empty(len(self.columns))
        self.fill(columns[None], [value], beyond=True)
        return columns

    def fill(self, columns: NDArray[np.float64], values: Sequence[Any], beyond: bool) -> None:
        """Write the columns (n, width) of n values; NaN for a value that this feature refuses.

        A value is None where its field is absent or null. With ``beyond`` values outside of the bounds stay
        outside, so that the caller can count and clamp them.
        """
        if self.kind == "list":
            self._fill_lists(columns, values, beyond)
            return
        values = self._with_stand_ins(values)
        if self.kind == "category":
            self._fill_categories(columns, values)
        elif self.kind == "time":
            self._fill_times(columns, values)
        else:
            columns[:, 0] = self._numbers(values, beyond)

    def _with_stand_ins(self, values: Sequence[Any]) -> Sequence[Any]:
        if isinstance(values, np.ndarray):
            # In a column of numbers NaN means a missing value.
            lost = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
            if self.kind == "number":
                stand_in = np.nan if self.missing is None else self.missing
                return np.where(lost, stand_in, values.astype(np.float64))
            pairs = zip(values.tolist(), lost.tolist(), strict=True)
            values = [None if gone else value for value, gone in pairs]
        if self.missing is None or all(value is not None for value in values):
            return values
        return [self.missing if value is None else value for value in values]

    def _numbers(self, values: Sequence[Any], beyond: bool) -> NDArray[np.float64]:
        found = _floats(values, self.parse)
        if self.bounds is None:
            return found
        low, high = self.bounds
        if self.transform == "none":
            return found if beyond else np.clip(found, low, high)
        of, (least, most) = TRANSFORMS[self.transform].of, self.column_bounds or (0.0, 0.0)
        under, over = (least - 1, most + 1) if beyond else (least, most)
        # One by one: a function of whole arrays may round a value by its place among others.
        return np.array(
            [under if x < low else over if x > high else of(x) for x in found.tolist()], np.float64
        )

    def _fill_lists(self, columns: NDArray[np.float64], values: Sequence[Any], beyond: bool) -> None:
        for row, value in zip(columns, values, strict=True):
            if value is None and self.missing is not None:
                value = [None] * len(row)
            if isinstance(value, np.ndarray):
                value = value.tolist()  # of no dimension: a number
            if not isinstance(value, (list, tuple)) or len(value) != len(row):
                row[:] = np.nan
                continue
            row[:] = self._numbers(self._with_stand_ins(value), beyond)

    def _fill_categories(self, columns: NDArray[np.float64], values: Sequence[Any]) -> None:
        words = self.categories or ()
        place = {word: i for i, word in enumerate(words)}
        outside = len(words) if self.other else -1
        columns[:] = 0.0
        for row, value in enumerate(values):
            word = value if type(value) is str else category_word(value)
            if word is None:
                columns[row] = np.nan
                continue
            at = place.get(word, outside)
            if at >= 0:
                columns[row, at] = 1.0

    def _fill_times(self, columns: NDArray[np.float64], values: Sequence[Any]) -> None:
        for row, value in zip(columns, values, strict=True):
            seconds = unix_seconds(value, self.unit)
            for i, part in enumerate(self.parts or ()):
                angle = math.nan if math.isnan(seconds) else 2 * math.pi * PERIODS[part](seconds)
                row[2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)


_NUMBERS = {float, int, bool, type(None)}


def _floats(values: Sequence[Any], parse: bool) -> NDArray[np.float64]:
    """Return numbers as float64, NaN for anything else."""
    if isinstance(values, np.ndarray) or set(map(type, values)) <= _NUMBERS:
        # An integer beyond float64 is of one record: the others keep their numbers.
        with suppress(OverflowError):
            found = np.array(values, np.float64)
            found[~np.isfinite(found)] = np.nan
            return found
    return np.array([parsed_number(value, parse) for value in values], np.float64)
