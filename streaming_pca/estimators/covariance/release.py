"""Release from a noisy second moment: leading eigenvectors, variances, their errors, turns by clips.

The covariance is S_c + M: S_c the moment clipped at the chosen radius, M the part that the clip cut off.
The layers above that radius show M, with their noise. The part beyond the largest radius is known from the
counts of norms alone, and assumed to have the directions of these layers. Formulas:
docs/explanation/default-estimator.md ("What clips may have turned").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.error_bounds import FAILURE, angle_bound_of_covariance, noise_lift
from streaming_pca.estimators.common.mean_offset import MeanOffset, turn_by_clip
from streaming_pca.estimators.common.norm_distribution import BELOW_MEDIAN, Tail
from streaming_pca.estimators.common.present import PresentShare
from streaming_pca.estimators.covariance.radius_choice import leading_subspaces, symmetric_noise
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.privacy.randomness import utility_generator

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
    """Estimate variances along released directions, and the total, from the moments at all radii.

    A clip at radius R takes E (norm - R)+ off the total, by the counts of norms, and an unknown part
    of it off each direction. Moments at several radii show how large that part is; where they cannot,
    a prior does, and the error includes it. Formulas: docs/explanation/default-estimator.md ("Variances").

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


_PAIRS, _GUARDS = 40, 4
"""Simulated pairs of an angle bound, and extra columns of the iteration: trade precision against time."""
_LOST = 1.4  # radians above which a simulated bound is replaced by pi/2


def covariance_subspace(
    estimate: CovarianceEstimate,
    preprocessing: Preprocessing,
    k: int,
    present: PresentShare,
    offset: MeanOffset,
) -> Subspace:
    """Compute the release, leading eigenvectors of the noisy covariance: post-processing.

    ``offset`` leads from the centre of the sums to the records' mean, which the covariance is about. The
    error of the share of present records widens every variance's error.
    """
    moment = estimate.released_moment() - np.outer(offset.vector, offset.vector)
    values, vectors = ritz_pairs(moment, len(moment))
    components = vectors[:, :k].T
    if not estimate.records:
        return Subspace(components, np.maximum(values[:k], 0.0), None)
    sigma = math.sqrt(estimate.released_noise)
    if estimate.weighted:
        bound = _simulated_angle(moment, vectors, k, estimate, sigma, offset)
    else:
        bound = angle_bound_of_covariance(values, k, sigma, other=offset.reach)
    with np.errstate(all="ignore"):
        if preprocessing.largest_squared_norm is not None:
            high = preprocessing.largest_squared_norm / float(estimate.weights.min())
            estimate = replace(estimate, sizes=estimate.sizes.within(high))
        dominant = dominant_feature(estimate) if preprocessing.kind is RecordKind.FACTOR else None
        turned = clip_angle(estimate, values, vectors, k, present.share, preprocessing.kind)
        found = read_variances(estimate, components, values, offset, present.share, preprocessing.kind)
        cut = 0.0
        if estimate.sizes.records and preprocessing.kind is RecordKind.FACTOR:
            # A norm in weighted coordinates, times the largest weight, is at least the record's own.
            least = offset.radius**2 / float(estimate.weights.max())
            cut = estimate.sizes.distribution(math.inf).clip_bias(least)
        turned += turn_by_clip(cut, values, k)
    is_covered = bound + turned < math.pi / 2
    variances, total = found.along, found.total
    order = np.argsort(-variances, kind="stable")
    errors = np.hypot(found.errors, offset.errors(variances, cut))
    total_error = math.hypot(found.total_error, offset.total_error(total, cut))
    finite = math.isfinite(total) and math.isfinite(total_error) and bool(np.isfinite(errors).all())
    # The trace of indefinite matrices is not a variance.
    is_total = finite and preprocessing.kind is RecordKind.FACTOR
    return Subspace(
        components[order],
        variances[order],
        None,
        explained_variance_error=present.widened(errors, variances)[order] if finite else None,
        total_variance=total if is_total else None,
        total_variance_error=float(present.widened(total_error, total)) if is_total else None,
        angle_bound=(bound + turned if is_covered else bound) if finite else None,
        known_warnings=() if is_covered or bound >= math.pi / 2 else ("clipped",),
        dominant_feature=dominant,
    )


def _simulated_angle(
    moment: Matrix, vectors: Matrix, k: int, estimate: CovarianceEstimate, sigma: float, offset: MeanOffset
) -> float:
    """Estimate the angle bound under noise of direction-dependent scale, from simulated pairs.

    A + N and A - N, with N fresh noise of the release's law, differ by twice the noise of
    the release. To first order their angle is twice the release's angle to its exact
    sums, so the 0.95 quantile over the pairs is a conservative bound.
    """
    dim = len(moment)
    if k == dim:
        return 0.0
    rng = utility_generator(dim)
    root = estimate.basis * np.sqrt(estimate.weights)
    start = vectors[None, :, : min(k + _GUARDS, dim)]
    angles = []
    for _ in range(_PAIRS):
        noise = sigma * (root @ symmetric_noise(rng, 1, dim)[0] @ root.T)
        noise += offset.draw_error(rng)
        pair = leading_subspaces(np.stack([moment + noise, moment - noise]), k, start)
        cosine = float(np.linalg.svd(pair[0].T @ pair[1], compute_uv=False)[-1])
        angles.append(math.acos(min(cosine, 1.0)))
    bound = float(np.quantile(angles, 1 - FAILURE, method="higher"))
    return bound if bound < _LOST else math.pi / 2


_DEVIATIONS = 2.0  # deviations of the noise that are added to measured values
_SURE = 3.0  # deviations of a feature's part above one half
_OUTDATED, _CERTAIN = 1.5, 5.0
"""Ratio of the layers above a radius to what counts allow, and deviations of noise beyond it: the counts then
miss records."""
_LEAST_SHOWN = 1e-3  # share of the cut-off part above which the layers show its directions


def clip_angle(
    estimate: CovarianceEstimate, values: Matrix, vectors: Matrix, k: int, present: float, kind: RecordKind
) -> float:
    """Estimate the largest turn of the k leading directions that clips may have caused.

    ``values`` and ``vectors`` (columns) are the released moment's, decreasing; ``present`` is the share of
    the records that are not null. The part cut off from matrices may lower leading directions, too.

    Returns radians; pi/2 where noise hides it, also in the counts; 0 without counts, as of a public radius.
    """
    if k == len(values) or not estimate.sizes.records:
        return 0.0
    used, last = estimate.used, estimate.used - 1
    tail = estimate.sizes.tail(estimate.radii[:used], estimate.excess[:used], present)
    if tail.is_coarse:
        return math.pi / 2
    chosen = estimate.chosen
    # A direction weighs at most as much in the records' own coordinates.
    most = float(estimate.weights.max())
    cut = (float(tail.excess[chosen]) + _DEVIATIONS * math.sqrt(tail.variance[chosen]) + tail.hidden) * most
    is_positive = kind is RecordKind.FACTOR
    most_across = 0.5 if is_positive else 1.0
    # Without a layer above the chosen radius, the uppermost one.
    first = min(chosen, last - 1)
    shown = float(tail.excess[first] - tail.excess[last]) if first >= 0 else 0.0
    if is_positive and _outdated(estimate, tail, max(first, 0)):
        return math.pi / 2
    if not shown > _LEAST_SHOWN * cut:
        return _angle(cut * most_across, float(values[k - 1] - values[k]) - (cut if is_positive else 2 * cut))
    turned = vectors.T @ estimate.basis
    above = estimate.moment(last) - estimate.moment(first)
    factor = float(chosen < last) + (float(tail.excess[last]) + tail.hidden) / shown
    above = factor * (turned @ above @ turned.T)
    # Noise of an entry ij off the diagonal has the variance along_i along_j / 2.
    along = factor * math.sqrt(float(estimate.noise[first + 1 : used].sum())) * (turned**2 @ estimate.weights)
    noise = np.outer(along[:k], along[k:]) / 2
    seen = max(float(np.sum(above[:k, k:] ** 2) - noise.sum()), 0.0)
    spread = math.sqrt(2 * float(np.sum(noise * noise)) + 4 * seen * float(noise.max()))
    across = min(math.sqrt(seen + _DEVIATIONS * spread), cut * most_across)
    # Leading directions may have gained nothing, others as much as the noise allows.
    led = np.linalg.eigvalsh(np.diag(values[:k]) + above[:k, :k])[0] - _DEVIATIONS * float(along[:k].max())
    rest = np.linalg.eigvalsh(np.diag(values[k:]) + above[k:, k:])
    middle = float(np.median(rest))
    highest = middle + _without_noise(
        float(rest[-1]) - middle, float(np.mean(along[k:]) ** 2) * len(rest) / 2
    )
    highest = min(highest + _DEVIATIONS * float(along[k:].max()) * math.sqrt(0.5), float(values[k]) + cut)
    if not is_positive:
        return _angle(across, max(float(led), float(values[k - 1]) - cut) - highest)
    return _angle(across, max(float(led), float(values[k - 1])) - max(highest, float(values[k])))


def _outdated(estimate: CovarianceEstimate, tail: Tail, first: int) -> bool:
    """Return whether layers above a radius show more than the counts allow: of later, far larger records."""
    # In the coordinates of counts and noise.
    traces = (np.diagonal(estimate.all_moments(), axis1=1, axis2=2) / estimate.weights).sum(axis=1)[first:]
    above = np.cumsum(estimate.noise[estimate.used - 1 : first : -1])[::-1]
    spread = _DEVIATIONS * np.sqrt(tail.variance[first:-1]) + tail.hidden
    radii = estimate.radii[first : estimate.used]
    allowed = _OUTDATED * (estimate.sizes.most_between(radii[:-1], float(radii[-1])) + spread)
    noise = _CERTAIN * np.sqrt(above * len(estimate.weights))
    return bool(np.any(traces[-1] - traces[:-1] > allowed + noise))


def dominant_feature(estimate: CovarianceEstimate) -> int | None:
    """Return the feature that dominates the largest records, if there is one.

    It has more than half of the layers' trace above the chosen radius, beyond their noise. Its values alone
    exceed the radius, so its unit decides which records are clipped, and how much noise all others get.
    """
    used, last = estimate.used, estimate.used - 1
    if used < 2:
        return None
    first = min(estimate.chosen, last - 1)
    above = estimate.moment(last) - estimate.moment(first)
    parts = np.einsum("ij,jl,il->i", estimate.basis, above, estimate.basis)
    feature = int(np.argmax(parts))
    squares, weights = estimate.basis[feature] ** 2, estimate.weights
    # <E, N> for E = e e' - I/2, of the feature's direction e, in coordinates of the noise N.
    noise = (squares @ weights) ** 2 - squares @ weights**2 + np.sum(weights**2) / 4
    deviation = math.sqrt(float(estimate.noise[first + 1 : used].sum()) * float(noise))
    beyond = float(parts[feature]) - float(parts.sum()) / 2
    return feature if beyond > _SURE * deviation else None


def _without_noise(apart: float, square: float) -> float:
    """Estimate an eigenvalue raised by noise; the size of noise alone if no eigenvalue is seen."""
    inside = apart * apart - 4 * square
    return (apart + math.sqrt(inside)) / 2 if inside > 0 else math.sqrt(square)


def _angle(turned: float, gap: float) -> float:
    return math.asin(turned / gap) if turned < gap < math.inf else math.pi / 2
