"""Synthetic families have the spectra and tails that their names state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy.synthetic_families import FAMILIES


def draw(name: str, n: int | None = None, seed: int = 0) -> np.ndarray:
    family = FAMILIES[name]
    return (family if n is None else replace(family, n=n)).draw(seed)


def spectrum(records: np.ndarray) -> np.ndarray:
    wide = records.astype(np.float64)
    return np.linalg.eigvalsh(wide.T @ wide / len(wide))[::-1]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "spike-1000-40k"])
def test_a_family_has_its_size_is_centred_and_named_by_its_seed(name: str) -> None:
    records = draw(name, 2_000)
    assert records.shape == (2_000, FAMILIES[name].dim)
    assert records.dtype == np.float32
    assert np.isfinite(records).all()
    assert np.abs(records.mean(axis=0, dtype=np.float64)).max() < 1e-4
    assert np.array_equal(records, draw(name, 2_000))
    assert not np.array_equal(records, draw(name, 2_000, seed=1))


def test_spectra_are_as_stated() -> None:
    assert spectrum(draw("decay.8-60-50k"))[:8] == pytest.approx(0.8 ** np.arange(8), rel=0.05)
    assert spectrum(draw("spike-10-2k"))[0] == pytest.approx(8.0, rel=0.15)
    low_rank = spectrum(draw("rank10-100-20k"))
    assert low_rank[:10] == pytest.approx(0.8 ** np.arange(10), rel=0.06)
    assert np.abs(low_rank[10:]).max() < 1e-6
    assert spectrum(draw("spike-1000-40k", 3_000))[:2] == pytest.approx([60.0, 40.0], rel=0.15)


def test_one_record_in_a_hundred_is_an_outlier_of_100_root_mean_square_norms() -> None:
    records = draw("contam-iso-40-50k")
    norms = np.linalg.norm(records, axis=1)
    large = norms > 50 * np.sqrt(5.0)
    assert large.mean() == pytest.approx(0.01, rel=0.15)
    assert norms[large] == pytest.approx(100 * np.sqrt(5.0), rel=0.02)
    clean = FAMILIES["contam-iso-40-50k"].clean(records)
    assert np.array_equal(clean, records[~large])
    assert spectrum(clean)[:4] == pytest.approx(0.8 ** np.arange(4), rel=0.05)


def test_tails_are_heavy_where_they_should_be() -> None:
    for name, heavy in (("t3-40-50k", True), ("decay.8-60-50k", False)):
        norms = np.linalg.norm(draw(name), axis=1)
        assert (norms.max() > 10 * np.median(norms)) == heavy


def test_counts_have_eight_topics() -> None:
    values = spectrum(draw("poisson-200-30k", 10_000))
    assert values[7] > 5 * values[8]
