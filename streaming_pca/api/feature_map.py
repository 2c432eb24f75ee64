"""`FeatureMap`: records with named fields as rows of numbers, and models of such records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags

from streaming_pca.api.rows import Rows
from streaming_pca.api.subspace_model import SubspaceModel
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.row_map import (
    RowMap,
    column_names,
    feature_of,
    is_list_of_records,
    named_column,
    refuse_twins,
    row_map_of,
    rows_of_table,
    unnamed,
)
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.release import Release
from streaming_pca.text import shown


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
        multiplies by a feature's own ``scale``. A release does so itself: False for its ``transform``.

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
    def from_toml(cls, path: str | os.PathLike[str], stream: str | None = None, scale: bool = True) -> Self:
        """Read the features of a stream from its settings file; ``scale=False`` for ``Release.transform``.

        The stream's name is needed if the file holds several. ValueError has a line for each problem.
        """
        from streaming_pca.config.kafka import ConfigurationError
        from streaming_pca.config.loading import load_settings

        try:
            features = load_settings(Path(path), stream).stream.features
        except ConfigurationError as error:
            raise ValueError("\n".join(error.lines)) from None
        if features is None:
            raise ValueError(f"{os.fspath(path)}: the stream has no [[stream.features]]")
        return cls(list(features), scale=scale)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        bounds: Mapping[Any, tuple[float, float]] | None = None,
        categories: Mapping[Any, Sequence[str]] | None = None,
        missing: Mapping[Any, float | str] | None = None,
    ) -> Self:
        """Make a map of a data frame's columns from its schema and public numbers.

        No value is read. Booleans have bounds of 0 and 1, columns of times their hour, weekday and month,
        and the words of a polars Enum are the vocabulary. Categories of pandas may have been found among
        the values: name public ones.

        ``bounds``, ``categories`` and ``missing`` (stand-ins) are by column. ValueError names the columns
        that need bounds or categories, or that the frame lacks.
        """
        names = column_names(frame)
        if names is None or not hasattr(frame, "dtypes"):
            raise ValueError("frame must be a data frame of pandas or polars; else list the features")
        refuse_twins(names, "frame has two columns")
        given: dict[str, dict[str, Any]] = {}
        of = {"bounds": "(lower, upper)", "categories": "[word, ...]", "missing": "stand-in"}
        for what, named in (("bounds", bounds), ("categories", categories), ("missing", missing)):
            if not isinstance(named, Mapping | None):
                raise ValueError(f"{what} must be a dict, {{column: {of[what]}}}, not {type(named).__name__}")
            given[what] = {str(name): value for name, value in (named or {}).items()}
            if unknown := sorted(set(given[what]) - set(names)):
                raise ValueError(f"{what} names {unknown[0]!r}, which is not a column of the frame")
        features: list[Feature] = []
        needed = []
        for name in names:
            settings: dict[str, Any] = {"name": name, "path": [name]}
            settings |= {what: named[name] for what, named in given.items() if name in named}
            if not {"bounds", "categories"} & settings.keys():
                settings |= _type_settings(named_column(frame, name).dtype)
            if {"bounds", "categories", "parts"} & settings.keys():
                features.append(feature_of(settings, len(features)))
            else:
                needed.append(name)
        if needed:
            types = {str(named_column(frame, name).dtype).lower()[:3] for name in needed}
            times = ", or convert times: pandas.to_datetime" * bool(types & {"str", "obj"})
            raise ValueError(f"name public bounds or categories of {', '.join(map(repr, needed))}{times}")
        return cls(features)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Bounds of all columns of :meth:`transform`."""
        rows = row_map_of(self.features)
        if rows.bounds is None:
            return None
        lower, upper = self._scaled(rows, np.array(rows.bounds)).tolist()
        return tuple(lower), tuple(upper)

    def fit(self, X: Any = None, y: object = None) -> Self:
        """Check the features; no record is read."""
        row_map_of(self.features)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return rows, clamped to bounds and, with ``scale``, centred on them and scaled.

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

    def _scaled(self, rows: RowMap, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if rows.bounds is not None:
            lower, upper = (np.array(each) for each in rows.bounds)
            values = np.clip(values, lower, upper)
            if self.scale:
                values = values - (lower / 2 + upper / 2)  # their sum may overflow
        return values * np.array(rows.scale) if self.scale and rows.scale is not None else values

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


def _type_settings(dtype: Any) -> dict[str, Any]:
    """Return the public settings that a column's type gives; none if they are not enough."""
    name = str(dtype).lower()
    if type(dtype).__name__ == "Enum":
        # Declared, whereas pandas may have found its categories among the values.
        return {"categories": list(dtype.categories)} if len(dtype.categories) else {}
    if name.startswith("bool"):
        return {"bounds": (0, 1)}
    return {"parts": ("hour", "weekday", "month")} if name.startswith("date") else {}


class MappedModel(SubspaceModel):
    """Model whose X may be a table, by its parameters ``features`` and ``bounds``."""

    features: Any
    bounds: Any
    _features_told: tuple[Feature, ...]
    """Features of the present model, () for rows of numbers; absent in pickles of earlier versions."""

    def _row_map(self) -> RowMap | None:
        """Return the map from a table to rows; None if X already has rows."""
        features: Any = getattr(self, "features", None)
        if features is not None:
            if self.bounds is not None:
                raise ValueError("bounds and features are both set: leave one of them out")
            return row_map_of(features)
        if not isinstance(self.bounds, Mapping):
            return None
        if not self.bounds:
            raise ValueError("bounds must name at least one column")
        return row_map_of([{"name": str(n), "path": [str(n)], "bounds": b} for n, b in self.bounds.items()])

    def _mapped_parameters(self, parameters: dict[str, Any], dim: int) -> dict[str, Any]:
        """Return the parameters of an estimator of the map's rows."""
        features = parameters.pop("features", None)
        rows = self._row_map()
        if rows is None:
            return parameters
        if rows.dim != dim:
            raise ValueError(f"the features have {rows.dim} columns, but n_features is {dim}")
        parameters["bounds"] = None if rows.bounds is None else tuple(map(list, rows.bounds))
        if features is not None and parameters["scale"] is None:
            parameters["scale"] = rows.scale if _is_scaled(features) else None
        elif any(feature.scale is not None for feature in rows.features):
            raise ValueError("scale is set for the model and for a feature: leave out one of them")
        return parameters

    def _checked(self, X: Any, least: int) -> Rows:
        if (rows := self._row_map()) is not None:
            if self._names_columns():
                names = column_names(X)
                if names is None and not is_list_of_records(X):
                    text = unnamed(X, "X", "bounds={...}", rows.names)
                    is_new = not hasattr(self, "n_features_in_")
                    raise ValueError(f"{text}; or give bounds=(lower, upper)" if is_new else text)
                if unknown := [each for each in rows.names if each not in (names or rows.names)]:
                    raise ValueError(f"bounds names {unknown[0]!r}, which is not a column of X")
                if extra := [each for each in names or () if each not in rows.names]:
                    raise ValueError(f"bounds lacks columns of X: {shown(extra, 200)}")
            X = rows_of_table(rows, X)
        return super()._checked(X, least)

    def _check_features(self, X: Any, array: Rows, reset: bool) -> None:
        if not reset:
            self._check_map()
        rows = self._row_map()
        if rows is None:
            super()._check_features(X, array, reset)
        elif reset:
            self.n_features_in_, self.feature_names_in_ = rows.dim, np.array(rows.names, dtype=object)
        if reset:
            self._features_told = rows.features if rows else ()

    def _check_map(self) -> None:
        """Raise ValueError if the map from a table to rows is not the model's."""
        rows = self._row_map()
        features = rows.features if rows else ()
        if getattr(self, "_features_told", features) != features:
            what = "bounds" if rows and self._names_columns() else "features"
            raise ValueError(
                f"{what} changed since the model was started: set the old ones again, or start a new model"
            )

    def _restore_features(self, names: Any) -> None:
        """Set the names of a model that is read; ValueError if they are not those of its map."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        if (rows := self._row_map()) is not None and (names is None or tuple(names) != rows.names):
            raise ValueError("its feature names are not those of its features")
        self._features_told = rows.features if rows else ()

    def _names_columns(self) -> bool:
        return getattr(self, "features", None) is None


def map_parameters(features: Any, release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the parameters of a release's model whose X is a table; ValueError for another map."""
    if features is None:
        return {}
    rows = row_map_of(features)
    if rows.names != tuple(release.feature_names or ()) or rows.bounds != preprocessing.bounds:
        raise ValueError("features are not those of the release: their names or bounds differ")
    return {"features": features, "bounds": None, "scale": None}


def plain_features(features: Any) -> dict[str, Any] | None:
    if features is None:
        return None
    plain = [each.plain for each in row_map_of(features).features]
    return {"features": plain, "scale": _is_scaled(features)}


def restored_features(parameters: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Read bounds and features of a file's parameters; KeyError or TypeError if features are malformed."""
    bounds = parameters.get("bounds")
    if isinstance(bounds, list):
        # JSON has no tuples, and a list of two pairs could mean bounds of two features.
        parameters = parameters | {"bounds": tuple(bounds)}
    elif isinstance(bounds, dict) and bounds.keys() == set(names or ()):
        # Version 0.5 sorted them.
        parameters = parameters | {"bounds": {name: bounds[name] for name in names or ()}}
    if (plain := parameters.get("features")) is None:
        return parameters
    return parameters | {"features": FeatureMap(list(plain["features"]), scale=bool(plain["scale"]))}


def _is_scaled(features: Any) -> bool:
    return features.scale if isinstance(features, FeatureMap) else True
