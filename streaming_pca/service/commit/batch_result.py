"""Result of a batch: everything computed between its reservation and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.features.records import Schemas
from streaming_pca.data.features.schemas import named_in_ledger
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Plan, State
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.service.commit.release import make_release
from streaming_pca.service.commit.user_log import Step, UserLog
from streaming_pca.service.input.source import CutBatch


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch; no part of it may leave the process before the commit.

    Attributes
    ----------
    data : bytes
        The state's encoding.
    release : bytes
        Encoded release, published after the commit.
    users : Step or None
        Change of the table of users, if the user is the unit of privacy.
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
    stream: StreamSettings, users: UserLog | None, state: State, taken: CutBatch, number: int
) -> BatchResult:
    """Compute the result of batch ``number`` without side effects.

    If the user is the unit of privacy, records above a user's limit become null here, in place. The same
    table and batch always give the same null records, so a successor that finishes a batch uses the same
    records.
    """
    batch, step = taken.batch, None
    if users is not None:
        assert taken.users is not None
        counted = users.admit(taken.users).counted
        batch, step = batch.keeping(counted), users.step(taken.users, counted)
    estimator = stream.build_estimator()
    new: State = estimator.update(state, batch)
    counts: dict[str, float] = {}
    if estimator.diagnostics is not None and new.counts is not None:
        counts = estimator.diagnostics.describe(new.counts, len(batch))
    release = make_release(stream, estimator.release(new), number, new.records, counts)
    Release.from_bytes(release)  # raises if a number is not finite
    return BatchResult(new, encode_state(new), release, step)
