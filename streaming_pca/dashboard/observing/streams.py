"""State of one stream for the API, from its topics and the broker's answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from streaming_pca.admin.broker_status import BrokerSnapshot
from streaming_pca.config.settings import Settings
from streaming_pca.dashboard.models import Lag, Leader, StreamDetail, StreamSummary
from streaming_pca.dashboard.observing.filling import BatchFill
from streaming_pca.dashboard.observing.health import Facts, LagWatch, judge
from streaming_pca.dashboard.observing.ledgers import LONGEST_TEXT, LedgerView, batch_counts
from streaming_pca.dashboard.observing.releases import ReleaseHistory
from streaming_pca.dashboard.observing.traffic import TrafficHistory
from streaming_pca.privacy.ledger.cap import BudgetExceeded, within_cap
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger
from streaming_pca.privacy.ledger.protocol import BatchStatus, JobStatus
from streaming_pca.privacy.ledger.spend_map import SpendMap
from streaming_pca.privacy.parameters import Charge, parse_rational
from streaming_pca.service.commit.admission import contract_difference
from streaming_pca.service.input.cut import round_robin_quota

_INTERVALS = 10  # number of intervals between releases whose median is the usual interval


def _claim(contract: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a contract promises: nothing if its numbers cannot be read."""
    found: dict[str, Any] = {"private": contract.get("private") is not False}
    found |= {"privacy_unit": str(contract["privacy_unit"]), "epsilon": None, "delta": None}
    if found["private"]:
        try:
            found |= {name: float(parse_rational(contract[name])) for name in ("epsilon", "delta")}
        except (ValueError, OverflowError):
            found["private"] = False
    return found


class StreamState:
    """Stream with its last releases, at most ``most``, its leader, lag and health."""

    def __init__(self, settings: Settings, most: int) -> None:
        self.settings = settings
        self.name, self.input = settings.stream.name, settings.stream.input
        self.releases = ReleaseHistory(settings.stream, most)
        self.traffic = TrafficHistory()
        self._leader: Leader | None = None
        self._lag: Lag | None = None
        self._estimator = settings.stream.build_estimator()
        self._info = self._estimator.info
        self._watch = LagWatch(self._estimator.largest_batch)
        self._fill = BatchFill(settings.stream, self._estimator)
        self._cannot_charge: str | None = None
        self._shown: tuple[StreamSummary, Sequence[str] | None] | None = None
        self._contract: dict[str, Any] | None = None  # the ledger's, which releases keep
        self._promise = settings.stream.privacy_contract  # with its digests, computed once
        self._difference: str | None = None
        self._show({"health": judge(Facts(loaded=False))})

    def stand(self, snapshot: BrokerSnapshot, view: LedgerView, at: float, *, loaded: bool) -> None:
        """Store the broker's answers; lags only once the ledgers have been read."""
        stream = self.settings.stream
        leader = snapshot.leader(self.settings.worker.group, stream.state_topic)
        self._leader = None if leader is None else Leader(**leader)
        job = view.ledger.job(self.name)
        known = loaded and stream.input in snapshot.partitions
        lag = snapshot.lag(stream, job) if known else None
        self._lag = None if lag is None else Lag(**lag)
        ends = {tp.partition: snapshot.end[tp] for tp in snapshot.partitions.get(stream.input, ())}
        if lag is not None:
            self._watch.add(at, lag["total"], sum(ends.values()))
            self.traffic.add(view.topic_id, time.time(), sum(ends.values()), lag["total"])
        fills = job.status is JobStatus.ACTIVE and self._processed(job) is None
        self._fill.update(job, lag["total"] if lag and fills else None, self._watch, at)
        self._cannot_charge = self._refusal(view.ledger, job, ends)

    def update(self, view: LedgerView, disconnected: bool, loaded: bool) -> bool:
        """Rebuild the answers; return whether they have changed."""
        job, last = view.ledger.job(self.name), self.releases.last
        leader, lag, advice = self._leader, self._lag, self.releases.advice
        if job.contract is not None and job.contract != self._contract:
            self._contract, self._promise = job.contract, self._promise | job.contract
            self._difference = contract_difference(self.settings.stream, job.contract)
        problem = self.releases.problem or view.trouble or self._difference
        since, usual = self._intervals()
        health = Facts(
            problem=problem,
            disconnected=disconnected,
            loaded=loaded,
            unit=self.settings.stream.privacy_unit,
            standing=str(job.status),
            reason=job.reason[:LONGEST_TEXT] or None,
            abandoned_last=job.phase is BatchStatus.ABANDONED,
            refused=job.refused[:LONGEST_TEXT] or None,
            cannot_charge=self._cannot_charge,
            open_ledger=view.ledger.opened is not None,
            processed=self._processed(job),
            group=self.settings.worker.group,
            leader=None if leader is None else leader.present,
            candidates=0 if leader is None else leader.candidates,
            lag=None if lag is None else lag.total,
            lag_grows=self._watch.grows,
            full_seconds=self._fill.full_seconds,
            doubts=() if advice is None else advice.reasons,
            least_null_share=0.0 if last is None else last.least_null_share,
            unreadable=self.releases.unreadable,
            seconds_since=since,
            usual_seconds=usual,
        )
        unreadable = self.releases.unreadable
        facts: dict[str, Any] = {"problem": problem, "unreadable": unreadable, "health": judge(health)}
        if problem is None:
            budget = view.budget(self.name)
            # A stream that is paused or has ended charges nothing.
            allowed = self._cannot_charge is None or self._fill.answer is None
            facts |= {
                "standing": str(job.status),
                "leader": leader,
                "batches": batch_counts(job),
                "records": job.records_committed,
                "lag": lag,
                "next_batch": self._fill.answer,
                "last_release": None if last is None else last.summary().model_dump(exclude={"offset"}),
                "advice": None if advice is None else asdict(advice),
                "budget": budget and budget.model_copy(update={"allows_next": allowed}),
            }
        return self._show(facts)

    def _show(self, facts: dict[str, Any]) -> bool:
        """Build the answers from numbers and settings; return whether they have changed."""
        stream = self.settings.stream
        names = self.releases.feature_names or stream.feature_names
        shown = {name: getattr(stream, name) for name in ("name", "input", "estimator", "dim", "rank")}
        shown |= facts | _claim(self._promise)
        summary = StreamSummary(**shown)
        if self._shown == (summary, names):
            return False
        self._shown, self.summary = (summary, names), summary
        fields, of_users = stream.features, summary.privacy_unit == "user"
        self.detail = StreamDetail(
            **shown,
            guarantee=[],
            adjacency=self._info.adjacency,
            local=self._info.local,
            contributions_per_user=self._promise.get("contributions_per_user") if of_users else None,
            user_field=stream.user_field and ".".join(stream.user_field),
            feature_names=None if names is None else list(names),
            fields=None if fields is None else [i for i, field in enumerate(fields) for _ in field.columns],
            kind=self._info.releases,
        )
        return True

    def _processed(self, job: JobLedger) -> int | None:
        """Return the number of records; None unless a stream of known length has processed them all."""
        estimator = self._estimator
        expected = getattr(estimator.options, "n_records", None)
        if not self.settings.worker.stop_when_done or expected is None:
            return None
        # Estimators that pair records leave one over from an odd number.
        done = job.records_committed > expected - estimator.preprocessing.granularity
        return job.records_committed if done else None

    def _intervals(self) -> tuple[float | None, float | None]:
        """Return the seconds since the last release, and the median interval."""
        times = [_time(point.created) for point in self.releases.recent(_INTERVALS + 1)]
        if not times:
            return None, None
        since = max((datetime.now(UTC) - times[-1]) / timedelta(seconds=1), 0.0)
        between = [(b - a) / timedelta(seconds=1) for a, b in pairwise(times)]
        return since, statistics.median(between) if len(between) >= 2 else None

    def _refusal(self, ledger: Ledger, job: JobLedger, ends: Mapping[int, int]) -> str | None:
        """Return why the cap forbids the next batch's charge; None if it may be allowed."""
        charge = self._charge(job)
        opened = ledger.opened
        if opened is None or (opened.filter == "zcdp" and charge.rho is None):
            return None
        try:
            if self.settings.stream.privacy_unit == "user":
                ledger.check_everywhere(self.name, charge)
                return None
            ledger.check_unread(charge)
        except BudgetExceeded as error:
            remedy = "choose another input topic, or less epsilon with a new stream.name"
            return str(error.with_remedy(remedy))
        if self._lag is None or self._fill.answer is None:
            return None
        lags = {int(partition): lag for partition, lag in self._lag.partitions.items()}
        # Fewer offsets than planned are all in the batch.
        _, quotas = round_robin_quota([*lags.values()], [True] * len(lags), self._fill.answer.planned)
        for (partition, lag), quota in zip(lags.items(), quotas or lags.values(), strict=True):
            start = ends[partition] - lag
            for spent in ledger.spend.get(partition, SpendMap()).over(start, start + quota):
                if not within_cap(spent + ledger.everywhere + charge, opened.cap, opened.filter):
                    other = "choose a new stream.name with" if job.started else "begin after them with"
                    return (
                        f"records of partition {partition} that it has yet to read were charged by other "
                        f'jobs up to the cap, or nearly: {other} `stream.start = "latest"`'
                    )
        return None

    def _charge(self, job: JobLedger) -> Charge:
        """Return the charge of each record of a batch, without rho before the first batch."""
        if job.reservation is not None:
            return job.reservation.charge
        stream = self.settings.stream
        if self._info.local:
            return Charge.nothing()
        if not stream.private:
            return Charge.unbounded()
        return Charge(epsilon=parse_rational(stream.epsilon), delta=parse_rational(stream.delta))


def _time(created: str) -> datetime:
    at = datetime.fromisoformat(created)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
