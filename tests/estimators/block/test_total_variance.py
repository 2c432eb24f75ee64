"""The total variance adds one integer per record and finds the right mean. Seeds are fixed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.block import variances as module
from streaming_pca.estimators.block.variances import TOTAL_LATTICE, TotalVariance, learn_total
from streaming_pca.estimators.common.budget import WHOLE, Budget
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import Floats, watched
from tests.privacy.noise import ScriptedSampler

D, Z = 3, 4.2
SPAN = (2.0**-40, 2.0**60)


def learn(
    items: list[Any], known: TotalVariance | None = None, sampler: Any = None, budget: Budget | None = None
) -> TotalVariance:
    part = ArrayBatch.of_records(items, D)
    preprocessing = Preprocessing(dim=D, centering="none")
    budget = budget or Budget(Z, 1.0)
    with replace_noise_sampler(sampler or ScriptedSampler()):
        new = learn_total(part, preprocessing, budget, Z, SPAN)[0]
    return new if known is None else known.averaged(new, new.weight / max(known.weight + new.weight, 1))


def rows(x: Floats) -> list[Any]:
    return [row[None, :] for row in x]


def exact(items: list[Any]) -> tuple[int, float]:
    """Return the integer that receives the noise, and its scale."""
    with watched() as seen:
        learn(items)
    *_, (_, (total,), (sigma,), _) = seen
    return int(total), sigma


def test_a_record_adds_an_integer_from_0_to_the_sensitivity() -> None:
    items = rows(np.random.default_rng(0).standard_normal((200, D)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "private_norm_distribution", lambda *_: Fixed())
        items[7] = None
        without, _ = exact(items)
        for size in (0.0, 5e-324, 1e-9, 1.0, 30.0, 1e100, 1e200, 1.7e308):
            items[7] = np.full((1, D), size)
            added = exact(items)[0] - without
            assert 0 <= added <= TOTAL_LATTICE
            assert size > 1e-6 or added == 0
            assert size < 30 or added == TOTAL_LATTICE


class Fixed:
    """A distribution of sizes with a fixed quantile."""

    def quantile(self, q: float) -> float:
        return 8.0


def test_its_noise_is_that_of_the_sensitivity() -> None:
    _, sigma = exact(rows(np.ones((50, D))))
    wanted = Z / math.sqrt(module._SHARE) * TOTAL_LATTICE
    assert wanted <= sigma <= wanted * (1 + 1e-12)


def test_it_spends_its_shares_and_no_more() -> None:
    budget = Budget(Z, 1.0)
    sampler = ScriptedSampler()
    learn(rows(np.ones((2000, D))), sampler=sampler, budget=budget)
    assert {name for name, _, _ in sampler.asked} == {"gaussian"}
    assert 0.95 < budget.left / WHOLE < 1


def test_the_mean_of_light_tailed_traces_is_found_within_a_few_percent() -> None:
    """Clipping at the 0.95 quantile gives the mean of min(size, R), slightly below the mean."""
    x = np.random.default_rng(3).standard_normal((20_000, D))
    found = learn(rows(x))
    assert found.weight == 20_000
    assert 0.9 * D < found.value <= 1.01 * D


def test_parts_are_averaged_and_the_noise_is_told() -> None:
    """400 fixed seeds of noise agree with the standard error within 15%."""
    x = np.random.default_rng(4).standard_normal((1000, D))
    items = rows(x)
    plain = learn(items[:300], learn(items))
    assert plain.weight == pytest.approx(1300)
    values = []
    for seed in range(400):
        rng = np.random.default_rng(seed)

        def noise(size: int, scale: float, rng: np.random.Generator = rng) -> NDArray[np.int64]:
            # Counts get no noise, so the radii stay fixed.
            drawn = rng.normal(scale=scale, size=size) if scale > 2.0**40 else np.zeros(size)
            return np.rint(drawn).astype(np.int64)

        first = learn(items, sampler=ScriptedSampler(noise))
        values.append(learn(items[:300], first, ScriptedSampler(noise)).value)
    assert np.mean(values) == pytest.approx(plain.value, abs=4 * math.sqrt(plain.noise) / 20)
    assert np.std(values) == pytest.approx(math.sqrt(plain.noise), rel=0.15)


def test_hardly_any_records_teach_hardly_anything() -> None:
    known = TotalVariance(3.0, 0.5, 10.0)
    assert learn([], known) is known
    for m in (1, 2):
        found = learn([None] * m, known)
        assert math.isfinite(found.value)
        assert found.weight == pytest.approx(10 + m)


def test_matrices_have_no_total_variance_and_spend_nothing() -> None:
    batch = ArrayBatch(np.ones((1000 * D, D)), np.arange(0, 1000 * D + 1, D), RecordKind.MATRIX)
    preprocessing = Preprocessing(dim=D, kind=RecordKind.MATRIX, centering="none")
    budget = Budget(Z, 1.0)
    assert learn_total(batch, preprocessing, budget, Z, SPAN) == (TotalVariance(), None)
    assert budget.left == WHOLE


def test_what_no_batch_leaves_is_refused() -> None:
    TotalVariance(-3.0, 0.5, 10.0).check()
    for bad in (TotalVariance(noise=-1.0), TotalVariance(weight=-1.0), TotalVariance(weight=math.inf)):
        with pytest.raises(ValueError, match="must not be below 0"):
            bad.check()
