"""PrivatePCA learns from the right records, in the right batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.api import DEFAULT_ESTIMATOR
from streaming_pca.estimators.factory import configure
from streaming_pca.estimators.registry import find
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import CASES, RepeatingSampler, rows, spiked, turn, watched
from tests.data.refusals import refuses
from tests.privacy.noise import ScriptedSampler, SeededSampler

every_case = pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)


@pytest.mark.parametrize("centering", ["auto", "pairs"])
def test_the_subspace_of_shifted_records_is_found(centering: str) -> None:
    pca = PrivatePCA(2, centering=centering, bounds=(-2, 2), random_state=3)
    with replace_noise_sampler(SeededSampler()):
        pca.fit(spiked(40_000, mean=0.5))
    random = orthonormalise(np.random.default_rng(1).standard_normal((8, 2))).T
    truth = turn(8)[:2]
    assert subspace_error(pca.components_, truth) < 0.1 * subspace_error(random, truth)
    # The best radius for the subspace can reduce the variances a lot; a high quantile hardly reduces them.
    pca.set_params(estimator="analyze-gauss", options={"clip_quantile": 0.99})
    with replace_noise_sampler(SeededSampler()):
        pca.fit(spiked(40_000, mean=0.5))
    np.testing.assert_allclose(pca.explained_variance_, [0.16, 0.09], rtol=0.1)


@pytest.mark.parametrize("scale", [None, 0.5, np.linspace(0.5, 2, 8)])
def test_the_mean_is_found_in_units_of_the_features(scale: Any) -> None:
    pca = PrivatePCA(2, bounds=(-2, 2), scale=scale)
    X = spiked(40_000, mean=0.5)
    with replace_noise_sampler(SeededSampler()):
        pca.fit(X)
    np.testing.assert_allclose(pca.mean_, X.mean(axis=0), atol=0.02)


def test_the_mean_is_the_public_centre_or_absent_where_none_is_learnt() -> None:
    X = spiked(100)
    assert np.array_equal(PrivatePCA(centering=np.arange(8.0)).fit(X).mean_, np.arange(8.0))
    for centering in ("none", "pairs"):
        pca = PrivatePCA(centering=centering).fit(X)
        assert not hasattr(pca, "mean_")
        with pytest.raises(AttributeError, match="no mean_: the mean was not found, or not estimated at all"):
            _ = pca.mean_
    with pytest.raises(AttributeError, match=r"'PrivatePCA' object has no attribute 'mean_'$"):
        _ = PrivatePCA().mean_


def test_auto_means_pairs_where_the_estimator_finds_no_mean() -> None:
    X, models = spiked(101), []
    for centering in ("auto", "pairs"):
        how: dict[str, Any] = {"estimator": "private-oja", "options": {"clip_radius": 1.0}}
        model = PrivatePCA(centering=centering, random_state=0, **how)
        with replace_noise_sampler(SeededSampler()):
            models.append(model.fit(X))
    assert np.array_equal(models[0].components_, models[1].components_)
    assert models[0].centering == "auto"
    assert models[0].n_records_seen_ == 100
    assert not hasattr(models[0], "mean_")
    refuses("needs records of one row each", models[0].fit, X[:100].reshape(50, 2, 8))


def test_a_mean_that_was_not_found_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = find(DEFAULT_ESTIMATOR)
    release, X = kind.release, spiked(200)
    pca = PrivatePCA().fit(spiked(4000, mean=2.0))
    assert hasattr(pca, "mean_")
    monkeypatch.setattr(kind, "release", lambda self, state: replace(release(self, state), mean=None))
    pca.partial_fit(spiked(200, seed=1))
    assert not hasattr(pca, "mean_")
    assert np.array_equal(pca.transform(X), X @ pca.components_.T)


def test_without_noise_and_clipping_it_is_pca() -> None:
    X = spiked(500, mean=1.0)
    mean = X.mean(axis=0)
    # The expected noise is subtracted from eigenvalues, so the nominal noise must be small too.
    reported = {"epsilon": 1e8, "estimator": "analyze-gauss", "options": {"clip_radius": 50.0}}
    pca = PrivatePCA(3, centering=mean, **reported)
    with replace_noise_sampler(ScriptedSampler()):
        pca.fit(X)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    np.testing.assert_allclose(pca.explained_variance_, values[::-1][:3], rtol=1e-2)
    assert subspace_error(pca.components_, vectors.T[::-1][:3]) < 1e-2
    # An estimated mean is as good, apart from clipping in the last round.
    pca = PrivatePCA(3, **reported)
    with replace_noise_sampler(ScriptedSampler()):
        pca.fit(X)
    np.testing.assert_allclose(pca.mean_, mean, atol=0.05)
    np.testing.assert_allclose(pca.explained_variance_, values[::-1][:3], atol=5e-3)


@every_case
def test_components_are_orthonormal_and_ordered(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(3, **parameters).fit(spiked(300))
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(3), atol=1e-12)
    assert (np.diff(pca.explained_variance_) <= 0).all()
    assert (pca.n_components_, pca.n_features_in_) == (3, 8)
    looks = parameters.get("centering", "auto") == "auto"
    # The search for a mean may find none where the mean is near 0.
    assert np.shape(getattr(pca, "mean_", None)) in (((8,), ()) if looks else ((),))


@every_case
def test_fit_takes_every_record_once(parameters: dict[str, Any]) -> None:
    X = spiked(1001)
    with watched(parameters) as batches:
        pca = PrivatePCA(**parameters, random_state=1).fit(X)
    usable = 1000 if parameters.get("centering") == "pairs" else 1001
    taken = rows(batches)
    assert sum(len(batch) for batch in batches) == pca.n_records_seen_ == len(taken) == usable
    assert len(np.unique(np.concatenate([taken, X]), axis=0)) == 1001
    assert len(np.unique(taken, axis=0)) == usable


@every_case
def test_the_seed_alone_decides_the_order_of_records(parameters: dict[str, Any]) -> None:
    X = spiked(300)
    other = np.where(np.arange(300)[:, None] == 17, 1e6, X)
    found = []
    for records, seed in ((X, 5), (other, 5), (X, 6)):
        with watched(parameters) as batches:
            PrivatePCA(**parameters, random_state=seed).fit(records)
        found.append((rows(batches), [len(batch) for batch in batches]))
    first, neighbour, another = found
    assert first[1] == neighbour[1] == another[1]
    changed = (first[0] != neighbour[0]).any(axis=1)
    assert changed.sum() == 1
    assert not np.array_equal(first[0], another[0])
    assert not np.array_equal(first[0], X)


@every_case
def test_fit_is_partial_fit_on_its_batches(parameters: dict[str, Any]) -> None:
    parameters = {**parameters, "random_state": 4}
    with replace_noise_sampler(ScriptedSampler()):
        with watched(parameters) as batches:
            whole = PrivatePCA(**parameters).fit(spiked(1000))
        options = dict(parameters.get("options", {}))
        if "n_records" in find(parameters["estimator"]).options_type.model_fields:
            # A fit knows that no records will follow.
            options["n_records"] = sum(len(batch) for batch in batches)
        parts = PrivatePCA(**{**parameters, "options": options})
        for batch in batches:
            parts.partial_fit(batch.rows)
    assert np.array_equal(whole.components_, parts.components_)
    assert np.array_equal(whole.explained_variance_, parts.explained_variance_)
    assert np.array_equal(getattr(whole, "mean_", None), getattr(parts, "mean_", None))
    assert whole.privacy_spent_ == parts.privacy_spent_


def test_the_estimator_plans_with_the_number_of_records() -> None:
    for options, sizes in (
        (None, [1000]),
        ({"n_batches": 1}, [1000]),
        ({"n_batches": 4, "growth": 1}, [250] * 4),
        # An explicit n_records takes precedence.
        ({"n_batches": 1, "n_records": 400}, [400, 400, 200]),
        ({"n_batches": 1, "n_records": 700}, [1000]),
        ({"n_records": None, "first_batch": 300, "growth": 1}, [300, 300, 400]),
    ):
        with watched({"estimator": DEFAULT_ESTIMATOR}) as batches:
            PrivatePCA(options=options).fit(spiked(1000))
        assert [len(batch) for batch in batches] == sizes


@pytest.mark.parametrize("records", [MAX_RECORDS, MAX_RECORDS + 1, 2 * MAX_RECORDS - 1, 10**8 + 1])
@pytest.mark.parametrize("centering", ["auto", "pairs"])
def test_records_beyond_one_batch_are_cut_into_the_fewest_batches(records: int, centering: str) -> None:
    keep = PrivatePCA(1, centering=centering).get_params()
    for name in ("random_state", "whiten", "accountant", "features"):
        del keep[name]
    estimator = configure(3, n_records=records, **keep)
    state, taken = estimator.init(np.random.default_rng(0)), []
    while sum(taken) < records - records % estimator.preprocessing.granularity:
        taken.append(estimator.plan(replace(state, batch=len(taken), records=sum(taken))).count)
    assert max(taken) <= MAX_RECORDS
    assert len(taken) <= -(-records // MAX_RECORDS) + 1


def test_a_last_batch_of_a_few_records_joins_the_one_before() -> None:
    for records, sizes in (
        (100, [100]),
        (149, [149]),
        (150, [100, 50]),
        (201, [100, 101]),
        (249, [100, 149]),
    ):
        parameters = {**CASES["private-oja"], "options": {"clip_radius": 20.0, "batch_size": 100}}
        with watched(parameters) as batches:
            PrivatePCA(**parameters).fit(spiked(records))
        assert [len(batch) for batch in batches] == sizes


@every_case
def test_a_factor_of_one_row_is_a_vector(parameters: dict[str, Any]) -> None:
    X = spiked(200)
    with replace_noise_sampler(RepeatingSampler()):
        vectors = PrivatePCA(**parameters, random_state=1).fit(X)
        factors = PrivatePCA(**parameters, random_state=1).fit(X[:, None, :])
    assert np.array_equal(vectors.components_, factors.components_)
    assert factors.n_records_seen_ == 200
    assert factors.n_features_in_ == 8


def test_a_factor_is_one_record_of_many_rows() -> None:
    factors = spiked(600).reshape(200, 3, 8)
    reported = {"epsilon": 1e8, "estimator": "analyze-gauss", "options": {"clip_radius": 50.0}}
    with replace_noise_sampler(ScriptedSampler()):
        pca = PrivatePCA(centering="none", **reported).fit(factors)
    assert pca.n_records_seen_ == 200
    # The matrix of a record is F^T F, so the second moment is three times that of the rows.
    moment = np.linalg.eigvalsh(np.einsum("mri,mrj->ij", factors, factors) / 200)
    np.testing.assert_allclose(pca.explained_variance_, moment[::-1][:2], rtol=1e-3)


def test_signs_and_order_are_stable_from_batch_to_batch() -> None:
    # The first direction has two entries of equal size: without a predecessor, chance decides its sign.
    directions = np.array([[1, -1, 0, 0], [1, 1, 0, 0]]) / np.sqrt(2)
    pca, overlaps, loose = PrivatePCA(2, bounds=(-2, 2)), [], []
    with replace_noise_sampler(SeededSampler()):
        for seed in range(10):
            X = spiked(4000, d=4, seed=seed) @ turn(4).T
            X[:, :2] = X[:, :2] @ directions[:, :2]
            pca.partial_fit(X)
            overlaps.append((pca.components_ * directions).sum(axis=1))
            loose.append(float(PrivatePCA(2, bounds=(-2, 2)).partial_fit(X).components_[0] @ directions[0]))
    assert min(loose) < -0.9
    assert max(loose) > 0.9
    signed = overlaps * np.sign(overlaps[0])
    assert (signed > 0.9).all()


def test_signs_are_stable_where_the_estimator_is_made_for_fewer_components(tmp_path: Path) -> None:
    """As above, in all six pairs of features; by default an estimator of 12 features is made for 3."""
    pairs = np.kron(np.eye(6), np.array([[1, -1], [1, 1]]) / np.sqrt(2))
    pca, before = PrivatePCA(n_components=None, bounds=(-20, 20)), None
    rng = np.random.default_rng(3)
    with replace_noise_sampler(SeededSampler()):
        for _ in range(6):
            pca.partial_fit(rng.standard_normal((8000, 12)) * np.linspace(4, 1, 12) @ pairs)
            pca.save(tmp_path / "model")
            pca = PrivatePCA.load(tmp_path / "model")
            if before is not None:
                assert np.sum(pca.components_ * before, axis=1).min() > -0.5
            before = pca.components_


def test_fit_forgets_earlier_fits() -> None:
    pca = PrivatePCA(2, epsilon=4.0).fit(spiked(100, d=5))
    pca.set_params(n_components=3, epsilon=1.0).fit(spiked(50, d=6))
    assert pca.components_.shape == (3, 6)
    assert pca.n_records_seen_ == 50
    assert pca.privacy_spent_.epsilon == 1


def test_a_fit_that_is_refused_leaves_the_earlier_model() -> None:
    X = spiked(100)
    pca = PrivatePCA().fit(X)
    before = dict(vars(pca))
    for bad in (X[:1], np.where(X == X[3, 3], np.nan, X)):
        refuses(r"minimum of 2|NaN", pca.fit, bad)
    refuses("n_components = 2 is above", pca.fit, X[:, :1])
    pca.epsilon = 1e-9
    refuses("epsilon = 1e-09 needs more noise", pca.fit, X[:, :5])
    pca.epsilon = 1.0
    assert vars(pca).keys() == before.keys()
    assert all(vars(pca)[name] is before[name] for name in before if name != "epsilon")


def moment_about(factors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    apart = factors - centre
    return np.einsum("mri,mrj->ij", apart, apart) / len(factors)


@pytest.mark.parametrize("estimator", ["adaptive", "analyze-gauss", "block"])
def test_a_mean_that_moves_counts_in_each_row_of_a_factor(estimator: str) -> None:
    """A centre is subtracted from each row: in the sum of 20 rows its square counts 20 times."""
    rng = np.random.default_rng(5)
    before, after = rng.normal(size=(2, 4000, 20, 5))
    after[..., 0] += 3
    both = np.concatenate([before, after])
    exact = moment_about(both, both.mean((0, 1)))
    model = PrivatePCA(2, epsilon=100.0, estimator=estimator, random_state=0)
    with replace_noise_sampler(SeededSampler()):
        model.partial_fit(before).partial_fit(after)
    assert model.total_variance_ == pytest.approx(np.trace(exact), rel=0.04)
    along = np.einsum("ki,ij,kj->k", model.components_, exact, model.components_)
    assert model.explained_variance_ == pytest.approx(along, rel=0.1)


@pytest.mark.parametrize("rows", [10, 40])
@pytest.mark.parametrize("estimator", ["adaptive", "analyze-gauss", "block"])
def test_bounds_of_a_row_do_not_clip_factors_of_many(estimator: str, rows: int) -> None:
    rng = np.random.default_rng(6)
    factors = rng.uniform(-1, 1, size=(8000, rows, 5)) * [1, 0.8, 0.6, 0.6, 0.6]
    exact = moment_about(factors, factors.mean((0, 1)))
    with replace_noise_sampler(SeededSampler()):
        model = PrivatePCA(2, epsilon=20.0, bounds=(-1, 1), estimator=estimator, random_state=0).fit(factors)
    assert model.total_variance_ == pytest.approx(np.trace(exact), rel=0.03)
    along = np.einsum("ki,ij,kj->k", model.components_, exact, model.components_)
    np.testing.assert_allclose(model.explained_variance_, along, rtol=0.05)
    assert not {"clipped", "variance-lost", "range-ends"} & set(model.doubts_)
