"""A model shows the accuracy that its estimator releases, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.estimators.base import Outcome, State, Subspace
from streaming_pca.estimators.registry import find
from tests.api.samplers import spiked

ACCURACY = {
    "explained_variance_error_",
    "explained_variance_ratio_",
    "total_variance_",
    "total_variance_error_",
    "angle_bound_",
}
SAID: dict[str, Any] = {
    "explained_variance": np.array([6.0, 2.0]),
    "explained_variance_error": np.array([0.5, 0.25]),
    "total_variance": 16.0,
    "total_variance_error": 1.5,
    "angle_bound": 0.1,
}
UNSAID = dict.fromkeys(("explained_variance_error", "total_variance", "total_variance_error", "angle_bound"))


@contextmanager
def saying(**message: Any) -> Iterator[None]:
    """Make releases report these values, independently of the records."""
    kind = find("private-oja")
    release = kind.release

    def with_accuracy(self: Any, state: State) -> Subspace:
        return replace(release(self, state), **message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "release", with_accuracy)
        yield


def pca() -> PrivatePCA:
    options = {"clip_radius": 1.0, "learning_rate": 5.0}
    return PrivatePCA(estimator="private-oja", centering="none", options=options)


def shown(model: PrivatePCA) -> set[str]:
    return ACCURACY & set(vars(model))


def test_a_model_shows_what_its_release_says() -> None:
    with saying(**SAID):
        model = pca().fit(spiked(100))
    assert model.explained_variance_.tolist() == [6.0, 2.0]
    assert model.explained_variance_error_.tolist() == [0.5, 0.25]
    assert (model.total_variance_, model.total_variance_error_) == (16.0, 1.5)
    assert model.explained_variance_ratio_.tolist() == [0.375, 0.125]
    assert model.angle_bound_ == 0.1


def test_a_model_shows_what_its_last_batch_came_to() -> None:
    for outcome in Outcome:
        with saying(outcome=outcome):
            model = pca().fit(spiked(100))
        assert type(model.outcome_) is str
        assert model.outcome_ == outcome.value
    assert not hasattr(pca().fit(spiked(100)), "outcome_")


def test_what_is_not_known_is_absent() -> None:
    with saying(**(SAID | UNSAID)):
        model = pca().fit(spiked(100))
    assert not shown(model)
    with pytest.raises(AttributeError, match="explained_variance_ratio_"):
        _ = model.explained_variance_ratio_
    with saying(**(SAID | UNSAID | {"angle_bound": 0.3})):
        assert shown(model.fit(spiked(100))) == {"angle_bound_"}


def test_what_the_last_batch_does_not_tell_is_not_left_from_the_one_before() -> None:
    model = pca()
    with saying(**SAID):
        model.partial_fit(spiked(100))
    assert shown(model) == ACCURACY
    with saying(**(SAID | UNSAID)):
        model.partial_fit(spiked(100, seed=1))
    assert not shown(model)


@pytest.mark.parametrize(
    ("total", "expected"), [(4.0, [0.75, 0.25]), (-3.0, [0.75, 0.25]), (80.0, [0.075, 0.025])]
)
def test_the_ratio_sums_to_at_most_1_whatever_the_noise(total: float, expected: list[float]) -> None:
    with saying(**(SAID | {"total_variance": total})):
        model = pca().fit(spiked(100))
    assert model.explained_variance_ratio_.tolist() == pytest.approx(expected)
    assert model.total_variance_ == total


def test_a_ratio_of_nothing_to_nothing_is_absent() -> None:
    with saying(**(SAID | {"explained_variance": np.zeros(2), "total_variance": -1.0})):
        model = pca().fit(spiked(100))
    assert shown(model) == ACCURACY - {"explained_variance_ratio_"}


def test_a_kept_model_says_the_same(tmp_path: Path) -> None:
    with saying(**SAID):
        model = pca().fit(spiked(100))
        model.save(tmp_path / "model.npz")
        again = PrivatePCA.load(tmp_path / "model.npz")
    assert shown(again) == ACCURACY
    for name in ACCURACY:
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))


def test_a_kept_state_whose_errors_do_not_fit_is_refused(tmp_path: Path) -> None:
    with saying(**SAID):
        pca().fit(spiked(100)).save(tmp_path / "model.npz")
    with (
        saying(**(SAID | {"explained_variance_error": np.zeros(3)})),
        pytest.raises(ValueError, match=r"model\.npz: explained_variance_error of the state's release"),
    ):
        PrivatePCA.load(tmp_path / "model.npz")


def test_the_accuracy_goes_with_the_model_that_a_failed_fit_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    with saying(**SAID):
        model = pca().fit(spiked(100))

    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(find("private-oja"), "update", fail)
    with pytest.raises(RuntimeError):
        model.fit(spiked(100))
    assert not shown(model)
    assert not hasattr(model, "components_")
