"""Common part of the estimators that learn from locally private reports: the mean and its noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.data.batch import Batch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, Options, Plan, State, Subspace
from streaming_pca.estimators.common.error_bounds import noise_lift
from streaming_pca.kernels.lattice import BLOCK, MAX_RECORDS
from streaming_pca.kernels.record_means import add_reports
from streaming_pca.linalg.packed import packed_size
from streaming_pca.local import noise_sigma
from streaming_pca.privacy.parameters import Charge

Matrix = NDArray[np.float64]

_MOST_REPORTS = 4096  # reports of a batch, by default
_BATCH_ENTRIES = 2**27  # most numbers of a batch, by default: 512 MiB
_FAR = 40.0  # standard deviations that noise never reaches: the probability is below 1e-340 an entry


class LocalOptions(Options):
    """Settings of every estimator that learns from reports."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    batch_size: int | None = Field(default=None, ge=1, le=MAX_RECORDS)
    """Reports between two releases; the result does not depend on it, except for rounding. By
    default 4096, or fewer if 512 MiB hold fewer: 268 at 1000 features, 67 at 2000."""


@dataclass(frozen=True)
class LocalState(State):
    """Sum of the reports, and the subspace found in their mean."""

    total: Matrix
    """(d (d + 1)/2,) sum of all reports that count, packed."""
    reports: int
    """Number of reports in the sum; reports are public, and so is this."""
    basis: Matrix
    """(k, d) orthonormal rows, by decreasing variance."""
    variances: Matrix
    """(k,) along them."""
    trace: float = field(default=0.0, kw_only=True)
    """Trace of the mean."""


S = TypeVar("S", bound=LocalState)
O = TypeVar("O", bound=LocalOptions)


class LocalEstimator(Estimator[S, O]):
    """Estimator of reports that were private before they were sent.

    See [WangXu2020, Algs. 1 and 2].

    Privacy
    -------
    A report is the answer of a mechanism that its producer ran
    (:class:`streaming_pca.local.LocalGaussian`): (epsilon, delta)-private against
    everybody, this estimator included. Everything computed from reports is post-processing,
    costs nothing, and draws no noise. A user who sends several reports is less protected.

    Forged reports
    --------------
    The noise is public knowledge: a report with an entry beyond 1 + 40 sigma does not come
    from the mechanism, and counts as null. Within that bound a forger moves the
    mean by (1 + 40 sigma)/n an entry, as under any local guarantee.
    """

    kinds: ClassVar[frozenset[RecordKind]] = frozenset({RecordKind.LOCAL})
    centerings: ClassVar[tuple[str, ...]] = ("none",)

    @cached_property
    def sigma(self) -> float:
        """Noise standard deviation of each entry of a report."""
        return noise_sigma(self.privacy.epsilon, self.privacy.delta)

    @property
    def largest_batch(self) -> int:
        if self.options.batch_size is not None:
            return self.options.batch_size
        return max(1, min(_MOST_REPORTS, _BATCH_ENTRIES // packed_size(self.dim)))

    def plan_mechanisms(self, state: S) -> Plan:
        """Plan ``largest_batch`` reports; any number is useful."""
        parameters = {"mechanism": "none", "local_sigma": self.sigma}
        return Plan(self.largest_batch, 1, 1, Charge.nothing(), parameters)

    def learn_batch(self, state: S, batch: Batch) -> tuple[S, int]:
        """Add the reports and solve for their mean; no report is clipped."""
        total = np.array(state.total)
        limit = 1.0 + _FAR * self.sigma
        counted = sum(add_reports(block.rows, limit, total) for block in batch.blocks(BLOCK))
        new = replace(state, total=total, reports=state.reports + counted)
        return self._solved(new) if new.reports else new, 0

    @abstractmethod
    def _solved(self, state: S) -> S:
        """Return the state with the solution for the mean of its reports, at least one."""

    def learnt_subspace(self, state: S) -> Subspace:
        """Return the solution, and the error of its variances by the known noise."""
        variances = np.maximum(state.variances, 0.0)
        if not state.reports:
            return Subspace(state.basis, variances, None)
        sigma = self._mean_sigma(state.reports)
        return Subspace(
            state.basis,
            variances,
            None,
            explained_variance_error=errors_along(state.basis, sigma),
            total_variance=max(state.trace, 0.0),
            total_variance_error=sigma * math.sqrt(self.dim),
        )

    def _unlifted(self, found: Subspace, state: S, trace: float, dim: int, ways: float) -> Subspace:
        """Return a release without the part that noise adds to leading variances.

        Eigenvectors of a noisy matrix, here of ``dim`` features and this trace, follow its noise: its product
        with one has ``ways`` times the square of an entry's.
        """
        square = ways * self._mean_sigma(state.reports) ** 2
        rest = (trace - float(state.variances.sum())) / max(dim - self.k, 1)
        apart = state.variances - rest
        lifted = np.array([noise_lift(value, square) for value in apart])
        assert found.explained_variance_error is not None
        errors = np.hypot(found.explained_variance_error, lifted / 2)
        # In this order rounding leaves them decreasing.
        along = np.maximum(rest + (apart - lifted), 0.0)
        return replace(found, explained_variance=along, explained_variance_error=errors)

    def _mean_sigma(self, reports: int) -> float:
        """Return the noise standard deviation of an entry of the mean."""
        return self.sigma / math.sqrt(reports)


def errors_along(components: Matrix, sigma: float) -> Matrix:
    """Return the standard deviations of u^T N u, (k,), for unit rows u (k, d).

    N is symmetric, with independent entries of standard deviation ``sigma`` on *and*
    above the diagonal: the variance is sigma^2 (sum_i u_i^4 + sum_{i<j} 4 u_i^2 u_j^2).
    """
    return np.asarray(sigma * np.sqrt(2.0 - np.sum(components**4, axis=1)))
