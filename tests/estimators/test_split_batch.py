"""Estimators give the same bits for a batch in pieces as for one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, ArrayValues, value_array
from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.clipped_sums import block_residual_norms
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.estimators.registry import find
from streaming_pca.kernels.coordinates import NOWHERE, BinCounts
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.split_batch import SplitBatch, SplitValues
from tests.estimators.suite import EVERY_CASE, SUITE, agreeing, make, records, start
from tests.privacy.noise import SeededSampler

SIZES = (2, 100, 0, 38, 6)

CASES = [
    (name, how, options)
    for name, how in EVERY_CASE
    for options in ({}, *SUITE[name].variants)
    if not ("clip_l1" in options and how is RecordKind.MATRIX)
]


class Watched(SeededSampler):
    """Record every exact number that noise hid."""

    def __init__(self) -> None:
        super().__init__(3)
        self.seen: list[bytes] = []

    def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
        self.seen.append(total.tobytes() + repr(sigma).encode())
        return super().rounded_gaussian(total, sigma)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        self.seen.append(f"{size} {scale!r}".encode())
        return super().discrete_laplace(size, scale)


def odd_records(estimator: Estimator[Any, Any], m: int, seed: int) -> list[Any]:
    """Return records with some of several rows, huge, tiny, zero, and of too many rows."""
    out = records(estimator, m, seed)
    if estimator.kind is RecordKind.LOCAL:
        return out
    rng = np.random.default_rng(seed + 100)
    for i, record in enumerate(out):
        if record is None:
            continue
        match rng.integers(12):
            case 0:
                out[i] = record * rng.choice([1e160, 1e-170, 1e3, 0.0, 1e200])
            case 1:
                out[i] = np.concatenate([record, 0.5 * record])
    return out


def with_diagnostics(estimator: Estimator[Any, Any]) -> Any:
    e = estimator
    share = 0.1 if e.info.private and not e.info.local else 0.0
    return type(e)(e.dim, e.k, e.privacy, e.preprocessing, e.options, share)


def outcome(estimator: Any, batches: list[Batch]) -> list[Any]:
    """Return states and releases after each batch, and the mechanisms' inputs."""
    sampler, found, state = Watched(), [], start(estimator)
    with replace_noise_sampler(sampler):
        for batch in batches:
            state = estimator.update(state, batch)
            release = estimator.release(state)
            released = (release.components.tobytes(), release.explained_variance.tobytes())
            found.append([encode_state(state), *released])
    return [*found, sampler.seen]


@pytest.mark.parametrize(("name", "how", "options"), CASES, ids=str)
def test_pieces_give_the_bits_of_one_array(name: str, how: Any, options: dict[str, Any]) -> None:
    estimator = with_diagnostics(make(name, how, **options))
    arrays = [
        ArrayBatch.of_records(odd_records(estimator, m, i), estimator.dim, estimator.kind)
        for i, m in enumerate((400, 600, 0))
    ]
    # Limits for users have this effect: some records are null in the stream's middle.
    kept = np.random.default_rng(5).random(600) < 0.8
    whole = [arrays[0], arrays[1].keeping(kept), arrays[2]]
    pieces = [SplitBatch.of(array, SIZES) for array in arrays]
    split = [pieces[0], pieces[1].keeping(kept), pieces[2]]
    assert outcome(estimator, [*whole]) == outcome(estimator, [*split])


OF_BOUNDED_SPREAD: dict[str, dict[str, Any]] = {
    **{name: {"range_constant": 20.0} for name in ("adadpo", "dp-pca", "k-dp-pca", "tadadpo")},
    "output-perturbation": {"clip_radius": 30.0},
}


@pytest.mark.parametrize("how", ["none", "pairs", RecordKind.MATRIX], ids=str)
@pytest.mark.parametrize("name", OF_BOUNDED_SPREAD)
def test_pieces_of_records_that_agree_give_the_bits_of_one_array(name: str, how: Any) -> None:
    """The records' scale and gap can be found, so the estimator learns from them."""
    estimator = with_diagnostics(make(name, how, epsilon=100.0, delta=1e-3, **OF_BOUNDED_SPREAD[name]))
    items = agreeing(how, 6000, 11)
    # Only records outside the share that determines the scale are enlarged.
    items[3000::50] = [10 * x for x in items[3000::50]]
    items[7::100] = [None] * len(items[7::100])
    array = ArrayBatch.of_records(items, 5, estimator.kind)
    sizes = (2, 1000, 0, 702, 6)
    found = outcome(estimator, [array, array])
    assert found == outcome(estimator, [SplitBatch.of(array, sizes)] * 2)
    with replace_noise_sampler(Watched()):
        state = estimator.update(estimator.update(start(estimator), array), array)
    assert state.outcome == "learnt"


@pytest.mark.parametrize("name", ["adaptive", "block", "analyze-gauss", "adadpo", "adaptive-power", "oja"])
def test_pieces_of_many_records_give_the_bits_of_one_array(name: str) -> None:
    """The sizes exceed the blocks of every kernel; records are float32."""
    how = find(name).centerings[0]
    estimator = with_diagnostics(make(name, how, dim=12, epsilon=16.0))
    x = np.random.default_rng(6).standard_t(3, (20_000, 12)).astype(np.float32) * np.linspace(3, 0.3, 12)
    x[::371] = np.nan
    array = ArrayBatch.of_vectors(x.astype(np.float32))
    sizes = (9000, 10, 4000, 2)
    assert outcome(estimator, [array, array]) == outcome(estimator, [SplitBatch.of(array, sizes)] * 2)


def test_residuals_too_small_for_float32_are_found_in_every_piece() -> None:
    d = 6
    p = Preprocessing(dim=d, centering="none")
    rng = np.random.default_rng(7)
    basis = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    x = rng.standard_normal((300, 1, d))
    x[::3] = x[0]
    centre = x[0].T @ (x[0] @ basis)
    array = ArrayBatch.of_vectors(x)
    found = block_residual_norms(SplitBatch.of(array, SIZES), p, basis, centre)
    assert isinstance(found, SplitValues)
    wanted = value_array(block_residual_norms(array, p, basis, centre))
    assert np.concatenate(found.pieces).tobytes() == wanted.tobytes()
    assert wanted[::3].max() < 1e-12 < wanted[1]


SPECIAL = [0.0, -1.0, 1.0, 2.0, 2.5, np.inf, -np.inf, np.nan, 1e-300, 2.0]


def values_in_pieces() -> tuple[ArrayValues, SplitValues]:
    rng = np.random.default_rng(8)
    array = np.concatenate([rng.choice(SPECIAL, 50), rng.standard_normal(50)])
    return ArrayValues(array), SplitValues((array[:30], array[30:30], array[30:31], array[31:]))


def test_counts_of_values_do_not_depend_on_where_they_are() -> None:
    whole, pieces = values_in_pieces()
    radii = [2.0, -1.0, 0.0, 0.5, 2.5, 1e300, np.inf, 2.0]
    for at, radius in enumerate(radii):
        above = int(np.count_nonzero(whole.array > radius))
        assert whole.above(radii)(at) == pieces.above(radii)(at) == above
    edges = np.array([-1.0, 0.0, 2.0, 2.5, np.inf])
    wanted = np.histogram(whole.array, edges)[0]
    assert whole.histogram(edges).tolist() == pieces.histogram(edges).tolist() == wanted.tolist()


def test_counts_of_bins_add_up_to_those_of_all_records() -> None:
    rng = np.random.default_rng(10)
    bins = rng.choice([NOWHERE, -5000, -1, 0, 3, 2**31 - 1], (4, 90)).astype(np.int32)
    bins[2] = NOWHERE
    whole = BinCounts.of(bins)
    for cuts in ([], [0, 1, 50, 50]):
        found = BinCounts.together(map(BinCounts.of, np.split(bins, cuts, axis=1)), 4)
        for name in ("histograms", "owners", "keys", "counts"):
            assert np.array_equal(getattr(found, name), getattr(whole, name))
    assert len(BinCounts.together([], 4).counts) == 0
