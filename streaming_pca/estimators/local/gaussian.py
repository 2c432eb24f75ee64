"""PCA of locally private reports: the principal subspace of their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from streaming_pca.estimators.base import EstimatorInfo, Subspace, SuiteOptions
from streaming_pca.estimators.common.error_bounds import angle_bound_of_covariance
from streaming_pca.estimators.local.base import LocalEstimator, LocalOptions, LocalState
from streaming_pca.linalg.packed import packed_size, unpack_symmetric
from streaming_pca.linalg.subspace import leading_eigenpairs


class LocalGaussianOptions(LocalOptions):
    """Settings of :class:`LocalGaussianPCA`."""


@dataclass(frozen=True)
class LocalGaussianState(LocalState):
    """Sum of the reports, and the leading eigenpairs of their mean."""

    next_variance: float = field(default=0.0, kw_only=True)
    """The mean's eigenvalue after the k leading ones; 0 where k = d."""


class LocalGaussianPCA(LocalEstimator[LocalGaussianState, LocalGaussianOptions]):
    """PCA of the mean of reports [WangXu2020, Alg. 1]. Trusts no server.

    ===========  ==================================================================
    steps 1 - 3  the producer: :class:`streaming_pca.local.LocalGaussian`
    step 4       ``update``, by :func:`~streaming_pca.kernels.record_means.add_reports`
    step 5       ``update``: the k leading eigenvectors of the mean
    ===========  ==================================================================

    Deviations from the paper
    -------------------------
    - Noise. Printed: sigma_1^2 = 2 ln(1.25/delta)/epsilon^2, for a sensitivity of 1. Replacing x moves the
      upper triangle of x x^T by up to sqrt(2): the printed sigma is less private than stated. Here sqrt(2)
      times the exact multiplier of the analytic Gaussian mechanism, :func:`streaming_pca.local.noise_sigma`;
      and x is clipped to the unit ball, which the paper assumes.
    - Streaming: the mean of all reports so far, released after every batch. Its bits
      do not depend on how the stream was cut.
    - Errors: the noise of the mean is known, sigma/sqrt(n) an entry. Theorem 2 bounds
      the angle up to a constant; the release has a bound with its constants
      (:func:`~streaming_pca.estimators.common.error_bounds.angle_bound_of_covariance`). It
      does not cover the difference between the n records and their distribution.

    Privacy
    -------
    No mechanism runs here, and a batch is charged nothing: see
    :class:`~streaming_pca.estimators.local.base.LocalEstimator`.

    Cost
    ----
    A report has 2 d (d + 1) bytes: 5 kB at d = 50, 8 MB at d = 2000; the state twice
    that. The error falls as sigma sqrt(k d/n)/gap: d^2 reports are few.
    """

    info = EstimatorInfo(
        id="local-gaussian",
        source="WangXu2020, Algorithm 1",
        private=True,
        needs='reports of producers (record_kind = "local"), very many of them, of few features',
        summary="local model: principal subspace of the mean of private reports",
        local=True,
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions({"batch_size": 64})

    def init(self, rng: np.random.Generator) -> LocalGaussianState:
        nothing = np.zeros(packed_size(self.dim))
        return LocalGaussianState(0, 0, nothing, 0, np.eye(self.k, self.dim), np.zeros(self.k))

    def _solved(self, state: LocalGaussianState) -> LocalGaussianState:
        mean = unpack_symmetric(state.total / state.reports, self.dim)
        values, vectors = leading_eigenpairs(mean, min(self.k + 1, self.dim))
        return replace(
            state,
            basis=np.ascontiguousarray(vectors[:, : self.k].T),
            variances=values[: self.k].copy(),
            trace=float(np.trace(mean)),
            next_variance=float(values[-1]) if self.k < self.dim else 0.0,
        )

    def learnt_subspace(self, state: LocalGaussianState) -> Subspace:
        """Return the leading eigenvectors, and their error bound by the known noise."""
        found = super().learnt_subspace(state)
        if not state.reports:
            return found
        # The bound needs only the two eigenvalues around the gap, and d.
        values = np.full(self.dim, state.next_variance)
        values[: self.k] = state.variances
        sigma = self._mean_sigma(state.reports)
        # The variance of <N, C> is at most 2 sigma^2 |C|_F^2, as with isotropic noise of sqrt(2) sigma
        # on the diagonal and sigma off it. The bound uses no other property of the noise.
        bound = angle_bound_of_covariance(values, self.k, math.sqrt(2) * sigma)
        return replace(self._unlifted(found, state, state.trace, self.dim, self.dim), angle_bound=bound)
