"""The rounded Gaussian: decisions agree with 300-bit arithmetic, and the law is exact. See noise.py for
levels.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features
from scipy import stats
from scipy.special import ndtr

from streaming_pca.privacy import noise
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.noise import LARGEST_TOTAL, grid_exponent, rounded_gaussian
from tests.privacy.noise import has_scale

Integers = NDArray[np.int64]

SIGMAS = [0.01, 0.8, 30.0, 2.0**20 * 4.4, 2.0**27 * (1 - 2.0**-53), 2.0**27, 2.0**41 * 5.97, 2.0**57]
TOP = 2**63 - 1
SEED = 20261123


class Bytes:
    """The given bytes, followed by a seeded generator's; records the latter."""

    def __init__(self, words: NDArray[np.uint64], seed: int = 0) -> None:
        self._first = words.astype("<u8").tobytes()
        self._rng = np.random.default_rng(seed)
        self.further: list[int] = []

    def __call__(self, n: int) -> bytes:
        if self._first:
            data, self._first = self._first[:n], self._first[n:]
            assert len(data) == n
            return data
        assert n == 8
        data = self._rng.bytes(8)
        self.further.append(int.from_bytes(data, "little"))
        return data


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the answers of the slow path."""
    answers: list[int] = []
    settle: Callable[..., int] = noise._settle

    def reported(*args: Any) -> int:
        answers.append(settle(*args))
        return answers[-1]

    monkeypatch.setattr(noise, "_settle", reported)
    return answers


def holds(total: int, sigma: float, negative: bool, tail: tuple[Fraction, Fraction], answer: int) -> bool:
    """Return whether all real numbers with such a tail give this answer, at 300 bits.

    One comparison of tails at each end of the rounding interval suffices: no inverse, and no code under test.
    """
    exponent = grid_exponent(sigma)
    most = LARGEST_TOTAL
    assert answer % 2**exponent == 0
    assert abs(answer) <= most
    exact, step = Fraction(min(max(total, -most), most)), Fraction(2**exponent)
    low = -math.inf if answer == -most else (answer - step / 2 - exact) / Fraction(sigma)
    high = math.inf if answer == most else (answer + step / 2 - exact) / Fraction(sigma)
    if negative:
        low, high = -high, -low
    with mpmath.workprec(300):

        def upper(x: Fraction | float) -> mpmath.mpf:
            if isinstance(x, float):
                return mpmath.mpf(x < 0)
            return mpmath.erfc(mpmath.mpf(x.numerator) / x.denominator / mpmath.sqrt(2)) / 2

        least, largest = (mpmath.mpf(t.numerator) / t.denominator for t in tail)
        return bool(upper(high) <= least and largest <= upper(low))


def judged(totals: Integers, sigma: float, words: NDArray[np.uint64]) -> int:
    """Judge the answers for these totals and bits; return how many requested more bits."""
    together = rounded_gaussian(totals, sigma, Bytes(words))
    asked = 0
    for i, (total, word) in enumerate(zip(totals.tolist(), words.tolist(), strict=True)):
        source = Bytes(words[i : i + 1], seed=i)
        answer = int(rounded_gaussian(totals[i : i + 1], sigma, source)[0])
        m, bits = word >> 1, 64
        for more in source.further:
            m, bits = m << 64 | more, bits + 64
        tail = Fraction(m, 2**bits), Fraction(m + 1, 2**bits)
        assert holds(total, sigma, bool(word & 1), tail, answer), (total, word, source.further)
        assert source.further or answer == together[i]
        asked += bool(source.further)
    return asked


@pytest.mark.parametrize("n", [1000, pytest.param(12_500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_random_decisions_are_those_of_300_bits(sigma: float, n: int) -> None:
    """There are 8,000 in all; 100,000 with `make soak`."""
    rng = np.random.default_rng(SEED)
    totals = rng.integers(-(2**61), 2**61, n)
    # At most two in 10**5 are undecided, so 20 among these few have a probability below 1e-20.
    assert judged(totals, sigma, rng.integers(0, 2**64, n, dtype=np.uint64)) < 20


def extremes(rng: np.random.Generator, n: int) -> NDArray[np.uint64]:
    """Return tails near 0, 2**-63 and 1/2, at and near powers of two."""
    powers = [2**i + j for i in range(1, 64) for j in (-2, -1, 0, 1)]
    known = np.array([*range(64), *powers, *range(TOP - 64, TOP + 1)], dtype=np.uint64)
    return rng.choice(known[known <= TOP], n) << np.uint64(1) | rng.integers(0, 2, n, dtype=np.uint64)


@pytest.mark.parametrize("n", [200, pytest.param(1300, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_extreme_decisions_are_those_of_300_bits(sigma: float, n: int) -> None:
    """1,600 in all, 10,400 with `make soak`: tails, and totals at the ends of int64."""
    rng = np.random.default_rng(SEED)
    ends = np.array([-(2**63), -(2**63) + 1, -(2**62), -1, 0, 1, 2**62 - 1, 2**62, TOP], dtype=np.int64)
    totals = np.where(rng.random(n) < 0.5, rng.choice(ends, n), rng.integers(-(2**63), TOP, n))
    words = extremes(rng, n)
    # m = 0 is an extreme that decides nothing by itself.
    words[0] = 0
    assert judged(totals, sigma, words) > 0


@pytest.mark.parametrize("sigma", [2.0**35, 2.0**41 * 5.97, 2.0**50, 2.0**57])
def test_sums_beside_a_rounding_boundary_are_those_of_300_bits(sigma: float, settled: list[int]) -> None:
    """S + sigma z lies within half a lattice unit of a boundary: floats cannot decide."""
    rng = np.random.default_rng(SEED)
    n, step = 200, 2 ** grid_exponent(sigma)
    words = rng.integers(0, 2**64, n, dtype=np.uint64)
    totals = []
    with mpmath.workprec(300):
        for word in words.tolist():
            tail = (mpmath.mpf(word >> 1) + 0.5) / mpmath.mpf(2) ** 64
            z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
            reached = int(mpmath.nint(sigma * (-z if word & 1 else z)))
            totals.append(int(rng.integers(-(2**20), 2**20)) * step + step // 2 - reached)
    judged(np.array(totals, dtype=np.int64), sigma, words)
    # Half a unit is 2**-(e + 1) of the grid: at the largest scale below the resolution of floats.
    assert sigma < 2.0**57 or len(settled) > n


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_slow_path_gives_the_answers_of_the_fast_one(
    sigma: float, settled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits give the same answers. The guard is so wide that the fast path decides nothing."""
    rng = np.random.default_rng(SEED)
    totals = rng.integers(-(2**61), 2**61, 1000)
    words = rng.integers(0, 2**64, totals.size, dtype=np.uint64)
    fast, slow = Bytes(words), Bytes(words)
    expected = rounded_gaussian(totals, sigma, fast)
    monkeypatch.setattr(noise, "_NDTRI_ERROR", 1e15)
    settled.clear()
    assert np.array_equal(rounded_gaussian(totals, sigma, slow), expected)
    assert len(settled) == totals.size
    assert slow.further == fast.further


def test_the_slow_path_has_the_same_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_NDTRI_ERROR", 1e15)
    drawn = rounded_gaussian(np.zeros(10_000, dtype=np.int64), 2.0**40, os.urandom)
    assert has_scale(drawn, 2.0**40)
    assert agrees(drawn, 2.0**40)
    assert not has_scale(drawn, 0.9 * 2.0**40)


def test_threads_do_not_disturb_each_other_where_precision_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_NDTRI_ERROR", 1e15)
    rng = np.random.default_rng(SEED)
    totals = rng.integers(-(2**61), 2**61, (8, 60))
    words = rng.integers(0, 2**64, totals.shape, dtype=np.uint64)
    # For some scales the first bits do not suffice, so the precisions in use differ.
    words[:, ::3] &= np.uint64(1)

    def draw(i: int) -> Integers:
        return rounded_gaussian(totals[i], 2.0**45, Bytes(words[i], seed=i))

    alone = [draw(i) for i in range(len(totals))]
    with ThreadPoolExecutor(len(totals)) as pool:
        together = list(pool.map(draw, range(len(totals))))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("bits", [64, 104, 168, 500])
def test_tails_are_within_what_they_say(bits: int) -> None:
    rng = np.random.default_rng(SEED)
    points = [Fraction(0), Fraction(1, 2**70), *map(Fraction, rng.uniform(0, 12, 60)), Fraction(40)]
    with mpmath.workprec(2 * bits + 200):
        for x in points:
            exact = mpmath.erfc(mpmath.mpf(x.numerator) / x.denominator / mpmath.sqrt(2)) / 2
            found = noise._upper_tail(x, bits)
            error = mpmath.mpf(found.numerator) / found.denominator - exact
            assert abs(error) <= mpmath.mpf(2) ** -bits


def agrees(drawn: Integers, sigma: float) -> bool:
    """Test against the rounded Gaussian by Kolmogorov and Smirnov, at 1e-6 (Massart 1990)."""
    step = 2 ** grid_exponent(sigma)
    ordered = np.sort(drawn)
    last = np.append(ordered[1:] != ordered[:-1], True)
    reached = (np.flatnonzero(last) + 1) / ordered.size
    exact = ndtr((ordered[last] + step / 2) / sigma)
    distance = np.max(np.abs(reached - exact))
    # Between atoms both are constant, so the distance at atoms is the maximum.
    return bool(distance <= math.sqrt(math.log(2 / 1e-6) / 2 / ordered.size))


@pytest.mark.parametrize("sigma", [40.0, 2.0**41 * 5.97])
def test_ten_million_values_have_the_exact_law_and_no_other(sigma: float) -> None:
    """Moments and distribution agree at 1e-6; those of 0.99 and 1.01 of sigma do not.

    The distributions are .0024 apart there, the test's radius .00085: it misses that with
    probability 1e-13.
    """
    n = 10**7
    drawn = rounded_gaussian(np.zeros(n, dtype=np.int64), sigma, os.urandom)
    assert agrees(drawn, sigma)
    x = drawn / sigma
    # Rounding adds step**2/12 to the variance, less than 1e-7 n of it.
    assert has_scale(drawn, math.hypot(sigma, 2 ** grid_exponent(sigma) / math.sqrt(12)))
    assert abs(float(x.mean())) < 5.3 / math.sqrt(n)
    assert abs(float(np.mean(x**3))) < 6 * math.sqrt(15 / n)
    assert abs(float(np.mean(x**4)) - 3) < 6 * math.sqrt(96 / n) + 1e-3
    assert abs(float(np.mean(x[1:] * x[:-1]))) < 5.3 / math.sqrt(n)
    for factor in (0.99, 1.01):
        assert not agrees(drawn, factor * sigma)
        assert not has_scale(drawn, factor * sigma)


@pytest.mark.parametrize("sigma", [0.3, 0.8, 3.0])
def test_small_noise_has_the_exact_distribution(sigma: float) -> None:
    """Chi-square over all values expected 20 times in 200,000 draws; 1e-9 leaves room for the rest."""
    n = 200_000
    j = np.arange(-60, 61)
    p = ndtr((j + 0.5) / sigma) - ndtr((j - 0.5) / sigma)
    counts = np.bincount(rounded_gaussian(np.zeros(n, dtype=np.int64), sigma, os.urandom) + 60, minlength=121)
    often = n * p >= 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(n * p[often], max(n * p[~often].sum(), 1e-9))
    statistic = float(np.sum(((observed - expected) ** 2 / expected)[expected >= 1]))
    assert statistic <= stats.chi2(len(expected) - 1).isf(1e-9) + 30
    assert observed[-1] <= expected[-1] + 10 * math.sqrt(expected[-1]) + 30


def test_it_cannot_be_told_from_the_discrete_gaussian() -> None:
    """Two samples, OpenDP's and ours, have laws within 1e-6 of each other; level 1e-6."""
    enable_features("contrib")
    n, sigma = 100_000, 200.0
    sampler = make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=sigma)
    theirs = np.array(sampler([0] * n), dtype=np.int64)
    ours = rounded_gaussian(np.zeros(n, dtype=np.int64), sigma, os.urandom)
    assert stats.ks_2samp(theirs, ours).pvalue > 1e-6
    wide = rounded_gaussian(np.zeros(n, dtype=np.int64), 1.1 * sigma, os.urandom)
    assert stats.ks_2samp(theirs, wide).pvalue < 1e-6


def test_every_value_has_bits_of_its_own() -> None:
    """The answers follow from eight bytes each, in order; shapes and strides do not matter."""
    n = noise._BLOCK + 100
    words = np.random.default_rng(SEED).integers(0, 2**64, n, dtype=np.uint64)
    totals = np.arange(n, dtype=np.int64)
    whole = rounded_gaussian(totals, 2.0**40, Bytes(words))
    for i in (0, 1, noise._BLOCK - 1, noise._BLOCK, n - 1):
        alone = rounded_gaussian(totals[i : i + 1], 2.0**40, Bytes(words[i : i + 1]))
        assert alone[0] == whole[i]
    square = totals[:100].reshape(10, 10).T
    flat = rounded_gaussian(square.ravel(), 2.0**40, Bytes(words[:100]))
    assert np.array_equal(rounded_gaussian(square, 2.0**40, Bytes(words[:100])), flat.reshape(10, 10))
    assert np.array_equal(totals, np.arange(n)), "what it is given stays as it is"


_COPIES = """
import ctypes, os, sys
import numpy as np
from streaming_pca.privacy.mechanisms import gaussian_on_vector
from streaming_pca.privacy.randomness import noise_sampler

def draw():
    if sys.argv[2] == "laplace":
        return noise_sampler().discrete_laplace(2000, 2.0**40)
    return gaussian_on_vector(np.zeros(2000, dtype=np.int64), 2.0**40)

draw()  # whatever a first draw may leave behind is there now
reading, writing = os.pipe()
fork = os.fork if sys.argv[1] == "python" else ctypes.CDLL(None).fork
child = fork()
own = draw()
if child == 0:
    os.write(writing, own.tobytes())
    os._exit(0)
os.waitpid(child, 0)
other = np.frombuffer(os.read(reading, 16000), dtype=np.int64)
assert other.size == 2000, other.size
# At 2**-26 of sigma a value in 10**8 is that of another draw, or zero.
assert np.count_nonzero(own == other) < 5
assert np.count_nonzero(own == 0) + np.count_nonzero(other == 0) < 5
"""


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("how", ["python", "libc"])
def test_a_copy_of_a_process_draws_its_own(how: str, law: str) -> None:
    """This includes copies made below Python, where no hook runs: no reusable state is kept."""
    subprocess.run([sys.executable, "-c", _COPIES, how, law], check=True, timeout=240)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, True, "1", 2.0**57 * (1 + 2.0**-52)])
def test_a_scale_out_of_range_is_refused(sigma: float) -> None:
    with pytest.raises(ParameterError, match=r"^sigma must"):
        rounded_gaussian(np.zeros(3, dtype=np.int64), sigma, os.urandom)


@pytest.mark.parametrize(
    ("sigma", "exponent"), [(1e-300, 0), (1.0, 0), (2.0**27 * (1 - 2.0**-53), 0), (2.0**27, 1), (2.0**57, 31)]
)
def test_the_grid_is_far_below_the_noise(sigma: float, exponent: int) -> None:
    assert grid_exponent(sigma) == exponent
    assert exponent == 0 or 2.0**exponent <= sigma * 2.0**-26
