"""The fullest bin of many histograms: against a plain count, at the threshold, and by exact laws."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from experiments.printed import stability_modes
from streaming_pca.kernels.coordinates import NOWHERE, BinCounts
from streaming_pca.privacy.calibration.multipliers import greatest_rho
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import (
    gaussian_modes,
    gaussian_modes_threshold,
    laplace_scale,
    stability_threshold,
)
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.data.refusals import refuses
from tests.privacy.noise import ScriptedSampler

Bins = NDArray[np.int32]


def fullest(bins: Bins, threshold: int) -> list[int | None]:
    """Return each row's bin with most records, the lowest of equal ones; None below the threshold."""
    out: list[int | None] = []
    for row in bins.tolist():
        counts = {b: row.count(b) for b in set(row) if b != NOWHERE}
        shown = [b for b in counts if counts[b] >= threshold]
        out.append(min(shown, key=lambda b: (-counts[b], b)) if shown else None)
    return out


@settings(deadline=None)
@given(st.data())
def test_without_noise_they_are_the_fullest_bins(data: st.DataObject) -> None:
    """Nearby bins are counted in a table, distant ones by sorting: both are tested here."""
    n, m = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 60))
    near = st.integers(-3, 3)
    far = st.sampled_from([NOWHERE, -(2**31) + 1, -5000, 0, 5000, 2**31 - 1])
    one = data.draw(st.sampled_from([near, far]))
    rows = [data.draw(st.lists(one, min_size=m, max_size=m)) for _ in range(n)]
    bins = np.array(rows, dtype=np.int32).reshape(n, m)
    for mechanism, epsilon, threshold in (
        (stability_modes, 30.0, stability_threshold(30.0, 0.3)),
        (gaussian_modes, 50.0, gaussian_modes_threshold(n, 50.0, 0.3)),
    ):
        with replace_noise_sampler(ScriptedSampler()):
            found = mechanism(BinCounts.of(bins), epsilon, 0.3)
        wanted = fullest(bins, threshold)
        assert found.found.tolist() == [b is not None for b in wanted]
        assert found.bins.tolist() == [0 if b is None else b for b in wanted]


def test_every_bin_that_holds_a_record_gets_noise_of_the_stated_scale() -> None:
    bins = BinCounts.of(np.array([[0, 0, 7, NOWHERE], [5, 5, 5, 5]], dtype=np.int32))
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        stability_modes(bins, 0.5, 1e-3)
        gaussian_modes(bins, 0.25, 1e-3)
    (laplace, gaussian) = sampler.asked
    assert laplace == ("laplace", 3, laplace_scale(2, 0.5))
    assert gaussian[:2] == ("gaussian", 3)
    # Variance n/rho: two counts of each of n histograms move by one.
    assert gaussian[2] == pytest.approx(math.sqrt(2 / 0.25), rel=1e-12)
    assert gaussian[2] >= math.sqrt(2 / 0.25)


def test_bins_that_are_no_bins_are_refused() -> None:
    for bins in (np.zeros((2, 3)), np.zeros(3, dtype=np.int32), [[1]]):
        refuses("int32", BinCounts.of, bins)
        for mechanism in (stability_modes, gaussian_modes):
            refuses("BinCounts", mechanism, bins, 1.0, 0.1, error=ParameterError)
    with pytest.raises(ParameterError, match="at least one"):
        gaussian_modes(BinCounts.of(np.zeros((0, 3), dtype=np.int32)), 1.0, 0.1)


def rounded_gaussian(scale: float, reach: int) -> dict[int, mpmath.mpf]:
    below = [mpmath.ncdf((j - mpmath.mpf(0.5)) / scale) for j in range(-reach, reach + 1)]
    return {j: after - before for j, (before, after) in enumerate(itertools.pairwise(below), -reach)}


@pytest.mark.parametrize(("n", "rho"), [(1, 0.5), (1, 8.0), (10, 0.02), (4000, 1.0)])
@pytest.mark.parametrize("delta", [0.1, 1e-6])
def test_the_threshold_hides_bins_of_one_record(n: int, rho: float, delta: float) -> None:
    """n P(1 + N >= t) <= delta by the exact tail; t is at most two above the minimum."""
    t = gaussian_modes_threshold(n, rho, delta)
    scale = math.sqrt(n / rho)
    with mpmath.workdps(30):
        law = rounded_gaussian(scale, t + 20 + math.ceil(12 * scale))

        def shown(threshold: int) -> mpmath.mpf:
            return n * mpmath.fsum(p for j, p in law.items() if 1 + j >= threshold)

        assert shown(t) <= delta
        assert t <= 3 or shown(t - 2) > delta


def test_gaussian_modes_are_private_by_their_exact_distribution() -> None:
    """All counts of one histogram are shown, and the fullest bin is a post-processing: both ways."""
    epsilon, delta = 1.5, 0.05
    unseen = delta / 4 / (1 + math.exp(epsilon))
    rho = greatest_rho(epsilon, delta * 0.75)
    t, scale = gaussian_modes_threshold(1, rho, unseen), math.sqrt(1 / rho)
    worst = mpmath.mpf(0)
    with mpmath.workdps(30):
        reach = t + 12 + math.ceil(10 * scale)
        law = rounded_gaussian(scale, 2 * reach)

        def of(count: int) -> dict[int | None, mpmath.mpf]:
            if count == 0:
                return {None: mpmath.mpf(1)}
            out: dict[int | None, mpmath.mpf] = {v: law[v - count] for v in range(t, reach)}
            out[None] = 1 - mpmath.fsum(out.values())
            return out

        for a, b in itertools.product((0, 1, t), (0, 1, t)):
            for before, after in (((a + 1, b), (a, b + 1)), ((a + 1,), (a,))):
                for one, other in ((before, after), (after, before)):
                    sides = [[of(c) for c in side] for side in (one, other)]
                    total = mpmath.mpf(0)
                    for answer in itertools.product(*(set(p) | set(q) for p, q in zip(*sides, strict=True))):
                        p, q = (mpmath.fprod(map(dict.get, s, answer, (0, 0))) for s in sides)
                        total += max(p - mpmath.exp(epsilon) * q, 0)
                    worst = max(worst, total)
    assert worst <= delta
    # Most of the allowance for bins of one record is spent.
    assert worst > unseen / 10


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (1.0, 1e-6), (0.1, 1e-9), (8.0, 1e-6)])
def test_the_greatest_rho_is_what_the_conversion_of_zcdp_allows(epsilon: float, delta: float) -> None:
    """inf over alpha of exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha/(alpha - 1)."""
    rho = greatest_rho(epsilon, delta)

    def least(rho: float) -> float:
        orders = 1 + np.exp(np.linspace(-8, 20, 200_001))
        log = (orders - 1) * (orders * rho - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
        return float(np.exp(log.min()))

    assert least(rho) <= delta * (1 + 1e-9)
    assert least(rho * 1.001) > delta
