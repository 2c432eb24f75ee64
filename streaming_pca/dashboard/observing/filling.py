"""Batch that fills: its planned size, its waiting records, and how long it has been full."""

from __future__ import annotations

from typing import Any

from streaming_pca.admin.broker_status import planned_size
from streaming_pca.config.settings import StreamSettings
from streaming_pca.dashboard.models import NextBatch
from streaming_pca.dashboard.observing.health import LagWatch
from streaming_pca.estimators.base import Estimator
from streaming_pca.privacy.ledger.ledger import JobLedger
from streaming_pca.privacy.ledger.protocol import BatchStatus


class BatchFill:
    """Next batch of a stream, from the ledger's counts and the lag alone.

    ``answer`` is None while the lag is unknown, or if no batch fills. Enough records have waited for the
    batch for ``full_seconds``.
    """

    def __init__(self, stream: StreamSettings, estimator: Estimator[Any, Any]) -> None:
        self._estimator = estimator
        self._max_wait = stream.max_wait_seconds
        self._stage: tuple[int, BatchStatus, int] | None = None
        self._planned = 0
        self._full_since: tuple[int, float] | None = None
        self.answer: NextBatch | None = None
        self.full_seconds = 0.0

    def update(self, job: JobLedger, lag: int | None, watch: LagWatch, at: float) -> None:
        """Renew the answer from the arrivals and the lag, at a time in seconds.

        The lag counts offsets that no batch has read; it is None if no batch fills.
        """
        stage = (job.batch, job.phase, job.records_committed)
        if lag is not None and stage != self._stage:
            self._stage, self._planned = stage, planned_size(self._estimator, job)
        if lag is None or not self._planned:
            self.answer, self._full_since, self.full_seconds = None, None, 0.0
            return
        waiting, per_second = min(lag, self._planned), watch.per_second
        if per_second is not None and lag < self._planned and watch.has_paused(self._planned - lag):
            per_second = 0.0 if watch.seconds >= 90 else None  # in less time, an arrival may only be late
        self.answer = NextBatch(planned=self._planned, waiting=waiting, per_second=per_second)
        enough = self._planned
        if self._max_wait is not None and job.reservation is not None:
            # After that wait a batch as small as the last one closes.
            enough = min(enough, job.reservation.count)
        if lag < enough:
            self._full_since = None
        elif self._full_since is None or self._full_since[0] != job.batch:
            self._full_since = (job.batch, at)
        since = at if self._full_since is None else self._full_since[1]
        patience = 0.0 if lag >= self._planned or self._max_wait is None else self._max_wait
        self.full_seconds = max(at - since - patience, 0.0)
