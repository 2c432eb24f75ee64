"""Block route: power steps on noisy, clipped means of A Q - C about a free centre C.

The steps of one round: docs/explanation/default-estimator.md ("One round of the block route").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import EstimatorInfo, Subspace, SuiteOptions
from streaming_pca.estimators.block.variances import (
    TotalVariance,
    learn_total,
    measure_variances,
    relative_tail,
    take_shares,
)
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.centre import is_beyond_noise, resolves_radius
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.clipped_sums import block_residual_norms, block_sum
from streaming_pca.estimators.common.composed import ComposedEstimator, ComposedState, Work
from streaming_pca.estimators.common.error_bounds import angle_bound_of_block
from streaming_pca.estimators.common.forgetting import HalfLife, kept_share, process_noise
from streaming_pca.estimators.common.mean_offset import MeanOffset, MeanShift, outer_product, turn_by_clip
from streaming_pca.estimators.common.norm_distribution import (
    NormDistribution,
    norm_shares,
    private_norm_distribution,
)
from streaming_pca.estimators.common.present import PresentShare
from streaming_pca.estimators.common.worst_sums import centred_sum_cases
from streaming_pca.estimators.worst_cases import BLOCK
from streaming_pca.linalg.subspace import orthonormalise, project_symmetric, ritz_pairs
from streaming_pca.privacy.mechanisms import gaussian_on_vector

Matrix = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
_WARM = (0.0004, 0.006, 0.08)
"""Shares of the rounds before the last, from eigenvectors: trades early rounds against the last one."""
_COLD = (0.002, 0.002, 0.003, 0.004, 0.006, 0.009, 0.014, 0.022, 0.035, 0.06)
"""Shares of the rounds before the last, from a random basis: trades steps against noise."""
_LEAST = 1000.0  # records, at multiplier 5, below which a round is skipped
_RADIUS_PART = 0.25  # price of counting residual norms in a round, over the price of a first count
OVERSAMPLING = 1  # columns beyond the rank of a block that begins with a random basis
QUANTILE = 0.5
"""Default quantile of the residual norms. It is the best on light tails: clipping shrinks residuals
without turning them, and by a known factor."""
_LEAST_WEIGHT = 0.2  # least divisor (mean weight) of a clipped mean: trades clipping against amplified noise
_LARGEST = 1e290  # largest variance along which the pass measures
_SETTLED, _TURNING, _LEFT = 2.0, 0.75, 4.0
"""Turns by further steps, over the noise's bound and in radians, above which components are unsettled; least
of these turns over the last step's angle, as for a ratio of eigenvalues of 0.8."""
_APART = 1.5
"""Least variance along a component, over the others' mean, that separates it from the largest other."""
_KEPT = 0.4
"""Share of a component's variance above which clipped residuals keep its direction, as far as is known."""
_PART = 0.0313  # absolute value that a normal variable exceeds with probability 0.975
_FAR = 0.5  # change of the basis, in Frobenius norm, beyond which earlier means are dropped


@dataclass(frozen=True)
class BlockEstimate:
    """State of the block route: post-processed outputs of mechanisms."""

    basis: Matrix
    """(d, k) Q, orthonormal columns, in the features' space."""
    product: Matrix
    """(d, k) S, near Sigma Q about the anchor."""
    variance: float
    """P, variance of an entry of S; inf where S is only a guess."""
    noise: float
    """Part of P that is noise."""
    level: float
    """c, mean of the eigenvalues outside the basis."""
    spectrum: Matrix
    """(k,) singular values of the S - c Q that the basis spans; zeros at the start."""
    measured: Matrix | None = None
    """(3, k + 1) result of :func:`measure_variances` for the Ritz vectors and the rest, about the anchor;
    None without such a pass."""
    measured_records: float = 0.0
    """Records averaged into ``measured``, as far as it has not forgotten them."""
    offset: Matrix | None = None
    """(d,) offset of the mean from the anchor, with the weights of S; None where it is the state's mean."""
    offset_noise: float = 0.0
    """Variance of the noise in each of its coordinates."""
    records: float = 0.0  # records averaged into S, as far as it has not forgotten them
    mean_cut: float = 0.0  # bound on the share of a variance that the clip of the mean adds
    residual_cut: float = 0.0
    """Root of E (1-R/|A Q - C|)+^2: bound on the bias of S, over the deviation of a record's part of it."""
    turned: float = 0.0
    """Sine of the largest turn of the basis in the last step. If there are more columns than components: of
    an undamped step in the rounds after a start, later at least what is left of that."""

    @classmethod
    def start(cls, basis: Matrix) -> BlockEstimate:
        zeros, start = np.zeros(basis.shape), np.zeros(len(basis))
        return cls(basis, zeros, math.inf, 0.0, 0.0, np.zeros(basis.shape[1]), offset=start)

    def check(self) -> None:
        """Check that a round could have left these values, or raise ValueError."""
        if not np.linalg.norm(self.basis, axis=0).max(initial=0.0) < 1.01:
            raise ValueError("the state's basis must have orthonormal columns")
        if self.measured is not None and self.measured.shape != (3, self.basis.shape[1] + 1):
            raise ValueError("the state's measured variances must be three rows")
        if self.offset is not None and self.offset.shape != self.basis.shape[:1]:
            raise ValueError("the offset of the state's mean must have one number a feature")
        numbers = (self.variance, self.noise, self.measured_records, self.offset_noise, self.turned)
        numbers_are_right = all(
            number >= 0 for number in (*numbers, self.records, self.mean_cut, self.residual_cut)
        )
        if not (numbers_are_right and self.turned <= 1 and 0 <= self.level < math.inf):
            raise ValueError("the state's variances must not be below 0")


class BlockUpdate:
    """Mechanisms of the block route, and their post-processing.

    ``multiplier`` is the noise multiplier of a whole batch, ``norm_range`` the public range of the records'
    norms; residual norms may be far smaller. ``present`` is the share of the batch's records that are not
    null: each null record adds clip(-C), a public number, to a sum; it is subtracted again. ``rank`` leading
    directions are released; ``shift`` leads from the centre of all sums to this batch's centre.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        multiplier: float,
        norm_range: tuple[float, float],
        present: float,
        rank: int,
        shift: MeanShift,
    ) -> None:
        self.preprocessing, self.multiplier, self.norm_range = preprocessing, multiplier, norm_range
        self.present, self.rank, self.shift = present, rank, shift
        low, high = norm_range
        self.residual_range = (max(low * 2.0**-20, 1e-230), high * 2.0)

    def centre(self, estimate: BlockEstimate) -> Matrix:
        """Return C, near the batch's mean of A Q: S, carried from the anchor to the mean."""
        return estimate.product - outer_product(self._offset(estimate), estimate.basis)

    def _offset(self, estimate: BlockEstimate) -> Matrix:
        return self.shift.before if estimate.offset is None else estimate.offset

    def radius(
        self,
        estimate: BlockEstimate,
        batch: Batch,
        quantile: float,
        budget: Budget,
        part: float = _RADIUS_PART,
    ) -> tuple[float, float, float]:
        """Find the clip radius and the mean weight by noisy counts of residual norms.

        The radius is the ``quantile`` of the residual norms; ``part`` is a factor on the limits of the
        counts' shares, see :func:`norm_shares`.

        Returns radius, weight and the root of E (1-R/|A Q - C|)+^2; the weight is E min(1, R/|A Q - C|) over
        records that are not null, at least 0.2; norms are Frobenius norms.
        """
        centre = self.centre(estimate)
        norms = block_residual_norms(batch, self.preprocessing, estimate.basis, centre)
        shares = norm_shares(len(norms), self.multiplier, part)
        found = private_norm_distribution(norms, *self.residual_range, budget, shares)
        radius = found.quantile(quantile)
        weight = found.mean_weight(radius) - self._null_weight(radius, centre)
        squares = replace(found, radii=found.radii**2)
        return radius, max(weight / self.present, _LEAST_WEIGHT), math.sqrt(squares.clip_bias(radius**2))

    def _null_weight(self, radius: float, centre: Matrix) -> float:
        """Return the null records' part of E min(1, R/|A Q - C|_F): their A is 0."""
        norm = float(np.linalg.norm(centre))
        return (1 - self.present) * (radius / norm if norm > radius else 1.0)

    def learn(
        self,
        estimate: BlockEstimate,
        part: Batch,
        radius: float,
        weight: float,
        half_life: HalfLife,
        multiplier: float,
        by_records: float = 0.0,
    ) -> tuple[BlockEstimate, int, float]:
        """Add one round's noisy clipped mean of A Q - C; returns the clipped records and its weight too.

        It weighs by precision; where it differs from earlier rounds ``by_records``, if that is not 0.

        Adjacency: replace-one. A record's term is A Q - C clipped to Frobenius norm R, so the
        sum's sensitivity is 2 R (:func:`block_sensitivity`). Released: the sum with Gaussian
        noise of this multiplier. Basis, centre and share of null records are earlier outputs.
        """
        count = len(part) // self.preprocessing.units
        basis = estimate.basis
        exact = block_sum(part, self.preprocessing, basis, radius, self.centre(estimate))
        if not count:
            return estimate, exact.clipped, 0.0
        assert exact.centre is not None
        sigma = Budget(multiplier, 1.0).sigma(multiplier, exact.sensitivity)
        noisy = gaussian_on_vector(exact.total, sigma) * (exact.unit / count)
        residual = (
            np.asarray(noisy, dtype=np.float64) + self._null_weight(radius, exact.centre) * exact.centre
        )
        weight *= self.present
        moved = project_symmetric(residual / weight, basis)
        measured = np.asarray(exact.centre + moved) + self.shift.excess(basis)
        noise = (multiplier * 2 * radius / (weight * count)) ** 2
        spread = noise + radius**2 / (basis.size * count)
        gain, variance = 1.0, spread
        if math.isfinite(estimate.variance):
            before, kept = estimate.variance, kept_share(half_life, len(part))
            apart = measured - estimate.product
            drift = process_noise(apart, before + spread)
            if half_life == "auto":
                before += drift
            gain = max(before / (before + spread), 1 - kept)
            if by_records and (drift or process_noise(np.sum(basis * apart, axis=0), before + spread)):
                gain = by_records
            variance = (1 - gain) ** 2 * before + gain**2 * spread
        settled = replace(
            estimate,
            product=estimate.product + gain * (measured - estimate.product),
            variance=variance,
            noise=(1 - gain) ** 2 * estimate.noise + gain**2 * noise,
            offset=self.shift.after(gain, self._offset(estimate)),
            offset_noise=(1 - gain) ** 2 * estimate.offset_noise + gain**2 * self.shift.noise,
        )
        return settled, exact.clipped, gain

    def step(self, estimate: BlockEstimate, total_variance: float) -> BlockEstimate:
        """Move to the next basis and carry the estimate to it, both about the mean: post-processing."""
        basis, centred = estimate.basis, self.centre(estimate)
        d, k = basis.shape
        values = np.linalg.svd(centred, compute_uv=False)
        level = 0.0
        if d > k:
            level = min(max((total_variance - float(values.sum())) / (d - k), 0.0), float(values[-1]) / 2)
        shifted = centred - level * basis
        new = orthonormalise(shifted)
        inner = basis.T @ centred
        inner = (inner + inner.T) / 2
        within = basis.T @ new
        carried = centred @ within + basis @ (centred.T @ new) - basis @ (inner @ within)
        carried += level * (new - basis @ within)
        change = float(np.linalg.norm(new - basis @ within))
        leading, found, _ = np.linalg.svd(shifted, full_matrices=False)
        leading = leading[:, : self.rank]
        turned = float(np.linalg.norm(leading - basis @ (basis.T @ leading), ord=2))
        neglected = (float(values[0]) * change**2 + 0.1 * float(values[-1]) * change) ** 2 / carried.size
        variance = estimate.variance + neglected if change <= _FAR else math.inf
        spectrum = np.asarray(found, dtype=np.float64)
        return replace(
            estimate,
            basis=new,
            product=carried + outer_product(self._offset(estimate), new),
            variance=variance,
            level=level,
            spectrum=spectrum,
            turned=min(turned, 1.0),
        )

    def measure(
        self,
        estimate: BlockEstimate,
        batch: Batch,
        total: float,
        budget: Budget,
        multipliers: list[float],
        weight: Callable[[float], float],
        tail: Matrix,
    ) -> BlockEstimate:
        """Add a batch's variances along the Ritz vectors (:func:`measure_variances`).

        ``weight`` returns the batch's weight next to a number of earlier records; ``tail`` comes from
        :func:`relative_tail`. ``total`` is about the mean.
        """
        count = len(batch) // self.preprocessing.units * self.present
        if not count:
            return estimate
        values, turn = ritz_pairs(estimate.basis.T @ self.centre(estimate), estimate.basis.shape[1])
        least = max(total, float(values.max(initial=0.0)), 1e-200) / len(estimate.basis) / 4
        scales = np.clip(np.append(values, total - float(values.sum())), least, _LARGEST)
        directions = (estimate.basis @ turn).T
        new = measure_variances(
            batch, self.preprocessing, directions, scales, budget, multipliers, count, tail
        )
        excess = self.shift.along(directions)
        new[0] += np.append(excess, self.shift.total - float(excess.sum()))[: new.shape[1]]
        gain = 1.0 if estimate.measured is None else weight(estimate.measured_records)
        if estimate.measured is not None and gain < 1:
            new[0] = estimate.measured[0] + gain * (new[0] - estimate.measured[0])
            new[1] = (1 - gain) ** 2 * estimate.measured[1] + gain**2 * new[1]
            # Caps hide the same part in all batches, so this error does not average out.
            new[2] = estimate.measured[2] + gain * (new[2] - estimate.measured[2])
        return replace(estimate, measured=new, measured_records=count / gain)


def block_subspace(
    estimate: BlockEstimate, total: TotalVariance, k: int, present: PresentShare, offset: MeanOffset
) -> Subspace:
    """Compute the release, leading Ritz vectors of the basis: post-processing.

    ``k`` is at most the basis' columns. The error of ``present`` widens every variance's error.
    ``offset`` leads from the centre of the sums to the records' mean, which the release is about.
    """
    basis = estimate.basis
    own = offset.vector if estimate.offset is None else estimate.offset
    inner = basis.T @ (estimate.product - outer_product(own, basis))
    values, turn = ritz_pairs(inner, k)
    components = (basis @ turn).T
    noise = math.sqrt(estimate.noise)
    variances, errors = np.maximum(values, 0.0), np.full(k, noise)
    known = bool(estimate.spectrum.any()) and math.isfinite(noise)
    whole, whole_error = max(total.value - offset.square, 0.0), math.sqrt(total.noise)
    has_whole, is_apart, is_kept = total.weight > 0 and math.isfinite(whole), True, True
    if estimate.measured is not None and np.isfinite(estimate.measured).all():
        deviations = np.hypot(np.sqrt(estimate.measured[1]), estimate.measured[2])
        variances, errors = estimate.measured[0, :k] - offset.along(components), deviations[:k]
        variances = np.maximum(variances, 0.0)
        # A clip keeps more of light tails; with skewed records, it keeps less of the leading directions.
        least = variances - 2 * np.sqrt(estimate.measured[1, :k])
        is_kept = not np.any(values + 2 * noise < _KEPT * least)
        whole = max(float(estimate.measured[0].sum()) - offset.square, 0.0)
        whole_error = float(np.linalg.norm(deviations))
        has_whole = True
        rest = (whole - float(variances.sum())) / max(len(basis) - k, 1)
        # Where the others' mean is nearly as large, one of them may be larger.
        is_apart = k == len(basis) or float(variances.min()) > _APART * rest
        errors = np.hypot(errors, offset.errors(variances, estimate.mean_cut))
        whole_error = math.hypot(whole_error, offset.total_error(whole, estimate.mean_cut))
    order = np.argsort(-variances, kind="stable")
    bound = None
    if known:
        here = offset
        if is_beyond_noise(float(own @ own), len(basis), estimate.offset_noise):
            here = offset.with_noise(estimate.offset_noise)
        bound = angle_bound_of_block(estimate.spectrum, k, len(basis), noise, other=here.reach)
    # A negative eigenvalue above them in size took a column that one of them needed.
    is_positive = np.linalg.eigvalsh((inner + inner.T) / 2)[0] >= min(-2 * noise, -float(values[-1]))
    if bound is not None and not (is_apart and is_positive):
        bound = math.pi / 2
    beyond: tuple[str, ...] = ()
    # S knows nothing of a way across its basis: the means' variance along it may be a component.
    others = max(whole - float(variances.sum()), 0.0) / max(len(basis) - k, 1)
    if bound is not None and k < len(basis) and offset.scatter > max(float(variances.min()) - others, 0.0):
        bound, beyond = math.pi / 2, ("unsettled",)
    if bound is not None and bound < math.pi / 2:
        # Steps whose angles fall by the ratio r of two eigenvalues turn by r / (1 - r) of the last one's.
        left = math.asin(estimate.turned) * _left(estimate.spectrum, k)
        is_settled = left <= min(_SETTLED * bound, _TURNING)
        beyond = ("clipped",) * (not is_kept) + ("unsettled",) * (not is_settled)
        cut = estimate.mean_cut + estimate.residual_cut
        bound = min(bound + left + turn_by_clip(cut, estimate.spectrum, k), math.pi / 2)
    return Subspace(
        components[order],
        variances[order],
        None,
        explained_variance_error=present.widened(errors, variances)[order] if known else None,
        total_variance=whole if has_whole else None,
        total_variance_error=float(present.widened(whole_error, whole)) if has_whole else None,
        angle_bound=bound,
        known_warnings=beyond,
    )


def round_shares(count: int, multiplier: float, cold: bool) -> list[float]:
    """List the shares of the rounds before the last, which gets the rest.

    Every round reads all records. A round of share s is as noisy as one on a part sqrt(s) of them.
    A round noisier than a thousand records at multiplier 5 measures nothing and is skipped.

    ``multiplier`` is for the whole batch; ``cold`` is True where the basis is a guess.
    """
    return [share for share in (_COLD if cold else _WARM) if count * share**0.5 >= _LEAST * multiplier / 5]


def _left(spectrum: Matrix, k: int) -> float:
    """Return the turn by all further steps over the last one's."""
    value, following = map(float, [*spectrum, 0.0][k - 1 : k + 1])
    return max(_LEFT, following / max(value - following, 1e-300))


def _hidden(estimate: BlockEstimate, k: int, steps: int) -> float:
    """Return a last turn for what a random start may hide, or 0.

    A step multiplies a direction by its eigenvalue. If others fill all columns but one of a random basis, the
    share of one as large as the last component begins as a normal variable, against another with the last
    column's eigenvalue. A share above a limit would have turned the last step.
    """
    ratios = estimate.spectrum / max(float(estimate.spectrum[k - 1]), 1e-200)
    limit = min(math.asin(estimate.turned) / max(1 - float(ratios[k]), 1e-12), 1.0)
    is_seen = limit * float(ratios[-1]) ** steps <= _PART
    return 0.0 if is_seen else math.sin(math.pi / 4 / _left(estimate.spectrum, k))


class BlockOptions(ClippedBatches):
    """Settings of :class:`BlockPCA`."""

    oversampling: int = Field(default=OVERSAMPLING, ge=0, le=2**10)
    """Columns beyond the rank. The steps see the next eigenvalue with one; without any, components may be
    those of a smaller eigenvalue unnoticed. Each adds noise. A stream keeps the value it began with."""


@dataclass(frozen=True)
class BlockState(ComposedState):
    """State of :class:`BlockPCA`: the block estimate and the total variance."""

    block: BlockEstimate
    total: TotalVariance


def learn_block(
    update: BlockUpdate,
    estimate: BlockEstimate,
    total: TotalVariance,
    batch: Batch,
    budget: Budget,
    options: ClippedBatches,
    quantile: float = QUANTILE,
    average_mean: Callable[[float | None], tuple[float, float | None]] | None = None,
) -> tuple[BlockEstimate, TotalVariance, int]:
    """Learn the total variance, run one batch's rounds, and measure variances along the result.

    With a public radius it runs one round, without a total, counts of norms or a measurement.

    Several rounds follow a start, one follows a later estimate. ``quantile``: quantile of the residual norms,
    unless ``options`` set one. ``average_mean`` averages the batch's mean, with the batch's weight in S where
    drift alone decides it. It returns the square of the mean's offset, and the mean's weight if there is one:
    totals and variances have the same. The last returned value is the number of clipped records.
    """
    quantile = quantile if options.clip_quantile is None else options.clip_quantile
    count = len(batch) // update.preprocessing.units
    shares, cold = list[float](), False
    norms: NormDistribution | None = None
    here = TotalVariance()
    if options.clip_radius is None:
        here, norms = learn_total(
            batch, update.preprocessing, budget, update.multiplier, update.norm_range, update.present
        )
        if not estimate.spectrum.any():
            # Without products either, the basis is a guess.
            cold = not estimate.product.any()
            shares = round_shares(count, update.multiplier, cold)
    if norms is not None:
        estimate = replace(estimate, mean_cut=norms.clip_bias(update.shift.radius**2))
    clipped, held = 0, list[float]()
    if options.clip_radius is None and update.preprocessing.kind is RecordKind.FACTOR:
        # Reserved for the pass along the directions that the rounds find.
        held = take_shares(budget)
    left, square, of_mean, running, whole = 1.0, 0.0, None, total, 0.0

    def weigh(earlier: float) -> float:
        """Return the batch's weight next to earlier records: the mean's, else by counts."""
        if of_mean is not None and earlier:
            return of_mean
        kept = kept_share(options.half_life, len(batch))
        return 1 / (1 + kept * earlier / (count * update.present)) if count else 0.0

    before = kept_share(options.half_life, len(batch)) * estimate.records
    by_records = count / (before + count) if before and options.half_life != "auto" else 0.0
    for share in (*shares, None):
        radius, weight, residual_cut = options.clip_radius, 1.0, 0.0
        if radius is None:
            radius, weight, residual_cut = update.radius(estimate, batch, quantile, budget)
        multiplier = budget.take_rest() if share is None else budget.take(share)
        earlier = estimate.turned
        how = (options.half_life, multiplier, by_records)
        estimate, clipped, gain = update.learn(estimate, batch, radius, weight, *how)
        left *= 1 - gain
        if average_mean is not None:
            # Where records alone decide the weight in S, they decide the mean's, too.
            own = gain if by_records and gain == by_records else None
            square, of_mean = average_mean(1 - left if options.half_life == "auto" else own)
        running = total.averaged(here, weigh(total.weight), update.shift.total)
        whole = max(running.value - square, 0.0)
        estimate = update.step(estimate, whole)
        if estimate.basis.shape[1] > update.rank and gain:
            # A step by part of what was measured turns by that part; the rest is still to come.
            # If the next eigenvalue is below half of the last, later steps turn by less than the last one.
            last, following = estimate.spectrum[update.rank - 1 : update.rank + 1]
            kept = earlier * (1 - gain * float(1 - following / last)) if following > last / 2 else 0.0
            turned = estimate.turned / gain if shares else max(estimate.turned, kept)
            estimate = replace(estimate, turned=min(turned, 1.0))
            if cold and share is None:
                hidden = _hidden(estimate, update.rank, len(shares) + 1)
                estimate = replace(estimate, turned=max(estimate.turned, hidden))
    if gain:
        records = float(count) if shares or gain == 1 else before + count
        estimate = replace(estimate, records=records, residual_cut=residual_cut)
    if held:
        # Numbers may overflow, and an error would reveal records.
        with np.errstate(all="ignore"):
            tail = relative_tail(norms, max(here.value, 0.0))
            estimate = update.measure(estimate, batch, whole, budget, held, weigh, tail)
    if options.clip_radius is None and not resolves_radius(count, update.multiplier):
        # A radius from few records is a guess, and so is the noise computed from it.
        estimate = replace(estimate, noise=max(estimate.noise, float(np.sum(estimate.product**2))))
    return estimate, running, clipped


class BlockPCA(ComposedEstimator[BlockState, BlockOptions]):
    """Power steps on noisy, clipped block means about a free centre.

    It follows ADADPO [DunglerSanyal2026, Algorithm 2]:

    ===============================================  ==========================================
    clip around a private centre                     ``BlockUpdate.learn``: about the estimate
    at a private scale                               ``BlockUpdate.radius``: noisy counts
    with noise inside the symmetric space            ``project_symmetric``
    step and orthonormalise                          ``BlockUpdate.step``
    ===============================================  ==========================================

    Deviations from the paper
    -------------------------
    - A clip in Frobenius norm, of sensitivity 2R/m, instead of a box of coordinates.
    - The centre is the last estimate, which costs nothing.
    - The scale comes from noisy counts.
    - No learning rate: Kalman gains, and a shifted power step.
    - A first batch has rounds of growing shares of its budget, each with its own basis;
      a later batch has one round.

    One column beyond the rank shows the gap to the next eigenvalue, which bounds need, and
    keeps the steps from settling on a smaller one.

    Privacy
    -------
    The argument of every :class:`~streaming_pca.estimators.common.composed.ComposedEstimator`
    (adjacency: replace-one). Released: the counts of records and norms, the noisy mean, the noisy means of
    residuals, the noisy totals and the noisy layers of squares along the basis.
    """

    info = EstimatorInfo(
        id="block",
        source="this project, after DunglerSanyal2026, Algorithm 2",
        private=True,
        needs="records that agree, or many features",
        summary="clipped block power steps about a free centre",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"first_batch": 64, "max_batch": 256},
        variants=({"clip_radius": 3.0}, {"oversampling": 1}),
        clip={"clip_radius": 4.0},
        useful={"first_batch": 4000, "max_batch": 40_000},
    )
    worst_cases = centred_sum_cases(BLOCK)

    def init(self, rng: np.random.Generator) -> BlockState:
        columns = min(self.k + self.options.oversampling, self.dim)
        basis = orthonormalise(rng.standard_normal((self.dim, columns)))
        block = BlockEstimate.start(basis)
        return BlockState(0, 0, block, TotalVariance())

    def _own_parameters(self, state: BlockState) -> dict[str, Any]:
        return {"columns": state.block.basis.shape[1]}

    def _learn(self, state: BlockState, work: Work) -> tuple[BlockState, int]:
        if work.restarts:
            block = BlockEstimate.start(state.block.basis)
            state = replace(state, block=block, total=TotalVariance())
        shift, present = self.mean_shift(state, work), state.present.latest_share
        costs, norm_range = self.costs, self.norm_range
        update = BlockUpdate(work.preprocessing, costs.multiplier, norm_range, present, self.k, shift)
        new = state

        def average_mean(weight: float | None) -> tuple[float, float | None]:
            nonlocal new
            new, gain = self.average_mean(state, work.measured, weight)
            return self.mean_offset(new).square, gain

        block, total, clipped = learn_block(
            update, state.block, state.total, work.batch, work.budget, self.options, average_mean=average_mean
        )
        return replace(new, block=block, total=total), clipped

    def learnt_subspace(self, state: BlockState) -> Subspace:
        return block_subspace(state.block, state.total, self.k, state.present, self.mean_offset(state))
