"""How a batch is cut into rounds of the block route: by public numbers."""

from __future__ import annotations

__all__ = ["rounds"]

_FIRST = 0.01
_GROWTH = {True: 4, False: 4}


def rounds(count: int, least: int, cold: bool) -> list[int]:
    """Numbers of records that add up to ``count``.

    A first round of 1%, then 4 times as many each where the basis is still a
    guess (power steps have to find it), 6 times where a covariance showed it;
    the last one takes what is left, at least as many as two of the one before.

    Parameters
    ----------
    count : int
    least : int
        The fewest records that a round is worth.
    cold : bool
    """
    growth = _GROWTH[cold]
    out: list[int] = []
    size = max(least, int(_FIRST * count))
    left = count
    while left >= size + 2 * growth * size / 3 and left > size:
        out.append(size)
        left -= size
        size *= growth
    return [*out, left]
