"""The benchmark of forecasts: its numbers are those of fits and of the library's forecast."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.forecasts import measure
from streaming_pca import PrivatePCA


@pytest.mark.parametrize("bounds", [None, (-4.0, 4.0)])
def test_a_comparison_has_a_forecast_and_what_was_measured(bounds: tuple[float, float] | None) -> None:
    """The noise is real. An angle is a chi of 9 degrees of freedom times the noise.

    The mean of two is beyond 4 times its forecast, or below a tenth, with a probability below 1e-9: twice
    the forecast for the radius that the fits choose, and twice for chance.
    """
    x = np.random.default_rng(0).standard_normal((8000, 10)) * [3, *[1] * 9]
    clamped = x if bounds is None else np.clip(x, *bounds)
    found = measure(x, 1, 2.0, bounds, 2)
    values = np.linalg.eigvalsh(np.cov(clamped.T, bias=True))
    assert found["gap"] == pytest.approx((values[-1] - values[-2]) / values.sum())
    plan = PrivatePCA(1, epsilon=2.0, bounds=bounds).plan(10, 8000)
    assert found["forecast"] == plan.error_at(found["gap"])
    assert found["forecast_angle"] == math.degrees(plan.angle_at(found["gap"]))
    assert found["angle_ratio"] == pytest.approx(found["angle"] / found["forecast_angle"])
    assert 0.1 < found["angle_ratio"] < 4
    assert 0.1 < found["ratio"] < 6
    assert 0.3 < found["radius"] < 10
    assert found["doubtful"] in (0, 0.5, 1)
    assert found["ratio_at_radius"] == pytest.approx(found["ratio"] / found["radius"], rel=0.1)
