"""Answers of the HTTP API, which are also what the dashboard's pages show.

Everything here is public or published: counts of records, charges, releases and what follows from releases.
Arrays of a history are columns: element i of each belongs to the same release.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Problem(_Answer):
    """Error as RFC 9457 has it."""

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


class Connection(_Answer):
    """Connection to the broker, behind all numbers."""

    ok: bool
    """False while the broker does not answer: numbers are those of ``since``."""
    problem: str | None = None
    """One line, unless it is well."""
    since: str
    """Time of the last change between well and not, ISO 8601 in UTC."""
    loaded: bool
    """True once all topics were read to their ends for the first time."""


class Charge(_Answer):
    """Privacy cost, as decimals in text: exact numbers can be longer than a double's."""

    epsilon: str | None = None
    """Epsilon; null where the filter counts rho alone."""
    delta: str | None = None
    """Delta, with epsilon."""
    rho: str | None = None
    """Rho of zero-concentrated privacy; null without."""


class Budget(_Answer):
    """Charges of records against the cap of their topic."""

    by_stream: Charge
    """Largest charge of any record by this stream."""
    by_all: Charge
    """Largest charge of any record by all jobs that read the topic."""
    left: Charge
    """Rest of the cap for the record with the largest charge."""
    cap: Charge
    """Most that any record may be charged."""
    filter: str
    """Rule by which charges add up: basic or zcdp."""
    spent_share: float | None = Field(default=None, ge=0, le=1)
    """Largest share of the cap that is spent; null for a cap without end."""


class Batches(_Answer):
    """Numbers of a stream's batches."""

    committed: int
    """Batches that were learnt."""
    abandoned: int
    """Batches that were charged and given up."""
    released: int
    """Batches with a release."""


class Leader(_Answer):
    """Process that leads a stream, as the broker's group tells it."""

    present: bool
    """True if a process leads."""
    host: str | None = None
    """Address of the process; null without a leader."""
    candidates: int
    """Number of processes that can lead, the leader included."""


class Lag(_Answer):
    """Records that wait, in offsets; some of these are transaction markers."""

    total: int
    """Sum over partitions."""
    partitions: dict[str, int]
    """Offsets by partition."""
    in_transactions: int
    """Offsets behind open transactions, of which no reader gets any yet."""


class Health(_Answer):
    """Verdict on a stream, from public quantities alone."""

    level: Literal["ok", "warning", "problem", "unknown"]
    """Worst of the reasons."""
    reasons: list[str] = []
    """One line each, the worst first."""


class LastRelease(_Answer):
    """Latest release in short."""

    batch: int
    """Number of its batch."""
    created: str
    """Time, ISO 8601 in UTC."""
    records: int
    """Records so far."""
    outcome: str | None = None
    """Outcome of the batch, where its estimator can learn nothing from one."""
    doubts: list[str] = []
    """Reasons not to rely on it, in words."""
    resolved_components: int | None = None
    """Number of components that stand out from the noise; null where it is unknown."""
    dominant_feature: str | None = None
    """Feature that the doubt "dominated" means: its name, or its number."""
    angle: float | None = None
    """Largest principal angle to the release before, in radians."""
    angle_bound: float | None = None
    """Bound on its angle to the same sums without noise, with probability 0.95, in radians."""
    explained_share: float | None = None
    """Share of the total variance in the subspace; null where it is unknown, or the total may be noise."""
    digest: str
    """SHA-256 of its bytes in hexadecimal: the release's ETag."""


class StreamSummary(_Answer):
    """Stream at a glance."""

    name: str
    """Name of the stream."""
    input: str
    """Topic that it reads."""
    estimator: str
    """Id of the estimator."""
    dim: int
    """Number d of features."""
    rank: int
    """Number k of components."""
    private: bool
    """False if nothing is guaranteed."""
    epsilon: float | None
    """Guarantee of all releases together; null if there is none."""
    delta: float | None
    """Guarantee, with epsilon."""
    privacy_unit: str
    """Unit of privacy: message, row or user."""
    problem: str | None = None
    """One line, if topics are missing or cannot be read; then the next fields are null."""
    standing: str | None = None
    """Standing in the ledger: active, paused, retired and so on."""
    leader: Leader | None = None
    """Null where the broker does not tell."""
    batches: Batches | None = None
    """Numbers of batches."""
    records: int | None = None
    """Records learnt, as the ledger counts them."""
    lag: Lag | None = None
    """Null where it is unknown."""
    last_release: LastRelease | None = None
    """Null before the first."""
    budget: Budget | None = None
    """Null while the ledger is not open."""
    health: Health
    """Verdict."""
    unreadable: int = 0
    """Messages of the releases topic that are no releases, or of a later version."""


class StreamDetail(StreamSummary):
    """Stream with its guarantee and settings."""

    guarantee: list[str]
    """Guarantee in plain words with this stream's numbers, a sentence or two each."""
    adjacency: str
    """Relation of neighbouring inputs; "none" if nothing is guaranteed."""
    local: bool
    """True if records are reports that were made private by their senders."""
    contributions_per_user: int | None = None
    """Most batches in which one user counts, if the unit is the user."""
    feature_names: list[str] | None = None
    """Names of the features, if the stream has them."""
    fields: list[int] | None = None
    """Number of the record's field behind each feature, if records have named fields."""
    kind: Literal["subspace", "tensor"] = "subspace"
    """Kind of the components."""


class ReleaseSummary(LastRelease):
    """Release in a list."""

    offset: int
    """Offset of its message in the releases topic."""


class History(_Answer):
    """Last releases of a stream, oldest first."""

    stream: str
    """Name of the stream."""
    batch: list[int]
    """Batch of each release."""
    created: list[str]
    """Time of each."""
    records: list[int]
    """Records until each."""
    angles: list[list[float] | None]
    """Principal angles to the release before, decreasing, in radians; null for the first."""
    angle_bound: list[float | None]
    """Bound on the angle to the same sums without noise, with probability 0.95."""
    noise_bound: list[float | None]
    """Bound on the angle to the release before that noise alone explains, with probability 0.9: the sum of
    both bounds, each of which can fail."""
    explained_variance: list[list[float]]
    """Variances of each."""
    explained_variance_error: list[list[float] | None]
    """Their standard errors, as the release states them."""
    total_variance: list[float | None]
    """Sum of all d variances of each."""
    null_share: list[float | None]
    """Share of null records in each batch, with noise, between 0 and 1; null without diagnostics."""
    null_share_error: list[float | None]
    """Its standard error."""
    clipped_share: list[float | None]
    """Share of records that the clip changed, with noise, between 0 and 1."""
    clipped_share_error: list[float | None]
    """Its standard error."""
    complete: bool
    """False if earlier releases exist that are not held."""


class StreamPage(_Answer):
    """Page of streams by name."""

    items: list[StreamSummary]
    """Streams."""
    next: str | None = None
    """Value of ``after`` for the next page; null on the last."""
    connection: Connection
    """Connection to the broker."""


class ReleasePage(_Answer):
    """Page of releases, newest first."""

    items: list[ReleaseSummary]
    """Releases."""
    next: int | None = None
    """Value of ``before`` for the next page; null on the last."""


class JobSummary(_Answer):
    """Job of a ledger: a stream, or charges made by hand."""

    name: str
    """Name of the job."""
    standing: str
    """Standing: active, paused, retired and so on."""
    batches: Batches
    """Numbers of batches."""
    charges: int
    """Number of charges."""
    records_committed: int
    """Records learnt."""
    records_abandoned: int
    """Records charged and given up."""


class LedgerSummary(_Answer):
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
    """Rule by which charges add up."""
    entries: int = 0
    """Number of entries, void ones included."""
    most_charged: Charge | None = None
    """Largest charge of any record."""
    everywhere: Charge | None = None
    """Charge of every record of the topic, if there is one."""
    jobs: list[JobSummary] = []
    """Jobs by name."""


class LedgerPage(_Answer):
    """All ledgers of the streams."""

    items: list[LedgerSummary]
    """Ledgers by input topic."""
    connection: Connection
    """Connection to the broker."""


class OffsetRangeRow(_Answer):
    """Range of offsets of a partition, ``end`` excluded."""

    partition: int
    """Partition."""
    start: int
    """First offset."""
    end: int
    """Offset behind the last."""


class LedgerEntryRow(_Answer):
    """Entry of a ledger."""

    offset: int
    """Offset in the ledger topic."""
    kind: str
    """Kind of the entry."""
    job: str | None = None
    """Job; null for the opening."""
    batch: int | None = None
    """Batch, of entries that have one."""
    records: int | None = None
    """Records of a reservation."""
    ranges: list[OffsetRangeRow] = []
    """Offsets that are charged."""
    charge: Charge | None = None
    """Cost for each of them."""
    reason: str | None = None
    """Text of a person or of the service."""
    void: str | None = None
    """Reason why the entry counts for nothing; null for an entry that counts."""


class EntryPage(_Answer):
    """Page of entries, newest first."""

    items: list[LedgerEntryRow]
    """Entries."""
    next: int | None = None
    """Value of ``before`` for the next page; null on the last that is held."""
    complete: bool
    """False if earlier entries exist that are not held: `streaming-pca ledger show` has them all."""


class Verification(_Answer):
    """Result of the independent verifier over a ledger, its states and releases."""

    state: Literal["never", "running", "verified", "problems", "failed"]
    """Course of the last run, or how it ended."""
    started: str | None = None
    """Time of the start, ISO 8601 in UTC."""
    finished: str | None = None
    """Time of the end."""
    entries: int | None = None
    """Entries that were verified."""
    problems: list[str] = []
    """Problems of the ledger, or the reason why the verifier could not run."""


class RecordCharge(_Answer):
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
    """Rest of the cap."""
    cap: Charge
    """Cap."""
    jobs: dict[str, Charge]
    """Charge by each job that charged it."""


class Event(_Answer):
    """News: what to fetch again."""

    kind: Literal["release", "ledger", "standing", "connection"]
    """News: a release, a ledger's entries, a stream's leader, lag or health, or the connection."""
    stream: str | None = None
    """Stream of a release or a standing."""
    input: str | None = None
    """Topic of a ledger."""
    batch: int | None = None
    """Batch of a release."""
    revision: int
    """Number that grows with each event of this process."""


class Overview(_Answer):
    """All streams at one time."""

    streams: list[StreamSummary]
    """Streams by name."""
    connection: Connection
    """Connection to the broker."""
    revision: int
    """Revision of the last event."""
