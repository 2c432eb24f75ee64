"""Estimators with the papers' printed constants, where the package has less noise.

*Accounting* of centre and mean ([DunglerSanyal2026, Alg. 5]): (epsilon/2, delta/2) each; d k histograms of
(epsilon/(2 d k), delta/(2 d k)) by basic composition. ([DunglerSanyal2025, Alg. 7, step 3] has advanced
composition, which needs epsilon <= 0.9 and is not better at these sizes.) A bin is shown from about
2 d k/epsilon times 2 ln(2 d k/delta) records on: 2 to 5 10^4 at d = 200.

*Learning rates* by guesses of the spectrum ([DunglerSanyal2026, appendix F.2], families 2 and 3;
[DunglerSanyal2025, appendix G.1]).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.oja.adadpo import AdaDPO, AdaDPOOptions
from streaming_pca.estimators.oja.oja import LearningRates
from streaming_pca.estimators.oja.truncated_mean import AdaptiveMean
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.privacy.calibration.multipliers import lattice_sigma, textbook_multiplier
from streaming_pca.privacy.mechanisms import laplace_on_vector, laplace_scale, stability_threshold
from streaming_pca.privacy.mechanisms.histogram import Modes, fullest, require_counts

__all__ = ["PrintedAdaDPO", "PrintedMean", "SpectralRates", "stability_modes", "with_spectral_rates"]


def stability_modes(bins: BinCounts, epsilon: float, delta: float) -> Modes:
    """Find the fullest bin of each of n histograms, each (epsilon, delta)-DP by itself.

    Parameters
    ----------
    bins : BinCounts
        Counts of bins that are each a function of one record alone. Any int32 but
        :data:`~streaming_pca.kernels.coordinates.NOWHERE` may be a bin; the bins may be unknown.
    epsilon, delta : float
        Privacy of one histogram.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is not a :class:`BinCounts`.

    Notes
    -----
    Released: for each histogram the bin with the largest noisy count of those
    that reach :func:`~streaming_pca.privacy.mechanisms.histogram.stability_threshold`,
    a post-processing of ``stability_histogram``, whose proof holds for each.
    Adjacency: replace-one; a record is in one bin of each of the n histograms, so
    together they cost (n epsilon, n delta) by basic composition.
    """
    require_counts(bins)
    threshold = stability_threshold(epsilon, delta)
    noisy = laplace_on_vector(bins.counts, laplace_scale(2, epsilon))
    return fullest(bins, noisy, threshold)


class PrintedMean(AdaptiveMean):
    """PrivRange and TruncatedMean, with centre and mean at half of (epsilon, delta) each."""

    def __init__(self, epsilon: float, delta: float, values: int) -> None:
        super().__init__(epsilon, delta, values)
        sensitivity = self.sigma / self.multiplier
        half = epsilon / 2, delta / 2
        # The printed constant is proved for epsilon <= 1 only; the analytic one is the smallest.
        printed = textbook_multiplier(*half) if half[0] <= 1 else None
        self.sigma = lattice_sigma(*half, sensitivity, printed)
        self.multiplier = self.sigma / sensitivity

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the mechanisms, as a reservation names them."""
        return {"accounting": "paper", "sigma_over_sensitivity": self.multiplier}

    def _modes(self, bins: BinCounts, part: float) -> Modes:
        each = (1 - 1e-12) / (2 * self.values)
        return stability_modes(bins, self.epsilon * each, self.delta * each)


class PrintedAdaDPOOptions(AdaDPOOptions):
    """Settings of ADADPO."""

    accounting: Literal["paper"] = "paper"


class PrintedAdaDPO(AdaDPO):
    """ADADPO with the printed accounting."""

    options_type: ClassVar[type[AdaDPOOptions]] = PrintedAdaDPOOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_mean = PrintedMean(*self.privacy.batch_guarantee, self.dim * self.k)


class SpectralRates(LearningRates):
    """Learning rates c/(start + slope t) for each component; without starts those of the package.

    The papers have start = 20 sigma lambda_i, or d times that, and slope = (lambda_i - lambda_{i+1})/ln n.
    """

    starts: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()

    def rate(self, t: int, component: int = 0) -> float:
        """Return eta_t of a component, both papers' families."""
        if not self.starts:
            return super().rate(t)
        return self.learning_rate / (self.starts[component] + self.slopes[component] * t)


def with_spectral_rates(kind: type[Estimator[Any, Any]]) -> type[Estimator[Any, Any]]:
    """Return a subclass whose options have :class:`SpectralRates`, too."""
    options = type(kind.options_type.__name__, (SpectralRates, kind.options_type), {})
    return type(kind.__name__, (kind,), {"options_type": options})
