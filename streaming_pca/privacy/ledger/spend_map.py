"""Charges of a partition's offsets, as merged intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from streaming_pca.privacy.parameters import Charge


@dataclass
class SpendMap:
    """Piecewise constant map from offsets to charges.

    Neighbouring intervals with equal charges are merged, so a stream that charges every record once costs one
    interval however long it runs. ``_starts[i]`` opens the interval that ``_starts[i + 1]`` closes; its
    charge is ``_charges[i]``. Offsets before the first start were charged nothing, and the last charge is
    always nothing.
    """

    _starts: list[int] = field(default_factory=list)
    _charges: list[Charge] = field(default_factory=list)

    def at(self, offset: int) -> Charge:
        index = bisect_right(self._starts, offset) - 1
        return self._charges[index] if index >= 0 else Charge.nothing()

    def intervals(self) -> Iterator[tuple[int, int, Charge]]:
        """Yield (start, end, charge) of every charged interval, in order."""
        for index, charge in enumerate(self._charges[:-1]):
            if charge != Charge.nothing():
                yield self._starts[index], self._starts[index + 1], charge

    def over(self, start: int, end: int) -> list[Charge]:
        """Return the charges that occur on [start, end), uncharged offsets included."""
        if start >= end:
            return []
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, end - 1) - 1
        charges = [Charge.nothing()] if first < 0 else []
        charges.extend(self._charges[max(first, 0) : last + 1])
        return charges

    def add(self, start: int, end: int, charge: Charge) -> None:
        """Charge every offset of [start, end) once more."""
        if start >= end or charge == Charge.nothing():
            return
        first, last = self._split(start), self._split(end)
        for index in range(first, last):
            self._charges[index] = self._charges[index] + charge
        self._merge(max(first - 1, 0), last + 1)

    def _split(self, offset: int) -> int:
        """Make ``offset`` a boundary and return its index."""
        index = bisect_right(self._starts, offset)
        if index > 0 and self._starts[index - 1] == offset:
            return index - 1
        before = self._charges[index - 1] if index > 0 else Charge.nothing()
        self._starts.insert(index, offset)
        self._charges.insert(index, before)
        return index

    def _merge(self, first: int, last: int) -> None:
        """Drop boundaries in [first, last] that separate equal charges."""
        for index in range(min(last, len(self._starts) - 1), first - 1, -1):
            before = self._charges[index - 1] if index > 0 else Charge.nothing()
            if self._charges[index] == before:
                del self._starts[index]
                del self._charges[index]


def largest_charge(spends: Iterable[SpendMap]) -> Charge:
    """Return the largest charge of any record; epsilon, delta and rho each on its own."""
    charges = (charge for spend in spends for _, _, charge in spend.intervals())
    return reduce(or_, charges, Charge.nothing())
