"""A release is used for projection only if it was made with the stream's settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import ArrayDigest, Release
from streaming_pca.estimators.base import Subspace
from streaming_pca.service.commit.batch_result import make_release
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.projection.latest import projection_of
from tests.config.refusals import refusal

PRIVATE_OJA: dict[str, Any] = {"estimator": "private-oja", "options": {"clip_radius": 1.0}}


def _stream(dim: int, **changes: Any) -> StreamSettings:
    return StreamSettings(name="s", input="in", dim=dim, rank=2, epsilon=1.0, delta=1e-6, **changes)


def _release(stream: StreamSettings, /, **changes: Any) -> Release:
    rng = np.random.default_rng(0)
    components = np.linalg.qr(rng.standard_normal((stream.dim, 2)))[0].T
    subspace = Subspace(components, np.ones(2), rng.standard_normal(stream.dim))
    return Release.from_bytes(make_release(stream, subspace, 3, 100)).model_copy(update=changes)


def _rows(dim: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((4, dim))


@pytest.mark.parametrize("version", [1, 6])
def test_a_release_projects_with_the_settings_that_it_was_made_with(version: int) -> None:
    stream = _stream(5, bounds=(-1.0, (1.0, 2.0, 3.0, 4.0, 5.0)), scale=(0.5, 1.0, 1.0, 1.0, 2.0))
    release = _release(stream)
    expected = release.transform(_rows(5))
    if version == 1:
        # Releases of earlier versions do not contain these settings.
        release = release.model_copy(update={"version": 1, "centering": None, "scale": None, "bounds": None})
    np.testing.assert_allclose(projection_of(release, stream).transform(_rows(5)), expected)


def test_long_settings_are_compared_by_their_digests() -> None:
    dim = 1030
    centre = tuple(np.linspace(0, 1, dim))
    stream = _stream(dim, centering=centre, scale=(*centre[::-1][:-1], 1.0))
    release = _release(stream)
    assert isinstance(release.centering, ArrayDigest)
    full = release.with_settings(centering=stream.centering, scale=stream.scale)  # type: ignore[arg-type]
    got = projection_of(release, stream).transform(_rows(dim))
    np.testing.assert_allclose(got, full.transform(_rows(dim)))
    with pytest.raises(StreamRefused, match=r"^stream.centering = 1030 numbers \(sha256:.*, but the release"):
        projection_of(release, _stream(dim, centering=(*centre[:-1], 2.0), scale=stream.scale))


def test_a_release_projects_with_the_mean_that_an_earlier_version_estimated() -> None:
    """Its settings have centering "auto", which is "pairs" now where the estimator finds no mean."""
    stream = _stream(5, **PRIVATE_OJA, scale=2.0)
    assert stream.centering == "pairs"
    release = _release(stream, centering="auto")
    projection = projection_of(release, stream)
    np.testing.assert_array_equal(projection.transform(_rows(5)), release.transform(_rows(5)))
    np.testing.assert_allclose(projection.centre, np.array(release.mean) / 2.0)


@pytest.mark.parametrize(
    ("here", "changes"),
    [
        (PRIVATE_OJA, {"mean": None}),
        (PRIVATE_OJA | {"centering": "none"}, {}),
        ({"estimator": "adaptive", "centering": "pairs"}, {}),
    ],
    ids=["without a mean", "none", "adaptive"],
)
def test_other_releases_with_centering_auto_need_that_setting(here: Any, changes: Any) -> None:
    stream = _stream(5, **here)
    expected = r'^stream.centering = "(pairs|none)", .* made with "auto": project'
    with pytest.raises(StreamRefused, match=expected):
        projection_of(_release(stream, centering="auto", **changes), stream)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stream": "other"}, 'stream.name = "s", but the release of batch 3 was made with "other"'),
        ({"rank": 3}, "stream.rank = 2, but the release of batch 3 was made with 3"),
        ({"kind": "tensor"}, 'releases a "tensor"'),
    ],
)
def test_a_release_that_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    stream = _stream(5)
    assert message in refusal(StreamRefused, projection_of, _release(stream, **changes), stream)


def test_a_release_of_other_features_is_refused() -> None:
    names = ("age", "income", "visits")
    features = [{"name": name, "bounds": [0, 100]} for name in names]
    how = {"name": "s", "input": "in", "rank": 2, "epsilon": 1.0, "delta": 1e-6, "format": "json"}
    stream = StreamSettings(**how, features=features)
    swapped = StreamSettings(**how, features=[features[1], features[0], features[2]])
    release = _release(stream)
    assert projection_of(release, stream).components.shape == (2, 3)
    line = refusal(StreamRefused, projection_of, release, swapped)
    assert line.startswith("stream.feature_names = ['income', 'age', 'visits'], but the release of batch 3")
    # Names of columns of arrays only describe them, so settings may leave them out.
    unnamed = StreamSettings(name="s", input="in", dim=3, rank=2, epsilon=1.0, delta=1e-6, bounds=(0, 100))
    named = unnamed.model_copy(update={"feature_names": names})
    assert projection_of(_release(named), unnamed).components.shape == (2, 3)
