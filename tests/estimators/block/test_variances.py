"""The block route's variance pass keeps terms and shares within their bounds, for any record."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.block.variances import (
    _CAPS,
    _PARTS,
    VARIANCES_SHARE,
    _Layers,
    measure_variances,
    relative_tail,
    take_shares,
)
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.norm_distribution import NormDistribution
from streaming_pca.kernels.block.norms import LAYER
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.privacy.noise import ScriptedSampler

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
