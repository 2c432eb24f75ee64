"""The usefulness of each estimator separately, mostly with secret noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, Subspace
from streaming_pca.estimators.common.clipped_batches import GrowingBatches
from streaming_pca.estimators.registry import find
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import (
    LARGE,
    MATRIX_CASES,
    SUITE,
    D,
    FixedSampler,
    check_subspace,
    make,
    pack,
    records,
    run,
    spiked,
    start,
)
from tests.privacy.noise import SeededSampler

REFUSED: dict[str, dict[str, list[Any]]] = {
    "adaptive": {"route": ["both"]},
    "analyze-gauss": {"radius_range": [(1.0, 1.0), (0.0, 1.0)], "clip_radius": [1e300, 0.0]},
    "k-dp-ojas": {"clip_radius": [0, 1e300], "batch_size": [0], "noise_multiplier": [0.0], "n_records": [0]},
    "noisy-power": {"clip_l2": [0.0, math.inf], "clip_l1": [1e-9], "iterations": [0], "oversampling": [-1]},
    "output-perturbation": {"clip_radius": [0.0, math.inf], "gap_share": [0.0, 0.95], "batch_size": [1]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_out_of_range_are_refused(name: str) -> None:
    for option, values in REFUSED[name].items():
        for value in values:
            with pytest.raises(ValueError, match=f"{option}|shares"):
                make(name, **{option: value})


@pytest.mark.parametrize("name", ["private-oja", "adaptive-power"])
def test_a_radius_must_be_given_where_none_is_found(name: str) -> None:
    with pytest.raises(ValueError, match="clip_radius"):
        find(name).options_type()


@pytest.mark.parametrize("bound", [1e-160, 1e160])
def test_extreme_bounds_leave_a_radius_to_find(bound: float) -> None:
    estimator = make("analyze-gauss", public={"bounds": (-bound, bound)})
    check_subspace(estimator, estimator.release(run(estimator, [records(estimator, 100)])))


@pytest.mark.parametrize("where", ["all alike", "one far above", "all above the range", "all null", "three"])
def test_a_radius_is_found_on_any_sizes(where: str) -> None:
    """Sizes fill one bin, have an outlier, exceed every bin, are null or too few.

    Without noise, an error here would occur in most runs.
    """
    x = np.ones((4000, D))
    sizes = {"one far above": (2.0**-10, 2.0**40), "all above the range": (1e-6, 1.0)}.get(where)
    x[7] *= 1e6 if where == "one far above" else 1
    x = np.full_like(x, np.nan) if where == "all null" else x[:3] if where == "three" else x
    estimator = make("analyze-gauss", k=1, **({"radius_range": sizes} if sizes else {}))
    with replace_noise_sampler(FixedSampler()):
        state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    release = estimator.release(state)
    check_subspace(estimator, release)
    if where in ("all alike", "one far above"):
        # The trace is 5, and a radius is known to 9%: the clip should be as large, but no larger than needed.
        assert release.explained_variance[0] == pytest.approx(5, rel=0.09)
        assert 4.5 < state.covariance.radii[state.covariance.chosen] < 5 * 2 ** (4 / 8)
    if where == "all above the range":
        # The tail search starts at the last bin, so even these need no clip.
        assert 0.99 < release.explained_variance[0] < 5.01


def test_growing_batches_add_up_to_a_known_number() -> None:
    for n_records in (2, 3, 17, 1000, 336_776, 1_000_001):
        for n_batches, growth in ((1, 1.6), (9, 1.6), (10, 1.0), (3000, 1.6), (3000, 64.0)):
            batching = GrowingBatches(n_records=n_records, n_batches=n_batches, growth=growth)
            sizes, i = [], 0
            while sum(sizes) < n_records:
                sizes.append(batching.count(i))
                i += 1
            assert sum(sizes) == n_records
            assert len(sizes) <= n_batches
            assert all(size % 2 == 0 for size in sizes[:-1])


def test_growing_batches_grow_to_their_limit() -> None:
    batching = GrowingBatches(first_batch=100, growth=1.5, max_batch=1000)
    sizes = [batching.count(i) for i in range(10)]
    assert sizes[:3] == [100, 150, 224]
    assert sizes[-1] == batching.count(10**9) == 1000
    assert sizes == sorted(sizes)
    assert GrowingBatches(first_batch=100, growth=1.0).count(10**12) == 100


@pytest.mark.parametrize(
    "options",
    [{"first_batch": 100, "max_batch": 50}, {"n_records": MAX_RECORDS * 3, "n_batches": 2}, {"growth": 0.9}],
)
def test_batches_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_batch|n_batches|growth"):
        GrowingBatches(**options)


# Utility, with real secret noise.


def learn(estimator: Estimator[Any, Any], x: NDArray[np.float64]) -> Subspace:
    """Learn from all records, in the batches that the estimator plans."""
    state, taken = start(estimator), 0
    while taken < len(x):
        count = min(estimator.plan(state).count, len(x) - taken)
        state = estimator.update(state, ArrayBatch.of_vectors(x[taken : taken + count]))
        taken += count
    return estimator.release(state)


def test_private_oja_finds_a_spiked_subspace() -> None:
    """Noise on a batch's mean is 2 R z/B = 2 20 1.2/4000 = 0.012 an entry, for z(4, 1e-6) < 1.2.

    Twelve deviations of its norm on 8 x 2 entries, 0.2, are small against the
    gap of 4 or more that remains after clipping: so are the errors.
    """
    x, truth = spiked(48_000, 8, 2, 2)
    options = {"clip_radius": 20.0, "batch_size": 4000, "learning_rate": 5.0, "offset": 0.0}
    estimator = make("private-oja", dim=8, epsilon=4.0, **options)
    assert subspace_error(learn(estimator, x).components, truth) < 0.2


@pytest.mark.parametrize("name", [name for name, _ in MATRIX_CASES])
def test_matrices_do_as_well_as_their_factors(name: str) -> None:
    """Noise is at most 2 64 1.2/4000 = 0.04 an entry, for a clip at a Frobenius norm of 64; see above.

    The seed is fixed: a random start of ``k-dp-ojas`` is nearly orthogonal too often, once in 80.
    """
    x, truth = spiked(16_000, 8, 2, 3)
    estimator = make(name, RecordKind.MATRIX, dim=8, epsilon=4.0, **SUITE[name].useful)
    with replace_noise_sampler(SeededSampler(1)):
        state = start(estimator)
        for part in np.split(x, 4):
            matrices = list(part[:, :, None] * part[:, None, :])
            state = estimator.update(state, pack(estimator, matrices))
    release = estimator.release(state)
    assert release.total_variance is None
    # For estimators that find fewer than two components, their distance from the plane counts.
    inside = np.linalg.norm(release.components @ truth.T)
    assert math.sqrt(2 * max(estimator.k - inside**2, 0.0)) < 0.3


def shifted(m: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return spiked rows far from the origin, their exact leading directions and mean."""
    x, _ = spiked(m, 8, 2, 4)
    x = x + 2.5 * np.resize([1.0, -1.0], 8)
    mean = x.mean(axis=0)
    return x, np.linalg.svd(x - mean, full_matrices=False)[2][:2], mean


def test_without_centring_a_large_mean_hides_the_subspace() -> None:
    x, truth, _ = shifted(20_000)
    estimator = make("analyze-gauss", "none", dim=8, epsilon=16.0, first_batch=20_000, **LARGE)
    assert subspace_error(learn(estimator, x).components, truth) > 0.5


@pytest.mark.parametrize("centering", ["pairs", "vector"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("analyze-gauss", {"first_batch": 48_000, "clip_quantile": 0.99, **LARGE, "max_batch": 48_000}),
        ("private-oja", {"clip_radius": 20.0, "batch_size": 6000, "learning_rate": 5.0, "offset": 0.0}),
        ("noisy-power", {"clip_l2": 8.0, "batch_size": 48_000}),
        ("output-perturbation", {"clip_radius": 60.0, "batch_size": 48_000}),
    ],
)
def test_centring_removes_a_large_mean(name: str, centering: Any, options: dict[str, Any]) -> None:
    """The error is below 0.1 where the mean alone would be the leading direction; fixed seeds."""
    x, truth, mean = shifted(48_000)
    how = tuple(mean.tolist()) if centering == "vector" else centering
    estimator = make(name, how, dim=8, epsilon=8.0, **options)
    with replace_noise_sampler(SeededSampler()):
        release = learn(estimator, x)
    assert release.mean is None
    assert subspace_error(release.components, truth) < 0.1
