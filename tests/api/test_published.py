"""Models from releases offer the releasing model's functions, unless they need its state."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from streaming_pca import BudgetAccountant, PrivatePCA
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import LONGEST_ARRAY, Release
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service.commit.batch_result import make_release
from tests.api.samplers import spiked
from tests.data.refusals import refuses
from tests.privacy.noise import SeededSampler

X = spiked(3000, mean=1.0)
NAMES = [f"f{i}" for i in range(8)]


def release_of(pca: PrivatePCA, **changes: Any) -> bytes:
    """Return the release that a stream with the model's parameters and state publishes."""
    names = ("epsilon", "delta", "private", "estimator", "centering", "scale", "bounds")
    settings = {name: getattr(pca, name) for name in names} | changes
    plain = json.loads(json.dumps(settings, default=np.ndarray.tolist))
    stream = StreamSettings(name="s", input="in", dim=pca.n_features_in_, rank=pca.n_components_, **plain)
    return make_release(stream, pca._estimator.release(pca._state), 1, pca.n_records_seen_)


def earlier(data: bytes) -> dict[str, Any]:
    """Return the release as version 5 wrote it."""
    values: dict[str, Any] = json.loads(data)
    for name in ("centering", "scale", "bounds"):
        del values[name]
    return values | {"version": 5}


@pytest.mark.parametrize("scale", [None, np.linspace(0.5, 2, 8)])
@pytest.mark.parametrize("bounds", [None, (-1.0, np.full(8, 3.0))])
@pytest.mark.parametrize("centering", ["auto", "none", "pairs", np.full(8, 0.5)])
def test_it_has_the_attributes_and_functions_of_the_model(scale: Any, bounds: Any, centering: Any) -> None:
    pca = PrivatePCA(3, epsilon=2.0, scale=scale, bounds=bounds, centering=centering).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = PrivatePCA.from_release(release_of(pca))
    fitted = {name for name in vars(pca) if name.endswith("_")}
    assert {name for name in vars(copy) if name.endswith("_")} == fitted
    for name in fitted - {"privacy_spent_"}:
        assert np.array_equal(getattr(copy, name), getattr(pca, name)), name
    assert copy.privacy_spent_ == pca.privacy_spent_.model_copy(update={"rho": None})
    Z = pca.transform(X)
    assert np.array_equal(copy.transform(X), Z)
    assert np.array_equal(copy.inverse_transform(Z), pca.inverse_transform(Z))
    assert hasattr(copy, "score_samples") == hasattr(pca, "score_samples") == (str(centering) != "pairs")
    if hasattr(pca, "score_samples"):
        assert np.array_equal(copy.score_samples(X), pca.score_samples(X))
    assert np.array_equal(copy.get_covariance(), pca.get_covariance())
    assert np.array_equal(copy.set_params(whiten=True).transform(X), pca.set_params(whiten=True).transform(X))


def test_it_is_read_from_whatever_holds_it(tmp_path: Path) -> None:
    data = release_of(PrivatePCA().fit(X), feature_names=NAMES)
    (tmp_path / "release.json").write_bytes(data)
    for given in (data, Release.from_bytes(data), json.loads(data), tmp_path / "release.json"):
        copy = PrivatePCA.from_release(given)
        assert copy.components_.shape == (2, 8)
        assert copy.feature_names_in_.tolist() == NAMES
        assert copy.get_params()["estimator"] == "adaptive"


def test_it_learns_nothing_more_and_a_new_fit_forgets_it(tmp_path: Path) -> None:
    with BudgetAccountant(1, 1e-6) as budget:
        copy = PrivatePCA.from_release(release_of(PrivatePCA(2, bounds=(-2, 4)).fit(X)))
        assert budget.spent.epsilon == 1
        for model in (copy, pickle.loads(pickle.dumps(copy))):
            refuses("a model from a release is read-only: start", model.partial_fit, X)
            refuses("has no state to save", model.save, tmp_path / "model")
            assert model.components_.shape == (2, 8)
    with pytest.raises(NotFittedError):
        clone(copy).transform(X)
    assert copy.fit(X[:500]).n_records_seen_ == 500
    assert copy.partial_fit(X[500:600]).bounds == (-2, 4)
    copy.save(tmp_path / "model")


def test_an_earlier_release_is_read_with_what_the_caller_knows() -> None:
    scale, bounds = np.linspace(0.5, 2, 8), (-1.0, 3.0)
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(3, epsilon=20, scale=scale, bounds=bounds).fit(X)
    data = earlier(release_of(pca))
    with pytest.warns(UserWarning, match="a release of version 5 does not name scale and bounds") as caught:
        bare = PrivatePCA.from_release(data)
    assert caught[0].filename == __file__
    np.testing.assert_allclose(bare.mean_, pca.mean_ * scale)
    np.testing.assert_allclose(bare.transform(X), (X - bare.mean_) @ pca.components_.T, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reported = PrivatePCA.from_release(data, scale=scale, bounds=bounds)
    assert np.array_equal(reported.transform(X), pca.transform(X))
    refuses("scale has 2 numbers for 8 features", PrivatePCA.from_release, data, scale=[1, 2])


def test_settings_behind_a_digest_must_be_given() -> None:
    d = LONGEST_ARRAY + 1
    scale = np.linspace(1, 2, d)
    pca = PrivatePCA(1, estimator="block", scale=scale).fit(np.eye(20, d))
    data = release_of(pca)
    refuses("the release has only the digest of scale", PrivatePCA.from_release, data)
    with pytest.raises(ValueError, match="these are not the numbers of the release's stream"):
        PrivatePCA.from_release(data, scale=scale + 1)
    reported = PrivatePCA.from_release(data, scale=scale)
    assert np.array_equal(reported.transform(np.eye(2, d)), pca.transform(np.eye(2, d)))


def test_without_privacy_the_charge_is_infinite() -> None:
    pca = PrivatePCA(estimator="oja", private=False, centering="none").fit(X)
    copy = PrivatePCA.from_release(release_of(pca, epsilon="inf", delta="inf"))
    assert (copy.privacy_spent_, copy.private) == (Charge.unbounded(), False)
    assert not hasattr(copy, "score")


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"components": [[1.0] * 8]}, "components does not have 2 rows of 8 numbers"),
        ({"components": [[1.0] * 8, [math.nan] * 8]}, "components: .*finite"),
        ({"mean": [math.nan] * 8}, "mean: .*finite"),
        ({"explained_variance": [1.0]}, "explained_variance does not have 2 numbers"),
        ({"explained_variance": [1.0, math.nan]}, "explained_variance: .*finite"),
        ({"feature_names": ["a"]}, "feature_names does not have 8 names"),
        ({"epsilon": -1.0}, "epsilon: .*greater than 0"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(version: int, change: dict[str, Any], words: str) -> None:
    data = release_of(PrivatePCA().fit(X))
    values = (json.loads(data) if version == 6 else earlier(data)) | change
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refuses(rf"^not a release: .*{words}", PrivatePCA.from_release, values)


def test_the_same_word_may_be_given_for_the_centering() -> None:
    data = release_of(PrivatePCA().fit(X))
    assert PrivatePCA.from_release(data, centering="auto").centering == "auto"
    with pytest.raises(ValueError, match='centering: "pairs" is not the setting of the release'):
        PrivatePCA.from_release(data, centering="pairs")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"{}", "not a release: "),
        ({"kind": "tensor"}, "not a release: "),
        ("nowhere.json", "nowhere.json: No such file or directory"),
        (7, "a release is a Release, its bytes, a dict or a path, not int"),
    ],
)
def test_something_else_is_refused_in_one_line(given: Any, words: str) -> None:
    refuses(words, PrivatePCA.from_release, given)


def test_a_tensor_spans_no_subspace() -> None:
    values = json.loads(release_of(PrivatePCA().fit(X))) | {"kind": "tensor", "weights": [2.0, 1.0]}
    refuses("the release holds components of a tensor, not of a subspace", PrivatePCA.from_release, values)
