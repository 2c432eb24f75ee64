"""States that an estimator can continue, and incompatible ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca.estimators.adaptive import AdaptivePCA
from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from tests.estimators.suite import made, make, records, run


def test_a_state_with_noisy_counts_fits() -> None:
    estimator = made(AdaptivePCA, 5, 2, "auto", share=0.1)
    state = run(estimator, [records(estimator, 80)])
    assert np.array_equal(decode_fitting_state(estimator, encode_state(state)).counts, state.counts)


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [
        ("noisy-power", {"oversampling": 2}, {"oversampling": 1}),
        ("block", {"oversampling": 2}, {"oversampling": 1}),
        ("tensor-private", {"k": 5, "whitening": True}, {"k": 5, "whitening": False}),
        ("tensor-online", {"restarts": 10}, {"restarts": 11}),
        (
            "tadadpo",
            {"warm_records": 500},
            {"warm_records": 500, "warm_estimator": "analyze-gauss", "warm_options": {"first_batch": 64}},
        ),
    ],
)
def test_a_state_of_options_that_give_it_another_shape_does_not_fit(
    name: str, was: dict[str, Any], now: dict[str, Any]
) -> None:
    """Charges are computed from the options, and releases from the state."""
    before = make(name, **was)
    data = encode_state(run(before, [records(before, 80)]))
    decode_fitting_state(make(name, **was), data)
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode_fitting_state(make(name, **now), data)


@pytest.mark.parametrize("changes", [{"dim": 6}, {"k": 1}])
def test_a_state_of_another_shape_does_not_fit(changes: dict[str, int]) -> None:
    before = make("private-oja")
    data = encode_state(run(before, [records(before, 80)]))
    with pytest.raises(ValueError, match="basis of the state does not fit the estimator"):
        decode_fitting_state(make("private-oja", **changes), data)


def test_a_state_with_a_mean_does_not_fit_an_estimator_without_one() -> None:
    """Earlier versions estimated a mean for every estimator; records would lose their centre."""
    estimator = make("private-oja", "pairs")
    state = replace(run(estimator, [records(estimator, 80)]), mean=np.zeros(5), mean_weight=80.0)
    with pytest.raises(ValueError, match=r"earlier version estimated, .*private-oja does not estimate means"):
        decode_fitting_state(estimator, encode_state(state))


@pytest.mark.parametrize("data", [b"", b"PK", np.zeros(4).tobytes()])
def test_what_is_no_state_does_not_fit(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, EOFError)):
        decode_fitting_state(make("private-oja"), data)
