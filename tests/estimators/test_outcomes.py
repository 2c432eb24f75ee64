"""Estimators that may learn nothing from a batch: batches that are too short, and records of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.state import state_values
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import (
    EVERY_CASE,
    FixedSampler,
    agreeing,
    check_subspace,
    make,
    pack,
    records,
    start,
    watched,
)
from tests.privacy.noise import SeededSampler

OPTIONS: dict[str, dict[str, Any]] = {
    "adadpo": {"batch_size": 6000},
    "adaptive-power": {"batch_size": 6000, "failure_probability": 0.01},
    "dp-pca": {"batch_size": 6000},
    "k-dp-ojas": {"batch_size": 200},
    "k-dp-pca": {"batch_size": 6000},
    "noisy-power": {},
    "output-perturbation": {"clip_radius": 30.0},
}
DRAWS = {"noisy-power", "output-perturbation"}
"""Estimators that draw noise for every batch."""
TOLD = {"batch", "records", "outcome", "noise", "component", "step", "gap", "scale", "sensitivity", "centred"}
TOLD |= {"components"}
"""What a batch changes that teaches nothing; the last are those of the release before it."""


@pytest.mark.parametrize(("name", "how"), [case for case in EVERY_CASE if case[0] in OPTIONS], ids=str)
def test_a_batch_that_is_too_short_teaches_nothing_and_says_so(name: str, how: Any) -> None:
    """What was learnt before stays, to the bit."""
    estimator = make(name, how, epsilon=8.0, delta=1e-3, **OPTIONS[name])
    states = [start(estimator)]
    with replace_noise_sampler(SeededSampler()):
        states.append(estimator.update(states[0], pack(estimator, agreeing(how, 6000))))
    assert states[1].outcome == "learnt"
    for state in states:
        plan, before = estimator.plan(state), state_values(state)
        for count in (0, plan.granularity, plan.least - plan.granularity):
            with replace_noise_sampler(SeededSampler()), watched() as seen:
                after = estimator.update(state, pack(estimator, records(estimator, count)))
            assert after.outcome == estimator.release(after).outcome == "too-few-records"
            assert (after.batch, after.records) == (state.batch + 1, state.records + count)
            assert bool(seen) == (name in DRAWS)
            assert estimator.plan(after).charge == plan.charge
            values = state_values(after).items()
            changed = {key for key, value in values if not np.array_equal(value, before[key])}
            assert changed <= (TOLD if name != "noisy-power" else {*TOLD, "basis", "image"})
            if state.batch:
                one, other = (estimator.release(s).components for s in (state, after))
                assert np.array_equal(one, other)
        with replace_noise_sampler(SeededSampler()), watched() as seen:
            estimator.update(state, pack(estimator, records(estimator, plan.least)))
        assert seen


CLIPS = (1e-70, 1.0, 1e70)
ANY: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("adaptive-power", {"epsilon": 20.0}, ("learnt",)),
    ("k-dp-ojas", {"batch_size": 2000}, ("learnt",)),
    ("k-dp-pca", {"epsilon": 4.0, "delta": 1e-3}, ("learnt", "no-scale")),
    *(("noisy-power", {"clip_l2": clip}, ("learnt", "no-gap")) for clip in CLIPS),
    *(("noisy-power", {"clip_l2": clip, "clip_l1": clip}, ("learnt", "no-gap")) for clip in CLIPS),
    *(("output-perturbation", {"clip_radius": clip}, ("learnt", "no-gap")) for clip in CLIPS),
]


@pytest.mark.parametrize(("name", "options", "outcomes"), ANY, ids=str)
@pytest.mark.parametrize("how", ["none", "pairs", (0.5,) * 5, RecordKind.MATRIX], ids=str)
def test_degenerate_records_go_through_quietly(
    name: str, options: dict[str, Any], outcomes: tuple[str, ...], how: Any
) -> None:
    if "clip_l1" in options and how is RecordKind.MATRIX:
        with pytest.raises(ValueError, match="clip_l1"):
            make(name, how, **options)
        return
    estimator = make(name, how, **options)
    items = agreeing(how, 2000)
    odd = [np.full_like(items[0], value) for value in (1e300, 1e-300, 0.0)]
    batches = [[size * x for x in items] for size in (0.0, 1e-300, 1e76, 2e307)]
    batches += [[None] * 2000, items[:1] * 2000, [*items[1:], 1e150 * items[0]], [*odd, None, items[0]] * 400]
    unreadable = pack(estimator, items)
    unreadable.rows[:5] = np.nan
    for batch in (*(pack(estimator, batch) for batch in batches), unreadable):
        for sampler in (SeededSampler(), FixedSampler()):
            state = start(estimator)
            with replace_noise_sampler(sampler):
                for _ in range(3):
                    state = estimator.update(state, batch)
                    assert state.outcome in outcomes
                    release = estimator.release(state)
                    check_subspace(estimator, release)
                    assert np.isfinite(release.explained_variance).all()
