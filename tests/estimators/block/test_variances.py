"""The block route's variance pass keeps terms and shares within their bounds, for any record."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.block.variances import (
    _CAPS,
    _PARTS,
    VARIANCES_SHARE,
    _Layers,
    _normal_excess,
    measure_variances,
    relative_tail,
    take_shares,
)
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.norm_distribution import NormDistribution
from streaming_pca.kernels.block.norms import LAYER
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.privacy.noise import ScriptedSampler, SeededSampler

D = 5
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-10, 10)
ROWS = st.lists(st.lists(NUMBERS, min_size=D, max_size=D), min_size=1, max_size=4)
BASIS = np.ascontiguousarray(np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0][:2])
CAPS = np.cumsum(np.array([[0.5, 1.0, 2.0]] * 3), axis=0)


def layers(rows: np.ndarray, starts: list[int]) -> np.ndarray:
    kernel = _Layers(Preprocessing(dim=D, centering="none"), BASIS, CAPS)
    return kernel(ArrayBatch(rows, np.array(starts), RecordKind.FACTOR))


@given(ROWS)
def test_any_record_has_terms_from_nothing_to_a_whole_layer(rows: list[list[float]]) -> None:
    found = layers(np.array(rows), [0, len(rows)])
    assert found.min() >= 0
    assert found.max() <= LAYER
    # A layer begins only where the one below is full.
    assert np.all((found[1:] == 0) | (found[:-1] == LAYER))


def test_layers_add_up_to_the_square_along_each_direction() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, D))
    starts = [0, 1, 3, 3, *range(10, 301, 10)]
    found = layers(rows, starts)
    depths = np.diff(CAPS, axis=0, prepend=0.0)
    records = [rows[a:b] for a, b in pairwise(starts)]
    squares = np.array([np.sum(record**2) for record in records])
    along = np.array([np.sum((record @ BASIS.T) ** 2, axis=0) for record in records])
    wanted = np.minimum(np.column_stack([along, squares - along.sum(axis=1)]), CAPS[-1]).sum(axis=0)
    np.testing.assert_allclose((found * depths).sum(axis=0) / LAYER, wanted, rtol=1e-5)


@pytest.mark.parametrize("centering", ["none", "pairs", np.full(D, 0.3)], ids=str)
def test_any_division_into_blocks_gives_the_same_integers(centering: object) -> None:
    kernel = _Layers(Preprocessing(dim=D, centering=centering), BASIS, CAPS)  # type: ignore[arg-type]
    batch = ArrayBatch.of_vectors(np.random.default_rng(2).normal(size=(10_000, D)))
    whole = batch.sum(kernel)
    parts = [kernel(block) for block in batch.blocks(500)]
    assert len(parts) == 20
    assert np.array_equal(whole, sum(parts))


def test_a_tail_is_that_of_the_records_that_are_there() -> None:
    """Here of a Pareto law of power 1.5 and mean 1, as shares of all records."""
    radii = np.geomspace(1.0, 1e6, 300) / 3
    above = 0.5 * (3 * radii) ** -1.5
    tails = [relative_tail(NormDistribution(radii, p * above, p), 1.0) for p in (1.0, 0.1)]
    assert tails[0][0] > 0.02
    np.testing.assert_allclose(*tails)


def test_its_layers_cost_no_more_than_the_pass() -> None:
    sampler = ScriptedSampler()
    batch = ArrayBatch.of_vectors(np.random.default_rng(3).normal(size=(500, D)))
    budget = Budget(2.0, 1.0)
    multipliers = take_shares(budget)
    assert budget.rest() == 1 - VARIANCES_SHARE
    with replace_noise_sampler(sampler):
        values, noise, hidden = measure_variances(
            batch,
            Preprocessing(dim=D, centering="none"),
            BASIS,
            np.ones(3),
            budget,
            multipliers,
            500.0,
            np.zeros(3),
        )
    asked = [(size, sigma) for kind, size, sigma in sampler.asked if kind == "gaussian"]
    assert [size for size, _ in asked] == [3] * len(_PARTS) == [3] * len(_CAPS)
    # The sum of (sensitivity/sigma)^2 is at most the pass's share of the batch's (1/z)^2.
    spent = sum(3 * Fraction(LAYER) ** 2 / Fraction(sigma) ** 2 for _, sigma in asked)
    assert spent <= Fraction(VARIANCES_SHARE) / 4
    assert float(spent) > 0.999 * VARIANCES_SHARE / 4
    np.testing.assert_allclose(values, [1, 1, 3], rtol=0.15)
    assert np.all(np.hypot(np.sqrt(noise), hidden) < 0.6 * values)
    assert math.isclose(sum(_PARTS), 1.0)


def test_excesses_of_normal_numbers_follow_from_the_first_layer() -> None:
    """Exact values by quadrature, for variances from a hundredth of the first cap to the cap itself."""
    x = np.linspace(-60, 60, 2_000_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    variances = np.array([0.01, 1 / 12, 0.3, 0.6, 1.0])
    caps = np.outer(_CAPS / _CAPS[0], np.ones(len(variances)))
    above = np.array([[density @ np.maximum(v * x**2 - c, 0) for v in variances] for c in caps[:, 0]])
    found = _normal_excess(variances - above[0], caps)
    assert np.abs(found - above).max() < 2e-3
    nothing = _normal_excess(np.zeros(1), caps[:, :1])
    assert nothing.tolist() == [[0.0], [0.0], [0.0]]


@pytest.mark.parametrize(("count", "dim", "tail"), [(1500, 5, None), (3000, 5, None), (2000, 20, 5)])
def test_errors_cover_variances_whose_first_caps_are_far_too_low(
    count: int, dim: int, tail: int | None
) -> None:
    """40 seeds: few records leave scales of a tenth of the variances. Errors were up to 12 too small."""
    beyond = []
    for seed in range(40):
        dice = np.random.default_rng(seed)
        X = dice.normal(size=(count, dim)) if tail is None else dice.standard_t(tail, size=(count, dim))
        X[:, 0] *= 4.0
        pca = PrivatePCA(1, estimator="block", random_state=seed)
        with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(seed)):
            warnings.simplefilter("ignore", DoubtfulResultWarning)
            pca.fit(X)
        true = np.mean((X @ pca.components_[0]) ** 2)
        beyond.append(abs(pca.explained_variance_[0] - true) / pca.explained_variance_error_[0])
    assert np.mean(np.array(beyond) > 3) <= 0.05, sorted(beyond)[-5:]
    assert max(beyond) < 5
