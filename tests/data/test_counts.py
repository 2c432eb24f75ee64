"""Releases report noisy counts of their batch's null and clipped records, with errors."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from streaming_pca.cli.plan import counts_text
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.release import COUNTS, Release
from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.batch_result import compute_batch
from streaming_pca.service.input.source import OffsetBatch
from tests.data.test_codec import accurate

COUNTED: dict[str, Any] = {
    "batch_records": 2200,
    "null_records": 270.0,
    "null_records_error": 10.0,
    "clipped_records": -3.0,
    "clipped_records_error": 10.0,
}


def counted(**changes: Any) -> dict[str, Any]:
    """Return a release with counts, as plain data."""
    return accurate(version=6, centering="none") | COUNTED | changes


def test_counts_round_trip_and_are_left_out_where_there_are_none() -> None:
    release = Release(**counted())
    assert Release.from_bytes(release.to_bytes()) == release
    assert release.counts == COUNTED | {"clipped_of": 2200}
    assert release.least_null_share == (270 - 50) / 2200
    without = Release(**counted(**dict.fromkeys(COUNTS)))
    assert not json.loads(without.to_bytes()).keys() & set(COUNTS)
    assert (without.counts, without.least_null_share) == ({}, 0.0)
    assert Release(**counted(null_records=-40.0)).least_null_share == 0
    # Where each row is a record, unreadable messages contain none.
    assert Release(**counted(batch_records=0)).least_null_share == 1
    # Noise alone could make it 220 of 100 records, or hide all records of a small batch.
    assert Release(**counted(batch_records=100)).least_null_share == 1
    assert Release(**counted(batch_records=50)).least_null_share == 0


def test_clipped_pairs_are_a_share_of_the_pairs() -> None:
    """A pair is clipped once: if all are clipped, their number is half the number of records."""
    pairs = Release(**counted(centering="pairs", clipped_records=1100.0))
    assert pairs.counts["clipped_of"] == 1100
    assert counts_text(pairs.counts) == "null 12.3% ± 0.45%, clipped 100.0% ± 0.91%"
    # A single record does not form a pair.
    assert "clipped 0.0%" in counts_text(Release(**counted(centering="pairs", batch_records=1)).counts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 5, "centering": None}, "needs version 6 or later"),
        ({"batch_records": None}, "some of"),
        ({"clipped_records": None}, "some of"),
        ({"null_records": math.nan}, "finite"),
        ({"null_records_error": -1.0}, "greater than or equal to 0"),
        ({"batch_records": -1}, "greater than or equal to 0"),
    ],
    ids=str,
)
def test_counts_that_cannot_be_are_no_release(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Release(**counted(**changes))


def test_the_standard_error_is_that_of_the_noise() -> None:
    diagnostics = Diagnostics(PrivacyParameters(epsilon=1.0, delta=1e-6), 0.5)
    scale = 2 / 0.5
    k = np.arange(-2000, 2001)
    weights = np.exp(-abs(k) / scale)
    exact = math.sqrt((k**2 * weights).sum() / weights.sum())
    assert math.isclose(diagnostics.standard_error, exact, rel_tol=1e-9)
    drawn = np.array([diagnostics.counts(7, 7) for _ in range(4000)]) - 7
    # Eight thousand draws: their deviation is within 8% of the true one, except with probability below 1e-6.
    assert abs(drawn.std() / diagnostics.standard_error - 1) < 0.08


@pytest.mark.parametrize("share", [0.02, 0.0])
def test_a_batch_that_was_answered_tells_its_noisy_counts_where_they_are_paid_for(share: float) -> None:
    stream = StreamSettings(
        name="s",
        input="in",
        dim=3,
        rank=1,
        epsilon=1e4,
        delta=1e-6,
        diagnostics_share=share,
        options={"n_records": 400, "n_batches": 1},
    )
    x = np.random.default_rng(0).standard_normal((400, 3))
    x[:120] = np.nan
    estimator = stream.build_estimator()
    state = estimator.init(utility_generator(0))
    cut = OffsetBatch(ArrayBatch.of_vectors(x), (), {}, {})
    result = compute_batch(stream, None, state, cut, 1)
    release = Release.from_bytes(result.release)
    if not share:
        assert (release.counts, estimator.diagnostics) == ({}, None)
        return
    # The counts are part of the state: nothing is drawn for the release.
    assert [release.null_records, release.clipped_records] == result.state.counts.tolist()
    assert (release.batch_records, release.null_records) == (400, 120)  # at epsilon 200 there is hardly noise
    assert estimator.diagnostics is not None
    assert release.null_records_error == estimator.diagnostics.standard_error
