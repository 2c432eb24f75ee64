"""Releases: what each version holds, what is refused, and ``transform`` as a consumer repeats it."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy.sparse import csr_array

from streaming_pca import PrivatePCA
from streaming_pca.cli.plan import counts_text
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.release import ACCURACY, COUNTS, LONGEST_ARRAY, ArrayDigest, Release
from streaming_pca.estimators.base import Outcome, Subspace
from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.batch_result import compute_batch, make_release
from streaming_pca.service.input.source import OffsetBatch
from streaming_pca.service.topics.sizes import release_bytes
from tests.api.samplers import spiked
from tests.data.refusals import refuses
from tests.data.tables import tables_of

DIM = 8
CENTRE = np.linspace(-1, 1, DIM)
SCALE = np.linspace(0.5, 2, DIM)
BOUNDS = (np.full(DIM, -3.0), np.linspace(2, 4, DIM))


def stream_of(pca: PrivatePCA, **changes: Any) -> StreamSettings:
    """Return settings of a stream that learns the same as the model."""
    how = {name: getattr(pca, name) for name in ("epsilon", "delta", "estimator")}
    for name in ("centering", "scale", "bounds"):
        value = getattr(pca, name)
        if name == "bounds" and value is not None:
            value = [np.asarray(bound).tolist() for bound in value]
        how[name] = value.tolist() if isinstance(value, np.ndarray) else value
    settings = {"name": "s", "input": "in", "dim": DIM, "rank": pca.n_components, **how} | changes
    return StreamSettings(**settings)


def release_of(pca: PrivatePCA, **changes: Any) -> Release:
    """Return the model's release as a consumer reads it."""
    subspace = pca._estimator.release(pca._state)
    return Release.from_bytes(make_release(stream_of(pca, **changes), subspace, 1, pca.n_records_seen_))


def plain(**changes: Any) -> dict[str, Any]:
    """Return a release of version 6 as plain data."""
    values: dict[str, Any] = {"schema_name": "streaming-pca.release", "version": 6, "kind": "subspace"}
    values |= {"stream": "s", "batch": 1, "records": 10, "dim": 2, "rank": 1, "estimator": "e"}
    values |= {"components": [[0.6, 0.8]], "explained_variance": [2.0], "mean": None}
    values |= {"centering": "none", "scale": None, "bounds": None, "epsilon": 1.0, "delta": 1e-6}
    values |= {"adjacency": "replace-one", "privacy_unit": "message", "feature_names": None}
    return values | {"created": "2026-01-01T00:00:00.000+00:00"} | changes


ACCURATE: dict[str, Any] = {"explained_variance_error": [0.25], "total_variance": -0.5}
ACCURATE |= {"total_variance_error": 1 / 3, "angle_bound": math.pi / 2}
COUNTED: dict[str, Any] = {"batch_records": 2200, "null_records": 270.0, "null_records_error": 10.0}
COUNTED |= {"clipped_records": -3.0, "clipped_records_error": 10.0}
OF_STREAM: dict[str, Any] = {"name": "s", "input": "in", "dim": 2, "rank": 1}
PLAIN = StreamSettings(**OF_STREAM, epsilon=1.0, delta=1e-6, centering="pairs")
SUBSPACE = Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), None)


def accurate(**changes: Any) -> dict[str, Any]:
    """Return a release of version 2 with its accuracy, as plain data."""
    return plain(version=2, centering=None) | ACCURATE | changes


def of_a_tensor(**changes: Any) -> dict[str, Any]:
    return plain(version=4, centering=None, kind="tensor", weights=[0.5]) | changes


def counted(**changes: Any) -> dict[str, Any]:
    """Return a release of version 6 with accuracy and counts, as plain data."""
    return plain() | ACCURATE | COUNTED | changes


def read(**changes: Any) -> Release:
    return Release.from_bytes(json.dumps(plain(**changes)).encode())


@pytest.mark.parametrize(
    ("scale", "bounds"),
    [(None, None), (3.0, (-3.0, 2.5)), (SCALE, BOUNDS), (SCALE, None)],
    ids=["plain", "numbers", "arrays", "scaled"],
)
@pytest.mark.parametrize("centering", ["auto", "pairs", "none", CENTRE], ids=str)
def test_a_release_transforms_rows_to_the_models_bits(centering: Any, scale: Any, bounds: Any) -> None:
    pca = PrivatePCA(3, epsilon=50, centering=centering, scale=scale, bounds=bounds)
    pca.fit(spiked(3000, mean=2.0))
    release = release_of(pca)
    assert (release.mean is not None) == (centering == "auto" if isinstance(centering, str) else False)
    rows = spiked(40, seed=1, mean=2.0)
    for X in (rows, rows.astype(np.float32), rows.reshape(10, 4, DIM)):
        made = release.transform(X)
        np.testing.assert_array_equal(made, pca.transform(X), strict=True)
        back = release.inverse_transform(made)
        np.testing.assert_array_equal(back, pca.inverse_transform(made), strict=True)
    # Equality alone would accept a constant projection; the components lose only the order of sums.
    assert np.linalg.matrix_rank(release.transform(rows)) == 3


def test_without_a_mean_found_nothing_is_subtracted() -> None:
    release = read(centering="auto", scale=2.0, bounds=[-1.0, [1.0, 5.0]])
    np.testing.assert_allclose(release.transform([[3, 3]]), [[2 * (0.6 * 1 + 0.8 * 3)]])


def test_sparse_rows_and_nullable_columns_are_refused_with_what_to_pass() -> None:
    release = read(centering="none", scale=2.0, bounds=None)
    X = pd.DataFrame({"a": [1, 2], "b": [1, 3]}).astype("Int64")
    for given, words in ((csr_array(np.ones((2, 2))), "X is sparse: pass X.toarray"), (X, "X.to_numpy")):
        refuses(words, release.transform, given)
    assert release.transform(X.to_numpy(float)).shape == (2, 1)


def test_a_mean_is_of_the_scaled_features() -> None:
    release = read(centering="auto", scale=[2.0, 4.0], mean=[2.0, 4.0])
    np.testing.assert_allclose(release.transform([[1.0, 1.0], [2.0, 1.0]]), [[0.0], [1.2]], atol=1e-15)
    np.testing.assert_allclose(release.inverse_transform([[0.0]]), [[1.0, 1.0]])


def test_a_dominant_feature_is_published_with_its_doubt_alone() -> None:
    stream = StreamSettings(**OF_STREAM | {"dim": 3}, epsilon=1.0, delta=1e-6)
    for bound, version in ((math.pi / 2, 7), (0.1, 6)):
        subspace = Subspace(np.eye(1, 3), np.ones(1), None, angle_bound=bound, dominant_feature=2)
        data = make_release(stream, subspace, 1, 10)
        release = Release.from_bytes(data)
        assert release.version == version
        assert ("dominated" in release.doubts) == (b"dominant_feature" in data) == (version == 7)
        assert release.dominant_name == ("2" if version == 7 else None)
    named = read(version=7, dominant_feature=1, feature_names=["a", "income"])
    assert named.dominant_name == "income"


def test_long_settings_are_published_by_their_digest() -> None:
    dim = LONGEST_ARRAY + 1
    centre, scale = np.linspace(-1, 1, dim), np.linspace(1, 2, dim)
    of_features: dict[str, Any] = {"centering": centre.tolist(), "scale": scale.tolist()}
    of_features["bounds"] = [-4, np.full(dim, 4.0).tolist()]
    stream = StreamSettings(**OF_STREAM | {"dim": dim}, epsilon=1.0, delta=1e-6, **of_features)
    direction = np.ones((1, dim)) / np.sqrt(dim)
    data = make_release(stream, Subspace(direction, np.ones(1), None), 1, 10)
    assert len(data) <= release_bytes(stream)
    found = json.loads(data)
    # Computed as a program in another language would.
    expected = hashlib.sha256(b"".join(struct.pack("<d", number) for number in centre)).hexdigest()
    assert found["centering"] == {"digest": f"sha256:{expected}", "size": dim}
    assert (found["scale"]["size"], found["bounds"][0], found["bounds"][1]["size"]) == (dim, -4.0, dim)
    release = Release.from_bytes(data)
    assert release.to_bytes() == data
    X = np.random.default_rng(0).normal(size=(5, dim)) * 4
    refuses(r"only the digest of centering, of 1025 numbers: .*with_settings", release.transform, X)
    bounds = (-4.0, np.full(dim, 4.0))
    whole = release.with_settings(centering=centre, scale=scale, bounds=bounds)
    by_hand = (np.clip(X, -4, 4) - centre) * scale @ direction.T
    np.testing.assert_allclose(whole.transform(X), by_hand)
    refuses("only the digest of bounds", release.with_settings(centering=centre, scale=scale).transform, X)
    of_scale = ({"scale": scale + 1e-12}, {"scale": 1.0})
    for wrong in (*of_scale, {"bounds": (-4.0, 4.0)}, {"bounds": (-5, bounds[1])}):
        refuses("not the numbers of the release's stream", release.with_settings, **wrong)


def test_settings_that_a_release_holds_are_not_replaced() -> None:
    release = read(centering=[1.0, 2.0], scale=2.0)
    assert release.with_settings(centering=[1, 2], scale=2) == release
    for wrong in ({"centering": [1, 3]}, {"scale": 3}, {"scale": [2, 2]}, {"bounds": (0, 1)}):
        refuses("not the numbers", release.with_settings, **wrong)
    for no_pair in ((0, 1, 2), 3, [], np.array(1.0)):
        refuses("bounds must be a pair", release.with_settings, bounds=no_pair)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"scale": ["a"] * 4}, "scale"),
        ({"scale": {"a": 1.0}}, "scale"),
        ({"scale": [[1.0], [1.0, 2.0]]}, "scale"),
        ({"scale": [10**400]}, "scale"),
        ({"centering": ["secret", 1.0]}, "centering"),
        ({"bounds": (["a", "b"], 1.0)}, "lower bounds"),
        ({"bounds": (0.0, [object()])}, "upper bounds"),
    ],
)
def test_settings_that_are_not_numbers_are_named(given: Any, name: str) -> None:
    release = read(centering=[1.0, 2.0], scale=[2.0, 2.0], bounds=[0.0, 1.0])
    words = f"^{name} must be numbers: pass the setting of the release's stream$"
    refuses(words, release.with_settings, **given)


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        (accurate(**changes), words)
        for changes, words in (
            ({"explained_variance_error": [0.1, 0.1]}, "explained_variance_error does not have 1 numbers"),
            ({"explained_variance_error": [-0.1]}, "greater than or equal to 0"),
            ({"explained_variance_error": [math.nan]}, ""),
            ({"total_variance": math.inf}, ""),
            ({"total_variance_error": -1.0}, "greater than or equal to 0"),
            ({"total_variance_error": math.inf}, ""),
            ({"angle_bound": -0.1}, ""),
            ({"angle_bound": 1.6}, ""),
            ({"angle_bound": math.nan}, ""),
            ({"version": 6}, "version 6 needs a centering"),
            ({"version": 2, "outcome": "learnt"}, "outcome needs version 3 or later, but this is version 2"),
            ({"version": 3, "private": False}, "epsilon and delta must be null"),
            ({"version": 3, "private": False, "epsilon": None}, "epsilon and delta must be null"),
            ({"version": 2, "delta": None}, "epsilon and delta must be null"),
            ({"version": 3, "outcome": "Learnt!"}, "match pattern"),
            ({"version": 3, "outcome": ""}, "match pattern"),
            ({"version": 3, "outcome": "x" * 65}, "match pattern"),
        )
    ),
    (plain(version=1, centering=None, private=False), "needs version 3 or later, but this is version 1"),
    *(
        (of_a_tensor(**changes), words)
        for changes, words in (
            ({"weights": None}, "a tensor must have weights, and a subspace must not"),
            ({"kind": "subspace"}, "a tensor must have weights, and a subspace must not"),
            ({"weights": [1.0, 2.0]}, "weights does not have 1 numbers"),
            ({"weights": [math.inf]}, "finite"),
            ({"support": [2]}, "support names a feature above 1"),
            ({"support": [-1]}, "greater than or equal to 0"),
            ({"kind": "matrix"}, "subspace"),
        )
    ),
    *(
        (counted(**changes), words)
        for changes, words in (
            ({"version": 5, "centering": None}, "needs version 6 or later"),
            ({"batch_records": None}, "some of"),
            ({"clipped_records": None}, "some of"),
            ({"null_records": math.nan}, "finite"),
            ({"null_records_error": -1.0}, "greater than or equal to 0"),
            ({"batch_records": -1}, "greater than or equal to 0"),
        )
    ),
    *(
        (plain(**changes), words)
        for changes, words in (
            ({"centering": [1.0]}, "centering does not have 2 numbers"),
            ({"scale": [1.0, 2.0, 3.0]}, "scale does not have 2 numbers"),
            ({"scale": 0.0}, "scale: Input should be greater than 0"),
            ({"scale": [1.0, -1.0]}, "scale: "),
            ({"bounds": [0.0, [1.0]]}, "bounds does not have 2 numbers"),
            ({"bounds": [0.0]}, "bounds"),
            ({"scale": {"digest": "md5:00", "size": 2}}, "scale"),
            ({"scale": {"digest": "sha256:" + "0" * 64, "size": 3}}, "scale does not have 2 numbers"),
            ({"centering": None}, "version 6 needs a centering"),
            ({"version": 5}, "centering needs version 6 or later, but this is version 5"),
            ({"version": 5, "centering": None, "scale": 1.0}, "scale needs version 6 or later"),
            ({"version": 0}, "version: "),
            ({"version": 7, "dominant_feature": 2}, "dominant_feature"),
            ({"version": 6, "dominant_feature": 1}, "dominant_feature"),
            ({"components": [[1.0]]}, "components does not have 1 rows of 2 numbers"),
            ({"components": []}, "components does not have 1 rows of 2 numbers"),
            ({"components": [[1.0, 0.0], [1.0]]}, "components does not have 1 rows"),
            ({"components": [[math.nan, 0.0]]}, "components: .*finite"),
            ({"mean": [1.0]}, "mean does not have 2 numbers"),
            ({"mean": [1.0, math.inf]}, "mean: .*finite"),
            ({"explained_variance": []}, "explained_variance does not have 1 numbers"),
            ({"epsilon": -1.0}, "epsilon: .*greater than 0"),
            ({"delta": 1.0}, "delta: .*less than 1"),
            ({"records": -1}, "records: "),
            ({"bounds": [1.0, -1.0]}, "a lower bound is above the upper one"),
            ({"bounds": [0.0, [1.0, -1.0]]}, "a lower bound is above the upper one"),
            ({"feature_names": ["a"]}, "feature_names does not have 2 names"),
        )
    ),
]


@pytest.mark.parametrize(
    ("values", "words"), WRONG, ids=[f"{i} {words}" for i, (_, words) in enumerate(WRONG)]
)
def test_values_that_cannot_be_are_no_release(values: dict[str, Any], words: str) -> None:
    refuses(f"not a release: .*{words}", Release.from_bytes, json.dumps(values).encode())
    with pytest.raises(ValidationError):
        Release(**values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"components": [[2.0, 0.0]]}, "components are not orthonormal"),
        ({"components": [[1e300, 0.0]]}, "components are not orthonormal"),
        ({"kind": "tensor", "weights": [1.0], "components": [[2.0, 0.0]]}, "components are not of length 1"),
    ],
)
def test_components_that_span_nothing_are_no_release(changes: dict[str, Any], words: str) -> None:
    refuses(f"^not a release: {words}$", read, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 5, "centering": None}, "version 5 does not contain centering and scale: use a release"),
        ({"kind": "tensor", "weights": [1.0]}, "holds components of a tensor, not of a subspace"),
        ({"centering": "medoid"}, 'centering = "medoid" is of a later version'),
    ],
    ids=str,
)
def test_a_release_that_projects_nothing_says_why(changes: dict[str, Any], words: str) -> None:
    refuses(words, read(**changes).transform, [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[1.0, 2.0, 3.0]], "X has 3 columns for 2 features"),
        ([1.0, 2.0], r"X must be rows \(m, 2\) or \(m, r, 2\), not of shape \(2,\)"),
        ([[1.0, np.nan]], "X holds a NaN or an infinity"),
        ([["a", "b"]], "X must hold numbers"),
        ([[1.0, 2.0], [1.0]], "^X has rows of different lengths$"),
        *(
            (table, r"feature_names: bring them into the order \['a', 'b'\]")
            for table in tables_of(b=1.0, a=2.0)
        ),
        (
            pd.DataFrame({"a": [1], "c": [2]}),
            r"of X are not .* feature_names: missing \['b'\], extra \['c'\]$",
        ),
        (pd.DataFrame({"a": [1], "b": ["1,5"]}), "^column 'b' of X must hold numbers, not str: convert it"),
    ],
    ids=[
        *("width", "shape", "nan", "words", "lengths", "pandas", "polars", "Arrow", "a batch of Arrow"),
        *("another column", "a column of words"),
    ],
)
def test_rows_that_do_not_fit_are_refused(X: Any, words: str) -> None:
    refuses(words, read(feature_names=["a", "b"]).transform, X)


def test_a_table_with_the_streams_names_is_taken() -> None:
    release = read(feature_names=["a", "b"])
    for table in tables_of(a=1.0, b=2.0):
        np.testing.assert_allclose(release.transform(table), [[2.2]])
    np.testing.assert_allclose(release.transform(pd.DataFrame([[1, 2]])), [[2.2]])
    refuses("X has 2 columns for 1 components", release.inverse_transform, [[1.0, 2.0]])


def test_a_release_of_a_local_stream_projects_what_producers_privatize() -> None:
    release = read(local=True)
    np.testing.assert_allclose(release.transform([[1.0, 2.0]]), [[2.2]])
    refuses("X has 3 columns", release.transform, np.zeros((1, 3)))


def test_a_later_version_is_read_for_what_is_known() -> None:
    digest = ArrayDigest.of([1.0, 2.0]).model_dump() | {"more": 1}
    release = read(version=7, colour="red", scale=digest, doubts=["no-such-word-yet"])
    assert (release.version, release.batch, release.doubts) == (7, 1, ("no-such-word-yet",))
    np.testing.assert_allclose(release.with_settings(scale=[1, 2]).transform([[1.0, 1.0]]), [[2.2]])
    assert read(version=2, centering=None, colour="red").version == 2
    refuses("not a release: schema_name: ", read, version=7, schema_name="streaming-pca.other")
    with pytest.raises(ValueError, match="not a release: components: "):
        Release.from_bytes(json.dumps({k: v for k, v in plain().items() if k != "components"}).encode())


def test_a_release_of_version_6_has_these_bytes() -> None:
    values = plain(centering=[0.5, 1.0], scale=2.0, bounds=[[0.0, 0.0], 1.0])
    data = json.dumps(values, separators=(",", ":")).replace("1e-06", "1e-6").encode()
    assert Release.from_bytes(data).to_bytes() == data


def test_a_release_round_trips_and_anything_else_is_refused() -> None:
    exact = {"components": [[1.0, 1e-300]], "explained_variance": [1 / 3], "feature_names": ["größe", "b"]}
    release = Release(**plain(version=1, centering=None, **exact))
    assert Release.from_bytes(release.to_bytes()) == release
    unnamed = release.model_copy(update={"feature_names": None})
    assert Release.from_bytes(unnamed.to_bytes()).feature_names is None
    refuses("not a release", Release.from_bytes, b'{"kind": "subspace"}')
    # A release omits a field that its stream does not use.
    assert b"contributions" not in release.to_bytes()
    of_users = release.model_copy(update={"privacy_unit": "user", "contributions_per_user": 3})
    assert Release.from_bytes(of_users.to_bytes()) == of_users
    assert b'"contributions_per_user":3' in of_users.to_bytes()


def test_a_release_that_says_how_exact_it_is_round_trips() -> None:
    release = Release(**accurate())
    assert Release.from_bytes(release.to_bytes()) == release
    assert {name: getattr(release, name) for name in ACCURACY} == ACCURATE
    assert release.accuracy == {"explained_variance": [2.0]} | ACCURATE


@pytest.mark.parametrize("name", ACCURACY)
def test_what_a_release_does_not_know_is_left_out(name: str) -> None:
    text = Release(**accurate(**{name: None})).to_bytes()
    assert name.encode() + b'"' not in text
    assert Release.from_bytes(text).accuracy[name] is None
    alone = Release(**accurate(**(dict.fromkeys(ACCURACY) | {name: ACCURATE[name]}))).to_bytes()
    assert {key for key in json.loads(alone) if key in ACCURACY} == {name}


def test_a_release_of_version_1_is_read_and_has_nothing_of_version_2() -> None:
    later = {"centering", "scale", "bounds"}
    old = {key: value for key, value in plain(version=1).items() if key not in later}
    release = Release.from_bytes(json.dumps(old).encode())
    assert release.version == 1
    assert set(json.loads(release.to_bytes())) == set(old)
    for name in ACCURACY:
        words = f"not a release: .*{name} needs version 2 or later, but this is version 1"
        refuses(words, Release.from_bytes, json.dumps(old | {name: ACCURATE[name]}).encode())


def test_a_subspace_is_published_with_its_accuracy() -> None:
    numbers = ACCURATE | {"angle_bound": 0.5}
    printed = {name: np.array(v) if isinstance(v, list) else v for name, v in numbers.items()}
    release = Release.from_bytes(make_release(PLAIN, replace(SUBSPACE, **printed), 1, 10))
    assert {name: getattr(release, name) for name in ACCURACY} == numbers
    # A numpy number counts as a number.
    bounded = Release.from_bytes(make_release(PLAIN, replace(SUBSPACE, angle_bound=np.float64(0.0)), 1, 10))
    assert (bounded.angle_bound, bounded.total_variance) == (0.0, None)
    # NaN is an error of the estimator: it must not become null in JSON, which means unknown.
    with pytest.raises(ValidationError):
        make_release(PLAIN, replace(SUBSPACE, total_variance=math.nan), 1, 10)


def test_an_outcome_is_published_and_a_private_stream_says_nothing_of_it() -> None:
    for outcome in Outcome:
        data = make_release(PLAIN, replace(SUBSPACE, outcome=outcome), 1, 10)
        assert json.loads(data)["outcome"] == outcome.value
        assert "private" not in json.loads(data)
        release = Release.from_bytes(data)
        assert (release.outcome, release.private) == (outcome.value, True)
        assert release.to_bytes() == data
    exact = make_release(PLAIN, replace(SUBSPACE, outcome=Outcome.LEARNT, angle_bound=0.5), 1, 10)
    assert Release.from_bytes(exact).angle_bound == 0.5


PRIVATE = '"epsilon":1.0,"delta":1e-6'


@pytest.mark.parametrize(
    ("version", "accuracy", "guarantee", "end"),
    [
        (1, "", "", ""),
        (2, '"angle_bound":0.5,', "", ""),
        (3, "", '"private":false,"epsilon":null,"delta":null', ',"outcome":"learnt"'),
        (4, "", '"local":true,"epsilon":1.0,"delta":1e-6', ""),
        (5, '"angle_bound":0.5,', "", ',"doubts":["not-resolved"]'),
    ],
)
def test_releases_of_earlier_versions_are_read_and_written_as_they_were(
    version: int, accuracy: str, guarantee: str, end: str
) -> None:
    data = (
        f'{{"schema_name":"streaming-pca.release","version":{version},"kind":"subspace","stream":"s","batch":1,'
        '"records":10,"dim":2,"rank":1,"estimator":"adaptive","components":[[0.6,0.8]],'
        f'"explained_variance":[2.0],{accuracy}"mean":null,{guarantee or PRIVATE},"adjacency":"replace-one",'
        f'"privacy_unit":"message","feature_names":null,"created":"2026-01-01T00:00:00.000+00:00"{end}}}'
    ).encode()
    release = Release.from_bytes(data)
    assert (release.version, release.centering, release.to_bytes()) == (version, None, data)


def test_a_stream_that_is_not_private_promises_nothing() -> None:
    how: dict[str, Any] = {"epsilon": math.inf, "delta": math.inf, "private": False, "estimator": "oja"}
    data = make_release(StreamSettings(**OF_STREAM, **how, centering="none"), SUBSPACE, 1, 10)
    found = json.loads(data, parse_constant=pytest.fail)
    facts = [found[name] for name in ("version", "private", "epsilon", "delta", "adjacency")]
    assert facts == [6, False, None, None, "none"]
    assert "outcome" not in found
    assert Release.from_bytes(data).to_bytes() == data


def test_an_outcome_of_times_to_come_is_read() -> None:
    data = json.dumps(accurate(version=3, outcome="no-such-word-yet")).encode()
    assert Release.from_bytes(data).outcome == "no-such-word-yet"


LOCAL = accurate(version=4, local=True, support=[0, 1])


@pytest.mark.parametrize("values", [of_a_tensor(), LOCAL, accurate(version=4, support=[])])
def test_a_release_of_version_4_round_trips_and_older_ones_have_nothing_of_it(values: dict[str, Any]) -> None:
    release = Release(**values)
    assert Release.from_bytes(release.to_bytes()) == release
    reported = {name for name in ("weights", "support", "local") if name in json.loads(release.to_bytes())}
    assert reported == {name for name in ("weights", "support", "local") if values.get(name) is not None}
    for name in ("weights", "support"):
        assert (name in release.accuracy) == (name in reported)
    for version in (1, 2, 3):
        with pytest.raises(ValidationError):
            Release(**values | {"version": version})


def test_a_release_of_version_5_round_trips_and_older_ones_have_no_doubts() -> None:
    doubtful = Release(**accurate(version=5, doubts=("not-resolved", "no-such-word-yet")))
    assert json.loads(doubtful.to_bytes())["doubts"] == ["not-resolved", "no-such-word-yet"]
    assert Release.from_bytes(doubtful.to_bytes()) == doubtful
    for version in (1, 2, 3, 4):
        values = accurate(version=version, doubts=["not-resolved"], **dict.fromkeys(ACCURACY))
        words = f"not a release: .*doubts needs version 5 or later, but this is version {version}"
        refuses(words, Release.from_bytes, json.dumps(values).encode())
    for wrong in (["Not resolved"], "not-resolved", [1], None):
        refuses("not a release", Release.from_bytes, json.dumps(accurate(version=5, doubts=wrong)).encode())


def test_doubts_are_published_and_without_them_nothing_is_said() -> None:
    exact = replace(SUBSPACE, angle_bound=0.5)
    assert b"doubts" not in make_release(PLAIN, exact, 1, 10)
    data = make_release(PLAIN, replace(exact, angle_bound=math.pi / 2, outcome=Outcome.LEARNT), 1, 10)
    release = Release.from_bytes(data)
    assert (release.version, release.outcome, release.doubts) == (6, "learnt", ("not-resolved",))
    assert release.to_bytes() == data
    assert Release.from_bytes(make_release(PLAIN, exact, 1, 0)).doubts == ("no-records",)


def test_a_mean_that_was_not_found_is_null_and_a_doubt() -> None:
    stream = StreamSettings(**OF_STREAM, epsilon=1.0, delta=1e-6)
    found = replace(SUBSPACE, mean=np.array([1.0, 0.0]), angle_bound=0.5)
    known = Release.from_bytes(make_release(stream, found, 1, 10))
    assert (known.mean, known.doubts) == ([1.0, 0.0], ())
    data = make_release(stream, replace(found, mean=None), 1, 10)
    assert b'"mean":null' in data
    assert Release.from_bytes(data).doubts == ("mean-unknown",)


def test_counts_round_trip_and_are_left_out_where_there_are_none() -> None:
    release = Release(**counted())
    assert Release.from_bytes(release.to_bytes()) == release
    assert release.counts == COUNTED | {"clipped_of": 2200}
    assert release.least_null_share == (270 - 50) / 2200
    without = Release(**counted(**dict.fromkeys(COUNTS)))
    assert not json.loads(without.to_bytes()).keys() & set(COUNTS)
    assert (without.counts, without.least_null_share) == ({}, 0.0)
    assert Release(**counted(null_records=-40.0)).least_null_share == 0
    # Where each row is a record, unreadable messages contain none.
    assert Release(**counted(batch_records=0)).least_null_share == 1
    # Noise alone could make it 220 of 100 records, or hide all records of a small batch.
    assert Release(**counted(batch_records=100)).least_null_share == 1
    assert Release(**counted(batch_records=50)).least_null_share == 0


def test_clipped_pairs_are_a_share_of_the_pairs() -> None:
    """A pair is clipped once: if all are clipped, their number is half the number of records."""
    pairs = Release(**counted(centering="pairs", clipped_records=1100.0))
    assert pairs.counts["clipped_of"] == 1100
    assert counts_text(pairs.counts) == "null 12.3% ± 0.45%, clipped 100.0% ± 0.91%"
    # A single record does not form a pair.
    assert "clipped 0.0%" in counts_text(Release(**counted(centering="pairs", batch_records=1)).counts)


def test_the_standard_error_is_that_of_the_noise() -> None:
    diagnostics = Diagnostics(PrivacyParameters(epsilon=1.0, delta=1e-6), 0.5)
    scale = 2 / 0.5
    k = np.arange(-2000, 2001)
    weights = np.exp(-abs(k) / scale)
    exact = math.sqrt((k**2 * weights).sum() / weights.sum())
    assert math.isclose(diagnostics.standard_error, exact, rel_tol=1e-9)
    drawn = np.array([diagnostics.counts(7, 7) for _ in range(4000)]) - 7
    # Eight thousand draws: their deviation is within 8% of the true one, except with probability below 1e-6.
    assert abs(drawn.std() / diagnostics.standard_error - 1) < 0.08


@pytest.mark.parametrize("share", [0.02, 0.0])
def test_a_batch_that_was_answered_tells_its_noisy_counts_where_they_are_paid_for(share: float) -> None:
    how = {"diagnostics_share": share, "options": {"n_records": 400, "n_batches": 1}}
    stream = StreamSettings(**OF_STREAM | {"dim": 3}, epsilon=1e4, delta=1e-6, **how)
    x = np.random.default_rng(0).standard_normal((400, 3))
    x[:120] = np.nan
    estimator = stream.build_estimator()
    state = estimator.init(utility_generator(0))
    cut = OffsetBatch(ArrayBatch.of_vectors(x), (), {}, {})
    result = compute_batch(stream, None, state, cut, 1)
    release = Release.from_bytes(result.release)
    if not share:
        assert (release.counts, estimator.diagnostics) == ({}, None)
        return
    # The counts are part of the state: nothing is drawn for the release.
    assert [release.null_records, release.clipped_records] == result.state.counts.tolist()
    assert (release.batch_records, release.null_records) == (400, 120)  # at epsilon 200 there is hardly noise
    assert estimator.diagnostics is not None
    assert release.null_records_error == estimator.diagnostics.standard_error


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.bool_])
def test_a_projection_keeps_the_digits_of_whole_numbers(kind: type[Any]) -> None:
    """Coordinates had the rows' type: integers lost all digits after the point, and True was one."""
    release = read()
    projection, rows = release.projection(), np.array([[1, 0], [1, 1]], kind)
    coordinates = projection.transform(rows)
    np.testing.assert_array_equal(coordinates, release.transform(rows.astype(np.float64)))
    assert np.any(coordinates != np.round(coordinates))
    whole = np.array([[1]], kind)
    np.testing.assert_array_equal(projection.inverse_transform(whole), release.inverse_transform([[1.0]]))
    refuses("must hold numbers", projection.transform, rows.astype(str))
    refuses("must hold numbers", projection.transform, rows.astype(np.complex128))
    refuses("X has 3 columns for 2 features", projection.transform, np.ones((2, 3)))
    refuses("X has 2 columns for 1 components", projection.inverse_transform, rows)
