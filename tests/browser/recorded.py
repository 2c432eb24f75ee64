"""Half a day of streams with named features, without a broker: releases, offsets and lag."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
from starlette.routing import Mount

from streaming_pca.dashboard.api.application import make_api
from streaming_pca.dashboard.pages import page_routes
from tests.dashboard.offline import Offline, made_offline
from tests.dashboard.streams import RECORDS, MadeStream
from tests.service.http.running import Running, serving

FEATURES = (
    *(
        "departure delay of the inbound aircraft, minutes",
        "departure delay of the outbound aircraft, minutes",
    ),
    *(
        "distance",
        "air time",
        "taxi out",
        "taxi in",
        "wind",
        "gusts",
        "pressure",
        "visibility",
        "month",
        "hour",
    ),
)
"""Names of twelve features: some long, two of them alike."""
INTERVAL = 540
"""Seconds between two releases."""
RATE = RECORDS / INTERVAL
"""Records that arrive each second."""
WAITING = 48
"""Offsets that wait at the end."""
_SECONDS = 13 * 3600
"""Seconds of offsets and lag."""


def recorded_stream(name: str, **stream: Any) -> MadeStream:
    """Make a stream of flights, or one with other settings, whose features have loadings of many sizes."""
    how: dict[str, Any] = {"dim": len(FEATURES), "rank": 4, "feature_names": list(FEATURES)} | stream
    made = made_offline(name, ("2", "2e-6"), **how)
    d, k = made.settings.stream.dim, made.settings.stream.rank
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((d, d)) + 2 * np.eye(d))[0]
    made._components = np.eye(k, d) @ turn
    return made


def record(streams: Sequence[MadeStream], releases: Sequence[int], now: float) -> Offline:
    """Show an observer the releases of each stream, one each nine minutes, and its offsets and lag."""
    offline = Offline(*streams)
    for made, count in zip(streams, releases, strict=True):
        for i in range(count):
            age = 40 + INTERVAL * (count - 1 - i)
            wave = 1 + 0.1 * math.sin(i / 9)
            variances = [4.0 * wave, 2.1 * wave, 0.9, 0.16, *(0.1 / j for j in range(1, 100))]
            offline.publish(
                made.name,
                created=datetime.fromtimestamp(now - age, UTC).isoformat(timespec="milliseconds"),
                explained_variance=variances[: made.settings.stream.rank],
                explained_variance_error=[0.1] * made.settings.stream.rank,
                total_variance=sum(variances[: made.settings.stream.rank]) + 1.3,
                total_variance_error=0.2,
                angle_bound=0.09,
            )
        traffic = offline.observer._watched.streams[made.name].traffic
        for age in range(_SECONDS, 0, -4) if count else ():
            # It did not run for forty minutes, six hours ago.
            if not 6 * 3600 < age < 6 * 3600 + 2400:
                end = 10**5 + round(-RATE * age + 10 * math.sin(age / 700))
                traffic.add(made.topic_id, now - age, end, round(RATE * ((_SECONDS - age) % INTERVAL)))
    offline.observer._watched.refresh()
    return offline


class RecordedSite:
    """Pages and API of an observer that is not started."""

    def __init__(self, offline: Offline) -> None:
        self.offline = offline
        self.routes = [*page_routes(), Mount("", app=make_api(offline.observer))]

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Close the connection for lookups, which nothing has used."""
        self.offline.observer.stop()


@contextmanager
def recorded_site(
    streams: Sequence[MadeStream], releases: Sequence[int], now: float | None = None
) -> Iterator[Running]:
    """Serve the pages of recorded streams with so many releases each."""
    at = datetime.now(UTC).timestamp() if now is None else now
    with serving(site=RecordedSite(record(streams, releases, at)), requests_per_second=1000) as running:
        yield running
