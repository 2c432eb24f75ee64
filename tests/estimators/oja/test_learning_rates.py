"""The families of [DunglerSanyal2026, appendix F.2]."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streaming_pca.estimators.oja.options import LearningRates

GUESSES = {"noise_level": 0.5, "largest_eigenvalue": 10.0, "gap": 5.0}


def test_the_first_family_falls_with_the_step_and_faster_after_tau() -> None:
    rates = LearningRates(learning_rate=2.0, offset=10.0, decay_after=20, decay_power=0.5)
    assert rates.rate(1) == 2 / 11
    assert rates.rate(20) == 2 / 30
    assert rates.rate(110) == pytest.approx(2 / 120 * math.sqrt(30 / 120))


@pytest.mark.parametrize(("schedule", "s"), [("spectral", 1), ("spectral-d", 7)])
def test_the_other_families_use_public_guesses_of_the_spectrum(schedule: Any, s: int) -> None:
    """1/(20 sigma lambda_1 s + (lambda_1 - lambda_2) t/ln n)."""
    rates = LearningRates(schedule=schedule, **GUESSES)
    assert rates.rate(3, dim=7, records=1000) == pytest.approx(
        1 / (20 * 0.5 * 10 * s + 5 * 3 / math.log(1000))
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "spectral"}, "needs noise_level, largest_eigenvalue, gap"),
        ({"schedule": "spectral-d", "gap": 1.0}, "needs noise_level"),
        ({"gap": 1.0}, "gap is for the spectral schedules"),
        ({"learning_rate": 0.0}, "greater than 0"),
    ],
)
def test_guesses_that_are_missing_or_of_no_use_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LearningRates(**options)
