"""PrivatePCA works with scikit-learn's and pandas' names, frames, clones, pipelines and searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from streaming_pca import PrivatePCA
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import spiked, turn
from tests.data.tables import tables_of
from tests.privacy.noise import SeededSampler

NAMES = [f"feature {i}" for i in range(8)]


def frame(m: int = 50, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(spiked(m, seed=seed), columns=NAMES)


def test_a_clone_has_the_parameters_and_nothing_else() -> None:
    bounds = (np.zeros(8), np.ones(8))
    pca = PrivatePCA(3, epsilon=2.0, bounds=bounds, scale=np.ones(8), options={"n_batches": 2})
    pca.fit(spiked(50))
    copy = clone(pca)
    assert repr(copy) == repr(pca)
    assert not hasattr(copy, "components_")
    assert not hasattr(copy, "privacy_spent_")
    assert copy.fit(spiked(50)).n_records_seen_ == 50


def test_columns_of_a_frame_are_names_of_features() -> None:
    pca = PrivatePCA(2).fit(frame())
    assert pca.feature_names_in_.tolist() == NAMES
    assert pca.partial_fit(frame(seed=1)).n_records_seen_ == 100
    for other in (frame()[NAMES[::-1]], frame().rename(columns={NAMES[0]: "another"})):
        with pytest.raises(ValueError, match="feature names should match"):
            pca.partial_fit(other)
    assert pca.n_records_seen_ == 100
    with pytest.raises(ValueError, match="input_features is not equal to feature_names_in_"):
        pca.get_feature_names_out(NAMES[::-1])


@pytest.mark.parametrize("place", range(4))
def test_columns_of_every_table_are_names_of_features(place: int) -> None:
    first = tables_of(**{name: range(50) for name in NAMES})[place]
    pca = PrivatePCA(2).fit(first)
    assert pca.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="feature names should match"):
        pca.transform(tables_of(**{name: range(50) for name in NAMES[::-1]})[place])


def test_a_fit_without_names_forgets_them() -> None:
    pca = PrivatePCA(2).fit(frame())
    pca.fit(frame().to_numpy())
    assert not hasattr(pca, "feature_names_in_")
    pca.fit(frame())
    pca.fit(spiked(60).reshape(20, 3, 8))
    assert not hasattr(pca, "feature_names_in_")


def test_output_can_be_a_frame_with_names_and_index() -> None:
    X = frame()
    X.index = pd.Index(range(100, 150))
    pca = PrivatePCA(2).set_output(transform="pandas").fit(X)
    out = pca.transform(X)
    assert out.columns.tolist() == ["privatepca0", "privatepca1"]
    assert out.index.equals(X.index)
    with config_context(transform_output="pandas"):
        assert list(PrivatePCA(3).fit_transform(X)) == ["privatepca0", "privatepca1", "privatepca2"]


def test_it_works_in_a_column_transformer() -> None:
    parts = ColumnTransformer([("pca", PrivatePCA(2), NAMES[:4]), ("rest", "passthrough", NAMES[4:])])
    out = parts.set_output(transform="pandas").fit_transform(frame())
    assert list(out) == ["pca__privatepca0", "pca__privatepca1", *(f"rest__{name}" for name in NAMES[4:])]


def test_a_pipeline_classifies_by_private_components() -> None:
    X = spiked(20_000)
    y = (X @ turn(8)[0] > 0).astype(int)
    pipeline = make_pipeline(FunctionTransformer(), PrivatePCA(2, bounds=(-2, 2)), LogisticRegression())
    with replace_noise_sampler(SeededSampler()):
        pipeline.fit(X, y)
    assert pipeline.score(X, y) > 0.95
    assert float(pipeline[1].privacy_spent_.epsilon) == 1.0


def test_a_search_goes_over_its_parameters() -> None:
    X = spiked(3000)
    y = (X @ turn(8)[0] > 0).astype(int)
    grid = {
        "privatepca__n_components": np.array([1, 3]),
        "privatepca__epsilon": np.array([0.01, 8.0]),
        "privatepca__options": [None, {"n_batches": 1}],
    }
    pipeline = make_pipeline(PrivatePCA(bounds=(-2, 2)), LogisticRegression())
    with replace_noise_sampler(SeededSampler()):
        search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["privatepca__epsilon"] == 8
    assert search.best_score_ > 0.9
    assert search.best_estimator_[0].n_records_seen_ == 3000


def test_the_precision_of_rows_is_kept() -> None:
    for dtype in (np.float32, np.float64):
        X = spiked(50).astype(dtype)
        pca = PrivatePCA(2).fit(X)
        assert pca.components_.dtype == np.float64
        assert pca.transform(X).dtype == dtype
        assert pca.inverse_transform(pca.transform(X)).dtype == dtype
