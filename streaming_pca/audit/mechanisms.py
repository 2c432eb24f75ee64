"""Worst-case neighbours of every mechanism.

Exact sums are put as far apart as the stated sensitivity allows, and scored by the statistic that
distinguishes them best. "replay" cases copy the process first and score the difference to the copy's draws: a
noise source whose state lives in the process, seeded or not, then answers without any noise at all.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.audit.bounds import Case, repeated
from streaming_pca.estimators.common.worst_sums import Claim, Trial, mu_of_pure
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.local.gaussian import LocalGaussian
from streaming_pca.privacy.calibration.multipliers import greatest_rho, lattice_sigma
from streaming_pca.privacy.mechanisms import (
    AboveThreshold,
    gaussian_modes,
    gaussian_modes_threshold,
    gaussian_on_message,
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
    laplace_on_vector,
    laplace_scale,
    stability_histogram,
    stability_threshold,
)

Integers = NDArray[np.int64]
TrialAt = Callable[[float, float], Trial]
"""``trial(epsilon, delta)``: the trial of a mechanism at a claim."""

_STEP = 2**20  # approximate distance of neighbouring sums: far above the lattice, as in the estimators


def mechanism_cases(name: str, epsilon: float, delta: float) -> list[Case]:
    """Build the cases of one mechanism at a claim of (epsilon, delta)."""
    cases = []
    for case, trial in (MECHANISM_CASES | LOCAL_CASES)[name].items():
        claim, run = trial(epsilon, delta)
        sample = replayed(run) if case == "replay" else repeated(run)
        cases.append(Case(f"{name}/{case}" if case else name, claim, sample))
    return cases


def replayed(answer: Callable[[bool], float]) -> Callable[[bool, int], NDArray[np.float64]]:
    """Subtract from each score the score of a copy of this process.

    The copy runs on the first neighbour. The difference is a post-processing by an observer who draws
    independent noise, as the copy does. If a copy repeats the draws of the noise source, the noise cancels.
    """

    def sample(second: bool, n: int) -> NDArray[np.float64]:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python warns of locks that other threads hold: the copy does nothing but draw and write.
            warnings.simplefilter("ignore", DeprecationWarning)
            copy = os.fork()
        if copy == 0:
            # The copy must not return into its parent's code, even after an error.
            try:
                os.write(writing, np.array([answer(False) for _ in range(n)]).tobytes())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as pipe:
                own = np.array([answer(second) for _ in range(n)])
                other = np.frombuffer(pipe.read(), dtype=np.float64)
        finally:
            os.waitpid(copy, 0)
        if other.size != n:
            raise ChildProcessError("the forked process ended before it sent its samples")
        return own - other

    return sample


def _gaussian(mechanism: Callable[[Integers, float], Any], steps: ArrayLike) -> TrialAt:
    """Score sums 0 and D by the projection on D, which decides the likelihood ratio."""
    difference = _STEP * np.array(steps, dtype=np.int64)
    distance = float(np.linalg.norm(difference))
    inputs = (np.zeros_like(difference), difference)

    def trial(epsilon: float, delta: float) -> Trial:
        sigma = lattice_sigma(epsilon, delta, distance)
        return Claim(epsilon, delta, distance / sigma), lambda second: float(
            np.sum(mechanism(inputs[second], sigma) * (difference / distance**2))
        )

    return trial


def _laplace(epsilon: float, delta: float) -> Trial:
    """Move one coordinate: in L1 that is as far as several, and reveals most."""
    inputs = (np.zeros(2, dtype=np.int64), np.array([_STEP, 0], dtype=np.int64))
    scale = laplace_scale(_STEP, epsilon)
    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))
    return claim, lambda second: float(laplace_on_vector(inputs[second], scale)[0]) / _STEP


def _stability(epsilon: float, delta: float) -> Trial:
    """Let a record leave one full bin for another."""
    enough = stability_threshold(epsilon, delta) + math.ceil(20 / epsilon)
    counts = ((enough + 1, enough), (enough, enough + 1))
    full = [[0] * a + [1] * b for a, b in counts]

    def run(second: bool) -> float:
        shown = stability_histogram(full[second], epsilon, delta)
        # The log-likelihood ratio of the two pairs of counts under unit Laplace noise.
        left, right = (abs(shown.get(0, 0) - a) + abs(shown.get(1, 0) - b) for a, b in counts)
        return float(left - right)

    # No mu: an event of probability delta may reveal everything.
    return Claim(epsilon, delta, math.inf), run


def _stability_alone(epsilon: float, delta: float) -> Trial:
    """Let a bin of one record appear."""
    alone: list[list[int | None]] = [[None], [0]]
    claim = Claim(epsilon, delta, math.inf)
    return claim, lambda second: float(len(stability_histogram(alone[second], epsilon, delta)))


def _gaussian_modes(epsilon: float, delta: float) -> Trial:
    """Let a record change full bins in each of 16 histograms."""
    histograms = 16
    rho = greatest_rho(epsilon, delta)
    enough = gaussian_modes_threshold(histograms, rho, delta) + math.ceil(20 * math.sqrt(histograms / rho))
    # Bins 0 and 1 of each histogram: one more in the first, or one more in the second.
    bins = np.array([0, 1], dtype=np.int32)
    counts = ((enough + 1, enough), (enough, enough + 1))
    inputs = [BinCounts.of(np.tile(np.repeat(bins, count), (histograms, 1))) for count in counts]
    claim = Claim(epsilon, delta, math.sqrt(2 * rho))
    return claim, lambda second: float(
        gaussian_modes(inputs[second], rho, delta).bins.sum() - histograms // 2
    )


def _above_threshold(epsilon: float, delta: float) -> Trial:
    """Ask queries that a record lifts but the last, which it lowers; score a first alarm at the last.

    Threshold and number of queries reveal most at epsilon = 1 to 4.
    """
    inputs = ([0] * 4 + [1], [1] * 4 + [0])

    def run(second: bool) -> float:
        alarm = AboveThreshold(1, epsilon)
        asked = 0
        while not alarm.fired and asked < 5:
            alarm.ask(inputs[second][asked])
            asked += 1
        return float(asked == 5 and alarm.fired)

    return Claim(epsilon, 0.0, mu_of_pure(epsilon)), run


def _local_gaussian(epsilon: float, delta: float) -> Trial:
    """Report two huge records along two axes: as far apart as two reports ever are.

    The score is the projection on their difference, which decides the likelihood ratio.
    """
    mechanism = LocalGaussian(epsilon, delta)
    inputs = (np.array([0.0, 1e9]), np.array([1e9, 0.0]))
    difference = np.array([1.0, 0.0, -1.0])
    claim = Claim(epsilon, delta, math.sqrt(2) / mechanism.sigma)
    return claim, lambda second: float(mechanism.privatize(inputs[second]) @ difference)


def _and_replayed(trial: TrialAt) -> dict[str, TrialAt]:
    return {"": trial, "replay": trial}


MECHANISM_CASES: dict[str, dict[str, TrialAt]] = {
    "gaussian_on_vector": _and_replayed(_gaussian(gaussian_on_vector, [2, -1, 1])),
    "gaussian_on_message": _and_replayed(_gaussian(gaussian_on_message, [1, -1])),
    "gaussian_on_symmetric": _and_replayed(_gaussian(gaussian_on_symmetric, [[1, 2], [2, -1]])),
    # Q^T Y is diagonal or symmetric for both parts of the difference.
    "gaussian_on_symmetric_space": _and_replayed(
        _gaussian(lambda y, s: gaussian_on_symmetric_space(y, np.eye(3, 2), s), [[1, 1], [1, -1], [2, 0]])
    ),
    "laplace_on_vector": _and_replayed(_laplace),
    "stability_histogram": {"": _stability, "alone": _stability_alone},
    "gaussian_modes": {"": _gaussian_modes},
    "AboveThreshold": {"": _above_threshold},
}
"""Trials by name in ``privacy.mechanisms`` and case name; a mechanism without a case fails a test."""

LOCAL_CASES: dict[str, dict[str, TrialAt]] = {"LocalGaussian": _and_replayed(_local_gaussian)}
"""Trials by name in ``streaming_pca.local`` and case name."""
