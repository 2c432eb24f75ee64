"""How much noise Gaussian messages need that go out in a secret uniform order.

m records, each used once, in a uniformly random order that stays secret. At step
t the record of that place sends c + N(0, sigma^2 I), c a function of the record and
of all earlier messages, |c| <= b. Released: every message (so anything computed
from them). Adjacency: replace-one. In multiples z = sigma/(2b), the noise over the
sensitivity of one message, the bound proved here is, for every share g in (0, 1),

    delta <= (1 + e^epsilon) (m - 1) T  +  E max(0, sum_{t<=m} B_t Y_t)/(m g),

    T = g H(-ln g, b/sigma),  H(a, mu) = Phi(mu/2 - a/mu) - e^a Phi(-mu/2 - a/mu),
    Y = e^(hZ - h^2/2) - e^epsilon e^(-hZ - h^2/2),  h = b/sigma,

with independent B ~ Bernoulli(g) and Z ~ N(0, 1). It is of the kind of the "privacy
blanket" (Balle, Bell, Gascon and Nissim 2019) and of "hiding among the clones"
(Feldman, McMillan and Talwar 2021), for messages that depend on earlier ones as in the
latter's Theorem 3.1, but with a Gaussian blanket in place of their local (epsilon_0,
delta_0), by which the same promise takes two to three times the noise. (Their paper of
2023 is sharper, but for adaptive messages its erratum restricts it to a class that
Gaussians are not shown to be in.) No published theorem is relied on; the proof:

Proof
-----
Let the inputs differ in record 1, P_b(. | earlier) be its message on input b = 0, 1,
R_i that of record i > 1, N the law N(0, sigma^2 I), the blanket, and
H_e(P||Q) = sup_A P(A) - e Q(A).

1. *Others wear the blanket.* R_i is N(c, sigma^2 I) with |c| <= b, so the part of g N
   above R_i has a mass eta <= g H_{1/g}(N||R_i) <= T (Balle and Wang 2018: H rises
   with |c|). Move that mass: R' = g N + (R_i - g N)^+ (1 - g)/(1 - g + eta) is a law,
   R' >= g N, at total variation eta from R_i. In any order the m - 1 others differ
   in law by (m - 1) T at most, so H_e of the true outputs is at most that of
   the outputs with R' plus (1 + e)(m - 1) T.
2. *What may be told.* Draw from R' by a coin of bias g: N, or else the rest. Tell
   the reader the set S of places where the coin fell on N, with the place of record 1
   among them, and which record is at each place outside S. That has one law for both
   inputs, and more output never lowers H_e. Given it, every element of S is equally
   likely to be record 1's: exchanging two of them is a bijection of equally likely orders
   and coins. |S| = 1 + C, C ~ Bin(m - 1, g).
3. *Likelihoods.* Against the law L under which all of S is drawn from N, input b has
   the density mean_{t in S} L_t^b, L_t^b = dP_b/dN at the t-th message. So, given S, H_e
   is E_L max(0, sum_{t in S} (L_t^0 - e L_t^1))/|S|.
4. *The worst adaptive choice.* With centres c_0, c_1 of P_0, P_1, (ln L^0, ln L^1) is
   under N a Gaussian (X, V) with covariance s = <c_a, c_b>/sigma^2 and means -s_aa/2.
   For convex F, let G(s) = E F(a + e^X - e e^V). By Price's theorem dG/ds_00 = E[e^(2X)
   F'']/2 >= 0, dG/ds_11 = E[(e e^V)^2 F'']/2 >= 0, dG/ds_01 = -E[e e^(X + V) F''] <= 0
   (F smoothed, then the limit). So G is largest at s_00 = s_11 = h^2, s_01 = -h^2:
   c_1 = -c_0, |c_0| = b, where L^0 - e L^1 has the law of Y. Going back from the last message,
   each step's expectation over its worst choice is again a convex function of the sum
   so far, so no strategy does better than i.i.d. copies of Y.
5. *Sum over C.* P(C = n - 1)/n = P(Bin(m, g) = n)/(m g). QED

More messages than m keep the promise: tell which records, at random, take the other
places and which places; what is left is m records in a uniform order. A message rounded
to a grid is post-processing of the real one. A user's other records being null changes nothing: null records
send noise about 0.

In floats
---------
Y is replaced by a variable on a grid that is larger in the increasing convex order,
so that E max(0, .) can only grow: Y is raised to a least value, cut at a greatest (which
costs E (Y - cut)^+ <= Phi(-(z_cut - h)) = ``tail``, as max(0, a + b) <= max(0, a) + max(0,
b)), and split between its two neighbours on the grid with its conditional mean (plus
1e-9 of a cell). The sum's law is found by one FFT after exponential tilting, P(s) e^(l s)
e^(-m K): relative to e^(m K) all errors are absolute. Added on top: what lies
beyond the transform's end, e^(m K) top e^(-l top); what wraps round from below counts as
it arrives; and the errors of the transforms, 8 u log2(n) |x|_2 in 2-norm, the powers'
included.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, ndtr, ndtri

from streaming_pca.privacy.analytic import gaussian_delta, gaussian_multiplier
from streaming_pca.privacy.calibration import require_room
from streaming_pca.privacy.errors import (
    CalibrationError,
    require_count,
    require_open_unit,
    require_positive,
)

__all__ = ["blanket_delta", "is_shuffle_private", "shuffled_multiplier", "shuffled_sigma"]

Floats = NDArray[np.float64]

_BLANKET_SHARE = 0.2
"""Of delta, for T: the best share is flat, and depends little on anything."""

_TAIL_SHARE = 0.02
"""Of delta, for the cut of Y."""

_GREATEST_EPSILON = 40.0
"""Above it the order hides nothing, and the local bound is used."""

_GREATEST_H = 8.0
"""Above it no order that int64 can number hides a record, and exponentials grow too large."""

_STEPS_A_DEVIATION = 20
_MOST_CELLS = 2**20
_U = 2.0**-53


def blanket_delta(epsilon: float, multiplier: float, messages: int, share: float, tail: float) -> float:
    """The bound of the module, for one share; rounded up.

    Parameters
    ----------
    epsilon : float
        At most 40.
    multiplier : float
        z: sigma/(2 b).
    messages : int
        m.
    share : float
        g, in (0, 1). Every one gives a valid bound.
    tail : float
        Probability beyond which Y is cut; a part of the bound.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
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
    """H(a, h), rounded up; a >= 0."""
    return gaussian_delta(max(a * (1 - 1e-15), 1e-300), 1 / h * (1 - 1e-15))


def _mean_positive(epsilon: float, h: float, messages: int, share: float, tail: float) -> float:
    """E max(0, sum B Y')/(m g), rounded up, Y' being Y on a grid and cut."""
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
    # Where e^(-tilt s) s falls, and is small enough.
    centre = max(messages * mean, 0.0)
    top = max(8 * deviation + float(values[-1]) + centre, 60 / tilt)
    below = 10 * deviation - float(values[0])
    if not (top + below) / step < 2 * _MOST_CELLS:
        return 1.0
    size = next_fast_len(math.ceil((top + below) / step) + 2, real=True)
    places = math.ceil(top / step)
    law = np.zeros(size)
    np.add.at(law, np.arange(first, first + len(weights)) % size, tilted)
    transform = rfft(law)
    # (1 - g + g f)/(1 - g + g E) = 1 + g (f - E)/(1 + shift), f = E at frequency 0.
    moved = (share / (1 + shift)) * (transform - float(np.sum(tilted)))
    real = 0.5 * np.log1p(np.maximum(2 * moved.real + np.abs(moved) ** 2, -1 + 1e-300))
    sums = irfft(
        np.exp(messages * (np.minimum(real, 0.0) + 1j * np.arctan2(moved.imag, 1 + moved.real))), size
    )
    s = step * np.arange(places, dtype=np.float64)
    found = float(np.sum(np.maximum(sums[:places], 0.0) * s * np.exp(-tilt * s)))
    digits = 8 * _U * math.log2(size)
    each = share / (1 + shift) * digits * math.sqrt(size) * float(np.linalg.norm(tilted)) + 8 * _U
    error = 1.01 * messages * each + digits
    found += error * (1 / (tilt * tilt * step) + 1 / (math.e * tilt))
    found += top * math.exp(-tilt * top)
    exponent = messages * log_mgf - math.log(messages * share)
    return found * math.exp(min(exponent + 1e-14 * messages * abs(log_mgf), 700.0))


def _grid(epsilon: float, h: float, tail: float) -> tuple[float, int, Floats]:
    """Step, first place and weights of Y': above Y in the increasing convex order, but for its cut."""
    e, scale = math.exp(epsilon), math.exp(-h * h / 2)
    highest = h - float(ndtri(tail))
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
    weights[0] += ndtr(z[0])
    weights[-1] += ndtr(-z[-1])
    return step, first, weights


def _between(z: Floats, mean: float) -> Floats:
    """P(z_j < N(mean, 1) <= z_(j+1)), from the nearer tail."""
    a, b = z[:-1] - mean, z[1:] - mean
    return np.asarray(np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a)))


def _tilt(values: Floats, weights: Floats) -> float:
    """About where the tilted mean vanishes; any number above 0 gives a valid bound."""
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
    """g for which (m - 1) T is about ``most``."""

    def excess(a: float) -> float:
        first, second = float(log_ndtr(h / 2 - a / h)), a + float(log_ndtr(-h / 2 - a / h))
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
    """Whether this noise is proved to be enough.

    Parameters
    ----------
    epsilon, delta : float
        The promise.
    multiplier : float
        Noise standard deviation over the sensitivity 2 b of one message.
    messages : int
        Records in the secret order, at least.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
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
    """Smallest noise over the sensitivity of one message that is proved to be (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float > 0
    delta : float in (0, 1)
    messages : int
        Records in the secret order, at least.

    Returns
    -------
    float
        To 0.1%; never more than that of a Gaussian mechanism without any order. It is put
        to :func:`is_shuffle_private`: nothing rests on the search.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
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
    # Here, as it takes 20 MB that workers of other estimators do without.
    from scipy.optimize import brentq

    multiplier = 0.5 / math.exp(brentq(excess, low, high, xtol=3e-4, rtol=1e-6))
    while multiplier < local and not is_shuffle_private(epsilon, delta, multiplier, messages):
        multiplier *= 1 + 3e-4
    return min(multiplier, local)


def shuffled_sigma(
    epsilon: float,
    delta: float,
    messages: int,
    sensitivity: float,
    multiplier: float | None = None,
) -> float:
    """Noise scale, in lattice units, of Gaussian messages in a secret order.

    Parameters
    ----------
    epsilon, delta : float
        The promise.
    messages : int
        Records in the order, at least.
    sensitivity : float
        2 b, in lattice units: the largest L2 distance of two contributions.
    multiplier : float, optional
        Another noise over sensitivity than the smallest; it is checked.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
    CalibrationError
        If the multiplier that is given is not proved to be enough, or no scale is.
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
