"""Routes of streams, releases and ledgers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import Depends, FastAPI, Path, Query, Request, Response

from streaming_pca.dashboard import models
from streaming_pca.dashboard.api.conditional import answer, answer_bytes
from streaming_pca.dashboard.api.limiter import Limiter, Overloaded
from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.observing.lookup import Unknown
from streaming_pca.data.release import ArrayDigest, Release
from streaming_pca.service.errors import TopicError

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer

NPZ = "application/octet-stream"  # media type of NumPy archives, which have no registered type
_ARRAYS = (
    *("components", "explained_variance", "explained_variance_error", "total_variance"),
    *("total_variance_error", "angle_bound", "weights", "mean"),
)
_NAME = r"^[A-Za-z0-9._-]{1,200}$"
_MOST = 2**63 - 1

Name = Annotated[str, Path(description="Name of the stream.", pattern=_NAME, examples=["flights"])]
Input = Annotated[
    str, Path(description="Input topic of the ledger.", pattern=_NAME, examples=["flight-records"])
]
Batch = Annotated[int, Path(description="Number of the batch.", ge=0, le=_MOST, examples=[12])]
Partition = Annotated[int, Path(description="Partition of the topic.", ge=0, le=2**31 - 1, examples=[0])]
Offset = Annotated[int, Path(description="Offset in the partition.", ge=0, le=_MOST, examples=[4711])]
Limit = Annotated[int, Query(description="Maximum number of items on the page.", ge=1, le=200, examples=[50])]
Before = Annotated[
    int | None,
    Query(description="Only items below this number: `next` of the previous page.", ge=0, le=_MOST),
]
After = Annotated[
    str | None, Query(description="Only names after this one: `next` of the previous page.", max_length=200)
]
Job = Annotated[
    str | None,
    Query(description="Only entries of this job.", min_length=1, max_length=200, examples=["flights"]),
]
Format = Annotated[
    Literal["json", "npz"],
    Query(description="json: the published bytes; npz: its arrays for `numpy.load`, without pickle."),
]
_RELEASE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The release: its bytes on the topic, or its arrays.",
        "content": {"application/json": {}, NPZ: {"schema": {}}},
    }
}


@dataclass(frozen=True)
class Context:
    """Observer, and limits of answers from memory, answers from the broker, and computations."""

    observer: Observer
    memory: Limiter  # limit of answers that wait at most for a lock
    broker: Limiter
    plans: Limiter

    async def connection(self) -> models.Connection:
        return (await self.memory.call(self.observer.overview)).connection

    async def require_loaded(self) -> None:
        """Raise Overloaded until the topics have been read to their ends."""
        connection = await self.connection()
        if not connection.loaded:
            raise Overloaded(connection.problem or "the topics are still being read: try again later")

    @property
    def loaded(self) -> dict[str, Any]:
        """Parameters of routes whose answers do not show whether all topics were read."""
        return {"dependencies": [Depends(self.require_loaded)]}


def _get(
    app: FastAPI, path: str, operation_id: str, model: type, tag: str, **how: Any
) -> Callable[[Any], Any]:
    return app.get(f"/v1/{path}", operation_id=operation_id, response_model=model, tags=[tag], **how)


def add_streams(app: FastAPI, context: Context) -> None:
    """Add the routes of streams, and of lists of releases."""
    observer, memory, loaded = context.observer, context.memory, context.loaded

    @_get(app, "streams", "listStreams", models.StreamPage, "streams")
    async def list_streams(request: Request, limit: Limit = 50, after: After = None) -> Response:
        """List streams, ordered by name."""
        found = await memory.call(observer.overview)
        later = [stream for stream in found.streams if after is None or stream.name > after]
        items = later[:limit]
        next = items[-1].name if len(later) > limit else None
        page = models.StreamPage(items=items, next=next, connection=found.connection)
        return answer(request, page, ("after", next))

    @_get(app, "streams/{name}", "getStream", models.StreamDetail, "streams")
    async def get_stream(request: Request, name: Name) -> Response:
        """Get a stream with its guarantee in words."""
        found = await memory.call(lambda: observer.stream(name))
        return answer(request, found.model_copy(update={"guarantee": guarantee_in_words(found)}))

    @_get(app, "streams/{name}/history", "getHistory", models.History, "streams", **loaded)
    async def get_history(request: Request, name: Name) -> Response:
        """Get the last releases as columns, oldest first."""
        return answer(request, await memory.call(lambda: observer.history(name)))

    @_get(app, "streams/{name}/traffic", "getTraffic", models.Traffic, "streams")
    async def get_traffic(request: Request, name: Name) -> Response:
        """Get offsets and lag over time as columns, oldest first."""
        return answer(request, await memory.call(lambda: observer.traffic(name)))

    @_get(app, "streams/{name}/budget", "getBudget", models.Budget, "streams", **loaded)
    async def get_budget(request: Request, name: Name) -> Response:
        """Get the charged and remaining budget of a stream's records."""
        found = await memory.call(lambda: observer.stream(name))
        if found.problem is not None:
            raise TopicError(found.problem)
        if found.budget is None:
            raise Unknown(f"the ledger of topic {found.input!r} has no budget: it is not open")
        return answer(request, found.budget)

    @_get(app, "streams/{name}/releases", "listReleases", models.ReleasePage, "releases", **loaded)
    async def list_releases(
        request: Request, name: Name, limit: Limit = 50, before: Before = None
    ) -> Response:
        """List the releases in memory, newest first."""
        page = await memory.call(lambda: observer.releases(name, limit, before))
        return answer(request, page, ("before", page.next))


def add_releases(app: FastAPI, context: Context) -> None:
    """Add the routes of single releases, as published JSON or as NumPy arrays."""
    how: dict[str, Any] = {"responses": _RELEASE, **context.loaded}

    async def find(request: Request, name: str, batch: int | None, format: str) -> Response:
        def encoded() -> tuple[bytes, int]:
            value, release = context.observer.release(name, batch)
            return (value if format == "json" else npz_archive(release)), release.batch

        body, number = await context.broker.call(encoded)
        headers = {
            "content-disposition": f'attachment; filename="{name}-{number}.{format}"',
            # A recreated topic has different releases under the same numbers.
            "cache-control": "no-cache",
        }
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        return answer_bytes(request, body, tag, "application/json" if format == "json" else NPZ, headers)

    @_get(app, "streams/{name}/releases/latest", "getLatestRelease", Release, "releases", **how)
    async def get_latest_release(request: Request, name: Name, format: Format = "json") -> Response:
        """Get the latest release."""
        return await find(request, name, None, format)

    @_get(app, "streams/{name}/releases/{batch}", "getRelease", Release, "releases", **how)
    async def get_release(request: Request, name: Name, batch: Batch, format: Format = "json") -> Response:
        """Get the release of a batch."""
        return await find(request, name, batch, format)


def npz_archive(release: Release) -> bytes:
    """Return a release's numbers, except unknown ones and digests, as a deterministic NumPy archive."""
    lower, upper = release.bounds or (None, None)
    centring = release.centering
    named: dict[str, Any] = {name: getattr(release, name) for name in _ARRAYS}
    named |= {"centering": None if isinstance(centring, str) else centring, "scale": release.scale}
    named |= {"lower_bounds": lower, "upper_bounds": upper}
    named |= {"epsilon": release.epsilon, "delta": release.delta}
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


def add_ledgers(app: FastAPI, context: Context) -> None:
    observer, memory, loaded = context.observer, context.memory, context.loaded

    @_get(app, "ledger", "listLedgers", models.LedgerPage, "ledgers")
    async def list_ledgers(request: Request) -> Response:
        """List the ledgers of all streams, ordered by input topic."""
        connection = await context.connection()  # first: it must not name later items complete
        items = await memory.call(observer.ledgers)
        return answer(request, models.LedgerPage(items=items, connection=connection))

    @_get(app, "ledger/{input}", "getLedger", models.LedgerSummary, "ledgers", **loaded)
    async def get_ledger(request: Request, input: Input) -> Response:
        """Get the ledger of an input topic."""
        return answer(request, await memory.call(lambda: observer.ledger(input)))

    @_get(app, "ledger/{input}/entries", "listEntries", models.EntryPage, "ledgers", **loaded)
    async def list_entries(
        request: Request, input: Input, limit: Limit = 50, before: Before = None, job: Job = None
    ) -> Response:
        """List the entries in memory, newest first."""
        page = await memory.call(lambda: observer.entries(input, limit, before, job))
        return answer(request, page, ("before", page.next))

    @_get(app, "ledger/{input}/verification", "getVerification", models.Verification, "ledgers")
    async def get_verification(request: Request, input: Input) -> Response:
        """Get the last verification of a ledger."""
        return answer(request, await memory.call(lambda: observer.verification(input)))

    @app.post(
        "/v1/ledger/{input}/verification",
        response_model=models.Verification,
        status_code=202,
        tags=["ledgers"],
        operation_id="startVerification",
        response_description="The verification is running, or another ledger's is.",
    )
    async def start_verification(request: Request, input: Input) -> Response:
        """Start a verification, unless one is already running."""
        found = await memory.call(lambda: observer.verify(input))
        return Response(found.model_dump_json(), 202, {"cache-control": "no-store"}, "application/json")

    record = "ledger/{input}/records/{partition}/{offset}"

    @_get(app, record, "getRecordCharge", models.RecordCharge, "ledgers", **loaded)
    async def get_record_charge(
        request: Request, input: Input, partition: Partition, offset: Offset
    ) -> Response:
        """Get the charges of one record."""
        found = await context.broker.call(lambda: observer.record_charge(input, partition, offset))
        return answer(request, found)
