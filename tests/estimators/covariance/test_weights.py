"""Weights of directions minimise the noise of the subspace. Seeds are fixed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca import PrivatePCA
from streaming_pca.estimators.covariance.update import direction_weights
from streaming_pca.linalg.subspace import ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats
from tests.privacy.noise import SeededSampler


def cost(u: Floats, variances: Floats, values: Floats, k: int, noise: float) -> float:
    """Compute the formula of the module's notes with loops."""
    size = sum(v / w for v, w in zip(variances, u, strict=True))
    pairs = sum(
        u[i] * u[j] / max(values[i] - values[j], noise) ** 2 for i in range(k) for j in range(k, len(u))
    )
    return float(size**2 * pairs)


def slopes(u: Floats, *how: object) -> Floats:
    """Return the derivatives of the log cost with respect to the log weights."""
    step = 1e-5
    found = []
    for i in range(len(u)):
        up, down = u.copy(), u.copy()
        up[i] *= np.exp(step)
        down[i] *= np.exp(-step)
        found.append((np.log(cost(up, *how)) - np.log(cost(down, *how))) / (2 * step))  # type: ignore[arg-type]
    return np.array(found)


SPECTRA = {
    "spike": np.array([100.0, 1.0, 1.0, 1.0, 1.0]),
    "two": np.array([100.0, 50.0, 1.0, 1.0, 1.0, 1.0]),
    "falling": 100 * 0.5 ** np.arange(8),
    "slow": 1 / np.arange(1.0, 21),
    "steep": 10.0 ** -np.arange(0.0, 6.0),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_no_weight_can_be_changed_for_the_better(name: str, k: int) -> None:
    values = SPECTRA[name]
    noise = 1e-9
    u, gain = direction_weights(values, values, k, noise)
    how = (values, values, k, noise)
    assert np.prod(u) == pytest.approx(1)
    assert np.abs(slopes(u, *how)).max() < 1e-4
    assert gain == pytest.approx(cost(u, *how) / cost(np.ones(len(u)), *how))
    assert gain <= 1
    rng = utility_generator(k)
    for _ in range(200):
        other = u * np.exp(rng.normal(scale=rng.choice([0.01, 0.3, 2.0]), size=len(u)))
        assert cost(other, *how) >= cost(u, *how) * (1 - 1e-9)


@pytest.mark.parametrize("name", SPECTRA)
def test_of_one_direction_the_weights_are_known(name: str) -> None:
    """u_j is proportional to sqrt(lambda_j) gap_j, and u_1 has half of the size; gains are in closed form."""
    values = SPECTRA[name]
    u, gain = direction_weights(values, values, 1, 1e-9)
    gaps = values[0] - values[1:]
    rest = np.sqrt(values[1:]) * gaps
    wanted = np.concatenate([[values[0] / (values[1:] / rest).sum()], rest])
    wanted /= np.exp(np.log(wanted).mean())
    np.testing.assert_allclose(u, wanted, rtol=1e-4)
    best = 4 * values[0] * (np.sqrt(values[1:]) / gaps).sum() ** 2
    assert gain == pytest.approx(best / (values.sum() ** 2 * (1 / gaps**2).sum()), rel=1e-6)


def test_equal_variances_on_both_sides_halve_the_size() -> None:
    """k directions have one variance, d - k another: the sizes of both halves become equal."""
    values = np.array([9.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    u, _ = direction_weights(values, values, 2, 1e-9)
    shares = values / u
    assert shares[:2].sum() == pytest.approx(shares[2:].sum())


def test_gaps_within_the_noise_are_taken_for_it() -> None:
    values = np.array([4.0, 3.0, 3.0, 1.0])
    u, gain = direction_weights(values, values, 2, 0.5)
    assert np.isfinite(u).all()
    assert 0 < gain <= 1
    assert np.abs(slopes(u, values, values, 2, 0.5)).max() < 1e-3


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(0, 1e6), min_size=2, max_size=12),
    k=st.integers(1, 11),
    noise=st.floats(1e-6, 1e3),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_any_spectrum_has_weights(values: list[float], k: int, noise: float, scale: float) -> None:
    k = min(k, len(values) - 1)
    spectrum = np.sort(np.array(values))[::-1] * scale
    u, gain = direction_weights(np.maximum(spectrum, noise * scale), spectrum, k, noise * scale)
    assert np.isfinite(u).all()
    assert (u > 0).all()
    assert 0 < gain <= 1 + 1e-9
    assert np.exp(np.log(u).mean()) == pytest.approx(1)


def test_weights_that_hide_what_the_first_look_saw_are_not_taken() -> None:
    """1% of the records are large along a feature that they make lead; six fixed seeds, 1.2 off before."""
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(20_000, 10)) * np.array([30.0, 6.0, *[0.5] * 8])
        large = rng.random(20_000) < 0.01
        x[large, 5] += 100 * rng.choice([-1.0, 1.0], int(large.sum()))
        with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(seed)):
            warnings.simplefilter("ignore")
            pca = PrivatePCA(2, epsilon=2.0, centering="none").fit(x)
        errors.append(subspace_error(pca.components_, ritz_pairs(x.T @ x, 2)[1].T))
    assert np.sqrt(np.mean(np.square(errors))) < 0.3


@pytest.mark.parametrize("estimator", ["adaptive", "block", "analyze-gauss"])
def test_the_signs_that_lapack_gives_eigenvectors_change_nothing(
    estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs can depend on a workspace's memory address, but a fit's result does not."""
    x = utility_generator(7).standard_normal((20_000, 20)) * np.linspace(5, 1, 20) + 10.0
    rng = utility_generator(0)
    flips = 0

    def flipped(solve: Any) -> Any:
        def eigh(*args: Any, **how: Any) -> Any:
            nonlocal flips
            values, vectors = solve(*args, **how)
            signs = rng.choice([-1.0, 1.0], size=vectors.shape[-1])
            flips += int((signs < 0).sum())
            return values, vectors * signs

        return eigh

    def fitted() -> PrivatePCA:
        with warnings.catch_warnings(), replace_noise_sampler(SeededSampler()):
            warnings.simplefilter("ignore")
            return PrivatePCA(2, estimator=estimator, centering="none", random_state=0).fit(x)

    plain = fitted()
    monkeypatch.setattr(scipy.linalg, "eigh", flipped(scipy.linalg.eigh))
    monkeypatch.setattr(np.linalg, "eigh", flipped(np.linalg.eigh))
    for _ in range(5):
        again = fitted()
        np.testing.assert_array_equal(again.components_, plain.components_)
        assert again.doubts_ == plain.doubts_
    assert flips
