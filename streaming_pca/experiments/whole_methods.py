"""Methods that look at a draw as a whole, beside those that are estimators of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WholeMethod"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WholeMethod:
    """A line of a figure that looks at a draw as a whole: it is no estimator of a stream.

    Attributes
    ----------
    key, label : str
        As the CSV, and as the figure, names it.
    id : str
        Of what it runs.
    components : callable
        From a draw to rows (k, d).
    private : bool
    most_seeds : int or None
        Of a full run; None: all.
    options : mapping
        What a row's key depends on besides the setting.
    place : type or None
        The kind of place that it runs on; None: all.
    """

    key: str
    label: str
    id: str
    components: Callable[[Any], Floats]
    private: bool = True
    most_seeds: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    place: type | None = None

    def runs_on(self, setting: Any, number: int) -> bool:
        """Whether it is run on a place, in the trial of this number, from 0."""
        if self.place is not None and not isinstance(setting, self.place):
            return False
        return self.most_seeds is None or number < self.most_seeds

    def options_for(self, setting: Any) -> dict[str, Any]:
        """The same everywhere."""
        return {"method": self.key, **self.options}
