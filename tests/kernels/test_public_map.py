"""Rows that kernels transform while reading have the same bits as ``Preprocessing.apply``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.clipped_sums import block_residual_norms, block_sum
from streaming_pca.estimators.power.noisy_power import BoundedRecords
from streaming_pca.kernels.reading import PublicMap, map_pair, map_row
from tests.kernels.judge import entries

D = 4
CASES: dict[str, dict[str, Any]] = {
    "bounds": {"centering": "none", "bounds": (-2.0, (0.5, 1e3, 1e300, 7.0))},
    "shift": {"centering": (0.1, -1e10, 1e-300, -1.7e308)},
    "scale": {"centering": "none", "scale": (0.1, 1e300, 1e-300, 3.0)},
    "mean": {"centering": "auto", "centre": (1.0, 2.0, 3.0, 4.0), "bounds": (-5.0, 5.0)},
    "all": {"centering": (0.3, 0.2, 0.1, 0.0), "bounds": (-1e5, 1e5), "scale": 1 / 3},
    "pairs": {"centering": "pairs"},
    "pairs and all": {"centering": "pairs", "bounds": (-1e300, 1e300), "scale": (7.0, 1e-3, 1e9, 1e200)},
}


class AsApplied(Preprocessing):
    """Make kernels read the result of ``apply``."""

    def public_map(self) -> PublicMap | None:
        return None


class TooFew(AsApplied):
    """Inherit both methods."""


def test_whoever_applies_more_than_a_map_says_so() -> None:
    """Otherwise some kernels would read other records than the rest."""
    with pytest.raises(TypeError, match="public_map"):

        class Doubled(Preprocessing):
            def apply(self, batch: ArrayBatch) -> ArrayBatch:
                return ArrayBatch(2 * batch.rows, batch.starts, batch.kind)

    with pytest.raises(TypeError, match="public_map"):

        class Halved(BoundedRecords):
            def apply(self, batch: ArrayBatch) -> ArrayBatch:
                return ArrayBatch(batch.rows / 2, batch.starts, batch.kind)

    waiting, seen = [Preprocessing], []
    while waiting:
        kind = waiting.pop()
        # The classes refused above may not have been collected yet.
        waiting += [c for c in kind.__subclasses__() if "<locals>" not in c.__qualname__]
        seen.append(kind)
        # The first class in the resolution order that defines either method defines public_map too.
        line = [c for c in kind.__mro__ if {"apply", "public_map"} & set(vars(c))]
        assert "public_map" in vars(line[0])
    assert {BoundedRecords, TooFew} <= set(seen)


def batch_of(records: list[Any], p: Preprocessing) -> ArrayBatch:
    return ArrayBatch.of_records(records, D, p.kind)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None)
@given(data=st.data())
def test_rows_are_mapped_to_the_bits_that_apply_makes(name: str, data: st.DataObject) -> None:
    p = Preprocessing(dim=D, **CASES[name])
    how = p.public_map()
    assert how is not None
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    with np.errstate(over="ignore", under="ignore"):
        rows = np.array(data.draw(entries(2 * D))).reshape(2, D).astype(kind)
    rows = np.where(np.isfinite(rows), rows, kind(1))
    records = [rows[:1], rows[1:]] if how.pairs else [rows]
    applied = p.apply(batch_of(records, p))
    out = np.empty((1 if how.pairs else 2, D))
    if how.pairs:
        map_pair(rows[0], rows[1], how, out[0])
    else:
        map_row(rows[0], how, out[0])
        map_row(rows[1], how, out[1])
    if len(applied.rows):
        assert np.array_equal(out, applied.rows)
    else:
        assert not np.isfinite(out).all()


def stream(p: Preprocessing, kind: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    out: list[Any] = []
    for i in range(400):
        r = 1 if p.centering == "pairs" and i % 7 else int(rng.integers(0, 4))
        x = rng.standard_normal((r, D)) * 10.0 ** rng.uniform(-3, 3)
        if i % 50 == 3 and r and kind is np.float64:
            x[0, 1] = 1.7e308
        out.append(x.astype(np.float32).astype(kind) if np.abs(x).max(initial=0) < 1e38 else x)
    return out


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_sums_and_sizes_are_those_of_the_applied_rows(name: str, kind: Any) -> None:
    """This includes overflow, which makes a record null."""
    p, applied = (c(dim=D, **CASES[name]) for c in (Preprocessing, AsApplied))
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((D, 2)))[0]
    batch = batch_of(stream(p, kind), p)
    lengths = value_array(block_residual_norms(batch, p, basis, np.zeros((D, 2))))
    usual = lengths[(lengths > 0) & (lengths < 1e200)]
    length = float(np.median(usual)) if len(usual) else 1.0
    for centre in (None, length * basis, length * rng.standard_normal((D, 2))):
        for radius in (length / 3, 100 * length):
            a, b = (block_sum(batch, x, basis, radius, centre) for x in (p, applied))
            assert np.array_equal(a.total, b.total)
            assert a.clipped == b.clipped
        if centre is not None:
            found, wanted = (value_array(block_residual_norms(batch, x, basis, centre)) for x in (p, applied))
            assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("centre", [None, np.eye(D)[:, :2]])
def test_an_odd_number_of_records_makes_no_pairs(centre: Any) -> None:
    p = Preprocessing(dim=D, centering="pairs")
    odd = ArrayBatch.of_vectors(np.ones((5, D)))
    with pytest.raises(ValueError, match="even"):
        block_sum(odd, p, np.eye(D)[:, :2], 100.0, centre)
    with pytest.raises(ValueError, match="even"):
        value_array(block_residual_norms(odd, p, np.eye(D)[:, :2], np.zeros((D, 2))))


@pytest.mark.parametrize("kind", ["factor", "matrix"])
@pytest.mark.parametrize("width", [1, D - 1, D + 1, 40])
def test_rows_and_bases_of_another_width_are_refused(kind: str, width: int) -> None:
    """Kernels index memory by these numbers without checks."""
    p = Preprocessing(dim=D, kind=kind, centering="none")
    rows: NDArray[np.float64] = np.ones((40, width))
    batch = ArrayBatch(rows, np.arange(0, 41, width if kind == "matrix" else 1), p.kind)
    right = ArrayBatch(np.ones((D, D)), np.array([0, D]), p.kind)
    basis, other = np.eye(D)[:, :1], np.eye(width)[:, :1]
    for about in (None, np.ones):
        with pytest.raises(ValueError, match="features"):
            block_sum(batch, p, basis, 30.0, about and about(basis.shape))
        with pytest.raises(ValueError, match="features"):
            block_sum(right, p, other, 30.0, about and about(other.shape))
    with pytest.raises(ValueError, match="features"):
        value_array(block_residual_norms(batch, p, basis, 0 * basis))
    beyond = ArrayBatch(np.ones((D, D)), np.array([0, 2 * D]), p.kind)
    with pytest.raises(ValueError, match="rows"):
        block_sum(beyond, p, basis, 30.0)
