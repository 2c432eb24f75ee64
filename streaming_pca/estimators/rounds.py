"""How a batch is cut into rounds of the block route: by public numbers."""

from __future__ import annotations

__all__ = ["rounds"]

_FIRST = 0.01
_GROWTH = 4


def rounds(count: int, least: int) -> list[int]:
    """Numbers of records that add up to ``count``.

    A first round of 1%, then 4 times as many each (3 to 6 were tried: fewer
    rounds leave the centre's error in, more of them cost noise); the last one
    takes what is left, about three times the one before or more.

    Parameters
    ----------
    count : int
    least : int
        The fewest records that a round is worth.
    """
    out: list[int] = []
    size = max(least, int(_FIRST * count))
    left = count
    while left >= size + 2 * _GROWTH * size / 3 and left > size:
        out.append(size)
        left -= size
        size *= _GROWTH
    return [*out, left]
