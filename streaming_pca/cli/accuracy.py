"""Text on the variances and the accuracy of a release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streaming_pca.estimators.common.error_bounds import explained_ratio

__all__ = ["explained_text"]

_SHOWN = 6
"""Most variances shown on a line."""


def explained_text(accuracy: Mapping[str, Any]) -> str:
    """Format variances, their share, the angle bound and the support as one line.

    A tensor shows its weights in place of the variances.

    Parameters
    ----------
    accuracy : mapping
        :attr:`Release.accuracy <streaming_pca.data.release.Release.accuracy>`;
        values that are None are omitted.
    """
    if "weights" in accuracy:
        return f"weights {_variances(accuracy['weights'], None)}"
    explained = accuracy["explained_variance"]
    variances = _variances(explained, accuracy["explained_variance_error"])
    share = _share(explained, accuracy["total_variance"], accuracy["total_variance_error"])
    support = f"{len(accuracy['support'])} features" if "support" in accuracy else None
    return "; ".join(filter(None, (variances, share, _angle(accuracy["angle_bound"]), support)))


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
    """Format a bound on an angle in degrees, rounded up."""
    if bound is None:
        return None
    if bound >= math.pi / 2:
        return "angle unknown: too much noise"
    return f"angle ≤ {math.ceil(math.degrees(bound) * 10) / 10:.1f}° (95%, noise alone)"


def _number(value: float, error: float | None) -> str:
    return f"{value:.5g}" if error is None else f"{value:.5g} ± {error:.2g}"
