"""The judge of the kernels: exact integers and 60 digits, and inputs that are hard on floats."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import block_sum
from streaming_pca.kernels.lattice import LatticeSum
from streaming_pca.kernels.residuals import frobenius_norm

Floats = NDArray[np.float64]
# 60 digits, and exponents that no product of floats exceeds.
EXACT = Context(prec=60, Emin=-(10**6), Emax=10**6)
Exact = list[list[Decimal]]

magnitudes = st.integers(-1074, 1023)
mantissas = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0 - 2.0**-52, 1.0 + 2.0**-52]), st.floats(1.0, 2.0, exclude_max=True)
)


@st.composite
def entries(draw: st.DrawFn, size: int, top: int | None = None) -> list[float]:
    """Draw numbers near one magnitude, or spread over any; some are zero."""
    top = draw(magnitudes) if top is None else top
    spread = draw(st.sampled_from([0, 3, 30, 600, 2100]))
    out = []
    for _ in range(size):
        e = max(top - draw(st.integers(0, spread)), -1074)
        sign = draw(st.sampled_from([1.0, -1.0, 1.0, -1.0, 0.0]))
        out.append(sign * math.ldexp(draw(mantissas), e))
    return out


@st.composite
def factors(draw: st.DrawFn, max_rows: int = 3, max_dim: int = 5) -> Floats:
    r, d = draw(st.integers(1, max_rows)), draw(st.integers(1, max_dim))
    return np.array(draw(entries(r * d))).reshape(r, d)


@st.composite
def symmetric(draw: st.DrawFn, max_dim: int = 4) -> Floats:
    d = draw(st.integers(1, max_dim))
    a = np.array(draw(entries(d * d))).reshape(d, d)
    return np.triu(a) + np.triu(a, 1).T


@st.composite
def radii(draw: st.DrawFn, size: Decimal) -> float:
    """Draw a clip radius: anywhere, or within a few units in the last place of ``size``."""
    if draw(st.booleans()):
        e = draw(st.integers(-820, 820))
        return math.ldexp(draw(mantissas), e)
    near = float(min(max(size, Decimal("1e-250")), Decimal("1e250")))
    for _ in range(draw(st.integers(0, 4))):
        near = math.nextafter(near, draw(st.sampled_from([0.0, math.inf])))
    return min(max(near * draw(st.sampled_from([1.0, 1.0, 0.5, 2.0, 0.999])), 1e-250), 1e250)


def ints(values: Floats) -> list[list[int]]:
    """Return entries as Python integers; fail on a fraction, a NaN or an infinity."""
    assert np.isfinite(values).all()
    assert (values == np.rint(values)).all()
    return [[int(v) for v in row] for row in values]


def squared(values: list[list[int]]) -> int:
    return sum(v * v for row in values for v in row)


def product(z: list[list[int]], y: list[list[int]]) -> list[list[int]]:
    """Return z^T y."""
    return [
        [sum(z[i][j] * y[i][c] for i in range(len(z))) for c in range(len(y[0]))] for j in range(len(z[0]))
    ]


def decimals(values: Floats) -> list[list[Decimal]]:
    return [[Decimal(float(v)) for v in row] for row in values]


def norm(values: list[list[Decimal]]) -> Decimal:
    return sum((v * v for row in values for v in row), Decimal(0)).sqrt()


def clipped(values: list[list[Decimal]], per_unit: Decimal, radius: int) -> list[list[Decimal]]:
    """Clip exact values in lattice units to a Frobenius norm."""
    size = norm(values)
    scale = per_unit if size * per_unit <= radius else Decimal(radius) / size
    return [[v * scale for v in row] for row in values]


def exact_product(x: Floats, basis: Floats, kind: RecordKind) -> Exact:
    """Return A Q in 60 digits, from rows F (A = F^T F) or from A itself."""
    rows, q = decimals(x), decimals(basis)
    seen = [
        [sum((u * v for u, v in zip(r, c, strict=True)), Decimal(0)) for c in zip(*q, strict=True)]
        for r in rows
    ]
    if kind is RecordKind.MATRIX:
        return seen
    return [
        [sum((rows[i][j] * seen[i][c] for i in range(len(rows))), Decimal(0)) for c in range(len(q[0]))]
        for j in range(len(q))
    ]


def minus(a: Exact, b: Floats) -> Exact:
    return [[u - v for u, v in zip(r, s, strict=True)] for r, s in zip(a, decimals(b), strict=True)]


def squared_total(total: NDArray[np.int64]) -> int:
    """Return the squared norm of up to 2**20 integers."""
    flat = np.ravel(total)
    if np.abs(flat).max(initial=0) >= 2**41:
        return sum(int(v) ** 2 for v in flat)
    high = flat >> 20
    low = flat - (high << 20)
    # Each term is a sum with at most 2**42 per number.
    terms = ((high, high, 40), (high, low, 21), (low, low, 0))
    return sum(int(np.dot(a, b)) << shift for a, b, shift in terms)


def distance(a: list[list[int]], b: list[list[Decimal]]) -> Decimal:
    return norm([[Decimal(x) - y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)])


def one(rows: Floats) -> NDArray[np.int64]:
    return np.array([0, len(rows)], dtype=np.int64)


def basis_for(d: int, seed: int) -> Floats:
    """Return random columns, or coordinate ones."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, d + 1))
    if seed % 3 == 0:
        return np.eye(d)[:, rng.permutation(d)[:k]]
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


@st.composite
def centres(draw: st.DrawFn, product: Exact) -> Floats:
    """Draw a centre anywhere, or so near a record's product that most digits cancel."""
    d, k = len(product), len(product[0])
    if draw(st.booleans()) and norm(product) < Decimal("1e300"):
        near = np.array([[float(v) for v in row] for row in product])
        return near * (1 + draw(st.sampled_from([0.0, 1e-15, 1e-9, -1e-6, 1e-3])))
    return np.array(draw(entries(d * k))).reshape(d, k)


@st.composite
def radius_for(draw: st.DrawFn, centre: Floats, ratios: list[float]) -> float:
    scale = frobenius_norm(centre) * draw(st.sampled_from(ratios))
    return min(max(scale, 1e-250), 1e250)


def the_sum(
    x: Floats | None, kind: RecordKind, basis: Floats, radius: float, centre: Floats | None = None
) -> LatticeSum:
    p = Preprocessing(dim=len(basis), kind=kind, centering="none")
    return block_sum(ArrayBatch.of_records([x], len(basis), kind), p, basis, radius, centre)
