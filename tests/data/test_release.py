"""Release version 6: settings for repeating ``transform`` as a consumer, and later versions."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from streaming_pca import PrivatePCA
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import LONGEST_ARRAY, ArrayDigest, Release
from streaming_pca.estimators.base import Subspace
from streaming_pca.service.commit.batch_result import make_release
from streaming_pca.service.topics.sizes import release_bytes
from tests.api.samplers import spiked

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
    values: dict[str, Any] = {
        "schema_name": "streaming-pca.release",
        "version": 6,
        "kind": "subspace",
        "stream": "s",
        "batch": 1,
        "records": 10,
        "dim": 2,
        "rank": 1,
        "estimator": "e",
        "components": [[0.6, 0.8]],
        "explained_variance": [2.0],
        "mean": None,
        "centering": "none",
        "scale": None,
        "bounds": None,
        "epsilon": 1.0,
        "delta": 1e-6,
        "adjacency": "replace-one",
        "privacy_unit": "message",
        "feature_names": None,
        "created": "2026-01-01T00:00:00.000+00:00",
    }
    return values | changes


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
        np.testing.assert_array_equal(
            release.inverse_transform(made), pca.inverse_transform(made), strict=True
        )
    # Equality alone would accept a constant projection; the components lose only the order of sums.
    assert np.linalg.matrix_rank(release.transform(rows)) == 3


def test_without_a_mean_found_nothing_is_subtracted() -> None:
    release = read(centering="auto", scale=2.0, bounds=[-1.0, [1.0, 5.0]])
    np.testing.assert_allclose(release.transform([[3, 3]]), [[2 * (0.6 * 1 + 0.8 * 3)]])


def test_sparse_rows_and_nullable_columns_are_refused_with_what_to_pass() -> None:
    release = read(centering="none", scale=2.0, bounds=None)
    X = pd.DataFrame({"a": [1, 2], "b": [1, 3]}).astype("Int64")
    for given, words in ((csr_array(np.ones((2, 2))), "X is sparse: pass X.toarray"), (X, "X.to_numpy")):
        with pytest.raises(ValueError, match=words) as caught:
            release.transform(given)
        assert "\n" not in str(caught.value)
    assert release.transform(X.to_numpy(float)).shape == (2, 1)


def test_a_mean_is_of_the_scaled_features() -> None:
    release = read(centering="auto", scale=[2.0, 4.0], mean=[2.0, 4.0])
    np.testing.assert_allclose(release.transform([[1.0, 1.0], [2.0, 1.0]]), [[0.0], [1.2]], atol=1e-15)
    np.testing.assert_allclose(release.inverse_transform([[0.0]]), [[1.0, 1.0]])


def test_a_dominant_feature_is_published_with_its_doubt_alone() -> None:
    stream = StreamSettings(name="s", input="in", dim=3, rank=1, epsilon=1.0, delta=1e-6)
    for bound, version in ((math.pi / 2, 7), (0.1, 6)):
        subspace = Subspace(np.eye(1, 3), np.ones(1), None, angle_bound=bound, dominant_feature=2)
        data = make_release(stream, subspace, 1, 10)
        release = Release.from_bytes(data)
        assert release.version == version
        assert ("dominated" in release.doubts) == (b"dominant_feature" in data) == (version == 7)
        assert release.dominant_name == ("2" if version == 7 else None)
    named = read(version=7, dominant_feature=1, feature_names=["a", "income"])
    assert named.dominant_name == "income"
    for changes in ({"version": 7, "dominant_feature": 2}, {"version": 6, "dominant_feature": 1}):
        with pytest.raises(ValueError, match="dominant_feature"):
            read(**changes)
    with pytest.raises(ValueError, match="feature_names does not have 2 names"):
        read(feature_names=["a"])


def test_long_settings_are_published_by_their_digest() -> None:
    dim = LONGEST_ARRAY + 1
    centre, scale = np.linspace(-1, 1, dim), np.linspace(1, 2, dim)
    stream = StreamSettings(
        name="s",
        input="in",
        dim=dim,
        rank=1,
        epsilon=1.0,
        delta=1e-6,
        centering=centre.tolist(),
        scale=scale.tolist(),
        bounds=[-4, np.full(dim, 4.0).tolist()],
    )
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
    with pytest.raises(ValueError, match=r"only the digest of centering, of 1025 numbers: .*with_settings"):
        release.transform(X)
    bounds = (-4.0, np.full(dim, 4.0))
    whole = release.with_settings(centering=centre, scale=scale, bounds=bounds)
    by_hand = (np.clip(X, -4, 4) - centre) * scale @ direction.T
    np.testing.assert_allclose(whole.transform(X), by_hand)
    with pytest.raises(ValueError, match="only the digest of bounds"):
        release.with_settings(centering=centre, scale=scale).transform(X)
    for wrong in (
        {"scale": scale + 1e-12},
        {"scale": 1.0},
        {"bounds": (-4.0, 4.0)},
        {"bounds": (-5, bounds[1])},
    ):
        with pytest.raises(ValueError, match="not the numbers of the release's stream"):
            release.with_settings(**wrong)


def test_settings_that_a_release_holds_are_not_replaced() -> None:
    release = read(centering=[1.0, 2.0], scale=2.0)
    assert release.with_settings(centering=[1, 2], scale=2) == release
    for wrong in ({"centering": [1, 3]}, {"scale": 3}, {"scale": [2, 2]}, {"bounds": (0, 1)}):
        with pytest.raises(ValueError, match="not the numbers"):
            release.with_settings(**wrong)
    with pytest.raises(ValueError, match="bounds must be a pair"):
        release.with_settings(bounds=(0, 1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
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
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_no_release(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"not a release: .*{words}"):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"version": 5, "centering": None},
            "version 5 does not contain centering and scale: use a release of version 6",
        ),
        ({"kind": "tensor", "weights": [1.0]}, "holds components of a tensor, not of a subspace"),
        ({"centering": "medoid"}, 'centering = "medoid" is of a later version'),
        ({"components": [[1.0]]}, "components is not 1 x 2 finite numbers"),
        ({"components": [[2.0, 0.0]]}, "components are not orthonormal"),
        ({"components": [[1e300, 0.0]]}, "components are not orthonormal"),
        ({"components": [[1.0, 0.0], [1.0]]}, "components is not 1 x 2 finite numbers"),
        ({"centering": "auto", "mean": [1.0]}, "mean is not 2 finite numbers"),
    ],
    ids=str,
)
def test_a_release_that_projects_nothing_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(**changes).transform([[1.0, 2.0]])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[1.0, 2.0, 3.0]], "X has 3 columns for 2 features"),
        ([1.0, 2.0], r"X must be rows \(m, 2\) or \(m, r, 2\), not of shape \(2,\)"),
        ([[1.0, np.nan]], "X holds a NaN or an infinity"),
        ([["a", "b"]], "X must hold numbers"),
        (pd.DataFrame({"b": [1.0], "a": [2.0]}), "columns of X are not the release's feature_names"),
    ],
    ids=["width", "shape", "nan", "words", "names"],
)
def test_rows_that_do_not_fit_are_refused(X: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(feature_names=["a", "b"]).transform(X)


def test_a_table_with_the_streams_names_is_taken() -> None:
    release = read(feature_names=["a", "b"])
    np.testing.assert_allclose(release.transform(pd.DataFrame({"a": [1], "b": [2]})), [[2.2]])
    np.testing.assert_allclose(release.transform(pd.DataFrame([[1, 2]])), [[2.2]])
    with pytest.raises(ValueError, match="X has 2 columns for 1 components"):
        release.inverse_transform([[1.0, 2.0]])


def test_a_release_of_a_local_stream_projects_what_producers_privatize() -> None:
    release = read(local=True)
    np.testing.assert_allclose(release.transform([[1.0, 2.0]]), [[2.2]])
    with pytest.raises(ValueError, match="X has 3 columns"):
        release.transform(np.zeros((1, 3)))


def test_a_later_version_is_read_for_what_is_known() -> None:
    digest = ArrayDigest.of([1.0, 2.0]).model_dump() | {"more": 1}
    release = read(version=7, colour="red", scale=digest, doubts=["no-such-word-yet"])
    assert (release.version, release.batch, release.doubts) == (7, 1, ("no-such-word-yet",))
    np.testing.assert_allclose(release.with_settings(scale=[1, 2]).transform([[1.0, 1.0]]), [[2.2]])
    assert read(version=2, centering=None, colour="red").version == 2
    with pytest.raises(ValueError, match="not a release: schema_name: "):
        read(version=7, schema_name="streaming-pca.other")
    with pytest.raises(ValueError, match="not a release: components: "):
        Release.from_bytes(json.dumps({k: v for k, v in plain().items() if k != "components"}).encode())


def test_a_release_of_version_6_has_these_bytes() -> None:
    values = plain(centering=[0.5, 1.0], scale=2.0, bounds=[[0.0, 0.0], 1.0])
    data = json.dumps(values, separators=(",", ":")).replace("1e-06", "1e-6").encode()
    assert Release.from_bytes(data).to_bytes() == data
