"""Result of a batch: everything computed between its reservation and its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.features.records import Schemas
from streaming_pca.data.features.schemas import named_in_ledger
from streaming_pca.data.release import ACCURACY, Release, published_setting
from streaming_pca.estimators.base import Plan, State, Subspace
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.estimators.warnings import ReleaseWarning, find_warnings
from streaming_pca.service.commit.user_log import Step, UserLog
from streaming_pca.service.input.source import OffsetBatch


def make_release(
    stream: StreamSettings,
    subspace: Subspace,
    batch: int,
    records: int,
    counts: Mapping[str, float] = MappingProxyType({}),
) -> bytes:
    """Encode a release; its bytes are part of the state until publication.

    ``batch`` is the ledger's number; ``counts`` are fields of :data:`~streaming_pca.data.release.COUNTS`.
    Raises ValueError if an accuracy figure of the subspace is not finite or out of range.
    """
    known = {name: getattr(subspace, name) for name in ACCURACY}
    accuracy = {name: np.asarray(value).tolist() for name, value in known.items() if value is not None}
    estimator = stream.build_estimator()
    info = estimator.info
    found = find_warnings(subspace, estimator.preprocessing, records, estimator.norm_range[1])
    dominant = subspace.dominant_feature if ReleaseWarning.DOMINATED in found else None
    return Release(
        version=6 if dominant is None else 7,
        kind=info.releases,
        stream=stream.name,
        batch=batch,
        records=records,
        dim=stream.dim,
        rank=stream.rank,
        estimator=stream.estimator,
        components=subspace.components.tolist(),
        weights=None if subspace.weights is None else subspace.weights.tolist(),
        support=None if subspace.support is None else list(subspace.support),
        explained_variance=subspace.explained_variance.tolist(),
        mean=None if subspace.mean is None else subspace.mean.tolist(),
        centering=published_setting(stream.centering),
        scale=published_setting(stream.scale),
        bounds=None if stream.bounds is None else tuple(map(published_setting, stream.bounds)),
        private=stream.private,
        local=info.local,
        epsilon=stream.epsilon if stream.private else None,
        delta=stream.delta if stream.private else None,
        adjacency=info.adjacency,
        privacy_unit=stream.privacy_unit,
        contributions_per_user=stream.contributions_per_user if stream.privacy_unit == "user" else None,
        feature_names=None if stream.feature_names is None else list(stream.feature_names),
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        outcome=None if subspace.outcome is None else subspace.outcome.value,
        doubts=tuple(doubt.value for doubt in found),
        dominant_feature=dominant,
        **accuracy,
        **counts,
    ).to_bytes()


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch, with its encoded state; no part of it may leave the process before the commit.

    ``users`` is the change of the table of users, if the user is the unit of privacy.
    """

    state: State
    data: bytes
    release: bytes
    users: Step | None


def parameters_of(stream: StreamSettings, plan: Plan, schemas: Schemas | None = None) -> dict[str, Any]:
    """Return RESERVED's parameters: every input of the result except records and state."""
    own: dict[str, Any] = {"options": stream.mechanism_options, "seed": stream.seed}
    if schemas is not None:
        own["schemas"] = named_in_ledger(schemas)
    return plan.parameters | own


def compute_batch(
    stream: StreamSettings, users: UserLog | None, state: State, cut: OffsetBatch, number: int
) -> BatchResult:
    """Compute the result of batch ``number`` without side effects.

    Records above a user's limit become null here, in place. The same table and batch always give the same
    null records, so a successor that finishes a batch uses the same records.
    """
    batch, step = cut.batch, None
    if users is not None:
        assert cut.users is not None
        counted = users.table.admit(cut.users)
        batch, step = batch.keeping(counted), users.step(cut.users, counted)
    estimator = stream.build_estimator()
    new: State = estimator.update(state, batch)
    counts: dict[str, float] = {}
    if estimator.diagnostics is not None and new.counts is not None:
        counts = estimator.diagnostics.describe(new.counts, len(batch))
    release = make_release(stream, estimator.release(new), number, new.records, counts)
    Release.from_bytes(release)  # raises if a number is not finite
    return BatchResult(new, encode_state(new), release, step)
