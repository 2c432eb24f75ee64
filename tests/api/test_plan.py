"""`PrivatePCA.plan`: a forecast with the model's own parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.estimators.forecast.forecast import forecast
from tests.data.refusals import refuses


def test_a_model_forecasts_its_own_fit() -> None:
    pca = PrivatePCA(n_components=2, epsilon=0.5, delta=1e-6)
    plan = pca.plan(20, 50_000)
    assert plan == forecast(20, 2, 50_000, 0.5, 1e-6)
    assert plan.batches == (50_000,)
    assert str(plan).startswith("With 50,000 records of 20 features and epsilon 0.5, ")
    assert not hasattr(pca, "privacy_spent_")
    assert pca.plan(np.int64(20), np.int64(50_000), batches=4).batches == (12_500,) * 4
    assert len(pca.plan(20, 10_000_000).batches) == 3


def test_named_features_give_their_number() -> None:
    bounds = {"a": (0, 1), "b": (0, 9)}
    assert PrivatePCA(1, bounds=bounds).plan(n_samples=1000) == PrivatePCA(1, bounds=bounds).plan(2, 1000)
    features = [{"name": "a", "categories": ["x", "y", "z"]}]
    assert PrivatePCA(1, features=features).plan(n_samples=1000).dim == 3
    refuses("n_features", PrivatePCA(1).plan, n_samples=1000)
    refuses("n_samples", PrivatePCA(1, bounds=bounds).plan)


def test_the_charge_is_that_of_the_fit() -> None:
    x = np.random.default_rng(0).standard_normal((2000, 4))
    pca = PrivatePCA(n_components=1, centering="none", options={"clip_radius": 30.0})
    assert pca.plan(4, 2000).charge == pca.fit(x).privacy_spent_


def test_pairs_are_half_as_many() -> None:
    pairs = PrivatePCA(centering="pairs").plan(20, 10_001)
    assert pairs.records == 10_000
    assert pairs.entry_noise == pytest.approx(2 * PrivatePCA().plan(20, 10_000).entry_noise, rel=0.1)


def test_a_public_radius_leaves_all_but_a_count_to_the_sum() -> None:
    whole = PrivatePCA(options={"clip_radius": 1.0}).plan(20, 10_000)
    found = PrivatePCA().plan(20, 10_000)
    assert found.shares.first < 0.8
    assert 0.98 < whole.shares.first < 1
    ratio = found.shares.first / whole.shares.first
    assert whole.entry_noise == pytest.approx(found.entry_noise * ratio**0.5)


def test_the_route_is_the_estimators() -> None:
    assert PrivatePCA().plan(513, 10_000).route == "block"
    assert PrivatePCA().plan(512, 10_000).route == "covariance"
    assert PrivatePCA(options={"route": "block"}).plan(10, 10_000).route == "block"
    assert PrivatePCA(estimator="analyze-gauss").plan(1000, 10_000).route == "covariance"


def test_arguments_in_the_order_of_a_shape_are_a_warning_or_an_error() -> None:
    X = np.zeros((200, 3))
    with pytest.warns(UserWarning, match=r"^n_samples = 3 is below n_features = 200: ") as caught:
        PrivatePCA(1).plan(*X.shape)
    (warning,) = caught
    assert str(warning.message).endswith("for the shape of X write plan(*X.shape[::-1])")
    assert "\n" not in str(warning.message)
    assert warning.filename == __file__
    assert PrivatePCA(1).plan(*X.shape[::-1]) == PrivatePCA(1).plan(n_features=3, n_samples=200)
    # As many records as features are possible.
    PrivatePCA(1).plan(20, 20)
    refuses(r"^n_features = 50000 is above 8192, .* write plan\(\*X.shape", PrivatePCA(1).plan, 50_000, 20)
    refuses(r"^n_features = 9000 is above 8192, the most possible$", PrivatePCA(1).plan, 9000, 20_000)


@pytest.mark.parametrize(
    ("parameters", "shape", "message"),
    [
        ({"n_components": 5}, (4, 100), "n_components = 5 is above"),
        ({"epsilon": -1.0}, (4, 100), "epsilon"),
        ({}, (0, 100), "n_features"),
        ({}, (4, 1), "n_samples"),
        ({}, (4, 10**12), "^n_samples = 1000000000000 is above 10000000000, the most possible$"),
        ({"estimator": "tensor-online", "private": False}, (4, 100), "finds components of a tensor"),
        ({}, (4, 100.5), "n_samples"),
        ({}, ("4", 100), "n_features"),
        (
            {"estimator": "oja", "private": False, "centering": "none"},
            (4, 100),
            "forecasts exist for adaptive",
        ),
    ],
)
def test_a_mistake_is_one_line(parameters: dict[str, Any], shape: tuple[Any, Any], message: str) -> None:
    refuses(message, PrivatePCA(**parameters).plan, *shape)


def test_messages_of_a_forecast_name_no_setting_of_a_stream() -> None:
    refuses(r"^100 records do not fill 99 batches of at least 2$", PrivatePCA().plan, 4, 100, batches=99)
    plan = PrivatePCA().plan(4, 1000)
    refuses(r"^gap = 0\.9 is above 1/2 = 0\.5: eigenvalues that large exceed the", plan.angle_at, 0.9)
