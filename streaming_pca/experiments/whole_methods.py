"""Methods of figures whose places are not all alike, and those that look at a draw as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlacedMethod", "WholeMethod"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PlacedMethod:
    """What every line of a figure has whose places are of several kinds.

    Attributes
    ----------
    key, label : str
        As the CSV, and as the figure, names it.
    id : str
        Of the estimator, or of what else it runs.
    private : bool
    most_seeds : int or None
        Of a full run; None: all.
    place : type or None
        The kind of place that it runs on; None: all.
    """

    key: str
    label: str
    id: str
    private: bool = field(default=True, kw_only=True)
    most_seeds: int | None = field(default=None, kw_only=True)
    place: type | None = field(default=None, kw_only=True)

    def runs_on(self, setting: Any, number: int) -> bool:
        """Whether it is run on a place, in the trial of this number, from 0."""
        if self.place is not None and not isinstance(setting, self.place):
            return False
        return self.most_seeds is None or number < self.most_seeds


@dataclass(frozen=True)
class WholeMethod(PlacedMethod):
    """A line of a figure that looks at a draw as a whole: it is no estimator of a stream.

    Attributes
    ----------
    components : callable
        From a draw to rows (k, d).
    options : mapping
        What a row's key depends on besides the setting.
    """

    components: Callable[[Any], Floats]
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def options_for(self, setting: Any) -> dict[str, Any]:
        """The same everywhere."""
        return {"method": self.key, **self.options}
