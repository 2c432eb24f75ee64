"""The verifier's comparison of the state topics with the COMMITTED entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streaming_pca.privacy.protocol import JobProgress

__all__ = ["StoredState", "check_states"]


@dataclass(frozen=True)
class StoredState:
    """Summary of the last state that is kept of a job.

    Attributes
    ----------
    digest : str
        SHA-256 of its bytes.
    topic_id, stream, batch : str, str, int
        What it says it is.
    problem : str
        Why it, or the table of users that it names, cannot be used; "" if it can.
    """

    digest: str
    topic_id: str = ""
    stream: str = ""
    batch: int = 0
    problem: str = ""


def check_states(
    states: Mapping[str, StoredState], jobs: Mapping[str, JobProgress], topic_id: str
) -> dict[str, str]:
    """Compare each job's state with the one that its last COMMITTED names.

    Parameters
    ----------
    states : dict of job to StoredState
    jobs : dict of job to JobProgress
    topic_id : str
        Of the input topic's life that is judged.

    Returns
    -------
    dict of job to str
        What is wrong, for jobs of which something is.
    """
    committed = {name: job for name, job in jobs.items() if job.last_committed}
    found = {name: "a state, but nothing was committed" for name in states if name not in committed}
    for name, job in committed.items():
        state = states.get(name)
        if state is None:
            found[name] = f"its state is missing, which the ledger committed with batch {job.last_committed}"
            continue
        own = (state.digest, state.topic_id, state.stream, state.batch)
        if state.problem:
            found[name] = state.problem
        elif own != (job.state_digest, topic_id, name, job.last_committed):
            found[name] = (
                f"the state is not the one that the ledger committed with batch {job.last_committed}"
            )
    return dict(sorted(found.items()))
