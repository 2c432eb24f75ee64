"""Masks, units and null bitmaps are read or refused at every entry point for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.data.projection import checked_rows
from streaming_pca.linalg.masks import numbers_or_nan, refuse_masks_and_units
from streaming_pca.local import LocalGaussian

X = np.random.default_rng(0).standard_normal((300, 3))


class Quantity(np.ndarray[Any, Any]):
    """An array with a unit, as in astropy."""

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", "km")


class Magnitude:
    """Like pint's quantity: not an array, but convertible to one."""

    units = "kilometer"
    magnitude = X

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return X


MASKED = np.ma.masked_greater(X, 2.0)
FITTED = PrivatePCA(n_components=2, epsilon=9.0, delta=1e-3, bounds=(-5, 5))
ENTRIES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda given: PrivatePCA(n_components=2, epsilon=9.0, delta=1e-3, bounds=(-5, 5)).fit(given),
    "partial_fit": lambda given: PrivatePCA(n_components=2, epsilon=9.0, bounds=(-5, 5)).partial_fit(given),
    "a release's rows": lambda given: checked_rows(given, 3, "components"),
}


def test_masked_and_missing_entries_of_a_report_are_nan() -> None:
    """An error would reveal them: no report is made of such a record, and all others are."""
    report = LocalGaussian(1.0, 1e-6, radius=9.0).privatize
    for given in (
        np.ma.masked_array([1.5, 7.0, 2.0], [0, 1, 0]),
        [1.5, None, 2],
        (1.5, pd.NA, 2.0),
        [1.5, 10**400, 2],
        np.array([1.5, None, 2], object),
        pd.Series([1.5, pd.NA, 2], dtype="Float64"),
        [1.5, np.ma.masked, 2],
    ):
        np.testing.assert_array_equal(numbers_or_nan(given), [1.5, np.nan, 2.0])
        assert report(given).shape == (6,)
    rows = [[1.0, 2.0], [np.nan, np.nan]]
    masked = np.ma.masked_array([1, 2], [1, 1])
    for missing in (None, np.nan, pd.NA, np.ma.masked, [None, np.ma.masked], masked):
        for row in ([1, 2], (1.0, 2.0), np.array([1, 2])):
            np.testing.assert_array_equal(numbers_or_nan([row, missing]), rows)
            np.testing.assert_array_equal(numbers_or_nan((missing, row)), rows[::-1])
    for truth in ([True, False], [True, None], np.array([True, False]), np.array([np.True_, None], object)):
        assert report(truth).shape == (3,)
    whole = np.ma.masked_array(np.arange(3))
    np.testing.assert_array_equal(numbers_or_nan(whole), [0, 1, 2])
    with pytest.raises(ValueError, match="has the unit km, which would be lost"):
        report(X[0].view(Quantity))
    for text in (["1.5", "2"], [1.5, "2"], [None, "2"]):
        with pytest.raises(ValueError, match="a record is a vector of 1 to"):
            report(text)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.filterwarnings("ignore::streaming_pca.DoubtfulResultWarning")
def test_masks_and_units_are_refused_in_one_line(name: str) -> None:
    enter = ENTRIES[name]
    with pytest.raises(
        ValueError, match=r"is masked, and its masked entries have undefined values: fill them \(\w+\.filled"
    ):
        enter(MASKED[[int(np.flatnonzero(MASKED.mask.any(axis=1))[0]), *range(200)]])
    with pytest.raises(ValueError, match="has the unit km, which would be lost"):
        enter(X.view(Quantity))
    # An empty mask and an empty unit are accepted silently.
    enter(np.ma.masked_array(X))
    plain = X.view(Quantity)
    plain.unit = ""
    enter(plain)


def test_what_only_becomes_an_array_is_refused_too() -> None:
    with pytest.raises(ValueError, match="has the unit kilometer"):
        refuse_masks_and_units(Magnitude())


def test_a_table_may_have_a_column_called_unit() -> None:
    pandas = pytest.importorskip("pandas")
    refuse_masks_and_units(pandas.DataFrame({"unit": [1.0, 2.0], "b": [3.0, 4.0]}))
