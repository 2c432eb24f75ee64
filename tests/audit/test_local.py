"""The empirical audit of reports refutes the paper's printed noise and accepts the corrected one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.audit.bounds import audit
from streaming_pca.audit.mechanisms import mechanism_cases
from streaming_pca.local.gaussian import unit_ball_integers
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.audit.test_cases import gaussian_rates, power
from tests.privacy.noise import SeededSampler

EPSILON, DELTA = 8.0, 1e-6
TRIALS = 4000

ONE, REPLAYED = mechanism_cases("LocalGaussian", EPSILON, DELTA)
PRINTED = math.sqrt(2 * math.log(1.25 / DELTA)) / EPSILON


class ScaledSampler(SeededSampler):
    """Noise of ``factor`` times the requested scale."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        return super().rounded_gaussian(total, self.factor * sigma)


def test_a_report_is_not_refuted() -> None:
    with replace_noise_sampler(SeededSampler(3)):
        assert not audit(ONE, TRIALS).refuted


def test_the_systems_noise_cannot_be_replayed() -> None:
    """This uses the system's noise: at most 1 audit in 10,000 refutes a true claim."""
    assert not audit(REPLAYED, 300).refuted


def test_the_printed_noise_is_caught() -> None:
    """The paper uses the sensitivity of leaving out. Its constant holds only below epsilon = 1."""
    factor = PRINTED * ONE.claim.mu / math.sqrt(2)
    assert power(ONE, TRIALS // 2, *gaussian_rates(ONE.claim.mu / factor)) > 0.999
    with replace_noise_sampler(ScaledSampler(factor)):
        assert audit(ONE, TRIALS).refuted


def test_a_noise_that_can_be_copied_is_caught() -> None:
    with replace_noise_sampler(SeededSampler()):
        assert audit(REPLAYED, 300).refuted


def test_a_record_that_is_not_clipped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: NDArray[np.float64], per_unit: float) -> NDArray[np.int64]:
        return 2 * unit_ball_integers(x, per_unit)

    monkeypatch.setattr("streaming_pca.local.gaussian.unit_ball_integers", twice)
    with replace_noise_sampler(SeededSampler()):
        assert audit(ONE, TRIALS).refuted


def test_the_claim_is_of_the_two_inputs_that_are_furthest_apart() -> None:
    with replace_noise_sampler(ScaledSampler(0.0)):
        first, second = (ONE.sample(which, 1)[0] for which in (False, True))
    assert (second - first) / math.sqrt(2) == pytest.approx(math.sqrt(2))
