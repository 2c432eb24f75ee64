"""How a batch is cut into rounds of the block route: by public numbers."""

from __future__ import annotations

__all__ = ["rounds"]

_FIRST, _FIRST_COLD = 0.01, 0.05
_GROWTH = 4


def rounds(count: int, least: int, cold: bool) -> list[int]:
    """Numbers of records that add up to ``count``.

    A first round of 1% (of 5% where the basis is a guess: at d = 1,000 power steps
    from a noisier start failed in one draw of three), then 4 times as many each (3 to 6 were tried: fewer
    rounds leave the centre's error in, more of them cost noise); the last one
    takes what is left, about three times the one before or more.

    Parameters
    ----------
    count : int
    least : int
        The fewest records that a round is worth.
    cold : bool
        Whether the basis is a guess.
    """
    out: list[int] = []
    size = max(least, int((_FIRST_COLD if cold else _FIRST) * count))
    left = count
    while left >= size + 2 * _GROWTH * size / 3 and left > size:
        out.append(size)
        left -= size
        size *= _GROWTH
    return [*out, left]
