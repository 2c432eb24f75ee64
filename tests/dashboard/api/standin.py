"""Dashboard of made streams, to look at: ``python -m tests.dashboard.api.standin BOOTSTRAP [--port 9470]``.

One stream is healthy and gets a release every few seconds; others have problems. The broker is real.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import uuid

from starlette.routing import BaseRoute, Mount

from streaming_pca.config.http import HttpSettings
from streaming_pca.dashboard.api.application import make_api
from streaming_pca.dashboard.observing.observer import Observer
from streaming_pca.dashboard.pages import page_routes
from streaming_pca.privacy.ledger.entries import Paused
from streaming_pca.service.http.server import HttpServer
from tests.dashboard.streams import MadeStream, make_stream

FEATURES = [
    "departure_delay",
    "arrival_delay",
    "air_time",
    "distance",
    "taxi_out",
    "taxi_in",
    "month",
    "weekday",
]


def made_streams(bootstrap: str, mark: str) -> list[MadeStream]:
    """Make streams of every status; the first is healthy."""
    well = make_stream(
        bootstrap,
        f"flights-{mark}",
        releases=120,
        dim=8,
        rank=3,
        partitions=3,
        feature_names=FEATURES,
        cap=("1.5", "1e-5"),
    )
    paused = make_stream(bootstrap, f"paused-{mark}", releases=12, dim=6)
    paused.append(
        Paused(
            topic_id=paused.topic_id,
            job=paused.name,
            previous=paused.head,
            reason="the meter is being repaired",
        )
    )
    doubtful = make_stream(bootstrap, f"doubtful-{mark}", releases=3, dim=10)
    doubtful.publish(1, doubts=("not-resolved",))
    return [
        well,
        paused,
        doubtful,
        make_stream(bootstrap, f"spent-{mark}", releases=10, cap=("1", "1e-6")),
        make_stream(bootstrap, f"wide-{mark}", releases=4, dim=2000, rank=5),
        make_stream(bootstrap, f"new-{mark}"),
        make_stream(bootstrap, f"missing-{mark}", topics=False),
    ]


class _Site:
    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.routes: list[BaseRoute] = [*page_routes(), Mount("", app=make_api(observer))]

    def start(self) -> None:
        self.observer.start()

    def stop(self) -> None:
        self.observer.stop()


async def _serve(streams: list[MadeStream], port: int, seconds: float) -> None:
    settings = HttpSettings(port=port, requests_per_second=1000)
    server = HttpServer(settings, site=_Site(Observer([made.settings for made in streams])))
    server.start()
    print(f"{server.url} serves; Ctrl-C ends it", flush=True)

    def publish() -> None:
        while not stopping.wait(seconds):
            streams[0].publish(1)

    stopping = threading.Event()
    threading.Thread(target=publish, daemon=True).start()
    try:
        await asyncio.Event().wait()
    finally:
        stopping.set()
        await server.stop()


def main() -> None:
    """Make the streams and serve them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--port", type=int, default=9470)
    parser.add_argument("--seconds", type=float, default=5.0, help="between two releases")
    given = parser.parse_args()
    streams = made_streams(given.bootstrap, uuid.uuid4().hex[:6])
    try:
        asyncio.run(_serve(streams, given.port, given.seconds))
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main()
