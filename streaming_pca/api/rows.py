"""Arguments of models as arrays of rows; an error is one line without values of records.

Messages end up in logs, which more people may read than the records. scikit-learn and numpy print parts of
an array, or a text in it, so their messages pass only if their beginning is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from streaming_pca.data.array_batch import SparseBatch
from streaming_pca.data.features.row_map import column_names, refuse_twins
from streaming_pca.estimators.factory import MAX_FEATURES
from streaming_pca.estimators.forecast.forecast import MOST_RECORDS
from streaming_pca.linalg.masks import refuse_masks_and_units
from streaming_pca.privacy.errors import require_count
from streaming_pca.text import one_line

Rows = Any
"""Array of rows, or a CSR matrix or array."""

_FLOATS = [np.float64, np.float32]
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal", "complex", "sparse")
_SPANS, _TIMES = ("timedelta", "duration"), ("date", "time", "period")
_ANY = ("",)  # beginnings of the names of types in pandas, polars and Arrow
_HARMLESS = ("Found array with", "Input ", "np.matrix is not supported", "Only sparse data")
"""Beginnings of messages that have one line and no value."""
RECORDS = "vectors (m, d) or factors (m, r, d)"
"""Shapes of records."""
SWAPPED = ": plan takes n_features first, so for the shape of X write plan(*X.shape[::-1])"
"""Remedy for fewer records than features."""


def check_rows(X: Any, *, least: int, estimator: Any) -> Rows:
    """Return X as finite floats, at least ``least`` records, CSR if sparse; ValueError or TypeError."""
    refuse_masks_and_units(X)
    if spans := _columns_of(X, _SPANS):
        raise ValueError(f"X has columns of durations ({', '.join(map(repr, spans))}): divide them by a unit")
    if (times := _columns_of(X, _TIMES)) or getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError(_needs_map(X, "times", times))
    if issparse(X) and not getattr(X, "has_canonical_format", True):
        # Entries of one place add up before they are checked.
        X = X.tocsr(copy=True)
        X.sum_duplicates()
    array = check_numbers(
        X, shapes=RECORDS, accept_sparse="csr", ensure_min_samples=least, estimator=estimator
    )
    if array.ndim > 3 or not np.prod(array.shape):
        raise ValueError(f"X must be {RECORDS}, not of shape {array.shape}")
    return array


def check_numbers(X: Any, name: str = "X", shapes: str = "of shape (m, k) or (m, r, k)", **how: Any) -> Any:
    """Return an argument of two or more dimensions as finite floats; errors as of :func:`check_rows`."""
    refuse_twins(_columns_of(X, _ANY), f"{name} has two columns")
    try:
        return check_array(X, dtype=_FLOATS, allow_nd=True, input_name=name, **how)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_fault(X, name, shapes, error)) from None


def _fault(X: Any, name: str, shapes: str, error: Exception) -> str:
    """Describe an error of ``check_array`` in one line, without values."""
    text = str(error)
    if "contains NaN" in text:
        # scikit-learn recommends an imputer, which learns from the records.
        return (
            f"{name} contains NaN: name public stand-ins for missing values, as FeatureMap takes them; "
            f"an imputer that is fitted on {name} is not private"
        )
    if text.startswith("Complex data"):
        return f"Complex data not supported: {name} must be real numbers"
    if text.startswith("Expected"):
        if not np.ndim(X):
            return f"{name} must be {shapes}, not {type(X).__name__}"
        return (
            f"{name} must be {shapes}, not of shape {np.shape(X)}. Reshape your data to (-1, 1) "
            "if it has one feature, or to (1, -1) if it is one record"
        )
    if "inhomogeneous" in text or "setting an array element" in text:
        return f"{name} must be {shapes}: its rows have different lengths"
    if text.startswith("float() argument must be"):
        # The message names a type.
        return f"{name} must hold numbers: {one_line(text)}"
    if "string" in text:
        if shapes != RECORDS:
            return f"{name} holds texts, which are not numbers"
        numbers = _columns_of(X, _NUMBERS)
        return _needs_map(X, "texts", [each for each in column_names(X) or () if each not in numbers])
    if text.startswith(_HARMLESS):
        return one_line(text)
    return f"{name} cannot be converted to an array of numbers ({type(error).__name__})"


def _columns_of(X: Any, types: tuple[str, ...]) -> list[str]:
    """Return the columns of a data frame or an Arrow table whose types begin so."""
    names = column_names(X)
    found: Any = getattr(X, "dtypes", getattr(getattr(X, "schema", None), "types", None))
    if names is None or found is None:
        return []
    pairs = zip(names, found, strict=False)
    return [name for name, dtype in pairs if str(dtype).lower().startswith(types)]


def _needs_map(X: Any, what: str, columns: list[str]) -> str:
    """Return the message on columns without numbers; their names are public."""
    some = ", ".join(map(repr, columns[:3])) + ", ..." * (len(columns) > 3)
    begin = f"X has columns of {what} ({some})" if columns else f"X holds {what}"
    how = "give features=FeatureMap.from_frame(X, ...)"
    if not hasattr(X, "dtypes"):
        how = f"{'give' if columns else 'pass a table and'} features=FeatureMap(...)"
    return f"{begin}: {how}, which maps them to numbers by public settings, or leave them out"


def record_rows(array: Rows) -> int:
    """Return the number of rows of each record."""
    return int(array.shape[1]) if array.ndim == 3 else 1


def refuse_mixture(array: Rows, rows_per_record: int, has_vectors: bool) -> None:
    """Refuse vectors in a model of factors of several rows, and the reverse.

    The sums would be right, but the unit of privacy would be a row in one call and several rows in another.
    """
    if array.ndim == 2 and rows_per_record > 1:
        raise ValueError(
            "X has vectors, each row a record, but the records of this model are factors of several rows: "
            "pass factors (m, r, d), or X[:, None, :] for records of one row"
        )
    if record_rows(array) > 1 and has_vectors:
        raise ValueError(
            f"X has factors of {record_rows(array)} rows, each a record, but the records of this model are "
            "vectors: start a new model, with vectors as X[:, None, :]"
        )


def planned_shape(n_features: Any, n_samples: Any) -> tuple[int, int]:
    """Return the numbers of features and of records for a forecast; warn the caller's caller of a swap."""
    limits = (("n_features", n_features, 1, MAX_FEATURES), ("n_samples", n_samples, 2, MOST_RECORDS))
    for name, value, least, _ in limits:
        require_count(name, int(value) if isinstance(value, np.integer) else value, least)
    swapped = SWAPPED if n_samples < n_features else ""
    for name, value, _, most in limits:
        if value > most:
            raise ValueError(f"{name} = {value} is above {most}, the most possible{swapped}")
    if swapped:
        text = f"n_samples = {n_samples} is below n_features = {n_features}{swapped}"
        warnings.warn(text, UserWarning, stacklevel=3)
    return int(n_features), int(n_samples)


def dense_parts(array: Rows) -> Iterator[NDArray[np.floating]]:
    """Iterate over dense rows: all together, or blocks of a sparse matrix."""
    if issparse(array):
        yield from (part.rows for part in SparseBatch.of_rows(array).dense_parts())
    else:
        yield array
