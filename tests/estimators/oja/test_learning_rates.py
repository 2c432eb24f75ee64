"""The families of [DunglerSanyal2026, appendix F.2], and the printed accounting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from experiments.methods import METHODS, TunedMethod
from experiments.printed import PrintedAdaDPO, PrintedMean
from experiments.running import _configured
from experiments.settings import Setting
from streaming_pca.estimators.oja.oja import LearningRates

SETTING = Setting("spiked", 1000, 7, (10.0, 4.0), 0.5)


def with_schedule(key: str, schedule: str) -> TunedMethod:
    method = METHODS[key]
    choices = [c for c in method.candidates if c["schedule"] == schedule]
    return replace(method, candidates=tuple(choices), tuned=None)


def test_the_first_family_falls_with_the_step_and_faster_after_tau() -> None:
    rates = LearningRates(learning_rate=2.0, offset=10.0, decay_after=20, decay_power=0.5)
    assert rates.rate(1) == 2 / 11
    assert rates.rate(20) == 2 / 30
    assert rates.rate(110) == pytest.approx(2 / 120 * math.sqrt(30 / 120))
    with pytest.raises(ValueError, match="greater than 0"):
        LearningRates(learning_rate=0.0)


@pytest.mark.parametrize("key", ["adadpo", "adadpo-printed", "tadadpo", "k-dp-pca", "oja"])
@pytest.mark.parametrize(("schedule", "s"), [("spectral", 1), ("spectral-d", 7)])
def test_the_other_families_use_public_guesses_of_the_spectrum(key: str, schedule: str, s: int) -> None:
    """c/(20 sigma lambda_i s + (lambda_i - lambda_(i+1)) t/ln n), for each component."""
    options: Any = _configured(with_schedule(key, schedule), SETTING).options
    log = math.log(1000)
    assert options.rate(3) == pytest.approx(1 / (20 * 0.5 * 10 * s + 6 * 3 / log))
    assert options.rate(5, 1) == pytest.approx(1 / (20 * 0.5 * 4 * s + 4 * 5 / log))


def test_without_guesses_all_components_have_the_rate_of_the_package() -> None:
    options: Any = _configured(with_schedule("k-dp-pca", "inverse"), SETTING).options
    plain = LearningRates(**options.model_dump(include=set(LearningRates.model_fields)))
    assert options.rate(4, 5) == options.rate(4) == plain.rate(4)


def test_the_printed_method_has_the_printed_noise() -> None:
    estimator: Any = _configured(METHODS["adadpo-printed"], SETTING)
    assert isinstance(estimator, PrintedAdaDPO)
    assert isinstance(estimator.adaptive_mean, PrintedMean)
    parameters = estimator.plan(estimator.init(SETTING.draw(1).start())).parameters
    assert parameters["accounting"] == "paper"
    # sqrt(2 ln(1.25/(delta/2)))/(epsilon/2).
    assert parameters["sigma_over_sensitivity"] == pytest.approx(2 * math.sqrt(2 * math.log(250)))
