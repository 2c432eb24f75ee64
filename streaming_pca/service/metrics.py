"""Prometheus metrics: public quantities only.

Counts are of delivered records, null ones included. Norms, errors and the true numbers of malformed
or clipped records are private. Noisy counts of the latter two, with their error, are shown only if the
stream pays for them. The metrics of a release are copied from its published bytes. Process metrics (memory,
CPU time) depend on records, so they are off by default. The duration of a batch can depend on records as
well: that channel is not closed (docs/explanation/guarantee.md), and the buckets are coarse.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from fractions import Fraction
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Outcome
from streaming_pca.privacy.ledger.cap import remainder
from streaming_pca.privacy.ledger.ledger import Ledger

# Omit the second series of each counter and histogram, its start time.
disable_created_metrics()  # type: ignore[no-untyped-call]

M = TypeVar("M")
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)
_BROKER_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_COUNTS = {
    "batch_null_records": "Null records of the last batch, with privacy noise.",
    "batch_clipped_records": "Records (pairs) that the last batch's clip changed, with privacy noise.",
    "batch_counts_error": "Half of the 95% confidence interval of the two noisy counts.",
    "batch_counts_standard_error": "Standard error of the two noisy counts.",
    "batch_counts_records": "Records of that batch, null ones included.",
    "batch_clipped_of": "Records (pairs) of that batch that its clip could change.",
}


class Metrics:
    """Metrics of a process; ``process`` adds memory, time and descriptors, which can depend on records."""

    def __init__(self, *, process: bool = False) -> None:
        self.registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self.registry)
        gauge, counter = partial(self._make, Gauge), partial(self._make, Counter)
        histogram = partial(self._make, Histogram, buckets=_SECONDS)
        by_outcome = ("stream", "outcome")
        self.leader = gauge("leader", "1 where this process leads the stream.")
        self.ready = gauge("ready", "1 where this process leads the stream, or can take it over.")
        self.refused = gauge("refused", "1 where this process may not run the stream as configured.")
        self.paused = gauge("paused", "1 while the stream is paused.")
        self.records = counter("records_delivered", "Records in committed batches, null ones included.")
        self.lag = gauge("lag_records", "Offsets between the leader's position and the end of its input.")
        self.listed = gauge(
            "schemas_timestamp_seconds", "When the schema registry last listed the schemas that records name."
        )
        self.planned = gauge("planned_records", "Records that the next batch waits for, at the leader.")
        self.batches = counter("batches", "Batches by outcome.", by_outcome)
        self.batch_seconds = histogram("batch_seconds", "From a batch's reservation to its release.")
        self.commit_seconds = histogram("commit_seconds", "Time of the commit of state and ledger.")
        self.charged_epsilon = gauge("charged_epsilon", "Largest epsilon charged to a record of the input.")
        self.charged_delta = gauge("charged_delta", "Largest delta charged to a record of the input.")
        self.remaining_epsilon = gauge("remaining_epsilon", "Epsilon that the cap leaves to that record.")
        self.remaining_delta = gauge("remaining_delta", "Delta that the cap leaves to that record.")
        self.releases = counter("releases", "Releases published by this process.")
        self.last_release = gauge("last_release_timestamp_seconds", "When the last release was created.")
        self.angle_bound = gauge(
            "angle_bound_radians",
            "Bound on the angle error of the last release due to noise, with probability 0.95.",
        )
        self.explained_variance = gauge(
            "explained_variance",
            "Variance along each component, numbered from 1, in the last release; noisy if private.",
            ("stream", "component"),
        )
        self.total_variance = gauge(
            "total_variance", "Total variance of all features in the last release, with privacy noise."
        )
        self.total_variance_error = gauge(
            "total_variance_error", "Standard error of that total variance, from noise and clipping."
        )
        self.outcomes = counter(
            "batch_outcomes",
            "Releases by the outcome of their batch, where the estimator may learn nothing from one.",
            by_outcome,
        )
        self.ledger_entries = gauge("ledger_entries", "Entries of the input's ledger.")
        self.verification_problems = gauge(
            "verification_problems", "Problems that the last verification of the input's ledger found."
        )
        self.verified = gauge(
            "verification_timestamp_seconds", "When the last verification of the ledger ended."
        )
        self.verification_errors = counter("verification_errors", "Verifications that could not run.")
        self.rebalances = counter("rebalances", "Assignments of the leader election.", ())
        self.broker_seconds = histogram(
            "broker_request_seconds",
            "Time until the broker answered the request for end offsets, or until it failed.",
            (),
            buckets=_BROKER_SECONDS,
        )
        self.build = gauge("build_info", "Versions of this program and of Python.", ("version", "python"))
        self.build.labels(version("streaming-pca"), platform.python_version()).set(1)

    def _make(
        self,
        kind: Callable[..., M],
        name: str,
        text: str,
        labels: Sequence[str] = ("stream",),
        **options: Any,
    ) -> M:
        return kind(f"streaming_pca_{name}", text, labels, registry=self.registry, **options)

    @cached_property
    def counts(self) -> tuple[Gauge, ...]:
        """Noisy counts of null and clipped records, their errors and the totals.

        Registered only when a stream first pays for them.
        """
        return tuple(self._make(Gauge, name, text) for name, text in _COUNTS.items())

    def text(self) -> bytes:
        return generate_latest(self.registry)


class StreamMetrics:
    def __init__(self, metrics: Metrics, stream: str) -> None:
        self._all, self._stream = metrics, stream
        self.set("leader", False)
        self.set("paused", False)
        self.set("refused", False)
        # Dashboards cannot distinguish a missing series from a broken one.
        for outcome in ("committed", "abandoned"):
            metrics.batches.labels(stream, outcome)
        of_stream = (metrics.records, metrics.releases, metrics.verification_errors)
        for each in (*of_stream, metrics.batch_seconds, metrics.commit_seconds):
            each.labels(stream)

    def set(self, gauge: Literal["leader", "paused", "refused", "planned"], value: float) -> None:
        getattr(self._all, gauge).labels(self._stream).set(value)

    def set_source(self, gauge: Literal["ready", "lag", "listed"], read: Callable[[], float]) -> None:
        """Set the function that each scrape calls for one of the stream's gauges."""
        getattr(self._all, gauge).labels(self._stream).set_function(read)

    def end_session(self) -> None:
        """Remove the gauges that only a session knows; their functions refer to its last batch and feed."""
        for gauge in (self._all.lag, self._all.planned, self._all.listed):
            gauge.remove(self._stream)

    def show_verification(self, problems: int) -> None:
        self._all.verification_problems.labels(self._stream).set(problems)
        self._all.verified.labels(self._stream).set(time.time())

    def count_verification_error(self) -> None:
        self._all.verification_errors.labels(self._stream).inc()

    @contextmanager
    def time_commit(self) -> Iterator[None]:
        """Time a commit; ignore a failed one."""
        started = time.monotonic()
        yield
        self._all.commit_seconds.labels(self._stream).observe(time.monotonic() - started)

    def count_batch(self, outcome: Literal["committed", "abandoned"], records: int = 0) -> None:
        self._all.batches.labels(self._stream, outcome).inc()
        self._all.records.labels(self._stream).inc(records)

    def set_noisy_counts(self, release: Release, error: int) -> None:
        """Set the noisy counts of a published batch; ``error`` is half of their 95% interval."""
        found = release.counts
        fields = ("null_records_error", "batch_records", "clipped_of")
        values = (found["null_records"], found["clipped_records"], error, *(found[name] for name in fields))
        for metric, value in zip(self._all.counts, values, strict=True):
            metric.labels(self._stream).set(value)

    def count_release(self, seconds: float | None, outcome: str | None) -> None:
        """Count a release, ``seconds`` after its batch was reserved here, and its outcome."""
        self._all.releases.labels(self._stream).inc()
        if seconds is not None:
            self._all.batch_seconds.labels(self._stream).observe(seconds)
        if outcome is not None:
            self._all.outcomes.labels(self._stream, outcome).inc()

    def show_release(self, release: Release) -> None:
        """Show time and accuracy of the last published release, also of an earlier leader."""
        created = datetime.fromisoformat(release.created).timestamp()
        self._all.last_release.labels(self._stream).set(created)
        for metric, value in (
            (self._all.angle_bound, release.angle_bound),
            (self._all.total_variance, release.total_variance),
            (self._all.total_variance_error, release.total_variance_error),
        ):
            if value is None:
                # Otherwise an earlier release's value would appear to belong to this one.
                metric.remove(self._stream)
            else:
                metric.labels(self._stream).set(value)
        # A tensor has weights of its components, not variances.
        for number, variance in enumerate(release.explained_variance if release.weights is None else (), 1):
            self._all.explained_variance.labels(self._stream, str(number)).set(variance)
        if release.outcome is not None:
            # All outcomes: dashboards cannot distinguish a missing series from a broken one.
            for outcome in Outcome:
                self._all.outcomes.labels(self._stream, outcome.value)

    def show_ledger(self, ledger: Ledger, entries: int) -> None:
        if ledger.opened is None:
            return
        most, cap = ledger.most_charged(), ledger.opened.cap
        epsilon, delta = float(most.epsilon), float(most.delta)
        if ledger.opened.filter == "zcdp":
            epsilon, delta = _zcdp_epsilon(most.rho, cap.delta), float(cap.delta) if most.rho else 0.0
        show = self._all
        show.charged_epsilon.labels(self._stream).set(epsilon)
        show.charged_delta.labels(self._stream).set(delta)
        show.remaining_epsilon.labels(self._stream).set(float(remainder(float(cap.epsilon), epsilon)))
        show.remaining_delta.labels(self._stream).set(float(remainder(float(cap.delta), delta)))
        show.ledger_entries.labels(self._stream).set(entries)


def _zcdp_epsilon(rho: Fraction | float | None, delta: Fraction | float) -> float:
    """Return epsilon of the zcdp filter's conversion; for display only."""
    if rho is None or math.isinf(rho) or not delta:
        return math.inf if rho is None or rho else 0.0
    # The logarithm of an exact ratio: as a float the ratio may be zero.
    exact = Fraction(delta)
    inverse = math.log(exact.denominator) - math.log(exact.numerator)
    return float(rho) + 2 * math.sqrt(float(rho) * max(inverse, 0.0))
