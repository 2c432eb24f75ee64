"""`PrivatePCA` warns only of results that should not be relied on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import streaming_pca
from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.privacy.noise import SeededSampler

D = 20


def records(m: int, mean: float = 0.0, d: int = D, leading: tuple[float, ...] = (5.0, 3.0)) -> NDArray[Any]:
    deviations = np.array([*leading, *[1.0] * (d - len(leading))])
    return np.random.default_rng(7).standard_normal((m, d)) * deviations + mean


def quietly(pca: PrivatePCA, X: NDArray[Any]) -> PrivatePCA:
    """Fit, treating every warning as an error."""
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler()):
        warnings.simplefilter("error")
        return pca.fit(X)


def warned(pca: PrivatePCA, X: NDArray[Any]) -> str:
    """Fit, and return the text of the only warning."""
    with pytest.warns(DoubtfulResultWarning) as caught, replace_noise_sampler(SeededSampler()):
        pca.fit(X)
    (warning,) = caught
    assert Path(warning.filename) == Path(__file__)
    assert pca.doubts_
    return str(warning.message)


@pytest.mark.parametrize("centering", ["auto", "pairs", "none", np.zeros(D)])
def test_good_data_give_no_warning(centering: Any) -> None:
    pca = quietly(PrivatePCA(2, centering=centering), records(50_000))
    assert pca.doubts_ == ()
    assert principal_angles(pca.components_, np.eye(2, D))[0] < 0.1


def test_a_large_mean_that_is_taken_off_gives_no_warning() -> None:
    for centering in ("auto", "pairs", np.full(D, 10.0)):
        assert quietly(PrivatePCA(2, centering=centering), records(50_000, mean=10.0)).doubts_ == ()


@pytest.mark.parametrize("X", [records(200), records(50_000, leading=())], ids=["few", "isotropic"])
def test_too_few_records_and_records_without_directions_give_a_warning(X: NDArray[Any]) -> None:
    pca = PrivatePCA(2)
    text = warned(pca, X)
    assert "not-resolved" in pca.doubts_
    assert text.startswith("the result is doubtful:\nnot-resolved: ")
    for line in ("more records", "a larger epsilon", "public bounds of the features", "a lower n_components"):
        assert f"\n- {line}" in text
    # With bounds, they are not asked for again.
    text = warned(PrivatePCA(2, bounds=(-50.0, 50.0)), X)
    assert "- public bounds" not in text
    assert "already given: public bounds" in text


def test_bounds_that_are_far_too_wide_are_doubted_and_their_remedy_named() -> None:
    X = records(5000, d=6)
    text = warned(PrivatePCA(2, bounds=(-1.5e7, 1.5e7)), X)
    assert "\n- narrower bounds, if these are far wider than the records" in text
    # Without bounds the result is good.
    assert principal_angles(quietly(PrivatePCA(2), X).components_, np.eye(2, 6))[0] < 0.2


def test_named_bounds_of_features_with_other_units_name_the_scale_that_helps() -> None:
    rng = np.random.default_rng(5)
    columns = {"age": rng.normal(45, 12, 30_000), "income": np.exp(rng.normal(10, 0.6, 30_000))}
    frame = pd.DataFrame(columns | {"height": columns["age"] + rng.normal(120, 5, 30_000)})
    bounds = {"age": (0, 120), "income": (0, 500_000), "height": (0, 250)}
    with pytest.warns(DoubtfulResultWarning) as caught, replace_noise_sampler(SeededSampler()):
        PrivatePCA(2, bounds=bounds).fit(frame)
    words = '\n- scale = "bounds", 2/(upper - lower), if features have different units'
    assert words in str(caught[0].message)
    with replace_noise_sampler(SeededSampler()):
        scaled = PrivatePCA(2, bounds=bounds, scale="bounds").fit(frame)
    assert scaled.doubts_ == ()


@pytest.mark.parametrize("names", [["income", *"abcde"], None])
def test_a_feature_that_decides_what_is_clipped_is_named(names: list[str] | None) -> None:
    """The unit of incomes next to numbers of order one hides all other features."""
    rng = np.random.default_rng(5)
    X = np.column_stack([np.exp(rng.normal(8, 1.0, 30_000)), rng.normal(3, 1, (30_000, 5))])
    for turn in range(2):
        # In the second turn the dominating feature comes last.
        frame = X[:, ::-1] if turn else X
        columns = names and names[::-1] if turn else names
        named = str((5 if turn else 0) if names is None else "income")
        text = warned(PrivatePCA(2), frame if columns is None else pd.DataFrame(frame, columns=columns))
        assert f"dominated: feature {named} has most of" in text
        assert f"\n- a smaller scale for feature {named}" in text
    # With its logarithm the result is not doubtful.
    X[:, 0] = np.log(X[:, 0])
    assert "dominated" not in PrivatePCA(2).fit(X).doubts_


def test_components_that_are_one_too_many_are_told_from_the_others() -> None:
    assert "but not the first 2 of 5" in warned(PrivatePCA(5), records(50_000))


@pytest.mark.parametrize("d", [D, 600])
def test_a_plane_that_a_large_mean_has_spoilt_is_not_passed_off_as_good(d: int) -> None:
    """Use 50,000 records, all means 10, default settings; noise and row order are fixed."""
    X = records(50_000, mean=10.0, d=d).astype(np.float32)
    for seed in range(5):
        with warnings.catch_warnings(record=True) as caught, replace_noise_sampler(SeededSampler(seed)):
            warnings.simplefilter("always")
            pca = PrivatePCA(2, random_state=seed).fit(X)
        good = principal_angles(pca.components_, np.eye(2, d))[0] < 0.5
        assert good or pca.doubts_
        assert [w.category for w in caught] == [DoubtfulResultWarning] * bool(pca.doubts_)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"options": {"clip_radius": 400.0}},
        {"options": {"clip_quantile": 0.9}},
        {"estimator": "analyze-gauss"},
        {"estimator": "block"},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(400, 1500), (400, 800, 800)], ids=str)
def test_batches_too_small_for_a_mean_do_not_spoil_later_ones(
    given: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    pca = PrivatePCA(1, random_state=0, **given)
    X = records(sum(sizes), mean=10.0, d=5, leading=(4.0,))
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler()):
        warnings.simplefilter("ignore")
        for chunk in np.split(X, np.cumsum(sizes)[:-1]):
            pca.partial_fit(chunk)
    (variance,), (error,) = pca.explained_variance_, pca.explained_variance_error_
    true = float(pca.components_[0] ** 2 @ np.array([16.0, 1.0, 1.0, 1.0, 1.0]))
    assert abs(variance - true) < 4 * error
    angle = principal_angles(pca.components_, np.eye(1, 5))[0]
    assert angle <= min(pca.angle_bound_, 0.5) or pca.doubts_


def test_a_batch_that_sees_no_mean_forgets_no_batches_too_small_for_one() -> None:
    X = records(50 * 400 + 500, d=5, leading=(4.0,))
    pca = PrivatePCA(1)
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(2)):
        warnings.simplefilter("ignore")
        for chunk in np.split(X[:20_000], 50):
            pca.partial_fit(chunk)
        assert "mean-unknown" in pca.doubts_
        (before,) = pca.explained_variance_error_
        pca.partial_fit(X[20_000:])
    assert "mean-unknown" not in pca.doubts_
    assert pca.explained_variance_error_[0] < 1.1 * before
    state: Any = pca._state
    assert (state.mean, state.present.weight, state.covariance.records) == (None, len(X), len(X))


def test_a_mean_that_leads_is_suspected_where_none_is_looked_for() -> None:
    # A mean of 10 is clipped, which most noise shows as another doubt; with 5 none of 12 seeds does.
    x = records(50_000, mean=5.0)
    pca = PrivatePCA(2, centering="none")
    assert "direction of a mean" in warned(pca, x)
    assert pca.doubts_ == ("mean-unknown",)
    # A centre of zeros declares that the records have no mean to remove.
    assert quietly(pca.set_params(centering=np.zeros(D)), x).doubts_ == ()


def test_every_call_that_learns_warns_once_and_loading_does_not(tmp_path: Path) -> None:
    X, pca = records(60), PrivatePCA(2, options={"n_batches": 3})
    with pytest.warns(DoubtfulResultWarning) as caught:
        pca.fit(X)
    assert len(caught) == 1
    with pytest.warns(DoubtfulResultWarning) as caught:
        pca.partial_fit(X)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    pca.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = PrivatePCA.load(tmp_path / "model")
        again.transform(X)
    assert again.doubts_ == pca.doubts_


def test_where_warnings_are_errors_the_model_is_there_and_charged() -> None:
    pca = PrivatePCA(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DoubtfulResultWarning):
            pca.fit(records(60))
    assert pca.components_.shape == (2, D)
    assert pca.privacy_spent_.epsilon == 1


def test_the_category_is_a_public_name() -> None:
    assert issubclass(DoubtfulResultWarning, UserWarning)
    assert "DoubtfulResultWarning" in dir(streaming_pca)


@pytest.mark.parametrize("estimator", ["adaptive", "block", "analyze-gauss"])
def test_units_of_records_change_nothing_but_the_units(estimator: str) -> None:
    """The directions stay the same and variances scale, for any size that floats usually hold."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((8000, 5)) * np.array([5.0, 3.0, 2.0, 1.0, 0.5])
    found = {}
    for scale in (1e-12, 1.0, 1e10, 1e30):
        with replace_noise_sampler(SeededSampler()):
            pca = PrivatePCA(n_components=2, epsilon=4.0, delta=1e-6, estimator=estimator, random_state=0)
            pca.fit(X * scale)
        # The block route starts at random; after these steps it still turns by more than the noise.
        assert set(pca.doubts_) <= ({"unsettled"} if estimator == "block" else set())
        found[scale] = pca.explained_variance_ / scale**2
        assert np.abs(pca.components_[0, 0]) > 0.98
        assert np.abs(pca.components_[1, 1]) > 0.9
    for variances in found.values():
        assert np.allclose(variances, found[1.0], rtol=0.5)


def test_records_beyond_the_range_are_doubted() -> None:
    X = np.random.default_rng(3).standard_normal((8000, 5)) * 100
    with pytest.warns(DoubtfulResultWarning, match="range-ends: records are so large"):
        pca = PrivatePCA(2, epsilon=4.0, options={"radius_range": (1e-3, 1.0)}, random_state=0).fit(X)
    assert "range-ends" in pca.doubts_


def test_rare_records_far_out_are_in_the_total_and_its_error() -> None:
    """One record in a hundred is ten times as large, so that they hold half of the variance."""
    dice = np.random.default_rng(0)
    X = dice.standard_normal((30_000, 6)) * [3, 2, 1.5, 1, 0.8, 0.5]
    X *= np.where(dice.random((len(X), 1)) < 0.01, 10.0, 1.0)
    total = X.var(axis=0).sum()
    with replace_noise_sampler(SeededSampler(0)), pytest.warns(DoubtfulResultWarning):
        pca = PrivatePCA(2, epsilon=1.0, delta=1e-6).fit(X)
    assert "clipped" in pca.doubts_
    assert 0.7 * total < pca.total_variance_ < 1.5 * total
    assert abs(pca.total_variance_ - total) < 2 * pca.total_variance_error_
