"""Private tensor power method on a given tensor: entry-level privacy, no stream.

[WangAnandkumar2016, Alg. 3] as printed, with two other calibrations of its noise.

Privacy
-------
Adjacency (Definition 4.2): symmetric tensors T, T' with T' - T = c S, |c| <= 1, where S is the sum of
e_i (x) e_j (x) e_k over the six orders of i, j, k: one entry, with the entries that equal it by symmetry.
This unit does not protect a record of a stream;
:class:`~streaming_pca.estimators.tensor.private.PrivateTensorPower` does.

Sensitivity: 6 |u|_inf^2 for T(I, u, u), as printed, and 6 |u|_inf^3 for T(u, u, u). For L candidates as one
answer: 6 sqrt(max_i sum_l u_li^4) and 6 sqrt(max_i sum_l u_li^6). Products are exact integers on a lattice.
An answer with noise multiplier z is (1/z)-GDP, and K of them are sqrt(K)/z-GDP; the printed composition
needs far more noise.

Proof: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.tensors import (
    deflated,
    enough_restarts,
    enough_steps,
    normalised,
    random_starts,
)
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma, textbook_multiplier
from streaming_pca.privacy.mechanisms import gaussian_on_vector
from streaming_pca.privacy.parameters import Charge, PrivacyParameters

__all__ = ["GivenTensor", "PrivateTensor", "printed_multiplier", "private_tensor_power"]

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
Calibration = Literal["joint", "single", "paper"]

_BITS = 12
"""Bits of the candidates, which are multiples of 2**-12."""
_FINEST = 2**20
"""Largest number of lattice units for a change of 1."""
_LARGEST_DIM = 1024
_MOST_RESTARTS = 2**14


def printed_multiplier(epsilon: float, delta: float, answers: int) -> float:
    """Return the printed noise multiplier of each of ``answers`` = K (epsilon' <= 1)."""
    of_each = epsilon / math.sqrt(answers * (4 + math.log(2 / delta)))
    return textbook_multiplier(of_each, delta / (2 * answers))


@dataclass(frozen=True)
class PrivateTensor:
    """Release of :func:`private_tensor_power`.

    Attributes
    ----------
    weights : (k,) float64
        Weights in order of discovery.
    components : (k, d) float64
        Unit rows.
    charge : Charge
        Charge for one entry of the tensor.
    multiplier : float
        Noise of each answer divided by its sensitivity.
    answers : int
    """

    weights: Matrix
    components: Matrix
    charge: Charge
    multiplier: float
    answers: int


class GivenTensor:
    """Symmetric tensor on the lattice, and its exact products.

    Parameters
    ----------
    tensor : (d, d, d) float64, symmetric
        d is at most 1024.
    entry_bound : float
        Public bound; larger entries are clipped.

    Attributes
    ----------
    per_unit : int
        N: number of lattice units for a change of 1.

    Raises
    ------
    ValueError
        If the tensor is not finite and symmetric, or the bound leaves no lattice.
    """

    def __init__(self, tensor: Matrix, entry_bound: float) -> None:
        if tensor.ndim != 3 or len(set(tensor.shape)) != 1:
            raise ValueError(f"expected a tensor of shape (d, d, d), not {tensor.shape}")
        self.dim = len(tensor)
        if not 1 <= self.dim <= _LARGEST_DIM:
            raise ValueError(f"the tensor must have between 1 and {_LARGEST_DIM} features")
        swaps = ((0, 2, 1), (1, 0, 2))
        if not np.isfinite(tensor).all() or any(
            not np.array_equal(tensor, tensor.transpose(swap)) for swap in swaps
        ):
            raise ValueError("the tensor must be finite and symmetric: see dense_tensors.symmetrised")
        if not (math.isfinite(entry_bound) and entry_bound > 0):
            raise ValueError("entry_bound must be a finite number above 0")
        # |q|_1 <= sqrt(d) |q|, and 1.01 covers the rounding of q.
        norm = 1.01 * 2**_BITS
        room = min(2.0**53 / (math.sqrt(self.dim) * norm), 2.0**61 / (self.dim * norm**2))
        if entry_bound > room / 4:
            raise ValueError(f"entry_bound must be at most {room / 4:.3g} for {self.dim} features")
        self.per_unit = min(2 ** math.floor(math.log2(room / entry_bound)), _FINEST)
        clipped = np.clip(tensor, -entry_bound, entry_bound)
        self._flat = np.rint(clipped * self.per_unit).reshape(-1, self.dim)

    def products(self, q: Integers) -> Integers:
        """Compute T(I, q, q) of integer candidates (d, L) exactly, in lattice units."""
        once = (self._flat @ q.astype(np.float64)).astype(np.int64).reshape(self.dim, self.dim, -1)
        return np.asarray(np.einsum("ijl,jl->il", once, q), dtype=np.int64)

    def values(self, q: Integers) -> Integers:
        """Compute T(q, q, q) of each candidate, floored to multiples of 2**24 lattice units."""
        columns = zip(q.T.tolist(), self.products(q).T.tolist(), strict=True)
        exact = [sum(a * b for a, b in zip(*pair, strict=True)) for pair in columns]
        return np.array([value >> 2 * _BITS for value in exact], dtype=np.int64)

    def product_sensitivity(self, q: Integers) -> float:
        """Return the L2 sensitivity of :meth:`products`, in lattice units."""
        return _rounded_up(6 * self.per_unit * math.sqrt(_largest_sum(q, 4)))

    def value_sensitivity(self, q: Integers) -> float:
        """Return the L2 sensitivity of :meth:`values`, in its units."""
        moved = 6 * self.per_unit * math.sqrt(_largest_sum(q, 6)) / 4**_BITS
        return _rounded_up(moved + math.sqrt(q.shape[1]))


def _largest_sum(q: Integers, power: int) -> float:
    """Return max_i sum_l q_li^power in float64, with relative error below 1e-12."""
    return float((np.abs(q).astype(np.float64) ** power).sum(axis=1).max())


def _rounded_up(value: float) -> float:
    return value * (1 + 1e-11)


@dataclass(frozen=True)
class _Answers:
    """Noisy answers about a tensor, all with the same noise multiplier.

    If ``together``, the candidates' products are one answer; otherwise each candidate has its own.
    """

    tensor: GivenTensor
    privacy: PrivacyParameters
    count: int
    together: bool
    multiplier: float | None

    def _sigma(self, sensitivity: float) -> float:
        p = self.privacy
        return lattice_sigma(p.epsilon, p.delta, sensitivity, self.multiplier, self.count)

    def products(self, q: Integers) -> Matrix:
        """Return noisy T(I, u, u) for u = 2**-12 q."""
        exact = self.tensor.products(q)
        noisy = np.empty(exact.shape)
        for columns in self._parts(q):
            sigma = self._sigma(self.tensor.product_sensitivity(q[:, columns]))
            noisy[:, columns] = gaussian_on_vector(np.ascontiguousarray(exact[:, columns]), sigma)
        return np.asarray(noisy / (4.0**_BITS * self.tensor.per_unit))

    def values(self, q: Integers) -> Matrix:
        """Return noisy T(u, u, u)."""
        exact = self.tensor.values(q)
        noisy = np.empty(exact.shape)
        for columns in self._parts(q):
            sigma = self._sigma(self.tensor.value_sensitivity(q[:, columns]))
            noisy[columns] = gaussian_on_vector(exact[columns], sigma)
        return np.asarray(noisy / (2.0**_BITS * self.tensor.per_unit))

    def _parts(self, q: Integers) -> list[slice]:
        restarts = q.shape[1]
        return [slice(0, restarts)] if self.together else [slice(i, i + 1) for i in range(restarts)]


def private_tensor_power(
    tensor: Matrix,
    k: int,
    privacy: PrivacyParameters,
    rng: np.random.Generator,
    *,
    restarts: int | None = None,
    steps: int | None = None,
    calibration: Calibration = "joint",
    entry_bound: float = 1024.0,
) -> PrivateTensor:
    """Run Algorithm 3 on a given tensor.

    ===============  =========================================================
    step 2           :func:`printed_multiplier`, with ``calibration = "paper"``
    step 4           ``random_starts``
    steps 6, 7       ``_Answers.products``
    step 8           ``normalised``
    steps 10, 11     ``_Answers.values``, ``deflated``
    ===============  =========================================================

    Parameters
    ----------
    tensor : (d, d, d) float64, symmetric
    k : int
        Components to find.
    privacy : PrivacyParameters
        Privacy of one entry, as in Definition 4.2.
    rng : Generator
        Utility randomness for the starts.
    restarts, steps : int, optional
        L and R; by default 2 k log k, at least 10, and 2 log2(d) + 6.
    calibration : {"joint", "single", "paper"}
        "paper": the printed noise for each of k L (R + 1) answers. "single": the noise of Gaussian
        composition, for each of them. "joint": the L candidates of a step form one of k (R + 1) answers.
    entry_bound : float
        Public bound; larger entries are clipped.

    Returns
    -------
    PrivateTensor

    Raises
    ------
    ValueError
        If the tensor is not finite and symmetric, or a parameter is out of its range.
    CalibrationError
        If the lattice is too narrow for (epsilon, delta).

    Notes
    -----
    The release consists of all noisy products and values; everything else follows from them and from ``rng``.
    Each is (1/z)-GDP with noise multiplier z. Together c of them, each chosen after the earlier answers, are
    sqrt(c)/z-GDP, hence (epsilon, delta)-private
    (:func:`~streaming_pca.privacy.calibration.multipliers.lattice_sigma`).
    """
    given = GivenTensor(tensor, entry_bound)
    restarts = enough_restarts(k) if restarts is None else restarts
    steps = enough_steps(given.dim) if steps is None else steps
    if not 1 <= k <= given.dim:
        raise ValueError(f"k must lie between 1 and {given.dim}, not {k}")
    if not (1 <= restarts <= _MOST_RESTARTS and steps >= 1):
        raise ValueError(f"restarts must lie between 1 and {_MOST_RESTARTS}, and steps be at least 1")
    if privacy.contributions != 1:
        raise ValueError("a tensor's entry has one contribution")
    together = calibration == "joint"
    count = k * (steps + 1) * (1 if together else restarts)
    printed = printed_multiplier(privacy.epsilon, privacy.delta, count) if calibration == "paper" else None
    big = float(2**40)
    multiplier = lattice_sigma(privacy.epsilon, privacy.delta, big, printed, contributions=count) / big
    multiplier *= 1 + 2.0**-40
    answers = _Answers(given, privacy, count, together, multiplier)
    weights, components = np.zeros(k), np.zeros((k, given.dim))
    for i in range(k):
        found = (weights[:i], components[:i])
        q = _rounded(random_starts(rng, given.dim, restarts))
        for _ in range(steps):
            u = np.ldexp(q, -_BITS)
            q = _rounded(normalised(deflated(answers.products(q), u, *found), u))
        u = np.ldexp(q, -_BITS)
        norms = np.linalg.norm(u, axis=0)
        values = answers.values(q) - (weights[:i, None] * (components[:i] @ u) ** 3).sum(axis=0)
        values /= norms**3
        best = int(np.argmax(values))
        weights[i], components[i] = values[best], u[:, best] / norms[best]
    charge = privacy.charge(count * gaussian_rho(multiplier))
    return PrivateTensor(weights, components, charge, multiplier, count)


def _rounded(columns: Matrix) -> Integers:
    """Round unit columns to units of 2**-12."""
    return np.asarray(np.rint(np.ldexp(columns, _BITS)), dtype=np.int64)
