"""Variances along released directions, read off the moments at all radii: post-processing.

A clip at radius R takes E (norm - R)+ off the total, by the counts of norms, and an unknown part
of it off each direction. Moments at several radii show how large that part is; where they cannot,
a prior does, and the error includes it. Formulas: docs/explanation/default-estimator.md ("Variances").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.error_bounds import noise_lift
from streaming_pca.estimators.common.mean_offset import MeanOffset
from streaming_pca.estimators.common.norm_distribution import BELOW_MEDIAN, Tail
from streaming_pca.estimators.covariance.state import CovarianceEstimate

Matrix = NDArray[np.float64]

# Set on thirteen sets, and judged on others (docs/explanation/default-estimator.md, "Constants").
_MEAN, _COMMON, _STEP = 1.2, 0.8, 0.2
"""Part of the cut-off norm that a direction loses, over its part of the total: the prior's mean, the
deviation common to all radii, and the deviation from one radius to the next."""
_BEYOND = 0.5  # deviation of this part beyond the largest radius, over sqrt(b (1 - b))
_PRECISION = 0.001  # least relative error of a variance: the model's
_ROUNDS = 3
_LEAST_SHARE = 1e-3  # least share of the total that the chosen radius is assumed to keep
_LEAST_KEPT = 0.1  # least share that a clip is assumed to keep: variances are scaled up at most tenfold


@dataclass(frozen=True)
class Variances:
    """Variances along k directions, and in total, with standard errors from noise and clips."""

    along: Matrix
    errors: Matrix
    total: float
    total_error: float


def read_variances(
    estimate: CovarianceEstimate,
    components: Matrix,
    values: Matrix,
    offset: MeanOffset,
    present: float,
    kind: RecordKind,
) -> Variances:
    """Estimate variances along released directions, and the total.

    ``components`` (k, d) are the leading eigenvectors of the released moment, ``values`` (d,) all its
    eigenvalues, about the mean; ``offset`` leads from the centre of the sums to the mean; ``present`` is
    the share of the records that are not null.
    """
    turned = components @ estimate.basis
    slots = estimate.all_moments()
    moments = np.sum(turned @ slots * turned, axis=2).T - offset.along(components)[:, None]
    traces = np.trace(slots, axis1=1, axis2=2) - offset.square
    # Deviations of their noise, over a diagonal entry's.
    along = turned**2 @ estimate.weights
    of_all = float(np.linalg.norm(estimate.weights))
    tail = estimate.sizes.tail(estimate.radii[: estimate.used], estimate.excess[: estimate.used], present)
    base = float(np.median(values)) if len(values) > 4 else 0.0
    noise = estimate.released_noise * float(estimate.weights.sum()) / 2
    lifted = [
        noise_lift(float(m[estimate.chosen]) - base, noise * a) for m, a in zip(moments, along, strict=True)
    ]
    if len(components) < len(turned.T):
        # All other directions together, like one more.
        moments = np.vstack([moments, traces - moments.sum(axis=0)])
        along, lifted = np.append(along, _deviation_of_rest(turned, estimate.weights)), [*lifted, 0.0]
    model: _Model | _Range
    if estimate.weighted or kind is not RecordKind.FACTOR:
        model = _Range(estimate, tail, kind)
    else:
        model = _Model(estimate, tail, float(traces[estimate.chosen]))
    found = [model.variance(m, a, up) for m, a, up in zip(moments, along, lifted, strict=True)]
    parts, errors = np.array(found).T
    total, total_error = model.total(traces, of_all)
    # The total is known better than its parts: these absorb the difference, by their errors.
    squares = errors * errors
    parts = np.maximum(parts + squares / (squares.sum() + total_error**2) * (total - parts.sum()), 0.0)
    k = len(components)
    return Variances(parts[:k], errors[:k], float(parts.sum()), total_error)


class _Model:
    """Model of variances in the records' own coordinates, in units of the total.

    A moment at radius l is a - sum_{j >= l} b_j (E_j - E_{j+1}) + noise, with a the variance, E_l
    the excess and b_j the direction's part of the norm between two radii.
    """

    def __init__(self, estimate: CovarianceEstimate, tail: Tail, trace: float) -> None:
        used, self.chosen = estimate.used, estimate.chosen
        total = trace + float(tail.excess[self.chosen])
        # In these units no square overflows.
        self.unit = total if 0 < total < math.inf else 1.0
        # Share of the total that the chosen radius keeps.
        self.kept = min(max(trace / self.unit, _LEAST_SHARE), 1.0)
        self.noise = estimate.noise_of_moments() / self.unit / self.unit
        excess, spread = tail.excess / self.unit, np.sqrt(tail.variance) / self.unit
        hidden = tail.hidden / self.unit
        steps = np.maximum(-np.diff(excess, append=0.0), 0.0)
        # Row l sums the steps beyond radius l.
        beyond = np.triu(np.ones((used, used))) * steps
        self.cut, self.last = beyond.sum(axis=1), float(steps[-1])
        # Errors of the excess at two radii are assumed half dependent.
        self.of_excess = (np.outer(spread, spread) + np.diag(spread * spread)) / 2 + hidden * hidden
        places = np.arange(1.0, used + 1)
        self.walk = beyond @ np.minimum.outer(places, places) @ beyond.T
        self.carried = _carried(estimate)

    def variance(self, moments: Matrix, deviation: float, lifted: float) -> tuple[float, float]:
        """Estimate one variance and its error; ``lifted`` is the noise in the chosen moment."""
        moments, lifted = moments / self.unit, lifted / self.unit
        # Where the clip keeps little of the total, it keeps little of each direction as well.
        least = deviation * math.sqrt(float(self.noise[self.chosen, self.chosen])) / self.kept
        value, error = max(float(moments[self.chosen]) - lifted, 0.0) / self.kept, 0.0
        for _ in range(_ROUNDS):
            part = min(max(value, least), 1.0)
            covariance = (
                deviation * deviation * self.noise
                + min(_COMMON * part, 0.5) ** 2 * np.outer(self.cut, self.cut)
                + min(_STEP * part, 0.5) ** 2 * self.walk
                + part * part * self.of_excess
                + _BEYOND**2 * part * (1 - part) * self.last**2
                + (lifted / 2) ** 2 * np.outer(self.carried, self.carried)
            )
            lost = min(_MEAN * part, 1.0) * self.cut
            value, error = _least_squares(moments - self.carried * lifted + lost, covariance)
            value = max(value, 0.0)
        return value * self.unit, math.hypot(error, _PRECISION * value) * self.unit

    def total(self, traces: Matrix, deviation: float) -> tuple[float, float]:
        """Estimate the total, which loses exactly the part that clips cut off."""
        covariance = deviation * deviation * self.noise + self.of_excess
        value, error = _least_squares(traces / self.unit + self.cut, covariance)
        value = max(value, 0.0)
        return value * self.unit, math.hypot(error, _PRECISION * value) * self.unit


class _Range:
    """Limits of variances where a clip's part of a direction has no model.

    A variance lies between the moment at the largest radius, and that moment over the share of the
    norms that this radius keeps.
    """

    def __init__(self, estimate: CovarianceEstimate, tail: Tail, kind: RecordKind) -> None:
        self.last = estimate.used - 1
        self.noise = math.sqrt(float(estimate.noise.sum()))
        self.carried = float(_carried(estimate)[self.last])
        norm = float(tail.excess[0] + BELOW_MEDIAN * estimate.radii[0])
        if kind is RecordKind.FACTOR:
            # In the coordinates of the clip.
            moment = estimate.moment(self.last) / np.sqrt(np.outer(estimate.weights, estimate.weights))
            norm = float(np.trace(moment)) + float(tail.excess[self.last])
        self.kept = max(1 - float(tail.excess[self.last]) / norm, _LEAST_KEPT) if norm > 0 else 1.0
        self.hidden = tail.hidden / norm if norm > 0 else 0.0

    def variance(self, moments: Matrix, deviation: float, lifted: float) -> tuple[float, float]:
        """Estimate one variance and its error, as :meth:`_Model.variance`."""
        lifted *= self.carried
        least = max(float(moments[self.last]) - lifted, 0.0)
        value = (least + least / self.kept) / 2
        of_noise = self.noise * deviation
        return value, math.hypot(of_noise, lifted / 2, value - least, self.hidden * value, _PRECISION * value)

    def total(self, traces: Matrix, deviation: float) -> tuple[float, float]:
        return self.variance(traces, deviation, 0.0)


def _deviation_of_rest(turned: Matrix, weights: Matrix) -> float:
    """Return the noise's deviation in the trace outside k directions, over a diagonal entry's.

    Noise of entry ij has the deviation sqrt(u_i u_j), over sqrt(2) off the diagonal. So its product with the
    projection P has the variance sum_ij u_i u_j P_ij^2, which is d - k without weights.
    """
    outside = np.eye(len(weights)) - turned.T @ turned
    return math.sqrt(float(weights @ outside**2 @ weights))


def _carried(estimate: CovarianceEstimate) -> Matrix:
    """Return the part of the chosen moment's noise that each moment shares."""
    column = estimate.noise_of_moments()[:, estimate.chosen]
    own = float(column[estimate.chosen])
    return column / own if own > 0 else np.zeros(len(column))


def _least_squares(measured: Matrix, covariance: Matrix) -> tuple[float, float]:
    """Estimate the number that all measurements share, and its deviation.

    No weight is below 0, so the result lies between the measurements, even if the model is wrong. The
    deviation grows with their differences beyond the model [Birge1932].
    """
    size = len(measured)
    covariance = covariance + max(1e-12 * float(np.trace(covariance)), 1e-300) * np.eye(size)
    used: NDArray[np.int64] = np.arange(size)
    while True:
        weights = np.asarray(np.linalg.solve(covariance[np.ix_(used, used)], np.ones(len(used))))
        if len(used) == 1 or weights.min() >= 0:
            break
        used = np.delete(used, int(np.argmin(weights)))
    variance = 1 / max(float(weights.sum()), 1e-300)
    value = float(weights @ measured[used]) * variance
    apart = measured - value
    strain = float(apart @ np.linalg.solve(covariance, apart)) / max(size - 1, 1)
    return value, math.sqrt(variance * max(strain, 1.0))
