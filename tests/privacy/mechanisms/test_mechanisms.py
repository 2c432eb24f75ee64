"""The noise from both sides, and that nothing else is added. See noise.py for the levels."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import (
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
    laplace_on_vector,
    laplace_scale,
)
from streaming_pca.privacy.mechanisms.pure import add
from streaming_pca.privacy.noise import LARGEST_TOTAL
from streaming_pca.privacy.randomness import noise_sampler, replace_noise_sampler
from tests.data.refusals import refuses
from tests.privacy.noise import FACTORS, MISS, ScriptedSampler, has_scale, has_scale_alone, missed


@pytest.mark.parametrize("scale", [200.0, 1234.5, 2.0**40])
def test_the_laplace_sampler_has_the_scale_it_is_asked_for(scale: float) -> None:
    assert noise_sampler().discrete_laplace(1, scale).dtype == np.int64
    assert has_scale_alone(lambda by: noise_sampler().discrete_laplace(2000, by), scale, "laplace")


def test_samplers_are_centred_and_do_not_repeat() -> None:
    n, scale = 5000, 1e6
    first, second = (noise_sampler().discrete_laplace(n, scale / math.sqrt(2)) for _ in range(2))
    bound = 5.3 * scale / math.sqrt(n)  # |normal| > 5.3: 1.2e-7
    assert abs(first.mean()) < bound
    assert abs(second.mean()) < bound
    assert abs(float(np.mean(first * (second / scale)))) < bound * 1.1
    assert not np.array_equal(first, second)


def test_vector_noise_has_the_stated_scale() -> None:
    total = np.random.default_rng(0).integers(-(2**61), 2**61, 2000)
    assert has_scale_alone(lambda by: gaussian_on_vector(total, by) - total, 5e10)


def symmetric_noise(sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return diagonal and off-diagonal noise, 1,000 numbers each or more."""
    d = 50
    total = np.random.default_rng(1).integers(-(2**40), 2**40, (d, d))
    total += total.T
    diagonal, off = [], []
    for _ in range(20):
        noisy = gaussian_on_symmetric(total, sigma)
        assert np.array_equal(noisy, noisy.T)
        diagonal.append(np.diagonal(noisy - total))
        off.append((noisy - total)[np.triu_indices(d, 1)])
    return np.concatenate(diagonal), np.concatenate(off)


def test_noise_on_symmetric_matrices_is_isotropic() -> None:
    sigma = 1e9
    assert max(missed(1000, "gaussian", f) for f in FACTORS) < MISS
    diagonal, off = symmetric_noise(sigma)
    assert has_scale(diagonal, sigma)
    assert has_scale(off, sigma / math.sqrt(2))
    assert not has_scale(off, sigma)
    assert not has_scale(diagonal, sigma / math.sqrt(2))
    for factor in FACTORS:
        diagonal, off = symmetric_noise(factor * sigma)
        assert not has_scale(diagonal, sigma)
        assert not has_scale(off, sigma / math.sqrt(2))


def test_noise_in_the_symmetric_space_is_isotropic() -> None:
    d, k, sigma, repeats = 30, 20, 1e9, 60
    whole = np.linalg.qr(np.random.default_rng(2).standard_normal((d, d)))[0]
    basis, complement = whole[:, :k], whole[:, k:]
    upper = np.triu_indices(k, 1)

    def noise(scale: float) -> list[NDArray[np.float64]]:
        parts: list[list[NDArray[np.float64]]] = [[], [], []]
        for _ in range(repeats):
            y = gaussian_on_symmetric_space(np.zeros((d, k), dtype=np.int64), basis, scale)
            inner = basis.T @ y
            assert np.allclose(inner, inner.T, atol=1e-9 * scale, rtol=0)
            parts[0].append(np.diagonal(inner))
            parts[1].append(inner[upper])
            parts[2].append((complement.T @ y).ravel())
        return [np.concatenate(part) for part in parts]

    assert max(missed(repeats * k, "gaussian", f) for f in FACTORS) < MISS
    scales = [sigma, sigma / math.sqrt(2), sigma]
    assert all(has_scale(x, s) for x, s in zip(noise(sigma), scales, strict=True))
    for factor in FACTORS:
        assert not any(has_scale(x, s) for x, s in zip(noise(factor * sigma), scales, strict=True))


def test_every_integer_gets_noise_of_its_own() -> None:
    """The upper triangle's entries, and the d k integers, each have their own draw."""
    sampler = ScriptedSampler(lambda size, scale: np.arange(1, size + 1, dtype=np.int64) * 1000)
    with replace_noise_sampler(sampler):
        noisy = gaussian_on_symmetric(np.zeros((4, 4), dtype=np.int64), 100.0)
        vector = gaussian_on_vector(np.zeros((3, 2), dtype=np.int64), 7.0)
        gaussian_on_symmetric_space(np.zeros((3, 2), dtype=np.int64), np.eye(3)[:, :2], 8.0)
        gaussian_on_symmetric(np.zeros((1, 1), dtype=np.int64), 9.0)
    assert np.unique(noisy[np.triu_indices(4, 1)]).size == 6
    assert np.unique(np.diagonal(noisy)).size == 4
    assert np.unique(vector).size == 6
    assert ("gaussian", 6, math.nextafter(100.0 / math.sqrt(2), math.inf)) in sampler.asked
    assert ("gaussian", 4, 100.0) in sampler.asked
    assert sampler.asked[2:4] == [("gaussian", 6, 7.0), ("gaussian", 6, 8.0)]
    assert sampler.asked[-1] == ("gaussian", 1, 9.0)


def test_without_noise_mechanisms_return_the_sum() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-(2**50), 2**50, (5, 5))
    a += a.T
    basis = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    with replace_noise_sampler(ScriptedSampler()):
        assert np.array_equal(gaussian_on_vector(a, 1.0), a)
        assert np.array_equal(gaussian_on_symmetric(a, 1.0), a)
        image = np.rint(a @ basis).astype(np.int64)
        found = gaussian_on_symmetric_space(image, basis, 1.0)
    # A basis applied to a symmetric matrix lies in S_Q, up to the rounding of the image.
    assert np.abs(found - image).max() < 5


def test_laplace_noise_has_the_stated_scale() -> None:
    total = np.arange(2000) - 1000
    assert has_scale_alone(lambda by: laplace_on_vector(total, by) - total, 40_000.0, "laplace")


@pytest.mark.parametrize("scale", [0.4, 2.0])
def test_small_laplace_noise_has_the_exact_discrete_distribution(scale: float) -> None:
    """Chi-square over all values expected 20 times in 20,000 draws; 1e-9 and 30 for the rest."""
    n = 20_000
    noise = laplace_on_vector(np.zeros(n, dtype=np.int64), scale)
    j = np.arange(-60, 61)
    q = math.exp(-1 / scale)
    p = q ** np.abs(j) * (1 - q) / (1 + q)
    counts = np.bincount(np.clip(noise, -60, 60) + 60, minlength=121)
    often = n * p >= 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(n * p[often], n * p[~often].sum())
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    assert statistic <= stats.chi2(len(expected) - 1).isf(1e-9) + 30


@pytest.mark.parametrize("epsilon", [1e-9, 0.07, 0.1, 0.3, 1.0, 3.0, 1e6])
@pytest.mark.parametrize("sensitivity", [1, 2, 3, 7.5])
def test_the_laplace_scale_is_private_at_the_charged_decimal(sensitivity: float, epsilon: float) -> None:
    """The decimal counts, rather than the nearest float; the scale is as small as possible."""
    scale = laplace_scale(sensitivity, epsilon)
    assert Fraction(sensitivity) / Fraction(scale) <= min(Fraction(str(epsilon)), Fraction(epsilon))
    assert scale == pytest.approx(sensitivity / epsilon, rel=1e-15)


ENDS = st.integers(-(2**63), 2**63 - 1)
FAR = st.integers(-(2**70), 2**70)


@settings(deadline=None)
@given(pairs=st.lists(st.tuples(ENDS, FAR), min_size=1, max_size=8))
def test_a_draw_that_saturated_gives_the_answer_of_the_true_one(pairs: list[tuple[int, int]]) -> None:
    """The sampler clips to int64; the judge adds in Python's unbounded integers."""
    total = np.array([t for t, _ in pairs], dtype=np.int64)
    saturated = np.array([min(max(n, -(2**63)), 2**63 - 1) for _, n in pairs], dtype=np.int64)
    most = LARGEST_TOTAL
    expected = [min(max(min(max(t, -most), most) + n, 1 - most), most - 1) for t, n in pairs]
    assert add(total, saturated).tolist() == expected


def test_the_sampler_does_saturate_so_the_test_above_is_about_something() -> None:
    noise = noise_sampler().discrete_laplace(200, 1e30)
    assert set(noise.tolist()) == {-(2**63), 2**63 - 1}
    both = {1 - LARGEST_TOTAL, LARGEST_TOTAL - 1}
    assert set(laplace_on_vector(np.full(200, -(2**61)), 1e30).tolist()) == both


SCALES = [0.0, -1.0, math.nan, math.inf, True, "1"]
INTEGERS = np.zeros((2, 2), dtype=np.int64)


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_that_is_no_number_above_zero_is_refused(scale: float) -> None:
    refuses(r"^sigma must", gaussian_on_vector, INTEGERS, scale, error=ParameterError)
    refuses(r"^sigma must", gaussian_on_symmetric, INTEGERS, scale, error=ParameterError)
    refuses(r"^sigma must", gaussian_on_symmetric_space, INTEGERS, np.eye(2), scale, error=ParameterError)
    refuses(r"^scale must", laplace_on_vector, INTEGERS, scale, error=ParameterError)
    for name in ("sensitivity", "epsilon"):
        with pytest.raises(ParameterError, match=f"^{name} must"):
            laplace_scale(**{"sensitivity": 1.0, "epsilon": 1.0, name: scale})


def test_a_scale_beyond_floats_is_refused() -> None:
    for sensitivity, epsilon in ((1e300, 1e-300), (1e-300, 1e300)):
        refuses("out of range", laplace_scale, sensitivity, epsilon, error=ParameterError)


@pytest.mark.parametrize("total", [INTEGERS.astype(float), INTEGERS.astype(np.int32), [[0, 0], [0, 0]]])
def test_totals_that_are_not_int64_are_refused_without_showing_them(total: NDArray[np.int64]) -> None:
    for call in (
        lambda: gaussian_on_vector(total, 1.0),
        lambda: gaussian_on_symmetric(total, 1.0),
        lambda: laplace_on_vector(total, 1.0),
    ):
        refuses(r"^total must be an array of int64, not [a-z0-9]+$", call, error=ParameterError)


def test_totals_of_another_shape_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"^total must be a square matrix"):
        gaussian_on_symmetric(np.zeros((2, 3), dtype=np.int64), 1.0)
    with pytest.raises(ParameterError, match=r"^total must be a square matrix"):
        gaussian_on_symmetric(np.zeros((0, 0), dtype=np.int64), 1.0)
    with pytest.raises(ParameterError, match="one shape"):
        gaussian_on_symmetric_space(np.zeros((3, 2), dtype=np.int64), np.eye(2), 1.0)
