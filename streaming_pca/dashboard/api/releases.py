"""Routes of single releases, as published JSON or as NumPy arrays."""

from __future__ import annotations

import hashlib
import io
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request, Response

from streaming_pca.dashboard.api.conditional import answer_bytes
from streaming_pca.dashboard.api.context import Context
from streaming_pca.dashboard.api.parameters import Batch, Name
from streaming_pca.dashboard.api.problems import NotReady
from streaming_pca.dashboard.observing.errors import UnknownRelease
from streaming_pca.data.release import ArrayDigest, Release

NPZ = "application/octet-stream"
"""Media type of NumPy archives, which have no registered type."""
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The release: its bytes on the topic, or its arrays.",
        "content": {
            "application/json": {},
            NPZ: {"schema": {}},
        },
    }
}

Format = Annotated[
    Literal["json", "npz"],
    Query(description="json: the published bytes; npz: its arrays for `numpy.load`, without pickle."),
]


def add_releases(app: FastAPI, context: Context) -> None:
    """Add the routes of single releases."""
    how: dict[str, Any] = {"response_model": Release, "responses": _RESPONSES, "tags": ["releases"]}

    async def find(request: Request, name: str, batch: int | None, format: str) -> Response:
        try:
            found = await context.broker.call(lambda: _encoded(context, name, batch, format))
        except UnknownRelease:
            connection = (await context.memory.call(context.observer.overview)).connection
            if not connection.loaded:
                reason = connection.problem or "the topics are still being read: try again later"
                raise NotReady(reason) from None
            raise
        body, number = found
        headers = {
            "content-disposition": f'attachment; filename="{name}-{number}.{format}"',
            # A recreated topic has different releases under the same numbers.
            "cache-control": "no-cache",
        }
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        return answer_bytes(request, body, tag, "application/json" if format == "json" else NPZ, headers)

    @app.get("/v1/streams/{name}/releases/latest", operation_id="getLatestRelease", **how)
    async def get_latest_release(request: Request, name: Name, format: Format = "json") -> Response:
        """Get the latest release."""
        return await find(request, name, None, format)

    @app.get("/v1/streams/{name}/releases/{batch}", operation_id="getRelease", **how)
    async def get_release(request: Request, name: Name, batch: Batch, format: Format = "json") -> Response:
        """Get the release of a batch."""
        return await find(request, name, batch, format)


def _encoded(context: Context, name: str, batch: int | None, format: str) -> tuple[bytes, int]:
    """Return a release's bytes in the requested format, and its batch number."""
    value, release = context.observer.release(name, batch)
    return (value if format == "json" else npz_of(release)), release.batch


def npz_of(release: Release) -> bytes:
    """Return a release's arrays and numbers as a NumPy archive, with deterministic bytes.

    The archive omits unknown quantities, and arrays that the release contains only as a digest.
    """
    lower, upper = release.bounds or (None, None)
    centring = release.centering
    named: dict[str, Any] = {
        "components": release.components,
        "explained_variance": release.explained_variance,
        "explained_variance_error": release.explained_variance_error,
        "total_variance": release.total_variance,
        "total_variance_error": release.total_variance_error,
        "angle_bound": release.angle_bound,
        "weights": release.weights,
        "mean": release.mean,
        "centering": None if isinstance(centring, str) else centring,
        "scale": release.scale,
        "lower_bounds": lower,
        "upper_bounds": upper,
        "epsilon": release.epsilon,
        "delta": release.delta,
    }
    arrays: dict[str, Any] = {
        key: np.asarray(value, dtype=np.float64)
        for key, value in named.items()
        if value is not None and not isinstance(value, ArrayDigest)
    }
    arrays["batch"] = np.asarray(release.batch, dtype=np.int64)
    arrays["records"] = np.asarray(release.records, dtype=np.int64)
    if release.support is not None:
        arrays["support"] = np.asarray(release.support, dtype=np.int64)
    if release.feature_names is not None:
        arrays["feature_names"] = np.asarray(release.feature_names, dtype=np.str_)
    if isinstance(centring, str):
        arrays["centering_rule"] = np.asarray(centring, dtype=np.str_)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
