"""Reports of single records: their inputs, their noise, and the cost of importing them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from streaming_pca.kernels.lattice import RADIUS
from streaming_pca.linalg.packed import pack_symmetric, packed_size, unpack_symmetric
from streaming_pca.local import MAX_DIM, LocalGaussian, contract_header, noise_sigma, report_headers
from streaming_pca.local.gaussian import unit_ball_integers
from streaming_pca.privacy.calibration.multipliers import gaussian_delta, gaussian_multiplier
from streaming_pca.privacy.errors import CalibrationError, ParameterError
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.data.refusals import refuses
from tests.privacy.noise import FACTORS, MISS, ScriptedSampler, has_scale, missed

EPSILON, DELTA = 1.0, 1e-6


def exact_report(x: Any, radius: float = 1.0) -> np.ndarray:
    """Return a report without its noise."""
    with replace_noise_sampler(ScriptedSampler()):
        return LocalGaussian(EPSILON, DELTA, radius).privatize(x)


def some_vectors(d: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    directions = [rng.standard_normal(d), np.ones(d), np.eye(d)[0], rng.standard_cauchy(d), np.full(d, -1.0)]
    scales = [5e-324, 1e-310, 1e-200, 1e-7, 0.5, 1.0, 1 + 1e-15, 2.0, 1e7, 1e200, 1.7e308]
    units = [v / np.linalg.norm(v) for v in directions]
    with np.errstate(all="ignore"):
        found = [v * s for v in units for s in scales] + [np.nextafter(v, 2 * v) for v in units]
    return [*found, np.full(d, 1.7e308), np.full(d, 5e-324), np.zeros(d)]


@pytest.mark.parametrize("d", [1, 2, 3, 17, 300, MAX_DIM])
def test_no_float_makes_a_record_longer_than_the_radius(d: int) -> None:
    for x in some_vectors(d):
        for per_unit in (RADIUS, RADIUS * 1e250, RADIUS * 1e-250, RADIUS / 3):
            z = unit_ball_integers(x, per_unit)
            assert z.dtype == np.int64
            assert sum(int(i) ** 2 for i in z) <= RADIUS**2


@pytest.mark.parametrize("d", [1, 5, 300])
def test_the_clip_keeps_the_direction_and_vectors_in_the_ball(d: int) -> None:
    for x in some_vectors(d):
        with np.errstate(all="ignore"):
            largest = np.max(np.abs(x)) or 1.0
            scaled = x / largest
            norm = np.linalg.norm(scaled) * largest
        expected = scaled * largest if norm <= 1 else scaled / np.linalg.norm(scaled)
        np.testing.assert_allclose(unit_ball_integers(x, RADIUS) / RADIUS, expected, atol=1.6 / RADIUS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_is_reported_as_null(bad: float) -> None:
    np.testing.assert_array_equal(exact_report([0.5, bad, 0.1]), np.zeros(6))
    assert np.std(LocalGaussian(EPSILON, DELTA).privatize([bad] * 20)) > 1


@pytest.mark.filterwarnings("error")
def test_no_warning_tells_of_a_record() -> None:
    signalling = np.array([0x7FA00000, 0], np.uint32).view(np.float32)
    for x in (signalling, np.array([1e300, 5e-324]), np.array([np.longdouble("1e4000"), 1])):
        exact_report(x)


def test_a_report_is_of_the_upper_triangle() -> None:
    x = np.array([0.5, -0.25, 0.125])
    report = exact_report(x)
    assert report.dtype == np.float32
    np.testing.assert_array_equal(report, pack_symmetric(np.outer(x, x)))
    np.testing.assert_array_equal(unpack_symmetric(report), np.outer(x, x))


def test_a_radius_divides() -> None:
    x = np.array([3.0, -4.0])
    np.testing.assert_array_equal(exact_report(x, 8.0), pack_symmetric(np.outer(x, x)) / 64)
    np.testing.assert_allclose(exact_report(10 * x, 8.0), pack_symmetric(np.outer(x, x)) / 25, atol=1e-5)
    # This also holds where x/R overflows.
    np.testing.assert_allclose(exact_report([1e200, 0.0], 1e-200), [1, 0, 0], atol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 255, 256, 363, 700])
def test_pieces_make_one_report(d: int) -> None:
    x = np.random.default_rng(d).uniform(-1, 1, d) / math.sqrt(d)
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        report = LocalGaussian(EPSILON, DELTA).privatize(x)
    np.testing.assert_allclose(report, pack_symmetric(np.outer(x, x)), atol=4 / RADIUS)
    assert sum(size for _, size, _ in sampler.asked) == packed_size(d)
    assert max(size for _, size, _ in sampler.asked) <= 2**16
    assert {scale for _, _, scale in sampler.asked} == {noise_sigma(EPSILON, DELTA) * RADIUS**2}


def test_numbers_of_any_type_are_taken_and_nothing_else() -> None:
    arrays = [np.array([1, 0], sort) for sort in (np.uint8, np.float16, ">f4", np.bool_)]
    for x in ([1, 0], [True, False], *arrays):
        np.testing.assert_array_equal(exact_report(x), [1, 0, 0])
    mechanism = LocalGaussian(EPSILON, DELTA)
    wrong: list[Any] = [[], 1.0, [[0.5, 0.5]], ["a"], [1j], np.zeros(MAX_DIM + 1)]
    for x in wrong:
        refuses("a record is a vector of 1 to 8192 numbers", mechanism.privatize, x, error=ParameterError)


def test_no_two_records_are_further_apart_than_the_sensitivity_and_two_are_as_far() -> None:
    rng = np.random.default_rng(0)
    worst = 0
    for d in (2, 3, 8):
        pairs = [(np.eye(d)[0], np.eye(d)[1]), *rng.standard_normal((300, 2, d))]
        for x, y in pairs:
            z, w = unit_ball_integers(x, RADIUS * 10), unit_ball_integers(y, RADIUS * 10)
            apart = pack_symmetric(np.outer(z, z)) - pack_symmetric(np.outer(w, w))
            worst = max(worst, sum(int(i) ** 2 for i in apart))
    assert worst == 2 * RADIUS**4


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9), (8.0, 1e-5), (1, 0.5)])
def test_the_stated_scale_keeps_the_promise_and_no_smaller_one_does(epsilon: float, delta: float) -> None:
    sigma = noise_sigma(epsilon, delta)
    assert sigma == LocalGaussian(epsilon, delta).sigma
    exact = gaussian_multiplier(epsilon, delta) * math.sqrt(2)
    assert exact <= sigma <= exact * (1 + 1e-8)
    assert gaussian_delta(epsilon, sigma / math.sqrt(2)) <= delta * (1 + 1e-13)


def test_the_scale_that_is_documented() -> None:
    assert round(noise_sigma(1, 1e-6), 4) == 5.9746


def test_promises_that_cannot_be_kept_are_refused() -> None:
    for epsilon, delta in ((0, 1e-6), (-1, 1e-6), (math.inf, 1e-6), (1, 0), (1, 1), (math.nan, 0.1)):
        for make in (noise_sigma, LocalGaussian, contract_header):
            with pytest.raises(ParameterError):
                make(epsilon, delta)
    refuses("raise epsilon", noise_sigma, 1e-7, 1e-9, error=CalibrationError)
    for epsilon, delta in ((1e-4, 1e-6), (1000.0, 1e-6), (13.0, 1e-300)):
        assert noise_sigma(epsilon, delta) > 0
    for radius in (0.0, -1.0, math.nan, math.inf):
        refuses("radius", LocalGaussian, 1, 1e-6, radius, error=ParameterError)


def test_the_noise_has_the_stated_scale_on_the_diagonal_and_off_it() -> None:
    """Uses the system's noise, two-sided at level 2e-7 each; 0.7 or 1.3 times the scale fails."""
    x = np.array([0.6, 0.0, -0.8, *np.zeros(27)])
    mechanism = LocalGaussian(EPSILON, DELTA)
    reports = np.array([mechanism.privatize(x) for _ in range(40)], dtype=np.float64)
    noise = reports - pack_symmetric(np.outer(x, x))
    diagonal = np.eye(30, dtype=bool)[np.triu_indices(30)]
    for part in (noise[:, diagonal], noise[:, ~diagonal]):
        assert max(missed(part.size, "gaussian", factor) for factor in FACTORS) < MISS
        for factor in (1.0, *FACTORS):
            assert has_scale(part * factor, mechanism.sigma) == (factor == 1.0)


def test_headers_name_the_promise() -> None:
    assert contract_header(1.0, 1e-6) == contract_header(1, 0.000001) == b"1.0,1e-06"
    assert contract_header(0.1, 2**-30) == b"0.1,9.313225746154785e-10"
    assert report_headers(0.5, 1e-5) == [
        ("content-type", b"application/octet-stream"),
        ("record-kind", b"local"),
        ("local-promise", b"0.5,1e-05"),
    ]


def test_a_producer_needs_little() -> None:
    script = (
        "import sys; from streaming_pca.local import LocalGaussian;"
        "LocalGaussian(1.0, 1e-6).privatize([0.5, 0.5]);"
        "own = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names);"
        "print(*sorted(m for m in own if not m.startswith('_')));"
        "print(*sorted(m for m in sys.modules if m.startswith('streaming_pca.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others, own = (line.split() for line in done.stdout.splitlines())
    # SciPy imports the first two, and mpmath uses gmpy2 where it is installed.
    least = set(others) - {"charset_normalizer", "cython_runtime", "gmpy2"}
    assert least == {"mpmath", "numpy", "scipy", "streaming_pca"}
    folders = {name.split(".")[1] for name in own}
    assert folders == {"errors", "kernels", "linalg", "local", "privacy"}
