"""Settings of a stream that follow from its features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import SCHEMA_FORMATS, PublicSchema
from streaming_pca.data.features.row_map import RowMap
from streaming_pca.data.preprocessing import scale_of_bounds

_FEATURES = TypeAdapter(tuple[Feature, ...])


def with_features(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that follow from a stream's features or bounds."""
    found = dict(values)
    if found.get("features") is not None:
        try:
            features = _FEATURES.validate_python(found["features"])
        except ValidationError:
            # Their own check reports this error. Add `dim`, so that it is not reported as missing.
            return {"dim": 2**13, **found}
        _follow(found, RowMap(features))
    if found.get("scale") == "bounds":
        found["scale"] = scale_of_bounds(found.get("bounds"))
    return found


def _follow(found: dict[str, Any], rows: RowMap) -> None:
    # Derived settings may already be present, when a stream's settings are checked again.
    if found.setdefault("dim", rows.dim) != rows.dim:
        raise ValueError(f"features set dim to {rows.dim}: leave it out")
    if as_lists(found.setdefault("feature_names", rows.names)) != as_lists(rows.names):
        raise ValueError("feature_names are those of features: leave them out")
    if rows.bounds is not None:
        found.setdefault("bounds", rows.bounds)
    if as_lists(found.get("bounds")) != as_lists(rows.bounds):
        raise ValueError("bounds are those of features: set bounds of each feature")
    found.setdefault("format", "json")
    own = any(feature.scale is not None for feature in rows.features)
    if own and as_lists(found.get("scale")) not in (None, "bounds", as_lists(rows.scale)):
        raise ValueError("scale is set for the stream and for a feature: leave out one of them")
    if found.get("scale") == "bounds" and rows.bounds is None:
        unbounded = next(f.name for f in rows.features if f.column_bounds is None)
        raise ValueError(f'scale = "bounds" needs bounds of every feature, and {unbounded!r} has none')
    if found.get("scale") in (None, "bounds") and rows.scale is not None:
        found["scale"] = rows.scale


def as_lists(value: Any) -> Any:
    return [as_lists(each) for each in value] if isinstance(value, (tuple, list)) else value


def read_schema(
    format: str, path: Path | None, message: str | None, subject: str | None
) -> PublicSchema | None:
    """Read a stream's schema file; return None if the stream does not use one."""
    if format != "protobuf" and message is not None:
        raise ValueError('message needs format = "protobuf"')
    if format not in SCHEMA_FORMATS:
        for name, value in (("schema_file", path), ("subject", subject)):
            if value is not None:
                raise ValueError(f'{name} needs format = "avro" or "protobuf"')
        return None
    if path is None:
        return None
    if subject is not None:
        raise ValueError("set schema_file, or subject of the registry, not both")
    if format == "protobuf" and message is None:
        raise ValueError("schema_file of Protobuf needs message, the full name of the records' message")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"schema_file {str(path)!r} cannot be read: {error.strerror or error}") from None
    return PublicSchema(SCHEMA_FORMATS[format], data, message)
