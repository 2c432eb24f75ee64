"""Projection of rows on a released subspace, as ``PrivatePCA`` and consumers of releases compute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.data.features.row_map import refuse_other_types
from streaming_pca.linalg.masks import as_array, refuse_masks_and_units

Floats = NDArray[np.float64]
Rows = NDArray[np.floating]


def is_orthonormal(rows: Floats) -> bool:
    """Return whether rows (k, d) are orthonormal, up to 1e-6."""
    with np.errstate(all="ignore"):
        return np.allclose(rows @ rows.T, np.eye(len(rows)), rtol=0, atol=1e-6)


def total_centre(
    mean: ArrayLike | None, centering: str | ArrayLike, scale: ArrayLike | None
) -> NDArray[np.float64] | None:
    """Return the public centre plus the estimated one, in units of the features; None without either.

    ``mean``, (d,), is a release's, in units of the scaled features and about the public centre, which is
    ``centering`` if this has d numbers.
    """
    public = None if isinstance(centering, str) else np.array(centering, dtype=np.float64)
    if mean is None:
        return public
    learnt = np.asarray(mean, dtype=np.float64) / (1.0 if scale is None else np.asarray(scale))
    return learnt if public is None else public + learnt


@dataclass(frozen=True, eq=False)
class Projection:
    """Map from rows to their coordinates in a subspace, and back."""

    components: Floats
    """(k, d) orthonormal rows, of the scaled features."""
    centre: ArrayLike = 0.0
    """(d,) in units of the features."""
    scale: ArrayLike = 1.0
    """Factor(s) of the rows after centring."""
    bounds: tuple[ArrayLike, ArrayLike] | None = None
    """(lower, upper), each a number or d numbers; rows are clamped to them first."""

    def transform(self, rows: Rows) -> Rows:
        """Project rows (..., d) to (..., k), float32 where rows are: clamp, centre, scale, project."""
        rows = _floats(rows, self.components.shape[1], "features")
        values = rows.astype(np.float64)
        if self.bounds is not None:
            lower, upper = self.bounds
            np.clip(values, np.asarray(lower), np.asarray(upper), out=values)
        with np.errstate(over="ignore", invalid="ignore"):
            values -= np.asarray(self.centre)
            values *= np.asarray(self.scale)
            return np.asarray((values @ self.components.T).astype(rows.dtype, copy=False))

    def inverse_transform(self, coordinates: Rows) -> Rows:
        """Return the rows (..., d) with these coordinates (..., k), in units of the features."""
        coordinates = _floats(coordinates, len(self.components), "components")
        with np.errstate(over="ignore", invalid="ignore"):
            values = coordinates.astype(np.float64) @ self.components / np.asarray(self.scale)
            return np.asarray((values + np.asarray(self.centre)).astype(coordinates.dtype, copy=False))


def _floats(X: Any, width: int, columns: str) -> Rows:
    """Return (..., width) as floats, since whole numbers would cut off digits; float32 stays float32."""
    refuse_masks_and_units(X)
    array = as_array(X, "X")
    refuse_other_types(array.dtype, "fiub", X, "X")
    if array.ndim and array.shape[-1] != width:
        raise ValueError(f"X has {array.shape[-1]} columns for {width} {columns}")
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def checked_rows(X: Any, width: int, columns: str) -> Rows:
    """Return rows (m, width) or (m, r, width) as finite floats; float32 stays float32.

    ValueError with one line that names the fault, where ``columns`` is the name of the columns.
    """
    array = _floats(X, width, columns)
    if array.ndim not in (2, 3):
        raise ValueError(f"X must be rows (m, {width}) or (m, r, {width}), not of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("X holds a NaN or an infinity")
    return array
