"""PrivRange and TruncatedMean: their results, their costs, and the bounds of their records."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments import printed
from experiments.printed import PrintedMean
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.oja import truncated_mean as adaptive_mean
from streaming_pca.estimators.oja.truncated_mean import AdaptiveMean
from streaming_pca.kernels.coordinates import COORDINATE_RADIUS
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import stability_threshold
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.privacy.calibration.accounting import Approximate, Gaussian, Route, delta_of
from tests.privacy.noise import ScriptedSampler, SeededSampler

D, K = 6, 2
ABOUT_ZERO = Preprocessing(dim=D, centering="none")
BASIS = np.ascontiguousarray(np.eye(D, K))
NOTHING = np.zeros((D, 0))


def vectors(m: int, seed: int, scale: float = 1.0) -> NDArray[np.float64]:
    return utility_generator(seed).standard_normal((m, D)) * scale


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("removed", [False, True])
def test_the_range_is_the_spread_of_the_products(scale: float, removed: bool) -> None:
    """Gaussian x with covariance s^2 I: x x^T q has covariance s^4 (I + q q^T), norm 2 s^4; less q, s^4.

    Blocks of 2,500 pairs miss it by less than a twentieth (their standard error
    is 4%); so the fullest bin [l, 2^(1/4) l) contains a value of 0.85 to 1.15 times
    it, and Lambda = 2 l. Fixed seeds, real noise on 20 blocks: a bin of 8
    is hidden with probability below e^-25.
    """
    batch = ArrayBatch.of_vectors(vectors(100_000, 1, scale))
    out = BASIS if removed else NOTHING
    found = AdaptiveMean(8.0, 1e-2, D * K).scale(batch, ABOUT_ZERO, BASIS, out, 20)
    spread = (1 if removed else 2) * scale**4
    assert 0.85 * 2 ** (3 / 4) * spread < found < 1.15 * 2 * spread


def test_there_is_no_range_where_no_bin_is_full_enough() -> None:
    mean = AdaptiveMean(1.0, 1e-6, D * K)
    blocks = mean.range_blocks(0.01, 4.0)
    # With a factor of 4 between pairs, every block has its own distant bin, so that none is shown.
    spread = np.repeat(2.0 ** np.arange(blocks), 2)[:, None] * np.tile([[1.0] * D, [0.0] * D], (blocks, 1))
    with replace_noise_sampler(ScriptedSampler()):
        assert mean.scale(ArrayBatch.of_vectors(spread), ABOUT_ZERO, BASIS, NOTHING, blocks) is None
        zeros = ArrayBatch.of_vectors(np.zeros((4 * blocks, D)))
        assert mean.scale(zeros, ABOUT_ZERO, BASIS, NOTHING, blocks) is None
        assert mean.scale(ArrayBatch.of_vectors(spread * 1e200), ABOUT_ZERO, BASIS, NOTHING, blocks) is None


def test_blocks_follow_the_paper() -> None:
    """m = C1 ln(1/(delta zeta))/epsilon."""
    assert AdaptiveMean(1.0, 1e-2, 1).range_blocks(1e-3, 2.0) == math.ceil(2 * math.log(1e5))
    assert AdaptiveMean(30.0, 0.1, 1).range_blocks(0.5, 0.1) == 1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize("values", [1, 12, 1000])
def test_centre_and_mean_together_cost_the_promise(epsilon: float, delta: float, values: int) -> None:
    """dp-accounting checks this from the parameters that a reservation names."""
    paper = PrintedMean(epsilon, delta, values).parameters
    half = epsilon / 2
    histograms = [Approximate(epsilon / (2 * values), delta / (2 * values))] * values
    sum_of_box = Gaussian(paper["sigma_over_sensitivity"])
    # Basic composition, as printed: both halves, each within its half.
    assert math.fsum(h.epsilon for h in histograms) <= half * (1 + 1e-12)
    assert delta_of([sum_of_box], half, Route.GDP) <= delta / 2 * (1 + 1e-9)
    zcdp = AdaptiveMean(epsilon, delta, values).parameters
    multipliers = (1 / math.sqrt(2 * zcdp["centre_rho"]), zcdp["sigma_over_sensitivity"])
    mechanisms: list[Any] = [Gaussian(multiplier) for multiplier in multipliers]
    unseen = (1 + math.exp(epsilon)) * zcdp["centre_delta"]
    # The accountant's grid of orders is coarser than the calibration's.
    assert delta_of(mechanisms, epsilon, Route.ZCDP) * 0.98 + unseen <= delta
    # The cost is not much lower, and the noise not above the printed one's where they are comparable.
    assert delta_of(mechanisms, epsilon * 0.97, Route.ZCDP) + unseen > delta * 0.9
    assert zcdp["sigma_over_sensitivity"] < paper["sigma_over_sensitivity"]


def test_the_printed_histograms_need_tens_of_thousands_of_records_a_bin() -> None:
    """The design gives each epsilon/(2 d k) and delta/(2 d k), for d = 200."""
    for k, wanted in ((2, 17_000), (5, 46_000)):
        values = 200 * k
        needed = stability_threshold(1.0 / (2 * values), 1e-2 / (2 * values))
        assert needed == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("kind", [PrintedMean, AdaptiveMean])
def test_without_noise_the_mean_is_that_of_the_clipped_products(kind: type[AdaptiveMean]) -> None:
    x = vectors(3000, 2)
    width, radius = 2.0, 1.5
    with replace_noise_sampler(ScriptedSampler()):
        batch, of = ArrayBatch.of_vectors(x), kind(8.0, 1e-2, D * K)
        mean = of.mean(batch, ABOUT_ZERO, BASIS, NOTHING, width, radius)
    products = x[:, :, None] * (x @ BASIS)[:, None, :]
    bins = np.floor(products / width)
    centres = width * np.array(
        [[max((-1.0, 0.0), key=lambda b: np.sum(bins[:, j, r] == b)) for r in range(K)] for j in range(D)]
    )
    kept = np.clip(products, centres - radius, centres + radius)
    assert mean.centred == 1.0
    np.testing.assert_allclose(mean.mean, kept.mean(axis=0), atol=2 * radius / COORDINATE_RADIUS)
    assert mean.clipped == np.count_nonzero((kept != products).any(axis=(1, 2)))


def test_coordinates_without_a_centre_are_clipped_about_zero() -> None:
    """Ten records are too few for any bin."""
    x = vectors(10, 3)
    with replace_noise_sampler(ScriptedSampler()):
        of = PrintedMean(1.0, 1e-6, D * K)
        mean = of.mean(ArrayBatch.of_vectors(x), ABOUT_ZERO, BASIS, NOTHING, 1.0, 1e6)
    assert mean.centred == 0.0
    np.testing.assert_allclose(mean.mean, x.T @ x @ BASIS / 10, atol=1e-2)


def test_coordinates_in_turns_give_what_they_give_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ArrayBatch.of_vectors(vectors(500, 4))
    answers = []
    for held in (2**26, 1200):
        monkeypatch.setattr(adaptive_mean, "_BINS_HELD", held)
        with replace_noise_sampler(ScriptedSampler()):
            mean = AdaptiveMean(30.0, 1e-2, D * K)
            answers.append(mean.mean(batch, ABOUT_ZERO, BASIS, NOTHING, 1.0, 4.0))
    assert np.array_equal(answers[0].mean, answers[1].mean)
    assert answers[0].centred == answers[1].centred == 1.0


@pytest.mark.parametrize("kind", [PrintedMean, AdaptiveMean])
def test_the_mean_has_the_noise_of_its_box(kind: type[AdaptiveMean]) -> None:
    """The box of half-width R has sensitivity 2 R sqrt(d k); 12 entries a draw, 400 draws, fixed seed."""
    batch = ArrayBatch.of_vectors(np.zeros((64, D)))
    mean = kind(4.0, 1e-2, D * K)
    with replace_noise_sampler(SeededSampler()):
        draws = [mean.mean(batch, ABOUT_ZERO, BASIS, NOTHING, 1.0, 0.7) for _ in range(400)]
    expected = mean.multiplier * 2 * 0.7 * math.sqrt(D * K) / 64
    assert np.std([draw.mean for draw in draws]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", [PrintedMean, AdaptiveMean])
def test_an_epsilon_that_leaves_nothing_of_delta_is_refused(kind: type[AdaptiveMean]) -> None:
    if kind is AdaptiveMean:
        kind(100.0, 0.1, 1)
    with pytest.raises(ParameterError, match="epsilon must be at most 100 per batch"):
        kind(100.1, 0.1, 1)


@pytest.mark.parametrize("values", [1, 3, 88, 1000])
def test_the_histograms_parts_add_up_to_no_more_than_their_half(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exact arithmetic, 88 float parts of epsilon = 0.1 are more than the half."""
    parts: list[tuple[float, float]] = []
    found = printed.stability_modes

    def call(bins: Any, epsilon: float, delta: float) -> Any:
        parts.append((epsilon, delta))
        return found(bins, epsilon, delta)

    monkeypatch.setattr(printed, "stability_modes", call)
    about = Preprocessing(dim=values, centering="none")
    batch = ArrayBatch.of_vectors(np.zeros((8, values)))
    mean = PrintedMean(0.1, 1e-3, values)
    mean.mean(batch, about, np.eye(values, 1), np.zeros((values, 0)), 1.0, 1.0)
    ((epsilon, delta),) = parts
    assert values * Fraction(epsilon) <= Fraction("0.1") / 2
    assert values * Fraction(delta) <= Fraction("1e-3") / 2
