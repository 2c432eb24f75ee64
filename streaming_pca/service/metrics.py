"""Prometheus metrics: public quantities only.

Counts are of delivered records, null ones included. Norms, errors and the true
numbers of malformed or clipped records are private (rule 9 of privacy.md): of
the latter two there are noisy counts, with their error, where the stream pays
for them, and nothing where it does not. What is shown of a release is copied
from its published bytes. Process metrics (memory, CPU time) are left out for
the same reason. How long a batch takes can depend on its records; that channel
is not closed (README, limits), and the buckets are coarse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from streaming_pca.estimators.outcome import Outcome
from streaming_pca.privacy.filters import left_of
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.release import Release

__all__ = ["Metrics", "StreamMetrics"]

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """All metrics of a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        stream = ("stream",)
        gauge = self._gauge

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"streaming_pca_{name}", text, (*stream, *labels), registry=self.registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"streaming_pca_{name}", text, stream, buckets=_SECONDS, registry=self.registry)

        self.leader = gauge("leader", "1 where this process leads the stream.")
        self.paused = gauge("paused", "1 while the stream is paused.")
        self.records = counter("records_delivered", "Records in committed batches, null ones included.")
        self.lag = gauge("lag_records", "Offsets between the stream's position and the end of its input.")
        self.batches = counter("batches", "Batches by how they ended.", "outcome")
        self.batch_seconds = histogram("batch_seconds", "From a batch's reservation to its release.")
        self.commit_seconds = histogram("commit_seconds", "Time of the commit of state and ledger.")
        self.charged_epsilon = gauge("charged_epsilon", "Most that a record of the input was charged.")
        self.charged_delta = gauge("charged_delta", "Most that a record of the input was charged.")
        self.remaining_epsilon = gauge("remaining_epsilon", "What the cap leaves to that record.")
        self.remaining_delta = gauge("remaining_delta", "What the cap leaves to that record.")
        self.releases = counter("releases", "Releases published by this process.")
        self.last_release = gauge("last_release_timestamp_seconds", "When the last release was published.")
        self.angle_bound = gauge(
            "angle_bound_radians",
            "How far noise may have turned the last release, with probability 0.95.",
        )
        self.total_variance = gauge(
            "total_variance", "Of all features in the last release, with privacy noise."
        )
        self.total_variance_error = gauge(
            "total_variance_error",
            "Standard error of that total variance, from the noise alone.",
        )
        self.outcomes = counter(
            "batch_outcomes",
            "Releases by what their batch came to, where the estimator may learn nothing from one.",
            "outcome",
        )
        self.ledger_entries = gauge("ledger_entries", "Entries of the input's ledger.")
        self.rebalances = Counter(
            "streaming_pca_rebalances", "Assignments of the leader election.", registry=self.registry
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"streaming_pca_{name}", text, ("stream",), registry=self.registry)

    @cached_property
    def counts(self) -> tuple[Gauge, Gauge, Gauge]:
        """Of null and of clipped records, and their error; not there before a stream has paid for them."""
        return (
            self._gauge("batch_null_records", "Null records of the last batch, with privacy noise."),
            self._gauge(
                "batch_clipped_records", "Records that the last batch's clip changed, with privacy noise."
            ),
            self._gauge("batch_counts_error", "Half of the 95% confidence interval of the two noisy counts."),
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def of(self, stream: str) -> StreamMetrics:
        """The metrics of one stream, at zero."""
        return StreamMetrics(self, stream)


class StreamMetrics:
    """One stream's share of :class:`Metrics`."""

    def __init__(self, metrics: Metrics, stream: str) -> None:
        self._all, self._stream = metrics, stream
        self.leads(False)
        self.paused(False)
        # A series that is not there yet cannot be told from one that is broken.
        for outcome in ("committed", "abandoned"):
            metrics.batches.labels(stream, outcome)
        metrics.records.labels(stream)
        metrics.releases.labels(stream)
        metrics.batch_seconds.labels(stream)
        metrics.commit_seconds.labels(stream)

    def leads(self, leads: bool) -> None:
        """Whether this process leads the stream."""
        self._all.leader.labels(self._stream).set(leads)

    def paused(self, paused: bool) -> None:
        """Whether the stream is paused, as far as this process knows."""
        self._all.paused.labels(self._stream).set(paused)

    def lag_from(self, read: Callable[[], float]) -> None:
        """Where the lag is read from when somebody asks."""
        self._all.lag.labels(self._stream).set_function(read)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Time a commit that succeeds."""
        started = time.monotonic()
        yield
        self._all.commit_seconds.labels(self._stream).observe(time.monotonic() - started)

    def committed(self, records: int) -> None:
        """A batch was answered."""
        self._all.batches.labels(self._stream, "committed").inc()
        self._all.records.labels(self._stream).inc(records)

    def counted(self, counts: NDArray[np.int64], error: int) -> None:
        """The noisy counts of a batch that was committed."""
        for metric, value in zip(self._all.counts, (*counts, error), strict=True):
            metric.labels(self._stream).set(int(value))

    def abandoned(self) -> None:
        """A batch was given up."""
        self._all.batches.labels(self._stream, "abandoned").inc()

    def released(self, seconds: float | None) -> None:
        """A release is out; ``seconds`` after its batch was reserved here."""
        self._all.releases.labels(self._stream).inc()
        self._all.last_release.labels(self._stream).set(time.time())
        if seconds is not None:
            self._all.batch_seconds.labels(self._stream).observe(seconds)

    def published(self, release: Release) -> None:
        """Show what the last release says about itself: not before it is published."""
        for metric, value in (
            (self._all.angle_bound, release.angle_bound),
            (self._all.total_variance, release.total_variance),
            (self._all.total_variance_error, release.total_variance_error),
        ):
            if value is None:
                # An earlier release's number would be taken for this one's.
                metric.remove(self._stream)
            else:
                metric.labels(self._stream).set(value)
        if release.outcome is not None:
            # The others too: one that is not there yet cannot be told from one that is broken.
            for outcome in Outcome:
                self._all.outcomes.labels(self._stream, outcome.value)
            self._all.outcomes.labels(self._stream, release.outcome).inc()

    def ledger(self, ledger: Ledger, entries: int) -> None:
        """Show what the ledger says of the input's records."""
        if ledger.opened is None:
            return
        most = ledger.most_charged()
        cap = ledger.opened.cap
        epsilon, delta = float(most.epsilon), float(most.delta)
        if ledger.opened.filter == "zcdp":
            epsilon, delta = _zcdp_epsilon(most.rho, cap.delta), float(cap.delta) if most.rho else 0.0
        show = self._all
        show.charged_epsilon.labels(self._stream).set(epsilon)
        show.charged_delta.labels(self._stream).set(delta)
        show.remaining_epsilon.labels(self._stream).set(float(left_of(float(cap.epsilon), epsilon)))
        show.remaining_delta.labels(self._stream).set(float(left_of(float(cap.delta), delta)))
        show.ledger_entries.labels(self._stream).set(entries)


def _zcdp_epsilon(rho: Fraction | float | None, delta: Fraction | float) -> float:
    """epsilon of the conversion that the zcdp filter makes; for show only."""
    if rho is None or math.isinf(rho) or not delta:
        return math.inf if rho is None or rho else 0.0
    # The logarithm of an exact ratio: as a float it may be zero.
    exact = Fraction(delta)
    inverse = math.log(exact.denominator) - math.log(exact.numerator)
    return float(rho) + 2 * math.sqrt(float(rho) * max(inverse, 0.0))
