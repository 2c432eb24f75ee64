"""The noise, from both sides, and the door it comes through.

Every test of a scale is a chi-square or gamma test at level 2e-7, with so many
draws that the same test misses noise of 0.7 or 1.3 times the scale with
probability below 1e-7 (computed by `missed`). So a run of this file fails by
chance less than once in 10**5.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import streaming_pca
from streaming_pca.privacy.mechanisms import (
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
    private_quantile,
)
from streaming_pca.privacy.randomness import (
    noise_door,
    replace_noise_door,
    secret_salt,
    utility_generator,
)

LEVEL = 2e-7
MISS = 1e-7
FACTORS = [0.7, 1.3]


class ScriptedDoor:
    """No noise at all, unless told; remembers what was asked of it."""

    def __init__(self, noise: Callable[[int, float], NDArray[np.int64]] | None = None) -> None:
        self.noise = noise or (lambda size, scale: np.zeros(size, dtype=np.int64))
        self.asked: list[tuple[str, int, float]] = []
        self.scores: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        self.asked.append(("gaussian", size, scale))
        return self.noise(size, scale)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        self.asked.append(("laplace", size, scale))
        return self.noise(size, scale)

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        self.asked.append(("noisy_max", scores.size, scale))
        self.scores = scores.copy()
        return int(np.argmax(scores))


def acceptance(n: int, law: str) -> tuple[float, float]:
    """Where the sum of n squared normal, or absolute Laplace, draws of scale 1 lies."""
    distribution = stats.chi2(n) if law == "gaussian" else stats.gamma(n)
    return float(distribution.ppf(LEVEL / 2)), float(distribution.isf(LEVEL / 2))


def missed(n: int, law: str, factor: float) -> float:
    """Probability that noise of ``factor`` times the scale is accepted."""
    low, high = acceptance(n, law)
    distribution = stats.chi2(n) if law == "gaussian" else stats.gamma(n)
    by = factor**2 if law == "gaussian" else factor
    return float(distribution.cdf(high / by) - distribution.cdf(low / by))


def has_scale(noise: NDArray[np.floating] | NDArray[np.int64], scale: float, law: str = "gaussian") -> bool:
    """The two-sided test."""
    x = np.asarray(noise, dtype=np.float64).ravel() / scale
    low, high = acceptance(x.size, law)
    return low <= float(np.sum(x * x) if law == "gaussian" else np.sum(np.abs(x))) <= high


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [200.0, 1234.5, 2.0**40])
def test_samplers_have_the_scale_they_are_asked_for(law: str, scale: float) -> None:
    n = 2000
    assert max(missed(n, law, f) for f in FACTORS) < MISS
    draw = getattr(noise_door(), f"discrete_{law}")
    noise = draw(n, scale)
    assert noise.dtype == np.int64
    assert has_scale(noise, scale, law)
    for factor in FACTORS:
        assert not has_scale(draw(n, factor * scale), scale, law)


@pytest.mark.parametrize("scale", [0.8, 3.0])
def test_small_gaussians_have_the_exact_discrete_distribution(scale: float) -> None:
    """Chi-square over all values that 20,000 draws should show 20 times."""
    n = 20_000
    j = np.arange(-60, 61)
    p = np.exp(-(j**2) / (2 * scale**2))
    p /= p.sum()
    counts = np.bincount(noise_door().discrete_gaussian(n, scale) + 60, minlength=121)
    often = n * p >= 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(n * p[often], n * p[~often].sum())
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    # The rest is rare enough to break the chi-square law's tail: 1e-9 leaves room.
    assert statistic <= stats.chi2(len(expected) - 1).isf(1e-9) + 30


def test_samplers_are_centred_and_do_not_repeat() -> None:
    n, scale = 5000, 1e6
    first, second = (noise_door().discrete_gaussian(n, scale) for _ in range(2))
    bound = 5.3 * scale / math.sqrt(n)  # |normal| > 5.3: 1.2e-7
    assert abs(first.mean()) < bound
    assert abs(second.mean()) < bound
    assert abs(float(np.mean(first * (second / scale)))) < bound * 1.1
    assert not np.array_equal(first, second)


def test_vector_noise_has_the_stated_scale() -> None:
    total = np.random.default_rng(0).integers(-(2**61), 2**61, 2000)
    sigma = 5e10
    assert max(missed(total.size, "gaussian", f) for f in FACTORS) < MISS
    assert has_scale(gaussian_on_vector(total, sigma) - total, sigma)
    for factor in FACTORS:
        assert not has_scale(gaussian_on_vector(total, factor * sigma) - total, sigma)


def symmetric_noise(sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Diagonal and off-diagonal noise, 1,000 numbers each or more."""
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
    basis, complement = np.split(
        np.linalg.qr(np.random.default_rng(2).standard_normal((d, d)))[0], [k], axis=1
    )
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
    """A draw for each entry of the upper triangle, for each of the d k integers; none is shared."""
    door = ScriptedDoor(lambda size, scale: np.arange(1, size + 1, dtype=np.int64) * 1000)
    with replace_noise_door(door):
        noisy = gaussian_on_symmetric(np.zeros((4, 4), dtype=np.int64), 100.0)
        vector = gaussian_on_vector(np.zeros((3, 2), dtype=np.int64), 7.0)
        gaussian_on_symmetric_space(np.zeros((3, 2), dtype=np.int64), np.eye(3)[:, :2], 8.0)
        gaussian_on_symmetric(np.zeros((1, 1), dtype=np.int64), 9.0)
    assert np.unique(noisy[np.triu_indices(4, 1)]).size == 6
    assert np.unique(np.diagonal(noisy)).size == 4
    assert np.unique(vector).size == 6
    assert ("gaussian", 6, 100.0 / math.sqrt(2)) in door.asked
    assert ("gaussian", 4, 100.0) in door.asked
    assert door.asked[2:4] == [("gaussian", 6, 7.0), ("gaussian", 6, 8.0)]
    assert door.asked[-1] == ("gaussian", 1, 9.0)


def test_without_noise_mechanisms_return_the_sum() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-(2**50), 2**50, (5, 5))
    a += a.T
    basis = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    with replace_noise_door(ScriptedDoor()):
        assert np.array_equal(gaussian_on_vector(a, 1.0), a)
        assert np.array_equal(gaussian_on_symmetric(a, 1.0), a)
        image = np.rint(a @ basis).astype(np.int64)
        found = gaussian_on_symmetric_space(image, basis, 1.0)
    # A basis applied to a symmetric matrix lies in S_Q, up to the rounding of the image.
    assert np.abs(found - image).max() < 5


# The private quantile.


def permute_and_flip(scores: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """Its exact output distribution: candidates in random order, each kept with exp((s - max)/scale)."""
    keep = np.exp((scores - scores.max()) / scale)
    out = np.zeros(scores.size)
    orders = list(itertools.permutations(range(scores.size)))
    for order in orders:
        left = 1.0
        for i in order:
            out[i] += left * keep[i]
            left *= 1 - keep[i]
    return out / len(orders)


def asked_scores(
    values: NDArray[np.float64], quantile: float, epsilon: float
) -> tuple[NDArray[np.int64], float]:
    door = ScriptedDoor()
    with replace_noise_door(door):
        private_quantile(values, np.array([1.0, 2.0, 4.0, 8.0, 16.0]), quantile, epsilon)
    return door.scores, door.asked[0][2]


def follows(counts: NDArray[np.int64], p: NDArray[np.float64]) -> bool:
    """Chi-square test at LEVEL; every expected count is above 40."""
    expected = counts.sum() * p
    assert expected.min() > 40
    return float(np.sum((counts - expected) ** 2 / expected)) <= stats.chi2(p.size - 1).isf(LEVEL)


def test_the_noisy_maximum_has_the_distribution_of_permute_and_flip() -> None:
    """8,000 draws; a scale off by 0.7 or 1.3 shifts the statistic far past its bound."""
    scores, scale, n = np.array([-3, 0, -6]), 3.0, 8000
    p = permute_and_flip(scores, scale)
    for factor in FACTORS:
        q = permute_and_flip(scores, factor * scale)
        # The statistic is then about a non-central chi-square one.
        shift = n * float(np.sum((q - p) ** 2 / p))
        bound = float(stats.chi2(p.size - 1).isf(LEVEL))
        assert stats.ncx2(p.size - 1, shift).cdf(bound) < MISS

    def draws(by: float) -> NDArray[np.int64]:
        return np.bincount([noise_door().noisy_max(scores, by) for _ in range(n)], minlength=3)

    assert follows(draws(scale), p)
    for factor in FACTORS:
        assert not follows(draws(factor * scale), p)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([0.0, 1.0, 1.5, 3.0, 5.0, 9.0, 20.0, math.inf, math.nan]), min_size=1, max_size=9
    ),
    place=st.integers(0, 8),
    new=st.sampled_from([0.0, 2.0, 4.1, 17.0, math.nan]),
    quantile=st.floats(0.01, 0.99),
    epsilon=st.sampled_from([0.1, 0.3, 1.0, 5.0]),
)
def test_the_quantile_is_epsilon_private_by_its_exact_distribution(
    values: list[float], place: int, new: float, quantile: float, epsilon: float
) -> None:
    neighbour = values.copy()
    neighbour[place % len(values)] = new
    (a, scale), (b, same_scale) = (asked_scores(np.array(v), quantile, epsilon) for v in (values, neighbour))
    assert scale == same_scale
    assert np.abs(a - b).max() <= 1
    assert Fraction(2) / Fraction(scale) <= Fraction(str(epsilon))
    p, q = permute_and_flip(a, scale), permute_and_flip(b, scale)
    bound = math.exp(epsilon) * (1 + 1e-9)
    assert (p <= bound * q).all()
    assert (q <= bound * p).all()


@pytest.mark.parametrize("epsilon", [0.07, 0.09, 0.1, 0.3])
def test_the_quantile_is_private_at_the_decimal_that_is_charged(epsilon: float) -> None:
    """Not only at the float nearest to it."""
    _, scale = asked_scores(np.ones(3), 0.5, epsilon)
    assert Fraction(2) / Fraction(scale) <= Fraction(str(epsilon))


def test_half_the_noise_of_the_quantile_would_break_its_promise() -> None:
    """The bound is nearly met: records at 0.5, 3 and 20, one of which moves from last to first."""
    epsilon = 1.0
    worst = {1.0: 0.0, 0.5: 0.0}
    for low, middle, high in itertools.product((0, 6), (2, 12, 24), (1, 8)):
        values = np.repeat([0.5, 3.0, 20.0], [low, middle, high])
        neighbour = np.repeat([0.5, 3.0, 20.0], [low + 1, middle, high - 1])
        for factor in worst:
            p, q = (
                permute_and_flip(scores, factor * scale)
                for scores, scale in (asked_scores(v, 0.3, epsilon) for v in (values, neighbour))
            )
            worst[factor] = max(worst[factor], math.log(max((p / q).max(), (q / p).max())))
    assert 0.8 * epsilon <= worst[1.0] <= epsilon < 1.5 * epsilon <= worst[0.5]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_the_quantile_is_close_at_moderate_size(quantile: float) -> None:
    """A candidate r ranks from the target has probability at most e^(-r epsilon/2): 50 ranks, 1e-9."""
    values = np.random.default_rng(4).exponential(size=5000)
    candidates = np.geomspace(1e-3, 1e3, 100)
    found = private_quantile(values, candidates, quantile, 1.0)
    target = math.ceil(quantile * values.size)
    counts = np.searchsorted(np.sort(values), candidates, side="right")
    best = np.abs(counts - target).min()
    assert found in candidates
    assert abs(int((values <= found).sum()) - target) <= best + 50


def test_a_quantile_of_no_records_is_one_of_the_candidates() -> None:
    assert private_quantile(np.zeros(0), np.array([1.0, 2.0]), 0.5, 1.0) in (1.0, 2.0)


# The door.


def test_a_replaced_door_is_restored() -> None:
    before = noise_door()
    door = ScriptedDoor()
    with replace_noise_door(door):
        assert noise_door() is door
        with replace_noise_door(before):
            assert noise_door() is before
        assert noise_door() is door
    assert noise_door() is before


def test_a_replaced_door_is_restored_after_an_error() -> None:
    before = noise_door()

    def fail() -> None:
        with replace_noise_door(ScriptedDoor()):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert noise_door() is before


def test_the_secret_door_cannot_be_seeded() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = noise_door().discrete_gaussian(100, 1e9)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, noise_door().discrete_gaussian(100, 1e9))


def test_utility_randomness_repeats_and_salts_do_not() -> None:
    assert utility_generator(3).random() == utility_generator(3).random()
    assert secret_salt() != secret_salt()
    assert len(secret_salt(16)) == 16


PACKAGE = Path(streaming_pca.__file__).parent
FORBIDDEN_MODULES = ("random", "secrets", "opendp", "numpy.random", "scipy.stats", "sklearn.utils.random")
# A type that annotations may name, without drawing from it.
ALLOWED_NAMES = {"np.random.Generator", "numpy.random.Generator"}
# Public reproducible numbers of the demonstration, no part of any estimator.
ALLOWED_USES = {("experiments/flights.py", "np.random.PCG64")}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def randomness_in(source: str) -> set[str]:
    """Every import or use of a source of randomness in a module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        for name in names:
            if any(name == m or name.startswith(f"{m}.") for m in FORBIDDEN_MODULES) or name in {
                "os.urandom",
                "os.getrandom",
            }:
                found.add(name)
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith(("np.random.", "numpy.random.")) or name in {"os.urandom", "os.getrandom"}:
                found.add(name)
    return found - ALLOWED_NAMES


def calls_door(source: str) -> bool:
    """Whether a module names one of the doors, other than to define them."""
    doors = {"noise_door", "replace_noise_door", "_SecretDoor", "_door"}
    return any(
        (isinstance(node, ast.Name) and node.id in doors)
        or (isinstance(node, ast.Attribute) and node.attr in doors)
        or (isinstance(node, ast.ImportFrom) and any(a.name in doors for a in node.names))
        for node in ast.walk(ast.parse(source))
    )


def test_no_other_module_draws_randomness() -> None:
    uses, callers = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if name == "privacy/randomness.py":
            continue
        uses |= {(name, use) for use in randomness_in(source)}
        if calls_door(source):
            callers.add(name)
    assert uses - ALLOWED_USES == set()
    assert callers == {"privacy/mechanisms.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import secrets as s",
        "import numpy.random as r",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nx = np.random.default_rng(0)",
        "import os\nos.urandom(3)",
        "from os import urandom",
        "import opendp.prelude as dp",
        "from opendp import prelude",
        "from scipy.stats import norm",
        "from scipy import stats",
    ],
)
def test_the_search_for_randomness_finds_it(source: str) -> None:
    assert randomness_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "from streaming_pca.privacy.randomness import noise_door",
        "from streaming_pca.privacy import randomness\nrandomness.replace_noise_door(3)",
        "from streaming_pca.privacy import randomness\nrandomness._door = 3",
    ],
)
def test_the_search_for_doors_finds_them(source: str) -> None:
    assert calls_door(source)
