"""What a release says about its variances and about its own accuracy, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streaming_pca.estimators.uncertainty import explained_ratio

__all__ = ["explained_text"]

_SHOWN = 6
"""Variances that fit on a line."""


def explained_text(said: Mapping[str, Any]) -> str:
    """One line: explained variances, their share of the total, the bound on the angle, the support.

    Of a tensor the weights stand for the variances.

    Parameters
    ----------
    said : mapping
        As :attr:`Release.accuracy <streaming_pca.wire.Release.accuracy>`; what is
        None is left out.
    """
    if "weights" in said:
        return f"weights {_variances(said['weights'], None)}"
    explained = said["explained_variance"]
    variances = _variances(explained, said["explained_variance_error"])
    share = _share(explained, said["total_variance"], said["total_variance_error"])
    support = f"{len(said['support'])} features" if "support" in said else None
    return "; ".join(filter(None, (variances, share, _angle(said["angle_bound"]), support)))


def _variances(explained: Sequence[float], errors: Sequence[float] | None) -> str:
    shown = [_number(v, None if errors is None else errors[i]) for i, v in enumerate(explained[:_SHOWN])]
    if len(explained) > _SHOWN:
        shown.append(f"… ({len(explained)})")
    return "  ".join(shown)


def _share(explained: Sequence[float], total: float | None, error: float | None) -> str | None:
    if total is None:
        return None
    ratio = explained_ratio(np.array(explained), total)
    share = "" if ratio is None else f" ({ratio.sum():.0%})"
    return f"of {_number(total, error)}{share}"


def _angle(bound: float | None) -> str | None:
    """In degrees, rounded up: it is a bound."""
    if bound is None:
        return None
    if bound >= math.pi / 2:
        return "angle unknown: too much noise"
    return f"angle ≤ {math.ceil(math.degrees(bound) * 10) / 10:.1f}° (95%, noise alone)"


def _number(value: float, error: float | None) -> str:
    return f"{value:.5g}" if error is None else f"{value:.5g} ± {error:.2g}"
