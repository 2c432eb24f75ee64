"""A batch's one answer: everything that is computed between its reservation and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streaming_pca.estimators.base import Plan, State
from streaming_pca.estimators.state_bytes import encode_state
from streaming_pca.release import Release
from streaming_pca.service.publisher import make_release
from streaming_pca.service.source import Taken
from streaming_pca.service.user_log import Step, UserLog
from streaming_pca.settings import StreamSettings

__all__ = ["Answer", "answer_batch", "parameters_of"]


@dataclass(frozen=True)
class Answer:
    """What a commit makes true; none of it may leave the process before.

    Attributes
    ----------
    state : State
    data : bytes
        The state's.
    release : bytes
        What will be published.
    users : Step or None
        Who has counted, where the user is the unit of privacy.
    """

    state: State
    data: bytes
    release: bytes
    users: Step | None


def parameters_of(stream: StreamSettings, plan: Plan) -> dict[str, Any]:
    """What RESERVED carries: all that the batch's answer depends on, but the records and the state."""
    return plan.parameters | {"options": stream.mechanism_options, "seed": stream.seed}


def answer_batch(
    stream: StreamSettings, users: UserLog | None, state: State, taken: Taken, number: int
) -> Answer:
    """Compute the answer of batch ``number``; changes nothing.

    Where the user is the unit of privacy, records over a user's limit become
    null here, in their places. The same table and the same batch give the same
    ones, so a batch that a successor finishes has the records that it had.
    """
    batch, step = taken.batch, None
    if users is not None:
        assert taken.users is not None
        counted = users.admit(taken.users).counted
        batch, step = batch.keeping(counted), users.step(taken.users, counted)
    estimator = stream.made
    new: State = estimator.update(state, batch)
    release = make_release(stream, estimator.release(new), number, new.records)
    Release.from_bytes(release)  # refuses what is not finite
    return Answer(new, encode_state(new), release, step)
