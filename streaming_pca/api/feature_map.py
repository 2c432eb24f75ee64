"""`FeatureMap`: records with named fields as rows of numbers, with the interface of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.row_map import RowMap, column_names, named_column, rows_of_table
from streaming_pca.validation_errors import lines_of

_TIME_PARTS = ("hour", "weekday", "month")
"""Parts of a time that :meth:`FeatureMap.from_frame` takes."""


# scikit-learn has no type annotations.
class FeatureMap(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Public map from records with named fields to rows of numbers.

    It is the object that ``[[stream.features]]`` describes: a stream, a producer and
    :class:`~streaming_pca.PrivatePCA` make the same rows of the same records. It learns nothing from
    records, so ``fit`` reads none, and a pipeline with it needs no scaler that is fitted on them.

    Parameters
    ----------
    features : list of Feature or dict
        Settings of each feature, as in ``[[stream.features]]``.
    scale : bool, default=True
        Whether ``transform`` maps each column's bounds to [-1, 1], where all features have bounds, or
        multiplies by a feature's own ``scale``.

    Attributes
    ----------
    bounds : (lower, upper) or None
        Bounds of all columns of ``transform``, each a tuple of d numbers; None unless all features have
        bounds.

    Notes
    -----
    The row of a record is a function of that record alone, and of public numbers: neighbours stay
    neighbours. Bounds, categories and stand-ins must be public; computed from the records they are not.

    Examples
    --------
    >>> from streaming_pca import FeatureMap
    >>> people = FeatureMap([
    ...     {"name": "age", "bounds": (0, 120), "missing": 40},
    ...     {"name": "country", "categories": ["DE", "FR"]},
    ... ])
    >>> people.transform([{"age": 30, "country": "FR"}, {"country": "PL"}])
    array([[-0.5       , -1.        ,  1.        ],
           [-0.33333333, -1.        , -1.        ]])
    """

    def __init__(self, features: Sequence[Feature | Mapping[str, Any]], *, scale: bool = True) -> None:
        self.features = features
        self.scale = scale

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], stream: str | None = None) -> Self:
        """Read the features of a stream from its settings file.

        Parameters
        ----------
        path : path
        stream : str, optional
            Name of the stream; needed if the file holds several.

        Raises
        ------
        ValueError
            A line for each problem, or if the stream has no features.
        """
        from streaming_pca.config.kafka import ConfigurationError
        from streaming_pca.config.loading import load_settings

        try:
            features = load_settings(Path(path), stream).stream.features
        except ConfigurationError as error:
            raise ValueError("\n".join(error.lines)) from None
        if features is None:
            raise ValueError(f"{os.fspath(path)}: the stream has no [[stream.features]]")
        return cls(list(features))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        missing: Mapping[str, float | str] | None = None,
    ) -> Self:
        """Make a map of a data frame's columns from its schema and public numbers.

        No value is read. Booleans have bounds of 0 and 1, columns of times their hour, weekday and month,
        and the words of a polars Enum are the vocabulary. Categories of pandas may have been found among
        the values: name public ones.

        Parameters
        ----------
        frame : data frame of pandas or polars
        bounds : dict of column to (lower, upper), optional
        categories : dict of column to words, optional
        missing : dict of column to stand-in, optional

        Raises
        ------
        ValueError
            One line that names the columns that need bounds or categories, or that the frame lacks.
        """
        given = {"bounds": bounds or {}, "categories": categories or {}, "missing": missing or {}}
        names = column_names(frame)
        if names is None or not hasattr(frame, "dtypes"):
            raise ValueError("frame must be a data frame of pandas or polars")
        for what, named in given.items():
            if unknown := sorted(set(named) - set(names)):
                raise ValueError(f"{what} names {unknown[0]!r}, which is not a column of the frame")
        features: list[Feature] = []
        needed = []
        for name in names:
            settings: dict[str, Any] = {"name": name, "path": [name]}
            settings |= {what: named[name] for what, named in given.items() if name in named}
            if "bounds" not in settings and "categories" not in settings:
                public = _settings_of_type(named_column(frame, name).dtype)
                if public is None:
                    needed.append(name)
                    continue
                settings |= public
            features.append(_feature(settings, len(features)))
        if needed:
            raise ValueError(f"name public bounds or categories of {', '.join(map(repr, needed))}")
        return cls(features)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Bounds of all columns of :meth:`transform`."""
        rows = row_map_of(self.features)
        if rows.bounds is None:
            return None
        lower, upper = (np.array([each]) for each in rows.bounds)
        return tuple(self._scaled(rows, lower)[0].tolist()), tuple(self._scaled(rows, upper)[0].tolist())

    def fit(self, X: Any = None, y: object = None) -> Self:
        """Check the features; no record is read.

        Parameters
        ----------
        X, y : ignored

        Raises
        ------
        ValueError
            One line that names the feature.
        """
        row_map_of(self.features)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the rows of records, clamped to bounds and scaled.

        Parameters
        ----------
        X : data frame of pandas or polars, Arrow table, mapping of columns, or list of mappings
            NaN in a column of numbers means a missing value.

        Returns
        -------
        (m, d) float64

        Raises
        ------
        ValueError
            One line: a missing column, or the first record with a value that its feature
            refuses. Only the holder of X may see it.
        """
        rows = row_map_of(self.features)
        return self._scaled(rows, rows_of_table(rows, X))

    def _scaled(self, rows: RowMap, found: NDArray[np.float64]) -> NDArray[np.float64]:
        if rows.bounds is not None:
            lower, upper = (np.array(each) for each in rows.bounds)
            found = np.clip(found, lower, upper)
            if self.scale:
                found = found - (lower + upper) / 2
        return found * np.array(rows.scale) if self.scale and rows.scale is not None else found

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns (d,)."""
        return np.array(row_map_of(self.features).names, dtype=object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.dict = True
        tags.input_tags.categorical = tags.input_tags.string = tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True


def row_map_of(features: Any) -> RowMap:
    """Return the map of features in any of their forms.

    Parameters
    ----------
    features : FeatureMap, or list of Feature or dict

    Raises
    ------
    ValueError
        One line that names the feature.
    """
    if isinstance(features, FeatureMap):
        features = features.features
    if isinstance(features, (str, Mapping)) or not isinstance(features, Sequence):
        raise ValueError(f"features must be a list, or a FeatureMap, not {type(features).__name__}")
    return RowMap([_feature(each, place) for place, each in enumerate(features)])


def _feature(settings: Any, place: int) -> Feature:
    if isinstance(settings, Feature):
        return settings
    if not isinstance(settings, Mapping):
        raise ValueError(f"feature {place} must be a Feature or a dict, not {type(settings).__name__}")
    try:
        return Feature(**settings)
    except ValidationError as error:
        name = settings.get("name", place)
        raise ValueError(f"feature {name!r}: {'; '.join(lines_of(error, Feature))}") from None


def _settings_of_type(dtype: Any) -> dict[str, Any] | None:
    """Return the public settings that a column's type gives; None if they are not enough."""
    name = str(dtype).lower()
    if type(dtype).__name__ == "Enum":
        # Declared, whereas pandas may have found its categories among the values.
        return {"categories": list(dtype.categories)} if len(dtype.categories) else None
    if name.startswith("bool"):
        return {"bounds": (0, 1)}
    if name.startswith(("datetime", "date")):
        return {"parts": _TIME_PARTS}
    return None
