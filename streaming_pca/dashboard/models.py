"""Responses of the HTTP API, which the dashboard's pages also display.

Every field is public or published: counts of records, charges, releases and values derived from releases.
Arrays of a history are columns: element i of each belongs to the same release, or to the same moment.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Problem(Answer):
    """Error in the format of RFC 9457."""

    type: str = "about:blank"
    """Kind of the problem."""
    title: str
    """Name of the HTTP status."""
    status: int
    """HTTP status."""
    detail: str
    """One line that names what to change."""
    instance: str
    """Path of the request."""


class Connection(Answer):
    """Connection to the broker, the source of all numbers."""

    ok: bool
    """False while the broker does not answer: numbers date from ``since``."""
    problem: str | None = None
    """One line; null while the connection works."""
    since: str
    """Time of the last change of ``ok``, ISO 8601 in UTC."""
    loaded: bool
    """True once all topics were read to their ends for the first time."""


class Charge(Answer):
    """Privacy cost, as strings: decimals rounded to 12 digits; in plans exact, also as fractions."""

    epsilon: str | None = None
    """Epsilon; null if the filter counts only rho."""
    delta: str | None = None
    """Delta; null without epsilon."""
    rho: str | None = None
    """Rho of zero-concentrated privacy, if known."""


class Budget(Answer):
    """Charges of records against the cap of their topic."""

    by_stream: Charge
    """Largest charge of any record by this stream."""
    by_all: Charge
    """Largest charge of any record by all jobs that read the topic."""
    left: Charge
    """Remaining cap of the record with the largest charge."""
    cap: Charge
    """Largest permitted charge of any record."""
    filter: str
    """Rule for adding charges: basic or zcdp."""
    spent_share: float | None = Field(default=None, ge=0, le=1)
    """Largest spent share of the cap; null for an infinite cap. It belongs to records that were processed:
    records that arrive have the whole cap, unless a stream's unit is the user."""
    allows_next: bool = True
    """False if a batch fills whose charge the cap does not allow."""


class Batches(Answer):
    """Numbers of a stream's batches."""

    committed: int
    """Batches processed."""
    abandoned: int
    """Batches charged and then abandoned."""
    released: int
    """Batches with a release."""


class Leader(Answer):
    """Process that leads a stream, according to its consumer group."""

    present: bool
    """True if a process leads."""
    host: str | None = None
    """Address of the process; null without a leader."""
    candidates: int
    """Number of processes that can lead, the leader included."""


class Lag(Answer):
    """Records still to be read, counted in offsets; some of these are transaction markers."""

    total: int
    """Sum over partitions."""
    partitions: dict[str, int]
    """Offsets by partition."""
    in_transactions: int
    """Offsets after the start of an open transaction, not readable yet."""


class NextBatch(Answer):
    """Batch that fills, from counts and times of records alone."""

    planned: int
    """Planned records, or messages if a row is one; ``stream.max_wait_seconds`` can close it with fewer."""
    waiting: int
    """Offsets that wait for it, at most ``planned``; some can be transaction markers."""
    per_second: float | None = None
    """Offsets that arrive per second; null at first, 0 after a pause longer than the batch needed to fill."""


class Health(Answer):
    """Verdict on a stream, only from public quantities."""

    level: Literal["ok", "warning", "problem", "unknown"]
    """Worst of the reasons. The pages call "warning" Attention."""
    reasons: list[str] = []
    """One line each with its remedy, the worst first."""


class LastRelease(Answer):
    """Summary of the latest release."""

    batch: int
    """Number of its batch."""
    created: str
    """Time, ISO 8601 in UTC."""
    records: int
    """Records so far."""
    outcome: str | None = None
    """Outcome of the batch, for estimators that can learn nothing from a batch."""
    doubts: list[str] = []
    """Ids of reasons not to rely on it."""
    resolved_components: int | None = None
    """Number of components above the noise; null if unknown."""
    dominant_feature: str | None = None
    """Feature of the doubt "dominated": its name, or its number."""
    angle: float | None = None
    """Largest principal angle to the previous release, in radians."""
    angle_bound: float | None = None
    """Bound on its angle to the subspace without noise and clips, with probability 0.95, in radians."""
    explained_share: float | None = None
    """Share of the total variance in the subspace; null if unknown, or if the total may be noise."""
    digest: str
    """SHA-256 of its bytes in hexadecimal: the release's ETag."""


class DoubtAdvice(Answer):
    """Doubts about the latest release in words, one line each, and what helps."""

    reasons: list[str]
    """Id and explanation of each doubt."""
    remedies: list[str]
    """Remedies that are left; each is one change."""
    given: list[str]
    """Remedies of these doubts that the stream's settings contain already."""
    note: str | None
    """Cost of the remedies that need a new stream; null without."""


class StreamSummary(Answer):
    """Stream at a glance."""

    name: str
    """Name of the stream."""
    input: str
    """Input topic."""
    estimator: str
    """Id of the estimator."""
    dim: int
    """Number d of features."""
    rank: int
    """Number k of components."""
    private: bool
    """False if nothing is guaranteed."""
    epsilon: float | None
    """Epsilon of all releases together; null without a guarantee."""
    delta: float | None
    """Delta of all releases together; null without a guarantee."""
    privacy_unit: str
    """Unit of privacy: message, row or user."""
    problem: str | None = None
    """One line if topics are missing or cannot be read; then the next fields are null."""
    standing: str | None = None
    """Status in the ledger: active, paused, retired and so on."""
    leader: Leader | None = None
    """Leading process; null if the broker does not report it."""
    batches: Batches | None = None
    """Numbers of batches."""
    records: int | None = None
    """Records processed, according to the ledger; messages, where the unit of privacy is a row."""
    lag: Lag | None = None
    """Lag; null if unknown."""
    next_batch: NextBatch | None = None
    """Batch that fills; null if the lag is unknown, or if the stream is paused or has ended."""
    last_release: LastRelease | None = None
    """Latest release; null before the first."""
    advice: DoubtAdvice | None = None
    """Explanation of the latest release's doubts; null without doubts."""
    budget: Budget | None = None
    """Charges and cap; null while the ledger is not open."""
    health: Health
    """Verdict."""
    unreadable: int = 0
    """Messages of the releases topic that are not releases, or have a later version."""


class StreamDetail(StreamSummary):
    """Stream with its guarantee and settings."""

    guarantee: list[str]
    """Guarantee in plain words with this stream's numbers; one or two sentences per item. The first three
    items, a sentence each, are its summary."""
    adjacency: str
    """Relation between neighbouring inputs; "none" if nothing is guaranteed."""
    local: bool
    """True if records are reports that their senders privatized."""
    contributions_per_user: int | None = None
    """Largest number of batches that one user counts in, if the unit is the user."""
    user_field: str | None = None
    """Field of a record that contains its user; null if the message key is the user."""
    feature_names: list[str] | None = None
    """Names of the features, if the stream has them."""
    fields: list[int] | None = None
    """Number of the record field that each feature comes from, if records have named fields."""
    kind: Literal["subspace", "tensor"] = "subspace"
    """Kind of the components."""


class ReleaseSummary(LastRelease):
    """Release in a list."""

    offset: int
    """Offset of its message in the releases topic."""


class History(Answer):
    """Last releases of a stream, oldest first."""

    stream: str
    """Name of the stream."""
    batch: list[int]
    """Batch number of each release."""
    created: list[str]
    """Time of each release."""
    records: list[int]
    """Number of records up to each release."""
    angles: list[list[float] | None]
    """Principal angles to the previous release, decreasing, in radians; null for the first."""
    angle_bound: list[float | None]
    """Bound on the angle to the subspace without noise and clips, with probability 0.95."""
    noise_bound: list[float | None]
    """Bound on the angle to the previous release that noise alone explains, with probability 0.9: the sum of
    both bounds, since each can fail."""
    explained_variance: list[list[float]]
    """Variances of the components of each release."""
    explained_variance_error: list[list[float] | None]
    """Standard errors of these variances, from the release."""
    total_variance: list[float | None]
    """Sum of all d variances, for each release."""
    null_share: list[float | None]
    """Share of null records in each batch, with noise, between 0 and 1; null without diagnostics."""
    null_share_error: list[float | None]
    """Standard error of the null share."""
    clipped_share: list[float | None]
    """Share of records changed by clipping, with noise, between 0 and 1."""
    clipped_share_error: list[float | None]
    """Standard error of the clipped share."""
    complete: bool
    """False if earlier releases exist that the dashboard does not hold."""


class Traffic(Answer):
    """Offsets and lag of a stream since the dashboard started, oldest first; null where it did not see them.

    Points are ten seconds apart in the last hour, four minutes in the last day, half an hour in the last
    week, and half a day before that, for a year.
    """

    stream: str
    """Name of the stream."""
    at: list[str]
    """Time of each point, ISO 8601 in UTC."""
    offsets: list[int | None]
    """Offsets of the input up to each point, over all partitions: records, and markers of transactions."""
    lag_low: list[int | None]
    """Smallest lag since the previous point, in offsets."""
    lag_high: list[int | None]
    """Largest lag since the previous point, in offsets."""


class StreamPage(Answer):
    """Page of streams by name."""

    items: list[StreamSummary]
    """Streams."""
    next: str | None = None
    """Value of ``after`` for the next page; null on the last."""
    connection: Connection
    """Connection to the broker."""


class ReleasePage(Answer):
    """Page of releases, newest first."""

    items: list[ReleaseSummary]
    """Releases."""
    next: int | None = None
    """Value of ``before`` for the next page; null on the last."""


class JobSummary(Answer):
    """Job of a ledger: a stream, or charges entered manually."""

    name: str
    """Name of the job."""
    standing: str
    """Status: active, paused, retired and so on."""
    batches: Batches
    """Numbers of batches."""
    charges: int
    """Number of charges."""
    records_committed: int
    """Records processed; messages, where the unit of privacy is a row."""
    records_abandoned: int
    """Records charged in batches that were abandoned."""


class LedgerSummary(Answer):
    """Ledger of an input topic."""

    input: str
    """The input topic."""
    topic_id: str | None = None
    """Id of the topic; null if it cannot be read."""
    problem: str | None = None
    """One line, if the ledger cannot be read."""
    cap: Charge | None = None
    """Cap; null while the ledger is not open."""
    filter: str | None = None
    """Rule for adding charges."""
    entries: int = 0
    """Number of entries, void ones included."""
    most_charged: Charge | None = None
    """Largest charge of any record."""
    everywhere: Charge | None = None
    """Charge that every record of the topic bears, if any."""
    jobs: list[JobSummary] = []
    """Jobs, ordered by name."""


class LedgerPage(Answer):
    """All ledgers of the streams."""

    items: list[LedgerSummary]
    """Ledgers, ordered by input topic."""
    connection: Connection
    """Connection to the broker."""


class OffsetRangeRow(Answer):
    """Range of offsets of a partition, ``end`` excluded."""

    partition: int
    """Partition."""
    start: int
    """First offset."""
    end: int
    """Offset after the last."""


class LedgerEntryRow(Answer):
    """Entry of a ledger."""

    offset: int
    """Offset in the ledger topic."""
    kind: str
    """Kind of the entry."""
    job: str | None = None
    """Job; null for the opening."""
    batch: int | None = None
    """Batch, for entries about a batch."""
    records: int | None = None
    """Records of a reservation."""
    ranges: list[OffsetRangeRow] = []
    """Offsets charged."""
    charge: Charge | None = None
    """Charge of each of these records."""
    reason: str | None = None
    """Text by an operator or by the service."""
    void: str | None = None
    """Reason why the entry is void; null for a valid entry."""


class EntryPage(Answer):
    """Page of entries, newest first."""

    items: list[LedgerEntryRow]
    """Entries."""
    next: int | None = None
    """Value of ``before`` for the next page; null on the last page held."""
    complete: bool
    """False if earlier entries exist that are not held: `streaming-pca ledger show` lists all."""


class Verification(Answer):
    """Result of the independent verifier for a ledger, its releases and, if permitted, its states."""

    state: Literal["never", "running", "verified", "problems", "failed"]
    """Progress or outcome of the last run."""
    started: str | None = None
    """Time of the start, ISO 8601 in UTC."""
    finished: str | None = None
    """Time of the end."""
    entries: int | None = None
    """Number of verified entries."""
    states: bool | None = None
    """False if the user may not read the states, so they were not compared; null without a result."""
    problems: list[str] = []
    """Problems of the ledger, or the reason why the verifier could not run."""


class RecordCharge(Answer):
    """Charges of one record."""

    input: str
    """Topic of the record."""
    partition: int
    """Its partition."""
    offset: int
    """Its offset."""
    spent: Charge
    """Sum over all jobs."""
    left: Charge
    """Remaining cap."""
    cap: Charge
    """Cap."""
    jobs: dict[str, Charge]
    """Charge by each job."""


class Event(Answer):
    """Event: something to fetch again."""

    kind: Literal["release", "ledger", "standing", "connection"]
    """Subject: a release, a ledger's entries, a stream's leader, lag or health, or the connection."""
    stream: str | None = None
    """Stream of a release or of a change in leader, lag or health."""
    input: str | None = None
    """Topic of a ledger."""
    batch: int | None = None
    """Batch of a release."""
    revision: int
    """Number that increases with each event of this process."""


class Overview(Answer):
    """All streams at the same moment."""

    streams: list[StreamSummary]
    """Streams, ordered by name."""
    connection: Connection
    """Connection to the broker."""
    revision: int
    """Revision of the last event."""
