"""Streams in every state that the pages name, without a broker or a worker."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Mount

from streaming_pca.dashboard.api.application import make_api
from streaming_pca.dashboard.pages import page_routes
from streaming_pca.estimators.warnings import ReleaseWarning
from streaming_pca.privacy.ledger.entries import OffsetRange, Paused, Reserved, Retired
from streaming_pca.privacy.parameters import Charge
from tests.browser.serving import FEATURES
from tests.dashboard.offline import Offline, made_offline

PLANNED = 20_480
"""Planned size of each batch."""
WAITING = 4200
"""Records that wait for the batch that fills."""
PER_SECOND = 50
DOUBTS = tuple(
    each for each in ReleaseWarning if each not in (ReleaseWarning.NO_RECORDS, ReleaseWarning.RANGE_ENDS)
)
"""Most doubts that one release can have."""
_BATCHES = {"n_records": 1000 * PLANNED, "n_batches": 1000, "growth": 1.0}
_SECONDS = 80


class Scenes:
    """Site of streams in each state.

    ``filling`` is healthy, and its budget is spent as planned; ``half`` has half of its cap left; ``users``
    has users as units; ``doubtful`` has all doubts; ``late`` has a full batch and no release;
    ``paused`` is paused, ``over`` retired; ``refused`` may not charge its next batch; ``first`` has no
    release yet; ``single`` has one release, of one component.
    """

    def __init__(self) -> None:
        common = {"dim": len(FEATURES), "rank": 3, "feature_names": FEATURES, "options": _BATCHES}
        user = {"privacy_unit": "user", "contributions_per_user": 3}
        self.offline = offline = Offline(
            made_offline("filling", input="visits", **common),
            made_offline("refused", input="visits", **common),
            made_offline("half", ("2", "2e-6"), **common),
            made_offline("users", **common, **user),
            made_offline("single", **(common | {"rank": 1})),
            *(made_offline(name, **common) for name in ("doubtful", "late", "paused", "over", "first")),
        )
        offline.publish("filling", 12)
        for name in ("half", "late", "paused"):
            offline.publish(name, 3)
        offline.publish("over", 2)
        offline.publish("doubtful", 3, doubts=DOUBTS)
        offline.publish("users", 1, entries=False)
        offline.publish("single")
        for name, kind in (("paused", Paused), ("over", Retired)):
            stream = offline.streams[name]
            own = {"topic_id": stream.topic_id, "job": name, "previous": stream.head}
            offline.append(name, kind(**own, reason="broker upgrade"))
        filling = offline.streams["filling"]
        offline.append(
            "filling",
            Reserved(
                topic_id=filling.topic_id,
                job="filling",
                batch=13,
                previous=filling.head,
                ranges=(OffsetRange(partition=0, start=1200, end=1300, count=100),),
                promise=filling.settings.stream.privacy_contract,
                parameters={"mechanism": "private-oja", "sigma_over_sensitivity": 1e6},
                charge=Charge(epsilon="1", delta="1e-6"),
            ),
        )
        fills = ("filling", "half", "users", "doubtful", "paused", "first")
        for second in range(0, _SECONDS + 1, 2):
            waiting = WAITING - PER_SECOND * (_SECONDS - second)
            offline.stand(float(second), dict.fromkeys(fills, waiting) | {"late": 3 * PLANNED})

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Pages and API."""
        return [*page_routes(), Mount("", app=make_api(self.offline.observer))]

    def start(self) -> None:
        """Start nothing: the observer has all messages."""

    def stop(self) -> None:
        """Close the connection for lookups, which nothing has used."""
        self.offline.observer.stop()
