"""Worst-case neighbours of every mechanism, for the empirical audit.

Exact sums are put as far apart as the stated sensitivity allows, and scored by
the statistic that tells them apart best. "replay" cases copy the process first
and score the difference to what the copy draws: a noise source whose state
lives in the process, seeded or not, then answers without any noise at all.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.audit import Case, Claim, mu_of_pure, repeated
from streaming_pca.privacy.calibration import lattice_sigma
from streaming_pca.privacy.mechanisms import (
    AboveThreshold,
    gaussian_histogram,
    gaussian_histogram_argmax,
    gaussian_modes,
    gaussian_modes_threshold,
    gaussian_on_message,
    gaussian_on_symmetric,
    gaussian_on_symmetric_space,
    gaussian_on_vector,
    laplace_histogram,
    laplace_on_vector,
    laplace_scale,
    private_quantile,
    stability_histogram,
    stability_modes,
    stability_threshold,
)

__all__ = ["MECHANISM_CASES", "replayed"]

Integers = NDArray[np.int64]

_STEP = 2**20
"""Distance of neighbouring sums, about: far above the lattice, as in the estimators."""


def _gaussian_cases(
    subject: str,
    epsilon: float,
    delta: float,
    difference: Integers,
    mechanism: Callable[[Integers, float], NDArray[np.float64] | Integers],
) -> list[Case]:
    """Sums 0 and ``difference``; the score is the projection on it, which decides the likelihood ratio."""
    distance = float(np.linalg.norm(difference))
    sigma = lattice_sigma(epsilon, delta, distance)
    claim = Claim(epsilon, delta, distance / sigma)
    inputs = (np.zeros_like(difference), difference)

    def answer(second: bool) -> float:
        return float(np.sum(mechanism(inputs[second], sigma) * (difference / distance**2)))

    return [
        Case(subject, subject, claim, repeated(answer)),
        Case(f"{subject}/replay", subject, claim, replayed(answer)),
    ]


def replayed(answer: Callable[[bool], float]) -> Callable[[bool, int], NDArray[np.float64]]:
    """Scores less those that a copy of this process draws for the first neighbour.

    The difference is a post-processing by whoever draws independent noise, as
    the copy does. If the source is one that a copy repeats, the noise cancels.
    """

    def sample(second: bool, n: int) -> NDArray[np.float64]:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python warns of locks that other threads hold: the copy does nothing but draw and write.
            warnings.simplefilter("ignore", DeprecationWarning)
            copy = os.fork()
        if copy == 0:
            _draw_and_exit(writing, answer, n)
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as pipe:
                own = np.array([answer(second) for _ in range(n)])
                other = np.frombuffer(pipe.read(), dtype=np.float64)
        finally:
            os.waitpid(copy, 0)
        if other.size != n:
            raise ChildProcessError("the copy of the process ended before it had drawn")
        return own - other

    return sample


def _draw_and_exit(writing: int, answer: Callable[[bool], float], n: int) -> None:
    # Whatever happens, the copy must not return into its parent's code.
    try:
        os.write(writing, np.array([answer(False) for _ in range(n)]).tobytes())
    finally:
        os._exit(0)


def _vector(epsilon: float, delta: float) -> list[Case]:
    difference = np.array([2 * _STEP, -_STEP, _STEP], dtype=np.int64)
    return _gaussian_cases("gaussian_on_vector", epsilon, delta, difference, gaussian_on_vector)


def _message(epsilon: float, delta: float) -> list[Case]:
    difference = np.array([_STEP, -_STEP], dtype=np.int64)
    return _gaussian_cases("gaussian_on_message", epsilon, delta, difference, gaussian_on_message)


def _symmetric(epsilon: float, delta: float) -> list[Case]:
    difference = _STEP * np.array([[1, 2], [2, -1]], dtype=np.int64)
    return _gaussian_cases("gaussian_on_symmetric", epsilon, delta, difference, gaussian_on_symmetric)


def _symmetric_space(epsilon: float, delta: float) -> list[Case]:
    # Q^T Y is diagonal or symmetric for both parts of the difference.
    basis = np.eye(3, 2)
    difference = _STEP * np.array([[1, 1], [1, -1], [2, 0]], dtype=np.int64)
    return _gaussian_cases(
        "gaussian_on_symmetric_space",
        epsilon,
        delta,
        difference,
        lambda total, sigma: gaussian_on_symmetric_space(total, basis, sigma),
    )


def _laplace(epsilon: float, delta: float) -> list[Case]:
    # In L1 one coordinate is as far as several, and tells most.
    difference = np.array([_STEP, 0], dtype=np.int64)
    inputs = (np.zeros_like(difference), difference)
    scale = laplace_scale(_STEP, epsilon)
    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))

    def answer(second: bool) -> float:
        return float(laplace_on_vector(inputs[second], scale)[0]) / _STEP

    return [
        Case("laplace_on_vector", "laplace_on_vector", claim, repeated(answer)),
        Case("laplace_on_vector/replay", "laplace_on_vector", claim, replayed(answer)),
    ]


def _quantile(epsilon: float, delta: float) -> list[Case]:
    """Scores (0, -2) and (-1, -1): the second candidate's probability grows by e^epsilon exactly.

    Permute-and-flip gives the second of two candidates, s behind the first, with
    probability e^(-epsilon s/2)/2.
    """
    candidates = np.array([1.0, 2.0])
    inputs = (np.array([1.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 2.0, 2.0]))
    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))

    def answer(second: bool) -> float:
        return private_quantile(inputs[second], candidates, 0.5, epsilon)

    return [
        Case("private_quantile", "private_quantile", claim, repeated(answer)),
        Case("private_quantile/replay", "private_quantile", claim, replayed(_ranked(epsilon))),
    ]


def _ranked(epsilon: float) -> Callable[[bool], float]:
    """Which of many candidates wins: with new noise hardly ever the same twice."""
    candidates = np.arange(1.0, 65.0)
    inputs = (np.full(8, 33.0), np.array([*np.full(7, 33.0), 100.0]))
    return lambda second: private_quantile(inputs[second], candidates, 0.5, epsilon)


def _stability(epsilon: float, delta: float) -> list[Case]:
    """A record leaves one full bin for another; and a bin of one record that appears."""
    enough = stability_threshold(epsilon, delta) + math.ceil(20 / epsilon)
    counts = ((enough + 1, enough), (enough, enough + 1))
    full = [[0] * a + [1] * b for a, b in counts]
    alone: list[list[int | None]] = [[None], [0]]

    def move(second: bool) -> float:
        shown = stability_histogram(full[second], epsilon, delta)
        noisy = [shown.get(key, 0) for key in (0, 1)]
        first_loss, second_loss = (
            sum(abs(n - c) for n, c in zip(noisy, count, strict=True)) for count in counts
        )
        return float(first_loss - second_loss)

    def appear(second: bool) -> float:
        return float(len(stability_histogram(alone[second], epsilon, delta)))

    # No mu: an event of probability delta may tell everything.
    claim = Claim(epsilon, delta, math.inf)
    return [
        Case("stability_histogram", "stability_histogram", claim, repeated(move)),
        Case("stability_histogram/alone", "stability_histogram", claim, repeated(appear)),
    ]


def _histogram(epsilon: float, delta: float) -> list[Case]:
    inputs, rho, claim = _two_bins(epsilon, delta)

    def answer(second: bool) -> float:
        noisy = gaussian_histogram(inputs[second], 2, rho)
        return float(noisy[1] - noisy[0])

    return [Case("gaussian_histogram", "gaussian_histogram", claim, repeated(answer))]


def _argmax(epsilon: float, delta: float) -> list[Case]:
    inputs, rho, claim = _two_bins(epsilon, delta)

    def answer(second: bool) -> float:
        return float(gaussian_histogram_argmax(inputs[second], 2, rho))

    return [Case("gaussian_histogram_argmax", "gaussian_histogram_argmax", claim, repeated(answer))]


def _laplace_histogram(epsilon: float, delta: float) -> list[Case]:
    """A record changes bins: the score is the log-likelihood ratio, but for the scale."""
    inputs = (np.array([0, 0, 1], dtype=np.int64), np.array([0, 1, 1], dtype=np.int64))

    def answer(second: bool) -> float:
        first_count, second_count = (int(n) for n in laplace_histogram(inputs[second], 2, epsilon))
        return float(
            abs(first_count - 2) + abs(second_count - 1) - abs(first_count - 1) - abs(second_count - 2)
        )

    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))
    return [Case("laplace_histogram", "laplace_histogram", claim, repeated(answer))]


def _gaussian_modes(epsilon: float, delta: float) -> list[Case]:
    """A record moves from the one full bin to the other, in each of many histograms."""
    histograms = 16
    _, rho, _ = _two_bins(epsilon, delta)
    enough = gaussian_modes_threshold(histograms, rho, delta) + math.ceil(20 * math.sqrt(histograms / rho))
    inputs = _full_bins(histograms, enough)

    def answer(second: bool) -> float:
        return float(gaussian_modes(inputs[second], rho, delta).bins.sum() - histograms // 2)

    claim = Claim(epsilon, delta, math.sqrt(2 * rho))
    return [Case("gaussian_modes", "gaussian_modes", claim, repeated(answer))]


def _stability_modes(epsilon: float, delta: float) -> list[Case]:
    """A record leaves the one full bin for the other."""
    inputs = _full_bins(1, stability_threshold(epsilon, delta) + math.ceil(20 / epsilon))

    def answer(second: bool) -> float:
        return float(stability_modes(inputs[second], epsilon, delta).bins[0])

    # No mu: an event of probability delta may tell everything.
    return [Case("stability_modes", "stability_modes", Claim(epsilon, delta, math.inf), repeated(answer))]


def _full_bins(histograms: int, enough: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Bins 0 and 1 of each histogram: one more in the first, or one more in the second."""
    first, second = (
        np.repeat(np.array([0, 1], dtype=np.int32), counts)
        for counts in ((enough + 1, enough), (enough, enough + 1))
    )
    return np.tile(first, (histograms, 1)), np.tile(second, (histograms, 1))


def _two_bins(epsilon: float, delta: float) -> tuple[tuple[Integers, Integers], float, Claim]:
    """A record changes bins; the rho-zCDP that implies (epsilon, delta).

    rho + 2 sqrt(rho log(1/delta)) = epsilon (Bun and Steinke 2016, Proposition 1.3).
    """
    log = -math.log(delta)
    rho = (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2
    first = np.array([0, 0, 0, 1, 1], dtype=np.int64)
    second = np.array([0, 0, 1, 1, 1], dtype=np.int64)
    return (first, second), rho, Claim(epsilon, delta, math.sqrt(2 * rho))


def _above_threshold(epsilon: float, delta: float) -> list[Case]:
    """Queries that a record lifts but the last, which it lowers: when did it fire?

    Threshold and number of queries are those that tell most at epsilon = 1 to 4.
    """
    inputs = ([0] * 4 + [1], [1] * 4 + [0])

    def fired_last(second: bool) -> float:
        alarm = AboveThreshold(1, epsilon)
        answers = []
        for query in inputs[second]:
            answers.append(alarm.ask(query))
            if alarm.fired:
                break
        return float(len(answers) == 5 and answers[-1])

    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))
    return [Case("AboveThreshold", "AboveThreshold", claim, repeated(fired_last))]


MECHANISM_CASES: dict[str, Callable[[float, float], list[Case]]] = {
    "gaussian_on_vector": _vector,
    "gaussian_on_message": _message,
    "gaussian_on_symmetric": _symmetric,
    "gaussian_on_symmetric_space": _symmetric_space,
    "laplace_on_vector": _laplace,
    "private_quantile": _quantile,
    "stability_histogram": _stability,
    "gaussian_histogram": _histogram,
    "gaussian_histogram_argmax": _argmax,
    "laplace_histogram": _laplace_histogram,
    "gaussian_modes": _gaussian_modes,
    "stability_modes": _stability_modes,
    "AboveThreshold": _above_threshold,
}
"""By the names in ``privacy.mechanisms``; a mechanism without a case fails a test."""
