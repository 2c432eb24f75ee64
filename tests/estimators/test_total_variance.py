"""The total variance: two disjoint halves, one integer a record, and a mean that is right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.estimators import total_variance as module
from streaming_pca.estimators.clipping import PartCosts
from streaming_pca.estimators.total_variance import (
    TOTAL_LATTICE,
    TotalVariance,
    learn_total,
    take_total,
)
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.calibration import gaussian_delta
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_door
from streaming_pca.records import Batch, RecordKind
from tests.privacy.noise import ScriptedDoor

Floats = NDArray[np.float64]
D = 3
PRIVACY = PrivacyParameters(epsilon=1.0, delta=1e-6)
COSTS = PartCosts(PRIVACY)
SPAN = (2.0**-40, 2.0**60)


def learn(items: list[Any], known: TotalVariance | None = None, door: Any = None) -> TotalVariance:
    part = Batch.of_records(items, D)
    with replace_noise_door(door or ScriptedDoor()):
        return learn_total(
            known or TotalVariance(), part, Preprocessing(dim=D, centering="none"), COSTS, SPAN
        )


def rows(x: Floats) -> list[Any]:
    return [row[None, :] for row in x]


def exact(items: list[Any]) -> int:
    """The integer that meets the noise."""
    seen: list[NDArray[np.int64]] = []

    def call(total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        assert sigma == COSTS.sigma(TOTAL_LATTICE)
        seen.append(total)
        return mechanisms.gaussian_on_vector(total, sigma)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "gaussian_on_vector", call)
        learn(items)
    ((total,),) = seen
    return int(total)


def test_a_record_adds_an_integer_from_0_to_the_sensitivity() -> None:
    items = rows(np.random.default_rng(0).standard_normal((200, D)))
    totals = []
    for size in (None, 0.0, 5e-324, 1e-9, 1.0, 30.0, 1e100, 1e200, 1.7e308):
        # The last is in the half that is summed; the other half, and the radius, stay.
        items[-1] = None if size is None else np.full((1, D), size)
        totals.append(exact(items))
    assert totals[0] == min(totals)
    assert max(totals) - min(totals) == TOTAL_LATTICE


def test_its_noise_is_that_of_the_sensitivity() -> None:
    for contributions in (1, 5):
        privacy = PrivacyParameters(epsilon=0.7, delta=1e-7, contributions=contributions)
        multiplier = PartCosts(privacy).sigma(TOTAL_LATTICE) / TOTAL_LATTICE
        assert gaussian_delta(0.7, multiplier / math.sqrt(contributions)) <= 1e-7
        assert gaussian_delta(0.7, 0.999 * multiplier / math.sqrt(contributions)) > 1e-7


def test_the_halves_are_disjoint_whatever_they_hold() -> None:
    """Records of the first half move nothing but the radius; those of the second nothing but the sum."""
    x = np.random.default_rng(1).standard_normal((400, D))
    door = ScriptedDoor()
    learn(rows(x), door=door)
    assert [name for name, _, _ in door.asked] == ["laplace", "laplace", "gaussian"]
    moved = x.copy()
    # Within the bins that are there: as large as others are, so the radius is the same.
    moved[:200] = x[np.random.default_rng(2).permutation(200)]
    assert exact(rows(moved)) - exact(rows(x)) in range(-200 * TOTAL_LATTICE // 10, 200 * TOTAL_LATTICE // 10)
    none: list[Any] = rows(x)[:200] + [None] * 200
    assert exact(none) == 0


def test_the_mean_of_light_tailed_traces_is_found_within_a_few_percent() -> None:
    """Clipped at the 0.95 quantile: the mean of min(size, R), a little below that of all."""
    x = np.random.default_rng(3).standard_normal((20_000, D))
    found = learn(rows(x))
    assert found.weight == 10_000
    assert 0.9 * D < found.value <= 1.01 * D


def test_parts_are_averaged_and_the_noise_is_told() -> None:
    """400 fixed seeds of noise: the standard error within 15%."""
    x = np.random.default_rng(4).standard_normal((1000, D))
    items = rows(x)
    plain = learn(items[:300], learn(items))
    assert plain.weight == 500 + 150
    values = []
    for seed in range(400):
        rng = np.random.default_rng(seed)

        def noise(size: int, scale: float, rng: np.random.Generator = rng) -> NDArray[np.int64]:
            # None on the histograms: the radii stay.
            drawn = rng.normal(scale=scale, size=size) if scale > 1000 else np.zeros(size)
            return np.rint(drawn).astype(np.int64)

        values.append(learn(items[:300], learn(items, door=ScriptedDoor(noise)), ScriptedDoor(noise)).value)
    assert np.mean(values) == pytest.approx(plain.value, abs=4 * plain.standard_error / 20)
    assert np.std(values) == pytest.approx(plain.standard_error, rel=0.15)


def test_too_few_records_teach_nothing() -> None:
    known = TotalVariance(3.0, 0.5, 10.0)
    for m in (0, 1):
        assert learn([None] * m, known) is known
    assert math.isfinite(learn([None] * 2, known).value)


@pytest.mark.parametrize(("count", "spent"), [(10**5, 1000), (10_000, 400), (1000, 100), (0, 0)])
def test_the_share_is_small_and_public(count: int, spent: int) -> None:
    batch = Batch.of_vectors(np.ones((count, D)))
    known, rest = take_total(TotalVariance(), batch, Preprocessing(dim=D, centering="none"), COSTS, SPAN)
    assert len(rest) == count - spent
    assert known.weight == spent - spent // 2


def test_matrices_have_no_total_variance_and_spend_nothing() -> None:
    batch = Batch(np.ones((1000 * D, D)), np.arange(0, 1000 * D + 1, D), RecordKind.MATRIX)
    preprocessing = Preprocessing(dim=D, kind=RecordKind.MATRIX, centering="none")
    known, rest = take_total(TotalVariance(), batch, preprocessing, COSTS, SPAN)
    assert rest is batch
    assert known == TotalVariance()
