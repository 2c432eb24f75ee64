"""Model of records with named fields: a table's columns, by features or by bounds of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streaming_pca.api.feature_map import FeatureMap, row_map_of
from streaming_pca.api.subspace_model import Rows, SubspaceModel
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.row_map import RowMap, column_names, rows_of_table
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.release import Release


class MappedModel(SubspaceModel):
    """Model whose X may be a table, by its parameters ``features`` and ``bounds``."""

    features: Any
    bounds: Any
    _features_told: tuple[Feature, ...]
    """Features of the present model."""

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
        parameters["bounds"] = rows.bounds
        if features is not None and parameters["scale"] is None:
            parameters["scale"] = rows.scale if _is_scaled(features) else None
        elif any(feature.scale is not None for feature in rows.features):
            raise ValueError("scale is set for the model and for a feature: leave out one of them")
        return parameters

    def _checked(self, X: Any, least: int) -> Rows:
        if (rows := self._row_map()) is not None:
            if self._names_columns() and (extra := sorted(set(column_names(X) or ()) - set(rows.names))):
                raise ValueError(f"bounds lacks {extra[0]!r}, a column of X")
            X = rows_of_table(rows, X)
        return super()._checked(X, least)

    def _check_features(self, X: Any, array: Rows, reset: bool) -> None:
        rows = self._row_map()
        if rows is None:
            super()._check_features(X, array, reset)
        elif reset:
            self.n_features_in_, self.feature_names_in_ = rows.dim, np.array(rows.names, dtype=object)
            self._features_told = rows.features
        elif getattr(self, "_features_told", rows.features) != rows.features:
            what = "bounds" if self._names_columns() else "features"
            raise ValueError(
                f"{what} changed since the model was started: set the old ones again, or start a new model"
            )

    def _restore_features(self, names: Any) -> None:
        """Set the names of a model from a file; ValueError if they are not those of its map."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        if (rows := self._row_map()) is not None:
            if names is None or tuple(names) != rows.names:
                raise ValueError("its feature names are not those of its features")
            self._features_told = rows.features

    def _names_columns(self) -> bool:
        return getattr(self, "features", None) is None


def parameters_of_map(features: Any, release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the parameters of a release's model whose X is a table; ValueError for another map."""
    if features is None:
        return {}
    rows = row_map_of(features)
    if rows.names != tuple(release.feature_names or ()) or rows.bounds != preprocessing.bounds:
        raise ValueError("features are not those of the release: their names or bounds differ")
    return {"features": features, "bounds": None, "scale": None}


def plain_features(features: Any) -> dict[str, Any] | None:
    """Return features as plain data for a file."""
    if features is None:
        return None
    plain = [each.plain for each in row_map_of(features).features]
    return {"features": plain, "scale": _is_scaled(features)}


def features_of_plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read features from :func:`plain_features` among parameters; KeyError or TypeError if malformed."""
    if (plain := parameters.get("features")) is None:
        return parameters
    return parameters | {"features": FeatureMap(list(plain["features"]), scale=bool(plain["scale"]))}


def _is_scaled(features: Any) -> bool:
    return features.scale if isinstance(features, FeatureMap) else True
