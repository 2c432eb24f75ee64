"""What PrivatePCA learns, charges, shows and refuses."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streaming_pca.api
from streaming_pca import PrivatePCA
from streaming_pca.configure import MAX_FEATURES
from streaming_pca.estimators.registry import find
from streaming_pca.linalg.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import replace_noise_door
from streaming_pca.records import Batch
from tests.api.doors import CASES, RepeatingDoor, SeededDoor, SilentDoor, spiked, turn

every_case = pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)


@contextmanager
def watched(parameters: dict[str, Any]) -> Iterator[list[Batch]]:
    """The batches that the estimator really learns from."""
    kind, seen = find(parameters["estimator"]), []
    update = kind.update

    def spy(self: Any, state: Any, batch: Batch) -> Any:
        seen.append(batch)
        return update(self, state, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "update", spy)
        yield seen


def rows(batches: list[Batch]) -> NDArray[Any]:
    return np.concatenate([batch.rows for batch in batches])


# -- learning ---------------------------------------------------------------


@pytest.mark.parametrize("centering", ["augment", "pairs"])
def test_the_subspace_of_shifted_records_is_found(centering: str) -> None:
    pca = PrivatePCA(2, centering=centering, bounds=(-2, 2), random_state=3)
    with replace_noise_door(SeededDoor()):
        pca.fit(spiked(40_000, mean=0.5))
    random = orthonormalise(np.random.default_rng(1).standard_normal((8, 2))).T
    truth = turn(8)[:2]
    assert subspace_error(pca.components_, truth) < 0.05 * subspace_error(random, truth)
    np.testing.assert_allclose(pca.explained_variance_, [0.16, 0.09], rtol=0.1)


@pytest.mark.parametrize("scale", [None, 0.5, np.linspace(0.5, 2, 8)])
def test_the_mean_is_found_in_units_of_the_features(scale: Any) -> None:
    pca = PrivatePCA(2, bounds=(-2, 2), scale=scale)
    X = spiked(40_000, mean=0.5)
    with replace_noise_door(SeededDoor()):
        pca.fit(X)
    np.testing.assert_allclose(pca.mean_, X.mean(axis=0), atol=0.02)


def test_the_mean_is_the_public_centre_or_nothing_where_none_is_learnt() -> None:
    X = spiked(100)
    assert np.array_equal(PrivatePCA(centering=np.arange(8.0)).fit(X).mean_, np.arange(8.0))
    for centering in ("none", "pairs"):
        assert np.array_equal(PrivatePCA(centering=centering).fit(X).mean_, np.zeros(8))


def test_without_noise_and_clipping_it_is_pca() -> None:
    X = spiked(500, mean=1.0)
    pca = PrivatePCA(3, options={"clip_radius": 1e4})
    with replace_noise_door(SilentDoor()):
        pca.fit(X)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    np.testing.assert_allclose(pca.explained_variance_, values[::-1][:3], rtol=1e-3)
    assert subspace_error(pca.components_, vectors.T[::-1][:3]) < 1e-2
    np.testing.assert_allclose(pca.mean_, X.mean(axis=0), atol=1e-3)


@every_case
def test_components_are_orthonormal_and_ordered(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(3, **parameters).fit(spiked(300))
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(3), atol=1e-12)
    assert (np.diff(pca.explained_variance_) <= 0).all()
    assert (pca.n_components_, pca.n_features_in_, pca.mean_.shape) == (3, 8, (8,))


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
    with replace_noise_door(SilentDoor()):
        with watched(parameters) as batches:
            whole = PrivatePCA(**parameters).fit(spiked(1000))
        parts = PrivatePCA(**parameters)
        for batch in batches:
            parts.partial_fit(batch.rows)
    assert np.array_equal(whole.components_, parts.components_)
    assert np.array_equal(whole.explained_variance_, parts.explained_variance_)
    assert np.array_equal(whole.mean_, parts.mean_)
    assert whole.privacy_spent_ == parts.privacy_spent_


def test_the_estimator_plans_with_the_number_of_records() -> None:
    for options, sizes in (
        ({"n_batches": 1}, [1000]),
        ({"n_batches": 4, "growth": 1}, [250] * 4),
        # A number that the caller names wins; then 600 more is no batch and a half.
        ({"n_batches": 1, "n_records": 400}, [400, 600 - 200, 200]),
        ({"n_batches": 1, "n_records": 700}, [1000]),
        ({"n_records": None, "first_batch": 300, "growth": 1}, [300, 300, 400]),
    ):
        with watched({"estimator": "analyze-gauss"}) as batches:
            PrivatePCA(options=options).fit(spiked(1000))
        assert [len(batch) for batch in batches] == sizes


def test_a_last_batch_of_a_few_records_joins_the_one_before() -> None:
    for records, sizes in ((100, [100]), (149, [149]), (150, [100, 50]), (201, [100, 101]), (249, [100, 149])):
        parameters = {**CASES["private-oja"], "options": {"clip_radius": 20.0, "batch_size": 100}}
        with watched(parameters) as batches:
            PrivatePCA(**parameters).fit(spiked(records))
        assert [len(batch) for batch in batches] == sizes


@every_case
def test_a_factor_of_one_row_is_a_vector(parameters: dict[str, Any]) -> None:
    X = spiked(200)
    with replace_noise_door(RepeatingDoor()):
        vectors = PrivatePCA(**parameters, random_state=1).fit(X)
        factors = PrivatePCA(**parameters, random_state=1).fit(X[:, None, :])
    assert np.array_equal(vectors.components_, factors.components_)
    assert factors.n_records_seen_ == 200
    assert factors.n_features_in_ == 8


def test_a_factor_is_one_record_of_many_rows() -> None:
    factors = spiked(600).reshape(200, 3, 8)
    parameters: dict[str, Any] = {"centering": "none", "options": {"clip_radius": 1e4, "n_batches": 1}}
    with replace_noise_door(SilentDoor()):
        pca = PrivatePCA(**parameters).fit(factors)
    assert pca.n_records_seen_ == 200
    # The matrix of a record is F^T F, so the second moment is three times that of the rows.
    moment = np.linalg.eigvalsh(np.einsum("mri,mrj->ij", factors, factors) / 200)
    np.testing.assert_allclose(pca.explained_variance_, moment[::-1][:2], rtol=1e-3)


def test_signs_and_order_are_stable_from_batch_to_batch() -> None:
    # Two entries of the first direction are as large, so that chance decides a sign that nothing holds.
    directions = np.array([[1, -1, 0, 0], [1, 1, 0, 0]]) / np.sqrt(2)
    pca, overlaps, loose = PrivatePCA(2, bounds=(-2, 2)), [], []
    with replace_noise_door(SeededDoor()):
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
        with pytest.raises(ValueError, match=r"minimum of 2|NaN"):
            pca.fit(bad)
    with pytest.raises(ValueError, match="n_components = 2 is above"):
        pca.fit(X[:, :1])
    pca.delta = 1e-300
    with pytest.raises(ValueError, match="delta = 1e-300 is too small"):
        pca.fit(X[:, :5])
    pca.delta = 1e-6
    assert vars(pca).keys() == before.keys()
    assert all(vars(pca)[name] is before[name] for name in before if name != "delta")


# -- what it costs ----------------------------------------------------------


@every_case
def test_every_record_is_charged_the_promise_once(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(**parameters, epsilon=0.3, delta=1e-5).fit(spiked(100))
    for seed in range(3):
        pca.partial_fit(spiked(40, seed=seed))
    assert isinstance(pca.privacy_spent_, Charge)
    assert (pca.privacy_spent_.epsilon, pca.privacy_spent_.delta) == (Fraction(3, 10), Fraction(1, 10**5))
    assert pca.n_records_seen_ == 220


@every_case
def test_a_batch_is_charged_before_it_is_touched(
    parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pca = PrivatePCA(**parameters)
    spent = []

    def fail(self: Any, state: Any, batch: Batch) -> Any:
        spent.append(pca.privacy_spent_.epsilon)
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(find(parameters["estimator"]), "update", fail)
        with pytest.raises(RuntimeError):
            pca.fit(spiked(100))
        with pytest.raises(RuntimeError):
            pca.partial_fit(spiked(100))
    assert spent == [1, 1]
    assert pca.privacy_spent_.epsilon == 1
    with pytest.raises(ValueError, match="not fitted"):
        pca.transform(spiked(100))


def test_a_batch_that_fails_is_spent_and_the_model_stays() -> None:
    pca = PrivatePCA(bounds=(-2, 2)).partial_fit(spiked(100))
    before = pca.components_

    class Broken(RepeatingDoor):
        def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
            raise OSError

    pca.privacy_spent_ = Charge.nothing()
    with replace_noise_door(Broken()), pytest.raises(OSError):  # noqa: PT011
        pca.partial_fit(spiked(100))
    assert pca.privacy_spent_.epsilon == 1
    assert pca.n_records_seen_ == 100
    assert pca.components_ is before


@every_case
def test_what_is_refused_costs_nothing(parameters: dict[str, Any]) -> None:
    pca = PrivatePCA(**parameters)
    with pytest.raises(ValueError, match="NaN"):
        pca.partial_fit(np.full((10, 8), np.nan))
    assert not hasattr(pca, "privacy_spent_")
    pca.fit(spiked(100))
    pca.privacy_spent_ = Charge.nothing()
    for bad, words in ((np.full((10, 8), np.inf), "infinity"), (spiked(10, d=7), "7 features")):
        with pytest.raises(ValueError, match=words):
            pca.partial_fit(bad)
    pca.epsilon = 2.0
    with pytest.raises(ValueError, match="epsilon changed since the model was begun"):
        pca.partial_fit(spiked(10))
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
        with watched({"estimator": "analyze-gauss"}) as batches:
            PrivatePCA(random_state=make()).fit(spiked(100))
        found.append(rows(batches))
    assert np.array_equal(*found)


# -- using it ---------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 3.0, np.linspace(0.5, 2, 8)])
@pytest.mark.parametrize("centering", ["augment", "none", np.linspace(-1, 1, 8)])
def test_the_whole_space_is_its_own_inverse(scale: Any, centering: Any) -> None:
    X = spiked(50, mean=2.0)
    pca = PrivatePCA(8, scale=scale, centering=centering).fit(X)
    np.testing.assert_allclose(pca.inverse_transform(pca.transform(X)), X, rtol=1e-9, atol=1e-9)


def test_transforming_projects_on_the_subspace_through_the_mean() -> None:
    X = spiked(50, mean=2.0)
    pca = PrivatePCA(3).fit(X)
    coordinates = pca.transform(X)
    np.testing.assert_allclose(coordinates, (X - pca.mean_) @ pca.components_.T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pca.transform(pca.inverse_transform(coordinates)), coordinates, rtol=1e-9)
    assert np.array_equal(pca.inverse_transform(np.zeros((1, 3)))[0], pca.mean_)


def test_rows_are_clamped_to_the_bounds_as_records_were() -> None:
    lower, upper = np.full(8, -1.0), np.linspace(0.5, 2, 8)
    pca = PrivatePCA(8, bounds=(lower, upper)).fit(spiked(50))
    X = spiked(50, seed=1)
    kept = X.copy()
    inverse = pca.inverse_transform(pca.transform(X))
    np.testing.assert_allclose(inverse, np.clip(X, lower, upper), rtol=1e-9, atol=1e-9)
    assert np.array_equal(X, kept)


def test_factors_are_transformed_row_by_row() -> None:
    factors = spiked(60).reshape(20, 3, 8)
    pca = PrivatePCA(2).fit(factors)
    coordinates = pca.transform(factors)
    assert coordinates.shape == (20, 3, 2)
    np.testing.assert_allclose(coordinates.reshape(60, 2), pca.transform(factors.reshape(60, 8)))
    assert pca.inverse_transform(coordinates).shape == (20, 3, 8)


def test_changed_parameters_do_not_change_a_model_that_is_there() -> None:
    X = spiked(50)
    pca = PrivatePCA(bounds=(-1, 1), scale=2.0).fit(X)
    before = pca.transform(X)
    pca.set_params(bounds=None, scale=None, n_components=4)
    assert np.array_equal(pca.transform(X), before)
    assert pca.get_feature_names_out().tolist() == ["privatepca0", "privatepca1"]


def test_numbers_that_overflow_give_no_warning() -> None:
    huge = np.full((20, 8), 1.7e308)
    for parameters in CASES.values():
        pca = PrivatePCA(**parameters).fit(huge)
        assert np.isfinite(pca.components_).all()
        pca.transform(huge)
        pca.inverse_transform(np.full((1, 2), 1.7e308))
    PrivatePCA().fit(huge.astype(np.float64) / 1e270).transform(np.full((1, 8), 3e38, dtype=np.float32))


# -- mistakes ---------------------------------------------------------------

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"n_components": 0}, "n_components must be a whole number of at least 1, not 0"),
    ({"n_components": 1.5}, "n_components must be"),
    ({"n_components": True}, "n_components must be"),
    ({"n_components": 9}, "n_components = 9 is above the number of features, 4"),
    ({"epsilon": 0}, "epsilon must be a finite number above 0"),
    ({"epsilon": "1"}, "epsilon must be a number, not '1'"),
    ({"epsilon": 1e13}, "epsilon and delta must be at most 1e12"),
    ({"epsilon": 1e-300}, "raise epsilon"),
    ({"delta": 0}, "delta must lie between 0 and 1"),
    ({"delta": None}, "delta must be a number"),
    ({"delta": 1e-300}, "raise delta"),
    ({"estimator": "analyse-gauss"}, "no estimator 'analyse-gauss'; known: analyze-gauss"),
    ({"estimator": ["analyze-gauss"]}, "estimator must be the id of one"),
    ({"estimator": "private-oja"}, "options of private-oja: clip_radius: must be set"),
    ({"estimator": "private-oja", "options": {"clip_radius": 1}}, 'cannot use centering = "augment"'),
    ({"centering": "median"}, 'centering must be "augment", "pairs", "none", or one number a feature'),
    ({"centering": 3.0}, "centering must be"),
    ({"centering": None}, "centering must be"),
    ({"centering": [1, 2]}, "centering has 2 numbers for 4 features"),
    ({"centering": [1, 2, 3, np.nan]}, "centering must be finite"),
    ({"centering": [[1, 2], [3]]}, "centering must be"),
    ({"bounds": 3}, "bounds must be a pair"),
    ({"bounds": (1, 2, 3)}, "bounds must be a pair"),
    ({"bounds": ("a", "b")}, "bounds must be a number, or one number a feature, not 'a'"),
    ({"bounds": (1, 1)}, "bounds must have lower below upper"),
    ({"bounds": ([1, 2], 3)}, "bounds has 2 numbers for 4 features"),
    ({"bounds": (0, np.inf)}, "bounds must be finite"),
    ({"scale": 0}, "scale must be above 0"),
    ({"scale": np.eye(4)}, "scale must be a number, or one number a feature"),
    ({"random_state": -1}, "random_state must be"),
    ({"random_state": "seven"}, "random_state must be"),
    ({"random_state": np.random.RandomState}, "random_state must be"),
    ({"options": [1]}, "options must be a dict"),
    ({"options": {1: 2}}, "options must be a dict"),
    ({"options": {"grow": 2}}, "options of analyze-gauss: grow: no such setting"),
    ({"options": {"growth": 0.5}}, "options of analyze-gauss: growth: "),
    ({"options": {"n_records": 1}}, "options of analyze-gauss: n_records: "),
    ({"options": {"radius_range": (2, 1)}}, "options of analyze-gauss: radius_range must rise"),
]


@pytest.mark.parametrize(("parameters", "words"), MISTAKES, ids=str)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_mistake_is_one_line_that_names_the_parameter(
    parameters: dict[str, Any], words: str, method: str
) -> None:
    pca = PrivatePCA(**parameters)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        getattr(pca, method)(np.eye(4))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not hasattr(pca, "privacy_spent_")


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.zeros((2, 2, 2, 2)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros((3, 0, 4)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros(3), "Reshape your data"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((3, 2, MAX_FEATURES + 1)), "at most 8192 are possible"),
        (np.zeros((2, MAX_FEATURES + 1)), "at most 8192 are possible"),
        (np.ones((2, 3)) * 1j, "Complex data not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.shape),
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_records_of_another_shape_are_refused(X: NDArray[Any], words: str, method: str) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(PrivatePCA(), method)(X)


def test_more_records_than_a_batch_can_hold_are_refused() -> None:
    X = np.zeros((MAX_RECORDS + 1, 1), dtype=np.float32)
    with pytest.raises(ValueError, match=f"a batch at most {MAX_RECORDS}: pass it in parts"):
        PrivatePCA(1).partial_fit(X)
    with pytest.raises(ValueError, match="raise n_batches"):
        PrivatePCA(1, options={"n_batches": 1}).fit(X)


def test_pairs_need_two_records_of_one_row() -> None:
    pca = PrivatePCA(centering="pairs")
    for X in (np.ones((1, 4)), np.ones((6, 2, 4))):
        with pytest.raises(ValueError, match="pairs"):
            pca.partial_fit(X)
    assert pca.partial_fit(np.ones((5, 4))).n_records_seen_ == 4


def test_coordinates_of_another_rank_are_refused() -> None:
    pca = PrivatePCA(2).fit(spiked(20))
    with pytest.raises(ValueError, match="X has 3 columns for 2 components"):
        pca.inverse_transform(np.zeros((5, 3)))


# -- the package ------------------------------------------------------------


def test_the_command_line_does_not_import_scikit_learn() -> None:
    code = (
        "import sys, streaming_pca.cli\n"
        "assert 'sklearn' not in sys.modules\n"
        "assert 'PrivatePCA' in dir(streaming_pca)\n"
        "from streaming_pca import PrivatePCA\n"
        "assert 'sklearn' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="PublicPCA"):
        streaming_pca.PublicPCA  # noqa: B018


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(streaming_pca.api)
    assert not result.failed
    assert result.attempted
