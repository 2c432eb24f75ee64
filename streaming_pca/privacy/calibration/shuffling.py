"""Noise scales of Gaussian messages that are sent in a secret uniform order.

m records, each used once, in a uniformly random order that stays secret. At step t the record of that place
sends c + N(0, sigma^2 I), c a function of the record and of all earlier messages, |c| <= b. Released: every
message (so anything computed from them). Adjacency: replace-one. In multiples z = sigma/(2b), the noise over
the sensitivity of one message, the bound is, for every share g in (0, 1),

    delta <= (1 + e^epsilon) (m - 1) T  +  E max(0, sum_{t<=m} B_t Y_t)/(m g),

    T = g H(-ln g, b/sigma),  H(a, mu) = Phi(mu/2 - a/mu) - e^a Phi(-mu/2 - a/mu),
    Y = e^(hZ - h^2/2) - e^epsilon e^(-hZ - h^2/2),  h = b/sigma,

with independent B ~ Bernoulli(g), Z ~ N(0, 1). More messages than m keep the guarantee. Null records: noise.

Proof, and the errors of its evaluation in floats: docs/explanation/proofs/noise.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from streaming_pca.privacy.calibration.multipliers import gaussian_delta, gaussian_multiplier, require_room
from streaming_pca.privacy.errors import CalibrationError, require_count, require_open_unit, require_positive

Floats = NDArray[np.float64]

_BLANKET_SHARE = 0.2  # share of delta for T; the optimum is flat and nearly the same for all parameters

_TAIL_SHARE = 0.02  # share of delta for the cut of Y

_GREATEST_EPSILON = 40.0
"""Largest epsilon with this bound; above it the order hides nothing, and the local bound is used."""

_GREATEST_H = 8.0
"""Largest h; above it no order of int64 length hides a record, and exponentials grow too large."""

_STEPS_A_DEVIATION = 20  # grid cells a standard deviation of Y: more are sharper and slower

_MOST_CELLS = 2**20  # most cells of the grid: bounds memory

_U = 2.0**-53  # unit roundoff of float64


def blanket_delta(epsilon: float, multiplier: float, messages: int, share: float, tail: float) -> float:
    """Return the bound of the module on delta, for one share; rounded up.

    ``epsilon`` is at most 40; the others are z = sigma/(2 b), m and g, and every share g gives a valid bound.
    ``tail`` is the probability beyond which Y is cut; a part of the bound.
    """
    require_positive("epsilon", epsilon)
    require_positive("multiplier", multiplier)
    require_count("messages", messages)
    require_open_unit("share", share)
    require_open_unit("tail", tail)
    h = 0.5 / multiplier * (1 + 1e-15)
    if h > _GREATEST_H:
        return 1.0
    blanket = 0.0
    if messages > 1:
        blanket = (1 + math.exp(epsilon)) * (messages - 1) * share * _excess(-math.log(share), h)
    return (blanket + tail + _mean_positive(epsilon, h, messages, share, tail)) * (1 + 1e-6)


def _excess(a: float, h: float) -> float:
    """Return H(a, h), rounded up; a >= 0."""
    return gaussian_delta(max(a * (1 - 1e-15), 1e-300), 1 / h * (1 - 1e-15))


def _mean_positive(epsilon: float, h: float, messages: int, share: float, tail: float) -> float:
    """Return E max(0, sum B Y')/(m g), rounded up; Y' is Y on a grid and cut."""
    step, first, weights = _grid(epsilon, h, tail)
    values = step * np.arange(first, first + len(weights), dtype=np.float64)
    tilt = _tilt(values, weights)
    tilted = weights * np.exp(tilt * values)
    # K = ln E e^(tilt B Y), from the small difference that it is.
    shift = share * float(np.sum(weights * np.expm1(tilt * values)))
    log_mgf = math.log1p(shift)
    mean = share * float(np.sum(tilted * values)) / (1 + shift)
    second = share * float(np.sum(tilted * values * values)) / (1 + shift)
    deviation = math.sqrt(messages * max(second - mean * mean, step * step))
    # Far enough that e^(-tilt s) s falls, and is small enough.
    centre = max(messages * mean, 0.0)
    top = max(8 * deviation + float(values[-1]) + centre, 60 / tilt)
    below = 10 * deviation - float(values[0])
    if not (top + below) / step < 2 * _MOST_CELLS:
        return 1.0
    size = scipy.fft.next_fast_len(math.ceil((top + below) / step) + 2, real=True)
    places = math.ceil(top / step)
    law = np.zeros(size)
    np.add.at(law, np.arange(first, first + len(weights)) % size, tilted)
    transform = scipy.fft.rfft(law)
    # (1 - g + g f)/(1 - g + g E) = 1 + g (f - E)/(1 + shift), f = E at frequency 0.
    moved = (share / (1 + shift)) * (transform - float(np.sum(tilted)))
    real = 0.5 * np.log1p(np.maximum(2 * moved.real + np.abs(moved) ** 2, -1 + 1e-300))
    sums = scipy.fft.irfft(
        np.exp(messages * (np.minimum(real, 0.0) + 1j * np.arctan2(moved.imag, 1 + moved.real))), size
    )
    s = step * np.arange(places, dtype=np.float64)
    total = float(np.sum(np.maximum(sums[:places], 0.0) * s * np.exp(-tilt * s)))
    digits = 8 * _U * math.log2(size)
    each = share / (1 + shift) * digits * math.sqrt(size) * float(np.linalg.norm(tilted)) + 8 * _U
    error = 1.01 * messages * each + digits
    total += error * (1 / (tilt * tilt * step) + 1 / (math.e * tilt))
    total += top * math.exp(-tilt * top)
    exponent = messages * log_mgf - math.log(messages * share)
    return total * math.exp(min(exponent + 1e-14 * messages * abs(log_mgf), 700.0))


def _grid(epsilon: float, h: float, tail: float) -> tuple[float, int, Floats]:
    """Return step, first place and weights of Y'.

    But for its cut, Y' is above Y in the increasing convex order.
    """
    e, scale = math.exp(epsilon), math.exp(-h * h / 2)
    highest = h - float(scipy.special.ndtri(tail))
    lowest = -max(5.5, 4.5 + h)
    top, bottom = (scale * (math.exp(h * z) - e * math.exp(-h * z)) for z in (highest, lowest))
    variance = (1 + e * e) * math.expm1(h * h) - 2 * e * math.expm1(-h * h)
    step = max(math.sqrt(variance) / _STEPS_A_DEVIATION, (max(top, 0.0) - bottom) / _MOST_CELLS)
    first, last = math.floor(bottom / step), math.ceil(max(top / step, 1.0))
    place = np.arange(first, last + 1, dtype=np.float64)
    # Y = y at z: 2 e^(epsilon/2) sinh(hz - epsilon/2) = y e^(h^2/2).
    w = place * (step / (2 * scale)) * math.exp(-epsilon / 2)
    z = (epsilon / 2 + np.arcsinh(w)) / h
    mass = _between(z, 0.0)
    moment = _between(z, h) - e * _between(z, -h)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(mass > 0, moment / mass / step - place[:-1], 1.0) + 1e-9
    up = np.clip(up, 0.0, 1.0)
    weights = np.zeros(len(place))
    weights[:-1] += mass * (1 - up)
    weights[1:] += mass * up
    weights[0] += scipy.special.ndtr(z[0])
    weights[-1] += scipy.special.ndtr(-z[-1])
    return step, first, weights


def _between(z: Floats, mean: float) -> Floats:
    """Return P(z_j < N(mean, 1) <= z_(j+1)), from the nearer tail."""
    a, b = z[:-1] - mean, z[1:] - mean
    phi = scipy.special.ndtr
    return np.asarray(np.where(a > 0, phi(-a) - phi(-b), phi(b) - phi(a)))


def _tilt(values: Floats, weights: Floats) -> float:
    """Return a tilt near the root of the tilted mean; any tilt above 0 gives a valid bound."""
    mean, second = float(weights @ values), float(weights @ (values * values))
    guess = max(-mean, 1e-12) / second
    greatest = 600 / max(values[-1], -values[0])
    low, high = min(1e-5 * guess, greatest), min(8 * guess, greatest)
    for _ in range(16):
        middle = math.sqrt(low * high)
        if float(np.sum(weights * values * np.exp(middle * values))) < 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _share(h: float, messages: int, most: float) -> float:
    """Return the g that makes (m - 1) T about ``most``."""
    log_phi = scipy.special.log_ndtr

    def excess(a: float) -> float:
        first, second = float(log_phi(h / 2 - a / h)), a + float(log_phi(-h / 2 - a / h))
        return math.exp(first - a) * -math.expm1(min(second - first, 0.0))

    low, high = 1e-9, 600.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (messages - 1) * excess(middle) > most else (low, middle)
    return math.exp(-high)


def _delta(epsilon: float, delta: float, h: float, messages: int) -> float:
    share = _share(h, messages, _BLANKET_SHARE * delta / (1 + math.exp(epsilon)))
    return blanket_delta(epsilon, 0.5 / h, messages, share, _TAIL_SHARE * delta)


def is_shuffle_private(epsilon: float, delta: float, multiplier: float, messages: int) -> bool:
    """Return whether this noise is proved to be (epsilon, delta)-private.

    ``multiplier`` is the noise standard deviation over the sensitivity 2 b of one message; ``messages`` is
    the least number of records in the secret order.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    require_positive("multiplier", multiplier)
    require_count("messages", messages)
    if multiplier >= gaussian_multiplier(epsilon, delta):
        return True
    if epsilon > _GREATEST_EPSILON or messages == 1:
        return False
    # A charge reads a float as the decimal that prints it.
    epsilon, delta = epsilon * (1 - 1e-15), delta * (1 - 1e-15)
    return _delta(epsilon, delta, 0.5 / multiplier, messages) <= delta


@lru_cache(maxsize=1024, typed=True)
def shuffled_multiplier(epsilon: float, delta: float, messages: int) -> float:
    """Return the least multiplier that is proved to be (epsilon, delta)-private.

    The secret order has at least ``messages`` records. Returns noise over the sensitivity of one message, to
    0.1%; never more than the multiplier of a Gaussian mechanism without any order. :func:`is_shuffle_private`
    checks it: privacy does not depend on the search.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    require_count("messages", messages)
    local = gaussian_multiplier(epsilon, delta)
    if epsilon > _GREATEST_EPSILON or messages == 1:
        return local

    def excess(log_h: float) -> float:
        return math.log(min(_delta(epsilon, delta, math.exp(log_h), messages), 1e6) / delta)

    low = math.log(0.5 / local)
    high = low
    while excess(high) <= 0:
        low, high = high, high + 0.5
    if high == low:
        return local
    # Imported here: it takes 20 MB that workers of other estimators do not need.
    from scipy.optimize import brentq

    multiplier = 0.5 / math.exp(brentq(excess, low, high, xtol=3e-4, rtol=1e-6))
    while multiplier < local and not is_shuffle_private(epsilon, delta, multiplier, messages):
        multiplier *= 1 + 3e-4
    return min(multiplier, local)


def shuffled_sigma(
    epsilon: float, delta: float, messages: int, sensitivity: float, multiplier: float | None = None
) -> float:
    """Return the noise scale, in lattice units, of Gaussian messages in a secret order.

    The order has at least ``messages`` records. ``sensitivity`` is 2 b, in lattice units: the largest L2
    distance of two contributions. ``multiplier``: noise over sensitivity other than the smallest; checked.

    Raises CalibrationError if the given multiplier is not proved to be enough, or no scale is.
    """
    require_positive("sensitivity", sensitivity)
    if multiplier is None:
        multiplier = shuffled_multiplier(epsilon, delta, messages)
    elif not is_shuffle_private(epsilon, delta, multiplier, messages):
        least = shuffled_multiplier(epsilon, delta, messages)
        if multiplier < least:
            raise CalibrationError(
                f"noise_multiplier = {multiplier:g} is not proved to be private in a secret order"
                f" of {messages} records: it must be at least {least:.4g}"
            )
    return require_room(multiplier * sensitivity * (1 + 1e-15), epsilon)
