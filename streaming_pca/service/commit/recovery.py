"""First action of a leader that has just taken over: a pure decision.

Its inputs are the ledger and the last state, both replayed to an end that earlier leaders cannot move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streaming_pca.privacy.ledger.ledger import JobLedger
from streaming_pca.privacy.ledger.protocol import BatchStatus


class LedgerMismatch(Exception):
    """Contradiction between ledger and state: continuing could give a batch two results."""


class Action(StrEnum):
    PUBLISH = "publish the committed release"
    RESUME = "finish the reserved batch"
    PLAN = "plan a new batch"


OTHERWISE = "or read a new input topic: the charges of this one's records are lost"
"""Remedy for a ledger that has lost entries, without a backup: a new name would charge records again."""


@dataclass(frozen=True)
class Recovery:
    """Action, and the starting offsets of the job's next new batch."""

    action: Action
    positions: dict[int, int]


def recover(job: JobLedger, batch: int, digest: str, positions: dict[int, int]) -> Recovery:
    """Decide the first action.

    ``batch``, ``digest`` (salted) and ``positions`` (its end) are of the last committed state, 0 and ""
    without one. Raises LedgerMismatch if ledger or state lacks entries that the other has.
    """
    if job.last_committed < batch:
        raise LedgerMismatch(
            f"the ledger ends at batch {job.last_committed}, before the state's batch {batch}: "
            f"the ledger topic has lost entries; restore its newest backup, {OTHERWISE}"
        )
    if job.last_committed > batch:
        raise LedgerMismatch(
            f"the ledger has committed batch {job.last_committed}, the state topic ends at batch {batch}: "
            "the state topic has lost entries; restore its newest backup, "
            "or start the stream under a new name"
        )
    if job.state_digest != digest:
        raise LedgerMismatch(
            f"the state of batch {batch} differs from the one committed: "
            "restore their newest backups, or start the stream under a new name"
        )
    # The ledger is ahead of the state by abandoned batches, whose records later batches must not contain.
    ahead = {p: max(positions.get(p, 0), job.ends.get(p, 0)) for p in positions | job.ends}
    actions = {BatchStatus.COMMITTED: Action.PUBLISH, BatchStatus.RESERVED: Action.RESUME}
    return Recovery(actions.get(job.phase, Action.PLAN), ahead)
