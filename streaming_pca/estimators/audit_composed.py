"""Worst-case neighbours of estimators whose records meet several mechanisms, for the empirical audit.

What such an estimator costs is a composition, of which no one pair of
neighbours shows all. Each case has records that differ in one mechanism
alone, and its claim is what that mechanism costs: a noise of the wrong scale
or a clip that is not applied shows there, while a case of the whole would
hide it behind the others.

=========  ==================================================================
sum        the sum's noise: a record in one corner of the clip, or the opposite
paper      the same with ``accounting = "paper"``
matrix     the same with ``record-kind: matrix``
order      a message among those of other records, in a secret order
projector  the released subspace: a record that turns it one way, or the other
search     a record above or below the one threshold that AboveThreshold asks about
range      PrivRange: a record that moves one block from one full bin to another
=========  ==================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from streaming_pca.estimators.audit_setups import AnyEstimator, Matrix, Record, case_of, made, oja_answer
from streaming_pca.estimators.audit_tensor import tensor_cases
from streaming_pca.estimators.outcome import Outcome
from streaming_pca.privacy.audit import Case, Claim, mu_of_pure
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import Batch, RecordKind

__all__ = ["COMPOSED_CASES"]

_HUGE = 1e6

Answer = Callable[[AnyEstimator, Any, Any, int, int], Matrix]
"""``answer(estimator, before, after, records, count)``: the noisy sum over ``count`` records of a batch."""

# All are of vectors of two features: the basis q is on the one diagonal, p on the other.

_Q, _P = np.array([[1.0], [1.0]]) / math.sqrt(2), np.array([[1.0], [-1.0]]) / math.sqrt(2)


def _adaptive_mean(answer: Answer) -> Callable[[type[AnyEstimator], float, float], list[Case]]:
    """Those of estimators with a private range, a private centre and a clipped mean."""

    def cases(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
        privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
        options = {"learning_rate": 1e-2, "range_constant": 8.0}
        paper = {**options, "accounting": "paper"}
        return [
            _adaptive_sum("sum", answer, estimator_type, privacy, options),
            _adaptive_sum("paper", answer, estimator_type, privacy, paper),
            _adaptive_sum("matrix", answer, estimator_type, privacy, options, RecordKind.MATRIX),
            _range(estimator_type, privacy, options),
        ]

    return cases


def _block_answer(estimator: AnyEstimator, before: Any, after: Any, records: int, count: int) -> Matrix:
    return oja_answer(estimator, before, after, count)


def _component_answer(estimator: Any, before: Any, after: Any, records: int, count: int) -> Matrix:
    """Of deflation's first component: c b = w + eta g, and its value is w^T g."""
    w, b, value = before.basis, after.basis, float(after.values[0])
    eta = estimator.options.of_component(0).rate(1, estimator.dim, records)
    c = (1 + eta * value) / float(np.sum(w * b))
    return np.asarray((c * b - w) / eta * count)


def _at_q(estimator: AnyEstimator) -> Any:
    """The state before any step, with q for a basis; a start that another estimator finds has ended."""
    start = estimator.init(utility_generator(0))
    ended = {"warm": None} if hasattr(start, "warm") else {}
    return replace(start, basis=_Q, **ended)


def _opposite(kind: RecordKind) -> list[Matrix]:
    """Two records whose images of q are huge, and along -p and p."""
    if kind is RecordKind.MATRIX:
        return [sign * _HUGE * (_P @ _Q.T + _Q @ _P.T) for sign in (-1, 1)]
    return [_HUGE * (1e-3 * _Q + sign * _P).T for sign in (-1, 1)]


def _range_records(estimator: AnyEstimator, sizes: list[float], kind: RecordKind) -> list[Record]:
    """A pair a block: the null record, and one whose image of q is s p."""
    records: list[Record] = []
    for size in sizes:
        root = math.sqrt(size)
        x = root * (_Q + _P).T
        records += [None, size * (_P @ _Q.T + _Q @ _P.T) if kind is RecordKind.MATRIX else x]
    return records


def _adaptive_sum(
    name: str,
    answer: Answer,
    estimator_type: type[AnyEstimator],
    privacy: PrivacyParameters,
    options: dict[str, Any],
    kind: RecordKind = RecordKind.FACTOR,
) -> Case:
    """Images of q in opposite corners of the box; all other records of the half are zero."""
    estimator: Any = made(estimator_type, 2, 1, privacy, options, kind=kind)
    start = _at_q(estimator)
    blocks = estimator._range_blocks(1)
    worst, zero = _opposite(kind), np.zeros((2, 2) if kind is RecordKind.MATRIX else (1, 2))
    first = _range_records(estimator, [1.0] * blocks, kind)
    count = 2 * blocks
    batches = [Batch.of_records([*first, record, *[zero] * (count - 1)], 2, kind) for record in worst]
    multiplier = float(estimator.plan(start).parameters["sigma_over_sensitivity"])

    def run(second: bool) -> float:
        after = estimator.update(start, batches[second])
        if after.outcome != Outcome.LEARNT:
            return 0.0
        radius = estimator._radius(after.scale, len(batches[0]), 1)
        found = answer(estimator, start, after, len(batches[0]), count)
        return float(np.sum(found * _P) / float(radius))

    claim = Claim(privacy.epsilon, privacy.delta, 1 / multiplier)
    return case_of(estimator, name, claim, run)


def _range(estimator_type: type[AnyEstimator], privacy: PrivacyParameters, options: dict[str, Any]) -> Case:
    """Half of the blocks in one bin, half in another: a record moves one of them."""
    estimator: Any = made(estimator_type, 2, 1, privacy, options)
    start = _at_q(estimator)
    blocks = estimator._range_blocks(1)
    batches = []
    for in_first in (blocks // 2 + 1, blocks // 2):
        sizes = [1.1] * in_first + [2.2] * (blocks - in_first)
        # The record that differs is in the same place on both sides.
        records = _range_records(estimator, sizes, RecordKind.FACTOR)
        batches.append(Batch.of_records([*records, *[None] * len(records)], 2))

    def run(second: bool) -> float:
        scale = estimator.update(start, batches[second]).scale
        return 0.0 if scale is None else math.log(scale)

    # No mu: an event of probability delta may tell everything.
    claim = Claim(privacy.epsilon, privacy.delta, math.inf)
    return case_of(estimator, "range", claim, run)


# Adaptive power.


def _power(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
    return [
        _power_sum("sum", estimator_type, privacy),
        _power_sum("matrix", estimator_type, privacy, RecordKind.MATRIX),
        _power_search(estimator_type, privacy),
    ]


_ONE_ROUND = {"clip_radius": 1.0, "rounds": 1, "octaves": 1}


def _power_sum(
    name: str,
    estimator_type: type[AnyEstimator],
    privacy: PrivacyParameters,
    kind: RecordKind = RecordKind.FACTOR,
) -> Case:
    """All records are above the bound, so that no threshold fires; the worst two are scaled down to it."""
    estimator: Any = made(estimator_type, 2, 1, privacy, _ONE_ROUND, kind=kind)
    start = _at_q(estimator)
    count: int = 2 * estimator._slack
    others = [_HUGE * _Q @ _Q.T if kind is RecordKind.MATRIX else _HUGE * _Q.T] * (count - 1)
    batches = [Batch.of_records([record, *others], 2, kind) for record in _opposite(kind)]
    multiplier = float(estimator.plan(start).parameters["sigma_over_sensitivity"])

    def run(second: bool) -> float:
        after = estimator.update(start, batches[second])
        if after.scale != 1.0:
            return 0.0
        mean = after.basis * float(after.values[0]) / float(np.sum(start.basis * after.basis))
        return float(np.sum(mean * _P)) * count

    claim = Claim(privacy.epsilon, privacy.delta, 1 / multiplier)
    return case_of(estimator, name, claim, run)


def _power_search(estimator_type: type[AnyEstimator], privacy: PrivacyParameters) -> Case:
    """A record above half of the bound, or below, where as many lie as the search allows."""
    estimator: Any = made(estimator_type, 2, 1, privacy, _ONE_ROUND)
    start = _at_q(estimator)
    count = 2 * estimator._slack
    batches = []
    for above in (estimator._slack, estimator._slack + 1):
        sizes = [0.9] * above + [0.01] * (count - above)
        batches.append(Batch.of_vectors(np.sqrt(sizes)[:, None] * _Q.T))
    epsilon = float(estimator.plan(start).parameters["search_epsilon"])

    def run(second: bool) -> float:
        return float(estimator.update(start, batches[second]).scale)

    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))
    return case_of(estimator, "search", claim, run)


# Noisy power: one pass, so that one sum meets the noise.


def _noisy_power(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
    return [
        _pass("sum", estimator_type, privacy, RecordKind.FACTOR),
        _pass("matrix", estimator_type, privacy, RecordKind.MATRIX),
    ]


def _pass(
    name: str, estimator_type: type[AnyEstimator], privacy: PrivacyParameters, kind: RecordKind
) -> Case:
    """Records of the first or the second basis vector, or opposite matrices of it; all others are zero.

    Images of two such factors are sqrt(2) apart, which is what the claim is for, of matrices 2.
    """
    count = 8
    options = {"batch_size": count, "clip_l2": 1.0, "iterations": 1}
    estimator: Any = made(estimator_type, 3, 2, privacy, options, kind=kind)
    start = estimator.init(utility_generator(0))
    q, r = start.start[:, :1], start.start[:, 1:]
    zero = np.zeros((3, 3) if kind is RecordKind.MATRIX else (1, 3))
    worst, apart = ([q.T, r.T], math.sqrt(2)) if kind is RecordKind.FACTOR else ([q @ q.T, -q @ q.T], 2.0)
    batches = [Batch.of_records([_HUGE * one, *[zero] * (count - 1)], 3, kind) for one in worst]
    images = [(one.T @ one if kind is RecordKind.FACTOR else one) @ start.start for one in worst]
    multiplier = float(estimator.plan(start).parameters["sigma_over_sensitivity"])

    def run(second: bool) -> float:
        return float(np.sum(estimator.update(start, batches[second]).image * (images[1] - images[0])))

    claim = Claim(privacy.epsilon, privacy.delta, apart / 2 / multiplier)
    return case_of(estimator, name, claim, run)


# Output perturbation: the gap, and the projector.


def _output_perturbation(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
    return [
        _gap("sum", estimator_type, privacy, RecordKind.FACTOR),
        _gap("matrix", estimator_type, privacy, RecordKind.MATRIX),
        _projector(estimator_type, privacy),
    ]


def _gap(name: str, estimator_type: type[AnyEstimator], privacy: PrivacyParameters, kind: RecordKind) -> Case:
    """The eigengap is 2 R or 0 with factors that are alike or at a right angle; -2 sqrt(2) R more or less
    with matrices that turn its two vectors round."""
    options = {"clip_radius": 1.0, "batch_size": 2, "gap_share": 0.9, "variance_share": 0.0}
    estimator: Any = made(estimator_type, 2, 1, privacy, options, kind=kind)
    start = estimator.init(utility_generator(0))
    x, y = _HUGE * np.eye(2)[:, None, :]
    first, lasts = x, (y, x)
    if kind is RecordKind.MATRIX:
        first = _HUGE * np.diag([1.0, -1.0])
        lasts = (-first, first)
    batches = [Batch.of_records([first, last], 2, kind) for last in lasts]
    parameters = estimator.plan(start).parameters

    def run(second: bool) -> float:
        return float(estimator.update(start, batches[second]).gap)

    mu = 1 / float(parameters["gap_sigma_over_sensitivity"])
    claim = Claim(privacy.epsilon, privacy.delta, mu)
    return case_of(estimator, name, claim, run)


def _projector(estimator_type: type[AnyEstimator], privacy: PrivacyParameters) -> Case:
    """The last of many records turns the leading direction one way, or the other."""
    options = {"clip_radius": 1.0, "batch_size": 4_000, "gap_share": 0.05, "variance_share": 0.0}
    small: Any = made(estimator_type, 2, 1, privacy, options)
    count = 8 * small.plan(small.init(utility_generator(0))).least
    estimator: Any = made(estimator_type, 2, 1, privacy, {**options, "batch_size": count})
    start = estimator.init(utility_generator(0))
    x = _HUGE * np.eye(2)
    rows = np.tile(x[0], (count, 1))
    batches = []
    for sign in (1, -1):
        rows[-1] = x[0] + sign * x[1]
        batches.append(Batch.of_vectors(rows.copy()))
    parameters = estimator.plan(start).parameters

    def run(second: bool) -> float:
        return float(estimator.update(start, batches[second]).projector[0, 1])

    mu = 1 / float(parameters["projector_sigma_over_sensitivity"])
    claim = Claim(privacy.epsilon, privacy.delta, mu)
    return case_of(estimator, "projector", claim, run)


# k-DP-Ojas.


def _sequential(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
    return [
        _message("sum", estimator_type, privacy, 1),
        _message("matrix", estimator_type, privacy, 1, RecordKind.MATRIX),
        _message("order", estimator_type, privacy, 8),
    ]


def _message(
    name: str,
    estimator_type: type[AnyEstimator],
    privacy: PrivacyParameters,
    count: int,
    kind: RecordKind = RecordKind.FACTOR,
) -> Case:
    """Messages of q in opposite directions, seen by how far the iterate turned; all others are zero.

    One record alone has its own noise. Among others it has theirs too, in an order that is not known.
    """
    options = {
        "clip_radius": 1.0,
        "batch_size": count,
        "learning_rate": 1e-3,
        "offset": 0.0 if count == 1 else 1e3,
    }
    estimator: Any = made(estimator_type, 2, 1, privacy, options, kind=kind)
    start = replace(estimator.init(utility_generator(0)), basis=_Q)
    worst, zero = _opposite(kind), np.zeros((2, 2) if kind is RecordKind.MATRIX else (1, 2))
    batches = [Batch.of_records([record, *[zero] * (count - 1)], 2, kind) for record in worst]
    multiplier = float(estimator.plan(start).parameters["sigma_over_sensitivity"])

    def run(second: bool) -> float:
        w = estimator.update(start, batches[second]).basis
        return float(np.sum(w * _P) / np.sum(w * _Q))

    # A sum of messages has the noise of all of them.
    claim = Claim(privacy.epsilon, privacy.delta, 1 / (multiplier * math.sqrt(count)))
    return case_of(estimator, name, claim, run)


COMPOSED_CASES: dict[str, Callable[[type[AnyEstimator], float, float], list[Case]]] = {
    "adadpo": _adaptive_mean(_block_answer),
    "adaptive-power": _power,
    "dp-pca": _adaptive_mean(_component_answer),
    "k-dp-ojas": _sequential,
    "k-dp-pca": _adaptive_mean(_component_answer),
    "noisy-power": _noisy_power,
    "output-perturbation": _output_perturbation,
    "tadadpo": _adaptive_mean(_block_answer),
    "tensor-private": tensor_cases,
}
"""By id; the other private estimators have a Setup."""
