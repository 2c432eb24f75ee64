"""PrivatePCA's charges, when it makes them, and the independence of noise from seeds."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from streaming_pca import PrivatePCA
from streaming_pca.api import DEFAULT_ESTIMATOR
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.registry import find
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import CASES, RepeatingSampler, rows, spiked, watched
from tests.data.refusals import refuses

every_case = pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)


@every_case
def test_every_record_is_charged_the_promise_once(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(**parameters, epsilon=0.3, delta=1e-5).fit(spiked(100))
    for seed in range(3):
        pca.partial_fit(spiked(40, seed=seed))
    assert isinstance(pca.privacy_spent_, Charge)
    assert (pca.privacy_spent_.epsilon, pca.privacy_spent_.delta) == (Fraction(3, 10), Fraction(1, 10**5))
    assert pca.n_records_seen_ == 220


def test_without_privacy_every_record_is_charged_infinity(tmp_path: Path) -> None:
    pca = PrivatePCA(estimator="oja", private=False, centering="none").fit(spiked(100))
    assert pca.privacy_spent_ == Charge.unbounded()
    pca.save(tmp_path / "model.npz")
    copy = PrivatePCA.load(tmp_path / "model.npz")
    assert (copy.private, copy.privacy_spent_) == (False, Charge.unbounded())
    # Every model must declare again that it is not private.
    refuses("'oja' is not private", copy.set_params(private=True).partial_fit, spiked(50))


@every_case
def test_a_batch_is_charged_first(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pca = PrivatePCA(**parameters)
    spent = []

    def fail(self: Any, state: Any, batch: ArrayBatch) -> Any:
        spent.append(pca.privacy_spent_.epsilon)
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(find(parameters["estimator"]), "update", fail)
        with pytest.raises(RuntimeError):
            pca.fit(spiked(100))
        with pytest.raises(RuntimeError):
            pca.partial_fit(spiked(100))
    # The second batch may contain the first one's records again.
    assert spent == [1, 2]
    assert pca.privacy_spent_.epsilon == 2
    refuses("not fitted", pca.transform, spiked(100))


def test_a_batch_that_fails_is_spent_and_the_model_stays() -> None:
    pca = PrivatePCA(bounds=(-2, 2)).partial_fit(spiked(100))
    before = pca.components_

    class Broken(RepeatingSampler):
        def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
            raise OSError

    pca.privacy_spent_ = Charge.nothing()
    with replace_noise_sampler(Broken()), pytest.raises(OSError):  # noqa: PT011
        pca.partial_fit(spiked(100))
    assert pca.privacy_spent_.epsilon == 1
    assert pca.n_records_seen_ == 100
    assert pca.components_ is before


def test_a_fit_that_fails_after_it_was_charged_leaves_no_model() -> None:
    class BreaksLater(RepeatingSampler):
        calls = 0

        def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
            self.calls += 1
            if self.calls > 2:
                raise OSError
            return super().rounded_gaussian(total, sigma)

    pca = PrivatePCA(epsilon=0.5, options={"n_batches": 4, "growth": 1}).fit(spiked(100))
    with replace_noise_sampler(BreaksLater()), pytest.raises(OSError):  # noqa: PT011
        pca.set_params(epsilon=0.25).fit(spiked(100, seed=1))
    assert pca.privacy_spent_.epsilon == Fraction(1, 4)
    for name in ("components_", "explained_variance_", "mean_", "n_records_seen_"):
        assert not hasattr(pca, name)
    with pytest.raises(NotFittedError):
        pca.transform(spiked(100))


@every_case
def test_what_is_refused_costs_nothing(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(**parameters)
    refuses("NaN", pca.partial_fit, np.full((10, 8), np.nan))
    assert not hasattr(pca, "privacy_spent_")
    pca.fit(spiked(100))
    pca.privacy_spent_ = Charge.nothing()
    for bad, words in ((np.full((10, 8), np.inf), "infinity"), (spiked(10, d=7), "7 features")):
        refuses(words, pca.partial_fit, bad)
    pca.epsilon = 2.0
    refuses("epsilon changed since the model was started", pca.partial_fit, spiked(10))
    assert pca.privacy_spent_ == Charge.nothing()
    assert pca.n_records_seen_ == 100


def test_no_seed_makes_the_noise_repeat() -> None:
    X = spiked(100)
    first, second = (PrivatePCA(random_state=1).fit(X) for _ in range(2))
    assert not np.array_equal(first.components_, second.components_)


@pytest.mark.parametrize(
    "make", [lambda: 7, lambda: np.random.RandomState(7), lambda: np.random.default_rng(7)]
)
def test_the_order_of_records_repeats_by_its_seed(make: Any) -> None:
    found = []
    for _ in range(2):
        with watched({"estimator": DEFAULT_ESTIMATOR}) as batches:
            PrivatePCA(random_state=make()).fit(spiked(100))
        found.append(rows(batches))
    assert np.array_equal(*found)
