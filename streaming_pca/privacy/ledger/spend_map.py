"""Charges of a partition's offsets, as merged intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_

from streaming_pca.privacy.parameters import Charge


@dataclass
class SpendMap:
    """Piecewise constant map from offsets to charges.

    Neighbouring intervals with equal charges are merged, so a stream that charges every record once costs one
    interval however long it runs. ``_starts[i]`` opens the interval that ``_starts[i + 1]`` closes; its
    charge is ``_charges[i]``. The first start is 0, and the last charge is always nothing.
    """

    _starts: list[int] = field(default_factory=lambda: [0])
    _charges: list[Charge] = field(default_factory=lambda: [Charge.nothing()])

    def at(self, offset: int) -> Charge:
        return self._charges[bisect_right(self._starts, offset) - 1]

    def intervals(self) -> Iterator[tuple[int, int, Charge]]:
        """Yield (start, end, charge) of every charged interval, in order."""
        for (start, end), charge in zip(pairwise(self._starts), self._charges, strict=False):
            if charge != Charge.nothing():
                yield start, end, charge

    def over(self, start: int, end: int) -> list[Charge]:
        """Return the charges that occur on [start, end), uncharged offsets included."""
        if start >= end:
            return []
        return self._charges[bisect_right(self._starts, start) - 1 : bisect_right(self._starts, end - 1)]

    def add(self, start: int, end: int, charge: Charge) -> None:
        """Charge every offset of [start, end) once more."""
        if start >= end or charge == Charge.nothing():
            return
        first, last = self._split(start), self._split(end)
        for index in range(first, last):
            self._charges[index] = self._charges[index] + charge
        # Drop boundaries that separate equal charges.
        for index in range(last, max(first, 1) - 1, -1):
            if self._charges[index] == self._charges[index - 1]:
                del self._starts[index], self._charges[index]

    def _split(self, offset: int) -> int:
        """Make ``offset`` a boundary and return its index."""
        index = bisect_right(self._starts, offset)
        if self._starts[index - 1] == offset:
            return index - 1
        self._starts.insert(index, offset)
        self._charges.insert(index, self._charges[index - 1])
        return index


def largest_charge(spends: Iterable[SpendMap]) -> Charge:
    """Return the largest charge of any record; epsilon, delta and rho each on its own."""
    charges = (charge for spend in spends for _, _, charge in spend.intervals())
    return reduce(or_, charges, Charge.nothing())
